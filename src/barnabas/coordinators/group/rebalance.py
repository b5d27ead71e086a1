"""How a group gets from one generation to the next: members are waited for, counted, and told who leads.

Functions over a group; each leaves its effects there.
"""

from __future__ import annotations

from typing import Final

from barnabas.coordinators.group.effects import Now, StoredEmptyGroup, TimerKind
from barnabas.coordinators.group.group import Group
from barnabas.coordinators.group.member import Member
from barnabas.coordinators.group.responses import join_error, joined, sync_error, synced
from barnabas.coordinators.group.states import GroupState
from barnabas.wire.errors import ErrorCode

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000
"""How long a member that nobody has heard of before may wait in its first JoinGroup. Its client may be gone, and does
not know its member id yet, so it can send no heartbeat."""


def prepare_rebalance_if_possible(group: Group, now: Now, reason: str) -> None:
    """Begins a rebalance, unless one has begun or the group is dead."""
    if group.can_rebalance:
        prepare_rebalance(group, now, reason)


def prepare_rebalance(group: Group, now: Now, reason: str) -> None:
    """Has all members join again. The first members of an empty group are given time to be more."""
    if group.state is GroupState.COMPLETING_REBALANCE:
        propagate_error(group, now, ErrorCode.REBALANCE_IN_PROGRESS)
    end_sync_phase(group)
    was_empty = group.state is GroupState.EMPTY
    group.advance(GroupState.PREPARING_REBALANCE, now)
    group.logger.info(
        "Preparing to rebalance group %s with old generation %d (reason: %s)", group.group_id, group.generation, reason
    )
    rebalance_timeout_ms = group.members.rebalance_timeout_ms
    if was_empty:
        delay_ms = group.settings.initial_rebalance_delay_ms
        group.initial_delay_remaining_ms = max(rebalance_timeout_ms - delay_ms, 0)
        group.start_timer(TimerKind.JOIN, delay_ms)
    else:
        group.initial_delay_remaining_ms = None
        group.start_timer(TimerKind.JOIN, rebalance_timeout_ms)
        complete_join_if_possible(group, now)


def resume_rebalance(group: Group, now: Now) -> None:
    """The group has become a classic one, now or before it was loaded: all its members are to join again."""
    group.start_timer(TimerKind.JOIN, group.members.rebalance_timeout_ms)
    complete_join_if_possible(group, now)


def complete_join_if_possible(group: Group, now: Now) -> None:
    """Goes on as soon as every member has joined; the delay of a first rebalance is waited for in any case."""
    if (
        group.state is GroupState.PREPARING_REBALANCE
        and group.initial_delay_remaining_ms is None
        and group.members.have_all_joined
    ):
        complete_join(group, now)


def join_timer_expired(group: Group, now: Now) -> None:
    """The time for joining is over, or the delay of a first rebalance is and may have to be prolonged."""
    if group.state is not GroupState.PREPARING_REBALANCE:
        return
    remaining_ms = group.initial_delay_remaining_ms
    if remaining_ms is not None and group.new_member_added and remaining_ms > 0:
        group.new_member_added = False
        delay_ms = min(group.settings.initial_rebalance_delay_ms, remaining_ms)
        group.initial_delay_remaining_ms = remaining_ms - delay_ms
        group.start_timer(TimerKind.JOIN, delay_ms)
        return
    complete_join(group, now)


def complete_join(group: Group, now: Now) -> None:
    """Begins the next generation with the members that joined. Dynamic members that did not are removed."""
    group.initial_delay_remaining_ms = None
    group.new_member_added = False
    members = group.members
    late = [member for member in members if not member.is_awaiting_join and not member.is_static]
    for member in late:
        remove(group, member)
    if late:
        group.logger.info(
            "Group %s removed dynamic members who have not joined: %s",
            group.group_id,
            ", ".join(member.member_id for member in late),
        )
    if members and not members.ensure_joined_leader():
        group.logger.warning("Group %s could not complete its rebalance because no member rejoined", group.group_id)
        group.start_timer(TimerKind.JOIN, members.rebalance_timeout_ms)
        return
    group.stop_timer(TimerKind.JOIN)
    group.begin_generation(now)
    if not members:
        group.logger.info("Group %s with generation %d is now empty", group.group_id, group.generation)
        group.store(group.record({}), StoredEmptyGroup())
        return
    group.logger.info(
        "Stabilized group %s generation %d with %d members", group.group_id, group.generation, len(members)
    )
    for member in members:
        group.respond(members.take_join(member), joined(group, member))
        member.is_new = False
        members.pending_sync[member.member_id] = None
        group.expect_member(member, now)
    group.start_timer(TimerKind.SYNC, members.rebalance_timeout_ms)


def remove(group: Group, member: Member) -> None:
    """Takes a member out, and answers whatever it waits for: it may come again as a new one."""
    group.respond(group.members.take_join(member), join_error("", ErrorCode.UNKNOWN_MEMBER_ID))
    if member.sync_reply is not None:
        group.respond(member.sync_reply, sync_error(ErrorCode.UNKNOWN_MEMBER_ID))
        member.sync_reply = None
    group.members.remove(member.member_id)
    if member.timer_deadline is not None:
        member.timer_deadline = None
        group.stop_timer(TimerKind.SESSION, member.member_id)


def remove_and_rebalance(group: Group, now: Now, member: Member, reason: str) -> None:
    """A member is gone: the others share what it had."""
    remove(group, member)
    prepare_rebalance_if_possible(group, now, reason)
    complete_join_if_possible(group, now)


def remove_pending(group: Group, now: Now, member_id: str) -> None:
    """A client never came back with the member id that it was given; a rebalance may have waited for it."""
    group.members.remove(member_id)
    complete_join_if_possible(group, now)


# The second half: the leader's assignment.


def end_sync_phase(group: Group) -> None:
    """Nobody is waited for any more to fetch its assignment."""
    group.members.pending_sync.clear()
    group.stop_timer(TimerKind.SYNC)


def received_sync(group: Group, member: Member) -> None:
    """The member has asked for its assignment."""
    group.members.pending_sync.pop(member.member_id, None)
    if not group.members.pending_sync:
        group.stop_timer(TimerKind.SYNC)


def sync_timer_expired(group: Group, now: Now) -> None:
    """Members that joined and never fetched their assignment are removed (KIP-738's follow-up, KAFKA-13235)."""
    if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not group.members.pending_sync:
        return
    late = list(group.members.pending_sync)
    for member_id in late:
        member = group.members.get(member_id)
        if member is not None:
            remove(group, member)
    prepare_rebalance(group, now, f"Removing {', '.join(late)} on pending sync request expiration")


def propagate_assignment(group: Group, now: Now, assignment: dict[str, bytes]) -> None:
    """Gives every member its part, and tells those that wait for it."""
    for member in group.members:
        member.assignment = assignment[member.member_id]
        if member.sync_reply is not None:
            group.respond(member.sync_reply, synced(group, member))
            member.sync_reply = None
            group.expect_member(member, now)


def propagate_error(group: Group, now: Now, error: ErrorCode) -> None:
    """There is no assignment: members that wait for it are told why."""
    for member in group.members:
        member.assignment = b""
        if member.sync_reply is not None:
            group.respond(member.sync_reply, sync_error(error))
            member.sync_reply = None
            group.expect_member(member, now)
