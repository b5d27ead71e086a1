"""Very many timers under one timer of the loop.

A broker parks up to a hundred thousand requests, each with a time-out that nearly always is cancelled. The structure is
a heap of ticks of one millisecond, each tick with a dict of its timers: timers of the same tick (most have one of a few
delays) share one heap entry, and cancelling takes a timer out at once, in constant time, so that nothing of it stays in
memory. `benchmarks/kernel/timers.py` compares it with a plain heap and with a hierarchical wheel;
docs/decisions/0002-kernel.md has the figures.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

TICKS_PER_SECOND = 1000
EXPIRIES_PER_TURN = 1000
_STALE_TICKS_MIN = 64
# Times are floats: what lies less than a microsecond behind a tick still belongs to it.
_ROUNDING_TICKS = 0.001


class Timer:
    """A call to come; made by `Timers`."""

    __slots__ = ("_arguments", "_callback", "_remove", "tick")

    def __init__(
        self,
        tick: int,
        callback: Callable[..., object],
        arguments: tuple[Any, ...],
        remove: Callable[[Timer], None],
    ) -> None:
        self.tick = tick
        """When the call is due, in milliseconds of the loop's clock."""
        self._callback: Callable[..., object] | None = callback
        self._arguments = arguments
        self._remove = remove

    @property
    def active(self) -> bool:
        """True until the call is made or cancelled."""
        return self._callback is not None

    def cancel(self) -> bool:
        """True when this keeps the call from being made; False when it was made or cancelled before."""
        if self._callback is None:
            return False
        self._callback = None
        self._arguments = ()
        self._remove(self)
        return True

    def claim(self) -> tuple[Callable[..., object], tuple[Any, ...]] | None:
        """For `Timers`: the call, which is now its to make; None when it was made or cancelled before."""
        callback = self._callback
        if callback is None:
            return None
        arguments = self._arguments
        self._callback = None
        self._arguments = ()
        return callback, arguments


class Timers:
    """Calls at a time of the loop's monotonic clock, never early, at most a tick (1 ms) and the loop's own delay late.

    Timers of one tick run in the order in which they were made. At most `EXPIRIES_PER_TURN` calls are made in a turn of
    the loop, so that a mass expiry does not stop everything else. A call that raises is reported to the loop's
    exception handler and harms no other. The number of timers is bounded by whoever makes them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, dict[Timer, None]] = {}
        # Every tick that has a bucket is here; stale ones, whose bucket emptied, are too until they surface or pile up.
        self._ticks: list[int] = []
        self._stale_ticks = 0
        self._due: deque[Timer] = deque()
        self._earliest_new_tick = 0
        self._armed_tick: int | None = None
        self._handle: asyncio.Handle | None = None
        self._active = 0
        self._closed = False
        self._remove_timer = self._remove  # one bound method for all timers

    def __len__(self) -> int:
        """How many timers are active."""
        return self._active

    @property
    def now(self) -> float:
        """The time of the loop's clock, in seconds."""
        return self._loop.time()

    def call_after(self, delay_ms: float, callback: Callable[..., object], *arguments: Any) -> Timer:
        """Calls `callback(*arguments)` in so many milliseconds; at the next tick when that is not positive."""
        return self.call_at(self._loop.time() + delay_ms / 1000, callback, *arguments)

    def call_at(self, deadline: float, callback: Callable[..., object], *arguments: Any) -> Timer:
        """Calls `callback(*arguments)` at a time of the loop's clock, in seconds; RuntimeError once closed."""
        if self._closed:
            raise RuntimeError("the timers are closed")
        tick = math.ceil(deadline * TICKS_PER_SECOND - _ROUNDING_TICKS)
        if tick < self._earliest_new_tick:
            # What a running call makes, however early it is due, comes after what is due already: no endless turn.
            tick = self._earliest_new_tick
        timer = Timer(tick, callback, arguments, self._remove_timer)
        bucket = self._buckets.get(tick)
        if bucket is None:
            self._buckets[tick] = {timer: None}
            heapq.heappush(self._ticks, tick)
            if self._armed_tick is None or tick < self._armed_tick:
                self._arm(tick)
        else:
            bucket[timer] = None
        self._active += 1
        return timer

    async def sleep(self, delay_ms: float) -> None:
        """Returns in so many milliseconds."""
        awake: asyncio.Future[None] = self._loop.create_future()
        timer = self.call_after(delay_ms, _wake, awake)
        try:
            await awake
        finally:
            timer.cancel()

    def close(self) -> None:
        """Cancels every timer, and takes no new one."""
        self._closed = True
        if self._handle is not None:
            self._handle.cancel()
        for timer in [*self._due, *(timer for bucket in self._buckets.values() for timer in bucket)]:
            timer.cancel()
        self._due.clear()
        self._ticks.clear()

    def _remove(self, timer: Timer) -> None:
        self._active -= 1
        tick = timer.tick
        bucket = self._buckets.get(tick)
        if bucket is None or timer not in bucket:
            return  # it is among those that are due, and skipped there
        del bucket[timer]
        if bucket:
            return
        del self._buckets[tick]
        self._stale_ticks += 1
        if self._stale_ticks > _STALE_TICKS_MIN and self._stale_ticks * 2 > len(self._ticks):
            self._ticks = list(self._buckets)
            heapq.heapify(self._ticks)
            self._stale_ticks = 0

    def _arm(self, tick: int) -> None:
        """Replaces the one timer of the loop by one for this tick."""
        if self._handle is not None:
            self._handle.cancel()
        self._armed_tick = tick
        self._handle = self._loop.call_at(tick / TICKS_PER_SECOND, self._expire)

    def _expire(self) -> None:
        self._handle = None
        self._armed_tick = None
        self._collect_due(math.floor(self._loop.time() * TICKS_PER_SECOND + _ROUNDING_TICKS))
        try:
            self._run_due()
        finally:
            self._arm_again()

    def _run_due(self) -> None:
        for _ in range(EXPIRIES_PER_TURN):
            if not self._due:
                return
            call = self._due.popleft().claim()
            if call is None:
                continue
            callback, arguments = call
            self._active -= 1
            try:
                callback(*arguments)
            except Exception as error:  # noqa: BLE001 - one call must not keep the others from being made
                self._loop.call_exception_handler(
                    {"message": f"a timer's call of {callback!r} failed", "exception": error}
                )

    def _arm_again(self) -> None:
        if self._due:
            if self._handle is not None:
                self._handle.cancel()
            self._armed_tick = 0  # before any tick
            self._handle = self._loop.call_soon(self._expire)
        elif self._ticks and (self._armed_tick is None or self._ticks[0] < self._armed_tick):
            self._arm(self._ticks[0])

    def _collect_due(self, now_tick: int) -> None:
        ticks = self._ticks
        while ticks and ticks[0] <= now_tick:
            bucket = self._buckets.pop(heapq.heappop(ticks), None)
            if bucket is None:
                self._stale_ticks -= 1
            else:
                self._due.extend(bucket)
        self._earliest_new_tick = max(self._earliest_new_tick, now_tick + 1)


def _wake(awake: asyncio.Future[None]) -> None:
    # Who sleeps may have been cancelled in this turn of the loop, and not yet have come to cancel the timer.
    if not awake.done():
        awake.set_result(None)
