"""Members of a classic group: joining, syncing, heartbeats, leaving, time-outs."""

from __future__ import annotations

import pytest

from barnabas.coordinators.group.rebalance import NEW_MEMBER_JOIN_TIMEOUT_MS
from barnabas.coordinators.group.states import GroupState
from barnabas.wire.errors import ErrorCode, KafkaError
from tests.unit.coordinators.group.group_world import (
    BEFORE_MEMBER_IDS,
    REBALANCE_MS,
    SESSION_MS,
    GroupWorld,
    TestMember,
    stable_group,
)

pytestmark = pytest.mark.usefixtures("leads_g")

INITIAL_DELAY_MS = 3000


def test_gives_a_dynamic_member_its_id_first(world: GroupWorld) -> None:
    member = TestMember(world)
    member.join()
    assert member.join_error is ErrorCode.MEMBER_ID_REQUIRED
    assert member.member_id.startswith("client-")
    assert len(member.member_id) == len("client-") + 36
    assert world.group("g").state is GroupState.EMPTY
    member.join()
    assert len(member.joined) == 1
    world.pass_ms(INITIAL_DELAY_MS + 10)
    assert member.joined[-1].error_code == ErrorCode.NONE
    assert member.is_leader
    assert member.generation == 1
    assert [each.member_id for each in member.joined[-1].members] == [member.member_id]
    assert member.joined[-1].protocol_name == "range"
    assert member.joined[-1].protocol_type == "consumer"


def test_takes_a_member_of_an_old_client_in_at_once(world: GroupWorld) -> None:
    member = TestMember(world)
    member.join(BEFORE_MEMBER_IDS)
    assert world.group("g").state is GroupState.PREPARING_REBALANCE
    world.pass_ms(INITIAL_DELAY_MS + 10)
    assert member.join_error is ErrorCode.NONE


def test_forgets_a_client_that_does_not_come_back_with_its_id(world: GroupWorld) -> None:
    member, other = TestMember(world), TestMember(world)
    member.join()
    other.join_fully()
    world.pass_ms(INITIAL_DELAY_MS + 10)  # the first rebalance does not wait for it
    other.assign()
    member_id = member.member_id
    world.pass_ms(SESSION_MS)
    assert not world.group("g").members.pending
    member.join(member_id=member_id)
    assert member.join_error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_clients_that_were_given_an_id(world: GroupWorld) -> None:
    first, second, third = TestMember(world), TestMember(world), TestMember(world)
    stable_group(world, first)
    third.join()
    second.join_fully()
    first.join()
    assert first.joined[-1].generation_id == 1
    third.join()
    assert first.generation == second.generation == third.generation == 2


def test_an_unknown_member_id_must_be_given_up(world: GroupWorld) -> None:
    member = TestMember(world)
    member.join(member_id="nobody")
    assert member.join_error is ErrorCode.UNKNOWN_MEMBER_ID  # a group that does not exist
    stable_group(world, member)
    stranger = TestMember(world)
    stranger.join(member_id="nobody")
    assert stranger.join_error is ErrorCode.UNKNOWN_MEMBER_ID


def test_prolongs_the_first_rebalance_while_members_come(world: GroupWorld) -> None:
    first, second = TestMember(world), TestMember(world)
    first.join_fully()
    world.pass_ms(2000)
    second.join_fully()
    world.pass_ms(2000)  # past the first delay
    assert len(first.joined) == 1
    world.pass_ms(2100)
    assert first.generation == second.generation == 1


def test_the_delay_of_the_first_rebalance_ends_with_the_rebalance_timeout(world: GroupWorld) -> None:
    first = TestMember(world, rebalance_ms=7000)
    first.join_fully()
    for _ in range(10):
        world.pass_ms(1000)
        TestMember(world, rebalance_ms=7000).join_fully()
    assert first.generation == 1


def test_a_follower_is_not_told_who_the_members_are(world: GroupWorld) -> None:
    members = [TestMember(world) for _ in range(3)]
    leader = stable_group(world, *members)
    assert leader is members[0]
    assert {each.member_id for each in leader.joined[-1].members} == {each.member_id for each in members}
    assert all(each.joined[-1].members == [] for each in members if each is not leader)
    assert {each.joined[-1].leader for each in members} == {leader.member_id}


@pytest.mark.parametrize(
    ("offers", "chosen"),
    [
        ((("range", "sticky"), ("sticky", "range"), ("sticky", "range")), "sticky"),
        ((("range", "sticky"), ("sticky",)), "sticky"),
        ((("range",), ("range", "sticky")), "range"),
    ],
)
def test_chooses_the_protocol_that_most_like_among_those_that_all_know(
    world: GroupWorld, offers: tuple[tuple[str, ...], ...], chosen: str
) -> None:
    members = [TestMember(world, protocols=protocols) for protocols in offers]
    stable_group(world, *members)
    assert {each.joined[-1].protocol_name for each in members} == {chosen}


def test_refuses_a_member_that_has_no_protocol_in_common(world: GroupWorld) -> None:
    stable_group(world, TestMember(world, protocols=("range",)))
    other = TestMember(world, protocols=("sticky",))
    other.join()
    assert other.join_error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    other_type = TestMember(world, protocol_type="connect")
    other_type.join()
    assert other_type.join_error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    without = TestMember(world, protocols=())
    without.join()
    assert without.join_error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.group("g").state is GroupState.STABLE


def test_a_protocol_that_is_named_twice_counts_once(world: GroupWorld) -> None:
    member = TestMember(world, protocols=("range", "range"))
    stable_group(world, member)
    assert member.joined[-1].protocol_name == "range"


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_refuses_session_timeouts_outside_of_the_limits(world: GroupWorld, session_ms: int) -> None:
    member = TestMember(world, session_ms=session_ms)
    member.join()
    assert member.join_error is ErrorCode.INVALID_SESSION_TIMEOUT


def test_a_group_needs_a_name(world: GroupWorld) -> None:
    member = TestMember(world, "")
    member.join()
    assert member.join_error is ErrorCode.INVALID_GROUP_ID
    member.sync()
    assert member.sync_error is ErrorCode.INVALID_GROUP_ID
    assert member.heartbeat() is ErrorCode.INVALID_GROUP_ID
    with pytest.raises(KafkaError) as raised:
        member.leave()
    assert raised.value.code is ErrorCode.INVALID_GROUP_ID


def test_a_new_member_has_the_others_join_again(world: GroupWorld) -> None:
    first, second = TestMember(world), TestMember(world)
    stable_group(world, first)
    assert first.heartbeat() is ErrorCode.NONE
    second.join_fully()
    assert first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    first.sync()
    assert first.sync_error is ErrorCode.REBALANCE_IN_PROGRESS
    first.join()
    assert first.generation == second.generation == 2
    assert first.heartbeat() is ErrorCode.NONE  # while the assignment is waited for
    second.sync()
    assert second.synced == []
    first.assign()
    assert second.synced[-1].assignment == second.member_id.encode()
    assert world.group("g").state is GroupState.STABLE


def test_removes_members_that_do_not_join_again_in_time(world: GroupWorld) -> None:
    first, second, third = TestMember(world), TestMember(world), TestMember(world)
    stable_group(world, first, second)
    third.join_fully()
    for _ in range(REBALANCE_MS // 1000):
        assert second.heartbeat() in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.NONE)
        assert first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        world.pass_ms(1000)
        if len(second.joined) < 3:
            second.join()
    world.pass_ms(100)
    assert first.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert second.generation == third.generation == 2
    assert {second.is_leader, third.is_leader} == {True, False}


def test_ends_the_session_of_a_member_that_is_not_heard_of(world: GroupWorld) -> None:
    first, second = TestMember(world), TestMember(world)
    stable_group(world, first, second)
    for _ in range(3):
        world.pass_ms(SESSION_MS / 3 + 1)
        first.heartbeat()
    assert first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert second.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    first.join()
    assert first.generation == 2
    assert [each.member_id for each in first.joined[-1].members] == [first.member_id]


def test_the_leadership_passes_on_when_the_leader_leaves(world: GroupWorld) -> None:
    members = [TestMember(world) for _ in range(3)]
    leader = stable_group(world, *members)
    assert leader.leave() is ErrorCode.NONE
    rest = [member for member in members if member is not leader]
    for member in rest:
        member.join()
    assert sum(member.is_leader for member in rest) == 1
    assert leader.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert leader.leave() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_without_members_is_empty_and_counts_on(world: GroupWorld) -> None:
    member = TestMember(world)
    stable_group(world, member)
    member.leave()
    world.pass_ms(10)
    group = world.group("g")
    assert group.state is GroupState.EMPTY
    assert group.generation == 2
    assert group.protocol is None
    again = TestMember(world)
    stable_group(world, again)
    assert again.generation == 3


def test_heartbeats_of_another_generation_are_refused(world: GroupWorld) -> None:
    member = TestMember(world)
    stable_group(world, member)
    member.generation -= 1
    assert member.heartbeat() is ErrorCode.ILLEGAL_GENERATION
    member.sync()
    assert member.sync_error is ErrorCode.ILLEGAL_GENERATION


def test_the_leader_may_ask_for_a_rebalance_and_a_follower_only_with_other_metadata(world: GroupWorld) -> None:
    first, second = TestMember(world), TestMember(world)
    leader = stable_group(world, first, second)
    follower = second if leader is first else first
    follower.join()
    assert follower.joined[-1].generation_id == 1  # told of the present generation
    follower.sync()
    assert follower.synced[-1].assignment == follower.member_id.encode()
    follower.topics = ("t", "u")
    follower.join()
    assert leader.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    leader.join()
    assert leader.generation == follower.generation == 2
    leader.assign()
    follower.sync()
    leader.join()
    assert follower.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


def test_repeats_the_answer_to_a_join_that_was_lost(world: GroupWorld) -> None:
    first, second = TestMember(world), TestMember(world)
    first.join_fully()
    second.join_fully()
    world.pass_ms(2 * INITIAL_DELAY_MS + 10)
    for member in (first, second):
        lost = member.joined[-1]
        member.join()
        assert member.joined[-1] == lost


def test_members_that_never_sync_are_removed(world: GroupWorld) -> None:
    first, second = TestMember(world), TestMember(world)
    first.join_fully()
    second.join_fully()
    world.pass_ms(2 * INITIAL_DELAY_MS + 10)
    leader, follower = (first, second) if first.is_leader else (second, first)
    leader.assign()
    for _ in range(REBALANCE_MS // 1000 + 1):
        leader.heartbeat()
        follower.heartbeat()
        world.pass_ms(1000)
    assert follower.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert leader.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_whose_client_is_gone_before_its_first_answer_expires(world: GroupWorld) -> None:
    static = TestMember(world, instance_id="s", session_ms=30 * 60 * 1000, rebalance_ms=60 * 60 * 1000)
    stable_group(world, static)
    for _ in range(5):
        world.pass_ms(1000)
        static.heartbeat()
    new = TestMember(world, rebalance_ms=60 * 60 * 1000)
    new.join_fully()
    world.pass_ms(NEW_MEMBER_JOIN_TIMEOUT_MS + 1000)
    assert new.join_error is ErrorCode.UNKNOWN_MEMBER_ID
    assert len(world.group("g").members) == 1


def test_group_max_size_counts_members_that_joined() -> None:
    world = GroupWorld(size_max=2)
    world.elect("g")
    first, second, third = TestMember(world), TestMember(world), TestMember(world)
    stable_group(world, first, second)
    third.join()
    assert third.join_error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.group("g").state is GroupState.STABLE
    first.topics = ("u",)
    first.join()
    fourth = TestMember(world)
    fourth.join_fully()  # one has joined again, so there is room
    second.join()
    assert second.join_error is ErrorCode.GROUP_MAX_SIZE_REACHED
    world.close()


def test_nobody_waits_for_a_member_that_there_was_no_room_for() -> None:
    world = GroupWorld(size_max=2)
    world.elect("g")
    first, second, third = TestMember(world), TestMember(world), TestMember(world)
    stable_group(world, first, second)
    first.topics = ("u",)
    first.join()  # begins a rebalance
    third.join()  # and is given an id
    assert len(world.group("g").members.pending) == 1
    second.join()
    assert world.group("g").state is GroupState.PREPARING_REBALANCE
    third.join()
    assert third.join_error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.group("g").state is GroupState.COMPLETING_REBALANCE
    world.close()


def test_the_assignment_counts_when_it_is_stored(world: GroupWorld) -> None:
    first, second = TestMember(world), TestMember(world)
    first.join_fully()
    second.join_fully()
    world.pass_ms(2 * INITIAL_DELAY_MS + 10)
    leader, follower = (first, second) if first.is_leader else (second, first)
    world.log.holds_back = True
    follower.sync()
    leader.assign()
    assert (leader.synced, follower.synced) == ([], [])
    leader.assign()  # again, by a client that lost patience
    assert leader.sync_error is ErrorCode.REBALANCE_IN_PROGRESS
    assert len(world.log.held) == 1
    world.log.release()
    assert follower.synced[-1].assignment == follower.member_id.encode()
    assert leader.synced[-1].assignment == leader.member_id.encode()
    assert world.group("g").state is GroupState.STABLE


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REBALANCE_IN_PROGRESS),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_an_assignment_that_cannot_be_stored_is_nobodys(world: GroupWorld, failure: ErrorCode, told: ErrorCode) -> None:
    member = TestMember(world)
    member.join_fully()
    world.pass_ms(INITIAL_DELAY_MS + 10)
    world.log.refusal = failure
    member.assign()
    assert member.sync_error is told
    assert world.group("g").state is GroupState.PREPARING_REBALANCE
    world.log.refusal = None
    member.join()
    member.assign()
    assert member.synced[-1].assignment == member.member_id.encode()


def test_a_member_that_leaves_while_it_waits_is_answered(world: GroupWorld) -> None:
    first, second = TestMember(world), TestMember(world)
    first.join_fully()
    second.join_fully()
    second.leave()
    assert second.join_error is ErrorCode.UNKNOWN_MEMBER_ID
    second.join_fully()
    world.pass_ms(2 * INITIAL_DELAY_MS + 10)
    follower = second if first.is_leader else first
    follower.sync()
    follower.leave()
    assert follower.sync_error is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_assignment_that_is_stored_too_late_is_of_another_generation(world: GroupWorld) -> None:
    member = TestMember(world)
    member.join_fully()
    world.pass_ms(INITIAL_DELAY_MS + 10)
    world.log.holds_back = True
    member.assign()
    member.topics = ("u",)
    member.join()
    assert member.generation == 2
    world.log.release()
    assert world.group("g").state is GroupState.COMPLETING_REBALANCE
    assert member.sync_error is ErrorCode.REBALANCE_IN_PROGRESS
    world.log.holds_back = False
    member.assign()
    assert world.group("g").state is GroupState.STABLE
