"""What waits for room off the loop keeps its order."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from barnabas.kernel.host import Host, OffloadKind
from barnabas.kernel.timers import Timers
from barnabas.log.directories.offload_with_retry import LaneOffload
from barnabas.testing.profile import OffloadProfile, Profile
from barnabas.testing.simulation import Simulation, simulation_seeds

ROOM = 3
NARROW = Profile(offload=OffloadProfile(workers=2, unfinished_max=ROOM, compute_seconds=(0.001, 0.03)))
ORDERS = ("one", "two")


@pytest.mark.parametrize("seed", simulation_seeds(5))
def test_whoever_asks_first_is_accepted_first_also_where_there_was_no_room(seed: int) -> None:
    async def main(host: Host) -> None:
        chance = Random(seed)
        timers = Timers(host.loop)
        offload = LaneOffload(host, timers, "lane")
        asked: dict[str | None, list[int]] = {order: [] for order in (*ORDERS, None)}
        done: dict[str | None, list[int]] = {order: [] for order in (*ORDERS, None)}
        tasks: list[asyncio.Task[None]] = []
        for number in range(100):
            order = chance.choice((*ORDERS, *ORDERS, None))
            asked[order].append(number)
            tasks.append(asyncio.ensure_future(offload(OffloadKind.SYNC, done[order].append, number, order=order)))
            await asyncio.sleep(chance.choice((0, 0.001, 0.01, 0.1)))
            if chance.random() < 0.1:
                task = chance.choice(tasks)
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for order in ORDERS:
            assert done[order] == sorted(done[order])
            assert len(done[order]) > len(asked[order]) // 2
        cancelled = sum(task.cancelled() for task in tasks)
        assert sum(map(len, done.values())) >= len(tasks) - cancelled
        assert not offload._lines
        timers.close()

    with Simulation(seed, profile=NARROW) as simulation:
        simulation.run_on(simulation.machine("broker"), main)
