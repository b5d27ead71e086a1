"""One immutable image of the cluster.

A handler takes the image once per request and keeps to it, so that its whole answer is of one moment. An image shares
with its predecessor whatever a request of the controller did not touch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from barnabas.kernel.ids import ZERO_UUID, Uuid
from barnabas.wire.endpoints import BrokerEndpoint
from barnabas.wire.sentinels import NO_EPOCH
from barnabas.wire.topics import TopicPartition


class Node(NamedTuple):
    """The address of one of a broker's listeners."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that is alive, with its endpoints by listener name."""

    broker_id: int
    endpoints: Mapping[str, BrokerEndpoint]
    rack: str | None = None

    def node(self, listener_name: str) -> Node | None:
        """The listener's endpoint; None if the broker has none of that name."""
        endpoint = self.endpoints.get(listener_name)
        return None if endpoint is None else Node(self.broker_id, endpoint.host, endpoint.port, self.rack)


class PartitionMetadata(NamedTuple):
    """The leader, ISR and replicas of a partition. A tuple, because there are very many."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...]
    partition_epoch: int
    """The version of the partition's znode."""
    controller_epoch: int


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic and its partitions by number, in order."""

    name: str
    topic_id: Uuid
    """ZERO_UUID for a topic without id."""
    partitions: Mapping[int, PartitionMetadata]


_NO_BROKERS: Final[Mapping[int, Broker]] = MappingProxyType({})
_NO_TOPICS: Final[Mapping[str, TopicMetadata]] = MappingProxyType({})
_NO_NAMES: Final[Mapping[bytes, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """The brokers that are alive, and all topics. The mappings must not be changed."""

    brokers: Mapping[int, Broker] = field(default_factory=lambda: _NO_BROKERS)
    topics: Mapping[str, TopicMetadata] = field(default_factory=lambda: _NO_TOPICS)
    names_by_id: Mapping[bytes, str] = field(default_factory=lambda: _NO_NAMES)
    controller_id: int | None = None
    controller_epoch: int = NO_EPOCH

    def partition(self, topic_partition: TopicPartition) -> PartitionMetadata | None:
        topic = self.topics.get(topic_partition.topic)
        return None if topic is None else topic.partitions.get(topic_partition.partition)

    def partition_count(self, name: str) -> int | None:
        """The number of a topic's known partitions; None for an unknown topic."""
        topic = self.topics.get(name)
        return None if topic is None else len(topic.partitions)

    def topic_id(self, name: str) -> Uuid:
        """ZERO_UUID for a topic that is unknown or has no id."""
        topic = self.topics.get(name)
        return ZERO_UUID if topic is None else topic.topic_id

    def topic_name(self, topic_id: bytes) -> str | None:
        return self.names_by_id.get(topic_id)

    def is_alive(self, broker_id: int) -> bool:
        return broker_id in self.brokers

    def node(self, broker_id: int, listener_name: str) -> Node | None:
        """The endpoint of a broker's listener; None if the broker is not alive or has no listener of that name."""
        broker = self.brokers.get(broker_id)
        return None if broker is None else broker.node(listener_name)

    def nodes(self, listener_name: str) -> list[Node]:
        """The endpoints of the listener, by broker id, of the brokers that have it."""
        nodes = (self.brokers[broker_id].node(listener_name) for broker_id in sorted(self.brokers))
        return [node for node in nodes if node is not None]

    def leader_node(self, topic_partition: TopicPartition, listener_name: str) -> Node | None:
        """The endpoint of a partition's leader; None if there is none that is alive and has the listener."""
        partition = self.partition(topic_partition)
        return None if partition is None else self.node(partition.leader, listener_name)

    def controller_node(self, listener_name: str) -> Node | None:
        """The endpoint of the controller; None if it is not known or has no listener of that name."""
        return None if self.controller_id is None else self.node(self.controller_id, listener_name)
