"""What the console shows of the pipelines whose files it was told of: it knows no pipelines itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from barnabas.console.pipelines import PipelineFile, QueryLine

if TYPE_CHECKING:
    from barnabas.console.pipelines import ReadFiles
    from barnabas.pipelines.status import QueryStatus


def reader_of(paths: Sequence[Path]) -> ReadFiles:
    """Reads the status of all of these, each time anew: a file may be changed meanwhile."""
    return lambda: [_read(path) for path in paths]


# Inside.


def _read(path: Path) -> PipelineFile:
    from barnabas.pipelines.definition import PipelineError
    from barnabas.pipelines.graph import graph_of, svg_of
    from barnabas.pipelines.reading import read_pipeline
    from barnabas.pipelines.status import PipelineState, read_status

    kinds = {PipelineState.RUNNING: "good", PipelineState.FAILED: "bad"}
    try:
        pipeline = read_pipeline(path)
        status = read_status(pipeline)
    except (PipelineError, OSError, ValueError) as error:
        return PipelineFile("", str(path), error=str(error))
    return PipelineFile(
        pipeline.name,
        str(path),
        status.state.value,
        kinds.get(status.state, "warning"),
        status.process_id,
        status.reason,
        status.started_ms,
        status.updated_ms,
        tuple(map(_query, status.queries)),
        svg_of(graph_of(pipeline)),
    )


def _query(query: QueryStatus) -> QueryLine:
    totals = query.totals
    left_out = {
        "not of the schema": totals.records_refused,
        "too late": totals.rows_dropped_by_watermark,
        "without event time": totals.rows_without_event_time,
        "in the future": totals.rows_ahead,
        "lost before they were read": totals.records_lost,
    }
    return QueryLine(
        query.query,
        query.batch_id,
        query.time_ms,
        query.rows_per_second,
        query.watermark_ms,
        totals.rows_in,
        totals.rows_out,
        {why: count for why, count in left_out.items() if count},
    )
