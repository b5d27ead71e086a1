"""A run's progress as Prometheus scrapes it: what its batches have told, by query, in the text format (0.0.4)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from barnabas.pipelines.progress import Progress, ProgressSink, RunSummary, Totals, totals_from_json

_PREFIX: Final = "barnabas_pipeline_"


class _Of(NamedTuple):
    """A metric: its name without the prefix, what it is, and its value; None where there is none."""

    name: str
    help: str
    value: Callable[[Any], float | None]


_COUNTERS: Final = (
    _Of("batches_total", "Batches that are done, of all runs of this state.", lambda of: of.batches),
    _Of("rows_read_total", "Rows of topics that batches have read.", lambda of: of.rows_in),
    _Of("rows_written_total", "Rows that batches have written.", lambda of: of.rows_out),
    _Of(
        "records_refused_total",
        "Records that did not fit their schema: dead letters where on_error is topic.",
        lambda of: of.records_refused,
    ),
    _Of("records_lost_total", "Records that were gone before they were read.", lambda of: of.records_lost),
    _Of(
        "rows_dropped_by_watermark_total",
        "Rows that came too late for the state.",
        lambda of: of.rows_dropped_by_watermark,
    ),
    _Of("rows_without_event_time_total", "Rows that are in no window.", lambda of: of.rows_without_event_time),
    _Of("rows_ahead_total", "Rows that were left out since they lie in the future.", lambda of: of.rows_ahead),
)
"""Of a query's totals."""

_GAUGES: Final = (
    _Of("rows_per_second", "Rows that the last batch has read in a second.", lambda of: of.rows_per_second),
    _Of("batch_duration_seconds", "How long the last batch took.", lambda of: of.duration_ms / 1000),
    _Of("last_batch_timestamp_seconds", "When the last batch was done.", lambda of: of.time_ms / 1000),
    _Of(
        "watermark_timestamp_seconds",
        "The watermark, where there is one.",
        lambda of: None if of.watermark_ms is None else of.watermark_ms / 1000,
    ),
    _Of("state_rows", "Rows of the state.", lambda of: of.state_rows),
    _Of("state_bytes", "Memory that the state takes.", lambda of: of.state_bytes),
)
"""Of a query's last batch in this run."""


class ProgressMetrics:
    """Passes progress on, and keeps of each query its last batch and its totals, for `text`."""

    def __init__(self, pipeline: str, to: ProgressSink, last: Mapping[str, Mapping[str, Any]]) -> None:
        """`last` has the last line of progress of each query, of former runs: counters go on from there."""
        self._pipeline = pipeline
        self._to = to
        self._lock = threading.Lock()
        self._totals = {query: totals_from_json(line) for query, line in last.items()}
        self._batches: dict[str, Progress] = {}

    def said(self, line: str) -> None:
        """Passes it on."""
        self._to.said(line)

    def batch(self, progress: Progress) -> None:
        """Takes note of it, and passes it on."""
        with self._lock:
            self._batches[progress.query] = progress
            self._totals[progress.query] = progress.totals
        self._to.batch(progress)

    def ended(self, summary: RunSummary) -> None:
        """Passes it on."""
        self._to.ended(summary)

    def text(self) -> bytes:
        """All samples as they are now; on any thread."""
        with self._lock:
            totals, batches = dict(self._totals), dict(self._batches)
        return "".join(f"{line}\n" for line in self._lines(totals, batches)).encode()

    def _lines(self, totals: Mapping[str, Totals], batches: Mapping[str, Progress]) -> Iterator[str]:
        # Names of pipelines, views and topics have nothing in them that is escaped in a label.
        for kind, metrics, sources in (("counter", _COUNTERS, totals), ("gauge", _GAUGES, batches)):
            for metric in metrics:
                yield from _head(metric.name, metric.help, kind)
                for query, source in sources.items():
                    value = metric.value(source)
                    if value is not None:
                        yield self._line(metric.name, query, value)
        yield from _head("lag_records", "Records behind the last batch when it was made, by topic.", "gauge")
        for query, progress in batches.items():
            for topic, lag in progress.lag.items():
                yield self._line("lag_records", query, lag, f',topic="{topic}"')

    def _line(self, name: str, query: str, value: float, more: str = "") -> str:
        return f'{_PREFIX}{name}{{pipeline="{self._pipeline}",query="{query}"{more}}} {float(value)!r}'


def _head(name: str, text: str, kind: str) -> tuple[str, str]:
    return f"# HELP {_PREFIX}{name} {text}", f"# TYPE {_PREFIX}{name} {kind}"
