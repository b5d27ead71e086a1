"""Offsets that were written and not committed in time: seen when the high watermark passes them, and not before."""

from __future__ import annotations

import random

import pytest

from barnabas.coordinators.group.commits import Codes
from barnabas.wire.errors import ErrorCode
from barnabas.wire.topics import TopicPartition
from tests.unit.coordinators.group.group_world import GroupWorld

pytestmark = pytest.mark.usefixtures("leads_g")

TIMED_OUT = ErrorCode.REQUEST_TIMED_OUT
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
PARTITIONS = [TopicPartition("t", number) for number in range(4)]
HOUR_SECONDS = 3600


def commit_in_doubt(world: GroupWorld, offset: int) -> list[Codes]:
    world.log.holds_back = True
    outcome = world.commit("g", {T0: offset})
    world.log.release(TIMED_OUT)
    world.log.holds_back = False
    return outcome


def test_is_not_seen_before_it_is_committed(world: GroupWorld) -> None:
    world.commit("g", {T0: 1})
    assert commit_in_doubt(world, 2) == [{T0: TIMED_OUT}]
    (fetched,) = world.coordinator.fetch_offsets("g", [T0], require_stable=True)
    assert fetched.error is ErrorCode.NONE, "Apache Kafka has forgotten it"
    assert world.offset("g", T0) == 1
    world.log.release_late()
    assert world.offset("g", T0) == 2


def test_is_decided_by_the_log_when_another_shard_loads_it(world: GroupWorld) -> None:
    commit_in_doubt(world, 2)
    assert world.offset("g", T0) is None
    world.resign("g", 2)
    world.elect("g", 3)
    assert world.offset("g", T0) == 2
    world.commit("g", {T0: 3})
    world.log.release_late()
    assert world.offset("g", T0) == 3, "what the shard before waited for is not this one's"


def test_does_not_replace_what_was_committed_behind_it(world: GroupWorld) -> None:
    commit_in_doubt(world, 2)
    world.commit("g", {T0: 1})
    assert world.offset("g", T0) == 1
    world.log.release_late()
    assert world.offset("g", T0) == 1


def test_of_several_the_last_is_kept(world: GroupWorld) -> None:
    for offset in (2, 3, 4):
        commit_in_doubt(world, offset)
    world.log.late.pop(0)[1](ErrorCode.NONE)
    assert world.offset("g", T0) is None
    world.log.late.pop(0)[1](ErrorCode.NONE)
    assert world.offset("g", T0) == 4


def test_one_waits_however_many_are_in_doubt(world: GroupWorld) -> None:
    for offset in range(100):
        commit_in_doubt(world, offset)
    assert len(world.log.late) == 1
    handle = world.coordinator._groups["g"]
    assert len(handle.shard._late) == 1
    world.log.release_late()
    assert world.offset("g", T0) == 99
    assert not handle.shard._late


def test_those_of_other_partitions_that_are_committed_are_seen_before_the_last(world: GroupWorld) -> None:
    world.log.holds_back = True
    world.commit("g", {T0: 1})
    world.log.release(TIMED_OUT)
    world.commit("g", {T1: 2})
    world.log.release(TIMED_OUT)
    world.log.late.pop(0)[1](ErrorCode.NONE)
    assert (world.offset("g", T0), world.offset("g", T1)) == (1, None)
    world.log.release_late()
    assert world.offset("g", T1) == 2


def test_a_deletion_takes_it_away(world: GroupWorld) -> None:
    world.commit("g", {T1: 1})
    commit_in_doubt(world, 2)
    world.coordinator.on_partitions_deleted([T0])
    world.log.release_late()
    world.pass_ms(10)
    assert world.offset("g", T0) is None
    world.resign("g", 2)
    world.elect("g", 3)
    assert world.offset("g", T0) is None


def test_keeps_its_group_and_what_is_before_it_from_expiring(world: GroupWorld) -> None:
    commit_in_doubt(world, 2)
    world.loop.time_passes(30 * 24 * HOUR_SECONDS)
    world.loop.run_until_complete(world.coordinator._deletions.expire_offsets())
    world.log.release_late()
    assert world.offset("g", T0) == 2


@pytest.mark.parametrize("seed", range(60))
def test_what_is_seen_is_what_the_log_has_below_the_high_watermark(world: GroupWorld, seed: int) -> None:
    """In whatever order commits come, are told to be late, and are committed; but for what several in doubt would have
    shown for a while.
    """
    chance = random.Random(seed)
    written: list[tuple[int, dict[TopicPartition, int]]] = []
    in_doubt: set[int] = set()
    high_watermark = 0
    world.log.holds_back = True
    for count in range(1, 40):
        match chance.randrange(4):
            case 0 | 1:
                some = dict.fromkeys(chance.sample(PARTITIONS, chance.randrange(1, 4)), count)
                written.append((world.log.end_offsets.get(world.partition_of("g"), 0), some))
                world.commit("g", some)
            case 2:
                late = [base for base, _ in written if base >= high_watermark and base not in in_doubt]
                in_doubt.update(late)
                world.log.release(TIMED_OUT)
            case 3:
                high_watermark = world.log.end_offsets.get(world.partition_of("g"), 0)
                world.log.release_late()
                world.log.release()
        seen = {partition: world.offset("g", partition) for partition in PARTITIONS}
        expected: dict[TopicPartition, int | None] = dict.fromkeys(PARTITIONS)
        for base, some in written:
            if base < high_watermark:
                expected.update(some)
        assert seen == expected
    assert in_doubt
