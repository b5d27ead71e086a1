"""What a run tells while it goes: each finished batch, once, and at the end the sum."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

from barnabas.pipelines.event_times import event_time_counts
from barnabas.pipelines.sources import refused_records
from barnabas.pipelines.state_directory import merged_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROWS_OUT = "barnabas_rows_out"


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all batches of a query, of all its runs."""

    batches: int = 0
    rows_in: int = 0
    rows_out: int = 0
    rows_dropped_by_watermark: int = 0
    rows_without_event_time: int = 0
    rows_ahead: int = 0
    records_refused: int = 0
    records_lost: int = 0

    def plus(self, other: Totals) -> Totals:
        """Both together."""
        return Totals(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})


@dataclass(frozen=True, slots=True)
class Progress:
    """One finished batch of one query.

    `query` is the view that is written. `offsets` has, by topic and partition, the next offset to be read, and `lag`,
    by topic, how many records lay behind that when the batch was made. `watermark_ms` (since 1970) is None where there
    is none, or no row yet. `rows_dropped_by_watermark` is what Spark counts: rows that came too late for the state,
    after those of one group in one batch have been joined into one. `rows_without_event_time` are in no window, and
    `rows_ahead` were left out since they lie in the future: rows of steps with a watermark. `records_refused` do not
    fit the schema of their source, and are left out; `records_lost` were gone from the topic before they were read, of
    a source that allows that. Each query that reads the source counts both.
    """

    query: str
    batch_id: int
    time_ms: int
    duration_ms: int
    rows_in: int
    rows_out: int
    rows_per_second: float
    lag: Mapping[str, int]
    offsets: Mapping[str, Mapping[int, int]]
    watermark_ms: int | None
    state_rows: int
    state_bytes: int
    rows_dropped_by_watermark: int
    totals: Totals
    rows_without_event_time: int = 0
    rows_ahead: int = 0
    records_refused: int = 0
    records_lost: int = 0

    @property
    def alone(self) -> Totals:
        """The sums of this batch alone."""
        return Totals(1, **{each.name: getattr(self, each.name) for each in fields(Totals)[1:]})

    def having_lost(self, records: int) -> Progress:
        """The same batch, which Spark has no count of lost records of, with one."""
        return replace(self, records_lost=records, totals=self.totals.plus(Totals(records_lost=records)))

    def to_json(self) -> dict[str, Any]:
        """The line for programs: the fields as they are, with `"event": "batch"`."""
        return {"event": "batch", **asdict(self)}


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What one run has done, all its queries together; `lag` is that of the last batch of each topic."""

    pipeline: str
    was_stopped: bool
    batches: int
    rows_in: int
    rows_out: int
    rows_dropped_by_watermark: int
    lag: Mapping[str, int]
    duration_ms: int
    warnings: tuple[str, ...] = ()
    rows_without_event_time: int = 0
    rows_ahead: int = 0
    records_refused: int = 0
    records_lost: int = 0

    def to_json(self) -> dict[str, Any]:
        """The last line for programs, with `"event": "summary"`."""
        return {"event": "summary", **asdict(self)}


@dataclass(frozen=True, slots=True)
class ShownRows:
    """Rows of a batch that a sink `console` shows: the first ones, each value as text, cut if it was long.

    `has_more`: the batch has others. `is_again`: it was begun before, so that they may have been shown before.
    """

    query: str
    batch_id: int
    columns: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]
    has_more: bool
    is_again: bool

    def to_json(self) -> dict[str, Any]:
        """The line for programs, with `"event": "rows"`."""
        return {
            "event": "rows",
            "query": self.query,
            "batch_id": self.batch_id,
            "has_more": self.has_more,
            "is_again": self.is_again,
            "rows": [dict(zip(self.columns, row, strict=True)) for row in self.rows],
        }


class ProgressSink(Protocol):
    """Where a run tells what it does; called on one thread at a time."""

    def said(self, line: str) -> None:
        """What is being done now, in one line; also warnings."""

    def batch(self, progress: Progress) -> None:
        """A batch is finished."""

    def ended(self, summary: RunSummary) -> None:
        """The run has ended, and not by an error."""


def is_finished_batch(event: Mapping[str, Any]) -> bool:
    """Whether an event of Spark's is about a batch that ran, and not about waiting for records."""
    return "addBatch" in event.get("durationMs", {})


def counted(frame: DataFrame) -> DataFrame:
    """The same rows; Spark counts them on their way to the sinks, and tells `progress_of`."""
    from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it

    return frame.observe(_ROWS_OUT, F.count(F.lit(1)).alias("rows"))


def progress_of(event: Mapping[str, Any], query: str, before: Totals) -> Progress:
    """What Spark reports of a finished batch (the JSON of its StreamingQueryProgress) as ours."""
    rows_in = int(event.get("numInputRows", 0))
    observed = event.get("observedMetrics", {})
    rows_out = int(observed.get(_ROWS_OUT, {}).get("rows", 0))
    times = event_time_counts(observed)
    duration_ms = int(event.get("batchDuration") or event.get("durationMs", {}).get("triggerExecution", 0))
    operators = event.get("stateOperators", [])
    dropped = sum(int(operator.get("numRowsDroppedByWatermark", 0)) for operator in operators)
    sources = [source for source in event.get("sources", []) if isinstance(source.get("endOffset"), Mapping)]
    offsets = merged_offsets(source["endOffset"] for source in sources)
    newest = merged_offsets(
        source["latestOffset"] for source in sources if isinstance(source.get("latestOffset"), Mapping)
    )
    lag = {
        topic: sum(max(0, newest.get(topic, {}).get(number, offset) - offset) for number, offset in partitions.items())
        for topic, partitions in offsets.items()
    }
    progress = Progress(
        query=query,
        batch_id=int(event["batchId"]),
        time_ms=_milliseconds(event["timestamp"]) + duration_ms,
        duration_ms=duration_ms,
        rows_in=rows_in,
        rows_out=rows_out,
        rows_per_second=round(rows_in * 1000 / duration_ms, 1) if duration_ms else 0.0,
        lag=lag,
        offsets=offsets,
        watermark_ms=_watermark_ms(event),
        state_rows=sum(int(operator.get("numRowsTotal", 0)) for operator in operators),
        state_bytes=sum(int(operator.get("memoryUsedBytes", 0)) for operator in operators),
        rows_dropped_by_watermark=dropped,
        totals=before,
        rows_without_event_time=times.missing,
        rows_ahead=times.ahead,
        records_refused=refused_records(observed),
    )
    return replace(progress, totals=before.plus(progress.alone))


def totals_from_json(line: Mapping[str, Any] | None) -> Totals:
    """The sums of a line that `Progress.to_json` gave; zeros where there is none."""
    content = (line or {}).get("totals", {})
    return Totals(**{each.name: int(content.get(each.name, 0)) for each in fields(Totals)})


def _watermark_ms(event: Mapping[str, Any]) -> int | None:
    text = event.get("eventTime", {}).get("watermark")
    watermark_ms = None if text is None else _milliseconds(text)
    # Spark's watermark stands at 1970 until the first batch with rows is done.
    return watermark_ms or None


def _milliseconds(text: str) -> int:
    moment = dt.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return round(moment.timestamp() * 1000)
