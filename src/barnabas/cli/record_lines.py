"""Lines that become records to be produced."""

from __future__ import annotations

from dataclasses import dataclass, field

from barnabas.client.records import ProducerRecord
from barnabas.wire.record_columns import RecordShape, ValueColumn
from barnabas.wire.records import Header


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFormat:
    """How a line is read, and what holds for records that do not say otherwise."""

    topic: str
    is_json: bool = False
    key_separator: bytes | None = None
    key: bytes | None = None
    partition: int | None = None
    headers: tuple[Header, ...] = ()
    shape: RecordShape = field(init=False)
    """What the records of all lines have in common."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", RecordShape(self.key, self.headers))

    def column(self, lines: list[bytes]) -> ValueColumn | None:
        """The records of lines that say no more than keys and values; None where they do, or some line is no record."""
        if self.is_json:
            return None
        if self.key_separator is None:
            return ValueColumn(self.shape, lines)
        separator = self.key_separator
        keys, separators, values = zip(*[line.partition(separator) for line in lines], strict=True)
        return None if b"" in separators else ValueColumn(self.shape, values, keys)

    def record(self, line: bytes) -> ProducerRecord | None:
        """The record of a line; None for an empty line of JSON. Raises ValueError, which says what is wrong."""
        if self.is_json:
            return self._json_record(line)
        key, value = self.key, line
        if self.key_separator is not None:
            key, separator, value = line.partition(self.key_separator)
            if not separator:
                raise ValueError(f"there is no {self.key_separator.decode('utf-8', 'backslashreplace')!r} in it")
        return ProducerRecord(self.topic, value, key, self.headers, self.partition)

    def _json_record(self, line: bytes) -> ProducerRecord | None:
        from barnabas.cli.record_json import parse_record

        if not line.strip():
            return None
        read = parse_record(line)
        return ProducerRecord(
            self.topic,
            read.value,
            read.key if read.has_key else self.key,
            self.headers if read.headers is None else read.headers,
            self.partition if read.partition is None else read.partition,
            read.timestamp_ms,
        )
