"""Sums over the last few windows of time, as Apache Kafka's `SampledStat` keeps them.

What is recorded falls into samples of one window each. A sample that saw nothing for as long as all windows together
begins anew.
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
        self.value: float = 0


class SampledSum:
    """What was recorded of late. Times are seconds of one clock that only grows.

    Invariant: at most `window_count` + 1 samples are kept; the one more overlaps the beginning of the measured time.
    Their sum and the beginning of the oldest are kept beside them, until a window ends or a sample may expire.
    """

    __slots__ = ("_current", "_kept_until", "_samples", "_start", "_window_count", "_window_seconds", "at_most")

    def __init__(self, window_count: int, window_seconds: float) -> None:
        self._window_count = window_count
        self._window_seconds = window_seconds
        self._samples: list[_Sample] = []
        self._current = 0
        self.at_most: float = 0
        """What `total` would say, or more, where samples have expired since that was last called."""
        self._start = 0.0
        self._kept_until = -math.inf

    @property
    def window_end(self) -> float:
        """When what is recorded falls into another sample than what was recorded last."""
        samples = self._samples
        return samples[self._current].start + self._window_seconds if samples else -math.inf

    def record(self, value: float, now: float) -> float:
        """So much has passed; what turns out not to have passed is recorded with a minus. Returns `at_most`."""
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
            self._kept_until = -math.inf
        sample.value += value
        sample.latest = now
        self.at_most = total = self.at_most + value
        return total

    def total(self, now: float) -> tuple[float, float]:
        """The sum of all samples, and when the oldest one began."""
        if now < self._kept_until:
            return self.at_most, self._start
        expiry_seconds = self._window_count * self._window_seconds
        total, start, latest = 0.0, now, now
        for sample in self._samples:
            if now - sample.latest >= expiry_seconds:
                sample.reset(now)
            total += sample.value
            start = min(start, sample.start)
            latest = min(latest, sample.latest)
        if self._samples:
            # By then one of them may have expired: none has before, as they only grow.
            self.at_most, self._start, self._kept_until = total, start, latest + expiry_seconds
        return total, start
