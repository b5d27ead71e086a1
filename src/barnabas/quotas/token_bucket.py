"""A bucket of tokens, as Apache Kafka measures changes that controllers make for clients (KIP-599).

It fills at the rate of the quota up to what all windows together would let pass, and one request may take more than
there is: the next ones wait until that is paid back. So a request is never too large to pass.
"""

from __future__ import annotations

import math


class TokenBucket:
    """Units that may pass now. Times are seconds of one clock that only grows."""

    __slots__ = ("_burst_seconds", "_filled_at", "_tokens")

    def __init__(self, window_count: int, window_seconds: float) -> None:
        self._burst_seconds = window_count * window_seconds
        self._tokens = 0.0
        self._filled_at = -math.inf

    def record(self, value: float, bound: float, now: float) -> None:
        """So many have passed."""
        burst = self._burst_seconds * bound
        self._tokens = min(burst, self.measure(bound, now) - value)

    def measure(self, bound: float, now: float) -> float:
        """How many may pass; negative where too many have. `bound` is how many come in a second."""
        burst = self._burst_seconds * bound
        elapsed_seconds = min(now - self._filled_at, 2**31)
        self._tokens = min(burst, self._tokens + bound * elapsed_seconds)
        self._filled_at = now
        return self._tokens

    def throttle_seconds(self, bound: float, now: float) -> float:
        """How long it takes until any may pass; infinite for a bound of 0, 0 where some may."""
        tokens = self.measure(bound, now)
        if tokens >= 0:
            return 0.0
        return -tokens / bound if bound > 0 else math.inf
