"""Loading and giving up partitions with very many groups and offsets: a bounded piece in each turn of the loop."""

from __future__ import annotations

import itertools

import pytest

from barnabas.coordinators.group import loading, membership
from barnabas.coordinators.group.effect_runner import GroupEffectRunner
from barnabas.coordinators.group.loading import GroupLoader
from barnabas.coordinators.group.offsets import GroupOffsets
from barnabas.coordinators.shard import Shard, ShardState
from barnabas.kernel.steps import Steps
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import HeartbeatRequest
from tests.unit.coordinators.group.group_world import GroupWorld, TestMember, stable_group
from tests.unit.coordinators.group.turn_counting import (
    ALLOWED_PER_TURN,
    TurnCount,
    group_name,
    partition_number,
    run_turns,
    write_offsets,
)

GROUPS = 700
OFFSETS = 4


def begin_load(world: GroupWorld, epoch: int = 1) -> None:
    world.log.leaders[world.partition_of(group_name(0))] = epoch
    world.coordinator.on_elected(0, epoch)


def error_of(world: GroupWorld, group_id: str) -> ErrorCode:
    try:
        world.coordinator.fetch_offsets(group_id, [partition_number(0)], require_stable=False)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


@pytest.mark.parametrize(("groups", "offsets"), [(GROUPS, OFFSETS), (1, GROUPS * OFFSETS)])
@pytest.mark.parametrize("batch_records", [1, 7, 5_000])
def test_a_partition_is_loaded_in_pieces(
    world: GroupWorld, monkeypatch: pytest.MonkeyPatch, groups: int, offsets: int, batch_records: int
) -> None:
    write_offsets(world, groups, offsets, times=2, batch_records=batch_records)
    batches = TurnCount(world.loop, monkeypatch, GroupLoader, "replay")
    keys = TurnCount(world.loop, monkeypatch, loading, "read_key")
    restored = TurnCount(world.loop, monkeypatch, loading, "Group")
    expected = TurnCount(world.loop, monkeypatch, membership, "expect_loaded_members")
    begin_load(world)
    first_turn = world.loop.turns
    world.pass_ms(10)
    assert (keys.total, restored.total, expected.total) == (groups * offsets, groups, groups)
    for count in (batches, keys, restored, expected):
        assert count.most_in_a_turn <= ALLOWED_PER_TURN
    assert world.loop.turns - first_turn >= 2 * groups * offsets / ALLOWED_PER_TURN  # every record was looked at, too
    for group in (0, groups // 2, groups - 1):
        for number in (0, offsets - 1):
            assert world.offset(group_name(group), partition_number(number)) == 2


def test_partitions_that_load_at_once_share_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    world = GroupWorld()
    groups = [f"g{number}" for number in range(40)]
    for group_id in groups:
        world.log.leaders[world.partition_of(group_id)] = 1
        world.elect(group_id)
        world.commit(group_id, {partition_number(number): number for number in range(300)})
    partitions = {world.partition_of(group_id) for group_id in groups}
    for partition in partitions:
        world.coordinator.on_resigned(partition.partition, 2)
    keys = TurnCount(world.loop, monkeypatch, loading, "read_key")
    for partition in partitions:
        world.coordinator.on_elected(partition.partition, 3)
        world.log.leaders[partition] = 3
    world.pass_ms(10)
    assert keys.total == 40 * 300
    assert keys.most_in_a_turn <= ALLOWED_PER_TURN
    assert all(world.offset(group_id, partition_number(299)) == 299 for group_id in groups)
    world.close()


def test_requests_are_told_that_the_partition_is_loading(world: GroupWorld) -> None:
    write_offsets(world, GROUPS, OFFSETS)
    begin_load(world)
    told = []
    while world.coordinator.list_groups((), ())[0] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        run_turns(world, 1)
        told.append(error_of(world, group_name(0)))
        heartbeat = HeartbeatRequest(group_id=group_name(0), generation_id=1, member_id="m")
        taken_at_its_word = world.coordinator.heartbeat(heartbeat) is ErrorCode.NONE
        assert taken_at_its_word == (told[-1] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert len(told) > GROUPS * OFFSETS / ALLOWED_PER_TURN
    assert set(told[:-1]) == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    assert told[-1] is ErrorCode.NONE


@pytest.mark.parametrize("turns", range(1, 40, 3))
def test_a_resignation_ends_the_load_wherever_it_is(
    world: GroupWorld, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """Nothing of it is left when the partition is loaded again, from another log."""
    write_offsets(world, GROUPS, OFFSETS)
    partition = world.partition_of(group_name(0))
    keys = TurnCount(world.loop, monkeypatch, loading, "read_key")
    begin_load(world)
    run_turns(world, turns)
    world.coordinator.on_resigned(0, 2)
    assert error_of(world, group_name(0)) is ErrorCode.NOT_COORDINATOR
    looked_at = keys.total
    world.pass_ms(10)
    assert keys.total == looked_at
    assert world.coordinator.list_groups((), ()) == (ErrorCode.NONE, [])
    world.log.delete(partition)
    write_offsets(world, 1, 1, times=3)
    begin_load(world, epoch=3)
    world.pass_ms(10)
    assert world.offset(group_name(0), partition_number(0)) == 3
    assert [group.group_id for group in world.coordinator.list_groups((), ())[1]] == [group_name(0)]


def test_what_was_only_needed_for_loading_is_given_back_in_pieces(
    world: GroupWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaders: list[GroupLoader] = []
    build = GroupLoader.build

    def building(loader: GroupLoader) -> Steps[None]:
        loaders.append(loader)
        return build(loader)

    monkeypatch.setattr(GroupLoader, "build", building)
    write_offsets(world, 10, 1_000)
    begin_load(world)
    sizes = []
    for _ in range(500):
        run_turns(world, 1)
        if loaders:
            sizes.append(len(loaders[0]._latest))
    assert (sizes[0], sizes[-1]) == (10_000, 0)
    assert max(before - after for before, after in itertools.pairwise(sizes)) <= 2 * 4096


@pytest.mark.parametrize(("groups", "offsets"), [(GROUPS, OFFSETS), (1, 20_000)])
def test_groups_are_given_up_in_pieces(
    world: GroupWorld, monkeypatch: pytest.MonkeyPatch, groups: int, offsets: int
) -> None:
    write_offsets(world, groups, offsets)
    begin_load(world)
    world.pass_ms(10)
    kept = [handle.group.offsets for handle in world.coordinator._groups.values()]
    unloaded = TurnCount(world.loop, monkeypatch, GroupEffectRunner, "unload")
    world.coordinator.on_resigned(0, 2)
    assert error_of(world, group_name(groups - 1)) is ErrorCode.NOT_COORDINATOR
    assert unloaded.total <= ALLOWED_PER_TURN
    assert any(map(len, kept))
    world.pass_ms(10)
    assert unloaded.total == groups
    assert unloaded.most_in_a_turn <= ALLOWED_PER_TURN
    assert not any(map(len, kept))


def test_members_that_wait_are_answered_wherever_their_group_is(world: GroupWorld) -> None:
    """And none of them gets a generation of a coordinator that has resigned, whatever rings meanwhile."""
    world.coordinator.place(1)
    world.log.leaders[world.partition_of("g")] = 1
    world.elect("g")
    members = [TestMember(world, group_name(number), rebalance_ms=60_000) for number in range(GROUPS)]
    stable_group(world, *members[:1])
    for member in members[1:]:
        member.join_fully()
    world.pass_ms(world.settings.initial_rebalance_delay_ms - 1)
    answered = [len(member.joined) for member in members]
    world.coordinator.on_resigned(0, 2)
    world.loop.time_passes(1)
    world.pass_ms(10)
    assert [len(member.joined) for member in members[1:]] == [count + 1 for count in answered[1:]]
    assert {member.join_error for member in members[1:]} == {ErrorCode.NOT_COORDINATOR}


def test_appends_under_way_are_ended_in_pieces(world: GroupWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.coordinator.place(1)
    world.elect("g")
    world.log.holds_back = True
    outcomes = [world.commit(group_name(number), {partition_number(0): 1}) for number in range(GROUPS)]
    ended = TurnCount(world.loop, monkeypatch, GroupOffsets, "settle")
    world.coordinator.on_resigned(0, 2)
    world.pass_ms(10)
    assert outcomes == [[{partition_number(0): ErrorCode.NOT_COORDINATOR}]] * GROUPS
    assert ended.most_in_a_turn <= ALLOWED_PER_TURN


def test_stopping_waits_for_what_is_given_up(world: GroupWorld) -> None:
    write_offsets(world, GROUPS, OFFSETS)
    begin_load(world)
    world.pass_ms(10)
    kept = [handle.group for handle in world.coordinator._groups.values()]
    world.loop.run_until_complete(world.coordinator.stop())
    assert all(group.state.value == "Dead" for group in kept)
    assert not any(len(group.offsets) for group in kept)


def test_a_shard_that_resigns_before_its_members_are_expected_expects_none(
    world: GroupWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_offsets(world, GROUPS, 1)
    expected = TurnCount(world.loop, monkeypatch, membership, "expect_loaded_members")
    begin_load(world)
    shard: Shard[object] = world.coordinator._runtime._shards[0]  # type: ignore[assignment]
    while shard.state is not ShardState.ACTIVE or not expected.total:
        run_turns(world, 1)
    world.coordinator.on_resigned(0, 2)
    seen = expected.total
    world.pass_ms(10)
    assert 0 < expected.total == seen < GROUPS
