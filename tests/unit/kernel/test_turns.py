"""`barnabas.kernel.turns`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from barnabas.kernel.turns import next_turn


def test_gives_way_to_what_is_ready_and_goes_on_in_the_next_turn(
    run: Callable[[Coroutine[Any, Any, Any]], Any],
) -> None:
    async def scenario() -> None:
        order: list[str] = []
        loop = asyncio.get_running_loop()
        loop.call_soon(order.append, "ready before")
        await next_turn()
        order.append("next turn")
        await next_turn()
        assert order == ["ready before", "next turn"]

    run(scenario())
