"""How many requests wait for work of this broker; when it is too many, data connections wait."""

from __future__ import annotations

from barnabas.kernel.tick import Tick


class RequestQueue:
    """Counts what `queued.max.requests` bounds, and holds the tick while there is no room.

    It goes on when a quarter of the room is free again, so that it does not change its mind with every request. A tick
    that somebody else holds, as a broker does until it has started, is not let go on here.
    """

    __slots__ = ("_high", "_holds", "_low", "_tick", "queued")

    def __init__(self, tick: Tick, queued_requests_max: int) -> None:
        self._tick = tick
        self._high = queued_requests_max
        self._low = queued_requests_max * 3 // 4
        self._holds = False
        self.queued = 0
        """How many requests are counted now."""

    def add(self) -> None:
        self.queued += 1
        if self.queued >= self._high and not self._tick.held:
            self._holds = True
            self._tick.hold()

    def remove(self) -> None:
        self.queued -= 1
        if self._holds and self.queued <= self._low:
            self._holds = False
            self._tick.go_on()
