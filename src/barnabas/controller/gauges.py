"""The gauges and timings of the controller, under Kafka's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from barnabas.controller.controller_counts import ControllerCounts
from barnabas.controller.description import EventTiming
from barnabas.controller.events import ControllerEvent
from barnabas.controller.states import ControllerState
from barnabas.controller.term import ControllerTerm
from barnabas.kernel.event_queue import EventQueue
from barnabas.kernel.metrics import Meter, MetricName, MetricsRegistry

_GROUP = "kafka.controller"
ZK_MIGRATION_STATE = 4
"""ZkMigrationState of a cluster that was never migrated to KRaft (Kafka's ZkMigrationState.ZK)."""

_COUNTS: dict[str, Callable[[ControllerCounts], int]] = {
    "OfflinePartitionsCount": lambda counts: counts.offline_partitions_count,
    "PreferredReplicaImbalanceCount": lambda counts: counts.preferred_replica_imbalance_count,
    "GlobalTopicCount": lambda counts: counts.global_topic_count,
    "GlobalPartitionCount": lambda counts: counts.global_partition_count,
    "TopicsToDeleteCount": lambda counts: counts.topics_to_delete_count,
    "ReplicasToDeleteCount": lambda counts: counts.replicas_to_delete_count,
    "TopicsIneligibleToDeleteCount": lambda counts: counts.topics_ineligible_to_delete_count,
    "ReplicasIneligibleToDeleteCount": lambda counts: counts.replicas_ineligible_to_delete_count,
    "ActiveBrokerCount": lambda counts: counts.active_broker_count,
}


class ControllerStatus(Protocol):
    """What the gauges show of the controller."""

    @property
    def is_active(self) -> bool: ...

    @property
    def term(self) -> ControllerTerm | None: ...

    @property
    def channel_queue_size(self) -> int: ...

    @property
    def state(self) -> ControllerState: ...


class ControllerGauges:
    """Registers them in the broker's registry; those of the cluster are 0 while this broker is not the controller."""

    def __init__(
        self, controller: ControllerStatus, queue: EventQueue[ControllerEvent], metrics: MetricsRegistry
    ) -> None:
        self._metrics = metrics
        self._queue = queue
        self._names: list[MetricName] = []
        self._reads: dict[str, Callable[[], float]] = {}
        self._gauge("KafkaController", "ActiveControllerCount", lambda: int(controller.is_active))
        self._gauge("KafkaController", "ControllerState", lambda: controller.state.value)
        self._gauge("KafkaController", "ZkMigrationState", lambda: ZK_MIGRATION_STATE)
        # Brokers are fenced in KRaft only.
        self._gauge("KafkaController", "FencedBrokerCount", lambda: 0)
        for name, count in _COUNTS.items():
            self._gauge("KafkaController", name, _count(controller, count))
        self._gauge("ControllerEventManager", "EventQueueSize", lambda: len(queue))
        metrics.add(self._name("ControllerEventManager", "EventQueueTimeMs"), queue.queue_time_ms)
        self._gauge("ControllerChannelManager", "TotalQueueSize", lambda: controller.channel_queue_size)
        for state in ControllerState:
            if state.timing_name is not None:
                metrics.add(self._name("ControllerStats", state.timing_name), queue.timing(state))
        self.unclean_leader_elections: Meter = metrics.meter(
            self._name("ControllerStats", "UncleanLeaderElectionsPerSec")
        )

    def _gauge(self, type_name: str, name: str, read: Callable[[], float]) -> None:
        self._metrics.gauge(self._name(type_name, name), read)
        self._reads[name] = read

    def _name(self, type_name: str, name: str) -> MetricName:
        metric_name = MetricName(_GROUP, type_name, name)
        self._names.append(metric_name)
        return metric_name

    def counts(self) -> dict[str, int]:
        """The gauges by name, and how many unclean elections there were since the broker started."""
        found = {name: int(read()) for name, read in self._reads.items()}
        return {**found, "UncleanLeaderElectionsPerSec": self.unclean_leader_elections.count}

    def timings(self) -> tuple[EventTiming, ...]:
        """The timings of the states that the controller was in since the broker started."""
        found: list[EventTiming] = []
        for state in ControllerState:
            durations_ms = self._queue.timing(state).durations_ms
            if state.timing_name is not None and durations_ms.count:
                mean_ms = durations_ms.total / durations_ms.count
                found.append(EventTiming(state.timing_name, durations_ms.count, mean_ms, durations_ms.maximum))
        return tuple(found)

    def remove(self) -> None:
        """Removes all of them from the registry."""
        for name in self._names:
            self._metrics.remove(name)


def _count(controller: ControllerStatus, count: Callable[[ControllerCounts], int]) -> Callable[[], float]:
    def read() -> int:
        term = controller.term
        return 0 if term is None else count(term.context.counts())

    return read
