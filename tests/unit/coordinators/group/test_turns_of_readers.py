"""What looks at all groups: lists in pieces, and gauges by one walk for all that are read in a turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from barnabas.coordinators.group.group import Group
from barnabas.coordinators.group.offsets import GroupOffsets
from barnabas.kernel.metrics import Gauge
from barnabas.wire.errors import ErrorCode
from tests.unit.coordinators.group.group_world import GroupWorld, TestMember, stable_group
from tests.unit.coordinators.group.turn_counting import TurnCount, group_name, write_offsets

GROUPS = 5_000


@pytest.fixture
def world() -> Iterator[GroupWorld]:
    world = GroupWorld()
    write_offsets(world, GROUPS, 2, batch_records=1_000)
    world.log.leaders[world.partition_of("g")] = 1
    world.elect("g")
    yield world
    world.close()


def gauges(world: GroupWorld) -> dict[str, float]:
    return {
        name.name + "".join(value for _, value in name.tags): metric.read()
        for name, metric in world.metrics
        if isinstance(metric, Gauge)
    }


def test_groups_are_listed_in_pieces(world: GroupWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = TurnCount(world.loop, monkeypatch, Group, "listed")
    steps = world.coordinator.list_groups_in_steps((), ())
    world.loop.call_soon(world.coordinator.delete_groups, [group_name(GROUPS - 1)], lambda _: None)
    error, groups = world.loop.run_until_complete(world.steps.run(steps))
    assert error is ErrorCode.NONE
    assert {group.group_id for group in groups} == {group_name(number) for number in range(GROUPS - 1)}
    assert listed.total == GROUPS - 1
    assert listed.most_in_a_turn <= 2_048


def test_gauges_of_one_turn_share_a_walk(world: GroupWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = TurnCount(world.loop, monkeypatch, GroupOffsets, "__len__")
    for _ in range(3):
        read = gauges(world)
        assert (read["NumGroups"], read["NumGroupsEmpty"], read["NumOffsets"]) == (GROUPS, GROUPS, 2 * GROUPS)
        world.pass_ms(1)
    assert counted.total == 3 * GROUPS


def test_gauges_follow_groups_and_their_timers(world: GroupWorld) -> None:
    def timers() -> tuple[float, float]:
        read = gauges(world)
        return read["NumDelayedOperationsHeartbeat"], read["PurgatorySizeRebalance"]

    assert timers() == (0, 0)
    members = [TestMember(world), TestMember(world)]
    for member in members:
        member.join()
    assert timers() == (2, 0)
    stable_group(world, *members)
    assert timers() == (2, 0)
    world.pass_ms(1)
    assert gauges(world)["NumGroupsStable"] == 1
    members[0].leave()
    assert timers() == (1, 1)
    world.pass_ms(100_000)
    assert timers() == (0, 0)
    members[0].member_id = ""
    members[0].join_fully()
    assert timers() == (1, 1)
    world.resign("g")
    world.pass_ms(10)
    assert timers() == (0, 0)
    assert gauges(world)["NumGroups"] == 0
