"""Tells a client that asked the wrong broker who leads (KIP-951)."""

from __future__ import annotations

from typing import NamedTuple

from barnabas.cluster.image import MetadataImage, Node
from barnabas.serving.ports import Replicas
from barnabas.wire.topics import TopicPartition


class CurrentLeader(NamedTuple):
    """Who leads a partition, -1 for nobody, and where it is reached, None if it is not alive."""

    leader_id: int
    leader_epoch: int
    node: Node | None


def current_leader(
    topic_partition: TopicPartition, replicas: Replicas, image: MetadataImage, listener_name: str
) -> CurrentLeader:
    """What this broker knows: as a replica, or else from the controller's last word to all brokers."""
    partition = replicas.find_partition(topic_partition)
    known: tuple[int, int] = (-1, -1)
    if partition is not None:
        known = (partition.leader_id, partition.leader_epoch)
    else:
        metadata = image.partition(topic_partition)
        if metadata is not None:
            known = (metadata.leader, metadata.leader_epoch)
    return CurrentLeader(*known, image.node(known[0], listener_name))
