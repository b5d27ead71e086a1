"""A bound on bytes per second, as Apache Kafka's brokers set themselves: for replication, and for remote storage.

Bytes are recorded when they pass, or have passed; so the bound may be exceeded by one response or one segment, for
which the next ones wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from barnabas.quotas.simple_rate import SimpleRate

UNLIMITED: Final = 2**63 - 1
"""Where no bound is set, in bytes per second."""


class ByteQuota:
    """One bound. `now` is the loop's time in seconds."""

    def __init__(
        self, window_count: int, window_seconds: int, now: Callable[[], float], bytes_per_second: int = UNLIMITED
    ) -> None:
        self.bytes_per_second = bytes_per_second
        self._now = now
        self._rate = SimpleRate(window_count, window_seconds)

    def limit(self, bytes_per_second: int) -> None:
        """Takes another bound."""
        self.bytes_per_second = bytes_per_second

    def record(self, size_bytes: int) -> None:
        """So much has passed."""
        self._rate.record(size_bytes, self._now())

    @property
    def is_exceeded(self) -> bool:
        """More has passed than may."""
        return self._rate.measure(self._now()) > self.bytes_per_second

    @property
    def seconds_exceeded(self) -> float:
        """How long nothing may pass; 0 where something may, infinite where that cannot be told."""
        return self._rate.seconds_above(self.bytes_per_second, self._now())

    @property
    def byte_rate(self) -> float:
        """Bytes per second that pass."""
        return self._rate.measure(self._now())
