"""Time that passes only when it is told to, for the tests of the kernel."""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

Result = TypeVar("Result")


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose clock jumps to the next timer when nothing else is to be done; without one, a deadlock."""

    def __init__(self) -> None:
        self._now = 1000.0
        self.turns = 0
        """How many turns it has begun."""
        selector = selectors.DefaultSelector()
        self._really_select = selector.select
        selector.select = self._select  # type: ignore[method-assign]
        super().__init__(selector)

    def time(self) -> float:
        return self._now

    def time_passes(self, seconds: float) -> None:
        """As a callback that keeps the loop busy for so long."""
        self._now += seconds

    def _select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("deadlock: no timer is set and nothing is ready")
        self._now += timeout
        self.turns += 1
        return self._really_select(0)


def run_virtually(work: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


class HandDrivenLoop:
    """As much of a loop as a timer needs; `advance` moves its clock and runs what is due."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns = 0
        self.reported: list[dict[str, Any]] = []
        self._number = 0
        self._timed: list[tuple[float, int, Handle]] = []
        self._ready: deque[Handle] = deque()

    @property
    def as_loop(self) -> asyncio.AbstractEventLoop:
        return cast("asyncio.AbstractEventLoop", self)

    @property
    def pending_timers(self) -> int:
        return sum(not handle.cancelled for _, _, handle in self._timed)

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[..., object], *arguments: object) -> Handle:
        handle = Handle(callback, arguments)
        self._number += 1
        heapq.heappush(self._timed, (when, self._number, handle))
        return handle

    def call_soon(self, callback: Callable[..., object], *arguments: object) -> Handle:
        handle = Handle(callback, arguments)
        self._ready.append(handle)
        return handle

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.reported.append(context)

    def advance(self, seconds: float = 0.0) -> None:
        """Lets time jump and then takes turns for as long as anything is ready or due."""
        self.advance_to(self.now + seconds)

    def advance_to(self, now: float) -> None:
        """As `advance`; times that are given exactly do not drift with each sum."""
        self.now = now
        while self.take_turn():
            pass

    def take_turn(self) -> bool:
        while self._timed and self._timed[0][0] <= self.now:
            self._ready.append(heapq.heappop(self._timed)[2])
        ready, self._ready = self._ready, deque()
        for handle in ready:
            if not handle.cancelled:
                handle.callback(*handle.arguments)
        self.turns += bool(ready)
        return bool(ready)


class Handle:
    """What `HandDrivenLoop` gives for a call to come."""

    def __init__(self, callback: Callable[..., object], arguments: tuple[object, ...]) -> None:
        self.callback = callback
        self.arguments = arguments
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True
