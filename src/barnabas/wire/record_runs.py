"""Records of equal sizes, checked by columns instead of one by one.

Producers of fixed-size records send batches in which one record is like the next: the same bytes say the sizes, at the
same distance. A slice with that step is one column of them, and comparing it is one operation for thousands of records.
Nothing is assumed: a record that differs in any byte of its frame ends the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from barnabas.wire.primitives import Buffer

RUN_MIN: Final = 16
"""Shorter runs are not worth the columns."""
_TIMESTAMP_BYTES_MAX: Final = 5
_OFFSETS_OF_ONE_BYTE: Final = bytes(range(0, 0x80, 2))  # the varints of 0 to 63
_LOW_BYTES: Final = bytes(range(0x80, 0x100, 2))  # the first bytes of those of two, again and again
_HIGH_BIT: Final = bytes(0x80) + b"\x01" * 0x80


class Run(NamedTuple):
    """Records that follow one another."""

    records: int
    max_delta: int | None
    """The largest timestamp delta; None where no record has a timestamp."""
    min_delta: int
    number_of_max: int
    """Of the first record with the largest."""


_NONE: Final = Run(0, None, 0, 0)


def run_like(data: bytes, begin: int, end: int, number: int, count: int, no_timestamp_delta: int) -> Run:
    """The records behind the one in `data[begin:end]`, which is well-formed, that are like it: without headers, in all
    sizes, in the length of their timestamp delta, and with the next offset deltas.

    The first of them is `number` and at most `count` are looked at; none are found where there are few. A timestamp
    delta of `no_timestamp_delta` says that a record has none.
    """
    count = like_records(data, begin, end, number, count)
    if not count:
        return _NONE
    step = end - begin
    timestamp = behind_varint(data, begin) + 1
    offset = behind_varint(data, timestamp)
    columns = [data[place + step : place + step * count + 1 : step] for place in range(timestamp, offset)]
    return _with_timestamps(columns, number, count, no_timestamp_delta)


def like_records(data: bytes, begin: int, end: int, number: int, count: int) -> int:
    """How many records `run_like` finds: none, or `RUN_MIN` and more."""
    step = end - begin
    timestamp = behind_varint(data, begin) + 1
    offset = behind_varint(data, timestamp)
    key = behind_varint(data, offset)
    key_bytes, key_end = size_at(data, key)
    value = key_end + key_bytes
    value_bytes, value_end = size_at(data, value)
    has_short_offsets = key - offset == 1
    has_headers = value_end + value_bytes != end - 1
    if has_headers or key - offset > 2 or offset - timestamp > _TIMESTAMP_BYTES_MAX:
        return 0
    count = min(count, (0x40 if has_short_offsets else 0x2000) - number, (len(data) - end) // step)
    for place in (*range(begin, timestamp - 1), *range(key, key_end), *range(value, value_end), end - 1):
        if count < RUN_MIN:
            return 0
        count -= len(data[place + step : place + step * count + 1 : step].lstrip(data[place : place + 1]))
    for place in range(timestamp, offset):
        if count < RUN_MIN:
            return 0
        others = b"\x01" if place == offset - 1 else b"\x00"
        differs = data[place + step : place + step * count + 1 : step].translate(_HIGH_BIT).find(others)
        count = count if differs < 0 else differs
    if count < RUN_MIN:
        return 0
    offsets = data[offset + step : offset + step * count + 1 : step]
    if has_short_offsets:
        is_next = offsets == _OFFSETS_OF_ONE_BYTE[number : number + count]
    else:
        skipped = number & 0x3F
        numbers = range(number >> 6, (number + count - 1 >> 6) + 1)
        high_bytes = b"".join(bytes((high,)) * 0x40 for high in numbers)
        is_next = (
            offsets == (_LOW_BYTES * len(numbers))[skipped : skipped + count]
            and data[offset + 1 + step : offset + step * count + 2 : step] == high_bytes[skipped : skipped + count]
        )
    return count if is_next else 0


def _with_timestamps(columns: list[bytes], number: int, count: int, no_timestamp_delta: int) -> Run:
    # Deltas of one byte are the column itself: to make a row of each costs more than all else here.
    is_of_one_byte = len(columns) == 1
    rows: Sequence[Any] = columns[0] if is_of_one_byte else list(zip(*columns, strict=True))
    by_delta = {_delta((row,) if is_of_one_byte else row): row for row in set(rows)}
    by_delta.pop(no_timestamp_delta, None)
    if not by_delta:
        return Run(count, None, 0, 0)
    largest = max(by_delta)
    return Run(count, largest, min(by_delta), number + rows.index(by_delta[largest]))


def _delta(row: tuple[int, ...]) -> int:
    value = 0
    for place, byte in enumerate(row):
        value |= (byte & 0x7F) << 7 * place
    return value >> 1 ^ -(value & 1)


def behind_varint(data: Buffer, position: int) -> int:
    """Where the varint at `position` ends."""
    while data[position] > 0x7F:
        position += 1
    return position + 1


def size_at(data: Buffer, position: int) -> tuple[int, int]:
    """The size at `position`, 0 instead of -1, and where it ends."""
    end = behind_varint(data, position)
    return max(0, _delta(tuple(data[position:end]))), end
