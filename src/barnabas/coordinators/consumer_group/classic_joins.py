"""What JoinGroup, SyncGroup, Heartbeat and LeaveGroup decide in a consumer group, some members of which use the classic
protocol: records, or an error. Nothing is changed here.

To such a member its epoch is the generation. It is told at once what it may own, joins again when it is to give
something up or may have more, and is answered as Apache Kafka's GroupMetadataManager does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from barnabas.coordinators.consumer_group.classic_protocol import METADATA_BYTES_MAX, Subscription, read_subscription
from barnabas.coordinators.consumer_group.group import ConsumerGroup
from barnabas.coordinators.consumer_group.heartbeats import (
    Facts,
    Records,
    Registration,
    check_room,
    known_member,
    registered,
    released,
    remove_all,
    replaced,
)
from barnabas.coordinators.consumer_group.member import ClassicSaid, ConsumerMember
from barnabas.coordinators.consumer_group.states import MemberState
from barnabas.coordinators.consumer_group.topics import GroupTopics
from barnabas.coordinators.group.joining import Join
from barnabas.coordinators.group.member import names
from barnabas.coordinators.group.subscriptions import CONSUMER_PROTOCOL_TYPE
from barnabas.coordinators.group.syncing import Sync
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import LeaveGroupRequest, LeaveGroupResponse
from barnabas.wire.primitives import ProtocolError


class Left(NamedTuple):
    """The outcome for each member that leaves, who of them is gone, and the records that make it so."""

    outcomes: list[LeaveGroupResponse.MemberResponse]
    gone: list[ConsumerMember]
    records: Records


def subscription_of(group: ConsumerGroup, request: Join, size_max: int, topics: GroupTopics) -> Subscription:
    """Whether the group takes such a member, and what it subscribes to. Raises KafkaError GROUP_MAX_SIZE_REACHED,
    INCONSISTENT_GROUP_PROTOCOL.
    """
    check_room(group, request.member_id or request.new_member_id, size_max)
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not group.supports_classic(names(request.protocols)):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    size = sum(len(name) + len(metadata) for name, metadata in request.protocols)
    if size > METADATA_BYTES_MAX:
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"{size} bytes in all protocols; {METADATA_BYTES_MAX} can be said"
        )
    try:
        return read_subscription(request.protocols[0][1], topics)
    except ProtocolError as error:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from error


def register_classic(
    group: ConsumerGroup, request: Join, subscription: Subscription, facts: Facts, *, is_stale: bool
) -> Registration:
    """Takes over what the member says. Raises KafkaError UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, INVALID_REQUEST."""
    records: Records = []
    present = _present(group, request, subscription, records)
    said = dataclasses.replace(
        present,
        instance_id=present.instance_id if request.group_instance_id is None else request.group_instance_id,
        rack_id=subscription.rack_id or present.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        subscribed=subscription.topics,
        client_id=request.client.client_id,
        client_host=request.client.host,
        classic=ClassicSaid(request.session_timeout_ms, request.protocols),
    )
    return registered(group, present, said, records, facts, is_stale=is_stale)


def _present(group: ConsumerGroup, request: Join, subscription: Subscription, records: Records) -> ConsumerMember:
    """The member so far. One that nobody has heard of is a new one, whatever its id: it was given one, perhaps. One
    that owns something is none: it was fenced, others may own that by now, and it is not to commit in their place.
    """
    member_id = request.member_id or request.new_member_id
    if request.group_instance_id is None:
        if subscription.owned:
            return known_member(group, member_id)
        return group.members.get(member_id) or ConsumerMember(member_id)
    present = group.static_member(request.group_instance_id)
    if request.member_id:
        return released(present, request.group_instance_id, member_id)
    return ConsumerMember(member_id) if present is None else replaced(group, present, member_id, records)


def classic_member(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> ConsumerMember:
    """Raises KafkaError UNKNOWN_MEMBER_ID, also for a member that does not use the classic protocol,
    FENCED_INSTANCE_ID, ILLEGAL_GENERATION.
    """
    if instance_id is None:
        member = known_member(group, member_id)
    else:
        member = released(group.static_member(instance_id), instance_id, member_id)
    if member.classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    if member.epoch != generation:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    return member


def check_protocol(member: ConsumerMember, request: Sync) -> None:
    """Raises KafkaError INCONSISTENT_GROUP_PROTOCOL."""
    name = protocol_of(member)
    if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol not in (None, name):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def protocol_of(member: ConsumerMember) -> str:
    """The protocol of the group, to that member: the one that it likes best."""
    return "" if member.classic is None else member.classic.protocols[0][0]


def is_behind(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether the group has gone on since the member joined, which has nothing left to give up."""
    return member.epoch < group.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS


def has_to_join(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether the member is to join again: to be of the group's epoch, since it was to give something up, or since all
    that it is to own is free.
    """
    if member.epoch < group.epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    return member.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(member)


def leave_classic(group: ConsumerGroup, leaving: Sequence[LeaveGroupRequest.MemberIdentity], facts: Facts) -> Left:
    """Members that use the classic protocol leave, or are removed by name of their static member."""
    gone: dict[str, ConsumerMember] = {}
    outcomes = []
    for identity in leaving:
        outcome = LeaveGroupResponse.MemberResponse(
            member_id=identity.member_id, group_instance_id=identity.group_instance_id
        )
        try:
            member = _leaving(group, identity)
            gone[member.member_id] = member
            outcome.member_id = member.member_id
        except KafkaError as error:
            outcome.error_code = error.code
        outcomes.append(outcome)
    return Left(outcomes, list(gone.values()), remove_all(group, list(gone.values()), facts) if gone else [])


def _leaving(group: ConsumerGroup, identity: LeaveGroupRequest.MemberIdentity) -> ConsumerMember:
    if identity.group_instance_id is None:
        member = known_member(group, identity.member_id)
    else:
        present = group.static_member(identity.group_instance_id)
        expected = identity.member_id or ("" if present is None else present.member_id)
        member = released(present, identity.group_instance_id, expected)
    if member.classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    return member
