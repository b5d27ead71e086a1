"""`barnabas.kernel.turns`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from barnabas.kernel.steps import Steps
from barnabas.kernel.turns import in_turns, yield_to_loop


def test_gives_way_to_what_is_ready_and_goes_on_in_the_next_turn(
    run: Callable[[Coroutine[Any, Any, Any]], Any],
) -> None:
    async def scenario() -> None:
        order: list[str] = []
        loop = asyncio.get_running_loop()
        loop.call_soon(order.append, "ready before")
        await yield_to_loop()
        order.append("next turn")
        await yield_to_loop()
        assert order == ["ready before", "next turn"]

    run(scenario())


def test_steps_are_done_one_in_each_turn(run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
    async def scenario() -> None:
        order: list[str] = []

        def steps() -> Steps[str]:
            for number in range(2):
                order.append(f"step {number}")
                asyncio.get_running_loop().call_soon(order.append, f"turn after {number}")
                yield
            return "result"

        assert await in_turns(steps()) == "result"
        assert order == ["step 0", "turn after 0", "step 1", "turn after 1"]

    run(scenario())
