"""What a group of the consumer protocol writes to `__consumer_offsets`, in the form of Apache Kafka's records.

The version ahead of a key is the type of the record: 3 to 8 here.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from barnabas.coordinators.consumer_group.member import ClassicSaid, ConsumerMember, Partitions
from barnabas.coordinators.consumer_group.states import MemberState
from barnabas.coordinators.consumer_group.topics import TopicFacts
from barnabas.kernel.ids import Uuid
from barnabas.wire.codec import decode_prefixed, encode_prefixed
from barnabas.wire.messages import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)

_VALUE_VERSION: Final = 0


class RecordKind(enum.IntEnum):
    """The value is the version of the key."""

    GROUP = 3
    TOPICS = 4
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8


class ConsumerGroupKey(NamedTuple):
    """What a record's key says; `member_id` is empty for what is of the whole group."""

    kind: RecordKind
    group_id: str
    member_id: str = ""


@dataclass(frozen=True, slots=True)
class GroupEpoch:
    """The group's epoch, which goes up when members, subscriptions or topics change."""

    epoch: int


@dataclass(frozen=True, slots=True)
class SubscribedTopics:
    """The topics that members are subscribed to, those that exist."""

    topics: Mapping[str, TopicFacts]


@dataclass(frozen=True, slots=True)
class MemberSaid:
    """What a member says of itself; only that part of the member counts."""

    member: ConsumerMember


@dataclass(frozen=True, slots=True)
class TargetEpoch:
    """The epoch of the group that the target assignment was made for."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Target:
    """What a member is to own."""

    member_id: str
    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Current:
    """What a member owns, and its epoch; only that part of the member counts."""

    member: ConsumerMember


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A record of that kind goes."""

    kind: RecordKind
    member_id: str = ""


ConsumerGroupRecord = GroupEpoch | SubscribedTopics | MemberSaid | TargetEpoch | Target | Current | Tombstone

_KEYS: Final[Mapping[RecordKind, Any]] = {
    RecordKind.GROUP: ConsumerGroupMetadataKey,
    RecordKind.TOPICS: ConsumerGroupPartitionMetadataKey,
    RecordKind.MEMBER: ConsumerGroupMemberMetadataKey,
    RecordKind.TARGET_EPOCH: ConsumerGroupTargetAssignmentMetadataKey,
    RecordKind.TARGET: ConsumerGroupTargetAssignmentMemberKey,
    RecordKind.CURRENT: ConsumerGroupCurrentMemberAssignmentKey,
}
_OF_MEMBERS: Final = frozenset({RecordKind.MEMBER, RecordKind.TARGET, RecordKind.CURRENT})

_TargetPartitions = ConsumerGroupTargetAssignmentMemberValue.TopicPartition
_ClassicMetadata = ConsumerGroupMemberMetadataValue.ClassicMemberMetadata
_ClassicProtocol = ConsumerGroupMemberMetadataValue.ClassicProtocol
_CurrentPartitions = ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions


def read_key(key: bytes, kind: RecordKind) -> ConsumerGroupKey:
    """What the key names, of which the version has been read. Raises `ProtocolError` for a key that is none."""
    read = decode_prefixed(_KEYS[kind], key)[1]
    return ConsumerGroupKey(kind, read.group_id, read.member_id if kind in _OF_MEMBERS else "")


def read_value(key: ConsumerGroupKey, value: bytes | None) -> ConsumerGroupRecord:
    """Raises `ProtocolError` for a value that is none, or of a version that is not known."""
    if value is None:
        return Tombstone(key.kind, key.member_id)
    return _READ[key.kind](key, value)


def encoded(group_id: str, record: ConsumerGroupRecord) -> tuple[bytes, bytes | None]:
    """Key and value."""
    if isinstance(record, Tombstone):
        return _key(record.kind, group_id, record.member_id), None
    kind, member_id, value = _message(record)
    return _key(kind, group_id, member_id), encode_prefixed(value, _VALUE_VERSION)


def _key(kind: RecordKind, group_id: str, member_id: str) -> bytes:
    names = {"member_id": member_id} if kind in _OF_MEMBERS else {}
    return encode_prefixed(_KEYS[kind](group_id=group_id, **names), kind)


def _message(record: ConsumerGroupRecord) -> tuple[RecordKind, str, Any]:
    if isinstance(record, Target):
        partitions = _listed(record.partitions, _TargetPartitions)
        return (
            RecordKind.TARGET,
            record.member_id,
            ConsumerGroupTargetAssignmentMemberValue(topic_partitions=partitions),
        )
    if isinstance(record, Current):
        return RecordKind.CURRENT, record.member.member_id, _current_value(record.member)
    if isinstance(record, MemberSaid):
        return RecordKind.MEMBER, record.member.member_id, _member_value(record.member)
    if isinstance(record, GroupEpoch):
        return RecordKind.GROUP, "", ConsumerGroupMetadataValue(epoch=record.epoch)
    if isinstance(record, TargetEpoch):
        return RecordKind.TARGET_EPOCH, "", ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=record.epoch)
    if isinstance(record, SubscribedTopics):
        return RecordKind.TOPICS, "", _topics_value(record.topics.values())
    raise TypeError(f"{record!r} is no record with a value")


def _listed(partitions: Partitions, entry: Callable[..., Any]) -> list[Any]:
    return [entry(topic_id=topic_id, partitions=sorted(numbers)) for topic_id, numbers in sorted(partitions.items())]


def partitions_of(listed: Iterable[Any]) -> Partitions:
    """Of entries with a `topic_id` and `partitions`, of which several may be of one topic."""
    partitions: dict[Uuid, set[int]] = {}
    add_listed(partitions, listed)
    return {topic_id: frozenset(numbers) for topic_id, numbers in partitions.items()}


def add_listed(partitions: dict[Uuid, set[int]], listed: Iterable[Any]) -> None:
    """Adds such entries. No topic is without a partition."""
    for entry in listed:
        if entry.partitions:
            topic_id = Uuid(entry.topic_id)
            known = partitions.get(topic_id)
            if known is None:
                partitions[topic_id] = set(entry.partitions)
            else:
                known.update(entry.partitions)


def _current_value(member: ConsumerMember) -> ConsumerGroupCurrentMemberAssignmentValue:
    return ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=_listed(member.assigned, _CurrentPartitions),
        partitions_pending_revocation=_listed(member.revoking, _CurrentPartitions),
    )


def _member_value(member: ConsumerMember) -> ConsumerGroupMemberMetadataValue:
    return ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed),
        subscribed_topic_regex=member.subscribed_regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=None if member.classic is None else _classic_value(member.classic),
    )


def _classic_value(said: ClassicSaid) -> ConsumerGroupMemberMetadataValue.ClassicMemberMetadata:
    return _ClassicMetadata(
        session_timeout_ms=said.session_timeout_ms,
        supported_protocols=[_ClassicProtocol(name=name, metadata=metadata) for name, metadata in said.protocols],
    )


def _topics_value(topics: Iterable[TopicFacts]) -> ConsumerGroupPartitionMetadataValue:
    return ConsumerGroupPartitionMetadataValue(
        topics=[
            ConsumerGroupPartitionMetadataValue.TopicMetadata(
                topic_id=topic.topic_id,
                topic_name=topic.name,
                num_partitions=topic.partition_count,
                partition_metadata=[
                    ConsumerGroupPartitionMetadataValue.PartitionMetadata(partition=number, racks=list(racks))
                    for number, racks in topic.racks
                ],
            )
            for topic in topics
        ]
    )


def _read_group(_key: ConsumerGroupKey, value: bytes) -> ConsumerGroupRecord:
    return GroupEpoch(decode_prefixed(ConsumerGroupMetadataValue, value)[1].epoch)


def _read_topics(_key: ConsumerGroupKey, value: bytes) -> ConsumerGroupRecord:
    read = decode_prefixed(ConsumerGroupPartitionMetadataValue, value)[1]
    return SubscribedTopics(
        {
            topic.topic_name: TopicFacts(
                Uuid(topic.topic_id),
                topic.topic_name,
                topic.num_partitions,
                tuple((entry.partition, tuple(sorted(entry.racks))) for entry in topic.partition_metadata),
            )
            for topic in read.topics
        }
    )


def _read_member(key: ConsumerGroupKey, value: bytes) -> ConsumerGroupRecord:
    read = decode_prefixed(ConsumerGroupMemberMetadataValue, value)[1]
    classic = read.classic_member_metadata
    return MemberSaid(
        ConsumerMember(
            member_id=key.member_id,
            instance_id=read.instance_id,
            rack_id=read.rack_id,
            client_id=read.client_id,
            client_host=read.client_host,
            subscribed=frozenset(read.subscribed_topic_names),
            subscribed_regex=read.subscribed_topic_regex,
            rebalance_timeout_ms=read.rebalance_timeout_ms,
            assignor=read.server_assignor,
            classic=None if classic is None else _read_classic(classic),
        )
    )


def _read_classic(classic: ConsumerGroupMemberMetadataValue.ClassicMemberMetadata) -> ClassicSaid:
    protocols = tuple((protocol.name, bytes(protocol.metadata)) for protocol in classic.supported_protocols)
    return ClassicSaid(classic.session_timeout_ms, protocols)


def _read_target_epoch(_key: ConsumerGroupKey, value: bytes) -> ConsumerGroupRecord:
    return TargetEpoch(decode_prefixed(ConsumerGroupTargetAssignmentMetadataValue, value)[1].assignment_epoch)


def _read_target(key: ConsumerGroupKey, value: bytes) -> ConsumerGroupRecord:
    read = decode_prefixed(ConsumerGroupTargetAssignmentMemberValue, value)[1]
    return Target(key.member_id, partitions_of(read.topic_partitions))


def _read_current(key: ConsumerGroupKey, value: bytes) -> ConsumerGroupRecord:
    read = decode_prefixed(ConsumerGroupCurrentMemberAssignmentValue, value)[1]
    return Current(
        ConsumerMember(
            member_id=key.member_id,
            epoch=read.member_epoch,
            previous_epoch=read.previous_member_epoch,
            state=MemberState.of(read.state),
            assigned=partitions_of(read.assigned_partitions),
            revoking=partitions_of(read.partitions_pending_revocation),
        )
    )


_READ: Final[Mapping[RecordKind, Callable[[ConsumerGroupKey, bytes], ConsumerGroupRecord]]] = {
    RecordKind.GROUP: _read_group,
    RecordKind.TOPICS: _read_topics,
    RecordKind.MEMBER: _read_member,
    RecordKind.TARGET_EPOCH: _read_target_epoch,
    RecordKind.TARGET: _read_target,
    RecordKind.CURRENT: _read_current,
}
