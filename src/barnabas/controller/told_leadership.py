"""What controllers have told a broker, for the next controller: it detects a znode that was rewritten by hand."""

from __future__ import annotations

from dataclasses import dataclass

from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.kernel.ids import ZERO_UUID, Uuid
from barnabas.wire.topics import TopicPartition


@dataclass(frozen=True, slots=True)
class ToldLeadership:
    """The leadership of partitions as the metadata cache has it now; None for what it does not know, and for a topic of
    another id or of none. What was told had been written before.
    """

    metadata: MetadataCache

    def __call__(self, partition: TopicPartition, topic_id: Uuid | None) -> LeaderAndIsr | None:
        topic = self.metadata.image.topics.get(partition.topic)
        if topic is None or topic_id is None or ZERO_UUID in (topic_id, topic.topic_id) or topic.topic_id != topic_id:
            return None
        told = topic.partitions.get(partition.partition)
        if told is None:
            return None
        return LeaderAndIsr(
            told.leader, told.leader_epoch, told.isr, told.controller_epoch, partition_epoch=told.partition_epoch
        )
