"""What Prometheus reads of a run's progress."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from barnabas.pipelines.progress import Progress, RunSummary, Totals
from barnabas.pipelines.progress_metrics import ProgressMetrics

BATCH = Progress(
    query="by_hour",
    batch_id=3,
    time_ms=1_600_000_000_500,
    duration_ms=2_500,
    rows_in=10_000,
    rows_out=120,
    rows_per_second=4_000.0,
    lag={"flights": 12_000, "other": 0},
    offsets={},
    watermark_ms=1_599_999_999_000,
    state_rows=7,
    state_bytes=2**40 + 1,
    rows_dropped_by_watermark=1,
    totals=Totals(4, 40_000, 480, 2, rows_without_event_time=3, rows_ahead=4, records_refused=5, records_lost=6),
)
SUMMARY = RunSummary("delays", False, 1, 2, 3, 4, {}, 5)


class Told:
    """What was passed on."""

    def __init__(self) -> None:
        self.all: list[object] = []

    def said(self, line: str) -> None:
        self.all.append(line)

    def batch(self, progress: Progress) -> None:
        self.all.append(progress)

    def ended(self, summary: RunSummary) -> None:
        self.all.append(summary)


def samples(metrics: ProgressMetrics) -> dict[tuple[str, str], float]:
    """By name, without what all have before it, and query, or topic where there is one."""
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        assert family.type in {"counter", "gauge"}
        assert family.documentation
        for sample in family.samples:
            assert sample.labels["pipeline"] == "delays"
            name = sample.name.removeprefix("barnabas_pipeline_")
            found[name, sample.labels.get("topic", sample.labels["query"])] = sample.value
    return found


def test_a_batch_is_told_as_it_was_and_passed_on() -> None:
    told = Told()
    metrics = ProgressMetrics("delays", told, {})
    assert samples(metrics) == {}
    metrics.said("reading")
    metrics.batch(replace(BATCH, totals=Totals()))
    metrics.batch(BATCH)
    metrics.batch(replace(BATCH, query="other_rows", watermark_ms=None))
    metrics.ended(SUMMARY)
    assert told.all == ["reading", replace(BATCH, totals=Totals()), BATCH, told.all[3], SUMMARY]
    found = samples(metrics)
    assert {name: value for (name, what), value in found.items() if what == "by_hour"} == {
        "batches_total": 4,
        "rows_read_total": 40_000,
        "rows_written_total": 480,
        "records_refused_total": 5,
        "records_lost_total": 6,
        "rows_dropped_by_watermark_total": 2,
        "rows_without_event_time_total": 3,
        "rows_ahead_total": 4,
        "rows_per_second": 4_000,
        "batch_duration_seconds": 2.5,
        "last_batch_timestamp_seconds": 1_600_000_000.5,
        "watermark_timestamp_seconds": 1_599_999_999,
        "state_rows": 7,
        "state_bytes": 2**40 + 1,
    }
    assert (found["lag_records", "flights"], found["lag_records", "other"]) == (12_000, 0)
    assert ("watermark_timestamp_seconds", "other_rows") not in found


def test_counters_go_on_where_the_run_before_ended() -> None:
    before: dict[str, dict[str, Any]] = {"by_hour": BATCH.to_json(), "odd": {}}
    found = samples(ProgressMetrics("delays", Told(), before))
    assert found["rows_read_total", "by_hour"] == 40_000
    assert found["rows_read_total", "odd"] == 0
    assert ("rows_per_second", "by_hour") not in found, "that is of a batch of this run"
