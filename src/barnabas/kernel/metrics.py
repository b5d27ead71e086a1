"""Metrics of one broker, under the MBean names of Apache Kafka.

Counting adds plain integers; reading does the arithmetic. Nothing here is global: each user is handed the registry of
its broker. Rates and percentiles cost nothing until they are read. `kernel.metrics_prometheus` writes them out for a
scrape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

ONE_MINUTE_SECONDS = 60.0
FIVE_MINUTES_SECONDS = 300.0
FIFTEEN_MINUTES_SECONDS = 900.0
# A value of a histogram weighs 1/e after this time, as in the decaying samples that Kafka's histograms keep (0.015 per
# second).
HISTOGRAM_DECAY_PER_SECOND = 0.015
PERCENTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
# Below this weight (nothing came for about ten minutes), a histogram has nothing recent to tell.
_FORGOTTEN_WEIGHT = 1e-4


@dataclass(frozen=True, slots=True)
class MetricName:
    """The name of an MBean, `kafka.server:type=ReplicaManager,name=LeaderCount`, and its tags in their order."""

    group: str
    type: str
    name: str
    tags: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        tags = "".join(f",{key}={value}" for key, value in self.tags)
        return f"{self.group}:type={self.type},name={self.name}{tags}"


class Rates(NamedTuple):
    """Events per second: since the start, and averages that decay over one, five and fifteen minutes."""

    mean: float
    one_minute: float
    five_minutes: float
    fifteen_minutes: float


class Meter:
    """Counts events; the hot path only adds to `count`.

    The decaying rates are brought up to date when they are read, with the events since the last reading spread evenly
    over the time since then. Readings at any times and by any number of readers give the same rates up to that
    spreading.
    """

    __slots__ = ("_fifteen", "_five", "_now", "_one", "_read_at", "_read_count", "_started", "count")

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` is the loop's `time`: seconds that only grow."""
        self.count = 0
        self._now = now
        self._started = self._read_at = now()
        self._read_count = 0
        self._one = self._five = self._fifteen = 0.0

    def rates(self) -> Rates:
        now = self._now()
        elapsed = now - self._read_at
        if elapsed > 0:
            recent = (self.count - self._read_count) / elapsed
            if self._read_at == self._started:
                self._one = self._five = self._fifteen = recent
            else:
                self._one += (recent - self._one) * -math.expm1(-elapsed / ONE_MINUTE_SECONDS)
                self._five += (recent - self._five) * -math.expm1(-elapsed / FIVE_MINUTES_SECONDS)
                self._fifteen += (recent - self._fifteen) * -math.expm1(-elapsed / FIFTEEN_MINUTES_SECONDS)
            self._read_at = now
            self._read_count = self.count
        lifetime = now - self._started
        return Rates(self.count / lifetime if lifetime > 0 else 0.0, self._one, self._five, self._fifteen)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The values of a histogram at one reading; `percentiles` are of recent values, in the order of `PERCENTILES`."""

    count: int
    total: int
    minimum: int
    maximum: int
    mean: float
    percentiles: tuple[float, ...]


class Histogram:
    """The distribution of integers from 0 (milliseconds, bytes), in buckets that are exact below 32 and 1/16 wide
    above.

    Percentiles are of recent values: what the buckets have counted decays with time, at the reading, as Kafka's samples
    do. Count, total, minimum and maximum are of all values. A histogram of 64-bit values has at most some 1,000
    buckets.
    """

    __slots__ = ("_buckets", "_now", "_read_at", "_recent", "_seen", "count", "maximum", "minimum", "total")

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` is the loop's `time`: seconds that only grow."""
        self.count = 0
        self.total = 0
        self.minimum = 0
        self.maximum = 0
        self._now = now
        self._buckets: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        self._recent: dict[int, float] = {}
        self._read_at = now()

    def update(self, value: int) -> None:
        """Counts one value; a negative one (a clock that stepped) counts as 0."""
        self.update_many(value, 1)

    def update_many(self, value: int, count: int) -> None:
        """Counts one value `count` times."""
        if count <= 0:
            return
        if value < 0:
            value = 0
        if value > self.maximum:
            self.maximum = value
        if not self.count or value < self.minimum:
            self.minimum = value
        self.count += count
        self.total += value * count
        shift = value.bit_length() - 5
        index = value if shift <= 0 else (shift << 4) + (value >> shift)
        self._buckets[index] = self._buckets.get(index, 0) + count

    def snapshot(self) -> Snapshot:
        self._decay()
        return Snapshot(
            count=self.count,
            total=self.total,
            minimum=self.minimum,
            maximum=self.maximum,
            mean=self.total / self.count if self.count else 0.0,
            percentiles=self._percentiles(),
        )

    def _decay(self) -> None:
        """Decays old counts and adds those since the last reading."""
        now = self._now()
        factor = math.exp(-HISTOGRAM_DECAY_PER_SECOND * (now - self._read_at))
        self._read_at = now
        recent: dict[int, float] = {}
        for index in sorted(self._buckets):
            count = self._buckets[index]
            weight = self._recent.get(index, 0.0) * factor + (count - self._seen.get(index, 0))
            if weight > _FORGOTTEN_WEIGHT:
                recent[index] = weight
        self._recent = recent
        self._seen = dict(self._buckets)

    def _percentiles(self) -> tuple[float, ...]:
        total = sum(self._recent.values())
        found: list[float] = []
        passed = 0.0
        for index, weight in self._recent.items():
            passed += weight
            while len(found) < len(PERCENTILES) and passed >= PERCENTILES[len(found)] * total:
                found.append(min(max(_middle(index), self.minimum), self.maximum))
        # Rounding may leave the last ones over; with no recent value all of them are.
        last = found[-1] if found else 0.0
        return tuple(found + [last] * (len(PERCENTILES) - len(found)))


def _middle(index: int) -> float:
    """The middle of a histogram's bucket; below 32 the value itself."""
    if index < 32:
        return float(index)
    shift = (index >> 4) - 1
    return float((((index & 15) + 16) << shift) + ((1 << shift) - 1) / 2)


class Timing:
    """How often something happens and how long it takes, in milliseconds; what Kafka's `...RateAndTimeMs` are."""

    __slots__ = ("durations_ms", "meter")

    def __init__(self, now: Callable[[], float]) -> None:
        self.meter = Meter(now)
        self.durations_ms = Histogram(now)

    def update(self, duration_ms: int) -> None:
        self.meter.count += 1
        self.durations_ms.update(duration_ms)


class Gauge:
    """A value that is computed when it is read."""

    __slots__ = ("read",)

    def __init__(self, read: Callable[[], float]) -> None:
        self.read = read


Metric = Gauge | Meter | Histogram | Timing
Kind = TypeVar("Kind", Gauge, Meter, Histogram, Timing)


class MetricsRegistry:
    """The metrics of one broker by name; each name once. The code that registers a metric for a topic or a client also
    removes it.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` is `host.loop.time`."""
        self.now = now
        self._metrics: dict[MetricName, Metric] = {}
        self._sources: list[Callable[[], Iterable[tuple[MetricName, Metric]]]] = []

    def __len__(self) -> int:
        return len(self._metrics)

    def __iter__(self) -> Iterator[tuple[MetricName, Metric]]:
        """Names and metrics, as they are now, in the order of registration; then those of the sources, each as it is
        when they are reached.
        """
        yield from list(self._metrics.items())
        for source in tuple(self._sources):
            yield from source()

    def add_source(self, source: Callable[[], Iterable[tuple[MetricName, Metric]]]) -> None:
        """Metrics that nobody has to register and remove: `source` is asked for them whenever all are read. What it
        gives may be read in several turns of the loop.
        """
        self._sources.append(source)

    def gauge(self, name: MetricName, read: Callable[[], float]) -> Gauge:
        """`read` is called at every reading; the reader handles its exceptions."""
        return self.add(name, Gauge(read))

    def meter(self, name: MetricName) -> Meter:
        return self.add(name, Meter(self.now))

    def histogram(self, name: MetricName) -> Histogram:
        return self.add(name, Histogram(self.now))

    def timing(self, name: MetricName) -> Timing:
        return self.add(name, Timing(self.now))

    def add(self, name: MetricName, metric: Kind) -> Kind:
        """Registers a metric that its owner made; ValueError for a name that is in use."""
        if name in self._metrics:
            raise ValueError(f"the metric {name} is registered already")
        self._metrics[name] = metric
        return metric

    def remove(self, name: MetricName) -> None:
        """Does nothing for an unknown name."""
        self._metrics.pop(name, None)

    def get(self, name: MetricName) -> Metric | None:
        return self._metrics.get(name)
