"""How the objects of a segment are named in remote storage.

    TOPIC-TOPICID-PARTITION/00000000000000000100-SEGMENTID.log
                                                         .index .timeindex .txnindex .snapshot .leader-epoch-checkpoint

The topic's id is beside its name, so that a topic that is created anew has objects of its own; each attempt to copy a
segment has an id of its own, so that no attempt writes over another's objects. The files are those of a log directory:
a prefix can be read as one, without brokers.
"""

from __future__ import annotations

import enum
import re
from typing import Final

from barnabas.kernel.ids import Uuid
from barnabas.tiered.segment_metadata import RemoteLogSegmentMetadata, TopicIdPartition
from barnabas.wire.topics import TopicPartition

_ID: Final = r"[A-Za-z0-9_-]{22}"
_PREFIX: Final = re.compile(rf"(.+)-({_ID})-(\d{{1,10}})")


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


_OBJECT: Final = re.compile(rf"(\d{{20}})-{_ID}({'|'.join(re.escape(kind) for kind in ObjectKind)})")


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


def parse_prefix(name: str) -> TopicIdPartition | None:
    """The partition of a `partition_prefix`; None for a name that is none."""
    match = _PREFIX.fullmatch(name)
    if match is None:
        return None
    try:
        topic_id = Uuid.from_text(match[2])
    except ValueError:
        return None
    return TopicIdPartition(topic_id, TopicPartition(match[1], int(match[3])))


def parse_object_name(name: str) -> tuple[int, ObjectKind] | None:
    """First offset of the segment, and what of it an object is, by the last part of its name; None for a name that no
    object has."""
    match = _OBJECT.fullmatch(name)
    return None if match is None else (int(match[1]), ObjectKind(match[2]))
