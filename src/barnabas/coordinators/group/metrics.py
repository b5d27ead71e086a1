"""What a group coordinator counts, under Kafka's names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Final

from barnabas.coordinators.group.group import Group
from barnabas.coordinators.group.states import GroupState
from barnabas.kernel.metrics import MetricName, MetricsRegistry

_GROUP: Final = "kafka.coordinator.group"
_MANAGER: Final = "GroupMetadataManager"
_COORDINATOR: Final = "group-coordinator-metrics"
_PURGATORY_GROUP: Final = "kafka.server"
_PURGATORY: Final = "DelayedOperationPurgatory"


class GroupMetrics:
    """Gauges over the groups, which cost nothing until they are read, and meters.

    The heartbeats and rebalances that are waited for are timers here; they are shown as the purgatories that Kafka has
    for them.
    """

    def __init__(
        self,
        metrics: MetricsRegistry,
        groups: Callable[[], Iterable[Group]],
        waiting_for: Callable[[], tuple[int, int]],
    ) -> None:
        """`waiting_for` counts the members whose heartbeats, and the groups whose members, are waited for."""
        self._metrics = metrics
        self._names: list[MetricName] = []
        self.offset_commits = metrics.meter(self._name(_COORDINATOR, "offset-commit"))
        self.offset_expirations = metrics.meter(self._name(_COORDINATOR, "offset-expiration"))
        self.offset_deletions = metrics.meter(self._name(_COORDINATOR, "offset-deletion"))
        self.completed_rebalances = metrics.meter(self._name(_COORDINATOR, "group-completed-rebalance"))
        self.partition_load_time_ms = metrics.histogram(self._name(_COORDINATOR, "partition-load-time"))

        def gauge(name: str, read: Callable[[], float]) -> None:
            metrics.gauge(self._name(_MANAGER, name), read)

        gauge("NumOffsets", lambda: sum(len(group.offsets) for group in groups()))
        gauge("NumGroups", lambda: sum(1 for _ in groups()))
        for state in GroupState:
            gauge(f"NumGroups{state.value}", functools.partial(_count_in, state, groups))
        for operation, read in (("Heartbeat", lambda: waiting_for()[0]), ("Rebalance", lambda: waiting_for()[1])):
            for size in ("PurgatorySize", "NumDelayedOperations"):
                name = MetricName(_PURGATORY_GROUP, _PURGATORY, size, (("delayedOperation", operation),))
                self._names.append(name)
                metrics.gauge(name, read)

    def remove(self) -> None:
        """Takes everything out of the registry again."""
        for name in self._names:
            self._metrics.remove(name)

    def _name(self, kind: str, name: str) -> MetricName:
        full = MetricName(_GROUP, kind, name)
        self._names.append(full)
        return full


def _count_in(state: GroupState, groups: Callable[[], Iterable[Group]]) -> int:
    return sum(group.state is state for group in groups())
