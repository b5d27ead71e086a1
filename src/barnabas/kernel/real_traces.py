"""Spans to a collector, by OTLP over HTTP, with OpenTelemetry's own exporter (the extra `otel`).

The loop only puts a span into a bounded queue. A thread makes OpenTelemetry's spans of them and sends them, so that a
collector that is slow, dead, or answers nonsense costs a broker nothing but that thread's waiting: spans that find no
room are dropped and counted. What the exporter knows beside the address (headers, certificates, compression,
time-outs), it reads from the environment, under OpenTelemetry's names (`OTEL_EXPORTER_OTLP_HEADERS` ...).
"""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from barnabas.kernel.metrics import MetricName
from barnabas.kernel.tracing import Span, SpanKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from barnabas.kernel.metrics import MetricsRegistry

    Export = Callable[[list[Span]], bool]
    """Sends spans; whether they have arrived. It may raise."""

SPANS_MAX: Final = 2048
"""That wait to be sent; as OpenTelemetry's own queue."""
BATCH_MAX: Final = 512
EVENTS_MAX: Final = 32_768
"""Of the spans that wait, all together: a controller's span can have 128, some hundred bytes each."""
BATCH_EVENTS_MAX: Final = 4_096
"""Of a batch, and those of one span more: a collector takes some MiB at a time."""
INTERVAL_SECONDS: Final = 1.0
"""Between two batches, unless much waits."""
_MODULE: Final = "opentelemetry.exporter.otlp.proto.http"
_NS_PER_MS: Final = 1_000_000


class TracesMissingError(RuntimeError):
    """The extra `otel` is not installed."""


class RealTraces:
    """A queue, and the thread that empties it. `Traces` for a broker; made before it, closed after it."""

    def __init__(self, make_export: Callable[[], Export], logger: logging.Logger, spans_max: int = SPANS_MAX) -> None:
        """`make_export` is called in the thread, since what it imports takes long."""
        self._make_export = make_export
        self._logger = logger
        self._spans_max = spans_max
        self._waiting: deque[Span] = deque()
        self._events_added = 0
        """Counted by the loop alone, and the other by the thread alone."""
        self._events_taken = 0
        self._wake = threading.Event()
        self._closed = False
        self._fails = False
        self.sent = 0
        self.dropped = 0
        """Since there was no room, or since the collector has not taken them."""
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def register(self, metrics: MetricsRegistry) -> None:
        """Shows how many spans were sent, and how many dropped."""
        metrics.gauge(MetricName("barnabas.kernel", "Traces", "SpansSent"), lambda: self.sent)
        metrics.gauge(MetricName("barnabas.kernel", "Traces", "SpansDropped"), lambda: self.dropped)
        metrics.gauge(MetricName("barnabas.kernel", "Traces", "SpansWaiting"), lambda: len(self._waiting))

    def add(self, span: Span) -> None:
        events = self._events_added - self._events_taken + len(span.events)
        if len(self._waiting) >= self._spans_max or events > EVENTS_MAX or self._closed:
            self.dropped += 1
            return
        self._events_added += len(span.events)
        self._waiting.append(span)
        if len(self._waiting) == BATCH_MAX or events >= BATCH_EVENTS_MAX:
            self._wake.set()

    def close(self, join_seconds: float = 2.0) -> bool:
        """Sends what waits, for so long at most; False where the collector has not taken it by then."""
        self._closed = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(join_seconds)
        return not self._waiting and not self._thread.is_alive()

    def _run(self) -> None:
        try:
            export = self._make_export()
        except Exception:
            self._logger.exception("Traces cannot be sent")
            self._closed = True
            self._waiting.clear()
            return
        while True:
            self._wake.wait(INTERVAL_SECONDS)
            self._wake.clear()
            while batch := self._next_batch():
                self._send(export, batch)
            if self._closed:
                return

    def _next_batch(self) -> list[Span]:
        waiting, batch, events = self._waiting, list[Span](), 0
        while waiting and len(batch) < BATCH_MAX and events < BATCH_EVENTS_MAX:
            batch.append(waiting.popleft())
            events += len(batch[-1].events)
        self._events_taken += events
        return batch

    def _send(self, export: Export, batch: list[Span]) -> None:
        reason = "it has refused them, or cannot be reached"
        try:
            has_arrived = export(batch)
        except Exception as error:  # noqa: BLE001 - a collector, or what is between, may answer anything
            has_arrived, reason = False, f"{type(error).__name__}: {error}"
        if has_arrived:
            self.sent += len(batch)
            if self._fails:
                self._logger.info("The collector takes traces again; %d spans were dropped so far", self.dropped)
        else:
            self.dropped += len(batch)
            if not self._fails:
                self._logger.warning("The collector does not take traces, which are dropped until it does: %s", reason)
        self._fails = not has_arrived


def otlp_traces(endpoint: str, resource: Mapping[str, str], logger: logging.Logger) -> RealTraces:
    """Traces for the collector at `endpoint`, http://HOST:4318/v1/traces, as those of `resource` (service.name ...).

    Raises TracesMissingError.
    """
    try:
        found = importlib.util.find_spec(_MODULE)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise TracesMissingError("barnabas.traces.endpoint needs OpenTelemetry: pip install 'barnabas[otel]'")
    return RealTraces(lambda: _otlp_export(endpoint, resource), logger)


def _otlp_export(endpoint: str, resource: Mapping[str, str]) -> Export:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExportResult

    # It logs each failure of its own; ours says once that the collector is gone, and once that it is back.
    logging.getLogger(_MODULE).setLevel(logging.CRITICAL + 1)
    exporter = OTLPSpanExporter(endpoint=endpoint)
    make = _maker(Resource.create(dict(resource)))

    def export(spans: list[Span]) -> bool:
        return bool(exporter.export([make(span) for span in spans]) is SpanExportResult.SUCCESS)

    return export


def _maker(resource: Any) -> Callable[[Span], Any]:
    """Makes OpenTelemetry's spans of ours; each is the root of a trace of its own."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    ids, scope = RandomIdGenerator(), InstrumentationScope("barnabas")
    kinds = {SpanKind.SERVER: trace.SpanKind.SERVER, SpanKind.INTERNAL: trace.SpanKind.INTERNAL}
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)

    def make(span: Span) -> Any:
        end_ns = span.end_ms * _NS_PER_MS
        failed = span.error is not None
        return ReadableSpan(
            name=span.name,
            context=trace.SpanContext(ids.generate_trace_id(), ids.generate_span_id(), False, flags),
            resource=resource,
            attributes=dict(span.attributes),
            events=[Event(one.name, dict(one.attributes), one.time_ms * _NS_PER_MS) for one in span.events],
            kind=kinds[span.kind],
            status=trace.Status(trace.StatusCode.ERROR if failed else trace.StatusCode.UNSET, span.error),
            start_time=end_ns - int(span.duration_ms * _NS_PER_MS),
            end_time=end_ns,
            instrumentation_scope=scope,
        )

    return make
