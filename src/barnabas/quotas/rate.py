"""A rate that lets bursts pass, as Apache Kafka's `Rate` measures what its clients take.

The sum of the samples is spread over all windows but one, however few of them have passed: a client that was quiet may
take at once what it has left over.
"""

from __future__ import annotations

import math
from typing import Final

from barnabas.quotas.samples import SampledSum

_SPAN_SECONDS_MIN: Final = 0.001


class Rate(SampledSum):
    """Units per second."""

    __slots__ = ()

    def measure(self, now: float) -> float:
        """The present rate."""
        total, start = self.total(now)
        return total / self._span(now - start)

    def throttle_seconds(self, bound: float, now: float) -> float:
        """For how long whoever takes more than `bound` is to take nothing, so that it was no more over the measured
        time and the pause together; 0 if the rate is not above it, infinite for a bound of 0 (`QuotaUtils`)."""
        total, start = self.total(now)
        span = self._span(now - start)
        if total <= bound * span:
            return 0.0
        return total / bound - span if bound > 0 else math.inf

    def _span(self, elapsed_seconds: float) -> float:
        """Over how long the samples are spread, of which the oldest began so long ago."""
        missing = self._window_count - 1 - int(elapsed_seconds / self._window_seconds)
        if missing > 0:
            elapsed_seconds += missing * self._window_seconds
        return max(elapsed_seconds, _SPAN_SECONDS_MIN)
