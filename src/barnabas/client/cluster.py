"""What a client knows of a cluster: an image that is never changed, only replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final

from barnabas.kernel.facts import fact
from barnabas.wire.errors import ErrorCode
from barnabas.wire.primitives import ZERO_UUID
from barnabas.wire.sentinels import NO_BROKER, NO_EPOCH
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.kernel.steps import Steps
    from barnabas.wire.messages import MetadataResponse

STEP_PARTITIONS: Final = 1_024
"""So many partitions, and topics, are taken into an image in one turn of the loop: some milliseconds."""


@fact
class BrokerNode:
    """A broker that is alive."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@fact
class PartitionInfo:
    """A partition; `leader_id` is -1 where there is no leader."""

    leader_id: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]


@fact
class TopicInfo:
    """A topic: its id (16 zeros where brokers tell none) and partitions by number, or why it cannot be used."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: Mapping[int, PartitionInfo]
    error: ErrorCode = ErrorCode.NONE


@fact
class Cluster:
    """The image."""

    cluster_id: str | None = None
    controller_id: int = NO_BROKER
    brokers: Mapping[int, BrokerNode] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)

    def partition(self, partition: TopicPartition) -> PartitionInfo | None:
        """What is known of a partition."""
        topic = self.topics.get(partition.topic)
        return None if topic is None else topic.partitions.get(partition.partition)

    def leader(self, partition: TopicPartition) -> tuple[BrokerNode, int] | None:
        """The broker that leads a partition, and its leader epoch; None while that is not known."""
        info = self.partition(partition)
        node = None if info is None else self.brokers.get(info.leader_id)
        return None if info is None or node is None else (node, info.leader_epoch)

    def leader_epoch(self, partition: TopicPartition) -> int:
        """The leader epoch to tell a leader that is asked; -1 while the leader is not known."""
        leader = self.leader(partition)
        return NO_EPOCH if leader is None else leader[1]

    def partition_count(self, topic: str) -> int:
        """0 for a topic that is not known."""
        info = self.topics.get(topic)
        return 0 if info is None else len(info.partitions)

    def updated(self, response: MetadataResponse) -> Steps[Cluster]:
        """The image after an answer to Metadata, in steps; topics that are not in it are known no more.

        A broker may lag behind another: what it says of a partition counts only if its leader epoch is not older than
        what is known, unless the topic was created anew (KIP-320).
        """
        topics: dict[str, TopicInfo] = {}
        left = STEP_PARTITIONS
        for answer in response.topics:
            left -= 1
            if left <= 0:
                yield
                left = STEP_PARTITIONS
            if answer.name is None:
                continue
            known = self.topics.get(answer.name)
            error = ErrorCode.for_code(answer.error_code)
            if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                topics[answer.name] = TopicInfo(answer.name, ZERO_UUID, is_internal=False, partitions={}, error=error)
                continue
            if error is not ErrorCode.NONE and known is not None:
                topics[answer.name] = replace(known, error=error)
                continue
            is_same = known is not None and known.topic_id == answer.topic_id
            partitions: dict[int, PartitionInfo] = {}
            for part in answer.partitions:
                before = known.partitions.get(part.partition_index) if known is not None and is_same else None
                partitions[part.partition_index] = _newer(before, part)
                left -= 1
                if left <= 0:
                    yield
                    left = STEP_PARTITIONS
            topics[answer.name] = TopicInfo(
                answer.name,
                bytes(answer.topic_id),
                answer.is_internal,
                {number: partitions[number] for number in sorted(partitions)},
                error,
            )
        return Cluster(
            cluster_id=response.cluster_id,
            controller_id=response.controller_id,
            brokers={
                node.node_id: BrokerNode(node.node_id, node.host, node.port, node.rack) for node in response.brokers
            },
            topics=topics,
        )

    def with_leader(self, partition: TopicPartition, leader_id: int, leader_epoch: int) -> Cluster:
        """The image with a newer leader of one partition, which a broker told in its answer (KIP-951).

        The same image when that is not newer than what is known, or the leader is no broker that is known.
        """
        topic = self.topics.get(partition.topic)
        info = self.partition(partition)
        if topic is None or info is None or leader_epoch <= info.leader_epoch or leader_id not in self.brokers:
            return self
        partitions = dict(topic.partitions)
        partitions[partition.partition] = replace(info, leader_id=leader_id, leader_epoch=leader_epoch)
        return replace(self, topics={**self.topics, topic.name: replace(topic, partitions=partitions)})


def let_go(response: MetadataResponse) -> Steps[None]:
    """Empties an answer that nobody needs any more: freeing very many partitions at once takes long, too."""
    left = STEP_PARTITIONS
    while response.topics:
        partitions = response.topics[-1].partitions
        freed = partitions[-left:]
        del partitions[-left:]
        left -= len(freed) + 1
        if not partitions:
            response.topics.pop()
        if left <= 0:
            yield
            left = STEP_PARTITIONS


# Inside.


def _newer(before: PartitionInfo | None, part: MetadataResponse.MetadataResponsePartition) -> PartitionInfo:
    if before is not None and part.leader_epoch < before.leader_epoch:
        return before
    return PartitionInfo(
        part.leader_id,
        part.leader_epoch,
        tuple(part.replica_nodes),
        tuple(part.isr_nodes),
        tuple(part.offline_replicas),
    )
