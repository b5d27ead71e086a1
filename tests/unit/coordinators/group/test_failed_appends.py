"""What a group is after an append that failed: what the log says, as whoever loads it next finds. Nothing where the log
refused the records, and all of them where they were written and not committed in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition
from tests.unit.coordinators.group.group_world import GroupWorld, TestMember, stable_group
from tests.unit.coordinators.memory_log import nothing

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
BEFORE = {T0: 1, T1: 2, U0: 3}
MONTH_MS = 31 * 24 * 60 * 60 * 1000
REFUSALS = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.MESSAGE_TOO_LARGE]
OUTCOMES = [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.NONE]


@pytest.fixture
def world() -> Iterator[GroupWorld]:
    world = GroupWorld()
    world.elect("g")
    yield world
    world.close()


def durable(world: GroupWorld) -> dict[str, Any]:
    """What there is of each group that does not go with its coordinator."""
    return {
        group_id: {partition: handle.group.offsets.get(partition) for partition in handle.group.offsets.partitions}
        for group_id, handle in world.coordinator._groups.items()
    }


def loaded(world: GroupWorld) -> dict[str, Any]:
    """The same of another coordinator that loads the log."""
    other = GroupWorld()
    other.scheduler.tasks["delete-expired-group-metadata"].cancel()
    other.log.batches, other.log.end_offsets = world.log.batches, world.log.end_offsets
    other.elect("g", 99)
    found = durable(other)
    other.close()
    return found


def commit(world: GroupWorld) -> None:
    world.commit("g", {T0: 7, U0: 8})


def delete_offsets(world: GroupWorld) -> None:
    world.coordinator.delete_offsets("g", [T0, U0], nothing)


def delete_group(world: GroupWorld) -> None:
    world.coordinator.delete_groups(["g"], nothing)


def delete_topic(world: GroupWorld) -> None:
    world.coordinator.on_partitions_deleted([T0, T1])


def expire(world: GroupWorld) -> None:
    world.loop.time_passes(MONTH_MS / 1000)
    world.loop.run_until_complete(world.coordinator._deletions.expire_offsets())


OF_OFFSETS = [commit, delete_offsets, delete_group, delete_topic, expire]


def had_members(world: GroupWorld) -> None:
    """The group has been through a generation, and is empty."""
    member = TestMember(world)
    stable_group(world, member)
    member.leave()
    world.commit("g", BEFORE)


@pytest.mark.parametrize("has_record", [False, True])
@pytest.mark.parametrize("act", OF_OFFSETS)
@pytest.mark.parametrize("refusal", REFUSALS)
def test_offsets_that_are_refused_change_nothing(
    world: GroupWorld, has_record: bool, act: Callable[[GroupWorld], None], refusal: ErrorCode
) -> None:
    if has_record:
        had_members(world)
    else:
        world.commit("g", BEFORE)
    before = durable(world)
    records = len(world.log.records(world.partition_of("g")))
    world.log.refusal = refusal
    act(world)
    world.pass_ms(10)
    assert len(world.log.records(world.partition_of("g"))) == records
    assert durable(world) == before == loaded(world)


@pytest.mark.parametrize("has_record", [False, True])
@pytest.mark.parametrize("act", OF_OFFSETS)
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_offsets_that_are_written_are_there_whatever_comes_of_them(
    world: GroupWorld, has_record: bool, act: Callable[[GroupWorld], None], outcome: ErrorCode
) -> None:
    if has_record:
        had_members(world)
    else:
        world.commit("g", BEFORE)
    before = durable(world)
    world.log.holds_back = True
    act(world)
    world.log.release(outcome)
    world.pass_ms(10)
    assert durable(world) == loaded(world) != before


@pytest.mark.parametrize("act", OF_OFFSETS[1:])
@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("refusal", [None, *REFUSALS])
def test_a_commit_on_its_way_beside_a_deletion(
    world: GroupWorld, act: Callable[[GroupWorld], None], outcome: ErrorCode, refusal: ErrorCode | None
) -> None:
    world.commit("g", BEFORE)
    world.log.holds_back = True
    world.commit("g", {T0: 7, T1: 8})
    world.log.refusal = refusal
    act(world)
    world.log.refusal = None
    world.log.release(outcome)
    world.pass_ms(10)
    assert durable(world) == loaded(world)


def test_a_piece_of_a_deletion_that_is_refused(world: GroupWorld) -> None:
    partitions = [TopicPartition("t", number) for number in range(600)]
    world.commit("g", dict.fromkeys(partitions, 1))
    world.pass_ms(10)
    delete_group(world)
    world.log.refusal = ErrorCode.KAFKA_STORAGE_ERROR
    world.pass_ms(10)
    assert 0 < len(durable(world)["g"]) < len(partitions)
    assert durable(world) == loaded(world)


def test_an_append_of_a_shard_that_has_resigned_is_refused(world: GroupWorld) -> None:
    world.commit("g", BEFORE)
    shard = world.coordinator._groups["g"].shard
    world.resign("g", 2)
    replayed: list[int] = []
    with pytest.raises(KafkaError, match="NOT_LEADER_OR_FOLLOWER"):
        shard.append([(b"key", b"value")], 0, replayed.append, nothing)
    with pytest.raises(KafkaError, match="NOT_LEADER_OR_FOLLOWER"):
        shard.append_unacknowledged([(b"key", b"value")], 0, replayed.append)
    assert not replayed


@pytest.mark.parametrize("holds_back", [False, True])
def test_records_are_replayed_before_their_outcome_is_told(world: GroupWorld, holds_back: bool) -> None:
    world.commit("g", BEFORE)
    shard = world.coordinator._groups["g"].shard
    told: list[object] = []
    world.log.holds_back = holds_back
    shard.append([(b"key", b"value")], 0, told.append, told.append)
    assert told == [3] if holds_back else [3, ErrorCode.NONE]
    world.log.release(ErrorCode.NONE)
    assert told == [3, ErrorCode.NONE]
