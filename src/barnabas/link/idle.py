"""Finds idle connections without a timer or a clock reading per connection."""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from barnabas.kernel.timers import Timer, Timers

_STEPS: Final = 8
_CLOSED_PER_TURN: Final = 200


class Idler(Protocol):
    """A connection, as the watch sees it."""

    active_step: int
    """The watch's step when something happened last; written by the connection."""

    def close_idle(self) -> None:
        """Closes the connection, unless a request of it is being processed."""
        ...


class IdleWatch:
    """Closes connections that were idle for `idle_ms_max`, at most an eighth of it late.

    Time is counted in steps of an eighth; a connection notes the current step when something happens, and each step
    looks at all connections. What is found is closed some in each turn: thousands of clients that came together may
    fall silent together.
    """

    __slots__ = ("_closing", "_connections", "_step_ms", "_timer", "_timers", "step")

    def __init__(self, timers: Timers, idle_ms_max: int) -> None:
        self.step = 0
        self._timers = timers
        self._step_ms = idle_ms_max / _STEPS
        self._connections: dict[Idler, None] = {}
        self._timer: Timer | None = None
        self._closing: Timer | None = None

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, connection: Idler) -> None:
        connection.active_step = self.step
        self._connections[connection] = None
        if self._timer is None:
            self._timer = self._timers.call_after(self._step_ms, self._next_step)

    def remove(self, connection: Idler) -> None:
        """Does nothing when it is not watched."""
        self._connections.pop(connection, None)
        if not self._connections and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            if self._closing is not None:
                self._closing.cancel()
                self._closing = None

    def _next_step(self) -> None:
        self._timer = self._timers.call_after(self._step_ms, self._next_step)
        self.step += 1
        oldest = self.step - _STEPS
        # A note of step s was made before step s + 1 began, so the whole time has passed when step s + 9 begins.
        self._close(deque(connection for connection in self._connections if connection.active_step < oldest), oldest)

    def _close(self, idle: deque[Idler], oldest: int) -> None:
        self._closing = None
        for _ in range(min(len(idle), _CLOSED_PER_TURN)):
            connection = idle.popleft()
            # Something may have come from it in the turns since.
            if connection.active_step < oldest and connection in self._connections:
                connection.close_idle()
        if idle and self._connections:
            self._closing = self._timers.call_after(0, self._close, idle, oldest)
