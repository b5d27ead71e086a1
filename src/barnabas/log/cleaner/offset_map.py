"""The last offset of each key of a stretch of the log, in bounded memory; Apache Kafka's SkimpyOffsetMap."""

from __future__ import annotations

from _blake2 import blake2b  # what hashlib gives, which would load OpenSSL into every broker
from itertools import count
from math import isqrt
from struct import Struct
from typing import Final

from barnabas.wire.sentinels import NO_OFFSET

SLOT_BYTES: Final = 24
"""Of the digest 16, and of the offset 8."""
_WORDS: Final = SLOT_BYTES // 8
_split = Struct("=QQ").unpack


class OffsetMap:
    """From keys, by their digests of 128 bits, to offsets. Two keys with one digest would be one key, as in Kafka.

    One flat table with open addressing and double hashing. Its size is a prime, so that a search that goes on by any
    step comes to every slot, and one slot at least stays empty, so that it ends."""

    def __init__(self, entries_max: int, slots: int) -> None:
        """`slots` is rounded up to the next prime above both."""
        self._entries_max = entries_max
        self._slots = _prime_from(max(slots, entries_max + 1))
        # Three words a slot: both halves of the digest, and the offset plus one; 0 there is an empty slot.
        self._table = memoryview(bytearray(self._slots * SLOT_BYTES)).cast("Q")
        self._entries = 0
        self.latest_offset = NO_OFFSET
        """Up to where, inclusive, the log is in the map."""

    def __len__(self) -> int:
        return self._entries

    @property
    def size_bytes(self) -> int:
        """What the table takes, however full it is."""
        return self._table.nbytes

    def put(self, key: bytes, offset: int) -> bool:
        """Takes a later record; False, and nothing changed, where the key is new and the map full."""
        high, low = _split(blake2b(key, digest_size=16).digest())
        table = self._table
        at = self._find(high, low)
        if not table[at + 2]:
            if self._entries >= self._entries_max:
                return False
            table[at] = high
            table[at + 1] = low
            self._entries += 1
        table[at + 2] = offset + 1
        if offset > self.latest_offset:
            self.latest_offset = offset
        return True

    def passed(self, offset: int) -> None:
        """Everything up to `offset` was looked at."""
        self.latest_offset = max(self.latest_offset, offset)

    def get(self, key: bytes) -> int:
        """The last offset of the key; NO_OFFSET for one that is not in the stretch."""
        return self._table[self._find(*_split(blake2b(key, digest_size=16).digest())) + 2] - 1

    def _find(self, high: int, low: int) -> int:
        """The first word of the digest's slot, or of the empty one where it belongs."""
        table, slots = self._table, self._slots
        slot = high % slots
        at = slot * _WORDS
        if not table[at + 2] or (table[at] == high and table[at + 1] == low):
            return at
        step = low % (slots - 1) + 1
        while True:
            slot = (slot + step) % slots
            at = slot * _WORDS
            if not table[at + 2] or (table[at] == high and table[at + 1] == low):
                return at


def _prime_from(number: int) -> int:
    return next(n for n in count(max(number, 2)) if all(n % divisor for divisor in range(2, isqrt(n) + 1)))
