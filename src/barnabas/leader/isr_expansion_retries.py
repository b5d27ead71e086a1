"""Looks again at followers that were in sync and could not join the ISR, because another change was under way or their
broker was not known to be alive.

Apache Kafka looks at every partition of every fetch. Here a fetch costs what it names, and a follower that has
everything names nothing any more; so the partitions in question are noted, and looked at as often as an idle follower
fetches (`replica.fetch.wait.max.ms`), as long as its fetches go on or its session does.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from barnabas.kernel.timers import Timer, Timers

_LOOKED_AT_PER_TURN: Final = 200
"""Each may ask for another ISR, with a line in the log."""


class Reconsidered(Protocol):
    """The in-sync replicas of one partition."""

    def reconsider(self, since: float) -> bool:
        """Looks at the followers that have fetched after `since`; True as long as one of the others may yet join."""
        ...


class IsrExpansionRetries:
    """The partitions that are to be looked at again."""

    def __init__(self, timers: Timers, interval_ms: float) -> None:
        self._timers = timers
        self._interval_ms = interval_ms
        self._noted: dict[Reconsidered, float] = {}
        self._timer: Timer | None = None
        self._due: dict[Reconsidered, float] = {}
        """Whose time has come, as long as they wait for a turn of the loop."""
        self._next_turn: Timer | None = None

    def __len__(self) -> int:
        return len(self._noted.keys() | self._due.keys())

    def add(self, in_sync: Reconsidered, since: float) -> None:
        """Has followers outside of the ISR that fetch after `since`, the loop's time, looked at again."""
        self._noted[in_sync] = since
        if self._timer is None:
            self._timer = self._timers.call_after(self._interval_ms, self._run)

    def close(self) -> None:
        """Looks at nothing any more."""
        for timer in (self._timer, self._next_turn):
            if timer is not None:
                timer.cancel()
        self._timer = self._next_turn = None
        self._noted.clear()
        self._due.clear()

    def _run(self) -> None:
        self._timer = None
        self._due |= self._noted
        self._noted = {}
        if self._next_turn is None:
            self._look()

    def _look(self) -> None:
        self._next_turn = None
        for in_sync in list(islice(self._due, _LOOKED_AT_PER_TURN)):
            since = self._due.pop(in_sync)
            if in_sync.reconsider(since) and in_sync not in self._noted:
                self.add(in_sync, since)
        if self._due:
            self._next_turn = self._timers.call_after(0, self._look)
