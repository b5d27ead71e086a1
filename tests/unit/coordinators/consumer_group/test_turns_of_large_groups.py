"""Groups of a thousand members and ten thousand partitions: a bounded piece of work in each turn of the loop."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.coordinators.consumer_group import coordinator, targets
from barnabas.coordinators.consumer_group.states import ConsumerGroupState
from tests.unit.coordinators.consumer_group.consumer_world import (
    SESSION_MS,
    ConsumerWorld,
    NextMember,
    owners,
)
from tests.unit.coordinators.group.turn_counting import TurnCount, run_turns

MEMBERS = 300
PARTITIONS = 3_000
ALLOWED_PER_TURN = 2 * coordinator._MEMBERS_PER_STEP


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_many_who_join_share_assignments_and_go_on_in_pieces(
    world: ConsumerWorld, assignor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.make_topic("t", PARTITIONS)
    answered = TurnCount(world.loop, monkeypatch, coordinator.ConsumerGroups, "_reconcile")
    made = []
    assigned_anew = targets.assigned_anew

    def counted(*arguments: Any) -> Any:
        made.append(arguments)
        return assigned_anew(*arguments)

    monkeypatch.setattr(coordinator, "assigned_anew", counted)
    members = [NextMember(world, assignor=assignor) for _ in range(MEMBERS)]
    for member in members:
        member.join(waits=False)
    world.pass_ms(100)
    assert len(made) < MEMBERS / 10
    assert (answered.total, answered.most_in_a_turn <= ALLOWED_PER_TURN) == (MEMBERS, True)
    for _ in range(3):
        for member in members:
            member.beat(waits=False)
        world.pass_ms(10)
    assert len(owners(*members)) == PARTITIONS
    assert world.hosted().state is ConsumerGroupState.STABLE


def test_very_many_sessions_that_end_at_once_end_in_pieces(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.make_topic("t", PARTITIONS)
    for _ in range(MEMBERS):
        NextMember(world).join(waits=False)
    world.pass_ms(100)
    fenced = TurnCount(world.loop, monkeypatch, coordinator, "remove")
    world.pass_ms(SESSION_MS + 100)
    assert (fenced.total, fenced.most_in_a_turn <= ALLOWED_PER_TURN) == (MEMBERS, True)
    assert world.hosted().is_empty


def test_members_may_leave_while_their_assignment_is_made(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "_LOOKED_AT_PER_STEP", 3)
    world.make_topic("t", 60)
    members = [NextMember(world, instance_id=f"i{number}") for number in range(12)]
    for member in members:
        member.join()
    gone, stays = members[3:6], members[6:]
    for member in stays:
        member.topics = frozenset({"t", "later"})
        member.beat(is_full=True, waits=False)
    run_turns(world, 4)
    assert world.hosted().is_assigning
    for member in gone:
        member.beat(epoch=-1, owned=None, waits=False)
        member.owned = {}
    world.pass_ms(10)
    back = NextMember(world, instance_id="i6")
    stays[0].leave(-2)
    back.join()
    world.pass_ms(10)
    for _ in range(6):
        for member in (*members[:3], *stays[1:], back):
            member.beat()
        world.pass_ms(10)
    assert len(owners(*members[:3], *stays[1:], back)) == 60
    assert set(world.hosted().core.targets) == set(world.hosted().core.members)
    world.fail_over()
    assert world.hosted().state is ConsumerGroupState.STABLE
