"""What producers send and consumers get.

What is made for each record is a tuple: a frozen dataclass takes several times as long to make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from barnabas.wire.records import Header, TimestampType
from barnabas.wire.topics import TopicPartition


class ProducerRecord(NamedTuple):
    """A record to be sent. Without a `partition`, its key or else the sticky partitioner chooses one; without a
    `timestamp_ms`, the host's clock gives it.
    """

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class RecordMetadata(NamedTuple):
    """Where an acknowledged record is. Offset and timestamp are -1 where the broker did not tell (`acks=0`, or a
    duplicate that the broker has forgotten the offset of).
    """

    partition: TopicPartition
    offset: int
    timestamp_ms: int


class ConsumerRecord(NamedTuple):
    """A record as it was read. `leader_epoch` is that of the batch, -1 in old message formats."""

    partition: TopicPartition
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    leader_epoch: int
    timestamp_type: TimestampType


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A position that a group commits: the offset of the next record to read, and the epoch of the last one read."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """What a look-up by time found."""

    offset: int
    timestamp_ms: int
    leader_epoch: int
