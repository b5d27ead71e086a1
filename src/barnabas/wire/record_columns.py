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
import operator
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
    """Values that become records with the same headers and the same key, or with a key each."""

    __slots__ = ("contents", "key_sizes", "keys", "overhead_bytes", "shape", "size_bytes", "sizes", "values")

    def __init__(self, shape: RecordShape, values: Sequence[bytes], keys: Sequence[bytes] | None = None) -> None:
        """Raises ValueError for `keys` that are not as many as the values, or that the shape has one instead of."""
        self.shape = shape
        self.values = values
        self.keys = keys
        self.sizes = list(map(len, values))
        """Of each value, in bytes."""
        self.key_sizes: list[int] = []
        self.contents = self.sizes
        """Of each value with its own key, in bytes."""
        self.overhead_bytes = shape.overhead_bytes
        if keys is not None:
            if len(keys) != len(values) or shape.key is not None:
                raise ValueError(f"{len(keys)} keys for {len(values)} values, and the key {shape.key!r} for all")
            self.key_sizes = list(map(len, keys))
            self.contents = list(map(operator.add, self.sizes, self.key_sizes))
            self.overhead_bytes += _VARINT_BYTES_MAX
        self.size_bytes = sum(self.contents) + len(values) * self.overhead_bytes
        """What the records take in a batch at most."""

    @property
    def key(self) -> bytes | None:
        """Of every record, where none has its own."""
        return self.shape.key

    @property
    def largest_bytes(self) -> int:
        """What the largest record takes in a batch at most."""
        return max(self.contents, default=0) + self.overhead_bytes

    def bytes_of(self, begin: int, end: int) -> int:
        """As `size_bytes`, of some of them."""
        if end - begin == len(self.values):
            return self.size_bytes
        return sum(self.contents[begin:end]) + (end - begin) * self.overhead_bytes

    def of(self, places: Sequence[int]) -> ValueColumn:
        """The records at some places; all of them where they are as many."""
        if len(places) == len(self.values):
            return self
        values = [self.values[place] for place in places]
        return ValueColumn(self.shape, values, None if self.keys is None else [self.keys[place] for place in places])

    def __len__(self) -> int:
        return len(self.values)


class RecordShape:
    """What records have besides their values, and the bytes of it: one for all columns that are alike.

    What it keeps to be quick is bounded, however many sizes the values have.
    """

    __slots__ = ("_after_offset", "_before_offset", "_between", "_key", "_tail", "_varints", "key", "overhead_bytes")

    def __init__(self, key: bytes | None = None, headers: Sequence[Header] = ()) -> None:
        self.key = key
        self._key = b"\x01" if key is None else write_varint(len(key)) + key
        self._tail = _headers(headers)
        self.overhead_bytes = 1 + 3 * _VARINT_BYTES_MAX + _VARLONG_BYTES_MAX + len(self._key) + len(self._tail)
        """What a record takes besides its value at most."""
        self._before_offset: dict[tuple[int, bytes, bool], _BeforeOffset] = {}
        self._after_offset = _AfterOffset(self._key)
        self._varints = _AfterOffset(b"")
        self._between: tuple[int, list[bytes]] = (-1, [])

    def write(self, column: ValueColumn, begin: int, end: int, first_delta: int, timestamp_delta: int) -> bytes:
        """The records of the values from `begin` to `end`. The first has the offset delta `first_delta`, and all have
        the same timestamp delta.
        """
        if column.keys is not None:
            return self._write_keyed(column, begin, end, first_delta, timestamp_delta)
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
            pieces[0::4] = self._before_offsets(sizes, offsets, time)
            pieces[1::4] = offsets
            pieces[2::4] = list(map(self._after_offset.__getitem__, sizes))
            pieces[3::4] = values
        return self._joined(pieces)

    def _write_keyed(self, column: ValueColumn, begin: int, end: int, first_delta: int, timestamp_delta: int) -> bytes:
        offsets = _offset_deltas(first_delta, first_delta + end - begin)
        key_sizes = list(map(self._varints.__getitem__, column.key_sizes[begin:end]))
        sizes = list(map(self._varints.__getitem__, column.sizes[begin:end]))
        both = map(operator.add, map(len, key_sizes), map(len, sizes))
        contents = list(map(operator.add, column.contents[begin:end], both))
        pieces = [b""] * (6 * len(sizes))
        pieces[0::6] = self._before_offsets(contents, offsets, write_varint(timestamp_delta), has_keys=True)
        pieces[1::6] = offsets
        pieces[2::6] = key_sizes
        pieces[3::6] = (column.keys or ())[begin:end]
        pieces[4::6] = sizes
        pieces[5::6] = column.values[begin:end]
        return self._joined(pieces)

    def _joined(self, pieces: list[bytes]) -> bytes:
        # Each record's first piece begins with what ends the record ahead of it.
        pieces[0] = pieces[0][len(self._tail) :]
        pieces.append(self._tail)
        return b"".join(pieces)

    def _before_offsets(
        self, contents: list[int], offsets: list[bytes], time: bytes, *, has_keys: bool = False
    ) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < len(contents):
            width = len(offsets[len(found)])
            begin, end = len(found), len(found) + _count_of_width(offsets, len(found), width)
            found += map(self._table(width, time, has_keys=has_keys).__getitem__, contents[begin:end])
        return found

    def _table(self, offset_width: int, time: bytes, *, has_keys: bool = False) -> _BeforeOffset:
        table = self._before_offset.get((offset_width, time, has_keys))
        if table is None:
            if len(self._before_offset) >= _TABLES_MAX:
                self._before_offset.clear()
            fixed_bytes = 1 + len(time) + offset_width + len(self._tail)
            if has_keys:
                table = _BeforeOffset(self._tail, fixed_bytes, time)
            else:
                table = _BeforeOffsetByValue(self._tail, fixed_bytes + len(self._key), time)
            self._before_offset[offset_width, time, has_keys] = table
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
    overhead_bytes = column.overhead_bytes
    taken = max(0, min(len(column) - begin, records_max - builder.record_count))
    if column.size_bytes > room:
        taken = min(taken, max(0, room // overhead_bytes))  # so many more are not looked at for each small batch
        ends = itertools.accumulate(size + overhead_bytes for size in column.contents[begin : begin + taken])
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
    """By what a record has between its offset and its headers: the end of the record ahead, and its own length,
    attributes and timestamp delta.
    """

    def __init__(self, tail: bytes, fixed_bytes: int, time: bytes) -> None:
        self._tail = tail
        self._after_length = b"\0" + time
        self._fixed_bytes = fixed_bytes

    def __missing__(self, content_bytes: int) -> bytes:
        if len(self) >= _TABLE_ENTRIES_MAX:
            self.clear()
        length = self._fixed_bytes + self.body_bytes(content_bytes)
        piece = self[content_bytes] = self._tail + write_varint(length) + self._after_length
        return piece

    def body_bytes(self, content_bytes: int) -> int:
        """What is not the same for all records."""
        return content_bytes


class _BeforeOffsetByValue(_BeforeOffset):
    """The same by the size of a value."""

    def body_bytes(self, content_bytes: int) -> int:
        """The value and its size; the key is the same for all."""
        return len(write_varint(content_bytes)) + content_bytes


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
