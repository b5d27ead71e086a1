"""Which partition a record goes to when nobody said: by its key, as the Java client, or sticky (KIP-794)."""

from __future__ import annotations

import functools
import struct
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

_MASK: Final = 0xFFFFFFFF
_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_REMEMBERED_KEY_BYTES_MAX: Final = 64
_REMEMBERED_KEYS_MAX: Final = 16_384
_HASHED_TOGETHER_MIN: Final = 32


def murmur2(data: bytes) -> int:
    """The 32-bit MurmurHash2 of the Java client, as an unsigned number."""
    length = len(data)
    value = _SEED ^ length
    whole = length & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        value = (value * _MULTIPLIER & _MASK) ^ word
    if length > whole:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15


_remembered_murmur2 = functools.lru_cache(_REMEMBERED_KEYS_MAX)(murmur2)
"""Keys come again and again, and to look one up takes a tenth of the time."""


def partition_of_key(key: bytes, partition_count: int) -> int:
    """The partition that every record of that key goes to, as long as the topic does not grow."""
    value = _remembered_murmur2(key) if len(key) <= _REMEMBERED_KEY_BYTES_MAX else murmur2(key)
    return (value & 0x7FFFFFFF) % partition_count


def partitions_of_keys(keys: Sequence[bytes], partition_count: int) -> list[int]:
    """The same of many keys, for a tenth of the time where they are new: those of one length are hashed together."""
    if partition_count == 1:
        return [0] * len(keys)
    found = [0] * len(keys)
    for length, places in _places_by_length(keys).items():
        if len(places) < _HASHED_TOGETHER_MIN or length > _REMEMBERED_KEY_BYTES_MAX:
            for at in places:
                found[at] = partition_of_key(keys[at], partition_count)
            continue
        hashed = murmur2_of_many(b"".join([keys[at] for at in places]), len(places))
        for at, value in zip(places, hashed, strict=True):
            found[at] = (value & 0x7FFFFFFF) % partition_count
    return found


def _places_by_length(keys: Sequence[bytes]) -> Mapping[int, Sequence[int]]:
    """Where the keys of each length are."""
    lengths = list(map(len, keys))
    if keys and lengths.count(lengths[0]) == len(lengths):
        return {lengths[0]: range(len(keys))}
    places: defaultdict[int, list[int]] = defaultdict(list)
    for at, length in enumerate(lengths):
        places[length].append(at)
    return places


def murmur2_of_many(keys: bytes, count: int) -> tuple[int, ...]:
    """`murmur2` of each of so many keys of the same length, which follow one another without a gap.

    One number holds all of them, 64 bits for each with the upper half empty: a product of two 32-bit numbers stays
    within its own 64 bits, and what a shift brings from the next key lands in the upper half, which the mask empties.
    """
    length = len(keys) // count
    mask = int.from_bytes(b"\xff\xff\xff\xff\0\0\0\0" * count, "little")
    value = int.from_bytes((_SEED ^ length).to_bytes(8, "little") * count, "little")
    for position in range(0, length & ~3, 4):
        word = _lanes(keys, position, 4, length, count) * _MULTIPLIER & mask
        word = (word ^ word >> 24 & mask) * _MULTIPLIER & mask
        value = (value * _MULTIPLIER & mask) ^ word
    if length & 3:
        value = (value ^ _lanes(keys, length & ~3, length & 3, length, count)) * _MULTIPLIER & mask
    value = (value ^ value >> 13 & mask) * _MULTIPLIER & mask
    value ^= value >> 15 & mask
    return struct.unpack(f"<{count}Q", value.to_bytes(8 * count, "little"))


def _lanes(keys: bytes, position: int, width: int, length: int, count: int) -> int:
    """Some bytes of each key, at the low end of its 64 bits."""
    lanes = bytearray(8 * count)
    for place in range(width):
        lanes[place::8] = keys[position + place :: length]
    return int.from_bytes(lanes, "little")


class StickyPartitioner:
    """Keeps to one partition of a topic until about a batch has gone there, then chooses another one."""

    __slots__ = ("_bytes", "_current", "_random", "_switch_bytes")

    def __init__(self, random: random.Random, switch_bytes: int) -> None:
        self._random = random
        self._switch_bytes = switch_bytes
        self._current: int | None = None
        self._bytes = 0

    def keep(self, size_bytes: int) -> int | None:
        """The partition that is kept to, for a record of that size; None where it is time to `choose`."""
        if self._current is None or self._bytes >= self._switch_bytes:
            return None
        self._bytes += size_bytes
        return self._current

    def choose(self, available: Sequence[int], size_bytes: int) -> int:
        """A partition among those that have a leader now (or among all, if none has), for a record of that size."""
        if self._current is None or self._bytes >= self._switch_bytes or self._current not in available:
            others = [number for number in available if number != self._current]
            self._current = self._random.choice(others or list(available))
            self._bytes = 0
        self._bytes += size_bytes
        return self._current
