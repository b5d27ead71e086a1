"""`barnabas.api.request_metrics`."""

from __future__ import annotations

from barnabas.api.request_metrics import RequestMetrics, RequestMetricsByName
from barnabas.kernel.metrics import Histogram, Meter, MetricName, MetricsRegistry


def totals(histogram: Histogram) -> tuple[int, int, int]:
    found = histogram.snapshot()
    return found.count, found.total, found.maximum


def test_counts_each_request_once_however_many_durations_there_are() -> None:
    metrics = RequestMetrics(MetricsRegistry(lambda: 0.0), "Fetch")
    for _ in range(2):
        for duration_ms in range(200):
            metrics.answered_later(duration_ms, is_queued=False)
        metrics.answered_later(1_000, is_queued=True)
        metrics.answered_at_once += 3
    total = 2 * sum(range(200))
    assert totals(metrics.local_time) == (408, 2_000, 1_000)
    assert totals(metrics.remote_time) == (408, total, 199)
    assert totals(metrics.total_time) == (408, total + 2_000, 1_000)
    metrics.answered_later(7, is_queued=False)
    assert totals(metrics.total_time) == (409, total + 2_007, 1_000)
    assert totals(metrics.remote_time) == (409, total + 7, 199)


def test_responses_without_an_error_are_counted_as_none_and_their_count_never_falls() -> None:
    registry = MetricsRegistry(lambda: 0.0)
    by_name = RequestMetricsByName(registry)

    def successes() -> dict[str, int]:
        found = {}
        for name, metric in registry:
            tags = dict(name.tags)
            if tags.get("error") == "NONE":
                assert name == MetricName("kafka.network", "RequestMetrics", "ErrorsPerSec", name.tags)
                assert isinstance(metric, Meter)
                found[tags["request"]] = metric.count
        return found

    fetches, consumers, produced = map(by_name.of, ("Fetch", "FetchConsumer", "Produce"))
    assert successes() == {}
    fetches.answered_at_once += 3
    consumers.answered_at_once += 3  # of the same requests: errors are counted by APIs only
    for duration_ms in range(200):
        fetches.answered_later(duration_ms, is_queued=False)
    assert successes() == {"Fetch": 203}
    produced.answered_at_once += 5
    produced.failed += 2
    assert successes() == {"Fetch": 203, "Produce": 3}
    produced.failed += 1  # it was counted as answered before its errors were looked for: no counter may fall
    assert successes()["Produce"] == 3
    produced.answered_at_once += 2
    assert successes()["Produce"] == 4
