"""The dispatcher of a broker whose requests are traced."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from barnabas.api.dispatch import Dispatcher
from barnabas.api.request_metrics import RequestMetricsByName
from barnabas.api.request_traces import RequestTraces, TracedRequestMetrics

if TYPE_CHECKING:
    import logging

    from barnabas.api.context import RequestContext
    from barnabas.api.registry import Registry
    from barnabas.api.route import Route
    from barnabas.kernel.host import Host
    from barnabas.kernel.metrics import MetricsRegistry
    from barnabas.wire.primitives import Buffer


class TracedDispatcher(Dispatcher):
    """As `Dispatcher`, which knows nothing of traces; the rest is a matter of the metrics that it counts by."""

    def __init__(
        self,
        traces: RequestTraces,
        host: Host,
        registry: Registry,
        logger: logging.Logger,
        metrics: MetricsRegistry,
        **others: Any,
    ) -> None:
        """Where spans go, and the arguments of `Dispatcher`."""
        super().__init__(host, registry, logger, metrics, **others)
        self._traces = traces
        self._metrics = RequestMetricsByName(metrics, partial(TracedRequestMetrics, traces=traces))

    def _begin(
        self, context: RequestContext, route: Route, buffer: bytearray | memoryview, position: int, end: int
    ) -> list[Buffer] | None:
        begun = self._traces.stopwatch()
        frame = super()._begin(context, route, buffer, position, end)
        if frame is not None:
            self._traces.answered_at_once(route.metrics.name, context, self._traces.stopwatch() - begun)
        return frame
