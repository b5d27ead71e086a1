"""`barnabas.kernel.turns`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from barnabas.kernel.turns import yield_to_loop


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
