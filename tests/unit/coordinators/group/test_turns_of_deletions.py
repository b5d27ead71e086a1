"""Offsets that expire or whose topics are deleted, very many of them: a bounded piece in each turn of the loop, between
which commits go on and are not lost.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from barnabas.coordinators.group import deletions
from barnabas.coordinators.group.offsets import GroupOffsets
from barnabas.wire.batch_formats import read_records
from barnabas.wire.errors import ErrorCode, KafkaError
from tests.unit.coordinators.group.group_world import GroupWorld
from tests.unit.coordinators.group.turn_counting import (
    ALLOWED_PER_TURN,
    TurnCount,
    elect,
    group_name,
    load,
    partition_number,
    run_turns,
    seen,
)

SHAPES = [(700, 4), (1, 2_800)]
WEEK_MS = 7 * 24 * 60 * 60 * 1000
GROUPS, OFFSETS = 20, 60


@pytest.mark.parametrize(("groups", "offsets"), SHAPES)
def test_offsets_of_deleted_topics_go_in_pieces_and_are_seen_no_more_at_once(
    world: GroupWorld, monkeypatch: pytest.MonkeyPatch, groups: int, offsets: int
) -> None:
    load(world, groups, offsets)
    looked_at = TurnCount(world.loop, monkeypatch, GroupOffsets, "is_written")
    written = TurnCount(world.loop, monkeypatch, deletions, "offset_key")
    world.coordinator.on_partitions_deleted([partition_number(number) for number in range(offsets)])
    for group, number in ((0, 0), (groups - 1, 0), (groups - 1, offsets - 1)):
        assert world.offset(group_name(group), partition_number(number)) is None
    assert world.coordinator.fetch_offsets(group_name(groups - 1), None, require_stable=True) == []
    assert written.total <= ALLOWED_PER_TURN
    world.pass_ms(10)
    assert written.total == groups * offsets
    assert max(looked_at.most_in_a_turn, written.most_in_a_turn) <= ALLOWED_PER_TURN
    assert world.coordinator.list_groups((), ())[1] == []
    world.coordinator.on_resigned(0, 2)
    elect(world, 3)
    assert seen(world, 1, offsets) == {}


@pytest.mark.parametrize(("groups", "offsets"), SHAPES)
def test_offsets_expire_in_pieces(
    world: GroupWorld, monkeypatch: pytest.MonkeyPatch, groups: int, offsets: int
) -> None:
    load(world, groups, offsets)
    written = TurnCount(world.loop, monkeypatch, deletions, "offset_key")
    world.loop.time_passes(WEEK_MS / 1000)
    world.loop.run_until_complete(world.coordinator._deletions.expire_offsets())
    assert written.total == groups * offsets
    assert written.most_in_a_turn <= ALLOWED_PER_TURN
    assert world.coordinator.list_groups((), ())[1] == []


def test_tombstones_are_in_batches_that_a_topic_takes(world: GroupWorld) -> None:
    long_name = "g" * 30_000
    world.coordinator.place(1)
    world.elect(long_name)
    world.commit(long_name, {partition_number(number): 1 for number in range(20)})
    partition = world.partition_of(long_name)
    before = len(world.log.batches[partition])
    world.coordinator.on_partitions_deleted([partition_number(number) for number in range(20)])
    batches = world.log.batches[partition][before:]
    assert sum(len(list(read_records(batch))) for batch in batches) == 20
    assert all(len(batch) < 70_000 for batch in batches)
    assert len(batches) >= 10


def test_what_cannot_be_written_off_stays(world: GroupWorld) -> None:
    load(world, GROUPS, OFFSETS)
    world.log.refusal = ErrorCode.MESSAGE_TOO_LARGE
    world.coordinator.on_partitions_deleted([partition_number(number) for number in range(10)])
    world.pass_ms(10)
    assert len(seen(world, GROUPS, OFFSETS)) == GROUPS * OFFSETS


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("expires", [False, True])
def test_no_commit_between_two_pieces_is_lost(world: GroupWorld, seed: int, expires: bool) -> None:
    """Topics are deleted and made anew at once, or all that is old expires, while groups commit, in any turn.
    What is seen is exactly what was committed since, and at no time anything of before the deletion; also when the
    partition is loaded anew.
    """
    chance = random.Random(seed)
    load(world, GROUPS, OFFSETS)
    gone = set(chance.sample(range(OFFSETS), OFFSETS if expires else chance.randrange(1, OFFSETS)))
    run: asyncio.Task[None] | None = None
    if expires:
        world.loop.time_passes(WEEK_MS / 1000)
        run = world.loop.create_task(world.coordinator._deletions.expire_offsets())
        run_turns(world, chance.randrange(4))
    else:
        world.coordinator.on_partitions_deleted([partition_number(number) for number in gone])
    committed = {}
    for count in range(chance.randrange(1, 40)):
        run_turns(world, chance.randrange(3))
        group, number, offset = chance.randrange(GROUPS), chance.randrange(OFFSETS), 1000 + count
        refusals = (None, None, None, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR)
        world.log.refusal = chance.choice(refusals)
        (outcome,) = world.commit(group_name(group), {partition_number(number): offset})
        if outcome[partition_number(number)] is ErrorCode.NONE:
            committed[group, number] = offset
        world.log.refusal = None
        if not expires:
            asked = chance.randrange(GROUPS), chance.choice(sorted(gone))
            assert world.offset(group_name(asked[0]), partition_number(asked[1])) == committed.get(asked)
    if run is not None:
        world.loop.run_until_complete(run)
    else:
        world.pass_ms(10)
    untouched = {(group, number): 1 for group in range(GROUPS) for number in set(range(OFFSETS)) - gone}
    assert seen(world, GROUPS, OFFSETS) == untouched | committed
    world.coordinator.on_resigned(0, 2)
    elect(world, 3)
    assert seen(world, GROUPS, OFFSETS) == untouched | committed


def test_groups_that_are_loaded_while_offsets_go_keep_theirs(world: GroupWorld) -> None:
    """What they have in the log may have been committed after the topic was made anew: that is not known."""
    load(world, *SHAPES[1])
    world.coordinator.on_partitions_deleted([partition_number(number) for number in range(SHAPES[1][1])])
    world.coordinator.on_resigned(0, 2)
    kept = len(world.log.records(world.partition_of(group_name(0))))
    elect(world, 3)
    assert len(seen(world, *SHAPES[1])) == 2 * SHAPES[1][1] - kept > 0


def test_stopping_ends_what_goes_in_pieces(world: GroupWorld) -> None:
    load(world, *SHAPES[0])
    world.coordinator.on_partitions_deleted([partition_number(0)])
    world.loop.run_until_complete(world.coordinator.stop())
    with pytest.raises(KafkaError):
        world.offset(group_name(0), partition_number(0))
    assert not world.coordinator._deletions._topic_deletions
