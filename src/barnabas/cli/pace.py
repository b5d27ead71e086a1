"""`--rate`: so many records in a second, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

_SLEEP_SECONDS_MAX: Final = 3_600.0
_PIECES_PER_SECOND: Final = 20
"""How even it is: what is sent at once is this part of a second's records, or one record."""


class Pace:
    """Keeps a rate from the first record on. What could not be sent in time is not made up for later by a burst."""

    def __init__(self, rate: float | None, now: Callable[[], float]) -> None:
        """`rate` is in records per second, None for any; `now` is the loop's `time`."""
        self._rate = rate
        self._now = now
        self._next_at = now()

    @property
    def piece(self) -> int | None:
        """How many records to send at once at most; None for any number."""
        return None if self._rate is None else max(1, int(self._rate / _PIECES_PER_SECOND))

    def wait_seconds(self, count: int) -> float:
        """Takes the time of so many records, and returns how long to wait before they are sent."""
        if self._rate is None:
            return 0.0
        now = self._now()
        begin = max(now, self._next_at)
        self._next_at = begin + count / self._rate
        return begin - now

    async def wait(self, count: int) -> None:
        """Returns when so many records may be sent."""
        await wait_for(self.wait_seconds(count))


async def wait_for(seconds: float) -> None:
    """Returns after so many seconds, which may be more than a loop's timers take."""
    while seconds > 0:
        await asyncio.sleep(min(seconds, _SLEEP_SECONDS_MAX))
        seconds -= _SLEEP_SECONDS_MAX
