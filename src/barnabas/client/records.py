"""What producers send and consumers get.

What is made for each record is a tuple: a frozen dataclass takes several times as long to make.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

from barnabas.kernel.facts import fact
from barnabas.wire.records import Header, TimestampType
from barnabas.wire.sentinels import NO_EPOCH
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


@fact
class RecordColumn:
    """Keys and values of records of one partition, in order; without `keys` all are null."""

    partition: TopicPartition
    offsets: Sequence[int]
    keys: Sequence[bytes | None] | None
    values: Sequence[bytes | None]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def offset(self) -> int:
        """Of the first record."""
        return self.offsets[0]

    def below(self, offset: int) -> RecordColumn:
        """The records below that offset, which may be none."""
        end = bisect.bisect_left(self.offsets, offset)
        keys = None if self.keys is None else self.keys[:end]
        return RecordColumn(self.partition, self.offsets[:end], keys, self.values[:end])

    def since(self, offset: int) -> RecordColumn:
        """The records from that offset on, which may be none."""
        begin = bisect.bisect_left(self.offsets, offset)
        keys = None if self.keys is None else self.keys[begin:]
        return RecordColumn(self.partition, self.offsets[begin:], keys, self.values[begin:])


@fact
class OffsetAndMetadata:
    """A position that a group commits: the offset of the next record to read, and the epoch of the last one read."""

    offset: int
    leader_epoch: int = NO_EPOCH
    """-1 where it is not known."""
    metadata: str = ""


@fact
class OffsetAndTimestamp:
    """What a look-up by time found."""

    offset: int
    timestamp_ms: int
    leader_epoch: int
