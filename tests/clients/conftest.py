"""The cluster that all clients are tried on, and the clients.

BARNABAS_CLIENTS_AGAINST=apache-kafka tries them on three brokers of Apache Kafka instead: what fails there too is the
test's fault, or the client's.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from xdist.scheduler import LoadFileScheduling

from tests.clients.drivers import java_transactions
from tests.clients.drivers.confluent import ConfluentClient
from tests.clients.drivers.model import COMPRESSIONS, Capability, Client, Record
from tests.clients.matrix import ALL, TRIED, make_client, reason_to_skip
from tests.support.apache_kafka import ApacheKafkaBroker
from tests.support.broker_process import broker_cluster
from tests.support.longest_first import longest_first
from tests.support.retention import RETENTION_DOES_NOT_RUN
from tests.support.waiting import wait_until
from tests.support.wire_calls import leaders
from tests.support.zookeeper import ZooKeeperServer

collect_ignore = [] if ALL else ["test_documented_clients.py", "test_java_racks.py", "test_java_tools.py"]

BROKERS = 3
PARTITIONS = 4
TOPIC_SECONDS = 60.0
OVERRIDES = {
    "offsets.topic.num.partitions": 4,
    "offsets.topic.replication.factor": 3,
    "group.initial.rebalance.delay.ms": 0,
    "auto.create.topics.enable": "false",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
    **RETENTION_DOES_NOT_RUN,
}


# Of `--dist loadfile`: each process has a cluster of its own.
TOGETHER = {"test_java_tools": "Java's tools", "test_java_racks": "Java's tools"}
BY_ITSELF = "test_reads_what_every_other_wrote"
LONGEST = ("Java", "kafkajs", BY_ITSELF, "test_tls.py", "Java's tools", "test_oauthbearer.py")
OF_GO = "franz-go"
NIGHT = {
    BY_ITSELF: "a minute or more, with another cluster; no commit says that it has found anything, and by day each"
    " reads what it wrote itself, and what one of Python wrote",
    OF_GO: "fetched and compiled first, a minute or two on a clean checkout, for three tests of transactions; no commit"
    " says that they have found anything, and by night its own suite is run too",
}


def scope(nodeid: str) -> str:
    """All tests of a client are in one process, which starts, builds or fetches it once; but what every other wrote is
    written in one process only.
    """
    file, _, test = nodeid.partition("::")
    if test.startswith(BY_ITSELF):
        return BY_ITSELF
    client = next((name for name in TRIED if name in test.partition("[")[2]), None)
    return client or TOGETHER.get(PurePosixPath(file).stem, PurePosixPath(file).name)


class ClientsTogether(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ClientsTogether:
    return ClientsTogether(config, log)


def pytest_itemcollected(item: pytest.Item) -> None:
    if why := NIGHT.get(scope(item.nodeid)):
        item.add_marker(pytest.mark.night(why))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    longest_first(items, LONGEST, lambda item: scope(item.nodeid))


@pytest.fixture(scope="session")
def bootstrap_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("cluster")
    if os.environ.get("BARNABAS_CLIENTS_AGAINST") == "apache-kafka":
        with _apache_kafka(directory) as addresses:
            yield addresses
    else:
        with broker_cluster(directory, BROKERS, overrides=OVERRIDES) as cluster:
            yield cluster.bootstrap_servers


@contextlib.contextmanager
def _apache_kafka(directory: Path) -> Iterator[str]:
    zookeeper = ZooKeeperServer(directory / "zookeeper")
    brokers = []
    try:
        zookeeper.start()
        for broker_id in range(BROKERS):
            brokers.append(
                ApacheKafkaBroker(directory / f"{broker_id}", zookeeper.address, broker_id, overrides=OVERRIDES)
            )
            brokers[-1].start(wait=False)
        for broker in brokers:
            broker.wait_until_ready()
        yield ",".join(broker.address for broker in brokers)
    finally:
        for broker in brokers:
            broker.kill()
        zookeeper.kill()


@pytest.fixture(scope="session", autouse=True)
def _java_virtual_machine() -> Iterator[None]:
    yield
    java_transactions.close()


@pytest.fixture(params=TRIED)
def client(request: pytest.FixtureRequest, bootstrap_servers: str) -> Client:
    name: str = request.param
    if reason := reason_to_skip(name):
        pytest.skip(reason)
    return make_client(name, bootstrap_servers)


@pytest.fixture(scope="session")
def python_client(bootstrap_servers: str) -> Client:
    """The client that does what a test needs beside the client it is about."""
    return ConfluentClient(bootstrap_servers)


@pytest.fixture
def unused_topic() -> str:
    """A name that no topic has."""
    return f"topic-{uuid.uuid4()}"


@pytest.fixture
def topic(bootstrap_servers: str, unused_topic: str) -> str:
    make_topic(bootstrap_servers, unused_topic, 1)
    return unused_topic


@pytest.fixture
def wide_topic(bootstrap_servers: str, unused_topic: str) -> str:
    make_topic(bootstrap_servers, unused_topic, PARTITIONS)
    return unused_topic


def make_topic(bootstrap_servers: str, name: str, partitions: int) -> None:
    """A topic on all brokers, without retention by time: some records are old."""
    configs = {"retention.ms": "-1", "message.timestamp.before.max.ms": str(2**63 - 1)}
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    (future,) = admin.create_topics([NewTopic(name, partitions, BROKERS, config=configs)]).values()
    future.result(TOPIC_SECONDS)
    for address in bootstrap_servers.split(","):
        port = int(address.rpartition(":")[2])
        wait_until(lambda: len(leaders(port, name)) == partitions, f"{address} knows {name}", TOPIC_SECONDS)  # noqa: B023


@pytest.fixture(scope="session")
def written_by_all(bootstrap_servers: str) -> dict[str, list[Record]]:
    """For each client that can, and each compression, a topic with what it wrote."""
    written: dict[str, list[Record]] = {}
    for name in TRIED:
        if reason_to_skip(name):
            continue
        made = make_client(name, bootstrap_servers)
        compressions = [text for each, text in COMPRESSIONS.items() if each not in made.missing]
        for compression in ["none", *compressions]:
            if Capability.PLAIN in made.missing:
                continue
            topic = f"by-{name}-{compression}"
            make_topic(bootstrap_servers, topic, 1)
            written[topic] = [Record(f"{compression} {number} ".encode() * 10, b"%d" % number) for number in range(20)]
            made.produce(topic, written[topic], compression)
    return written
