"""Spark's account of a batch as ours."""

from __future__ import annotations

from typing import Any

from barnabas.pipelines.progress import Totals, is_finished_batch, progress_of, totals_from_json


def event(**changes: Any) -> dict[str, Any]:
    """A finished batch, as Spark 4.0 reports it."""
    return {
        "name": "by_day",
        "timestamp": "2026-01-02T03:04:05.600Z",
        "batchId": 7,
        "batchDuration": 2_000,
        "numInputRows": 500,
        "durationMs": {"addBatch": 1_500, "triggerExecution": 2_000},
        "eventTime": {"watermark": "2013-01-01T00:00:00.000Z"},
        "stateOperators": [
            {"numRowsTotal": 10, "memoryUsedBytes": 1_000, "numRowsDroppedByWatermark": 2},
            {"numRowsTotal": 5, "memoryUsedBytes": 500, "numRowsDroppedByWatermark": 1},
        ],
        "sources": [
            {"endOffset": {"a": {"0": 10, "1": 20}}, "latestOffset": {"a": {"0": 15, "1": 20}}},
            {
                "endOffset": {"a": {"0": 8, "1": 20}, "b": {"0": 1}},
                "latestOffset": {"a": {"0": 15, "1": 20}, "b": {"0": 4}},
            },
        ],
        "observedMetrics": {"barnabas_rows_out": {"rows": 42}},
        **changes,
    }


def test_everything_of_a_batch() -> None:
    progress = progress_of(event(), "by_day", Totals(3, 1_000, 90, 4))
    assert (progress.query, progress.batch_id, progress.rows_in, progress.rows_out) == ("by_day", 7, 500, 42)
    assert progress.time_ms == 1_767_323_047_600
    assert (progress.duration_ms, progress.rows_per_second) == (2_000, 250.0)
    assert progress.offsets == {"a": {0: 8, 1: 20}, "b": {0: 1}}
    assert progress.lag == {"a": 7, "b": 3}
    assert progress.watermark_ms == 1_356_998_400_000
    assert (progress.state_rows, progress.state_bytes, progress.rows_dropped_by_watermark) == (15, 1_500, 3)
    assert progress.totals == Totals(4, 1_500, 132, 7)


def test_what_all_steps_and_sources_have_counted_is_told_together() -> None:
    observed = {
        "barnabas_rows_out": {"rows": 42},
        "barnabas_times_timed": {"missing": 3, "ahead": 1},
        "barnabas_times_other": {"missing": 4, "ahead": None},
        "barnabas_refused_flights": {"records": 2},
        "barnabas_refused_others": {"records": 6},
    }
    progress = progress_of(event(observedMetrics=observed), "by_day", Totals(rows_without_event_time=10, rows_ahead=5))
    assert (progress.rows_out, progress.rows_without_event_time, progress.rows_ahead) == (42, 7, 1)
    assert (progress.totals.rows_without_event_time, progress.totals.rows_ahead) == (17, 6)
    assert (progress.records_refused, progress.totals.records_refused) == (8, 8)
    assert (progress.alone.batches, progress.alone.rows_in, progress.alone.rows_ahead) == (1, 500, 1)


def test_a_query_without_state_and_a_watermark_that_has_not_begun() -> None:
    content = event(eventTime={"watermark": "1970-01-01T00:00:00.000Z"}, stateOperators=[], observedMetrics={})
    progress = progress_of(content, "by_day", Totals())
    assert (progress.watermark_ms, progress.state_rows, progress.rows_out) == (None, 0, 0)
    assert progress_of(event(eventTime={}), "by_day", Totals()).watermark_ms is None


def test_the_latest_offset_may_be_unknown() -> None:
    sources = [{"endOffset": {"a": {"0": 10}}, "latestOffset": None}, {"endOffset": None}]
    progress = progress_of(event(sources=sources), "by_day", Totals())
    assert progress.lag == {"a": 0}
    assert progress.offsets == {"a": {0: 10}}


def test_an_idle_trigger_is_no_batch() -> None:
    assert is_finished_batch(event())
    assert not is_finished_batch(event(durationMs={"latestOffset": 3, "triggerExecution": 3}))


def test_sums_come_back_from_json() -> None:
    progress = progress_of(event(), "by_day", Totals(3, 1_000, 90, 4))
    assert totals_from_json(progress.to_json()) == progress.totals
    assert progress.to_json()["event"] == "batch"
    assert totals_from_json(None) == Totals()
    before_event_times_were_counted = {"totals": {"batches": 1, "rows_in": 2, "rows_out": 3}}
    assert totals_from_json(before_event_times_were_counted) == Totals(1, 2, 3)
