"""Work that many ask for, and that is done once for all of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from barnabas.kernel.turns import yield_to_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


class JoinedRuns:
    """Runs of one coroutine function, which gathers what is true and writes it down, in as many turns as it likes.

    Invariants: who asks gets a run that begins later, so what was true when it asked is in it, or something newer; and
    no run begins before the one before it has ended, so what was written is never replaced by something older.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._loop = loop
        self._work = work
        self._current: asyncio.Task[None] | None = None
        self._coming: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Returns when a run has ended that began after this was called; all who ask before it begins share it. Raises
        what it raises, to each of them."""
        coming = self._coming
        if coming is None:
            coming = self._coming = self._loop.create_task(self._begin())
        await asyncio.shield(coming)

    def cancel(self) -> None:
        """Ends the run that is under way, and the coming one; who waits for them gets CancelledError."""
        for task in (self._current, self._coming):
            if task is not None:
                task.cancel()

    async def _begin(self) -> None:
        await yield_to_loop()  # all who ask in this turn get one run
        while self._current is not None and not self._current.done():
            await asyncio.wait([self._current])
        self._current, self._coming = self._coming, None
        await self._work()
