"""Spans of requests, where somebody collects traces: with the times that Kafka's request metrics have.

Where nobody does, the broker has none of these objects, and no request passes a line of this file.

A request that is answered later is seen where its duration is counted, also on the fast paths. One that is answered in
the turn that brought it is seen on the general path only: on a fast path it takes some microseconds, among others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.api.request_metrics import Requester, RequestMetrics
from barnabas.kernel.tracing import Sampler, Span, SpanKind, Traces, Value

if TYPE_CHECKING:
    from barnabas.api.context import RequestContext
    from barnabas.kernel.host import Clock
    from barnabas.kernel.metrics import MetricsRegistry

_NAMED_OTHERWISE: Final = frozenset({"Fetch"})
"""Its requests have another name beside it, under which they are traced."""


class RequestTraces:
    """Makes the spans of requests, of each kind so many in a second."""

    def __init__(self, traces: Traces, sampler: Sampler, clock: Clock) -> None:
        self._traces = traces
        self._sampler = sampler
        self._clock = clock

    def stopwatch(self) -> float:
        """Seconds, for what is done within one turn of the loop."""
        return self._clock.stopwatch()

    def answered_at_once(self, name: str, context: RequestContext, seconds: float) -> None:
        """A request was answered in the turn that brought it, which took so long."""
        name = context.request_name or name
        if self._sampler.takes(name):
            self._add(name, seconds * 1000, context, is_local=True)

    def answered_later(self, name: str, duration_ms: int, by: Requester | None, *, is_queued: bool) -> None:
        """A request was answered that had been parked; `is_queued` where it waited for work of this broker."""
        if name not in _NAMED_OTHERWISE and self._sampler.takes(name):
            self._add(name, duration_ms, by, is_local=is_queued)

    def _add(self, name: str, duration_ms: float, by: Requester | None, *, is_local: bool) -> None:
        attributes: dict[str, Value] = {
            "messaging.system": "kafka",
            "rpc.method": name,
            "kafka.request.local_time_ms": duration_ms if is_local else 0,
            "kafka.request.remote_time_ms": 0 if is_local else duration_ms,
        }
        if by is not None:
            attributes["kafka.api.version"] = by.api_version
            if by.client_id is not None:
                attributes["messaging.client.id"] = by.client_id
            connection = getattr(by, "connection", None)
            if connection is not None:
                attributes["network.peer.address"] = connection.address
                attributes["kafka.listener"] = connection.listener.name
            partition = getattr(by, "topic_partition", None)
            if partition is not None:
                attributes["messaging.destination.name"] = partition.topic
                attributes["messaging.destination.partition.id"] = str(partition.partition)
        self._traces.add(Span(name, SpanKind.SERVER, self._clock.time_ms(), duration_ms, attributes))


class TracedRequestMetrics(RequestMetrics):
    """The figures of requests that are traced too."""

    __slots__ = ("_traces",)

    def __init__(self, metrics: MetricsRegistry, name: str, traces: RequestTraces) -> None:
        super().__init__(metrics, name)
        self._traces = traces

    def answered_later(self, duration_ms: int, *, is_queued: bool, by: Requester | None = None) -> None:
        super().answered_later(duration_ms, is_queued=is_queued)
        self._traces.answered_later(self.name, duration_ms, by, is_queued=is_queued)
