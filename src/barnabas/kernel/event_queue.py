"""A queue of events with levels of priority, and the one loop that processes them one at a time."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from barnabas.kernel.metrics import Histogram, Timing
from barnabas.kernel.turns import yield_to_loop

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Hashable, Mapping

Event = TypeVar("Event")

CANCEL_SECONDS = 1.0


class EventQueueFullError(RuntimeError):
    """The queue is full."""


class EventQueueClosedError(RuntimeError):
    """The queue takes no more events."""


class EventQueue(Generic[Event]):
    """Events are processed one at a time: the most urgent level first, and within a level first in first out.

    One event runs to its end before the next one begins, whatever it awaits, so that what the events change has one
    owner. The event loop takes a turn between any two events. An exception is logged, and the queue goes on.

    It measures the time in the queue, and per kind of event how often and how long events of it are processed. Times
    are of the loop's clock, in milliseconds.
    """

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        process: Callable[[Event], object],
        *,
        logger: logging.Logger,
        kind: Callable[[Event], Hashable] = type,
        levels: int = 1,
        capacity: int | None,
    ) -> None:
        """`process(event)` may return something to await. `kind` maps events to few kinds: their type, or a state they
        cause.

        Level 0 is the most urgent one of `levels`. `capacity` counts waiting events; None makes the queue unbounded,
        for sources that are bounded themselves.
        """
        if levels < 1 or (capacity is not None and capacity < 1):
            raise ValueError(f"an event queue needs a level and room for an event, not {levels=}, {capacity=}")
        self.name = name
        self.queue_time_ms = Histogram(loop.time)
        self._timings: dict[Hashable, Timing] = {}
        self._loop = loop
        self._process = process
        self._logger = logger
        self._kind = kind
        self._capacity = capacity
        self._levels: tuple[deque[tuple[Event, float]], ...] = tuple(deque() for _ in range(levels))
        self._processing: Event | None = None
        self._wake: asyncio.Future[None] | None = None
        self._idle: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        """The number of waiting events, without the one in process."""
        return sum(map(len, self._levels))

    @property
    def oldest_age_ms(self) -> int:
        """How long the oldest waiting event has waited; 0 when none waits."""
        put_at = min((events[0][1] for events in self._levels if events), default=None)
        return 0 if put_at is None else round((self._loop.time() - put_at) * 1000)

    @property
    def processing(self) -> Event | None:
        """The event in processing."""
        return self._processing

    @property
    def timings(self) -> Mapping[Hashable, Timing]:
        """Rate and processing time by kind of event; a kind appears once `timing` has named it or an event of it was
        processed.
        """
        return self._timings

    def timing(self, kind: Hashable) -> Timing:
        """The kind's rate and processing time, created if missing, for a registry of metrics."""
        timing = self._timings.get(kind)
        if timing is None:
            timing = self._timings[kind] = Timing(self._loop.time)
        return timing

    def start(self) -> None:
        """Starts to process; events that were put before wait until then."""
        if self._task is not None:
            raise RuntimeError(f"the event queue {self.name} was started already")
        self._task = self._loop.create_task(self._run(), name=self.name)

    def put(self, event: Event, level: int | None = None) -> None:
        """Puts an event at the end of its level, the least urgent one by default.

        Raises `EventQueueFullError`, or `EventQueueClosedError` once closing began.
        """
        if self._closed:
            raise EventQueueClosedError(f"the event queue {self.name} is closed")
        if self._capacity is not None and len(self) >= self._capacity:
            raise EventQueueFullError(f"{self._capacity} events wait in the event queue {self.name} already")
        self._levels[-1 if level is None else level].append((event, self._loop.time()))
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def clear(self) -> list[Event]:
        """Takes out every waiting event and returns them in the order they would have come in, so that they can be
        answered.

        The event in processing is not touched.
        """
        cleared = [event for events in self._levels for event, _put_at in events]
        for events in self._levels:
            events.clear()
        return cleared

    def clear_and_put(self, event: Event) -> list[Event]:
        """Clears the queue and puts an event, which is processed next, as the expiry of a session must be."""
        if self._closed:
            raise EventQueueClosedError(f"the event queue {self.name} is closed")
        cleared = self.clear()
        self.put(event, 0)
        return cleared

    async def idle(self) -> None:
        """Returns when no event waits or is in process. Several tasks may wait for that."""
        while len(self) or self._processing is not None:
            if self._task is None or self._task.done():
                raise RuntimeError(f"the event queue {self.name} is not running and will not become idle")
            if self._idle is None:
                self._idle = self._loop.create_future()
            await asyncio.shield(self._idle)

    async def close(self, limit_ms: float) -> list[Event]:
        """Takes no more events, clears the queue, and waits for the event in process, which is cancelled after
        `limit_ms`.

        Returns the cleared events. An event must not await this, since it would wait for itself.
        """
        self._closed = True
        cleared = self.clear()
        if self._task is None:
            return cleared
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
        await asyncio.wait([self._task], timeout=limit_ms / 1000)
        if not self._task.done():
            event = self._processing
            self._logger.warning("Cancelling the processing of %r: it did not end within %s ms", event, limit_ms)
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CANCEL_SECONDS)
        return cleared

    async def _run(self) -> None:
        try:
            while not self._closed:
                taken = self._take()
                if taken is None:
                    self._tell_idle()
                    self._wake = self._loop.create_future()
                    await self._wake
                    self._wake = None
                else:
                    await self._process_one(*taken)
                    await yield_to_loop()
        finally:
            self._tell_idle()

    def _take(self) -> tuple[Event, float] | None:
        for events in self._levels:
            if events:
                return events.popleft()
        return None

    async def _process_one(self, event: Event, put_at: float) -> None:
        started = self._loop.time()
        self.queue_time_ms.update(round((started - put_at) * 1000))
        self._processing = event
        try:
            result = self._process(event)
            if inspect.isawaitable(result):
                await result
        except asyncio.CancelledError as error:
            if self._task is not None and self._task.cancelling():
                raise
            # Something that the event awaited was cancelled by its owner; that must not end the queue.
            self._logger.exception("Uncaught error processing event %r", event, exc_info=error)
        except Exception:
            self._logger.exception("Uncaught error processing event %r", event)
        finally:
            self._processing = None
            self.timing(self._kind(event)).update(round((self._loop.time() - started) * 1000))

    def _tell_idle(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        self._idle = None
