"""`KafkaContainer` of testcontainers, without Docker: the same calls, and a cluster of one broker in this process.

from barnabas.testing import KafkaContainer  # from testcontainers.kafka import KafkaContainer

with KafkaContainer() as kafka:
    producer = Producer({"bootstrap.servers": kafka.get_bootstrap_server()})
"""

from __future__ import annotations

from typing import Any, Final, Self

from barnabas.testing.kafka_cluster import KafkaCluster
from barnabas.testing.real_node import NodeError

KAFKA_PORT: Final = 9093
"""The port that testcontainers' Kafka listens on in its container."""
_PREFIX: Final = "KAFKA_"


class KafkaContainer:
    """What tests use of `testcontainers.kafka.KafkaContainer`. Image, network and volumes have no meaning here, and the
    methods for them are not there.
    """

    def __init__(self, image: str = "", port: int = KAFKA_PORT, **_options: Any) -> None:
        """`image` and options of Docker are taken and not used; `port` is the one to ask `get_exposed_port` for."""
        self.image = image
        self.port = port
        self.cluster: KafkaCluster | None = None
        """The cluster, with its faults, while it runs."""
        self._config: dict[str, str] = {}

    def with_env(self, key: str, value: str) -> Self:
        """Sets a broker config as the images of Kafka take it: `KAFKA_NUM_PARTITIONS` is `num.partitions`. What says
        where to listen or keep data, and what does not begin with `KAFKA_`, is not used.
        """
        if key.startswith(_PREFIX):
            name = key.removeprefix(_PREFIX).lower().replace("_", ".")
            if name not in _OF_THE_IMAGE:
                self._config[name] = value
        return self

    def with_kraft(self, *_arguments: Any, **_options: Any) -> Self:
        """Changes nothing: tests of clients do not see how a cluster keeps its metadata."""
        return self

    def with_name(self, _name: str) -> Self:
        """Changes nothing: there is no container to be named."""
        return self

    def start(self, timeout: float = 30) -> Self:  # noqa: ARG002 - testcontainers' own
        """Starts the broker; returns when a client can produce and a group can form."""
        self.cluster = KafkaCluster(config=self._config).start()
        return self

    def stop(self, force: bool = True, delete_volume: bool = True) -> None:  # noqa: ARG002 - testcontainers' own
        """Stops it; its data are gone."""
        cluster, self.cluster = self.cluster, None
        if cluster is not None:
            cluster.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def get_bootstrap_server(self) -> str:
        """`host:port` of the broker. Raises NodeError before `start`."""
        if self.cluster is None:
            raise NodeError("the broker does not run: start it, or use it in a with block")
        return self.cluster.bootstrap_servers

    def get_container_host_ip(self) -> str:
        """The host of the broker."""
        return self.get_bootstrap_server().rpartition(":")[0]

    def get_exposed_port(self, port: int) -> int:
        """The port that the broker's `port` is reached by. Raises ValueError for another one than it has."""
        if port != self.port:
            raise ValueError(f"port {port} is not exposed: the broker has {self.port}")
        return int(self.get_bootstrap_server().rpartition(":")[2])


_OF_THE_IMAGE: Final = frozenset(
    {
        "advertised.listeners",
        "broker.id",
        "cluster.id",
        "controller.listener.names",
        "controller.quorum.voters",
        "heap.opts",
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        "listeners",
        "log.dirs",
        "node.id",
        "process.roles",
        "zookeeper.connect",
    }
)
"""What has to do with the container, not with what a broker does."""
