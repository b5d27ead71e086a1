"""JoinGroup: who may come in, under which member id, and whether that begins a rebalance.

Functions over a group; each leaves its effects there.
"""

from __future__ import annotations

from dataclasses import dataclass

from barnabas.coordinators.group.effects import Now, Reply, StoredStaticMember, TimerKind
from barnabas.coordinators.group.group import Group
from barnabas.coordinators.group.member import Client, Member, Protocols, names
from barnabas.coordinators.group.membership import NO_REASON, check_member
from barnabas.coordinators.group.rebalance import (
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    complete_join_if_possible,
    prepare_rebalance,
    prepare_rebalance_if_possible,
    remove,
)
from barnabas.coordinators.group.responses import NO_MEMBER_ID, join_error, joined, sync_error
from barnabas.coordinators.group.states import GroupState
from barnabas.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Join:
    """A JoinGroup request that passed the checks which need no group."""

    member_id: str
    """Empty for a client that has none yet."""
    new_member_id: str
    """What it will be called then; never used before."""
    group_instance_id: str | None
    client: Client
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    """Each name once."""
    requires_known_member_id: bool
    """Whether a dynamic member is to come again with the id that it is given (KIP-394, version 4)."""
    supports_skipping_assignment: bool
    """Whether a leader can be told not to assign anything (KIP-814, version 9)."""
    reason: str | None = None


def join(group: Group, now: Now, request: Join, reply: Reply) -> None:
    """Answers at once with an error or the present generation, or parks the reply until the next one begins."""
    if not _has_room_for(group, request.member_id):
        member = group.members.get(request.member_id)
        if member is not None:
            remove(group, member)
        elif request.member_id in group.members.pending:
            # Or the members that are there would wait for it, until its time to come back is over.
            group.stop_timer(TimerKind.PENDING, request.member_id)
            group.members.remove(request.member_id)
        group.respond(reply, join_error(NO_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED))
    elif not group.supports_protocols(request.protocol_type, names(request.protocols)):
        group.respond(reply, join_error(request.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    elif request.member_id:
        _join_with_member_id(group, now, request, reply)
    else:
        _join_without_member_id(group, now, request, reply)
    complete_join_if_possible(group, now)


def _has_room_for(group: Group, member_id: str) -> bool:
    """Whether the group may have this member. While a rebalance is on, counts the members that joined again, so that
    the last to do so may be shed where `group.max.size` became smaller.
    """
    size_max = group.settings.size_max
    if group.state is GroupState.EMPTY:
        return True
    if group.state is GroupState.PREPARING_REBALANCE:
        member = group.members.get(member_id)
        return (member is not None and member.is_awaiting_join) or group.members.awaiting_join < size_max
    return member_id in group.members or len(group.members) < size_max


def _join_without_member_id(group: Group, now: Now, request: Join, reply: Reply) -> None:
    instance_id = request.group_instance_id
    if instance_id is not None:
        member = group.members.static_member(instance_id)
        if member is not None:
            group.logger.info(
                "Static member %s joins group %s in %s state without a member id: %s replaces %s",
                instance_id,
                group.group_id,
                group.state.value,
                request.new_member_id,
                member.member_id,
            )
            _replace_static_member(group, now, request, instance_id, member, reply)
            return
        group.logger.info(
            "Static member %s joins group %s in %s state, as member %s",
            instance_id,
            group.group_id,
            group.state.value,
            request.new_member_id,
        )
    elif request.requires_known_member_id:
        group.logger.info(
            "Dynamic member without a member id joins group %s in %s state; it is asked to rejoin as %s",
            group.group_id,
            group.state.value,
            request.new_member_id,
        )
        group.members.pending[request.new_member_id] = None
        group.start_timer(TimerKind.PENDING, request.session_timeout_ms, request.new_member_id)
        group.respond(reply, join_error(request.new_member_id, ErrorCode.MEMBER_ID_REQUIRED))
        return
    _add_member(group, now, request, request.new_member_id, reply)


def _join_with_member_id(group: Group, now: Now, request: Join, reply: Reply) -> None:
    if request.member_id in group.members.pending and request.group_instance_id is None:
        group.logger.info(
            "Pending dynamic member %s joins group %s in %s state",
            request.member_id,
            group.group_id,
            group.state.value,
        )
        group.stop_timer(TimerKind.PENDING, request.member_id)
        _add_member(group, now, request, request.member_id, reply)
        return
    error = check_member(group, request.member_id, request.group_instance_id)
    member = group.members.get(request.member_id)
    if error is not ErrorCode.NONE or member is None:
        group.respond(reply, join_error(request.member_id, error or ErrorCode.UNKNOWN_MEMBER_ID))
        return
    is_same = member.protocols == request.protocols
    is_leader = group.members.leader_id == member.member_id
    if group.state is GroupState.COMPLETING_REBALANCE and is_same:
        # It did not get the answer to its first JoinGroup, perhaps.
        group.respond(reply, joined(group, member))
    elif group.state is GroupState.STABLE and is_same and not is_leader:
        group.respond(reply, joined(group, member))
    else:
        what = "Leader" if is_leader else "Member"
        change = "re-joining" if is_same else "joining with other metadata"
        reason = f"{what} {member.member_id} {change} during {group.state.value}"
        group.members.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
        _park(group, member, reply)
        prepare_rebalance_if_possible(group, now, f"{reason}; client reason: {request.reason or NO_REASON}")


def _add_member(group: Group, now: Now, request: Join, member_id: str, reply: Reply) -> None:
    if group.state is GroupState.PREPARING_REBALANCE and group.generation == 0:
        group.new_member_added = True
    if not group.members:
        group.protocol_type = request.protocol_type
    member = Member(
        member_id=member_id,
        group_instance_id=request.group_instance_id,
        client=request.client,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        protocols=request.protocols,
        is_new=True,
    )
    group.members.add(member)
    _park(group, member, reply)
    group.expect_member(member, now, NEW_MEMBER_JOIN_TIMEOUT_MS)
    prepare_rebalance_if_possible(
        group,
        now,
        f"Adding new member {member_id} with group instance id {request.group_instance_id}; "
        f"client reason: {request.reason or NO_REASON}",
    )


def _park(group: Group, member: Member, reply: Reply) -> None:
    """Parks a JoinGroup. One that it displaces came by a connection that the client has given up."""
    displaced = group.members.park_join(member, reply)
    group.respond(displaced, join_error(member.member_id, ErrorCode.REBALANCE_IN_PROGRESS))


# Static members that come back without their member id (KIP-345).


def _replace_static_member(
    group: Group, now: Now, request: Join, instance_id: str, member: Member, reply: Reply
) -> None:
    """Gives the static member a new id. In a stable group nothing else changes where the protocol stays the same: that
    is decided here, and done when the log has taken the record that says so (`static_member_replayed`).
    """
    replacement = StoredStaticMember(
        generation=group.generation,
        group_instance_id=instance_id,
        new_member_id=request.new_member_id,
        protocols=request.protocols,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        old_leader_id=group.members.leader_id,
        supports_skipping_assignment=request.supports_skipping_assignment,
        reply=reply,
    )
    if group.state is GroupState.STABLE:
        replacing = member.replaced_by(
            request.new_member_id, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms
        )
        if group.members.choose_protocol_with(replacing, member) == group.protocol:
            group.store(group.record_with(replacing, member), replacement)
            return
    static_member_replayed(group, now, replacement)
    reason = f"static member {request.new_member_id} with instance id {instance_id}"
    if group.state is GroupState.STABLE:
        prepare_rebalance(group, now, f"Protocol will change because of {reason}")
    elif group.state is GroupState.COMPLETING_REBALANCE:
        # The leader may be assigning to the old member id already.
        prepare_rebalance(group, now, f"Updating {reason}; client reason: {request.reason or NO_REASON}")


def static_member_replayed(group: Group, now: Now, replacement: StoredStaticMember) -> None:
    """The member has its new id from now on, in the log too where the group is stable; its JoinGroup is parked."""
    member = _rename(group, now, replacement.group_instance_id, replacement.new_member_id)
    group.members.update(
        member, replacement.protocols, replacement.rebalance_timeout_ms, replacement.session_timeout_ms
    )
    _park(group, member, replacement.reply)


def static_member_refused(group: Group, replacement: StoredStaticMember, error: ErrorCode) -> None:
    """The log has not taken the record: the member is who it was."""
    group.logger.warning("Failed to persist the metadata of group %s: %s", group.group_id, error.name)
    group.respond(replacement.reply, join_error(NO_MEMBER_ID, error))


def static_member_stored(group: Group, now: Now, stored: StoredStaticMember, error: ErrorCode) -> None:
    """The record with the new member id is committed, or was not in time: then the member, which keeps the id that the
    log has for it, is told to come again.
    """
    if group.members.static_member_id(stored.group_instance_id) != stored.new_member_id:
        return
    member = group.members.get(stored.new_member_id)
    if member is None or group.state is not GroupState.STABLE or group.generation != stored.generation:
        return  # a rebalance has begun meanwhile, and answers it
    reply = group.members.take_join(member)
    group.expect_member(member, now)
    if error is not ErrorCode.NONE:
        group.logger.warning("Failed to persist the metadata of group %s: %s", group.group_id, error.name)
        group.respond(reply, join_error(NO_MEMBER_ID, error))
    elif stored.supports_skipping_assignment:
        is_leader = group.members.leader_id == member.member_id
        group.respond(reply, joined(group, member, skip_assignment=is_leader))
    else:
        # With the old leader's id a leader does not know itself, and assigns nothing that a stable group would ignore.
        group.respond(reply, joined(group, member, leader_id=stored.old_leader_id, with_members=False))


def _rename(group: Group, now: Now, instance_id: str, new_member_id: str) -> Member:
    """Fences whoever uses the old id, and passes the session on."""
    old_member_id = group.members.static_member_id(instance_id) or NO_MEMBER_ID
    member = group.members.rename_static(instance_id, new_member_id)
    group.respond(group.members.take_join(member), join_error(old_member_id, ErrorCode.FENCED_INSTANCE_ID))
    if member.sync_reply is not None:
        group.respond(member.sync_reply, sync_error(ErrorCode.FENCED_INSTANCE_ID))
        member.sync_reply = None
    if member.timer_deadline is not None:
        member.timer_deadline = None
        group.stop_timer(TimerKind.SESSION, old_member_id)
    group.expect_member(member, now)
    return member
