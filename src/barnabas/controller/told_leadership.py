"""What controllers have told a broker, for the next controller: it detects a znode that was rewritten by hand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.controller.leadership import LeaderAndIsr, ToldOfTopic
from barnabas.kernel.ids import ZERO_UUID, Uuid


@dataclass(frozen=True, slots=True)
class ToldLeadership:
    """The leadership of the partitions of a topic as the metadata cache has it now; None for a topic that it does not
    know, or that has another id or none. What was told had been written before.
    """

    metadata: MetadataCache

    def __call__(self, topic: str, topic_id: Uuid | None) -> ToldOfTopic | None:
        known = self.metadata.image.topics.get(topic)
        if known is None or topic_id is None or ZERO_UUID in (topic_id, known.topic_id) or known.topic_id != topic_id:
            return None
        partitions = known.partitions

        def told(partition: int) -> LeaderAndIsr | None:
            told = partitions.get(partition)
            if told is None:
                return None
            return _leadership(told.leader, told.leader_epoch, told.isr, told.controller_epoch, told.partition_epoch)

        return told


@lru_cache(maxsize=8_192)
def _leadership(
    leader: int, leader_epoch: int, isr: tuple[int, ...], controller_epoch: int, partition_epoch: int
) -> LeaderAndIsr:
    """Of many partitions the same was told."""
    return LeaderAndIsr(leader, leader_epoch, isr, controller_epoch, partition_epoch=partition_epoch)
