"""`barnabas.api.request_metrics`."""

from __future__ import annotations

from barnabas.api.request_metrics import RequestMetrics
from barnabas.kernel.metrics import Histogram, MetricsRegistry


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
