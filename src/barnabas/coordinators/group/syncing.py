"""SyncGroup: the leader brings the assignment, which is stored; every member is told its part.

Functions over a group; each leaves its effects there.
"""

from __future__ import annotations

from dataclasses import dataclass

from barnabas.coordinators.group.effects import (
    Now,
    Reply,
    Stored,
    StoredAssignment,
    StoredEmptyGroup,
    StoredStaticMember,
)
from barnabas.coordinators.group.group import Group
from barnabas.coordinators.group.joining import (
    static_member_refused,
    static_member_replayed,
    static_member_stored,
)
from barnabas.coordinators.group.member import Member
from barnabas.coordinators.group.membership import check_member
from barnabas.coordinators.group.rebalance import (
    prepare_rebalance_if_possible,
    propagate_assignment,
    propagate_error,
    received_sync,
)
from barnabas.coordinators.group.responses import sync_error, synced
from barnabas.coordinators.group.states import GroupState
from barnabas.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Sync:
    """A SyncGroup request. Protocol type and name are None where its version has none: then they are not checked."""

    generation: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None
    protocol: str | None
    assignments: dict[str, bytes]
    """By member id; from the leader."""


def sync(group: Group, now: Now, request: Sync, reply: Reply) -> None:
    """Answers at once with an error or the assignment, or parks the reply until the leader's is stored."""
    error = _check(group, request)
    member = group.members.get(request.member_id)
    if error is not ErrorCode.NONE or member is None:
        group.respond(reply, sync_error(error or ErrorCode.UNKNOWN_MEMBER_ID))
    elif group.state is GroupState.PREPARING_REBALANCE:
        group.respond(reply, sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
    elif group.state is GroupState.COMPLETING_REBALANCE:
        if member.sync_reply is not None:
            # The connection that it came by has been given up by the client.
            group.respond(member.sync_reply, sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_reply = reply
        received_sync(group, member)
        if group.members.leader_id == member.member_id and group.storing_generation != group.generation:
            _store_assignment(group, member, request.assignments)
    else:
        received_sync(group, member)
        group.respond(reply, synced(group, member))
        group.expect_member(member, now)


def _check(group: Group, request: Sync) -> ErrorCode:
    error = check_member(group, request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if request.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.NONE  # one that joined before the group was downgraded may have been told another protocol
    if request.protocol_type is not None and request.protocol_type != group.protocol_type:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if request.protocol is not None and request.protocol != group.protocol:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE


def _store_assignment(group: Group, leader: Member, assignments: dict[str, bytes]) -> None:
    """Stores what the leader brings; members that it forgot get nothing. Once per generation: an assignment that came
    a second time would be in the log behind the one that the members were told.
    """
    missing = [member_id for member_id in group.members.ids if member_id not in assignments]
    if missing:
        group.logger.warning(
            "Setting empty assignments for members %s of %s for generation %d",
            ", ".join(missing),
            group.group_id,
            group.generation,
        )
    group.logger.info(
        "Assignment received from leader %s for group %s for generation %d. The group has %d members, %d of which are "
        "static",
        leader.member_id,
        group.group_id,
        group.generation,
        len(group.members),
        group.members.static_count,
    )
    assignment = {member_id: assignments.get(member_id, b"") for member_id in group.members.ids}
    group.storing_generation = group.generation
    group.store(group.record(assignment), StoredAssignment(group.generation, assignment))


def replayed(group: Group, now: Now, what: Stored) -> None:
    """The record of the group is in the log. What members are assigned is told them when it is committed."""
    if isinstance(what, StoredStaticMember):
        static_member_replayed(group, now, what)


def refused(group: Group, now: Now, what: Stored, error: ErrorCode) -> None:
    """The log has not taken the record of the group: the one before it stands."""
    if isinstance(what, StoredStaticMember):
        static_member_refused(group, what, error)
    else:
        stored(group, now, what, error)


def stored(group: Group, now: Now, what: Stored, error: ErrorCode) -> None:
    """The record of the group is committed, or was not in time."""
    if isinstance(what, StoredStaticMember):
        static_member_stored(group, now, what, error)
    elif isinstance(what, StoredEmptyGroup):
        if error is not ErrorCode.NONE:
            # The generation before it would be loaded again, and end with the sessions of its members.
            group.logger.warning("Failed to write empty metadata for group %s: %s", group.group_id, error.name)
    else:
        _assignment_stored(group, now, what, error)


def _assignment_stored(group: Group, now: Now, what: StoredAssignment, error: ErrorCode) -> None:
    if group.storing_generation == what.generation:
        group.storing_generation = None
    if group.state is not GroupState.COMPLETING_REBALANCE or group.generation != what.generation:
        return  # the group has gone on to another rebalance meanwhile
    if error is not ErrorCode.NONE:
        propagate_error(group, now, error)
        prepare_rebalance_if_possible(group, now, f"Error {error.name} when storing group assignment during SyncGroup")
        return
    propagate_assignment(group, now, what.assignment)
    group.advance(GroupState.STABLE, now)
