"""What replication needs of the rooms beside and above it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from barnabas.cluster.image import MetadataImage, Node
    from barnabas.log.log_config import LogConfig
    from barnabas.replication.partition import Partition
    from barnabas.wire.api_keys import ApiKey
    from barnabas.wire.messages import AlterPartitionRequest, AlterPartitionResponse
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


class AlterPartitionSender(Protocol):
    """The way to the controller for changes of ISRs."""

    async def send_in_version(
        self, api_key: ApiKey, lowest: int, highest: int, build: Callable[[int], AlterPartitionRequest]
    ) -> tuple[AlterPartitionResponse, int]:
        """The present controller's answer, and the version of it: the highest within these bounds that the controller
        speaks, for which `build` makes the request. Looks for the controller, and tries again where it has moved or a
        connection was lost, for as long as that takes; after any exception but cancellation the caller asks again."""
        ...


class LeaderConnection(Protocol):
    """A connection to the leader of partitions that this broker follows; `link.outgoing.Outgoing` is one."""

    def start(
        self,
        message: Any,
        version: int,
        timeout_ms: float,
        on_response: Callable[[Any], object],
        on_failure: Callable[[Exception], object],
    ) -> None:
        """Sends a request; later calls one of the two, once. Records of the response are valid until `on_response`
        returns. Raises ConnectionError if the connection was closed by us."""
        ...

    async def send(self, message: Any, version: int, timeout_ms: float) -> Any:
        """Sends a request and returns the response; raises ConnectionError and TimeoutError."""
        ...

    def close(self) -> None:
        """Ends the connection at once; what is in flight fails."""
        ...


class LeaderConnections(Protocol):
    """Makes connections to leaders."""

    def connect(self, node: Node, client_id: str) -> LeaderConnection:
        """A connection that is made when it is first used, and again when it was lost."""
        ...


class TopicConfigs(Protocol):
    """The configs of topics, in memory."""

    def log_config(self, topic: str) -> LogConfig:
        """The config of a topic's logs, the broker's defaults below the topic's own."""
        ...


class PartitionWatcher(Protocol):
    """Who wants to know when there may be something new in a partition, as fetch sessions do."""

    def partition_changed(self, partition: Partition) -> None:
        """Called once per tick, before anything is sent, when the log's end or start, the high watermark, the last
        stable offset or the leader has changed, or the partition is not here any more."""
        ...


OnLeadershipChange = Callable[["list[Partition]", "list[Partition]"], object]
"""Called with the partitions that this broker leads since now, and with those that it follows since now."""
OnStop = Callable[["list[tuple[TopicPartition, int, bool]]"], object]
"""Called with partitions that are not here any more: each with the leader epoch as of which that is so, and whether its
log is deleted. StopReplica says so, or their log directory has failed."""
