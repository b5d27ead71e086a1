"""Values of records of different sizes, split by a pattern instead of one by one.

Between the values of two records without keys and headers stands the head of the second: a zero, its length, its
attributes, its time, its number, "no key", and the length of its value. A regular expression finds such heads several
times as quickly as a loop of Python does. It may find them within values too, so nothing is believed: each length and
each number that was found is compared with those that records with these values must have, in one comparison of lists
for all of them. Records from the first one on that differs are left to others.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterator
from typing import Final

NUMBER_MIN: Final = 0x40
NUMBERS_END: Final = 0x2000
"""Numbers of records from and below which their varints have two bytes."""
RECORDS_MIN: Final = 256
"""Fewer are not worth it."""
VALUE_BYTES_END: Final = 1024
"""Of values that are larger, reading one after another takes less time than anything else that is done with them."""
WINDOW_BYTES: Final = 256 * 1024
"""Looked at in one go: a value of megabytes among the small ones would be searched for heads for seconds."""
_TIME_BYTES_MAX: Final = 2
_NO_KEY: Final = b"\x01"
_VARINTS: Final = (rb"[\x00-\x7f]", rb"[\x80-\xff][\x00-\x7f]")
"""Of one byte and of two."""


def split_values(data: bytes, position: int, number: int, stop: int) -> tuple[int, list[bytes]]:
    """The values of the records from `position` on, from `number` (`NUMBER_MIN` at least) up to `stop`, and the
    position behind them. There is a record ahead of `position`. None are found where there are fewer than
    `RECORDS_MIN` within `WINDOW_BYTES`, or the next one has a key, headers, a larger value, or a time that is much
    later than the batch's.
    """
    count = min(stop, NUMBERS_END) - number
    time_bytes = _time_bytes(data, position)
    if count < RECORDS_MIN or not 0 < time_bytes <= _TIME_BYTES_MAX:
        return position, []
    window = data[position - 1 : position + WINDOW_BYTES]
    nothing, *found = _head(time_bytes).split(window, count)
    if nothing or not found:
        return position, []
    values = found[2::3]
    value, zero, rest = values[-1].partition(b"\0")
    values[-1] = value
    sizes = list(map(len, values))
    try:
        lengths = list(map(_lengths(time_bytes).__getitem__, sizes))
        numbers = _numbers()[number : number + len(sizes)]
        ends = list(map(operator.add, numbers, map(_value_lengths().__getitem__, sizes)))
    except IndexError:
        return position, []
    if zero and found[0::3] == lengths and found[1::3] == ends:
        return position - 1 + len(window) - len(rest), values
    good = next(_different(found, lengths, ends), len(values) - (not zero))
    if good < RECORDS_MIN:
        return position, []
    # Length, attributes, time, number, no key, length of the value, value, and no headers.
    heads = sum(map(len, lengths[:good])) + sum(map(len, ends[:good])) + (2 + time_bytes) * good
    return position + heads + sum(sizes[:good]), values[:good]


# Inside.


def _different(found: list[bytes], lengths: list[bytes], ends: list[bytes]) -> Iterator[int]:
    """The places of records that are not what they seem."""
    for place, (length, end) in enumerate(zip(lengths, ends, strict=True)):
        if found[3 * place] != length or found[3 * place + 1] != end:
            yield place


def _time_bytes(data: bytes, position: int) -> int:
    """How many bytes the varint of a record's time has; 0 where the data end ahead of it, or it is longer than two."""
    head = data[position : position + 6]
    length_bytes = next((at + 1 for at, byte in enumerate(head[:2]) if byte < 0x80), 0)
    time = head[length_bytes + 1 : length_bytes + 1 + _TIME_BYTES_MAX] if length_bytes else b""
    return next((at + 1 for at, byte in enumerate(time) if byte < 0x80), 0)


@functools.cache
def _head(time_bytes: int) -> re.Pattern[bytes]:
    """What ends one record and begins the next: its length, and from its number to the length of its value."""
    one, two = _VARINTS
    size = rb"[\x80-\xff]?" + one
    return re.compile(rb"\x00(" + size + rb")\x00" + _VARINTS[time_bytes - 1] + rb"(" + two + _NO_KEY + size + rb")")


@functools.cache
def _lengths(time_bytes: int) -> list[bytes]:
    """The lengths of records whose values have so many bytes."""
    return [_varint(1 + time_bytes + 2 + len(end) + size + 1) for size, end in enumerate(_value_lengths())]


@functools.cache
def _value_lengths() -> list[bytes]:
    """No key, and the lengths of values of so many bytes."""
    return [_NO_KEY + _varint(size) for size in range(VALUE_BYTES_END)]


@functools.cache
def _numbers() -> list[bytes]:
    """The numbers of records; those below `NUMBER_MIN` are never asked for."""
    return [_varint(number) for number in range(NUMBERS_END)]


def _varint(number: int) -> bytes:
    """Of a number below 8,192."""
    number <<= 1
    return bytes((number,)) if number < 0x80 else bytes((number & 0x7F | 0x80, number >> 7))
