"""The answers to members of a group."""

from __future__ import annotations

from barnabas.coordinators.group.group import Group
from barnabas.coordinators.group.member import Member
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import JoinGroupResponse, SyncGroupResponse

NO_MEMBER_ID = ""
NO_LEADER = ""


def join_error(member_id: str, error: ErrorCode) -> JoinGroupResponse:
    """No generation; the protocol's name is null, which versions without null write as empty."""
    return JoinGroupResponse(error_code=error, member_id=member_id, leader=NO_LEADER, protocol_name=None)


def joined(
    group: Group,
    member: Member,
    *,
    leader_id: str | None = None,
    with_members: bool | None = None,
    skip_assignment: bool = False,
) -> JoinGroupResponse:
    """The present generation, for one member; the leader is told who all the members are.

    `leader_id` and `with_members` are given where a member must not know that it leads.
    """
    is_leader = group.members.leader_id == member.member_id
    tells_members = is_leader if with_members is None else with_members
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=(group.members.leader_id if leader_id is None else leader_id) or NO_LEADER,
        skip_assignment=skip_assignment,
        member_id=member.member_id,
        members=group.member_list() if tells_members else [],
    )


def sync_error(error: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=error, assignment=b"")


def synced(group: Group, member: Member) -> SyncGroupResponse:
    """The member's part of the assignment of the present generation."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment
    )
