"""What a group coordinator counts, under Kafka's names."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable
from typing import Final

from barnabas.coordinators.consumer_group.states import ConsumerGroupState
from barnabas.coordinators.group.effect_runner import AnyGroup, GroupEffectRunner
from barnabas.coordinators.group.states import GroupState
from barnabas.kernel.metrics import MetricName, MetricsRegistry

_GROUP: Final = "kafka.coordinator.group"
_MANAGER: Final = "GroupMetadataManager"
_COORDINATOR: Final = "group-coordinator-metrics"
_PURGATORY_GROUP: Final = "kafka.server"
_PURGATORY: Final = "DelayedOperationPurgatory"


class GroupMetrics:
    """Gauges over the groups, which cost nothing until they are read, and meters. All gauges that are read in one turn
    of the loop, as for a scrape, share one walk over the groups.

    The heartbeats and rebalances that are waited for are timers here; they are shown as the purgatories that Kafka has
    for them.
    """

    def __init__(
        self,
        metrics: MetricsRegistry,
        groups: Callable[[], Iterable[AnyGroup]],
        effects: GroupEffectRunner,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._groups = groups
        self._loop = loop
        self._counted: tuple[dict[GroupState | ConsumerGroupState, int], int] | None = None
        self._metrics = metrics
        self._names: list[MetricName] = []
        self.offset_commits = metrics.meter(self._name(_COORDINATOR, "offset-commit"))
        self.offset_expirations = metrics.meter(self._name(_COORDINATOR, "offset-expiration"))
        self.offset_deletions = metrics.meter(self._name(_COORDINATOR, "offset-deletion"))
        self.completed_rebalances = metrics.meter(self._name(_COORDINATOR, "group-completed-rebalance"))
        self._consumer_rebalances = metrics.meter(self._name(_COORDINATOR, "consumer-group-rebalance"))
        self.partition_load_time_ms = metrics.histogram(self._name(_COORDINATOR, "partition-load-time"))

        def gauge(name: str, read: Callable[[], float]) -> None:
            metrics.gauge(self._name(_MANAGER, name), read)

        gauge("NumOffsets", lambda: self._count()[1])
        gauge("NumGroups", lambda: sum(self._count()[0].values()))
        for state in GroupState:
            gauge(f"NumGroups{state.value}", functools.partial(self._count_in, state))
        for consumer_state in ConsumerGroupState:
            tags = (("state", consumer_state.value.lower()),)
            consumer_name = MetricName(_GROUP, _COORDINATOR, "consumer-group-count", tags)
            self._names.append(consumer_name)
            metrics.gauge(consumer_name, functools.partial(self._count_in, consumer_state))
        for operation, read in (
            ("Heartbeat", lambda: effects.heartbeats_awaited),
            ("Rebalance", lambda: effects.rebalances_awaited),
        ):
            for size in ("PurgatorySize", "NumDelayedOperations"):
                name = MetricName(_PURGATORY_GROUP, _PURGATORY, size, (("delayedOperation", operation),))
                self._names.append(name)
                metrics.gauge(name, read)

    def count_consumer_rebalance(self) -> None:
        """The epoch of a group of the consumer protocol went up since subscriptions or topics changed."""
        self._consumer_rebalances.count += 1

    def remove(self) -> None:
        """Takes everything out of the registry again."""
        for name in self._names:
            self._metrics.remove(name)

    def _count(self) -> tuple[dict[GroupState | ConsumerGroupState, int], int]:
        """The groups by state, and their offsets, as they were when this was first asked for in this turn."""
        if self._counted is None:
            groups = list(self._groups())
            states = [group.state for group in groups]
            counts = {state: states.count(state) for state in (*GroupState, *ConsumerGroupState)}
            self._counted = counts, sum([len(group.offsets) for group in groups])
            self._loop.call_soon(self._forget)
        return self._counted

    def _count_in(self, state: GroupState | ConsumerGroupState) -> int:
        return self._count()[0][state]

    def _forget(self) -> None:
        self._counted = None

    def _name(self, kind: str, name: str) -> MetricName:
        full = MetricName(_GROUP, kind, name)
        self._names.append(full)
        return full
