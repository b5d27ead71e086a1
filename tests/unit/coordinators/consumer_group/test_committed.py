"""What a member is told is committed, and what is committed outlives the coordinator."""

from __future__ import annotations

import pytest

from barnabas.coordinators.consumer_group.states import ConsumerGroupState
from barnabas.kernel.steps import at_once
from barnabas.wire.errors import ErrorCode
from tests.unit.coordinators.consumer_group.consumer_world import (
    HEARTBEAT_MS,
    SESSION_MS,
    ConsumerWorld,
    NextMember,
    owners,
    settle,
)


def test_nobody_is_answered_before_what_he_is_told_is_committed(world: ConsumerWorld) -> None:
    member, other = NextMember(world), NextMember(world)
    settle(member)
    world.log.holds_back = True
    assert other.join() is None
    assert member.beat() is None  # though nothing of its own may be written
    world.log.holds_back = False
    world.log.release()
    assert (other.error, len(other.answers), len(member.answers)) == (ErrorCode.NONE, 1, 9)


def test_what_was_not_committed_in_time_is_told_nobody_until_it_is(world: ConsumerWorld) -> None:
    member = NextMember(world)
    settle(member)
    world.make_topic("t", 7)
    world.log.holds_back = True
    assert member.beat() is None
    world.log.holds_back = False
    world.log.release(ErrorCode.REQUEST_TIMED_OUT)
    assert [member.error] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    member.beat()
    assert [member.error] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    world.log.release_late()
    member.beat()
    assert [member.error] == [ErrorCode.NONE]
    member.beat(is_full=True)
    assert len(member.numbers()) == 7


def test_a_lost_answer_gives_a_partition_to_nobody_twice(world: ConsumerWorld) -> None:
    """The first member leaves and the second one takes over, both of which the next coordinator never hears of."""
    first, second, third = (NextMember(world) for _ in range(3))
    settle(first, second)
    partition = world.partition_of("g")
    kept = len(world.log.batches[partition]), world.log.end_offsets[partition]
    world.log.holds_back = True
    first.beat(epoch=-1, owned=None)
    for _ in range(3):
        second.beat()
    assert len(second.numbers()) == 3
    world.resign("g")
    del world.log.batches[partition][kept[0] :]
    world.log.end_offsets[partition] = kept[1]
    world.log.holds_back = False
    world.log.held.clear()
    world.elect("g", 2)
    for _ in range(SESSION_MS // HEARTBEAT_MS + 4):
        settle(second, third, rounds=1)
        owners(second, third)
    assert len(owners(second, third)) == 6


def test_what_a_new_coordinator_finds_is_told_nobody_before_it_is_committed(world: ConsumerWorld) -> None:
    """It has been told what the one before it wrote; a third one may never hear of it."""
    first, second = NextMember(world), NextMember(world)
    settle(first, second)
    world.log.holds_back = True
    first.beat(epoch=-1, owned=None)
    for _ in range(3):
        assert second.beat() is None
    world.resign("g")
    world.log.held.clear()
    world.elect("g", 2)
    assert len(world.hosted().core.members[second.member_id].assigned[world.topics.id("t")]) == 6
    second.beat(is_full=True)
    assert (second.error, len(second.numbers())) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, 3)
    known: list[ErrorCode] = []
    at_once(world.coordinator.describe_consumer_group("g", known.append))
    assert known == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    world.log.release_late()
    second.beat(is_full=True)
    assert (second.error, len(second.numbers())) == (ErrorCode.NONE, 6)


def test_what_is_committed_behind_what_was_loaded_commits_that_too(world: ConsumerWorld) -> None:
    first, second = NextMember(world), NextMember(world)
    settle(first, second)
    world.log.holds_back = True
    first.beat(epoch=-1, owned=None)
    world.resign("g")
    world.log.held.clear()
    world.elect("g", 2)
    assert second.beat() is None  # which waits for what it has written
    world.log.holds_back = False
    world.log.release()
    assert [second.error] == [ErrorCode.NONE]
    second.beat()
    assert (second.error, len(second.numbers())) == (ErrorCode.NONE, 6)


@pytest.mark.parametrize("refusal", [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.MESSAGE_TOO_LARGE])
def test_a_refused_join_leaves_nothing(world: ConsumerWorld, refusal: ErrorCode) -> None:
    world.log.refusal = refusal
    member = NextMember(world)
    member.join()
    assert member.error in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.UNKNOWN_SERVER_ERROR)
    assert not world.coordinator._groups
    world.log.refusal = None
    settle(member, rounds=1)
    assert len(member.numbers()) == 6


def test_a_target_that_is_too_large_for_a_batch_is_written_in_several(world: ConsumerWorld) -> None:
    members = [NextMember(world, assignor="range") for _ in range(20)]
    settle(*members)
    world.log.batch_bytes_max = 600
    world.make_topic("t", 60)
    settle(*members)
    assert len(owners(*members)) == 60
    assert world.hosted().state is ConsumerGroupState.STABLE


def test_members_go_on_with_the_next_coordinator(world: ConsumerWorld) -> None:
    members = [NextMember(world) for _ in range(3)]
    settle(*members)
    before = dict(owners(*members))
    world.fail_over()
    settle(*members)
    assert (owners(*members), {member.error for member in members}) == (before, {ErrorCode.NONE})


def test_members_that_the_next_coordinator_never_hears_of_are_fenced(world: ConsumerWorld) -> None:
    lost, other = NextMember(world), NextMember(world)
    settle(lost, other)
    world.fail_over()
    for _ in range(SESSION_MS // HEARTBEAT_MS + 2):
        settle(other, rounds=1)
    settle(other, rounds=2)
    assert len(other.numbers()) == 6


def test_a_member_that_was_to_give_up_when_the_coordinator_fell_is_fenced_in_time(world: ConsumerWorld) -> None:
    stubborn, other = NextMember(world, rebalance_ms=10_000), NextMember(world)
    stubborn.gives_up = False
    stubborn.join()
    other.join()
    stubborn.beat()
    world.fail_over()
    world.pass_ms(9_000)
    stubborn.beat()
    assert [stubborn.error] == [ErrorCode.NONE]
    world.pass_ms(2_000)
    stubborn.beat()
    assert [stubborn.error] == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_a_fence_that_the_log_refuses_comes_later(world: ConsumerWorld) -> None:
    member = NextMember(world)
    settle(member, rounds=1)
    world.log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    world.pass_ms(SESSION_MS + 1)
    assert world.hosted().core.members
    world.log.refusal = None
    world.pass_ms(1_000)
    assert not world.hosted().core.members


def test_a_parked_join_is_sent_to_the_next_coordinator(world: ConsumerWorld) -> None:
    world.log.holds_back = True
    member = NextMember(world)
    member.join()
    world.resign("g")
    world.pass_ms(10)
    assert [member.error] == [ErrorCode.NOT_COORDINATOR]
