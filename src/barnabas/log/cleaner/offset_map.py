"""Which records of a stretch of the log are the last of their keys, in bounded memory; what Apache Kafka's
SkimpyOffsetMap is for.

Nothing here is done for one key at a time but what must be: keys come as the list of a batch, are gathered in a
dictionary, and go from there into buckets as digests of 16 bytes and the number of their record, 24 bytes as in Kafka.
When the buckets are full each is made a dictionary for a moment, and what is superseded goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, repeat
from operator import add
from struct import Struct
from typing import Final

from barnabas.log.cleaner.record_scan import DROPPED, TOMBSTONE, VALUE
from barnabas.wire.sentinels import NO_OFFSET

SLOT_BYTES: Final = 24
"""Of the digest 16, and of the record's number 8."""
RECORDS_PER_SLOT: Final = 6
"""So many records are looked at before a cleaning ends where it is: each takes one byte."""
_GATHERED_MAX: Final = 65_536
_GATHERED_BYTES_MAX: Final = 16 * 1024 * 1024
_BUCKET_ENTRIES: Final = 4_096
_BUCKETS_MAX: Final = 1_024
_PLACE_ENTRIES: Final = 64

_SALT: Final = b"\0"
_LAST: Final = 4
"""Is added to the state of what is the last of its key."""
_LAST_STATES: Final = bytes(state - _LAST if state - _LAST in (VALUE, TOMBSTONE) else DROPPED for state in range(256))
_entry = Struct("=qqQ")
_digest = Struct("=qq")
_first = Struct("=q")
_digest_and_number = Struct("=16sQ")


class OffsetMap:
    """From keys, by their digests of 128 bits, to their last records. Two keys with one digest would be one key, as in
    Kafka; a digest is two keyed hashes of 64 bits (SipHash, whose secret is the process's own)."""

    def __init__(self, entries_max: int, slots: int) -> None:
        """Of different keys there may be `entries_max` where the `slots` have to be sorted out: the rest of them keeps
        that from being done again at once."""
        self._entries_max = entries_max
        self._slots = max(slots, entries_max)
        self._gathered_max = max(min(_GATHERED_MAX, entries_max // 16), 1)
        self._mask = min(_power_of_two(self._slots // _BUCKET_ENTRIES), _BUCKETS_MAX) - 1
        self._buckets = [bytearray() for _ in range(self._mask + 1)]
        self._entries = 0
        self._gathered: dict[bytes, int] = {}
        self._gathered_bytes = 0
        self._gathered_to = NO_OFFSET
        self._states = bytearray()
        self._taken = 0
        self._places: list[bytes] | None = None
        self.latest_offset = NO_OFFSET
        """Up to where, inclusive, the log is in the map."""

    def __len__(self) -> int:
        """How many keys there are, once it is `finish`ed."""
        return self._entries

    def put(self, keys: Sequence[bytes], states: bytes, last_offset: int, size_bytes: int = 0) -> bool:
        """Takes the next batch: the keys of those records whose state is not `DROPPED`. False where that was too much:
        then everything from behind `latest_offset` on is left out, and nothing more can be put."""
        number = len(self._states)
        numbers: Iterable[int] = range(number, number + len(states))
        if len(keys) != len(states):
            numbers = compress(numbers, states)
        self._gathered.update(zip(keys, numbers, strict=True))
        self._states += states
        self._gathered_to = last_offset
        self._gathered_bytes += size_bytes
        is_little = len(self._gathered) < self._gathered_max and self._gathered_bytes < _GATHERED_BYTES_MAX
        return (is_little and len(self._states) <= RECORDS_PER_SLOT * self._slots) or self._take()

    def _take(self) -> bool:
        """Brings what is gathered into the buckets. The first time it fits always, so that a cleaning gets on."""
        gathered = self._gathered
        if self._taken == len(self._states):
            # A batch that was the first, and more than there is room for, is not too much again.
            self.latest_offset = max(self.latest_offset, self._gathered_to)
            return True
        is_full = len(self._states) > RECORDS_PER_SLOT * self._slots
        if self._entries + len(gathered) > self._slots:
            self._sort_out()
            is_full = is_full or self._entries + len(gathered) > self._entries_max
        if self._taken and is_full:
            del self._states[self._taken :]
            gathered.clear()
            self._gathered_to = self.latest_offset
            return False
        buckets, mask = self._buckets, self._mask
        hashes = list(map(hash, gathered))
        entries = map(_entry.pack, hashes, map(hash, map(add, gathered, repeat(_SALT))), gathered.values())
        for number, entry in zip(hashes, entries, strict=True):
            buckets[number & mask] += entry
        self._entries += len(gathered)
        self._gathered = {}
        self._gathered_bytes = 0
        self._taken = len(self._states)
        self.latest_offset = max(self.latest_offset, self._gathered_to)
        return True

    def _sort_out(self) -> None:
        """Leaves the last entry of each digest."""
        self._entries = 0
        for number, bucket in enumerate(self._buckets):
            last = dict(_digest_and_number.iter_unpack(bucket))
            if len(last) * SLOT_BYTES < len(bucket):
                bucket = bytearray().join(map(_digest_and_number.pack, last.keys(), last.values()))
                self._buckets[number] = bucket
            self._entries += len(last)

    def finish(self) -> bool:
        """Ends the putting, also where something was too much. False where the last of it was."""
        is_complete = self._take()
        states = self._states
        self._entries = 0
        for bucket in self._buckets:
            last = dict(_digest_and_number.iter_unpack(bucket))
            self._entries += len(last)
            for number in last.values():
                states[number] += _LAST
        return is_complete

    def passed(self, offset: int) -> None:
        """Everything up to `offset` was looked at."""
        self.latest_offset = max(self.latest_offset, offset)

    # What is known once it is finished.

    def last_states(self, number: int, record_count: int) -> bytes:
        """The states of so many records, from the one that was put as `number` on, as far as they are the last of their
        keys; `DROPPED` for all others."""
        return bytes(self._states[number : number + record_count].translate(_LAST_STATES))

    def states_without(self, keys: Sequence[bytes], states: bytes) -> bytes:
        """The states of records before the stretch: `DROPPED` for those whose key is in it."""
        absent = self._absent(keys)
        return bytes([state if state and next(absent) else DROPPED for state in states])

    def _absent(self, keys: Sequence[bytes]) -> Iterator[bool]:
        places = self._placed()
        mask = len(places) - 1
        hashes = list(map(hash, keys))
        digests = map(_digest.pack, hashes, map(hash, map(add, keys, repeat(_SALT))))
        return iter([digest not in places[number & mask] for number, digest in zip(hashes, digests, strict=True)])

    def _placed(self) -> list[bytes]:
        """All digests, in so many places that a search in one is short. The numbers of records go."""
        if self._places is None:
            count = max(_power_of_two(self._entries // _PLACE_ENTRIES), len(self._buckets))
            self._places = [b""] * count
            for number, bucket in enumerate(self._buckets):
                found: dict[int, list[bytes]] = {}
                for digest in dict(_digest_and_number.iter_unpack(bucket)):
                    found.setdefault(_first.unpack_from(digest)[0] & count - 1, []).append(digest)
                for place, digests in found.items():
                    self._places[place] = b"".join(digests)
                self._buckets[number] = bytearray()
        return self._places


def _power_of_two(number: int) -> int:
    """The largest that is not above `number`; at least 1."""
    return 1 << max(number.bit_length() - 1, 0)
