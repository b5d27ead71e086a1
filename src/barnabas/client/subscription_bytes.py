"""The consumer protocol of classic groups: what members say of themselves, and what they are given, as bytes.

The formats are those of Apache Kafka's consumers, so that members of both kinds share a group.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from barnabas.wire import codec, messages
from barnabas.wire.primitives import Buffer
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.assignors import MemberSubscription

PROTOCOL_TYPE: Final = "consumer"
_VERSION: Final = 3


def write_subscription(subscription: MemberSubscription, rack_id: str | None = None) -> bytes:
    """The metadata of JoinGroup."""
    owned = [
        messages.ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=numbers)
        for topic, numbers in by_topic(subscription.owned).items()
    ]
    message = messages.ConsumerProtocolSubscription(
        topics=sorted(subscription.topics),
        owned_partitions=owned,
        generation_id=subscription.generation,
        rack_id=rack_id,
    )
    return codec.encode_prefixed(message, _VERSION)


def read_subscription(metadata: Buffer, group_instance_id: str | None) -> MemberSubscription:
    """What a member says. Raises ProtocolError for bytes that are no subscription."""
    from barnabas.client.assignors import MemberSubscription

    _, message = codec.decode_prefixed(messages.ConsumerProtocolSubscription, metadata)
    owned = tuple(
        TopicPartition(topic.topic, number) for topic in message.owned_partitions for number in topic.partitions
    )
    return MemberSubscription(tuple(message.topics), group_instance_id, owned, message.generation_id)


def write_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """The assignment of SyncGroup."""
    assigned = [
        messages.ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=numbers)
        for topic, numbers in by_topic(partitions).items()
    ]
    return codec.encode_prefixed(messages.ConsumerProtocolAssignment(assigned_partitions=assigned), _VERSION)


def read_assignment(assignment: Buffer) -> tuple[TopicPartition, ...]:
    """What a member is given; nothing where there are no bytes. Raises ProtocolError for what is no assignment."""
    if not len(assignment):
        return ()
    _, message = codec.decode_prefixed(messages.ConsumerProtocolAssignment, assignment)
    return tuple(
        TopicPartition(topic.topic, number) for topic in message.assigned_partitions for number in topic.partitions
    )


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Numbers by topic, both in order."""
    found: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        found.setdefault(partition.topic, []).append(partition.partition)
    return found
