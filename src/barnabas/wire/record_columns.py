"""Many records of a batch at a time, written by columns.

Values that share a key and headers differ in a few bytes besides themselves: the length of the record, the offset delta
and the length of the value. Each of these is a look-up in a table, made for a whole column by one call, and a single
join puts the columns together: a tenth of what it takes to write one record after another. Values of one length, as
fixed-size records have, need one column of what is between them.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Sequence
from typing import Final

from barnabas.wire.record_batch import INT32_MAX
from barnabas.wire.record_builder import RecordBatchBuilder, write_varint
from barnabas.wire.records import Header

OFFSETS_OF_TWO_BYTES: Final = 0x2000
"""From that offset delta on its varint has three bytes. Brokers check columns of shorter ones (`record_runs`)."""
_TABLE_ENTRIES_MAX: Final = 16_384
_TABLES_MAX: Final = 64
_WORTH_A_COLUMN_BETWEEN: Final = 1_000
"""Fewer values of a size that is new are not."""
_VARINT_BYTES_MAX: Final = 5
_VARLONG_BYTES_MAX: Final = 10


class ValueColumn:
    """Values that become records with the same key and headers."""

    __slots__ = ("shape", "size_bytes", "sizes", "values")

    def __init__(self, shape: RecordShape, values: Sequence[bytes]) -> None:
        self.shape = shape
        self.values = values
        self.sizes = list(map(len, values))
        """Of each value, in bytes."""
        self.size_bytes = sum(self.sizes) + len(values) * shape.overhead_bytes
        """What the records take in a batch at most."""

    @property
    def key(self) -> bytes | None:
        """Of every record."""
        return self.shape.key

    @property
    def largest_bytes(self) -> int:
        """What the largest record takes in a batch at most."""
        return max(self.sizes, default=0) + self.shape.overhead_bytes

    def bytes_of(self, begin: int, end: int) -> int:
        """As `size_bytes`, of some of them."""
        if end - begin == len(self.values):
            return self.size_bytes
        return sum(self.sizes[begin:end]) + (end - begin) * self.shape.overhead_bytes

    def __len__(self) -> int:
        return len(self.values)


class RecordShape:
    """What records have besides their values, and the bytes of it: one for all columns that are alike.

    What it keeps to be quick is bounded, however many sizes the values have.
    """

    __slots__ = ("_after_offset", "_before_offset", "_between", "_key", "_tail", "key", "overhead_bytes")

    def __init__(self, key: bytes | None = None, headers: Sequence[Header] = ()) -> None:
        self.key = key
        self._key = b"\x01" if key is None else write_varint(len(key)) + key
        self._tail = _headers(headers)
        self.overhead_bytes = 1 + 3 * _VARINT_BYTES_MAX + _VARLONG_BYTES_MAX + len(self._key) + len(self._tail)
        """What a record takes besides its value at most."""
        self._before_offset: dict[tuple[int, bytes], _BeforeOffset] = {}
        self._after_offset = _AfterOffset(self._key)
        self._between: tuple[int, list[bytes]] = (-1, [])

    def write(self, column: ValueColumn, begin: int, end: int, first_delta: int, timestamp_delta: int) -> bytes:
        """The records of the values from `begin` to `end`. The first has the offset delta `first_delta`, and all have
        the same timestamp delta.
        """
        values = column.values if end - begin == len(column) else column.values[begin:end]
        sizes = column.sizes if end - begin == len(column) else column.sizes[begin:end]
        size = sizes[0]
        offsets = _offset_deltas(first_delta, first_delta + len(values))
        if (
            not timestamp_delta
            and first_delta + len(values) <= OFFSETS_OF_TWO_BYTES
            and (size == self._between[0] or len(values) >= _WORTH_A_COLUMN_BETWEEN)
            and sizes.count(size) == len(sizes)
        ):
            between = self._between_values_of(size)[first_delta : first_delta + len(values)]
            pieces = [b""] * (2 * len(values))
            pieces[0::2] = between
            pieces[1::2] = values
        else:
            time = write_varint(timestamp_delta)
            pieces = [b""] * (4 * len(values))
            pieces[0::4] = self._lengths(sizes, offsets, time)
            pieces[1::4] = offsets
            pieces[2::4] = list(map(self._after_offset.__getitem__, sizes))
            pieces[3::4] = values
        # Each record's first piece begins with what ends the record ahead of it.
        pieces[0] = pieces[0][len(self._tail) :]
        pieces.append(self._tail)
        return b"".join(pieces)

    def _lengths(self, sizes: list[int], offsets: list[bytes], time: bytes) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < len(sizes):
            width = len(offsets[len(found)])
            begin, end = len(found), len(found) + _count_of_width(offsets, len(found), width)
            found += map(self._table(width, time).__getitem__, sizes[begin:end])
        return found

    def _table(self, offset_width: int, time: bytes) -> _BeforeOffset:
        table = self._before_offset.get((offset_width, time))
        if table is None:
            if len(self._before_offset) >= _TABLES_MAX:
                self._before_offset.clear()
            table = _BeforeOffset(self._tail, self._key, offset_width, time)
            self._before_offset[offset_width, time] = table
        return table

    def _between_values_of(self, size: int) -> list[bytes]:
        """For values of that size everything between two of them, by the offset delta of the second."""
        if self._between[0] != size:
            before = {width: self._table(width, b"\0")[size] for width in (1, 2)}
            after = self._after_offset[size]
            self._between = (size, [before[len(delta)] + delta + after for delta in _short_offset_deltas()])
        return self._between[1]


def append_column(
    builder: RecordBatchBuilder, column: ValueColumn, begin: int, timestamp_ms: int, records_max: int = INT32_MAX
) -> int:
    """Adds values of the column from `begin` on to a batch, as many as its limit lets and until it has `records_max`,
    and returns how many; the first record of a batch is always taken. All get the same timestamp.
    """
    room = builder.room_bytes
    overhead_bytes = column.shape.overhead_bytes
    taken = max(0, min(len(column) - begin, records_max - builder.record_count))
    if column.size_bytes > room:
        ends = itertools.accumulate(size + overhead_bytes for size in column.sizes[begin : begin + taken])
        taken = bisect.bisect_right(list(ends), room)
    if not taken:
        if builder.record_count:
            return 0
        taken = 1
    delta = builder.timestamp_delta(timestamp_ms)
    records = column.shape.write(column, begin, begin + taken, builder.record_count, delta)
    builder.append_written(records, taken, timestamp_ms)
    return taken


# Inside.


class _BeforeOffset(dict[int, bytes]):
    """By the size of a value: the end of the record ahead, and its own length, attributes and timestamp delta."""

    def __init__(self, tail: bytes, key: bytes, offset_width: int, time: bytes) -> None:
        self._tail = tail
        self._after_length = b"\0" + time
        self._fixed_bytes = 1 + len(time) + offset_width + len(key) + len(tail)

    def __missing__(self, size: int) -> bytes:
        if len(self) >= _TABLE_ENTRIES_MAX:
            self.clear()
        length = self._fixed_bytes + len(write_varint(size)) + size
        piece = self[size] = self._tail + write_varint(length) + self._after_length
        return piece


class _AfterOffset(dict[int, bytes]):
    """By the size of a value: the key and that size."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def __missing__(self, size: int) -> bytes:
        if len(self) >= _TABLE_ENTRIES_MAX:
            self.clear()
        piece = self[size] = self._key + write_varint(size)
        return piece


@functools.cache
def _short_offset_deltas() -> list[bytes]:
    return list(map(write_varint, range(OFFSETS_OF_TWO_BYTES)))


def _offset_deltas(begin: int, end: int) -> list[bytes]:
    short = _short_offset_deltas()[begin:end]
    return short if end <= OFFSETS_OF_TWO_BYTES else short + list(map(write_varint, range(begin + len(short), end)))


def _count_of_width(offsets: list[bytes], begin: int, width: int) -> int:
    """How many of them from `begin` on have varints of that many bytes: they only grow."""
    if len(offsets[-1]) == width:
        return len(offsets) - begin
    low, high = begin, len(offsets) - 1
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if len(offsets[middle]) == width else (low, middle)
    return high - begin


def _headers(headers: Sequence[Header]) -> bytes:
    pieces = [write_varint(len(headers))]
    for key, value in headers:
        pieces += (write_varint(len(key)), key)
        pieces += (b"\x01",) if value is None else (write_varint(len(value)), value)
    return b"".join(pieces)
