"""Very many partitions that are to be cut off at once: some are begun in each turn of the loop."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.follower.fetcher_partitions import FetchedPartition, FetcherPartitions, FetchPhase
from barnabas.follower.offset_reconciler import BEGUN_PER_TURN, OffsetReconciler
from barnabas.kernel.ids import ZERO_UUID
from barnabas.wire.topics import TopicPartition

COUNT = 10 * BEGUN_PER_TURN + 7


class Log:
    """Has nothing; `cut` counts for all of them."""

    high_watermark = append_end_offset = 0
    latest_epoch = None

    def __init__(self, world: World) -> None:
        self._world = world

    async def truncate_to(self, _offset: int, *, is_still_due: Any) -> None:
        world = self._world
        assert is_still_due()
        world.cut += 1
        await world.disk.wait()


class World:
    """A reconciler of very many partitions; `disk` lets go on what it holds."""

    def __init__(self) -> None:
        self.cut = 0
        self.disk = asyncio.Event()
        self.partitions = FetcherPartitions()
        for number in range(COUNT):
            partition = SimpleNamespace(topic_partition=TopicPartition("t", number), log=Log(self))
            fetched = FetchedPartition(cast("Any", partition), ZERO_UUID, 1, 0, -1, FetchPhase.TRUNCATING)
            self.partitions.add(fetched)
        context: Any = SimpleNamespace(
            loop=asyncio.get_running_loop(),
            protocol=SimpleNamespace(truncates_on_fetch=True),
            wake_ups=SimpleNamespace(add=lambda _: None),
            logger=logging.getLogger("barnabas.tests.replication"),
        )
        self.reconciler = OffsetReconciler(
            context, self.partitions, cast("Any", None), delay=lambda _: None, fail=lambda _, __: None
        )

    async def until_all_are_begun(self) -> int:
        """How many were begun in one turn at most."""
        most = before = 0
        for _ in range(COUNT):
            await asyncio.sleep(0)
            most, before = max(most, self.cut - before), self.cut
        return most


def test_they_are_begun_in_turns_and_wait_for_the_disk_together() -> None:
    async def test() -> None:
        world = World()
        settling = asyncio.ensure_future(world.reconciler.settle())
        assert await world.until_all_are_begun() <= BEGUN_PER_TURN
        # None waits for another: what they ask of the disk is done for all at once.
        assert world.cut == COUNT
        assert not settling.done()
        world.disk.set()
        await settling
        assert not world.partitions.has_unsettled

    asyncio.run(test())


def test_what_is_taken_out_before_its_turn_is_left_alone() -> None:
    async def test() -> None:
        world = World()
        world.disk.set()
        settling = asyncio.ensure_future(world.reconciler.settle())
        await asyncio.sleep(0)
        for number in range(COUNT - 100, COUNT):
            world.partitions.remove(TopicPartition("t", number))
        await settling
        assert world.cut == COUNT - 100

    asyncio.run(test())


@pytest.mark.parametrize("turns", [1, 3, 100])
def test_a_fetcher_that_ends_leaves_none_under_way(turns: int) -> None:
    async def test() -> None:
        world = World()
        settling = asyncio.ensure_future(world.reconciler.settle())
        for _ in range(turns):
            await asyncio.sleep(0)
        settling.cancel()
        await asyncio.wait([settling])
        cut = world.cut
        world.disk.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert world.cut == cut
        assert len(world.partitions.unsettled()) == COUNT

    asyncio.run(test())
