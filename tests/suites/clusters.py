"""The two clusters that a suite is run on: brokers of ours, and as many of Apache Kafka 3.9.1, configured alike."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.suites.model import SuiteUnusable
from tests.support.apache_kafka import ApacheKafkaBroker, broker_ids_in_metadata
from tests.support.broker_process import BrokerProcess, Brokers, EmbeddedOfBrokers
from tests.support.ports import free_port
from tests.support.retention import RETENTION_DOES_NOT_RUN
from tests.support.waiting import wait_until
from tests.support.zookeeper import ZooKeeperServer

OWN_PORT = "{port}"
"""In the value of a config: that of the broker's listener PLAINTEXT."""
OURS = "barnabas"
KAFKAS = "apache-kafka"
READY_SECONDS = 60.0
_REPLICATION_FACTORS = (
    "default.replication.factor",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
)

# What the suites' own scripts give the brokers that they start, as far as several agree.
OVERRIDES: Mapping[str, object] = {
    "auto.create.topics.enable": "true",
    "num.partitions": 4,
    "min.insync.replicas": 1,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "transaction.state.log.min.isr": 1,
    "transaction.max.timeout.ms": 900_000,
    "group.initial.rebalance.delay.ms": 100,
    "group.min.session.timeout.ms": 100,
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "allow.everyone.if.no.acl.found": "true",
    **RETENTION_DOES_NOT_RUN,
}


class _Ours(Brokers):
    def __init__(self, directory: Path, broker_ids: Sequence[int], overrides: Mapping[str, object]) -> None:
        self.coordinator = EmbeddedOfBrokers(directory / "coordinator")
        self.brokers = {}
        for broker_id in broker_ids:
            port = free_port()
            self.brokers[broker_id] = BrokerProcess(
                directory / f"broker-{broker_id}",
                broker_id,
                self.coordinator.address,
                overrides=_of_broker(overrides, broker_id, port),
                port=port,
            )


@contextlib.contextmanager
def _ours(directory: Path, broker_ids: Sequence[int], overrides: Mapping[str, object]) -> Iterator[str]:
    cluster = _Ours(directory, broker_ids, overrides)
    try:
        cluster.start()
        yield ",".join(broker.address for broker in cluster.brokers.values())
        ended = [broker.log_tail() for broker in cluster.brokers.values() if not broker.process.is_running]
        if ended:
            raise SuiteUnusable("brokers ended by themselves:\n" + "\n".join(ended))
    finally:
        cluster.stop()


@contextlib.contextmanager
def _kafkas(directory: Path, broker_ids: Sequence[int], overrides: Mapping[str, object]) -> Iterator[str]:
    zookeeper = ZooKeeperServer(directory / "zookeeper")
    brokers = []
    for broker_id in broker_ids:
        port = free_port()
        brokers.append(
            ApacheKafkaBroker(
                directory / f"broker-{broker_id}",
                zookeeper.address,
                broker_id,
                overrides=_of_broker(overrides, broker_id, port),
                port=port,
            )
        )
    try:
        zookeeper.start()
        for broker in brokers:
            broker.start(wait=False)
        for broker in brokers:
            broker.wait_until_ready()
            wait_until(
                lambda: len(broker_ids_in_metadata(broker.port)) == len(brokers),  # noqa: B023
                f"broker {broker.broker_id} knows all",
                READY_SECONDS,
            )
        yield ",".join(broker.address for broker in brokers)
    finally:
        for broker in brokers:
            broker.kill()
        zookeeper.kill()


def _of_broker(overrides: Mapping[str, object], broker_id: int, port: int) -> dict[str, object]:
    """With what tells it from others. A suite that has more listeners names the port of this one; what is another for
    each broker it has by their ids."""
    own = {name: value[broker_id] if isinstance(value, Mapping) else value for name, value in overrides.items()}
    found = {
        name: value.replace(OWN_PORT, str(port)) if isinstance(value, str) else value for name, value in own.items()
    }
    return {**found, "broker.rack": f"RACK{broker_id}"}


_KINDS: Mapping[str, Callable[[Path, Sequence[int], Mapping[str, object]], contextlib.AbstractContextManager[str]]] = {
    OURS: _ours,
    KAFKAS: _kafkas,
}


def running_cluster(
    kind: str, directory: Path, broker_ids: Sequence[int], overrides: Mapping[str, object]
) -> contextlib.AbstractContextManager[str]:
    """A running cluster of one kind; gives its bootstrap servers, and ends with the block."""
    replicas = dict.fromkeys(_REPLICATION_FACTORS, len(broker_ids))
    return _KINDS[kind](directory, broker_ids, {**OVERRIDES, **replicas, **overrides})
