"""What a heartbeat decides: records about the member, and the answer. Nothing is changed here.

A heartbeat has two parts, with the target assignment between them: `register` takes over what the member says of
itself and bumps the group's epoch where that changes what is to be assigned; `reconcile` brings the member a step
nearer to its target. A member that leaves, or is fenced, has one: `remove`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from barnabas.coordinators.consumer_group.group import ConsumerGroup
from barnabas.coordinators.consumer_group.member import (
    JOINING_EPOCH,
    LEFT_EPOCH,
    LEFT_FOR_A_WHILE_EPOCH,
    NO_PARTITIONS,
    NO_TIMEOUT,
    ConsumerMember,
    Partitions,
    includes,
)
from barnabas.coordinators.consumer_group.reconciliation import reconciled
from barnabas.coordinators.consumer_group.records import (
    ConsumerGroupRecord,
    Current,
    GroupEpoch,
    MemberSaid,
    RecordKind,
    SubscribedTopics,
    Target,
    Tombstone,
)
from barnabas.coordinators.consumer_group.topics import TopicFacts
from barnabas.wire.errors import ErrorCode, KafkaError

SUBSCRIBED_TOPICS_MAX: Final = 5_000
"""Of a member, and of all members of a group: it is one record, which is written and read in one turn."""
OWNED_PARTITIONS_MAX: Final = 100_000
"""Bounds of one heartbeat, which is handled in one turn."""
RACKS_RECORDED_MAX: Final = 10_000
"""Partitions whose racks a group records, for the same reason; where its topics have more it records none, which no
assignor looks at.
"""

Facts = Callable[[str], TopicFacts | None]
Records = list[ConsumerGroupRecord]


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """A ConsumerGroupHeartbeat request; None for what the member has not changed."""

    group_id: str
    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = NO_TIMEOUT
    client_id: str = ""
    client_host: str = ""
    subscribed: frozenset[str] | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    """What the member says that it owns."""

    @property
    def joins(self) -> bool:
        return self.epoch == JOINING_EPOCH

    @property
    def leaves(self) -> bool:
        return self.epoch in (LEFT_EPOCH, LEFT_FOR_A_WHILE_EPOCH)

    @property
    def is_full(self) -> bool:
        """Whether the member says everything, and is to be told everything."""
        return self.joins or (
            self.rebalance_timeout_ms != NO_TIMEOUT and self.subscribed is not None and self.owned is not None
        )


class Registration(NamedTuple):
    """The member as it is from now on, and the records that make it so."""

    member: ConsumerMember
    records: Records
    is_bumped: bool
    """Whether the group's epoch goes up."""


class TopicPartitions(Protocol):
    """Partitions of one topic, as requests list them."""

    partitions: list[int]


def check_size(subscribed: Sized, owned: Sequence[TopicPartitions]) -> None:
    """Raises KafkaError INVALID_REQUEST for a request that names more than one turn takes."""
    if len(subscribed) > SUBSCRIBED_TOPICS_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{len(subscribed)} topics; a member can subscribe to {SUBSCRIBED_TOPICS_MAX}.",
        )
    if len(owned) > OWNED_PARTITIONS_MAX or sum(len(entry.partitions) for entry in owned) > OWNED_PARTITIONS_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"A member can say that it owns {OWNED_PARTITIONS_MAX} partitions at most."
        )


def check_request(request: ConsumerHeartbeat, assignors: Collection[str]) -> None:
    """Raises KafkaError INVALID_REQUEST or UNSUPPORTED_ASSIGNOR."""

    def refuse(reason: str) -> None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, reason)

    for name, text in (
        ("GroupId", request.group_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    ):
        if text is not None and not text.strip():
            refuse(f"{name} can't be empty.")
    if request.epoch > JOINING_EPOCH or request.leaves:
        if not request.member_id.strip():
            refuse("MemberId can't be empty.")
        if request.epoch == LEFT_FOR_A_WHILE_EPOCH and request.instance_id is None:
            refuse("InstanceId can't be null.")
    elif request.joins:
        if request.rebalance_timeout_ms == NO_TIMEOUT:
            refuse("RebalanceTimeoutMs must be provided in first request.")
        if request.owned is None or request.owned:
            refuse("TopicPartitions must be empty when (re-)joining.")
        if not request.subscribed:
            refuse("SubscribedTopicNames must be set in first request.")
    else:
        refuse("MemberEpoch is invalid.")
    if request.assignor is not None and request.assignor not in assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def register(
    group: ConsumerGroup,
    request: ConsumerHeartbeat,
    new_member_id: str,
    facts: Facts,
    *,
    size_max: int,
    is_stale: bool,
) -> Registration:
    """Takes over what the member says. `new_member_id` is for one that has none; `is_stale` says that the topics of the
    group are to be looked at again. Raises KafkaError GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH,
    UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID.
    """
    member_id = request.member_id or new_member_id
    check_room(group, member_id, size_max)
    records: Records = []
    if request.instance_id is None:
        present = _dynamic_member(group, request, member_id)
    else:
        present = _static_member(group, request, request.instance_id, member_id, records)
    return registered(group, present, _as_said(present, request), records, facts, is_stale=is_stale)


def check_room(group: ConsumerGroup, member_id: str, size_max: int) -> None:
    """Raises KafkaError GROUP_MAX_SIZE_REACHED for one more member than the group may have."""
    if len(group.members) >= size_max and member_id not in group.members:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {size_max} members.",
        )


def registered(
    group: ConsumerGroup,
    present: ConsumerMember,
    said: ConsumerMember,
    records: Records,
    facts: Facts,
    *,
    is_stale: bool,
) -> Registration:
    """The member says that from now on; `records` are those that have made it `present`. Raises KafkaError
    INVALID_REQUEST for more topics than a group can have.
    """
    # A member that was taken over from another id is recorded under its own, changed or not.
    subscription_changed = said.subscribed != present.subscribed
    if said != present:
        records.append(MemberSaid(said))
    bumps = subscription_changed
    if bumps or is_stale:
        before = group.static_member(said.instance_id) or group.members.get(said.member_id)
        names = group.topics_with(before, said)
        if len(names) > SUBSCRIBED_TOPICS_MAX and subscription_changed:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{len(names)} topics; the members of a group can subscribe to {SUBSCRIBED_TOPICS_MAX} in all.",
            )
        topics = found_topics(names, facts)
        if topics != group.topics:
            bumps = True
            records.append(SubscribedTopics(topics))
    if bumps:
        records.append(GroupEpoch(group.epoch + 1))
    return Registration(said, records, bumps)


def changed_topics(group: ConsumerGroup, facts: Facts) -> Records:
    """What is to be recorded where the topics of the group are not as its epoch found them; nothing else changes."""
    topics = found_topics(group.subscribed_topics, facts)
    return [] if topics == group.topics else [SubscribedTopics(topics), GroupEpoch(group.epoch + 1)]


def _as_said(present: ConsumerMember, request: ConsumerHeartbeat) -> ConsumerMember:
    def newer(said: str | None, known: str | None) -> str | None:
        return known if said is None else said

    has_timeout = request.rebalance_timeout_ms != NO_TIMEOUT
    return dataclasses.replace(
        present,
        instance_id=newer(request.instance_id, present.instance_id),
        rack_id=newer(request.rack_id, present.rack_id),
        rebalance_timeout_ms=request.rebalance_timeout_ms if has_timeout else present.rebalance_timeout_ms,
        assignor=newer(request.assignor, present.assignor),
        subscribed=present.subscribed if request.subscribed is None else request.subscribed,
        client_id=request.client_id,
        client_host=request.client_host,
        classic=None,
    )


def found_topics(names: Collection[str], facts: Facts) -> Mapping[str, TopicFacts]:
    """Those of the topics that exist."""
    looked_up = ((name, facts(name)) for name in sorted(names))
    found = {name: topic for name, topic in looked_up if topic is not None}
    if sum(len(topic.racks) for topic in found.values()) > RACKS_RECORDED_MAX:
        return {name: dataclasses.replace(topic, racks=()) for name, topic in found.items()}
    return found


def _dynamic_member(group: ConsumerGroup, request: ConsumerHeartbeat, member_id: str) -> ConsumerMember:
    member = known_member(group, member_id) if not request.joins else group.members.get(member_id)
    if member is None:
        return ConsumerMember(member_id)
    check_epoch(member, request.epoch, request.owned)
    return member


def _static_member(
    group: ConsumerGroup, request: ConsumerHeartbeat, instance_id: str, member_id: str, records: Records
) -> ConsumerMember:
    present = group.static_member(instance_id)
    if not request.joins:
        present = released(present, instance_id, member_id)
        check_epoch(present, request.epoch, request.owned)
        return present
    if present is None:
        member = group.members.get(member_id)
        return ConsumerMember(member_id) if member is None else member
    if present.epoch != LEFT_FOR_A_WHILE_EPOCH:
        raise KafkaError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance id "
            f"is owned by {present.member_id} member.",
        )
    return replaced(group, present, member_id, records)


def replaced(group: ConsumerGroup, present: ConsumerMember, member_id: str, records: Records) -> ConsumerMember:
    """The static member under another id, with what it owned; adds the records that make it so."""
    replacing = dataclasses.replace(present, member_id=member_id, epoch=JOINING_EPOCH, previous_epoch=JOINING_EPOCH)
    records += _gone(present.member_id)
    records += (MemberSaid(replacing), Target(member_id, group.target(present.member_id)), Current(replacing))
    return replacing


def released(present: ConsumerMember | None, instance_id: str, member_id: str) -> ConsumerMember:
    """The static member, which is to have that id."""
    if present is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if present.member_id != member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {present.member_id}.",
        )
    return present


def known_member(group: ConsumerGroup, member_id: str) -> ConsumerMember:
    """Raises KafkaError UNKNOWN_MEMBER_ID."""
    member = group.members.get(member_id)
    if member is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.group_id}.")
    return member


def check_epoch(member: ConsumerMember, epoch: int, owned: Partitions | None) -> None:
    """Raises KafkaError FENCED_MEMBER_EPOCH. The epoch before is taken from a member that owns no more than it may: it
    has missed the answer with the present one.
    """
    if epoch == member.epoch:
        return
    is_greater = epoch > member.epoch
    missed_answer = epoch == member.previous_epoch and owned is not None and includes(member.assigned, owned)
    if is_greater or not missed_answer:
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a {'greater' if is_greater else 'smaller'} member epoch ({epoch}) than the "
            f"one known by the group coordinator ({member.epoch}). The member must abandon all its partitions and "
            "rejoin.",
        )


def reconcile(group: ConsumerGroup, member: ConsumerMember, owned: Partitions | None) -> ConsumerMember:
    """The member after its next step; the same where there is none. KafkaError FENCED_MEMBER_EPOCH."""
    target = group.target(member.member_id)
    return reconciled(member, group.assignment_epoch, target, group.is_owned, owned)


def leave(group: ConsumerGroup, request: ConsumerHeartbeat, facts: Facts) -> tuple[ConsumerMember, Records]:
    """The member that leaves, for good or for a while. Raises KafkaError UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
    if request.instance_id is None:
        member = known_member(group, request.member_id)
    else:
        present = group.static_member(request.instance_id)
        member = released(present, request.instance_id, request.member_id)
        if request.epoch == LEFT_FOR_A_WHILE_EPOCH:
            gone = dataclasses.replace(member, epoch=LEFT_FOR_A_WHILE_EPOCH, revoking=NO_PARTITIONS)
            return member, [Current(gone)]
    return member, remove(group, member, facts)


def remove(group: ConsumerGroup, member: ConsumerMember, facts: Facts) -> Records:
    """The member goes, and what it owned is free."""
    return remove_all(group, (member,), facts)


def remove_all(group: ConsumerGroup, leaving: Collection[ConsumerMember], facts: Facts) -> Records:
    """These members go, and what they owned is free."""
    records = [record for member in leaving for record in _gone(member.member_id)]
    topics = found_topics(group.topics_without(leaving), facts)
    if topics != group.topics:
        records.append(SubscribedTopics(topics))
    records.append(GroupEpoch(group.epoch + 1))
    return records


def _gone(member_id: str) -> Records:
    return [Tombstone(kind, member_id) for kind in (RecordKind.CURRENT, RecordKind.TARGET, RecordKind.MEMBER)]
