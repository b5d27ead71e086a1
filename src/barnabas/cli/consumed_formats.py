"""What `barnabas consume` prints of records: the formats by name, and templates.

Values, and keys with values, need nothing else of a record, so the client reads and this prints them by columns. JSON
and templates need whole records.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from barnabas.cli.record_formats import NULL, add_bytes, header_documents, shown_bytes
from barnabas.cli.record_templates import template_format
from barnabas.wire.records import TimestampType

if TYPE_CHECKING:
    from barnabas.client.consumer import Consumer
    from barnabas.client.records import ConsumerRecord, RecordColumn
    from barnabas.wire.topics import TopicPartition

Ends = Mapping["TopicPartition", int]

_NULL_BYTES: Final = NULL.encode()
_TIMESTAMP_TYPES: Final = {
    TimestampType.NO_TIMESTAMP_TYPE: None,
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}


class Records:
    """What a format needs that prints whole records."""

    def __init__(self, lines: Callable[[list[ConsumerRecord]], bytes]) -> None:
        self.lines = lines

    async def poll(self, consumer: Consumer, timeout_ms: float, records_max: int) -> list[ConsumerRecord]:
        """See `Consumer.poll`."""
        return await consumer.poll(timeout_ms, records_max)

    def count(self, records: list[ConsumerRecord]) -> int:
        """How many records they are."""
        return len(records)

    def below(self, records: list[ConsumerRecord], ends: Ends) -> tuple[list[ConsumerRecord], set[TopicPartition]]:
        """The records below these ends, 0 where none is given, and the partitions of the others."""
        found = {record.partition: ends.get(record.partition, 0) for record in records}
        beyond = {record.partition for record in records if record.offset >= found[record.partition]}
        return [record for record in records if record.offset < found[record.partition]], beyond


class Columns:
    """What a format needs that prints keys and values: the same of columns."""

    def __init__(self, lines: Callable[[list[RecordColumn]], bytes]) -> None:
        self.lines = lines

    async def poll(self, consumer: Consumer, timeout_ms: float, records_max: int) -> list[RecordColumn]:
        """See `Consumer.poll_columns`."""
        return await consumer.poll_columns(timeout_ms, records_max)

    def count(self, columns: list[RecordColumn]) -> int:
        """How many records they have."""
        return sum(map(len, columns))

    def below(self, columns: list[RecordColumn], ends: Ends) -> tuple[list[RecordColumn], set[TopicPartition]]:
        """See `Records.below`."""
        wanted = [column.below(ends.get(column.partition, 0)) for column in columns]
        beyond = {column.partition for column, part in zip(columns, wanted, strict=True) if len(part) < len(column)}
        return [part for part in wanted if len(part)], beyond


Format = Records | Columns


def format_of(line_format: str, *, is_terminal: bool) -> Format:
    """How records become lines: a name of FORMATS, or a template. Raises ValueError."""
    named = FORMATS.get(line_format)
    if named is not None:
        return named(is_terminal)
    return Records(template_format(line_format, is_terminal=is_terminal))


def _value_format(is_terminal: bool) -> Format:
    """The values, as they are where they are UTF-8; on a terminal with control characters escaped."""

    def lines(columns: list[RecordColumn]) -> bytes:
        if is_terminal:
            return "".join([f"{shown_bytes(value)}\n" for column in columns for value in column.values]).encode()
        values = [value for column in columns for value in _without_nulls(column.values)]
        values.append(b"")
        return _valid(b"\n".join(values), values)

    return Columns(lines)


def _raw_format(is_terminal: bool) -> Format:
    """The values, byte for byte, and a line feed behind each; null is no byte. On a terminal as `value`."""
    if is_terminal:
        return _value_format(is_terminal)

    def lines(columns: list[RecordColumn]) -> bytes:
        values = [value or b"" for column in columns for value in column.values]
        values.append(b"")
        return b"\n".join(values)

    return Columns(lines)


def _hex_format(is_terminal: bool) -> Format:  # noqa: ARG001 - digits do nobody any harm
    """Key, tab and value in hexadecimal digits, or null."""

    def lines(columns: list[RecordColumn]) -> bytes:
        parts = [
            f"{_hex(key)}\t{_hex(value)}\n"
            for column in columns
            for key, value in zip(column.keys or itertools.repeat(None), column.values, strict=False)
        ]
        return "".join(parts).encode("ascii")

    return Columns(lines)


def _line_format(is_terminal: bool) -> Format:
    """Key, tab and value."""

    def lines(columns: list[RecordColumn]) -> bytes:
        if is_terminal:
            shown = [
                f"{shown_bytes(key)}\t{shown_bytes(value)}\n"
                for column in columns
                for key, value in zip(column.keys or itertools.repeat(None), column.values, strict=False)
            ]
            return "".join(shown).encode()
        parts: list[bytes] = []
        for column in columns:
            values = _without_nulls(column.values)
            keys = itertools.repeat(_NULL_BYTES) if column.keys is None else _without_nulls(column.keys)
            parts += map(b"\t".join, zip(keys, values, strict=False))
        parts.append(b"")
        return _valid(b"\n".join(parts), parts)

    return Columns(lines)


def _json_format(is_terminal: bool) -> Format:  # noqa: ARG001 - JSON escapes them always
    """One object for each record."""
    from barnabas.cli.record_json import json_line

    def lines(records: list[ConsumerRecord]) -> bytes:
        parts = [json_line(record_document(record)) for record in records]
        parts.append("")
        return "\n".join(parts).encode("ascii")

    return Records(lines)


FORMATS: Final[dict[str, Callable[[bool], Format]]] = {
    "value": _value_format,
    "line": _line_format,
    "raw": _raw_format,
    "hex": _hex_format,
    "json": _json_format,
}
"""By name; told whether it is printed on a terminal."""


def record_document(record: ConsumerRecord) -> dict[str, Any]:
    """A record as JSON has it."""
    document: dict[str, Any] = {
        "topic": record.partition.topic,
        "partition": record.partition.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "timestamp_type": _TIMESTAMP_TYPES[record.timestamp_type],
        "leader_epoch": record.leader_epoch,
    }
    add_bytes(document, "key", record.key)
    add_bytes(document, "value", record.value)
    document["headers"] = header_documents(record.headers)
    return document


# Inside.


def _hex(data: bytes | None) -> str:
    return NULL if data is None else data.hex()


def _without_nulls(items: Sequence[bytes | None]) -> Sequence[bytes]:
    if None in items:
        return [_NULL_BYTES if item is None else item for item in items]
    return cast("Sequence[bytes]", items)


def _valid(joined: bytes, parts: list[bytes]) -> bytes:
    """The lines, with bytes that are not UTF-8 escaped, each line for itself."""
    try:
        joined.decode()
    except UnicodeDecodeError:
        return b"\n".join([part.decode("utf-8", "backslashreplace").encode() for part in parts])
    return joined
