"""What serving needs of the rooms beside and above it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from barnabas.cluster.image import MetadataImage
    from barnabas.leader.partition import Partition
    from barnabas.wire.topics import TopicPartition


class Replicas(Protocol):
    """The partitions of this broker, for those who produce to them and fetch from them; the replica manager."""

    def find_partition(self, topic_partition: TopicPartition) -> Partition | None:
        """None for a partition that is not here."""
        ...

    def get_partition(self, topic_partition: TopicPartition) -> Partition:
        """Raises KafkaError for a partition that is not here."""
        ...


class MetadataSource(Protocol):
    """What is known of the cluster; the metadata cache."""

    @property
    def image(self) -> MetadataImage: ...
