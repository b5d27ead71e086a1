"""Three brokers of Apache Kafka with the face of `supervised_cluster`, to see whether a test holds there too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.support.apache_kafka import ApacheKafkaBroker, broker_ids_in_metadata
from tests.support.waiting import wait_until
from tests.support.zookeeper import ZooKeeperServer

READY_SECONDS = 180.0
_DEFAULTS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "zookeeper.session.timeout.ms": "6000",
}


class ApacheKafkaCluster:
    """Brokers 1 to n and their ZooKeeper."""

    def __init__(
        self, directory: Path, brokers: int, overrides: Mapping[str, object], log_directories: Sequence[str] = ("logs",)
    ) -> None:
        self._zookeeper = ZooKeeperServer(directory / "zookeeper")
        self._brokers = {
            broker_id: ApacheKafkaBroker(
                directory / f"broker-{broker_id}",
                self._zookeeper.address,
                broker_id,
                overrides={
                    "log.dirs": ",".join(str(directory / f"broker-{broker_id}" / name) for name in log_directories),
                    **_DEFAULTS,
                    **overrides,
                },
            )
            for broker_id in range(1, brokers + 1)
        }

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.address for broker in self._brokers.values())

    def start(self) -> None:
        """Returns when every broker knows all."""
        self._zookeeper.start()
        for broker in self._brokers.values():
            broker.start(wait=False)
        for broker in self._brokers.values():
            broker.wait_until_ready()
            wait_until(
                lambda: len(broker_ids_in_metadata(broker.port)) == len(self._brokers),  # noqa: B023
                f"broker {broker.broker_id} knows all",
                READY_SECONDS,
            )

    def start_broker(self, broker_id: int) -> None:
        self._brokers[broker_id].start()

    def kill_broker(self, broker_id: int) -> None:
        self._brokers[broker_id].kill()

    def stop(self) -> None:
        for broker in self._brokers.values():
            broker.kill()
        self._zookeeper.kill()


@contextlib.contextmanager
def apache_kafka_cluster(
    directory: Path,
    brokers: int = 3,
    *,
    overrides: Mapping[str, object] | None = None,
    log_directories: Sequence[str] = ("logs",),
) -> Iterator[ApacheKafkaCluster]:
    """A running cluster, killed with the block; `log_directories` are names below the directory of each broker."""
    cluster = ApacheKafkaCluster(directory, brokers, overrides or {}, log_directories)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
