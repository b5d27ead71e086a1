"""`barnabas.kernel.metrics`."""

from __future__ import annotations

import functools
import math
import random
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.kernel.metrics import PERCENTILES, Gauge, Histogram, Meter, MetricName, MetricsRegistry

NAME = MetricName("kafka.server", "ReplicaManager", "LeaderCount")


class Time:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def test_a_name_reads_as_the_mbean() -> None:
    assert str(NAME) == "kafka.server:type=ReplicaManager,name=LeaderCount"
    tagged = MetricName("kafka.network", "RequestMetrics", "RequestsPerSec", (("request", "Fetch"), ("version", "12")))
    assert str(tagged) == "kafka.network:type=RequestMetrics,name=RequestsPerSec,request=Fetch,version=12"


def test_a_meter_at_a_steady_rate_says_that_rate_however_it_is_read() -> None:
    time = Time()
    meter = Meter(time)
    assert meter.rates() == (0, 0, 0, 0)
    for step in range(1, 2000):
        time.now += 0.5
        meter.count += 100
        if step % 7 == 0 or step == 1999:
            assert meter.rates() == pytest.approx((200, 200, 200, 200))


def test_a_meter_forgets_a_burst_as_fast_as_its_average_is_short() -> None:
    time = Time()
    meter = Meter(time)
    time.now += 600
    meter.count += 60_000
    assert meter.rates() == pytest.approx((100, 100, 100, 100))
    time.now += 60
    rates = meter.rates()
    assert rates.mean == pytest.approx(60_000 / 660)
    assert rates.one_minute == pytest.approx(100 * math.exp(-1))
    assert rates.five_minutes == pytest.approx(100 * math.exp(-1 / 5))
    assert rates.fifteen_minutes == pytest.approx(100 * math.exp(-1 / 15))


def test_reading_a_meter_more_often_does_not_change_how_it_decays() -> None:
    time = Time()
    often, seldom = Meter(time), Meter(time)
    for meter in (often, seldom):
        meter.count += 1000
    time.now += 10
    often.rates()
    seldom.rates()
    for _ in range(300):
        time.now += 0.1
        often.rates()
    assert often.rates() == pytest.approx(seldom.rates())


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=200))
def test_percentiles_are_within_a_sixteenth_of_the_values_they_stand_for(values: list[int]) -> None:
    histogram = Histogram(Time())
    for value in values:
        histogram.update(value)
    snapshot = histogram.snapshot()
    assert (snapshot.count, snapshot.total) == (len(values), sum(values))
    assert (snapshot.minimum, snapshot.maximum) == (min(values), max(values))
    assert snapshot.mean == pytest.approx(sum(values) / len(values))
    in_order = sorted(values)
    for quantile, found in zip(PERCENTILES, snapshot.percentiles, strict=True):
        exact = in_order[max(0, math.ceil(quantile * len(values) - 1e-9) - 1)]
        assert abs(found - exact) <= exact / 16
        assert exact >= 32 or found == exact


def test_percentiles_of_a_known_distribution() -> None:
    histogram = Histogram(Time())
    values = list(range(1, 10_001))
    random.Random(1).shuffle(values)
    for value in values:
        histogram.update(value)
    assert histogram.snapshot().percentiles == pytest.approx((5000, 7500, 9500, 9800, 9900, 9990), rel=1 / 32)


def test_a_wide_bucket_is_reported_by_its_middle() -> None:
    histogram = Histogram(Time())
    for value in range(1024, 1088):  # all values of one bucket, which is 64 wide
        histogram.update(value)
    assert histogram.snapshot().percentiles == (1055.5,) * len(PERCENTILES)


def test_percentiles_are_of_recent_values_and_end_when_nothing_comes() -> None:
    time = Time()
    histogram = Histogram(time)
    for _ in range(1000):
        histogram.update(500)
    assert histogram.snapshot().percentiles[0] == pytest.approx(500, rel=1 / 16)
    time.now += 300
    for _ in range(100):
        histogram.update(7)
    recent = histogram.snapshot()
    assert recent.percentiles[0] == 7  # the 1,000 old values weigh as 11 do
    assert recent.percentiles[-1] == pytest.approx(500, rel=1 / 16)
    assert (recent.maximum, recent.count) == (500, 1100)
    time.now += 3600
    assert histogram.snapshot().percentiles == (0,) * len(PERCENTILES)
    assert histogram.snapshot().count == 1100


def test_a_histogram_takes_a_negative_value_for_zero_and_starts_empty() -> None:
    histogram = Histogram(Time())
    empty = histogram.snapshot()
    assert (empty.count, empty.mean, empty.percentiles) == (0, 0, (0,) * len(PERCENTILES))
    histogram.update(-3)
    assert (histogram.total, histogram.minimum, histogram.maximum) == (0, 0, 0)


def test_the_buckets_of_a_histogram_are_bounded() -> None:
    histogram = Histogram(Time())
    draw = random.Random(2)
    for bits in range(1, 64):
        for _ in range(300):
            histogram.update(draw.getrandbits(bits))
    assert len(histogram._buckets) <= 1024


def test_a_timing_counts_and_measures() -> None:
    registry = MetricsRegistry(Time())
    timing = registry.timing(MetricName("kafka.controller", "ControllerStats", "LeaderElectionRateAndTimeMs"))
    timing.update(12)
    timing.update(14)
    assert (timing.meter.count, timing.durations_ms.total) == (2, 26)


def test_a_registry_has_each_name_once_and_reads_gauges_when_asked() -> None:
    registry = MetricsRegistry(Time())
    leaders = [3]
    gauge = registry.gauge(NAME, lambda: leaders[0])
    leaders[0] = 4
    assert gauge.read() == 4
    with pytest.raises(ValueError, match="name=LeaderCount is registered already"):
        registry.meter(NAME)
    assert registry.get(NAME) is gauge
    assert [name for name, _ in registry] == [NAME]
    registry.remove(NAME)
    registry.remove(NAME)
    assert (len(registry), registry.get(NAME)) == (0, None)
    registry.meter(NAME)


def test_a_registry_may_change_while_it_is_read() -> None:
    registry = MetricsRegistry(Time())
    for number in range(3):
        registry.gauge(MetricName("kafka.server", "Test", f"Gauge{number}"), lambda: 0)
    for name, _ in registry:
        registry.remove(name)
    assert len(registry) == 0


def test_importing_the_metrics_does_not_import_the_client_library() -> None:
    code = (
        "import sys, barnabas.kernel.metrics, barnabas.kernel.metrics_prometheus;"
        "sys.exit('prometheus_client' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{code}"], check=False)
    assert ended.returncode == 0


def test_sources_are_asked_whenever_all_are_read() -> None:
    registry = MetricsRegistry(lambda: 0.0)
    registry.gauge(NAME, lambda: 1)
    lags: dict[str, int] = {}

    def source() -> Iterator[tuple[MetricName, Gauge]]:
        for topic, lag in lags.items():
            yield (
                MetricName("kafka.server", "FetcherLagMetrics", "ConsumerLag", (("topic", topic),)),
                Gauge(functools.partial(int, lag)),
            )

    registry.add_source(source)
    assert [name for name, _ in registry] == [NAME]
    lags["orders"] = 3
    (_, (name, gauge)) = registry
    assert (name.tags, gauge.read()) == ((("topic", "orders"),), 3)  # type: ignore[union-attr]
    lags.clear()
    assert len(list(registry)) == 1
