"""The partitions of which this broker has a replica."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.leader.partition import Partition

if TYPE_CHECKING:
    from barnabas.leader.partition_context import PartitionContext
    from barnabas.replicas.replica_metrics import ReplicaMetrics
    from barnabas.wire.topics import TopicPartition


class HostedReplicas:
    """Which partitions are here, each with its gauges.

    Invariant: no partition is both here and offline; one that went offline stays so until the broker starts anew.
    """

    def __init__(
        self,
        partitions: dict[TopicPartition, Partition],
        offline: set[TopicPartition],
        context: PartitionContext,
        metrics: ReplicaMetrics,
    ) -> None:
        self.partitions = partitions
        """Without those of failed log directories."""
        self.offline = offline
        """Those of failed log directories."""
        self._context = context
        self._metrics = metrics

    def add(self, topic_partition: TopicPartition) -> Partition:
        """A partition that was not here. It neither leads nor follows yet."""
        partition = self.partitions[topic_partition] = Partition(topic_partition, self._context)
        self._metrics.add_partition(partition)
        return partition

    def remove(self, partition: Partition) -> None:
        """Its replica is deleted."""
        del self.partitions[partition.topic_partition]
        self._metrics.remove_partition(partition)
        partition.close()

    def take_offline(self, partition: Partition) -> None:
        """Its log directory has failed."""
        self.partitions.pop(partition.topic_partition, None)
        self._metrics.remove_partition_later(partition)
        self.offline.add(partition.topic_partition)
        partition.close(is_offline=True)
