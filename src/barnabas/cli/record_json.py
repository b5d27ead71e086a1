"""Records as JSON: the same both ways, so that what `consume --json` prints can be fed to `produce --format json`."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from barnabas.cli.record_formats import BASE64_SUFFIX

if TYPE_CHECKING:
    from barnabas.wire.records import Header

_RECORD_FIELDS: Final = frozenset(
    {"key", "key_base64", "value", "value_base64", "headers", "partition", "timestamp_ms"}
)
_IGNORED_FIELDS: Final = frozenset({"topic", "offset", "leader_epoch", "timestamp_type"})
_HEADER_FIELDS: Final = frozenset({"key", "key_base64", "value", "value_base64"})
_INT32_MAX: Final = (1 << 31) - 1
_INT64_MAX: Final = (1 << 63) - 1
_compact: Final = json.JSONEncoder(separators=(",", ":"))
_readable: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
json_line = _compact.encode
"""A document as one line of JSON, in ASCII."""


@dataclass(frozen=True, slots=True)
class InputRecord:
    """A record that a user wrote; what it does not say is None, and a missing key is `has_key` False."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    has_key: bool = True


def parse_record(line: bytes) -> InputRecord:
    """The record of a line of JSON. Raises ValueError, which says what is wrong with it.

    `key` and `value` are text, or in base64 under `key_base64` and `value_base64`; null is none, and a value that is
    any other JSON is its text. `headers` are a list of objects as `header_documents` makes them, or one object.
    """
    try:
        document = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error.msg} at character {error.pos + 1})") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON ({error})") from None
    if not isinstance(document, dict):
        raise ValueError('a record is an object such as {"key": "a", "value": "b"}')  # noqa: TRY004 - the user's error
    unknown = sorted(document.keys() - _RECORD_FIELDS - _IGNORED_FIELDS)
    if unknown:
        raise ValueError(f"a record has no {unknown[0]!r}; it may have {', '.join(sorted(_RECORD_FIELDS))}")
    if "value" not in document and "value_base64" not in document:
        raise ValueError("the record has no value; write null for a tombstone")
    return InputRecord(
        key=_bytes_of(document, "key"),
        value=_bytes_of(document, "value"),
        headers=_headers_of(document["headers"]) if "headers" in document else None,
        partition=_integer_of(document, "partition", _INT32_MAX),
        timestamp_ms=_integer_of(document, "timestamp_ms", _INT64_MAX),
        has_key="key" in document or "key_base64" in document,
    )


def _bytes_of(document: dict[str, Any], name: str) -> bytes | None:
    encoded_name = name + BASE64_SUFFIX
    if encoded_name in document:
        if name in document:
            raise ValueError(f"{name} and {encoded_name} cannot be given together")
        encoded = document[encoded_name]
        if not isinstance(encoded, str):
            raise ValueError(f"{encoded_name} is not text in base64")
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"{encoded_name} is not base64: {error}") from None
    content = document.get(name)
    if content is None:
        return None
    try:
        return (content if isinstance(content, str) else _readable.encode(content)).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} has half of a surrogate pair, which is not text") from None


def _headers_of(content: object) -> tuple[Header, ...]:
    if isinstance(content, dict):
        content = [{"key": key, "value": value} for key, value in content.items()]
    if not isinstance(content, list):
        raise ValueError('headers are a list such as [{"key": "a", "value": "b"}]')  # noqa: TRY004 - the user's error
    headers = []
    for each in content:
        if not isinstance(each, dict) or each.keys() - _HEADER_FIELDS:
            raise ValueError('a header is an object such as {"key": "a", "value": "b"}')
        key = _bytes_of(each, "key")
        if key is None:
            raise ValueError("a header has no key")
        headers.append((key, _bytes_of(each, "value")))
    return tuple(headers)


def _integer_of(document: dict[str, Any], name: str, largest: int) -> int | None:
    number = document.get(name)
    if number is None:
        return None
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= largest:
        raise ValueError(f"{name} is {_compact.encode(number)}: it must be a number from 0 to {largest}")
    return number
