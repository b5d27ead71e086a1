"""What `barnabas produce` has had acknowledged, and the lines that are on their way together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from barnabas.wire.record_columns import ValueColumn
    from barnabas.wire.topics import TopicPartition


@dataclass(slots=True)
class PartitionTotals:
    """What was acknowledged of a partition; the offsets are None where brokers did not tell them (acks=0)."""

    records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None

    def add(self, offset: int, count: int) -> None:
        """So many records from an offset on; -1 where it is not known."""
        self.records += count
        if offset < 0:
            return
        if self.first_offset is None or offset < self.first_offset:
            self.first_offset = offset
        last = offset + count - 1
        if self.last_offset is None or last > self.last_offset:
            self.last_offset = last


@dataclass(slots=True)
class Totals:
    """What was acknowledged."""

    records: int = 0
    value_bytes: int = 0
    partitions: dict[int, PartitionTotals] = field(default_factory=dict)

    def add(self, partition: int, offset: int, count: int, value_bytes: int) -> None:
        """So many records of a partition from an offset on; -1 where that is not known."""
        self.records += count
        self.value_bytes += value_bytes
        of_partition = self.partitions.get(partition)
        if of_partition is None:
            of_partition = self.partitions[partition] = PartitionTotals()
        of_partition.add(offset, count)


class SentLines:
    """Lines that were sent together, by partition; they come to their ends in parts."""

    __slots__ = ("_count", "_left", "_written", "done", "failure", "line")

    def __init__(self, loop: asyncio.AbstractEventLoop, line: int, count: int) -> None:
        self.line = line
        """The number of the first line."""
        self.done: asyncio.Future[None] = loop.create_future()
        """Whether all have come to their ends."""
        self.failure: tuple[int, BaseException] | None = None
        """The number of the first line that has failed, and why."""
        self._count = self._left = count
        self._written: list[tuple[int, int, int, int]] = []

    def __len__(self) -> int:
        return self._count

    def written(self, partition: int, base_offset: int, count: int, value_bytes: int) -> None:
        """So many are acknowledged."""
        self._written.append((partition, base_offset, count, value_bytes))
        self._ended(count)

    def failed(self, line: int, count: int, error: BaseException) -> None:
        """So many will not be, of which that line is the first."""
        if self.failure is None or line < self.failure[0]:
            self.failure = (line, error)
        self._ended(count)

    def add_to(self, totals: Totals) -> None:
        """Counts what is acknowledged, once."""
        written, self._written = self._written, []
        for partition, base_offset, count, value_bytes in written:
            totals.add(partition, base_offset, count, value_bytes)

    def _ended(self, count: int) -> None:
        self._left -= count
        if not self._left and not self.done.done():
            self.done.set_result(None)


class SentColumn:
    """Those of the lines that go to one partition (`barnabas.client.batches.ColumnFate`)."""

    __slots__ = ("_lines", "_places", "column")

    def __init__(self, lines: SentLines, column: ValueColumn, places: Sequence[int]) -> None:
        """`places` are those of the column's records among the lines, in order."""
        self.column = column
        self._lines = lines
        self._places = places

    def written(self, first: int, count: int, partition: TopicPartition, base_offset: int) -> None:
        """See `ColumnFate`."""
        value_bytes = sum(self.column.sizes[first : first + count])
        self._lines.written(partition.partition, base_offset, count, value_bytes)

    def failed(self, first: int, count: int, error: BaseException) -> None:
        """See `ColumnFate`."""
        self._lines.failed(self._lines.line + self._places[first], count, error)
