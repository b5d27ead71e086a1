"""What a transaction coordinator counts, under Kafka's names."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final

from barnabas.kernel.metrics import MetricName, MetricsRegistry

_MARKERS_GROUP: Final = "kafka.coordinator.transaction"
_MARKERS: Final = "TransactionMarkerChannelManager"
_COORDINATOR_GROUP: Final = "kafka.server"
_COORDINATOR: Final = "transaction-coordinator-metrics"
_WINDOW_SECONDS: Final = 30.0
_LOADS_MAX: Final = 1_000
"""Of the window: later ones push out earlier ones."""


class TransactionMetrics:
    """Gauges, which cost nothing until they are read."""

    def __init__(
        self, metrics: MetricsRegistry, waiting_markers: Callable[[], int], refused_completions: Callable[[], int]
    ) -> None:
        """`waiting_markers` counts transactions with a partition whose leader cannot be told yet, and
        `refused_completions` those whose last record the log does not take yet.
        """
        self._metrics = metrics
        self._names: list[MetricName] = []
        self._loads: deque[tuple[float, float]] = deque(maxlen=_LOADS_MAX)
        """When partitions were loaded, and in how many milliseconds."""
        self._gauge(_MARKERS_GROUP, _MARKERS, "UnknownDestinationQueueSize", waiting_markers)
        self._gauge(_MARKERS_GROUP, _MARKERS, "LogAppendRetryQueueSize", refused_completions)
        self._gauge(_COORDINATOR_GROUP, _COORDINATOR, "partition-load-time-max", self._longest_load)
        self._gauge(_COORDINATOR_GROUP, _COORDINATOR, "partition-load-time-avg", self._mean_load)

    def loaded(self, seconds: float) -> None:
        """A partition of `__transaction_state` has been loaded, in that time."""
        self._loads.append((self._metrics.now(), seconds * 1_000))

    def remove(self) -> None:
        """Takes everything out of the registry again."""
        for name in self._names:
            self._metrics.remove(name)

    def _gauge(self, group: str, kind: str, name: str, read: Callable[[], float]) -> None:
        full = MetricName(group, kind, name)
        self._names.append(full)
        self._metrics.gauge(full, read)

    def _recent(self) -> list[float]:
        """The milliseconds of the loads of the last 30 seconds."""
        begin = self._metrics.now() - _WINDOW_SECONDS
        while self._loads and self._loads[0][0] < begin:
            self._loads.popleft()
        return [duration_ms for _, duration_ms in self._loads]

    def _longest_load(self) -> float:
        """NaN where nothing was loaded lately, as in Kafka."""
        return max(self._recent(), default=math.nan)

    def _mean_load(self) -> float:
        recent = self._recent()
        return sum(recent) / len(recent) if recent else math.nan
