"""The records of `__consumer_offsets`: a group after a rebalance, and each of its committed offsets.

The version ahead of a key is the type of the record: 0 and 1 an offset, 2 a classic group, 3 to 8 what groups of the
consumer protocol write (`consumer_group.records`). Values are written in the newest version without tagged fields that
the brokers of `inter.broker.protocol.version` read, as Apache Kafka 3.9 does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from barnabas.config.kafka_versions import is_at_least
from barnabas.coordinators.consumer_group.records import ConsumerGroupKey, RecordKind
from barnabas.coordinators.consumer_group.records import read_key as read_consumer_key
from barnabas.wire.codec import decode_prefixed, encode_prefixed
from barnabas.wire.messages import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from barnabas.wire.topics import TopicPartition

NO_EXPIRATION: Final = -1
NO_STATE_TIMESTAMP: Final = -1

_OFFSET_KEY_VERSION: Final = 1
_GROUP_KEY_VERSION: Final = 2
_EXPIRING_OFFSET_VERSION: Final = 1
"""The one version of an offset's value that has room for an expiration of its own."""
_KEY_VERSION_BYTES: Final = 2
_CONSUMER_KINDS: Final = frozenset(RecordKind)


class CommittedOffset(NamedTuple):
    """How far a group has read one partition."""

    offset: int
    leader_epoch: int
    """The epoch of the last record read; `NO_EPOCH` where the client did not say."""
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_EXPIRATION
    """Set by clients that still send a retention time (OffsetCommit 2 to 4)."""


class OffsetKey(NamedTuple):
    """What a record's key says: an offset of the group in this partition."""

    group_id: str
    partition: TopicPartition


class GroupKey(NamedTuple):
    """What a record's key says: the classic group itself."""

    group_id: str


@dataclass(frozen=True, slots=True)
class ValueVersions:
    """In which versions values are written."""

    offset: int = 3
    group: int = 3

    @classmethod
    def of(cls, inter_broker_protocol_version: str) -> ValueVersions:
        """The newest versions that every broker of a cluster of that version reads."""

        def newest(since: dict[str, int]) -> int:
            return max(version for least, version in since.items() if is_at_least(inter_broker_protocol_version, least))

        return cls(
            offset=newest({"0.8.0": 1, "2.1-IV0": 2, "2.1-IV1": 3}),
            group=newest({"0.8.0": 0, "0.10.1-IV0": 1, "2.1-IV0": 2, "2.3-IV0": 3}),
        )


def offset_key(group_id: str, partition: TopicPartition) -> bytes:
    return encode_prefixed(
        OffsetCommitKey(group=group_id, topic=partition.topic, partition=partition.partition), _OFFSET_KEY_VERSION
    )


def group_key(group_id: str) -> bytes:
    return encode_prefixed(GroupMetadataKey(group=group_id), _GROUP_KEY_VERSION)


def offset_value(committed: CommittedOffset, version: int) -> bytes:
    """The value in `version`, or in the version that keeps an expiration where the offset has one."""
    expire_timestamp_ms = committed.expire_timestamp_ms
    return encode_prefixed(
        OffsetCommitValue(
            offset=committed.offset,
            leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
            commit_timestamp=committed.commit_timestamp_ms,
            expire_timestamp=expire_timestamp_ms,
        ),
        version if expire_timestamp_ms == NO_EXPIRATION else _EXPIRING_OFFSET_VERSION,
    )


def group_value(value: GroupMetadataValue, version: int) -> bytes:
    return encode_prefixed(value, version)


def read_key(key: bytes) -> OffsetKey | GroupKey | ConsumerGroupKey | None:
    """What the key names; None for a type of record that is not known.

    Raises `ProtocolError` for a key that is none.
    """
    version = int.from_bytes(key[:_KEY_VERSION_BYTES], "big", signed=True)
    if len(key) >= _KEY_VERSION_BYTES and 0 <= version <= _OFFSET_KEY_VERSION:
        offset = decode_prefixed(OffsetCommitKey, key)[1]
        return OffsetKey(offset.group, TopicPartition(offset.topic, offset.partition))
    if version == _GROUP_KEY_VERSION or len(key) < _KEY_VERSION_BYTES:
        return GroupKey(decode_prefixed(GroupMetadataKey, key)[1].group)
    if version in _CONSUMER_KINDS:
        return read_consumer_key(key, RecordKind(version))
    return None


def read_offset_value(value: bytes) -> CommittedOffset:
    """Raises `ProtocolError` for a value that is none, or of a version that is not known."""
    read = decode_prefixed(OffsetCommitValue, value)[1]
    return CommittedOffset(read.offset, read.leader_epoch, read.metadata, read.commit_timestamp, read.expire_timestamp)


def read_group_value(value: bytes) -> GroupMetadataValue:
    """The group; members of before rebalance timeouts (version 0) have their session timeout for one.

    Raises `ProtocolError` for a value that is none, or of a version that is not known.
    """
    version, group = decode_prefixed(GroupMetadataValue, value)
    if version == 0:
        for member in group.members:
            member.rebalance_timeout = member.session_timeout
    return group


def utf16_length(text: str) -> int:
    """How Java counts a string's length."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2
