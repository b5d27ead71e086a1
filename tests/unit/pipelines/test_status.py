"""Where a pipeline stands, by its state directory alone."""

from __future__ import annotations

import os
from pathlib import Path

from barnabas.pipelines.progress import Progress, Totals
from barnabas.pipelines.state_directory import RunEnd, StateDirectory
from barnabas.pipelines.status import PipelineState, read_status
from tests.unit.pipelines.made_pipelines import made_pipeline

PROGRESS = Progress(
    query="by_day",
    batch_id=3,
    time_ms=4_000_000_000_000,
    duration_ms=10,
    rows_in=5,
    rows_out=2,
    rows_per_second=500.0,
    lag={"flights": 1},
    offsets={"flights": {0: 9}},
    watermark_ms=None,
    state_rows=6,
    state_bytes=700,
    rows_dropped_by_watermark=1,
    totals=Totals(4, 20, 8, 1),
)


def test_from_the_first_run_to_the_last(tmp_path: Path) -> None:
    pipeline = made_pipeline(tmp_path)
    assert read_status(pipeline).state is PipelineState.NEVER_RAN
    assert not pipeline.state_directory.exists()
    state = StateDirectory(pipeline.state_directory)
    with state.locked(pipeline):
        state.begin()
        running = read_status(pipeline)
        assert (running.state, running.process_id, running.queries) == (PipelineState.RUNNING, os.getpid(), ())
        state.add_progress(PROGRESS.to_json())
        (query,) = read_status(pipeline).queries
        assert (query.query, query.batch_id, query.totals) == ("by_day", 3, PROGRESS.totals)
        assert (query.rows_per_second, query.watermark_ms, query.state_rows) == (500.0, None, 6)
        assert read_status(pipeline).updated_ms == PROGRESS.time_ms
    killed = read_status(pipeline)
    assert (killed.state, killed.process_id) == (PipelineState.FAILED, None)
    assert killed.reason is not None
    assert "was killed" in killed.reason
    state.end(RunEnd.FAILED, "a record is not JSON")
    assert read_status(pipeline).reason == "a record is not JSON"
    state.end(RunEnd.DONE)
    assert read_status(pipeline).state is PipelineState.STOPPED
