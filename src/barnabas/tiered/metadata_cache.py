"""Which remote segments a partition has, and which of them has an offset in a leader epoch. Without I/O.

What is applied are the records of `__remote_log_metadata` in their order, so every broker that has read as far knows
the same. Invariant: a segment is found only while it is in COPY_SEGMENT_FINISHED, and then everything that it has: of
two of which one has all offsets of the other within a leader epoch, because two leaders have copied the same records,
only that one is found there, and the other is listed; it is found again when the first is deleted.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable, Iterator
from operator import itemgetter

from barnabas.kernel.ids import Uuid
from barnabas.kernel.transitions import IllegalTransitionError
from barnabas.tiered.segment_metadata import (
    PARTITION_DELETION,
    SEGMENT,
    RemoteLogMetadata,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    RemotePartitionDeleteState,
    RemotePartitionDeletion,
)

_State = RemoteLogSegmentState


class _Unreferenced:
    """Segments that are not found, in the order of their first offsets in a leader epoch."""

    __slots__ = ("_ids", "_keys")

    def __init__(self) -> None:
        self._keys: list[tuple[int, Uuid]] = []
        self._ids: list[RemoteLogSegmentId] = []

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, start_offset: int, segment_id: RemoteLogSegmentId) -> None:
        at, is_there = self._place(start_offset, segment_id)
        if not is_there:
            self._keys.insert(at, (start_offset, segment_id.id))
            self._ids.insert(at, segment_id)

    def discard(self, start_offset: int, segment_id: RemoteLogSegmentId) -> None:
        at, is_there = self._place(start_offset, segment_id)
        if is_there:
            del self._keys[at], self._ids[at]

    def between(self, first: int, last: int) -> list[RemoteLogSegmentId]:
        """Those that begin between two offsets."""
        keys = self._keys
        return self._ids[bisect.bisect_left(keys, (first,)) : bisect.bisect_left(keys, (last + 1,))]

    def entries(self) -> Iterator[tuple[int, RemoteLogSegmentId]]:
        """First offset and id, as they are now."""
        return zip([start_offset for start_offset, _ in self._keys], self._ids.copy(), strict=True)

    def _place(self, start_offset: int, segment_id: RemoteLogSegmentId) -> tuple[int, bool]:
        key = (start_offset, segment_id.id)
        at = bisect.bisect_left(self._keys, key)
        return at, at < len(self._keys) and self._keys[at] == key


class _EpochState:
    """The segments with records of one leader epoch."""

    __slots__ = ("end_offsets", "highest_offset", "ids", "longest", "start_offsets", "unreferenced")

    def __init__(self) -> None:
        self.start_offsets: list[int] = []
        self.end_offsets: list[int] = []
        """These increase too, since none has all of another: so the last one that begins before an offset reaches
        furthest."""
        self.ids: list[RemoteLogSegmentId] = []
        """Of the segments that are found; in the order of `start_offsets`."""
        self.unreferenced = _Unreferenced()
        """Those that are not found: copied in part, being deleted, or with nothing that another does not have."""
        self.highest_offset: int | None = None
        """Up to where the epoch was ever copied."""
        self.longest = 0
        """How many offsets a segment has at most: where one may begin that overlaps another."""

    def finished(self, start_offset: int, segment_id: RemoteLogSegmentId, end_offset: int) -> None:
        """Has a segment found that is whole, where none has all of it."""
        self.longest = max(self.longest, end_offset + 1 - start_offset)
        if self.highest_offset is None or end_offset > self.highest_offset:
            self.highest_offset = end_offset
        before = bisect.bisect_right(self.start_offsets, start_offset)
        if before and self.end_offsets[before - 1] >= end_offset:
            self.unreferenced.add(start_offset, segment_id)
            return
        first = bisect.bisect_left(self.start_offsets, start_offset)
        following = bisect.bisect_right(self.end_offsets, end_offset, first)
        for each in zip(self.start_offsets[first:following], self.ids[first:following], strict=True):
            self.unreferenced.add(*each)
        self.start_offsets[first:following] = [start_offset]
        self.end_offsets[first:following] = [end_offset]
        self.ids[first:following] = [segment_id]
        self.unreferenced.discard(start_offset, segment_id)

    def deletion_started(self, start_offset: int, segment_id: RemoteLogSegmentId) -> bool:
        """True where it was found until now."""
        self.unreferenced.add(start_offset, segment_id)
        at = bisect.bisect_left(self.start_offsets, start_offset)
        if at < len(self.ids) and self.ids[at] == segment_id:
            del self.ids[at], self.start_offsets[at], self.end_offsets[at]
            return True
        return False

    def floor(self, offset: int) -> RemoteLogSegmentId | None:
        at = bisect.bisect_right(self.start_offsets, offset)
        return self.ids[at - 1] if at else None

    def entries(self) -> Iterator[tuple[int, RemoteLogSegmentId]]:
        """First offset and id of all, in order, as they are now."""
        found = zip(self.start_offsets.copy(), self.ids.copy(), strict=True)
        return heapq.merge(found, self.unreferenced.entries(), key=itemgetter(0)) if self.unreferenced else found


class RemoteLogMetadataCache:
    """The remote segments of one partition."""

    def __init__(self) -> None:
        self._segments: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}
        self._epochs: dict[int, _EpochState] = {}
        self.deletion: RemotePartitionDeleteState | None = None
        """How far the deletion of all of them is; None where nobody has asked for it."""
        self.removals = 0
        """How many segments that were found are found no more: what was made out before one may not hold after it."""

    def apply(self, metadata: RemoteLogMetadata) -> None:
        """Takes over what a record says.

        A state of a segment that is gone, or was never heard of, is passed over: the records before it have outlived
        their retention. Raises IllegalTransitionError for one that the tables do not allow; nothing has changed then.
        """
        match metadata:
            case RemoteLogSegmentMetadata():
                self._add(metadata)
            case RemoteLogSegmentUpdate():
                self._update(metadata)
            case RemotePartitionDeletion():
                self._delete(metadata)

    # What is asked.

    def segment(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        """One segment by its id, in whatever state; None once it is deleted."""
        return self._segments.get(segment_id)

    def find(self, leader_epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """The segment that has an offset which was written in a leader epoch; None where none was copied."""
        epoch = self._epochs.get(leader_epoch)
        segment_id = None if epoch is None else epoch.floor(offset)
        if segment_id is None:
            return None
        found = self._segments[segment_id]
        return found if offset <= found.end_offset_in(leader_epoch) else None

    def start_behind(self, leader_epoch: int, offset: int) -> int | None:
        """The first offset, behind one, at which a segment begins that is found in a leader epoch."""
        epoch = self._epochs.get(leader_epoch)
        if epoch is None:
            return None
        at = bisect.bisect_right(epoch.start_offsets, offset)
        return epoch.start_offsets[at] if at < len(epoch.start_offsets) else None

    def highest_offset(self, leader_epoch: int) -> int | None:
        """The last offset of a leader epoch that was ever copied; None where none was."""
        epoch = self._epochs.get(leader_epoch)
        return None if epoch is None else epoch.highest_offset

    def segments(self) -> list[RemoteLogSegmentMetadata]:
        """All that are not deleted, in whatever state, in the order in which they were first heard of."""
        return list(self._segments.values())

    def segments_of(self, leader_epoch: int) -> Iterator[RemoteLogSegmentMetadata]:
        """Those with records of a leader epoch, in whatever state, by their first offset. One that comes while this
        goes on may be missing, one that is deleted is."""
        epoch = self._epochs.get(leader_epoch)
        if epoch is None:
            return
        for _, segment_id in epoch.entries():
            segment = self._segments.get(segment_id)
            if segment is not None:
                yield segment

    def epochs(self) -> list[int]:
        """The leader epochs that any segment has, in order."""
        return sorted({epoch for segment in self._segments.values() for epoch in segment.leader_epochs})

    # What is told.

    def _add(self, metadata: RemoteLogSegmentMetadata) -> None:
        if metadata.state is not _State.COPY_SEGMENT_STARTED:
            raise IllegalTransitionError(SEGMENT.name, metadata.segment_id, _State.COPY_SEGMENT_STARTED, metadata.state)
        known = self._segments.get(metadata.segment_id)
        if known is not None:
            SEGMENT.advance(metadata.segment_id, known.state, metadata.state)
        for epoch, start_offset in metadata.leader_epochs.items():
            self._epochs.setdefault(epoch, _EpochState()).unreferenced.add(start_offset, metadata.segment_id)
        self._segments[metadata.segment_id] = metadata

    def _update(self, update: RemoteLogSegmentUpdate) -> None:
        known = self._segments.get(update.segment_id)
        if known is None:
            return
        SEGMENT.advance(update.segment_id, known.state, update.state)
        updated = known.updated(update)
        for epoch, start_offset in updated.leader_epochs.items():
            state = self._epochs.setdefault(epoch, _EpochState())
            match update.state:
                case _State.COPY_SEGMENT_FINISHED:
                    if known.state is not update.state:
                        state.finished(start_offset, update.segment_id, updated.end_offset_in(epoch))
                case _State.DELETE_SEGMENT_STARTED:
                    if state.deletion_started(start_offset, update.segment_id):
                        self.removals += 1
                        self._find_again(state, epoch, updated)
                case _State.DELETE_SEGMENT_FINISHED:
                    state.unreferenced.discard(start_offset, update.segment_id)
        if update.state is _State.DELETE_SEGMENT_FINISHED:
            del self._segments[update.segment_id]
            self._forget_empty(updated.leader_epochs)
        else:
            self._segments[update.segment_id] = updated

    def _find_again(self, state: _EpochState, epoch: int, gone: RemoteLogSegmentMetadata) -> None:
        """Another copy of what is being deleted takes its place. Two leaders may have copied the same records, one of
        them without hearing that it was written: what either of them relies on must stay."""
        start_offset, last_offset = gone.leader_epochs[epoch], gone.end_offset_in(epoch)
        overlapping = [
            segment
            for segment in map(
                self._segments.__getitem__, state.unreferenced.between(start_offset - state.longest, last_offset)
            )
            if segment.state is _State.COPY_SEGMENT_FINISHED
            and segment.segment_id != gone.segment_id
            and segment.end_offset_in(epoch) >= start_offset
        ]
        for segment in sorted(overlapping, key=_start_offset):
            state.finished(segment.leader_epochs[epoch], segment.segment_id, segment.end_offset_in(epoch))

    def _delete(self, deletion: RemotePartitionDeletion) -> None:
        if self.deletion is None:
            if deletion.state is not RemotePartitionDeleteState.DELETE_PARTITION_MARKED:
                return  # the mark has outlived its retention
            self.deletion = deletion.state
        else:
            self.deletion = PARTITION_DELETION.advance(deletion.partition, self.deletion, deletion.state)

    def _forget_empty(self, epochs: Iterable[int]) -> None:
        """An epoch without segments stays only for how far it was copied, which a leader must not copy again."""
        for epoch in epochs:
            state = self._epochs.get(epoch)
            if state is not None and not state.ids and not state.unreferenced and state.highest_offset is None:
                del self._epochs[epoch]


def _start_offset(metadata: RemoteLogSegmentMetadata) -> int:
    return metadata.start_offset
