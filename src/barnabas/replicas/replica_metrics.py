"""The gauges and meters of replication, under Kafka's names."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Final

from barnabas.kernel.later_turns import LaterTurns
from barnabas.kernel.metrics import MetricName, MetricsRegistry

if TYPE_CHECKING:
    import asyncio

    from barnabas.kernel.purgatory import Purgatory
    from barnabas.leader.partition import Partition
    from barnabas.wire.topics import TopicPartition


def _last_stable_offset_lag(partition: Partition) -> int:
    log = partition.log
    return 0 if log is None else max(0, log.high_watermark - log.last_stable_offset)


_PARTITION_GAUGES: Final[tuple[tuple[str, Callable[[Partition], float]], ...]] = (
    ("UnderReplicated", lambda partition: partition.is_under_replicated),
    ("InSyncReplicasCount", lambda partition: len(partition.isr) if partition.is_leader else 0),
    ("UnderMinIsr", lambda partition: partition.is_under_min_isr),
    ("AtMinIsr", lambda partition: partition.is_at_min_isr),
    ("ReplicasCount", lambda partition: partition.replication_factor if partition.is_leader else 0),
    ("LastStableOffsetLag", _last_stable_offset_lag),
)
_REMOVED_PER_TURN: Final = 200


class ReplicaMetrics:
    """What `kafka.server:type=ReplicaManager` says of a broker."""

    def __init__(
        self,
        registry: MetricsRegistry,
        partitions: Callable[[], Collection[Partition]],
        offline_count: Callable[[], int],
        now_ms: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._registry = registry
        self._partitions = partitions
        self._offline: LaterTurns[TopicPartition, Partition] = LaterTurns(
            loop, self.remove_partition, _REMOVED_PER_TURN
        )
        self.expands = registry.meter(_name("IsrExpandsPerSec"))
        self.shrinks = registry.meter(_name("IsrShrinksPerSec"))
        self.failed_updates = registry.meter(_name("FailedIsrUpdatesPerSec"))
        self._names = ["IsrExpandsPerSec", "IsrShrinksPerSec", "FailedIsrUpdatesPerSec"]
        self._gauge("LeaderCount", lambda: self._count(lambda partition: partition.is_leader))
        self._gauge("PartitionCount", lambda: len(partitions()) + offline_count())
        self._gauge("OfflineReplicaCount", offline_count)
        self._gauge("UnderReplicatedPartitions", lambda: self._count(lambda partition: partition.is_under_replicated))
        self._gauge("UnderMinIsrPartitionCount", lambda: self._count(lambda partition: partition.is_under_min_isr))
        self._gauge("AtMinIsrPartitionCount", lambda: self._count(lambda partition: partition.is_at_min_isr))
        self._gauge("ReassigningPartitions", lambda: self._count(lambda p: p.is_leader and p.is_reassigning))
        self._gauge("PartitionsWithLateTransactionsCount", lambda: self._count(lambda p: _is_late(p, now_ms())))
        self._gauge("ProducerIdCount", lambda: sum(_producer_count(partition) for partition in partitions()))

    def add_purgatories(self, purgatories: Iterable[Purgatory[Any]]) -> None:
        """Shows how much waits in purgatories."""
        for purgatory in purgatories:
            tags = (("delayedOperation", purgatory.name),)
            for name in ("PurgatorySize", "NumDelayedOperations"):
                attribute = operator.attrgetter("watched" if name == "PurgatorySize" else "delayed")
                self._registry.gauge(
                    MetricName("kafka.server", "DelayedOperationPurgatory", name, tags),
                    functools.partial(attribute, purgatory),
                )

    def add_partition(self, partition: Partition) -> None:
        """Shows what `kafka.cluster:type=Partition` says of a partition."""
        self._offline.do_now(partition.topic_partition)
        tags = _tags(partition)
        for name, read in _PARTITION_GAUGES:
            self._registry.gauge(
                MetricName("kafka.cluster", "Partition", name, tags), functools.partial(read, partition)
            )

    def remove_partition(self, partition: Partition) -> None:
        tags = _tags(partition)
        for name, _ in _PARTITION_GAUGES:
            self._registry.remove(MetricName("kafka.cluster", "Partition", name, tags))

    def remove_partition_later(self, partition: Partition) -> None:
        """As `remove_partition`, for one of many that go in one turn; until then its gauges say that nobody leads it
        here, and if it comes back they give way.
        """
        self._offline.add(partition.topic_partition, partition)

    def close(self) -> None:
        """Takes the broker's own metrics out."""
        for name in self._names:
            self._registry.remove(_name(name))

    def _gauge(self, name: str, read: Callable[[], float]) -> None:
        self._names.append(name)
        self._registry.gauge(_name(name), read)

    def _count(self, is_counted: Callable[[Partition], bool]) -> int:
        return sum(is_counted(partition) for partition in self._partitions())


def _name(name: str) -> MetricName:
    return MetricName("kafka.server", "ReplicaManager", name)


def _tags(partition: Partition) -> tuple[tuple[str, str], ...]:
    return (("partition", str(partition.number)), ("topic", partition.topic))


def _is_late(partition: Partition, now_ms: int) -> bool:
    return partition.is_leader and partition.log is not None and partition.log.producers.has_late_transaction(now_ms)


def _producer_count(partition: Partition) -> int:
    return 0 if partition.log is None else len(partition.log.producers)
