"""Which remote segments a partition has, and which of them has an offset in a leader epoch. Without I/O.

What is applied are the records of `__remote_log_metadata` in their order, so every broker that has read as far knows
the same. Invariant: a segment is found only while it is in COPY_SEGMENT_FINISHED; of two that overlap within a leader
epoch, because two leaders have copied the same records, only the one that reaches further is found there, and the
other is listed; it is found again when the first is deleted.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable

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


class _EpochState:
    """The segments with records of one leader epoch."""

    __slots__ = ("highest_offset", "ids", "start_offsets", "unreferenced")

    def __init__(self) -> None:
        self.start_offsets: list[int] = []
        self.ids: list[RemoteLogSegmentId] = []
        """Of the segments that are found; in the order of `start_offsets`."""
        self.unreferenced: dict[RemoteLogSegmentId, None] = {}
        """Those that are not found: copied in part, being deleted, or with nothing that another does not have."""
        self.highest_offset: int | None = None
        """Up to where the epoch was ever copied."""

    def finished(self, start_offset: int, segment_id: RemoteLogSegmentId, end_offset: int) -> None:
        highest = self.highest_offset
        while self.ids and self.start_offsets[-1] >= start_offset and highest is not None and highest <= end_offset:
            self.start_offsets.pop()
            self.unreferenced[self.ids.pop()] = None
        at = bisect.bisect_left(self.start_offsets, start_offset)
        if at < len(self.ids) and self.start_offsets[at] == start_offset:
            self.unreferenced[self.ids[at]] = None
            self.ids[at] = segment_id
        else:
            self.start_offsets.insert(at, start_offset)
            self.ids.insert(at, segment_id)
        self.unreferenced.pop(segment_id, None)
        if highest is None or end_offset > highest:
            self.highest_offset = end_offset

    def deletion_started(self, start_offset: int, segment_id: RemoteLogSegmentId) -> bool:
        """True where it was found until now."""
        self.unreferenced[segment_id] = None
        at = bisect.bisect_left(self.start_offsets, start_offset)
        if at < len(self.ids) and self.ids[at] == segment_id:
            del self.ids[at], self.start_offsets[at]
            return True
        return False

    def refer(self, start_offset: int, segment_id: RemoteLogSegmentId) -> None:
        """Has a segment found that is whole, where none begins at the same offset."""
        at = bisect.bisect_left(self.start_offsets, start_offset)
        if at == len(self.ids) or self.start_offsets[at] != start_offset:
            self.start_offsets.insert(at, start_offset)
            self.ids.insert(at, segment_id)
            del self.unreferenced[segment_id]

    def floor(self, offset: int) -> RemoteLogSegmentId | None:
        at = bisect.bisect_right(self.start_offsets, offset)
        return self.ids[at - 1] if at else None


class RemoteLogMetadataCache:
    """The remote segments of one partition."""

    def __init__(self) -> None:
        self._segments: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}
        self._epochs: dict[int, _EpochState] = {}
        self.deletion: RemotePartitionDeleteState | None = None
        """How far the deletion of all of them is; None where nobody has asked for it."""

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
        """All that are not deleted, in whatever state, by their first offset."""
        return sorted(self._segments.values(), key=_start_offset)

    def segments_of(self, leader_epoch: int) -> list[RemoteLogSegmentMetadata]:
        """Those with records of a leader epoch, in whatever state, by their first offset."""
        epoch = self._epochs.get(leader_epoch)
        if epoch is None:
            return []
        found = [self._segments[each] for each in epoch.ids]
        if epoch.unreferenced:
            found = sorted((*found, *(self._segments[each] for each in epoch.unreferenced)), key=_start_offset)
        return found

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
        for epoch in metadata.leader_epochs:
            self._epochs.setdefault(epoch, _EpochState()).unreferenced[metadata.segment_id] = None
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
                        self._find_again(state, epoch, updated)
                case _State.DELETE_SEGMENT_FINISHED:
                    state.unreferenced.pop(update.segment_id, None)
        if update.state is _State.DELETE_SEGMENT_FINISHED:
            del self._segments[update.segment_id]
            self._forget_empty(updated.leader_epochs)
        else:
            self._segments[update.segment_id] = updated

    def _find_again(self, state: _EpochState, epoch: int, gone: RemoteLogSegmentMetadata) -> None:
        """Another copy of what is being deleted takes its place. Two leaders may have copied the same records, one of
        them without hearing that it was written: what either of them relies on must stay."""
        overlapping = [
            segment
            for segment in map(self._segments.__getitem__, state.unreferenced)
            if segment.state is _State.COPY_SEGMENT_FINISHED
            and segment.segment_id != gone.segment_id
            and segment.leader_epochs[epoch] <= gone.end_offset_in(epoch)
            and segment.end_offset_in(epoch) >= gone.leader_epochs[epoch]
        ]
        for segment in sorted(overlapping, key=_start_offset):
            state.refer(segment.leader_epochs[epoch], segment.segment_id)

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
