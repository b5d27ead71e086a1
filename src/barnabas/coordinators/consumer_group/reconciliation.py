"""How a member comes from what it owns to what it is to own: it gives up first, and is given what others gave up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from barnabas.coordinators.consumer_group.member import NO_PARTITIONS, ConsumerMember, Partitions
from barnabas.coordinators.consumer_group.states import MEMBER, MemberEvent, MemberState
from barnabas.kernel.ids import Uuid
from barnabas.wire.errors import ErrorCode, KafkaError

IsOwned = Callable[[Uuid, int], bool]
"""Whether any member owns the partition, or has not given it up."""

_NONE: frozenset[int] = frozenset()


def reconciled(
    member: ConsumerMember,
    target_epoch: int,
    target: Partitions,
    is_owned: IsOwned,
    reported: Partitions | None,
) -> ConsumerMember:
    """The member after its next step towards the target; the same where there is none.

    `reported` are the partitions that it says it owns, None where it does not say. Raises KafkaError
    FENCED_MEMBER_EPOCH for a member in a state that is not known here and that owns something.
    """
    if member.state is MemberState.STABLE and member.epoch == target_epoch:
        return member
    epoch = member.epoch
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if _still_owns(reported, member.revoking):
            return member
        epoch += 1
    elif member.state is MemberState.UNKNOWN:
        if reported is None or reported:
            raise KafkaError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The consumer group member is in a unknown state. The member must abandon all its partitions and "
                "rejoin.",
            )
        epoch = target_epoch
    return _next(member, epoch, target_epoch, target, is_owned, reported)


def _next(
    member: ConsumerMember,
    epoch: int,
    target_epoch: int,
    target: Partitions,
    is_owned: IsOwned,
    reported: Partitions | None,
) -> ConsumerMember:
    assigned: dict[Uuid, frozenset[int]] = {}
    revoking: dict[Uuid, frozenset[int]] = {}
    pending: dict[Uuid, frozenset[int]] = {}
    must_wait = False
    for topic_id in target.keys() | member.assigned.keys():
        wanted = target.get(topic_id, _NONE)
        owned = member.assigned.get(topic_id, _NONE)
        kept = owned & wanted
        missing = wanted - kept
        free = frozenset(number for number in missing if not is_owned(topic_id, number))
        must_wait = must_wait or len(free) < len(missing)
        for found, numbers in ((assigned, kept), (revoking, owned - kept), (pending, free)):
            if numbers:
                found[topic_id] = numbers
    if revoking and _still_owns(reported, revoking):
        return dataclasses.replace(
            member,
            state=MEMBER.advance(member.member_id, member.state, MemberEvent.MUST_REVOKE),
            epoch=epoch,
            previous_epoch=member.epoch,
            assigned=assigned,
            revoking=revoking,
        )
    for topic_id, numbers in pending.items():
        assigned[topic_id] = assigned.get(topic_id, _NONE) | numbers
    event = MemberEvent.MUST_WAIT if must_wait else MemberEvent.RECONCILED
    return dataclasses.replace(
        member,
        state=MEMBER.advance(member.member_id, member.state, event),
        epoch=target_epoch,
        previous_epoch=member.epoch,
        assigned=assigned,
        revoking=NO_PARTITIONS,
    )


def _still_owns(reported: Partitions | None, some: Partitions) -> bool:
    """Whether the member says that it owns any of these, or does not say."""
    if reported is None:
        return True
    return any(not numbers.isdisjoint(some.get(topic_id, _NONE)) for topic_id, numbers in reported.items())
