"""Keys and values of the records of a batch of magic 2, read by columns.

A consumer that needs neither times nor headers need not have a tuple of each record. Records that are like the one
ahead of them in all sizes (`record_runs`) are cut out at equal distances; many with values alone are split by a pattern
(`record_split`); usual ones, which have no headers and follow without a gap, are read by a short loop. At any other
record, and at one that is damaged, the general reader goes on, so that what is given and what is refused is the same.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, cast

from barnabas.wire.record_errors import InvalidRecordError
from barnabas.wire.record_reader import bytes_left, iterate_records, read_long
from barnabas.wire.record_runs import RUN_MIN, behind_varint, like_records, size_at
from barnabas.wire.record_split import NUMBER_MIN, NUMBERS_END, RECORDS_MIN, split_values
from barnabas.wire.records import Record

_OFFSETS_OF_ONE_BYTE: Final = 0x40
_OFFSETS_OF_TWO_BYTES: Final = 0x2000
"""Those below have varints of so many bytes."""
_NULL: Final = 1
"""The varint of -1, the length of what is null."""


class KeysAndValues(NamedTuple):
    """Of records in order; without `keys` all are null. Values and offsets are as many."""

    offsets: Sequence[int]
    keys: Sequence[bytes | None] | None
    values: Sequence[bytes | None]


class RecordsReader:
    """The same of any records, for batches of the old formats."""

    def __init__(self, records: Iterator[Record]) -> None:
        self._records = records
        self._error: ValueError | None = None

    def read(self, count: int) -> KeysAndValues | None:
        """The next records, `count` at most; None at the end. Raises RecordsError at one that cannot be read."""
        if self._error is not None:
            raise self._error
        read: list[Record] = []
        try:
            read.extend(itertools.islice(self._records, count))
        except ValueError as error:
            self._error = error
            if not read:
                raise
        if not read:
            return None
        offsets, _, keys, values, _ = zip(*read, strict=True)
        return KeysAndValues(offsets, None if keys.count(None) == len(keys) else keys, values)


class ColumnReader:
    """Reads a batch some records at a time."""

    def __init__(self, data: bytes, record_count: int, base_offset: int) -> None:
        """`data` are the decompressed records of the batch."""
        self._data = data
        self._record_count = record_count
        self._base_offset = base_offset
        self._position = 0
        self._number = 0
        self._others: RecordsReader | None = None
        self._may_be_split = record_count >= NUMBER_MIN + RECORDS_MIN

    def read(self, count: int) -> KeysAndValues | None:
        """The next records, `count` at most; None at the end. Raises InvalidRecordError at one that cannot be read, and
        where the batch does not end with its records.
        """
        if self._others is None:
            if self._number >= self._record_count:
                if self._position != len(self._data):
                    raise bytes_left(len(self._data) - self._position, self._record_count)
                return None
            stop = min(self._record_count, self._number + count)
            found = self._read_run(stop) or self._read_split(stop) or self._read_usual(stop)
            if found is not None:
                return found
            self._others = RecordsReader(
                iterate_records(
                    self._data,
                    self._record_count,
                    self._base_offset,
                    0,
                    None,
                    (self._number, self._position),
                )
            )
        return self._others.read(count)

    def _read_run(self, stop: int) -> KeysAndValues | None:
        """The next record and those that are like it, where they are many enough to be worth it."""
        data, begin, number = self._data, self._position, self._number
        if stop - number <= RUN_MIN or _usual(data, begin, number, number + 1)[0] == number:
            return None
        length, after_length = size_at(data, begin)
        end = after_length + length
        count = 1 + like_records(data, begin, end, number + 1, stop - number - 1)
        if count <= RUN_MIN:
            return None
        key = behind_varint(data, behind_varint(data, after_length + 1))
        key_bytes, key_begin = size_at(data, key)
        value = key_begin + key_bytes
        value_bytes, value_begin = size_at(data, value)
        step = end - begin
        last = begin + step * count
        keys: list[bytes | None] | None = None
        if data[key] != _NULL:
            keys = [data[at : at + key_bytes] for at in range(key_begin, last, step)]
        values: list[bytes | None] = [None] * count
        if data[value] != _NULL:
            values = [data[at : at + value_bytes] for at in range(value_begin, last, step)]
        self._position = last
        return self._advanced(count, keys, values)

    def _read_split(self, stop: int) -> KeysAndValues | None:
        """The next records, where they are many that have values alone."""
        if not self._may_be_split or not NUMBER_MIN <= self._number < NUMBERS_END - RECORDS_MIN:
            return None
        if stop - self._number < RECORDS_MIN:
            return None
        position, values = split_values(self._data, self._position, self._number, stop)
        if not values:
            self._may_be_split = False  # it would be tried in vain again and again
            return None
        self._position = position
        return self._advanced(len(values), None, cast("list[bytes | None]", values))

    def _read_usual(self, stop: int) -> KeysAndValues | None:
        if self._may_be_split and self._number < NUMBER_MIN:
            stop = min(stop, NUMBER_MIN)
        keys: list[bytes | None] | None = None
        position, values = _without_keys(self._data, self._position, self._number, stop)
        number = self._number + len(values)
        if not values:
            number, position, keys, values = _usual(self._data, self._position, self._number, stop)
        if number == self._number:
            return None
        self._position = position
        return self._advanced(number - self._number, keys, values)

    def _advanced(self, count: int, keys: list[bytes | None] | None, values: list[bytes | None]) -> KeysAndValues:
        first = self._base_offset + self._number
        self._number += count
        return KeysAndValues(range(first, first + count), keys, values)


@functools.cache
def _offsets_and_null_keys() -> list[bytes]:
    """What records without keys have between their timestamp deltas and the sizes of their values."""
    short = [bytes((delta << 1, _NULL)) for delta in range(_OFFSETS_OF_ONE_BYTE)]
    others = range(_OFFSETS_OF_ONE_BYTE, _OFFSETS_OF_TWO_BYTES)
    return short + [bytes((delta << 1 & 0x7F | 0x80, delta >> 6, _NULL)) for delta in others]


def _without_keys(data: bytes, position: int, number: int, stop: int) -> tuple[int, list[bytes | None]]:
    """As `_usual`, in half of the time and for less: records that have values and no keys, all numbers of two bytes at
    most.
    """
    values: list[bytes | None] = []
    append = values.append
    stop = min(stop, _OFFSETS_OF_TWO_BYTES)
    try:
        while number < stop:
            width = 2 if number < _OFFSETS_OF_ONE_BYTE else 3
            expected = _offsets_and_null_keys()[number : min(stop, _OFFSETS_OF_ONE_BYTE) if width == 2 else stop]
            for each in expected:
                length = data[position]
                at = position + 2  # behind the attributes
                if length > 0x7F:
                    byte = data[position + 1]
                    if byte > 0x7F:
                        return position, values
                    length = length & 0x7F | byte << 7
                    at += 1
                last = at - 2 + (length >> 1)
                at += 1 if data[at] < 0x80 else 2
                begin = at + width
                # The last byte of the timestamp delta is one if there is nothing to be continued in it.
                if data[at:begin] != each or data[at - 1] > 0x7F:
                    return position, values
                size = data[begin]
                begin += 1
                if size > 0x7F:
                    byte = data[begin]
                    if byte > 0x7F:
                        return position, values
                    size = size & 0x7F | byte << 7
                    begin += 1
                if begin + (size >> 1) != last or data[last] or (size | length) & 1:
                    return position, values
                append(data[begin:last])
                position = last + 1
            number += len(expected)
    except IndexError:
        pass
    return position, values


def _usual(
    data: bytes, begin: int, number: int, stop: int
) -> tuple[int, int, list[bytes | None] | None, list[bytes | None]]:
    """Reads records from `begin` on as long as they are usual ones and `number` is below `stop`: number and position
    after them, keys and values. Whatever is not quite right ends it, to be looked at by the general reader.

    Sizes and deltas stay zigzag: an even one is twice what it says, an odd one is negative. What ran over the record's
    end, or past the data's, does not end in a zero where the length says.
    """
    keys: list[bytes | None] | None = None
    values: list[bytes | None] = []
    append = values.append
    position = begin
    try:
        while number < stop:
            length = data[position]
            if length < 0x80:
                position += 1
            else:
                length, position = _zigzag(data, position)
            end = position + (length >> 1)

            # Attributes, and up to three bytes of the timestamp delta: a quarter of an hour.
            if data[position + 1] < 0x80:
                position += 2
            elif data[position + 2] < 0x80:
                position += 3
            elif data[position + 3] < 0x80:
                position += 4
            else:
                break

            delta = data[position]
            if delta < 0x80:
                position += 1
            else:
                delta, position = _zigzag(data, position)

            size = data[position]
            if size < 0x80:
                position += 1
            else:
                size, position = _zigzag(data, position)
            key = None
            if size != _NULL:
                if size & 1:
                    break
                key = data[position : position + (size >> 1)]
                position += size >> 1

            size = data[position]
            if size < 0x80:
                position += 1
            else:
                size, position = _zigzag(data, position)
            value = None
            if size != _NULL:
                if size & 1:
                    break
                value = data[position : position + (size >> 1)]
                position += size >> 1

            if position + 1 != end or data[position] or length & 1 or delta != number << 1:
                break
            position = begin = end
            number += 1
            append(value)
            if keys is not None:
                keys.append(key)
            elif key is not None:
                keys = [None] * (len(values) - 1)
                keys.append(key)
    except (IndexError, InvalidRecordError):
        pass
    return number, begin, keys, values


def _zigzag(data: bytes, position: int) -> tuple[int, int]:
    """A varint of more than one byte as it is, and the position after it. Raises as `read_long` does."""
    byte = data[position + 1]
    if byte < 0x80:
        return data[position] & 0x7F | byte << 7, position + 2
    value, position = read_long(data, position, 32)
    return value << 1 ^ value >> 31, position
