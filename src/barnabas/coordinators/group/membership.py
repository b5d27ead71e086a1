"""Whether a request comes from a member, and the requests and time-outs that ask little more: heartbeats, leaving,
commits, sessions that end.

Functions over a group; each leaves its effects there.
"""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.coordinators.group.effects import Now, TimerKind
from barnabas.coordinators.group.group import Group
from barnabas.coordinators.group.member import Member
from barnabas.coordinators.group.rebalance import remove_and_rebalance, remove_pending
from barnabas.coordinators.group.responses import join_error, sync_error
from barnabas.coordinators.group.states import GroupState
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import LeaveGroupRequest, LeaveGroupResponse

NO_REASON = "not provided"
_MS_PER_SECOND = 1000


def check_member(group: Group, member_id: str, group_instance_id: str | None) -> ErrorCode:
    """NONE for a member; FENCED_INSTANCE_ID where another member id has taken over its static name (KIP-345)."""
    if group_instance_id is not None:
        present = group.members.static_member_id(group_instance_id)
        if present is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if present != member_id:
            group.logger.info(
                "Member %s of group %s is fenced: %s is the static member %s now",
                member_id,
                group.group_id,
                present,
                group_instance_id,
            )
            return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


def heartbeat(group: Group, now: Now, *, generation: int, member_id: str, group_instance_id: str | None) -> ErrorCode:
    """A sign of life; REBALANCE_IN_PROGRESS asks the member to join again."""
    if group_instance_id is not None or member_id not in group.members:
        error = check_member(group, member_id, group_instance_id)
        if error is not ErrorCode.NONE:
            return error
    if generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    member = group.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    group.expect_member(member, now)
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is GroupState.PREPARING_REBALANCE else ErrorCode.NONE


def accept_commit(
    group: Group,
    now: Now,
    *,
    generation: int,
    member_id: str,
    group_instance_id: str | None,
    is_transactional: bool = False,
) -> ErrorCode:
    """Whether offsets may be committed: by a member of this generation, or by anybody while there are no members.

    A commit is a sign of life. During a rebalance the members may still commit what they did, until the next
    generation has begun.
    """
    if generation < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if generation >= 0 or member_id or group_instance_id is not None:
        error = check_member(group, member_id, group_instance_id)
        if error is not ErrorCode.NONE:
            return error
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
    elif not is_transactional and group.state is not GroupState.EMPTY:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if is_transactional or group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if group.state is GroupState.COMPLETING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    member = group.members.get(member_id)
    if member is not None:
        group.expect_member(member, now)
    return ErrorCode.NONE


def leave(
    group: Group, now: Now, leaving: Sequence[LeaveGroupRequest.MemberIdentity]
) -> list[LeaveGroupResponse.MemberResponse]:
    """Members leave, or are removed by name of their static member (member id empty); the outcome of each, in order."""
    return [
        LeaveGroupResponse.MemberResponse(
            member_id=identity.member_id,
            group_instance_id=identity.group_instance_id,
            error_code=_leave_one(group, now, identity),
        )
        for identity in leaving
    ]


def _leave_one(group: Group, now: Now, identity: LeaveGroupRequest.MemberIdentity) -> ErrorCode:
    member_id, instance_id = identity.member_id, identity.group_instance_id
    if not member_id:
        present = None if instance_id is None else group.members.static_member_id(instance_id)
        if present is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = present
    elif member_id in group.members.pending:
        group.stop_timer(TimerKind.PENDING, member_id)
        remove_pending(group, now, member_id)
        group.logger.info("Pending member %s has left group %s", member_id, group.group_id)
        return ErrorCode.NONE
    else:
        error = check_member(group, member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
    member = group.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    reason = identity.reason or NO_REASON
    group.logger.info("Member %s has left group %s; client reason: %s", member_id, group.group_id, reason)
    remove_and_rebalance(group, now, member, f"Removing member {member_id} on LeaveGroup; client reason: {reason}")
    return ErrorCode.NONE


def session_timer_expired(group: Group, now: Now, member_id: str) -> None:
    """A member's timer rang: it has failed, or has been heard of meanwhile, or waits for us rather than we for it."""
    member = group.members.get(member_id)
    if member is None or member.timer_deadline is None:
        return
    member.timer_deadline = None
    if member.deadline is None:
        return
    remaining_ms = (member.deadline - now.seconds) * _MS_PER_SECOND
    if remaining_ms > 0:
        member.timer_deadline = member.deadline
        group.start_timer(TimerKind.SESSION, remaining_ms, member_id)
        return
    member.deadline = None
    if _waits_for_us(member):
        return
    group.logger.info("Member %s in group %s has failed, removing it from the group", member_id, group.group_id)
    remove_and_rebalance(group, now, member, f"removing member {member_id} on heartbeat expiration")


def _waits_for_us(member: Member) -> bool:
    """A member with a parked request sends no heartbeats; only one that never had an answer may be gone unnoticed."""
    return not member.is_new and (member.is_awaiting_join or member.is_awaiting_sync)


def pending_timer_expired(group: Group, now: Now, member_id: str) -> None:
    """A client did not come back with its member id."""
    if member_id in group.members.pending:
        group.logger.info(
            "Pending member %s in group %s has been removed after session timeout expiration",
            member_id,
            group.group_id,
        )
        remove_pending(group, now, member_id)


def expect_loaded_members(group: Group, now: Now) -> None:
    """The members of a group that was loaded are to be heard of within their sessions; those that came meanwhile, or
    were heard of, have times of their own.
    """
    for member in group.members:
        if member.deadline is None:
            group.expect_member(member, now)


def unload(group: Group, now: Now, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
    """Another broker coordinates the group from now on, or it is of another kind: everything that is parked is told."""
    for member in group.members:
        group.respond(group.members.take_join(member), join_error(member.member_id, error))
        if member.sync_reply is not None:
            group.respond(member.sync_reply, sync_error(error))
            member.sync_reply = None
    if group.state is not GroupState.DEAD:
        group.advance(GroupState.DEAD, now)
