"""A rate over the last few windows of time, as Apache Kafka's `SimpleRate` measures it.

The rate is the sum of the samples over the time since the oldest began, or over one window while that is longer; so the
first bytes after a pause are no burst.
"""

from __future__ import annotations

import math

from barnabas.quotas.samples import SampledSum


class SimpleRate(SampledSum):
    """Units per second."""

    __slots__ = ()

    def measure(self, now: float) -> float:
        """The present rate."""
        total, start = self.total(now)
        return total / max(now - start, self._window_seconds)

    def seconds_above(self, bound: float, now: float) -> float:
        """How long the rate stays above `bound` if nothing more is recorded, at most; 0 if it is not above, infinite
        where only the end of the windows brings it down."""
        total, start = self.total(now)
        if total <= bound * max(now - start, self._window_seconds):
            return 0.0
        return start + total / bound - now if bound > 0 else math.inf
