"""What `queued.max.requests` bounds."""

from __future__ import annotations

import asyncio

from barnabas.kernel.tick import Tick
from barnabas.network.request_queue import RequestQueue
from tests.unit.kernel.virtual_loop import run_virtually


def test_holds_the_tick_while_there_is_no_room_and_a_quarter_longer() -> None:
    async def test() -> None:
        tick = Tick(asyncio.get_running_loop())
        queue = RequestQueue(tick, 8)
        held = []
        for step in (queue.add,) * 9 + (queue.remove,) * 9:
            step()
            held.append(tick.held)
        assert held == [False] * 7 + [True] * 4 + [False] * 7
        assert queue.queued == 0

    run_virtually(test())


def test_leaves_a_tick_alone_that_somebody_else_holds() -> None:
    """As a broker does while it starts, when the first requests of the controller come."""

    async def test() -> None:
        tick = Tick(asyncio.get_running_loop())
        tick.hold()
        queue = RequestQueue(tick, 2)
        for step in (queue.add, queue.add, queue.add, queue.remove, queue.remove, queue.remove):
            step()
            assert tick.held

    run_virtually(test())
