"""Records as text: how `consume` and `log dump` show them, and how `produce` takes them.

The JSON of a record is the same both ways, so that what `consume --json` prints can be fed to `produce --format json`.
Keys, values and headers that are not UTF-8 have their bytes in base64 under a name of their own (`value_base64`), and
are shown to people with `\\xNN` for the bytes that are no text.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from barnabas.cli.output import printable

if TYPE_CHECKING:
    from barnabas.wire.records import Header

NULL: Final = "null"
"""How people are shown that there is no key, or no value."""
BASE64_SUFFIX: Final = "_base64"

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


def shown_bytes(data: bytes | None) -> str:
    """Bytes for people: as text, with whatever is no text, or no character that can be shown, escaped."""
    return NULL if data is None else printable(data.decode("utf-8", "backslashreplace"))


def shown_time(timestamp_ms: int) -> str:
    """A timestamp in UTC, ISO 8601 with milliseconds; the number itself where no calendar has it."""
    seconds, milliseconds = divmod(timestamp_ms, 1_000)
    try:
        moment = dt.datetime.fromtimestamp(seconds, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"


def parse_time(text: str) -> int:
    """Milliseconds since 1970 of an ISO 8601 time; one without an offset is in UTC. Raises ValueError."""
    moment = dt.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return (moment - _EPOCH) // dt.timedelta(milliseconds=1)


_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def add_bytes(document: dict[str, Any], name: str, data: bytes | None) -> None:
    """Puts bytes into a document: as text under `name`, or in base64 under `name_base64` where they are not UTF-8."""
    if data is None:
        document[name] = None
        return
    try:
        document[name] = data.decode()
    except UnicodeDecodeError:
        document[name + BASE64_SUFFIX] = base64.b64encode(data).decode()


def header_documents(headers: Iterable[Header]) -> list[dict[str, Any]]:
    """Headers in their order, each an object with `key` and `value`."""
    documents = []
    for key, value in headers:
        document: dict[str, Any] = {}
        add_bytes(document, "key", key)
        add_bytes(document, "value", value)
        documents.append(document)
    return documents


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
