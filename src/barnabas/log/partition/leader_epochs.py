"""The leader epochs of a partition: in which epoch each offset was written (KIP-101, KIP-279).

Epochs and start offsets both increase. The cache is a plain state machine; its owner brings it to
`leader-epoch-checkpoint` before the recovery point passes the start of an epoch: above it, a recovery finds every epoch
in the batches again, below it nobody looks. A checkpoint that has too many entries is put right at the next load.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Final, NamedTuple

from barnabas.log.directories.checkpoints import EpochEntry
from barnabas.wire.sentinels import NO_EPOCH, NO_OFFSET


class EpochEnd(NamedTuple):
    """The answer of OffsetForLeaderEpoch: the largest known epoch up to the one asked for, and where it ends."""

    epoch: int
    end_offset: int


UNDEFINED_END: Final = EpochEnd(NO_EPOCH, NO_OFFSET)


class LeaderEpochCache:
    """All epochs of which the log still has records, and the current one."""

    def __init__(self, entries: Iterable[EpochEntry] = ()) -> None:
        self._entries: list[EpochEntry] = []
        self.latest_epoch = NO_EPOCH
        """The epoch of the last record, or the one that was begun since; NO_EPOCH in a new log."""
        for entry in entries:
            self.assign(*entry)

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """In order, for the checkpoint."""
        return tuple(self._entries)

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Says that `epoch` begins at `start_offset`; True where that is news that the checkpoint must have.

        Later entries that contradict it go: they are of records that were cut off. Raises ValueError for negative
        numbers.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"leader epoch {epoch} cannot begin at offset {start_offset}")
        entries = self._entries
        if entries and entries[-1].epoch == epoch and entries[-1].start_offset <= start_offset:
            return False
        while entries and (entries[-1].epoch >= epoch or entries[-1].start_offset >= start_offset):
            entries.pop()
        entries.append(EpochEntry(epoch, start_offset))
        self.latest_epoch = epoch
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """Where `epoch` ends, for a follower or consumer that wants to know how far its log agrees with this one.

        The current epoch ends at the log's end. An older one ends where the next begins; where this log has no record
        of it, the largest smaller epoch is named, or the asked one itself with the start of the first known. An epoch
        beyond the current one, and NO_EPOCH, have no end: UNDEFINED_END.
        """
        entries = self._entries
        if epoch == NO_EPOCH or not entries or epoch > self.latest_epoch:
            return UNDEFINED_END
        if epoch == self.latest_epoch:
            return EpochEnd(epoch, log_end_offset)
        following = bisect.bisect_right(entries, epoch, key=_epoch_of)
        known = entries[following - 1].epoch if following else epoch
        return EpochEnd(known, entries[following].start_offset)

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch in which `offset` was written; NO_EPOCH before the first entry."""
        following = bisect.bisect_right(self._entries, offset, key=_start_offset_of)
        return self._entries[following - 1].epoch if following else NO_EPOCH

    def start_behind(self, offset: int) -> int | None:
        """Where the first epoch begins that begins behind an offset; None where none does."""
        at = bisect.bisect_right(self._entries, offset, key=_start_offset_of)
        return self._entries[at].start_offset if at < len(self._entries) else None

    def earliest(self) -> EpochEntry | None:
        """The first entry."""
        return self._entries[0] if self._entries else None

    def previous_epoch(self, epoch: int) -> int:
        """The largest known epoch below `epoch`; NO_EPOCH where there is none."""
        at = bisect.bisect_left(self._entries, epoch, key=_epoch_of)
        return self._entries[at - 1].epoch if at else NO_EPOCH

    def truncate_from_end(self, end_offset: int) -> bool:
        """Drops the epochs that begin at the log's new end or later; True where any did."""
        count = bisect.bisect_left(self._entries, end_offset, key=_start_offset_of)
        if count == len(self._entries):
            return False
        del self._entries[count:]
        self.latest_epoch = self._entries[-1].epoch if self._entries else NO_EPOCH
        return True

    def truncate_from_start(self, start_offset: int) -> bool:
        """Drops the epochs that end before the log's new start; the one that lasts there begins with it now.

        True where anything changed.
        """
        count = bisect.bisect_right(self._entries, start_offset, key=_start_offset_of)
        if not count or (count == 1 and self._entries[0].start_offset == start_offset):
            return False
        self._entries[:count] = [EpochEntry(self._entries[count - 1].epoch, start_offset)]
        return True

    def clear(self) -> bool:
        """Forgets everything; True where there was anything."""
        return self.truncate_from_end(0)


def _epoch_of(entry: EpochEntry) -> int:
    return entry.epoch


def _start_offset_of(entry: EpochEntry) -> int:
    return entry.start_offset
