"""Spans on their way to a collector: what arrives, and that a collector which is dead, slow or mad harms nobody."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from barnabas.kernel import real_traces
from barnabas.kernel.metrics import Gauge, MetricsRegistry
from barnabas.kernel.real_traces import BATCH_MAX, EVENTS_MAX, RealTraces, TracesMissingError, otlp_traces
from barnabas.kernel.tracing import NAMES_MAX, Sampler, Span, SpanEvent, SpanKind
from tests.support.waiting import wait_until

LOGGER = logging.getLogger("tests.traces")


def span(name: str = "Produce", error: str | None = None) -> Span:
    events = (SpanEvent(1_700_000_000_100, "moved", {"broker": 2}),)
    return Span(name, SpanKind.SERVER, 1_700_000_000_250, 250.0, {"kafka.api.version": 9}, events, error)


@contextmanager
def running(export: Callable[[list[Span]], bool], spans_max: int = 10_000) -> Iterator[RealTraces]:
    traces = RealTraces(lambda: export, LOGGER, spans_max)
    traces.start()
    try:
        yield traces
    finally:
        traces.close(5)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_traces, "INTERVAL_SECONDS", 0.01)


def test_all_spans_arrive_in_their_order_and_in_bounded_batches() -> None:
    batches: list[list[Span]] = []

    def export(batch: list[Span]) -> bool:
        batches.append(batch)
        return True

    traces = RealTraces(lambda: export, LOGGER)
    spans = [span(str(number)) for number in range(BATCH_MAX + 10)]
    for one in spans:
        traces.add(one)
    traces.start()
    assert traces.close(5)
    assert [one for batch in batches for one in batch] == spans
    assert [len(batch) for batch in batches] == [BATCH_MAX, 10]
    assert (traces.sent, traces.dropped) == (len(spans), 0)


def test_spans_of_many_events_are_bounded_by_these() -> None:
    sizes: list[int] = []

    def export(batch: list[Span]) -> bool:
        sizes.append(sum(len(one.events) for one in batch))
        return True

    moved = Span("controller", SpanKind.INTERNAL, 1_700_000_000_250, 250.0, {}, span().events * 100)
    traces = RealTraces(lambda: export, LOGGER)
    for _ in range(1000):
        traces.add(moved)
    traces.add(span())
    assert traces.dropped == 1000 - EVENTS_MAX // 100
    traces.start()
    wait_until(lambda: traces.sent == EVENTS_MAX // 100 + 1, "what has found room is sent")
    traces.add(moved)
    assert traces.close(5)
    assert traces.dropped == 1000 - EVENTS_MAX // 100
    assert max(sizes) == 4_100


def test_what_a_hanging_collector_does_not_take_is_dropped_and_nobody_waits() -> None:
    hangs, begun = threading.Event(), threading.Event()

    def export(batch: list[Span]) -> bool:
        begun.set()
        return hangs.wait(30)

    with running(export, spans_max=5) as traces:
        traces.add(span())
        assert begun.wait(30)
        for _ in range(12):
            traces.add(span())
        assert traces.dropped == 7
        assert not traces.close(0.01)
        traces.add(span())
        assert traces.dropped == 8
        hangs.set()
        wait_until(lambda: traces.sent == 6, "what waited is sent")


def test_a_dead_collector_is_complained_of_once_and_so_is_its_return(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Exception | bool] = [ConnectionError("nobody"), False, ValueError("mad"), True, True]
    with caplog.at_level(logging.INFO, LOGGER.name):

        def export(batch: list[Span]) -> bool:
            answer = answers[answered[0]]
            answered[0] += 1
            if isinstance(answer, Exception):
                raise answer
            return answer

        answered = [0]
        with running(export) as traces:
            for number in range(len(answers)):
                traces.add(span())
                wait_until(lambda number=number: answered[0] > number, "the batch is tried")  # type: ignore[misc]
        assert (traces.sent, traces.dropped) == (2, 3)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "nobody" in caplog.text


def test_without_an_exporter_nothing_is_kept() -> None:
    def fail() -> Any:
        raise ImportError("broken")

    traces = RealTraces(fail, LOGGER)
    traces.add(span())
    traces.start()
    assert traces.close(5)
    traces.add(span())
    assert traces.dropped == 1


def test_gauges_say_how_many_were_sent_and_dropped() -> None:
    registry = MetricsRegistry(lambda: 0.0)
    traces = RealTraces(lambda: lambda batch: True, LOGGER, spans_max=1)
    traces.register(registry)
    traces.add(span())
    traces.add(span())
    traces.start()
    traces.close(5)
    gauges = {name.name: gauge.read() for name, gauge in registry if isinstance(gauge, Gauge)}
    assert gauges == {"SpansSent": 1, "SpansDropped": 1, "SpansWaiting": 0}


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TracesMissingError, match=r"pip install 'barnabas\[otel\]'"):
        otlp_traces("http://127.0.0.1:1/v1/traces", {}, LOGGER)


def test_of_each_name_a_sampler_takes_so_many_in_a_second() -> None:
    now = [100.0]
    sampler = Sampler(lambda: now[0], 2.0)
    taken = []
    for step in range(40):
        now[0] = 100 + step / 10
        taken.append(sampler.takes("Produce"))
    assert sum(taken) == 8
    assert taken[0]
    assert sampler.takes("Metadata")
    assert not sampler.takes("Metadata")
    for number in range(3 * NAMES_MAX):
        sampler.takes(str(number))
    assert len(sampler._next) <= NAMES_MAX


class _Collector(BaseHTTPRequestHandler):
    bodies: list[tuple[str, bytes]]
    status = 200

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).bodies.append((self.path, body))
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        return


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """Its address, and what it was sent."""
    bodies: list[tuple[str, bytes]] = []
    handler = type("Collector", (_Collector,), {"bodies": bodies})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/traces", bodies
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def test_a_collector_gets_them_as_opentelemetry_says(collector: tuple[str, list[tuple[str, bytes]]]) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="OpenTelemetry (the extra otel) is missing")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    address, bodies = collector
    traces = otlp_traces(address, {"service.name": "barnabas", "service.instance.id": "broker-3"}, LOGGER)
    traces.add(span())
    traces.add(span("controller Startup", error="KafkaError: no"))
    traces.start()
    wait_until(lambda: traces.sent == 2, "the spans are sent")
    assert traces.close(5)
    ((path, body),) = bodies
    assert path == "/v1/traces"
    (of_resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    resource = {one.key: one.value.string_value for one in of_resource.resource.attributes}
    assert (resource["service.name"], resource["service.instance.id"]) == ("barnabas", "broker-3")
    first, second = of_resource.scope_spans[0].spans
    assert (first.name, first.kind, first.status.code) == ("Produce", first.SPAN_KIND_SERVER, 0)
    assert (first.start_time_unix_nano, first.end_time_unix_nano) == (
        1_700_000_000_000_000_000,
        1_700_000_000_250_000_000,
    )
    assert [(one.key, one.value.int_value) for one in first.attributes] == [("kafka.api.version", 9)]
    assert [(one.name, one.time_unix_nano) for one in first.events] == [("moved", 1_700_000_000_100_000_000)]
    assert (second.status.code, second.status.message) == (2, "KafkaError: no")
    assert first.trace_id != second.trace_id
