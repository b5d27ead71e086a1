"""Which records of a stretch of the log are the last of their keys, in bounded memory; what Apache Kafka's
SkimpyOffsetMap is for.

Keys come as the list of a batch, and nothing here is done for one of them; a key table (`key_tables.py`) has what is
known of each.
"""

from __future__ import annotations

from typing import Final

from barnabas.log.cleaner.key_tables import KeyTable, PlainKeyTable
from barnabas.log.cleaner.record_scan import DROPPED, TOMBSTONE, VALUE
from barnabas.log.cleaner.scanned_keys import ScannedKeys
from barnabas.wire.sentinels import NO_OFFSET

RECORDS_PER_SLOT: Final = 6
"""So many records are looked at before a cleaning ends where it is: each takes one byte."""
_GATHERED_BYTES_MAX: Final = 16 * 1024 * 1024
_LAST: Final = 4
"""Is added to the state of what is the last of its key."""
_LAST_STATES: Final = bytes(state - _LAST if state - _LAST in (VALUE, TOMBSTONE) else DROPPED for state in range(256))


class OffsetMap:
    """From keys, by their digests of 128 bits, to their last records."""

    def __init__(self, entries_max: int, slots: int, table: KeyTable | None = None) -> None:
        """Of different keys there may be `entries_max` where the `slots` have to be sorted out: the rest of them keeps
        that from being done again at once."""
        self._entries_max = entries_max
        self._slots = max(slots, entries_max)
        self._table: KeyTable = PlainKeyTable(self._slots) if table is None else table
        self._gathered_max = max(min(self._table.gathered_max, entries_max // 16), 1)
        self._entries = 0
        self._gathered_bytes = 0
        self._gathered_to = NO_OFFSET
        self._states = bytearray()
        self._taken = 0
        self.latest_offset = NO_OFFSET
        """Up to where, inclusive, the log is in the map."""

    def __len__(self) -> int:
        """How many keys there are, once it is `finish`ed."""
        return self._entries

    def put(self, keys: ScannedKeys, states: bytes, last_offset: int) -> bool:
        """Takes the next batch: the keys of those records whose state is not `DROPPED`. False where that was too much:
        then everything from behind `latest_offset` on is left out, and nothing more can be put."""
        gathered = self._table.gather(keys, states, len(self._states))
        self._states += states
        self._gathered_to = last_offset
        self._gathered_bytes += keys.data_bytes
        is_little = gathered < self._gathered_max and self._gathered_bytes < _GATHERED_BYTES_MAX
        return (is_little and len(self._states) <= RECORDS_PER_SLOT * self._slots) or self._take()

    def _take(self) -> bool:
        """Brings what is gathered into the table. The first time it fits always, so that a cleaning gets on."""
        if self._taken == len(self._states):
            # A batch that was the first, and more than there is room for, is not too much again.
            self.latest_offset = max(self.latest_offset, self._gathered_to)
            return True
        is_full = len(self._states) > RECORDS_PER_SLOT * self._slots
        gathered = self._table.settle()
        if self._entries + gathered > self._slots:
            self._entries = self._table.sort_out()
            is_full = is_full or self._entries + gathered > self._entries_max
        if self._taken and is_full:
            del self._states[self._taken :]
            self._table.forget()
            self._gathered_to = self.latest_offset
            return False
        self._entries += self._table.keep()
        self._gathered_bytes = 0
        self._taken = len(self._states)
        self.latest_offset = max(self.latest_offset, self._gathered_to)
        return True

    def finish(self) -> bool:
        """Ends the putting, also where something was too much. False where the last of it was."""
        is_complete = self._take()
        self._entries = self._table.mark_last(self._states, _LAST)
        return is_complete

    def passed(self, offset: int) -> None:
        """Everything up to `offset` was looked at."""
        self.latest_offset = max(self.latest_offset, offset)

    # What is known once it is finished.

    def last_states(self, number: int, record_count: int) -> bytes:
        """The states of so many records, from the one that was put as `number` on, as far as they are the last of their
        keys; `DROPPED` for all others."""
        return bytes(self._states[number : number + record_count].translate(_LAST_STATES))

    def states_without(self, keys: ScannedKeys, states: bytes) -> bytes:
        """The states of records before the stretch: `DROPPED` for those whose key is in it."""
        absent = self._table.absent(list(keys))
        return bytes([state if state and next(absent) else DROPPED for state in states])
