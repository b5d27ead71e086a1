"""What a coordinator shows is what its log says: whoever loads the log shows the same, in whatever order commits,
deletions of topics, of offsets and of groups, and expiry came, and however late they were committed.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from barnabas.wire.errors import ErrorCode, KafkaError
from tests.unit.coordinators.group.group_world import GroupWorld
from tests.unit.coordinators.group.turn_counting import elect, group_name, load, partition_number, run_turns, seen

GROUPS, OFFSETS = 12, 60
WEEK_MS = 7 * 24 * 60 * 60 * 1000


@pytest.mark.parametrize("seed", range(40))
def test_whoever_loads_the_log_shows_the_same(world: GroupWorld, seed: int) -> None:
    chance = random.Random(seed)
    load(world, GROUPS, OFFSETS)
    coordinator = world.coordinator
    runs: list[asyncio.Task[None]] = []
    for count in range(chance.randrange(5, 60)):
        run_turns(world, chance.randrange(3))
        world.log.holds_back = chance.random() < 0.7
        world.log.refusal = ErrorCode.KAFKA_STORAGE_ERROR if chance.random() < 0.1 else None
        group = group_name(chance.randrange(GROUPS))
        some = [partition_number(number) for number in chance.sample(range(OFFSETS), chance.randrange(1, 12))]
        try:
            match chance.randrange(12):
                case 0:
                    coordinator.on_partitions_deleted(some)
                case 1:
                    coordinator.delete_offsets(group, some, lambda _: None)
                case 2:
                    coordinator.delete_groups([group], lambda _: None)
                case 3 if chance.random() < 0.3:
                    world.loop.time_passes(WEEK_MS / 1000)
                    runs.append(world.loop.create_task(coordinator._deletions.expire_offsets()))
                case 4 | 5:
                    world.log.release()
                case _:
                    world.commit(group, dict.fromkeys(some, 1000 + count))
        except KafkaError:
            pass  # the group is not there
    world.log.holds_back = False
    world.log.refusal = None
    world.log.release()
    for run in runs:
        world.loop.run_until_complete(run)
    world.pass_ms(10)
    shown = seen(world, GROUPS, OFFSETS)
    coordinator.on_resigned(0, 2)
    elect(world, 3)
    assert seen(world, GROUPS, OFFSETS) == shown


def test_a_commit_that_is_refused_takes_nothing_from_the_one_before(world: GroupWorld) -> None:
    load(world, 1, 1)
    world.log.holds_back = True
    before = world.commit(group_name(0), {partition_number(0): 7})
    world.log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    world.commit(group_name(0), {partition_number(0): 8})
    world.log.release()
    assert before == [{partition_number(0): ErrorCode.NONE}]
    assert world.offset(group_name(0), partition_number(0)) == 7


def test_what_was_being_committed_of_a_deleted_topic_is_not_loaded_again(world: GroupWorld) -> None:
    load(world, 1, 1)
    world.log.holds_back = True
    world.commit(group_name(0), {partition_number(1): 7})
    world.coordinator.on_partitions_deleted([partition_number(1)])
    world.log.release()
    assert seen(world, 1, 2) == {(0, 0): 1}
    world.coordinator.on_resigned(0, 2)
    elect(world, 3)
    assert seen(world, 1, 2) == {(0, 0): 1}
