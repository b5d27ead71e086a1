"""What members that use the classic protocol say and are told inside of their JoinGroup and SyncGroup: a consumer's
subscription, and its assignment.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from barnabas.coordinators.consumer_group.heartbeats import SUBSCRIBED_TOPICS_MAX
from barnabas.coordinators.consumer_group.member import ConsumerMember, Partitions
from barnabas.coordinators.consumer_group.topics import GroupTopics
from barnabas.kernel.ids import Uuid
from barnabas.wire.codec import decode_prefixed, encode_prefixed
from barnabas.wire.messages import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from barnabas.wire.primitives import ProtocolError

METADATA_BYTES_MAX: Final = 1 << 20
"""Of a subscription or an assignment, and of all that one member says: it is read and written in one turn, and has to
fit into a record anyway.
"""
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_LATEST: Final = ConsumerProtocolSubscription.SCHEMA.versions.high


class Subscription(NamedTuple):
    """What a consumer says when it joins."""

    topics: frozenset[str]
    owned: Partitions
    """What it says that it owns, of topics that are known here; nothing for one that gives up all before it joins."""
    generation: int
    """In which it owned them; -1 where it does not say."""
    rack_id: str | None
    named: int
    """How many topics and partitions were read, known or not."""


class Assigned(NamedTuple):
    """What a consumer was assigned, of topics that are known here."""

    partitions: Partitions
    named: int
    """How many topics and partitions were read, known or not."""


def read_subscription(metadata: bytes, topics: GroupTopics) -> Subscription:
    """Raises `ProtocolError` for what is none, or is larger than one turn takes."""
    _check_size(metadata, has_owned=True)
    read = decode_prefixed(ConsumerProtocolSubscription, metadata)[1]
    owned = _by_id(read.owned_partitions, topics)
    named = len(read.topics) + _named_in(read.owned_partitions)
    return Subscription(frozenset(read.topics), owned, read.generation_id, read.rack_id or None, named)


def read_assignment(assignment: bytes, topics: GroupTopics) -> Assigned:
    """A member that has not been assigned anything has no bytes. Raises `ProtocolError` as `read_subscription` does."""
    if not assignment:
        return Assigned({}, 0)
    _check_size(assignment, has_owned=False)
    listed = decode_prefixed(ConsumerProtocolAssignment, assignment)[1].assigned_partitions
    return Assigned(_by_id(listed, topics), _named_in(listed))


def written_assignment(partitions: Partitions, metadata: bytes, topics: GroupTopics) -> bytes:
    """The assignment in the version of the subscription; topics that are there no more are left out."""
    named = ((topics.name(topic_id), numbers) for topic_id, numbers in sorted(partitions.items()))
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignment.TopicPartition(topic=name, partitions=sorted(numbers))
            for name, numbers in named
            if name is not None
        ]
    )
    version = _SHORT.unpack_from(metadata)[0] if len(metadata) >= _SHORT.size else 0
    return encode_prefixed(assignment, min(max(version, 0), _LATEST))


def all_of(member: ConsumerMember) -> Partitions:
    """What the member owns, and what it is yet to give up."""
    if not member.revoking:
        return member.assigned
    return {
        topic_id: member.assigned.get(topic_id, frozenset()) | member.revoking.get(topic_id, frozenset())
        for topic_id in member.assigned.keys() | member.revoking.keys()
    }


def _by_id(listed: Iterable[Any], topics: GroupTopics) -> Partitions:
    partitions: dict[Uuid, frozenset[int]] = {}
    for entry in listed:
        facts = topics.facts(entry.topic)
        if facts is not None and entry.partitions:
            known = partitions.get(facts.topic_id, frozenset())
            partitions[facts.topic_id] = known.union(entry.partitions)
    return partitions


def _named_in(listed: Iterable[Any]) -> int:
    return sum(1 + len(entry.partitions) for entry in listed)


def _check_size(data: bytes, *, has_owned: bool) -> None:
    """Looks at the counts of topics ahead of reading them. Raises `ProtocolError`."""
    if len(data) > METADATA_BYTES_MAX:
        raise ProtocolError(f"{len(data)} bytes; a consumer can say {METADATA_BYTES_MAX}")
    try:
        (version,), (count,) = _SHORT.unpack_from(data), _INT.unpack_from(data, _SHORT.size)
        _check_count(count)
        if version < 1 or not has_owned:
            return
        position = _SHORT.size + _INT.size
        for _ in range(count):
            position += _SHORT.size + max(0, _SHORT.unpack_from(data, position)[0])
        position += _INT.size + max(0, _INT.unpack_from(data, position)[0])
        _check_count(_INT.unpack_from(data, position)[0])
    except struct.error as error:
        raise ProtocolError("the bytes end within a count") from error


def _check_count(count: int) -> None:
    if count > SUBSCRIBED_TOPICS_MAX:
        raise ProtocolError(f"{count} topics; a consumer can name {SUBSCRIBED_TOPICS_MAX}")
