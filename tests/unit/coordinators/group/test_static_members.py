"""Static members (KIP-345, KIP-814)."""

from __future__ import annotations

import pytest

from barnabas.coordinators.group.states import GroupState
from barnabas.wire.errors import ErrorCode
from tests.unit.coordinators.group.group_world import GroupWorld, TestMember, stable_group

pytestmark = pytest.mark.usefixtures("leads_g")

BEFORE_SKIPPING = 8


def restarted(member: TestMember) -> TestMember:
    """The same static member in a new process."""
    return TestMember(
        member.world, member.group_id, instance_id=member.instance_id, topics=member.topics, protocols=member.protocols
    )


def test_a_static_member_comes_back_without_a_rebalance(world: GroupWorld) -> None:
    first, second = TestMember(world, instance_id="a"), TestMember(world, instance_id="b")
    leader = stable_group(world, first, second)
    follower = second if leader is first else first
    again = restarted(follower)
    again.join()
    assert again.join_error is ErrorCode.NONE
    assert again.member_id != follower.member_id
    assert again.member_id.startswith(f"{follower.instance_id}-")
    assert again.generation == leader.generation
    again.sync()
    assert again.synced[-1].assignment == follower.member_id.encode()
    assert leader.heartbeat() is ErrorCode.NONE
    assert follower.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert world.group("g").state is GroupState.STABLE


def test_a_leader_that_comes_back_is_told_to_skip_the_assignment(world: GroupWorld) -> None:
    leader = stable_group(world, TestMember(world, instance_id="a"), TestMember(world, instance_id="b"))
    again = restarted(leader)
    again.join()
    assert again.is_leader
    assert again.joined[-1].skip_assignment
    assert len(again.joined[-1].members) == 2


def test_a_leader_that_cannot_be_told_does_not_learn_that_it_leads(world: GroupWorld) -> None:
    leader = stable_group(world, TestMember(world, instance_id="a"), TestMember(world, instance_id="b"))
    again = restarted(leader)
    again.join(BEFORE_SKIPPING)
    assert not again.is_leader
    assert again.joined[-1].leader == leader.member_id
    assert again.joined[-1].members == []
    assert not again.joined[-1].skip_assignment


def test_another_protocol_has_the_group_rebalance(world: GroupWorld) -> None:
    first = TestMember(world, instance_id="a", protocols=("range", "sticky"))
    stable_group(world, first)
    again = TestMember(world, instance_id="a", protocols=("sticky", "range"))
    again.join()
    assert again.generation == 2
    assert again.joined[-1].protocol_name == "sticky"


def test_who_holds_the_old_id_is_fenced(world: GroupWorld) -> None:
    first = TestMember(world, instance_id="a")
    stable_group(world, first)
    first.topics = ("u",)
    TestMember(world).join_fully()
    first.join()  # parked: the other one has joined, so it is answered
    again = restarted(first)
    again.join()
    for member in (first,):
        member.join()
        assert member.join_error is ErrorCode.FENCED_INSTANCE_ID
        member.sync()
        assert member.sync_error is ErrorCode.FENCED_INSTANCE_ID
        assert member.leave() is ErrorCode.FENCED_INSTANCE_ID


def test_a_parked_join_of_the_old_id_is_fenced(world: GroupWorld) -> None:
    first = TestMember(world, instance_id="a")
    first.join()
    again = restarted(first)
    again.join()
    assert first.join_error is ErrorCode.FENCED_INSTANCE_ID
    world.pass_ms(10_000)
    assert again.generation == 1


def test_replacing_a_member_while_the_leader_assigns_begins_anew(world: GroupWorld) -> None:
    first, second = TestMember(world, instance_id="a"), TestMember(world, instance_id="b")
    first.join()
    second.join()
    world.pass_ms(10_000)
    again = restarted(second)
    second.sync()
    again.join()
    assert second.sync_error is ErrorCode.FENCED_INSTANCE_ID
    assert first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    first.join()
    assert first.generation == again.generation == 2


def test_a_static_member_that_misses_a_rebalance_stays(world: GroupWorld) -> None:
    first, second = TestMember(world, instance_id="a", session_ms=600_000), TestMember(world)
    stable_group(world, first, second)
    second.topics = ("u",)
    second.join()
    world.pass_ms(31_000)
    assert second.generation == 2
    assert len(world.group("g").members) == 2
    assert second.is_leader


def test_is_removed_by_its_name(world: GroupWorld) -> None:
    first = TestMember(world, instance_id="a")
    stable_group(world, first)
    assert first.leave(by_name=True) is ErrorCode.NONE
    assert first.leave(by_name=True) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_replacement_that_cannot_be_stored_is_taken_back(world: GroupWorld) -> None:
    first, second = TestMember(world, instance_id="a"), TestMember(world)
    stable_group(world, first, second)
    world.log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    again = restarted(first)
    again.join()
    assert again.join_error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert first.heartbeat() is ErrorCode.NONE
    assert world.group("g").members.get(first.member_id) is not None


def test_a_replacement_waits_for_its_record(world: GroupWorld) -> None:
    first, second = TestMember(world, instance_id="a"), TestMember(world)
    stable_group(world, first, second)
    world.log.holds_back = True
    again = restarted(first)
    again.join()
    assert again.joined == []
    world.log.release()
    assert again.join_error is ErrorCode.NONE


def test_a_rebalance_answers_a_replacement_whose_record_is_under_way(world: GroupWorld) -> None:
    first, second = TestMember(world, instance_id="a"), TestMember(world)
    stable_group(world, first, second)
    world.log.holds_back = True
    again = restarted(first)
    again.join()
    second.topics = ("u",)
    second.join()
    assert again.generation == second.generation == 2
    world.log.release(ErrorCode.REQUEST_TIMED_OUT)
    assert len(again.joined) == 1
    assert again.heartbeat() is ErrorCode.NONE


def test_static_members_need_brokers_that_know_them() -> None:
    world = GroupWorld(inter_broker_protocol_version="2.2-IV1")
    with pytest.raises(Exception, match="UNSUPPORTED_VERSION"):
        world.coordinator.check_static_name("a")
    world.coordinator.check_static_name(None)
    world.close()


def test_a_replacement_that_fails_after_the_next_generation_stays(world: GroupWorld) -> None:
    first, second = TestMember(world, instance_id="a"), TestMember(world)
    stable_group(world, first, second)
    world.log.holds_back = True
    again = restarted(first)
    again.join()
    second.topics = ("u",)
    second.join()
    (late,) = world.log.held
    world.log.held, world.log.holds_back = [], False
    leader, follower = (again, second) if again.is_leader else (second, again)
    follower.sync()
    leader.assign()
    assert world.group("g").state is GroupState.STABLE
    late(ErrorCode.REQUEST_TIMED_OUT)
    assert again.heartbeat() is ErrorCode.NONE
    assert again.member_id in world.group("g").members
