"""Three unmodified Apache Kafka 3.9.1 brokers run on the embedded coordinator, through everything that may break.

That is the proof that it is a ZooKeeper: Kafka's controller, its ISR changes, sessions and elections need no other.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.interop.kafka_traffic import Traffic, read_whole_topic
from tests.support import raw_zookeeper as raw
from tests.support.apache_kafka import ApacheKafkaBroker
from tests.support.by_night import by_night
from tests.support.embedded_coordinator import EmbeddedCoordinator, embedded_coordinator
from tests.support.raw_zookeeper import ConnectionLost, Operation, RawSession
from tests.support.waiting import wait_until

PARTITIONS = 100
TOPIC = "orders"
SESSION_TIMEOUT_MS = 6_000
PATIENCE_SECONDS = 90.0
OVERRIDES = {
    "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "auto.create.topics.enable": "false",
    "replica.lag.time.max.ms": 10_000,
    "controller.socket.timeout.ms": 5_000,
}


class Cluster:
    """The coordinator, three brokers, and what the znodes say about them."""

    def __init__(self, directory: Path, coordinator: EmbeddedCoordinator) -> None:
        self._directory = directory
        self.coordinator = coordinator
        self.brokers = {broker_id: self._broker(broker_id, "first") for broker_id in range(3)}

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    def start(self) -> None:
        for broker in self.brokers.values():
            broker.start(wait=False)
        for broker in self.brokers.values():
            broker.wait_until_ready()

    def stop(self) -> None:
        for broker in self.brokers.values():
            broker.kill()

    def replace(self, broker_id: int) -> None:
        """A new machine for the same broker id: another port, an empty log directory."""
        self.brokers[broker_id] = self._broker(broker_id, "second")
        self.brokers[broker_id].start()

    def create_topic(self, name: str) -> None:
        """A topic of 100 partitions with three replicas; waits until each has a leader and all replicas in sync."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        new = NewTopic(name, PARTITIONS, 3)
        made = admin.create_topics([new], operation_timeout=PATIENCE_SECONDS, request_timeout=2 * PATIENCE_SECONDS)
        made[name].result()
        self.wait_until_in_sync(name)

    def wait_until_in_sync(self, name: str) -> None:
        wait_until(lambda: self._is_in_sync(name), f"all replicas of {name} are in sync", PATIENCE_SECONDS)

    def controller(self) -> int | None:
        """The id of the broker in /controller."""
        value = self.znode("/controller")
        return None if value is None else int(value["brokerid"])

    def controller_epoch(self) -> int:
        return int(self.znode("/controller_epoch") or 0)

    def broker_ids(self) -> set[int]:
        """The brokers in /brokers/ids."""
        with self._session() as session:
            names = session.call(raw.read(Operation.GET_CHILDREN, "/brokers/ids")).body
        return {int(name) for name in names}

    def znode(self, path: str) -> Any:
        """The znode's JSON, or None when there is no such znode."""
        with self._session() as session:
            reply = session.call(raw.read(Operation.GET_DATA, path))
        return None if reply.error else json.loads(reply.body[0])

    def _is_in_sync(self, name: str) -> bool:
        paths = [f"/brokers/topics/{name}/partitions/{partition}/state" for partition in range(PARTITIONS)]
        with self._session() as session:
            read = raw.multi([raw.read(Operation.GET_DATA, path) for path in paths], Operation.MULTI_READ)
            results = session.call(read).body
        states = [json.loads(body[0]) for _operation, error, body in results if error == 0]
        return len(states) == PARTITIONS and all(len(state["isr"]) == 3 and state["leader"] >= 0 for state in states)

    @contextlib.contextmanager
    def _session(self) -> Iterator[RawSession]:
        session = RawSession(self.coordinator.port)
        try:
            wait_until(lambda: _connects(session), "the coordinator accepts a session", 60.0)
            yield session
            session.close()
        finally:
            session.drop()

    def _broker(self, broker_id: int, machine: str) -> ApacheKafkaBroker:
        directory = self._directory / f"{machine}-{broker_id}"
        return ApacheKafkaBroker(directory, self.coordinator.address, broker_id, overrides=OVERRIDES)


def _connects(session: RawSession) -> bool:
    try:
        return session.connect()
    except ConnectionLost:
        return False


@pytest.fixture
def cluster(oracle_jars: Path, tmp_path: Path) -> Iterator[Cluster]:
    with embedded_coordinator(tmp_path / "coordinator") as coordinator:
        cluster = Cluster(tmp_path, coordinator)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


def replace_a_broker(cluster: Cluster, traffic: Traffic) -> None:
    """kill -9 of a broker that is not the controller; an empty one with its id takes its place."""
    controller = cluster.controller()
    victim = next(broker_id for broker_id in cluster.brokers if broker_id != controller)
    cluster.brokers[victim].kill()
    wait_until(lambda: victim not in cluster.broker_ids(), "the killed broker's session expires", PATIENCE_SECONDS)
    traffic.wait_until_it_flows("without one broker")
    cluster.replace(victim)
    cluster.wait_until_in_sync(TOPIC)
    assert cluster.controller() == controller
    traffic.wait_until_it_flows("with the new broker")


def fail_the_controller_over(cluster: Cluster, traffic: Traffic) -> None:
    """kill -9 of the controller; another broker takes over and the old one comes back as a broker."""
    old, epoch = cluster.controller(), cluster.controller_epoch()
    assert old is not None
    cluster.brokers[old].kill()
    wait_until(lambda: cluster.controller() not in {None, old}, "another controller is elected", PATIENCE_SECONDS)
    assert cluster.controller_epoch() == epoch + 1
    traffic.wait_until_it_flows("with the new controller")
    cluster.brokers[old].start()
    cluster.wait_until_in_sync(TOPIC)
    cluster.create_topic("after-the-controller")


def restart_the_coordinator(cluster: Cluster, traffic: Traffic) -> None:
    """kill -9 of the coordinator; the brokers come back to it with the sessions they had, and the controller stays."""
    controller, epoch = cluster.controller(), cluster.controller_epoch()
    cluster.coordinator.kill()
    traffic.wait_until_it_flows("without a coordinator")
    cluster.coordinator.start()
    cluster.create_topic("after-the-coordinator")
    assert cluster.broker_ids() == set(cluster.brokers)
    assert (cluster.controller(), cluster.controller_epoch()) == (controller, epoch)
    traffic.wait_until_it_flows("with the coordinator back")


Loss = Callable[[Cluster, Traffic], None]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "losses",
    [
        [restart_the_coordinator],
        *by_night(
            "two minutes, and no commit says that it has found anything; by day others die in mixed clusters",
            [replace_a_broker, fail_the_controller_over, restart_the_coordinator],
        ),
    ],
    ids=["the coordinator", "all"],
)
def test_cluster_survives_what_is_lost(cluster: Cluster, losses: Sequence[Loss]) -> None:
    cluster.create_topic(TOPIC)
    with Traffic(cluster.bootstrap_servers, TOPIC) as traffic:
        traffic.wait_until_it_flows("at first")
        for lose in losses:
            lose(cluster, traffic)
    assert traffic.failures == []
    found = read_whole_topic(cluster.bootstrap_servers, TOPIC, PARTITIONS)
    assert len(traffic.acknowledged) > 300 * len(losses)
    lost = traffic.acknowledged - found.keys()
    assert not lost, f"{len(lost)} acknowledged records are not in the log"
    doubled = [number for number, times in found.items() if times > 1]
    assert not doubled, f"{len(doubled)} records are in the log more than once"
