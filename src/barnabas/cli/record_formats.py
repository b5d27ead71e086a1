"""Records as text: how `consume` and `log dump` show them.

Keys, values and headers that are not UTF-8 have their bytes in base64 under a name of their own (`value_base64`), and
are shown to people with `\\xNN` for the bytes that are no text.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from barnabas.cli.output import printable

if TYPE_CHECKING:
    from barnabas.wire.records import Header

NULL: Final = "null"
"""How people are shown that there is no key, or no value."""
BASE64_SUFFIX: Final = "_base64"


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
        import base64

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
