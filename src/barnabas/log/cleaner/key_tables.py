"""Where the map of keys keeps what it knows of each key: a digest of 16 bytes, and the number of the key's last record.

What is put is gathered first, and goes from there into buckets, 24 bytes an entry as in Kafka. When the map is full,
each bucket is sorted out, and what is superseded goes. `PlainKeyTable` needs the interpreter only;
`vector_key_table.py` is the same with numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, repeat
from operator import add
from struct import Struct
from typing import Final, Protocol

from barnabas.log.cleaner.scanned_keys import ScannedKeys

SLOT_BYTES: Final = 24
"""Of the digest 16, and of the record's number 8."""
BUCKET_ENTRIES: Final = 4_096
BUCKETS_MAX: Final = 1_024
_PLACE_ENTRIES: Final = 64
_SALT: Final = b"\0"
_entry = Struct("=qqQ")
_digest = Struct("=qq")
_first = Struct("=q")
_digest_and_number = Struct("=16sQ")


class KeyTable(Protocol):
    """Keys that are put more than once count with their last record. Digests are of 128 bits and keyed by a secret of
    the process: two keys with one digest would be one key, as in Kafka."""

    gathered_max: int
    """So many keys are gathered at a time, as a rule."""

    def gather(self, keys: ScannedKeys, states: bytes, number: int) -> int:
        """Takes the keys of those records, the first of which is `number`, whose state is not `DROPPED`. Returns how
        many are gathered, at the most."""
        ...

    def settle(self) -> int:
        """How many different keys are gathered."""
        ...

    def forget(self) -> None:
        """Forgets what is gathered."""
        ...

    def keep(self) -> int:
        """Brings what is gathered into the buckets; returns how many entries have come in."""
        ...

    def sort_out(self) -> int:
        """Leaves the last entry of each key in the buckets, and returns how many there are."""
        ...

    def mark_last(self, states: bytearray, by: int) -> int:
        """Adds `by` to the state of each record that is the last of its key. Returns how many these are."""
        ...

    def absent(self, keys: Sequence[bytes]) -> Iterator[bool]:
        """For each key whether it is none of those that are kept. Nothing more is put after that."""
        ...


def power_of_two(number: int) -> int:
    """The largest that is not above `number`; at least 1."""
    return 1 << max(number.bit_length() - 1, 0)


class PlainKeyTable:
    """Nothing here is done for one key at a time but what must be: keys are gathered in a dictionary, a digest is two
    hashes of the interpreter (SipHash), and full buckets are made dictionaries one by one."""

    gathered_max = 65_536

    def __init__(self, slots: int) -> None:
        """So many entries the buckets are made for."""
        self._mask = min(power_of_two(slots // BUCKET_ENTRIES), BUCKETS_MAX) - 1
        self._buckets = [bytearray() for _ in range(self._mask + 1)]
        self._gathered: dict[bytes, int] = {}
        self._places: list[bytes] | None = None

    def gather(self, keys: ScannedKeys, states: bytes, number: int) -> int:
        numbers: Iterable[int] = range(number, number + len(states))
        if len(keys) != len(states):
            numbers = compress(numbers, states)
        self._gathered.update(zip(keys, numbers, strict=True))
        return len(self._gathered)

    def settle(self) -> int:
        return len(self._gathered)

    def forget(self) -> None:
        self._gathered = {}

    def keep(self) -> int:
        buckets, mask, gathered = self._buckets, self._mask, self._gathered
        self._gathered = {}
        hashes = list(map(hash, gathered))
        entries = map(_entry.pack, hashes, map(hash, map(add, gathered, repeat(_SALT))), gathered.values())
        for number, entry in zip(hashes, entries, strict=True):
            buckets[number & mask] += entry
        return len(gathered)

    def sort_out(self) -> int:
        entries = 0
        for number, bucket in enumerate(self._buckets):
            last = dict(_digest_and_number.iter_unpack(bucket))
            if len(last) * SLOT_BYTES < len(bucket):
                bucket = bytearray().join(map(_digest_and_number.pack, last.keys(), last.values()))
                self._buckets[number] = bucket
            entries += len(last)
        return entries

    def mark_last(self, states: bytearray, by: int) -> int:
        entries = 0
        for bucket in self._buckets:
            last = dict(_digest_and_number.iter_unpack(bucket))
            entries += len(last)
            for number in last.values():
                states[number] += by
        return entries

    def absent(self, keys: Sequence[bytes]) -> Iterator[bool]:
        places = self._placed()
        mask = len(places) - 1
        hashes = list(map(hash, keys))
        digests = map(_digest.pack, hashes, map(hash, map(add, keys, repeat(_SALT))))
        return iter([digest not in places[number & mask] for number, digest in zip(hashes, digests, strict=True)])

    def _placed(self) -> list[bytes]:
        """All digests, in so many places that a search in one is short. The numbers of records go."""
        if self._places is None:
            entries = sum(map(len, self._buckets)) // SLOT_BYTES
            count = max(power_of_two(entries // _PLACE_ENTRIES), len(self._buckets))
            self._places = [b""] * count
            for number, bucket in enumerate(self._buckets):
                found: dict[int, list[bytes]] = {}
                for digest in dict(_digest_and_number.iter_unpack(bucket)):
                    found.setdefault(_first.unpack_from(digest)[0] & count - 1, []).append(digest)
                for place, digests in found.items():
                    self._places[place] = b"".join(digests)
                self._buckets[number] = bytearray()
        return self._places
