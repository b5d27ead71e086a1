"""A group that goes over from one protocol to the other while it has members (KIP-848): `upgraded` makes a consumer
group of a classic one, `downgraded` the record of a classic group of a consumer one.

Either way a member has afterwards what it may own at that moment, so that nothing of it is given to anybody else before
it has joined again. Apache Kafka has it have what it was to own, which others may not have given up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from barnabas.coordinators.consumer_group.classic_protocol import (
    Subscription,
    all_of,
    read_assignment,
    read_subscription,
    written_assignment,
)
from barnabas.coordinators.consumer_group.group import ConsumerGroup
from barnabas.coordinators.consumer_group.heartbeats import Records
from barnabas.coordinators.consumer_group.member import ClassicSaid, ConsumerMember, Partitions
from barnabas.coordinators.consumer_group.records import Current, GroupEpoch, MemberSaid, Target, TargetEpoch
from barnabas.coordinators.consumer_group.topics import GroupTopics
from barnabas.coordinators.group.group import Group
from barnabas.coordinators.group.member import Client, Member, Protocols
from barnabas.coordinators.group.members import Members
from barnabas.coordinators.group.subscriptions import CONSUMER_PROTOCOL_TYPE
from barnabas.kernel.ids import Uuid
from barnabas.wire.messages import GroupMetadataValue
from barnabas.wire.primitives import ProtocolError

CONVERTED_MEMBERS_MAX: Final = 400
"""Members of a group that goes over, which is one batch, made and replayed in one turn."""
CONVERTED_NAMES_MAX: Final = 16_000
"""Topics and partitions that they name and own, and protocols that they offer, all in all and each time: some 2 us
each, of the same turn. A member itself counts for `_NAMES_OF_A_MEMBER`.
"""
CONVERTED_BYTES_MAX: Final = 1 << 20
"""All that they have said and were assigned."""
_NAMES_OF_A_MEMBER: Final = 20


class ConversionError(Exception):
    """The group cannot go over; the message says why."""


class _Room:
    """What is left of what goes over at once. Raises ConversionError when that is not enough."""

    def __init__(self, members: int) -> None:
        if members > CONVERTED_MEMBERS_MAX:
            raise ConversionError(f"it has {members} members, and {CONVERTED_MEMBERS_MAX} can go over at once")
        self._names = CONVERTED_NAMES_MAX - members * _NAMES_OF_A_MEMBER
        self._bytes = CONVERTED_BYTES_MAX

    def take(self, names: int, size_bytes: int = 0) -> None:
        self._names -= names
        self._bytes -= size_bytes
        if self._names < 0 or self._bytes < 0:
            raise ConversionError("its members name and own more topics and partitions than can go over at once")


def upgraded(group: Group, topics: GroupTopics) -> tuple[ConsumerGroup, Records]:
    """The consumer group of what the members of a classic group have said last and may own, and its records. All of
    them are at the epoch that is the generation of the classic group. Raises ConversionError.
    """
    room = _Room(len(group.members))
    for member in group.members:
        room.take(len(member.protocols))
        room.take(0, _bytes_of(member.protocols) + len(member.assignment))
    try:
        subscriptions = {}
        for member in group.members:
            subscription = subscriptions[member.member_id] = _subscription(group, member, topics)
            room.take(subscription.named)
        owned = _owned(group, subscriptions, topics, room)
        members = [
            _consumer_member(group, member, subscriptions[member.member_id], owned[member.member_id])
            for member in group.members
        ]
    except ProtocolError as error:
        raise ConversionError(f"a member says something else than consumers do: {error}") from error
    records: Records = [
        *(MemberSaid(member) for member in members),
        GroupEpoch(group.generation),
        *(Target(member.member_id, member.assigned) for member in members),
        TargetEpoch(group.generation),
        *(Current(member) for member in members),
    ]
    core = ConsumerGroup(group.group_id)
    try:
        for record in records:
            core.replay(record)
    except ValueError as error:
        raise ConversionError(str(error)) from error
    return core, records


def _subscription(group: Group, member: Member, topics: GroupTopics) -> Subscription:
    first = member.protocols[0][1]  # where the group has not chosen a protocol yet, or the member has others now
    return read_subscription(dict(member.protocols).get(group.protocol or "", first), topics)


def _owned(
    group: Group, subscriptions: Mapping[str, Subscription], topics: GroupTopics, room: _Room
) -> dict[str, Partitions]:
    """What each member may own: its assignment, and what it owned when it joined last. A member that keeps partitions
    over a rebalance gives up after that what it was not assigned again, or has no assignment yet; nobody else has such
    a partition. Raises ConversionError for one that two members were assigned.
    """
    owned: dict[str, dict[Uuid, set[int]]] = {}
    taken: set[tuple[Uuid, int]] = set()
    for member in group.members:
        assigned = owned[member.member_id] = {}
        read = read_assignment(member.assignment, topics)
        room.take(read.named)
        for topic_id, numbers in read.partitions.items():
            each = {(topic_id, number) for number in numbers}
            if not taken.isdisjoint(each):
                raise ConversionError(f"{member.member_id} was assigned what another member was")
            taken |= each
            assigned[topic_id] = set(numbers)
    for member_id, subscription in sorted(subscriptions.items(), key=lambda item: -item[1].generation):
        for topic_id, numbers in subscription.owned.items():
            kept = {number for number in numbers if (topic_id, number) not in taken}
            if kept:
                taken.update((topic_id, number) for number in kept)
                owned[member_id].setdefault(topic_id, set()).update(kept)
    return {
        member_id: {topic_id: frozenset(numbers) for topic_id, numbers in partitions.items()}
        for member_id, partitions in owned.items()
    }


def _consumer_member(group: Group, member: Member, subscription: Subscription, owned: Partitions) -> ConsumerMember:
    return ConsumerMember(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client.client_id,
        client_host=member.client.host,
        subscribed=subscription.topics,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicSaid(member.session_timeout_ms, member.protocols),
        epoch=group.generation,
        previous_epoch=group.generation,
        assigned=owned,
    )


def downgraded(core: ConsumerGroup, leaving: ConsumerMember, topics: GroupTopics, time_ms: int) -> GroupMetadataValue:
    """The record of the classic group of all members but one, who all use the classic protocol. Nobody leads it: by
    that a coordinator that loads it knows that its members have to join again. Its generation is one that members know:
    in that of a member that came and went nobody could commit what he has done. Raises ConversionError.
    """
    staying = [member for member in core.members.values() if member is not leaving]
    room = _Room(len(staying))
    members = Members()
    for member in staying:
        after = _member(member)
        room.take(len(after.protocols) + len(member.subscribed))
        room.take(0, _bytes_of(after.protocols))
        room.take(sum(map(len, (*member.assigned.values(), *member.revoking.values()))))
        members.add(after)
    try:
        protocol = members.choose_protocol()
    except ValueError as error:
        raise ConversionError(f"no protocol is offered by all members: {error}") from error
    recorded = []
    for before, after in zip(staying, members, strict=True):
        assignment = written_assignment(all_of(before), after.metadata(protocol), topics)
        recorded.append(after.recorded(protocol, assignment))
    return GroupMetadataValue(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        generation=max(member.epoch for member in staying) or core.epoch,
        protocol=protocol,
        leader=None,
        current_state_timestamp=time_ms,
        members=recorded,
    )


def _member(member: ConsumerMember) -> Member:
    if member.classic is None:
        raise ConversionError(f"{member.member_id} uses the consumer protocol")
    return Member(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client=Client(member.client_id, member.client_host),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
        protocols=member.classic.protocols,
    )


def _bytes_of(protocols: Protocols) -> int:
    return sum(len(name) + len(metadata) for name, metadata in protocols)
