"""What a pipeline's state directory tells about it, without Spark and without the cluster."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from barnabas.pipelines.definition import Pipeline
from barnabas.pipelines.progress import Totals, totals_from_json
from barnabas.pipelines.state_directory import RunEnd, StateDirectory


class PipelineState(enum.Enum):
    """How it is with a pipeline now."""

    NEVER_RAN = "never ran"
    RUNNING = "running"
    STOPPED = "stopped"
    """The last run ended in order: done, or told to stop."""
    FAILED = "failed"
    """The last run ended by an error, or was killed."""


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """The last finished batch of one query, with the sums over all batches."""

    query: str
    batch_id: int
    time_ms: int
    rows_per_second: float
    watermark_ms: int | None
    state_rows: int
    state_bytes: int
    totals: Totals
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """Where a pipeline stands. Times are milliseconds since 1970; `reason` says why it failed."""

    state: PipelineState
    process_id: int | None = None
    reason: str | None = None
    started_ms: int | None = None
    updated_ms: int | None = None
    queries: tuple[QueryStatus, ...] = ()


def read_status(pipeline: Pipeline) -> PipelineStatus:
    """Reads it; changes nothing, and does not disturb a run under way."""
    state = StateDirectory(pipeline.state_directory)
    run = state.last_run()
    if run is None:
        return PipelineStatus(PipelineState.NEVER_RAN)
    last = state.last_progress()
    queries = tuple(
        _query_status(query.from_view, last[query.from_view], state.finished_offsets(query.from_view))
        for query in pipeline.queries
        if query.from_view in last
    )
    updated_ms = max([query.time_ms for query in queries] + [run.ended_ms or run.started_ms])
    holder = state.lock_holder()
    if holder is not None:
        return PipelineStatus(PipelineState.RUNNING, holder or None, None, run.started_ms, updated_ms, queries)
    if run.end is None:
        reason = f"process {run.process_id} was killed; run it again, and it continues where it was"
        return PipelineStatus(PipelineState.FAILED, None, reason, run.started_ms, updated_ms, queries)
    ended = PipelineState.FAILED if run.end is RunEnd.FAILED else PipelineState.STOPPED
    return PipelineStatus(ended, None, run.reason, run.started_ms, updated_ms, queries)


def _query_status(query: str, line: Mapping[str, object], offsets: Mapping[str, Mapping[int, int]]) -> QueryStatus:
    def number(name: str) -> int:
        value = line.get(name)
        return int(value) if isinstance(value, int | float) else 0

    rate = line.get("rows_per_second")
    return QueryStatus(
        query=query,
        batch_id=number("batch_id"),
        time_ms=number("time_ms"),
        rows_per_second=float(rate) if isinstance(rate, int | float) else 0.0,
        watermark_ms=None if line.get("watermark_ms") is None else number("watermark_ms"),
        state_rows=number("state_rows"),
        state_bytes=number("state_bytes"),
        totals=totals_from_json(line),
        offsets=offsets,
    )
