"""A rate over the last few windows of time, as Apache Kafka's `SimpleRate` measures it.

What is recorded falls into samples of one window each. The rate is the sum of the samples over the time since the
oldest began, or over one window while that is longer; so the first bytes after a pause are no burst. A sample that saw
nothing for as long as all windows together begins anew.
"""

from __future__ import annotations

import math


class _Sample:
    """What was recorded in one window, and when it began and last grew, in seconds."""

    __slots__ = ("latest", "start", "value")

    def __init__(self, now: float) -> None:
        self.reset(now)

    def reset(self, now: float) -> None:
        self.start = self.latest = now
        self.value = 0


class SimpleRate:
    """Units per second. Times are seconds of one clock that only grows.

    Invariant: at most `window_count` + 1 samples are kept; the one more overlaps the beginning of the measured time.
    """

    __slots__ = ("_current", "_samples", "_window_count", "_window_seconds")

    def __init__(self, window_count: int, window_seconds: float) -> None:
        self._window_count = window_count
        self._window_seconds = window_seconds
        self._samples: list[_Sample] = []
        self._current = 0

    def record(self, value: int, now: float) -> None:
        """So many units have passed."""
        samples = self._samples
        if not samples:
            samples.append(_Sample(now))
        sample = samples[self._current]
        if now - sample.start >= self._window_seconds:
            self._current = (self._current + 1) % (self._window_count + 1)
            if self._current >= len(samples):
                samples.append(_Sample(now))
            else:
                samples[self._current].reset(now)
            sample = samples[self._current]
        sample.value += value
        sample.latest = now

    def measure(self, now: float) -> float:
        """The present rate."""
        total, start = self._total(now)
        return total / max(now - start, self._window_seconds)

    def seconds_above(self, bound: float, now: float) -> float:
        """How long the rate stays above `bound` if nothing more is recorded, at most; 0 if it is not above, infinite
        where only the end of the windows brings it down."""
        total, start = self._total(now)
        if total <= bound * max(now - start, self._window_seconds):
            return 0.0
        return start + total / bound - now if bound > 0 else math.inf

    def _total(self, now: float) -> tuple[int, float]:
        """The sum of all samples, and when the oldest one began."""
        expiry_seconds = self._window_count * self._window_seconds
        total, start = 0, now
        for sample in self._samples:
            if now - sample.latest >= expiry_seconds:
                sample.reset(now)
            total += sample.value
            start = min(start, sample.start)
        return total, start
