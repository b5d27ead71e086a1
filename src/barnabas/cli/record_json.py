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
json_line = _compact.encode
"""A document as one line of JSON, in ASCII."""


@dataclass(frozen=True, slots=True)
class _Number:
    """A number that is none of Python's integers, as it was written: `12.50`, `1e400`."""

    text: str


class _OtherDigitsError(Exception):
    """Python's number is not written as the user's was."""


def _as_python_has_it(number: _Number) -> float:
    found = float(number.text)
    if repr(found) != number.text:
        raise _OtherDigitsError
    return found


def _no_number(name: str) -> object:
    """`NaN` and its like, which Python reads."""
    raise ValueError(f"{name} is no number")


_decoder: Final = json.JSONDecoder(parse_float=_Number, parse_constant=_no_number)
_readable: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=_as_python_has_it)


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
    any other JSON is its text, with the digits that its numbers have. `headers` are a list of objects as
    `header_documents` makes them, or one object.
    """
    try:
        document = _decoder.decode(line.decode(json.detect_encoding(line), "surrogatepass"))
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error.msg} at character {error.pos + 1})") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON ({error})") from None
    except RecursionError:
        raise ValueError("it is not JSON (too deep)") from None
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
        return (content if isinstance(content, str) else _text_of(content)).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} has half of a surrogate pair, which is not text") from None
    except RecursionError:
        raise ValueError(f"{name} is too deep") from None


def _text_of(content: object) -> str:
    try:
        return _readable.encode(content)
    except _OtherDigitsError:
        return _written(content)


def _written(content: object) -> str:
    """As the encoder writes it, but for numbers, which keep their digits; it takes several times as long."""
    match content:
        case _Number():
            return content.text
        case dict():
            return f"{{{','.join(f'{_readable.encode(name)}:{_written(each)}' for name, each in content.items())}}}"
        case list():
            return f"[{','.join(map(_written, content))}]"
    return _readable.encode(content)


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
        raise ValueError(f"{name} is {_text_of(number)}: it must be a number from 0 to {largest}")
    return number
