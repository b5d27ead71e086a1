"""Work off the loop that must not be lost when the host has enough of it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

from barnabas.kernel.host import Host, OffloadFullError, OffloadKind
from barnabas.kernel.timers import Timers

Result = TypeVar("Result")
_FULL_RETRY_MS: Final = 10


async def offload_with_retry(
    host: Host,
    timers: Timers,
    kind: OffloadKind,
    function: Callable[..., Result],
    *arguments: Any,
    lane: str | None = None,
) -> Result:
    """Runs the function off the loop, in no order with others; where the host's queue is full, as soon as it is not.
    Raises what it raises."""
    return await (await _accepted(timers, lambda: host.offload(kind, function, *arguments, lane=lane)))


class LaneOffload:
    """As `offload_with_retry`, of one lane, in order.

    Invariant: work of one kind and order is accepted in the order in which it was asked for, also where the host had
    no room for the first of it and has room when the next is asked for.
    """

    def __init__(self, host: Host, timers: Timers, lane: str) -> None:
        self._host = host
        self._timers = timers
        self._lane = lane
        self._lines: dict[tuple[OffloadKind, Hashable], deque[asyncio.Future[None]]] = {}
        """Those who wait for room, by what has one order; only the first of a line asks for it."""

    async def __call__(
        self,
        kind: OffloadKind,
        function: Callable[..., Result],
        *arguments: Any,
        order: Hashable | None = None,
    ) -> Result:
        """Begins in this turn where there is room and nobody waits for it. Raises what the function raises."""

        def offer() -> asyncio.Future[Result]:
            return self._host.offload(kind, function, *arguments, order=order, lane=self._lane)

        if order is None:
            return await (await _accepted(self._timers, offer))
        key = kind, order
        line = self._lines.get(key)
        if line is None:
            try:
                work = offer()
            except OffloadFullError:
                line = self._lines[key] = deque()
            else:
                return await work
        turn: asyncio.Future[None] = self._host.loop.create_future()
        line.append(turn)
        try:
            if line[0] is not turn:
                await turn
            work = await _accepted(self._timers, offer)
        finally:
            self._leave(key, line, turn)
        return await work

    def _leave(
        self, key: tuple[OffloadKind, Hashable], line: deque[asyncio.Future[None]], turn: asyncio.Future[None]
    ) -> None:
        """Whoever is first then asks next. They may leave for other reasons than that they were accepted."""
        line.remove(turn)
        if not line:
            del self._lines[key]
        elif not line[0].done():
            line[0].set_result(None)


async def _accepted(timers: Timers, offer: Callable[[], asyncio.Future[Result]]) -> asyncio.Future[Result]:
    while True:
        try:
            return offer()
        except OffloadFullError:
            await timers.sleep(_FULL_RETRY_MS)
