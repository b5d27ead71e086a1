"""Rows whose event time is of no use to a watermark: missing, or further in the future than a step allows.

One row of the year 55840 would move the watermark there, and every later row would be too late. A row without an event
time is in no window, and nobody would hear of it. The first are taken out before the watermark, both are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from barnabas.pipelines.definition import Watermark

METRIC_PREFIX: Final = "barnabas_times_"
"""Begins the names of the metrics that Spark reports the counts by; the step's name follows."""

_MISSING = "missing"
_AHEAD = "ahead"


@dataclass(frozen=True, slots=True)
class EventTimeCounts:
    """Rows of a batch, of all steps with a watermark together: without an event time, and too far ahead."""

    missing: int = 0
    ahead: int = 0


def watched_times(frame: DataFrame, step: str, watermark: Watermark) -> DataFrame:
    """The step's rows without those that lie more than `ahead_ms` beyond now; Spark counts them, and those that have
    no event time, which stay.

    Now is the time that Spark noted for the batch before it began it: a batch that is done again has the same rows. It
    is told by the batch's own query only, so two queries that read a step may differ about a row at the bound. Raises
    pyspark's AnalysisException where there is no such column; that it is a time is `withWatermark`'s to say.
    """
    from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it
    from pyspark.sql.types import StructType, TimestampType

    named = F.col(watermark.column)
    kind = frame.select(named).schema.fields[0].dataType
    # The column of a window has its begin and its end, and may well end after now.
    time = named.getField("start") if isinstance(kind, StructType) and "start" in kind.names else named
    if not isinstance(frame.select(time).schema.fields[0].dataType, TimestampType):
        return frame
    is_ahead = _is_true(time > F.current_timestamp() + F.make_dt_interval(secs=F.lit(watermark.ahead_ms / 1_000)))
    counts = [F.count_if(time.isNull()).alias(_MISSING), F.count_if(is_ahead).alias(_AHEAD)]
    return frame.observe(f"{METRIC_PREFIX}{step}", *counts).where(~is_ahead)


def event_time_counts(observed: Mapping[str, Any]) -> EventTimeCounts:
    """The counts of a batch, from `observedMetrics` of Spark's StreamingQueryProgress."""
    found = [counts for name, counts in observed.items() if name.startswith(METRIC_PREFIX)]
    return EventTimeCounts(
        sum(int(counts.get(_MISSING) or 0) for counts in found), sum(int(counts.get(_AHEAD) or 0) for counts in found)
    )


def _is_true(condition: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.coalesce(condition, F.lit(False))
