"""The first assignment of a group of the consumer protocol waits for who joins at the same time."""

from __future__ import annotations

import pytest

from tests.unit.coordinators.consumer_group.consumer_world import ConsumerWorld, FakeTopics, NextMember, owners

DELAY_MS = 3_000
QUIET_MS = 100


def test_members_that_come_one_after_another_own_their_shares_with_their_first_answers() -> None:
    world = ConsumerWorld(FakeTopics(t=40), initial_rebalance_delay_ms=DELAY_MS)
    members = [NextMember(world) for _ in range(20)]
    for member in members:
        assert member.join(waits=False) is None
        world.pass_ms(QUIET_MS * 0.8)
    world.pass_ms(QUIET_MS * 1.2)
    assert [len(member.answers) for member in members] == [1] * len(members)
    assert [len(member.numbers()) for member in members] == [2] * len(members)
    assert len(owners(*members)) == 40
    assert {member.epoch for member in members} == {len(members)}
    world.close()


def test_one_that_comes_alone_waits_for_a_moment_only() -> None:
    world = ConsumerWorld(initial_rebalance_delay_ms=DELAY_MS)
    member = NextMember(world)
    member.join(waits=False)
    world.pass_ms(QUIET_MS * 0.9)
    assert not member.answers
    world.pass_ms(QUIET_MS * 0.2)
    assert member.numbers() == [0, 1, 2, 3, 4, 5]
    world.close()


@pytest.mark.parametrize(("delay_ms", "waited_ms"), [(DELAY_MS, DELAY_MS), (60_000, 10_000)])
def test_who_keeps_coming_is_waited_for_as_long_as_in_the_classic_protocol_within_a_bound(
    delay_ms: int, waited_ms: int
) -> None:
    world = ConsumerWorld(FakeTopics(t=500), initial_rebalance_delay_ms=delay_ms)
    members: list[NextMember] = []
    while not members or not members[0].answers:
        members.append(NextMember(world))
        members[-1].join(waits=False)
        world.pass_ms(QUIET_MS / 2)
        assert len(members) < 300
    assert (len(members) - 1) * QUIET_MS / 2 <= waited_ms < (len(members) + 2) * QUIET_MS / 2
    world.close()


def test_a_group_that_owns_something_and_one_without_a_delay_are_not_held_up() -> None:
    world = ConsumerWorld(initial_rebalance_delay_ms=DELAY_MS)
    first = NextMember(world)
    first.join(waits=False)
    world.pass_ms(2 * QUIET_MS)
    assert NextMember(world).join() is not None
    world.close()
    world = ConsumerWorld(initial_rebalance_delay_ms=0)
    assert NextMember(world).join() is not None
    world.close()


@pytest.mark.parametrize("goes_on", [False, True])
def test_who_waits_when_the_coordinator_moves_is_told(goes_on: bool) -> None:
    world = ConsumerWorld(initial_rebalance_delay_ms=DELAY_MS)
    member = NextMember(world)
    member.join(waits=False)
    world.resign("g")
    if goes_on:
        world.elect("g", 2)
    world.pass_ms(3 * QUIET_MS)
    assert member.answers[-1].error_code
    if goes_on:
        member.join(waits=False)
        world.pass_ms(3 * QUIET_MS)
        assert not member.answers[-1].error_code
        assert len(member.numbers()) == 3, "the other half is for whom it was, with an id that it was never told"
    world.close()


@pytest.mark.parametrize("session_ms", [300, 1_000, 6_000])
def test_nobody_is_fenced_while_his_request_waits(session_ms: int) -> None:
    world = ConsumerWorld(FakeTopics(t=500), initial_rebalance_delay_ms=60_000, consumer_session_timeout_ms=session_ms)
    members: list[NextMember] = []
    while not members or not members[0].answers:
        members.append(NextMember(world))
        members[-1].join(waits=False)
        world.pass_ms(QUIET_MS / 2)
        assert len(members) < 300
    assert not members[0].answers[0].error_code
    assert (len(members) - 2) * QUIET_MS / 2 <= session_ms / 2
    world.close()
