"""Tells a client that asked the wrong broker who leads (KIP-951)."""

from __future__ import annotations

from typing import Any

from barnabas.serving.ports import MetadataSource, Replicas
from barnabas.wire.sentinels import NO_EPOCH, NO_LEADER
from barnabas.wire.topics import TopicPartition


class CurrentLeaders:
    """Names leaders in the partitions of one response of Produce or Fetch, which have the same fields for it, and once
    for each that is alive where it is reached.
    """

    def __init__(self, response: Any, replicas: Replicas, metadata: MetadataSource, listener_name: str) -> None:
        """`listener_name` is that by which the client came."""
        self._response = response
        self._replicas = replicas
        self._metadata = metadata
        self._listener_name = listener_name
        self._reached: set[int] = set()

    def name_in(self, partition: Any, topic_partition: TopicPartition) -> None:
        """Names the leader in a partition's part of the response, -1 for nobody."""
        kind, image = type(self._response), self._metadata.image
        leader_id, leader_epoch = self._leader(topic_partition)
        partition.current_leader = kind.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=leader_epoch)
        node = None if leader_id in self._reached else image.node(leader_id, self._listener_name)
        if node is not None:
            self._reached.add(leader_id)
            self._response.node_endpoints.append(
                kind.NodeEndpoint(node_id=node.broker_id, host=node.host, port=node.port, rack=node.rack)
            )

    def _leader(self, topic_partition: TopicPartition) -> tuple[int, int]:
        """What this broker knows: as a replica, or else from the controller's last word to all brokers."""
        replica = self._replicas.find_partition(topic_partition)
        if replica is not None:
            return replica.leader_id, replica.leader_epoch
        metadata = self._metadata.image.partition(topic_partition)
        return (NO_LEADER, NO_EPOCH) if metadata is None else (metadata.leader, metadata.leader_epoch)
