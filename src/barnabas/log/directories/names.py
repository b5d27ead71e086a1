"""The names of everything in a log directory: partition directories and the files in them.

Source: Apache Kafka 3.9; both directions are exact, so that either system finds its way in a directory of the other.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Final

from barnabas.wire.topics import TopicPartition

LOG_SUFFIX: Final = ".log"
OFFSET_INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TRANSACTION_INDEX_SUFFIX: Final = ".txnindex"
PRODUCER_SNAPSHOT_SUFFIX: Final = ".snapshot"

DELETED_SUFFIX: Final = ".deleted"
"""A file that nothing needs any more and that a delayed task removes."""
CLEANED_SUFFIX: Final = ".cleaned"
"""A segment that the cleaner is writing; worthless after a crash."""
SWAP_SUFFIX: Final = ".swap"
"""A whole segment that takes the place of others; a crash cannot stop that, recovery goes on with it."""

LEADER_EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
REPLACEMENT_MARKER: Final = "replacement-of"
"""In a partition directory that takes the place of one in another log directory; Apache Kafka has no such file."""
META_PROPERTIES: Final = "meta.properties"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
LOCK: Final = ".lock"
RECOVERY_POINT_CHECKPOINT: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT: Final = "replication-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT: Final = "log-start-offset-checkpoint"
CLEANER_CHECKPOINT: Final = "cleaner-offset-checkpoint"

_INT64_MAX: Final = (1 << 63) - 1
_INT32_MAX: Final = (1 << 31) - 1
_DIRECTORY_NAME_MAX: Final = 255
_MARKED_DIRECTORY: Final = re.compile(r"(\S+)-(\d+)\.([0-9a-f]{32})-(delete|future|stray)", re.ASCII)
_OFFSET_IN_NAME: Final = re.compile(r"(\d{20})(\.[a-z]+)((?:\.[a-z]+)?)", re.ASCII)


class DirectoryKind(enum.Enum):
    """What a partition directory is for; the value is the end of its name."""

    CURRENT = ""
    DELETE = "-delete"
    """The partition is gone and the directory will be."""
    FUTURE = "-future"
    """A replica on its way to this log directory (KIP-113)."""
    STRAY = "-stray"
    """A replica that the cluster knows nothing of, kept for its owner to look at."""


@dataclass(frozen=True, slots=True)
class PartitionDirectory:
    """What the name of a partition directory says."""

    partition: TopicPartition
    kind: DirectoryKind = DirectoryKind.CURRENT


@dataclass(frozen=True, slots=True)
class SegmentFileName:
    """What the name of a file of a segment, or of a producer snapshot, says."""

    offset: int
    """The base offset of the segment; the offset up to which a snapshot goes."""
    suffix: str
    """LOG_SUFFIX or another of the first group."""
    state_suffix: str = ""
    """Empty, or one of DELETED_SUFFIX, CLEANED_SUFFIX and SWAP_SUFFIX."""


def partition_directory_name(partition: TopicPartition) -> str:
    """`T-P`."""
    return f"{partition.topic}-{partition.partition}"


def marked_directory_name(partition: TopicPartition, kind: DirectoryKind, unique_id: str) -> str:
    """`T-P.<unique id>-delete` and the like; a long topic is cut, except for a future replica, which is found by it.

    `unique_id` has 32 lower-case hexadecimal digits. Raises ValueError for another, and for CURRENT.
    """
    if kind is DirectoryKind.CURRENT or not re.fullmatch(r"[0-9a-f]{32}", unique_id):
        raise ValueError(f"a directory is marked with a kind and 32 hexadecimal digits, not {kind} and {unique_id!r}")
    end = f"-{partition.partition}.{unique_id}{kind.value}"
    topic = partition.topic
    if kind is not DirectoryKind.FUTURE:
        topic = topic[: _DIRECTORY_NAME_MAX - len(end)]
    return topic + end


def parse_partition_directory(name: str) -> PartitionDirectory | None:
    """What a directory is; None for a name that no partition directory has."""
    marked = _MARKED_DIRECTORY.fullmatch(name)
    if marked is not None:
        topic, number, _, ending = marked.groups()
        kind = DirectoryKind(f"-{ending}")
    else:
        topic, separator, number = name.rpartition("-")
        if not separator or not topic or not (number.isascii() and number.isdigit()):
            return None
        kind = DirectoryKind.CURRENT
    if len(number) > len(str(_INT32_MAX)) or int(number) > _INT32_MAX:
        return None
    return PartitionDirectory(TopicPartition(topic, int(number)), kind)


def segment_file_name(offset: int, suffix: str) -> str:
    """`00000000000000000042.log`."""
    return f"{offset:020d}{suffix}"


def parse_segment_file(name: str) -> SegmentFileName | None:
    """What a file in a partition directory is; None for the files that belong to no segment."""
    match = _OFFSET_IN_NAME.fullmatch(name)
    if match is None or int(match[1]) > _INT64_MAX:
        return None
    return SegmentFileName(int(match[1]), match[2], match[3])
