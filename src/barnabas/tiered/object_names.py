"""How the objects of a segment are named in remote storage.

    TOPIC-TOPICID-PARTITION/00000000000000000100-SEGMENTID.log
                                                         .index .timeindex .txnindex .snapshot .leader-epoch-checkpoint

The topic's id is beside its name, so that a topic that is created anew has objects of its own; each attempt to copy a
segment has an id of its own, so that no attempt writes over another's objects. The files are those of a log directory:
a prefix can be read as one, without brokers.
"""

from __future__ import annotations

import enum

from barnabas.tiered.segment_metadata import RemoteLogSegmentMetadata, TopicIdPartition


class ObjectKind(enum.StrEnum):
    """What an object of a segment is, by the end of its name."""

    LOG = ".log"
    OFFSET_INDEX = ".index"
    TIME_INDEX = ".timeindex"
    TRANSACTION_INDEX = ".txnindex"
    """Empty where no transaction was aborted in the segment: one that is missing was lost."""
    PRODUCER_SNAPSHOT = ".snapshot"
    """The state of producers at the segment's end."""
    LEADER_EPOCHS = ".leader-epoch-checkpoint"
    """The history of the log up to the segment's end."""


def partition_prefix(partition: TopicIdPartition) -> str:
    """What the names of all objects of a partition begin with, up to the slash."""
    name = partition.topic_partition
    return f"{name.topic}-{partition.topic_id}-{name.partition}"


def object_name(segment: RemoteLogSegmentMetadata, kind: ObjectKind) -> str:
    """The name of one object, below the root of the storage."""
    prefix = partition_prefix(segment.segment_id.partition)
    return f"{prefix}/{segment.start_offset:020}-{segment.segment_id.id}{kind}"


def object_names(segment: RemoteLogSegmentMetadata) -> list[str]:
    """Of all objects that a segment may have."""
    return [object_name(segment, kind) for kind in ObjectKind]
