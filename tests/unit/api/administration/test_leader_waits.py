"""Elections that wait until the metadata shows them."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.api.administration import leader_waits
from barnabas.api.administration.leader_waits import PARTITIONS_PER_OPERATION
from barnabas.wire.topics import TopicPartition
from tests.unit.api.administration.admin_world import AdminWorld, in_world

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class Turns:
    """Counts the turns that were waited for."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self) -> None:
        self.count += 1
        await asyncio.sleep(0)


def test_waits_until_each_partition_has_the_leader_that_was_elected() -> None:
    async def main(world: AdminWorld) -> None:
        world.show({"a": [1, 1]})
        deadline = world.host.loop.time() + 60
        waiting = asyncio.create_task(world.leader_waits.until_led({A0: 2, A1: 1, B0: 3}, deadline, Turns()))
        await asyncio.sleep(1)
        assert world.leader_waits.purgatory.watched == 3
        for leaders in ({"a": [3, 1]}, {"b": [-1]}, {"a": [2, 1]}, {"other": [3]}):
            world.show(leaders)
            await asyncio.sleep(1)
            assert not waiting.done()
        world.show({"b": [3]})
        assert await waiting == set()
        assert world.leader_waits.purgatory.delayed == world.leader_waits.purgatory.watched == 0

    in_world(main)


def test_a_leader_that_was_seen_counts_though_there_is_another_when_the_time_is_out() -> None:
    async def main(world: AdminWorld) -> None:
        deadline = world.host.loop.time() + 5
        waiting = asyncio.create_task(world.leader_waits.until_led({B0: 3, A0: 2, A1: 2}, deadline, Turns()))
        await asyncio.sleep(1)
        world.show({"a": [2, 1]})
        world.show({"a": [1, 1]})
        assert await waiting == {A1, B0}
        assert world.host.loop.time() == pytest.approx(deadline, abs=0.01)
        assert world.leader_waits.purgatory.delayed == 0

    in_world(main)


@pytest.mark.parametrize("late_seconds", [0, 7])
def test_what_is_led_already_and_what_is_late_is_not_waited_for(late_seconds: int) -> None:
    async def main(world: AdminWorld) -> None:
        world.show({"a": [1, 2]})
        before = world.host.loop.time()
        assert await world.leader_waits.until_led({}, before - late_seconds, Turns()) == set()
        assert await world.leader_waits.until_led({A0: 1, A1: 2}, before + 60, Turns()) == set()
        assert await world.leader_waits.until_led({A0: 1, A1: 1}, before - late_seconds, Turns()) == {A1}
        assert world.host.loop.time() == before

    in_world(main)


def test_who_gives_up_leaves_nothing_behind() -> None:
    async def main(world: AdminWorld) -> None:
        many = {TopicPartition("a", number): 1 for number in range(3 * PARTITIONS_PER_OPERATION)}
        waiting = asyncio.create_task(world.leader_waits.until_led(many, world.host.loop.time() + 60, Turns()))
        await asyncio.sleep(1)
        assert world.leader_waits.purgatory.watched == len(many)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert world.leader_waits.purgatory.watched == world.leader_waits.purgatory.delayed == 0

    in_world(main)


def test_very_many_partitions_are_parked_in_several_turns_and_woken_by_pieces() -> None:
    async def main(world: AdminWorld) -> None:
        turns = Turns()
        many = {TopicPartition("a", number): 1 for number in range(4 * PARTITIONS_PER_OPERATION + 1)}
        waiting = asyncio.create_task(world.leader_waits.until_led(many, world.host.loop.time() + 60, turns))
        await asyncio.sleep(1)
        assert turns.count == world.leader_waits.purgatory.delayed - 1 == 4
        world.show({"a": [1] * PARTITIONS_PER_OPERATION})
        await asyncio.sleep(1)
        assert world.leader_waits.purgatory.watched == len(many) - PARTITIONS_PER_OPERATION
        world.show({"a": [1] * len(many)})
        assert await waiting == set()

    in_world(main)


def test_very_many_changes_at_once_are_looked_at_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_waits, "CHANGES_PER_TURN", 10)

    async def main(world: AdminWorld) -> None:
        many = {TopicPartition("a", number): 1 for number in range(35)}
        deadline = world.host.loop.time() + 60
        waiting = asyncio.create_task(world.leader_waits.until_led({**many, B0: 1}, deadline, Turns()))
        await asyncio.sleep(1)
        (operation,) = world.leader_waits.purgatory.watchers(B0)
        world.show({"a": [1] * 35})
        assert len(operation.missing) == 26
        await asyncio.sleep(1)
        assert list(operation.missing) == [B0]
        world.show({"b": [1]})
        assert await waiting == set()

    in_world(main)
