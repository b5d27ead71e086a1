"""A commit of very many offsets: one batch, and what becomes of it a bounded piece in each turn of the loop."""

from __future__ import annotations

import pytest

from barnabas.coordinators.group import commits
from barnabas.coordinators.group.offsets import GroupOffsets
from barnabas.wire.errors import ErrorCode
from tests.unit.coordinators.group.group_world import GroupWorld
from tests.unit.coordinators.group.turn_counting import TurnCount, partition_number

pytestmark = pytest.mark.usefixtures("leads_g")

MANY = 5_000
PARTITIONS = [partition_number(number) for number in range(MANY)]
OFFSETS = {partition: number for number, partition in enumerate(PARTITIONS)}


def seen(world: GroupWorld) -> list[int | None]:
    return [world.offset("g", partition) for partition in PARTITIONS]


@pytest.mark.parametrize("holds_back", [False, True])
def test_offsets_are_seen_in_pieces(world: GroupWorld, monkeypatch: pytest.MonkeyPatch, holds_back: bool) -> None:
    applied = TurnCount(world.loop, monkeypatch, GroupOffsets, "settle")
    world.log.holds_back = holds_back
    outcome = world.commit("g", OFFSETS)
    world.log.release()
    assert (outcome, applied.total) == ([], commits._APPLIED_PER_STEP)
    (unstable,) = world.coordinator.fetch_offsets("g", PARTITIONS[-1:], require_stable=True)
    assert unstable.error is ErrorCode.UNSTABLE_OFFSET_COMMIT
    world.pass_ms(10)
    assert outcome == [dict.fromkeys(PARTITIONS, ErrorCode.NONE)]
    assert (applied.total, applied.most_in_a_turn) == (MANY, commits._APPLIED_PER_STEP)
    assert seen(world) == list(range(MANY))
    world.resign("g", 2)
    world.elect("g", 3)
    assert seen(world) == list(range(MANY))


def test_a_commit_that_the_topic_does_not_take_is_refused_as_a_whole(
    world: GroupWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.commit("g", {PARTITIONS[0]: 7})
    staged = TurnCount(world.loop, monkeypatch, GroupOffsets, "replay_pending")
    world.log.batch_bytes_max = 100_000
    outcome = world.commit("g", OFFSETS)
    world.pass_ms(10)
    assert outcome == [dict.fromkeys(PARTITIONS, ErrorCode.INVALID_COMMIT_OFFSET_SIZE)]
    assert staged.total == 0
    assert seen(world) == [7] + [None] * (MANY - 1)


def test_a_later_commit_is_not_replaced_by_what_is_seen_after_it(world: GroupWorld) -> None:
    world.commit("g", OFFSETS)
    assert world.commit("g", {PARTITIONS[-1]: 1}) == [{PARTITIONS[-1]: ErrorCode.NONE}]
    world.pass_ms(10)
    assert world.offset("g", PARTITIONS[-1]) == 1
    assert world.offset("g", PARTITIONS[-2]) == MANY - 2


def test_stopping_waits_until_a_commit_is_answered(world: GroupWorld) -> None:
    outcome = world.commit("g", OFFSETS)
    world.loop.run_until_complete(world.coordinator.stop())
    assert outcome == [dict.fromkeys(PARTITIONS, ErrorCode.NONE)]
