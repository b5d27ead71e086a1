"""How much is copied to remote storage and fetched from there (KIP-956), as Apache Kafka 3.9 bounds it: by the rate of
the last windows, in whole segments and whole fetches."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final

from barnabas.kernel.timers import Timers
from barnabas.quotas.byte_quota import ByteQuota
from barnabas.tiered.settings import TieredSettings

_LOOK_SECONDS_MAX: Final = 1.0
"""The bound may be raised meanwhile, and a window may end."""
_RECENT_SECONDS: Final = 60.0
_RECENT_MAX: Final = 10_000


class ThrottleTimes:
    """How long something was to wait, in ms, whenever it was held back within the last minute."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._times: deque[tuple[float, float]] = deque(maxlen=_RECENT_MAX)

    def record(self, seconds: float) -> None:
        self._times.append((self._now(), seconds * 1000))

    def mean_ms(self) -> float:
        """NaN where nothing was held back, as in Kafka."""
        recent = self._recent()
        return sum(recent) / len(recent) if recent else math.nan

    def largest_ms(self) -> float:
        """As `mean_ms`."""
        return max(self._recent(), default=math.nan)

    def _recent(self) -> list[float]:
        since = self._now() - _RECENT_SECONDS
        while self._times and self._times[0][0] < since:
            self._times.popleft()
        return [milliseconds for _, milliseconds in self._times]


class RemoteQuota(ByteQuota):
    """One of both; what is to pass waits for it."""

    def __init__(
        self,
        timers: Timers,
        now: Callable[[], float],
        window_count: int,
        window_seconds: int,
        bytes_per_second: int,
    ) -> None:
        """`now` is the loop's time in seconds."""
        super().__init__(window_count, window_seconds, now, bytes_per_second)
        self.times = ThrottleTimes(now)
        self._timers = timers

    async def passable(self) -> None:
        """Returns when something may pass; at once where it may now, without giving way."""
        while (seconds := self.seconds_exceeded) > 0:
            self.times.record(seconds)
            await self._timers.sleep(min(seconds, _LOOK_SECONDS_MAX) * 1000)


class RemoteQuotas:
    """Those of one broker."""

    def __init__(self, timers: Timers, now: Callable[[], float], settings: TieredSettings) -> None:
        self.copy = RemoteQuota(
            *(timers, now, settings.copy_window_count, settings.copy_window_seconds, settings.copy_bytes_per_second)
        )
        self.fetch = RemoteQuota(
            *(timers, now, settings.fetch_window_count, settings.fetch_window_seconds, settings.fetch_bytes_per_second)
        )

    def limit(self, settings: TieredSettings) -> None:
        """Takes other bounds."""
        self.copy.limit(settings.copy_bytes_per_second)
        self.fetch.limit(settings.fetch_bytes_per_second)
