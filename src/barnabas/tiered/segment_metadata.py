"""What is known of a segment in remote storage, and the states that it and its partition go through (KIP-405)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from barnabas.kernel.ids import Uuid
from barnabas.kernel.transitions import TransitionTable
from barnabas.wire.topics import TopicPartition


class RemoteLogSegmentState(enum.IntEnum):
    """How far a copy is; the value is that of the records."""

    COPY_SEGMENT_STARTED = 0
    """It may be there in part, or not at all: nobody reads it."""
    COPY_SEGMENT_FINISHED = 1
    """All of it is there, and durable."""
    DELETE_SEGMENT_STARTED = 2
    """Some of it may be gone: nobody reads it any more."""
    DELETE_SEGMENT_FINISHED = 3


class RemotePartitionDeleteState(enum.IntEnum):
    """How far the deletion of a partition's remote segments is; the value is that of the records."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


_Segment = RemoteLogSegmentState
_Partition = RemotePartitionDeleteState

SEGMENT: Final = TransitionTable.from_valid_previous_states(
    "remote segment",
    start=_Segment.COPY_SEGMENT_STARTED,
    valid_previous_states={
        _Segment.COPY_SEGMENT_STARTED: {_Segment.COPY_SEGMENT_STARTED},
        _Segment.COPY_SEGMENT_FINISHED: {_Segment.COPY_SEGMENT_FINISHED, _Segment.COPY_SEGMENT_STARTED},
        _Segment.DELETE_SEGMENT_STARTED: {
            _Segment.DELETE_SEGMENT_STARTED,
            _Segment.COPY_SEGMENT_STARTED,
            _Segment.COPY_SEGMENT_FINISHED,
        },
        _Segment.DELETE_SEGMENT_FINISHED: {_Segment.DELETE_SEGMENT_FINISHED, _Segment.DELETE_SEGMENT_STARTED},
    },
    final=(_Segment.DELETE_SEGMENT_FINISHED,),
)
"""A state may be said again: whoever does not know whether a record was written writes it once more."""

PARTITION_DELETION: Final = TransitionTable.from_valid_previous_states(
    "deletion of a remote partition",
    start=_Partition.DELETE_PARTITION_MARKED,
    valid_previous_states={
        _Partition.DELETE_PARTITION_MARKED: {_Partition.DELETE_PARTITION_MARKED},
        _Partition.DELETE_PARTITION_STARTED: {
            _Partition.DELETE_PARTITION_STARTED,
            _Partition.DELETE_PARTITION_MARKED,
        },
        _Partition.DELETE_PARTITION_FINISHED: {
            _Partition.DELETE_PARTITION_FINISHED,
            _Partition.DELETE_PARTITION_STARTED,
        },
    },
    final=(_Partition.DELETE_PARTITION_FINISHED,),
)


@dataclass(frozen=True, slots=True)
class TopicIdPartition:
    """A partition of one life of a topic: a topic that is created anew has another id."""

    topic_id: Uuid
    topic_partition: TopicPartition

    def __str__(self) -> str:
        return f"{self.topic_id}:{self.topic_partition}"


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentId:
    """One copy of a segment. Each attempt to copy one has an id of its own."""

    partition: TopicIdPartition
    id: Uuid


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadata:
    """One copy of a segment, as the records say."""

    segment_id: RemoteLogSegmentId
    start_offset: int
    end_offset: int
    """Of the last record that it may have; the next segment begins behind it."""
    max_timestamp_ms: int
    broker_id: int
    """The broker that has said this last."""
    event_timestamp_ms: int
    size_bytes: int
    """Of the log file."""
    leader_epochs: Mapping[int, int]
    """First offset by leader epoch, in order, from `start_offset` on; at least one."""
    state: RemoteLogSegmentState = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    custom_metadata: bytes | None = None

    def __post_init__(self) -> None:
        if not self.leader_epochs:
            raise ValueError(f"remote segment {self.segment_id.id} has no leader epochs")
        entries = list(self.leader_epochs.items())
        if any(later[0] <= former[0] or later[1] < former[1] for former, later in pairwise(entries)):
            raise ValueError(f"remote segment {self.segment_id.id} has leader epochs out of order: {entries}")
        if not 0 <= self.start_offset <= self.end_offset or self.size_bytes < 0:
            raise ValueError(
                f"remote segment {self.segment_id.id} cannot have {self.size_bytes} bytes from offset"
                f" {self.start_offset} to {self.end_offset}"
            )

    def end_offset_in(self, leader_epoch: int) -> int:
        """The last offset that the segment may have of one of its leader epochs."""
        return (
            min(
                (start for epoch, start in self.leader_epochs.items() if epoch > leader_epoch),
                default=self.end_offset + 1,
            )
            - 1
        )

    def updated(self, update: RemoteLogSegmentUpdate) -> RemoteLogSegmentMetadata:
        """The same segment in another state."""
        return replace(
            self,
            broker_id=update.broker_id,
            event_timestamp_ms=update.event_timestamp_ms,
            state=update.state,
            custom_metadata=update.custom_metadata,
        )


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentUpdate:
    """Another state of a copy."""

    segment_id: RemoteLogSegmentId
    broker_id: int
    event_timestamp_ms: int
    state: RemoteLogSegmentState
    custom_metadata: bytes | None = None


@dataclass(frozen=True, slots=True)
class RemotePartitionDeletion:
    """How far the deletion of a partition's remote segments is."""

    partition: TopicIdPartition
    broker_id: int
    event_timestamp_ms: int
    state: RemotePartitionDeleteState


RemoteLogMetadata = RemoteLogSegmentMetadata | RemoteLogSegmentUpdate | RemotePartitionDeletion
"""What one record of `__remote_log_metadata` says."""


def partition_of(metadata: RemoteLogMetadata) -> TopicIdPartition:
    """The partition that it tells of."""
    return metadata.partition if isinstance(metadata, RemotePartitionDeletion) else metadata.segment_id.partition
