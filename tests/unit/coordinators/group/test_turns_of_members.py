"""Groups of very many members: when a rebalance ends, a bounded piece of them is answered in each turn of the loop."""

from __future__ import annotations

from collections import Counter

import pytest

from barnabas.coordinators.group.effects import Reply
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import SyncGroupRequest
from tests.unit.coordinators.group.group_world import BEFORE_MEMBER_IDS, GroupWorld, TestMember
from tests.unit.coordinators.group.turn_counting import ALLOWED_PER_TURN, TurnCount

pytestmark = pytest.mark.usefixtures("leads_g")

MANY = 1_500
FIRST_REBALANCE_MS = 7_000


def join_many(world: GroupWorld) -> list[TestMember]:
    """Members whose first rebalance has not ended."""
    members = [TestMember(world, "g") for _ in range(MANY)]
    for member in members:
        member.join(BEFORE_MEMBER_IDS)
    return members


def test_joins_and_assignments_are_answered_in_pieces(world: GroupWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    joined = TurnCount(world.loop, monkeypatch, TestMember, "_joined")
    members = join_many(world)
    world.pass_ms(FIRST_REBALANCE_MS)
    assert (joined.total, joined.most_in_a_turn <= ALLOWED_PER_TURN) == (MANY, True)
    assert {(member.join_error, member.generation) for member in members} == {(ErrorCode.NONE, 1)}
    synced: Counter[int] = Counter()
    sync_group = world.coordinator.sync_group

    def counted(request: SyncGroupRequest, reply: Reply) -> None:
        def answered(response: object) -> None:
            synced[world.loop.turns] += 1
            reply(response)

        sync_group(request, answered)

    monkeypatch.setattr(world.coordinator, "sync_group", counted)
    (leader,) = [member for member in members if member.is_leader]
    for member in members:
        if member is not leader:
            member.sync()
    leader.assign()
    world.pass_ms(10)
    assert (synced.total(), max(synced.values()) <= ALLOWED_PER_TURN) == (MANY, True)
    assert all(member.synced[-1].assignment == member.member_id.encode() for member in members)


def test_each_is_answered_once_when_the_group_goes_meanwhile(world: GroupWorld) -> None:
    members = join_many(world)
    while not any(member.joined for member in members):
        world.pass_ms(100)
    member = members[0]
    assert member.leave() is ErrorCode.NONE
    world.resign("g", 2)
    world.pass_ms(FIRST_REBALANCE_MS)
    assert {len(member.joined) for member in members} == {1}
    assert {member.generation for member in members} == {1}
    assert {member.heartbeat() for member in members[:3]} == {ErrorCode.NOT_COORDINATOR}


def test_each_is_told_that_another_broker_has_the_group(world: GroupWorld) -> None:
    members = join_many(world)
    world.resign("g", 2)
    world.pass_ms(10)
    assert {(len(member.joined), member.join_error) for member in members} == {(1, ErrorCode.NOT_COORDINATOR)}


def test_the_leadership_passes_on_in_the_order_in_which_members_came(world: GroupWorld) -> None:
    members = join_many(world)
    world.pass_ms(FIRST_REBALANCE_MS)
    for member in members[:10]:
        assert world.group("g").members.leader_id == member.member_id
        member.leave()
    assert world.group("g").members.leader_id == members[10].member_id
