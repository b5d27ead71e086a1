"""Groups of KIP-848 on three of our brokers with real clients: librdkafka, Java's consumer of 3.9.1 and its tools, also
beside classic ones of librdkafka and kafka-python; their coordinator is killed.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.coordinators.placement import partition_for
from tests.support.apache_kafka import CONSOLE_CONSUMER, CONSUMER_GROUP_COMMAND, run_tool
from tests.support.broker_process import BrokerCluster, broker_cluster
from tests.support.by_night import by_night

TOPIC = "payments"
PARTITIONS = 6
OFFSETS_PARTITIONS = 5
AGAIN = "half a minute, and no commit says that it has found anything"
OVERRIDES = {
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": OFFSETS_PARTITIONS,
    "group.coordinator.rebalance.protocols": "classic,consumer",
    "group.consumer.migration.policy": "bidirectional",
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.min.session.timeout.ms": 10_000,
    "group.consumer.session.timeout.ms": 10_000,
    "group.consumer.min.heartbeat.interval.ms": 500,
    "group.consumer.heartbeat.interval.ms": 500,
}


@pytest.fixture(scope="module")
def cluster(oracle_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    """Three of our brokers, with a topic of six partitions and ten records in each."""
    with broker_cluster(tmp_path_factory.mktemp("consumer-protocol"), 3, overrides=OVERRIDES) as running:
        client = admin(running)
        client.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(60)
        produce(running, 60)
        yield running


def admin(cluster: BrokerCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})


def produce(cluster: BrokerCluster, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0, "acks": "all"})
    for number in range(count):
        producer.produce(TOPIC, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(60) == 0


OPEN: list[Consumer] = []
"""Consumers of librdkafka that the test has made."""


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Whatever became of the test: a consumer that nobody polls any more, and that is not closed, holds the process for
    good when it is collected as garbage.
    """
    yield
    while OPEN:
        OPEN.pop().close()


def member(cluster: BrokerCluster, group: str, name: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "log_level": 0,
            "client.id": name,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([TOPIC])
    OPEN.append(consumer)
    return consumer


def until(condition: Callable[[], bool], *consumers: Consumer, seconds: float = 60) -> int:
    """Polls all consumers until the condition holds; how many records came."""
    count = 0
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, [consumer.assignment() for consumer in consumers]
        for consumer in consumers:
            message = consumer.poll(0.1)
            count += message is not None and message.error() is None
    return count


def assigned(*consumers: Consumer) -> list[int]:
    return sorted(len(consumer.assignment()) for consumer in consumers)


def test_members_of_librdkafka_come_and_go_and_their_coordinator_is_killed(cluster: BrokerCluster) -> None:
    group = "tellers"
    first = member(cluster, group, "first")
    count = 0

    def read_all() -> bool:
        nonlocal count
        message = first.poll(0.1)
        count += message is not None and message.error() is None
        return count >= 60

    until(read_all)
    first.commit(asynchronous=False)
    second = member(cluster, group, "second")
    until(lambda: assigned(first, second) == [3, 3], first, second)
    offsets = admin(cluster).list_topics("__consumer_offsets", 30).topics["__consumer_offsets"]
    coordinator = offsets.partitions[partition_for(group, OFFSETS_PARTITIONS)].leader
    cluster.brokers[coordinator].kill()
    third = member(cluster, group, "third")
    until(lambda: assigned(first, second, third) == [2, 2, 2], first, second, third)
    owned = [each.partition for consumer in (first, second, third) for each in consumer.assignment()]
    assert sorted(owned) == list(range(PARTITIONS))
    cluster.brokers[coordinator].start()
    second.close()
    until(lambda: assigned(first, third) == [3, 3], first, third)
    for consumer in (first, third):
        consumer.close()


KAFKA_PYTHON = """
import sys
from kafka import ConsumerRebalanceListener, KafkaConsumer
from kafka.coordinator.assignors.range import RangePartitionAssignor

topic, servers, group = sys.argv[1:]
owned = set()

class Listener(ConsumerRebalanceListener):
    # assignment() has what was given up until there is something new, which may be several polls later.
    def on_partitions_revoked(self, revoked):
        owned.clear()

    def on_partitions_assigned(self, assigned):
        owned.update(each.partition for each in assigned)

consumer = KafkaConsumer(
    bootstrap_servers=servers,
    group_id=group,
    enable_auto_commit=False,
    partition_assignment_strategy=[RangePartitionAssignor],
    session_timeout_ms=10_000,
    heartbeat_interval_ms=500,
)
consumer.subscribe([topic], listener=Listener())
for _ in sys.stdin:
    consumer.poll(timeout_ms=100)
    print(*owned, flush=True)
consumer.close()
"""


class KafkaPython:
    """kafka-python's consumer, which has the classic protocol only and gives up all before it joins. In a process of
    its own, since it leaves sockets behind where a broker is killed.
    """

    def __init__(self, cluster: BrokerCluster, group: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", KAFKA_PYTHON, TOPIC, cluster.bootstrap_servers, group],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._assigned: list[TopicPartition] = []

    def poll(self, _seconds: float) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("poll\n")
        self._process.stdin.flush()
        self._assigned = [TopicPartition(TOPIC, int(number)) for number in self._process.stdout.readline().split()]

    def assignment(self) -> list[TopicPartition]:
        return self._assigned

    def close(self) -> None:
        self._process.communicate(timeout=60)


def classic(cluster: BrokerCluster, group: str, strategy: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "log_level": 0,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "partition.assignment.strategy": strategy,
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 500,
        }
    )
    consumer.subscribe([TOPIC])
    OPEN.append(consumer)
    return consumer


def settled(cluster: BrokerCluster, group: str, kind: str, *consumers: Consumer | KafkaPython) -> None:
    """Polls until all partitions are owned, in equal parts, by a group of the kind; none is owned twice at any time."""

    def assignments() -> list[set[int]]:
        return [{each.partition for each in consumer.assignment()} for consumer in consumers]

    def is_settled() -> bool:
        # They are asked one after the other, and a partition may go over meanwhile: who has it still after another has
        # been asked had it while that one had it too.
        first, again = assignments(), assignments()
        for number, (one, still) in enumerate(zip(first, again, strict=True)):
            for other in first[number + 1 :]:
                assert not one & still & other, (first, again)
        sizes = [len(each) for each in again]
        return sorted(itertools.chain(*again)) == list(range(PARTITIONS)) and max(sizes) - min(sizes) <= 1

    deadline = time.monotonic() + 90
    while not is_settled():
        assert time.monotonic() < deadline, [consumer.assignment() for consumer in consumers]
        for consumer in consumers:
            consumer.poll(0.1)
            is_settled()
    for listed in admin(cluster).list_consumer_groups().result(60).valid:
        if listed.group_id == group:
            assert listed.type.name.lower() == kind


@pytest.mark.parametrize("strategy", ["range", *by_night(AGAIN, "cooperative-sticky")])
def test_a_group_goes_over_and_back_under_its_classic_members(cluster: BrokerCluster, strategy: str) -> None:
    group = f"mixed-{strategy}"
    first = classic(cluster, group, strategy)
    second = KafkaPython(cluster, group) if strategy == "range" else classic(cluster, group, strategy)
    settled(cluster, group, "classic", first, second)
    third = member(cluster, group, "third")
    settled(cluster, group, "consumer", first, second, third)
    offsets = admin(cluster).list_topics("__consumer_offsets", 30).topics["__consumer_offsets"]
    coordinator = offsets.partitions[partition_for(group, OFFSETS_PARTITIONS)].leader
    cluster.brokers[coordinator].kill()
    settled(cluster, group, "consumer", first, second, third)
    cluster.brokers[coordinator].start()
    third.close()
    settled(cluster, group, "classic", first, second)
    fourth = member(cluster, group, "fourth")
    settled(cluster, group, "consumer", first, second, fourth)
    for consumer in (first, second, fourth):
        consumer.close()


def test_javas_consumer_of_the_classic_protocol_reads_beside_another_member(cluster: BrokerCluster) -> None:
    keeps = member(cluster, "java-classic", "keeps")
    until(lambda: assigned(keeps) == [PARTITIONS], keeps)
    where = ["--bootstrap-server", cluster.bootstrap_servers]
    arguments = [*where, "--topic", TOPIC, "--from-beginning", "--max-messages", "10", "--timeout-ms", "60000"]
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(run_tool, CONSOLE_CONSUMER, [*arguments, "--group", "java-classic"])
        until(read.done, keeps, seconds=90)
        assert len(read.result().split()) == 10
    until(lambda: assigned(keeps) == [PARTITIONS], keeps)
    keeps.close()


def test_javas_consumer_reads_and_its_tools_show_the_group(cluster: BrokerCluster) -> None:
    where = ["--bootstrap-server", cluster.bootstrap_servers]
    arguments = [*where, "--topic", TOPIC, "--from-beginning", "--max-messages", "60", "--timeout-ms", "60000"]
    arguments += ["--group", "java", "--consumer-property", "group.protocol=consumer"]
    assert len(run_tool(CONSOLE_CONSUMER, arguments).split()) == 60
    listed = run_tool(CONSUMER_GROUP_COMMAND, [*where, "--list", "--type"])
    assert ["java", "Consumer"] in [line.split() for line in listed.splitlines()]
    keeps = member(cluster, "java", "keeps")
    until(lambda: assigned(keeps) == [PARTITIONS], keeps)
    state = run_tool(CONSUMER_GROUP_COMMAND, [*where, "--describe", "--group", "java", "--state"])
    assert [line.split()[-3:] for line in state.splitlines() if line.startswith("java")] == [["uniform", "Stable", "1"]]
    lines = run_tool(CONSUMER_GROUP_COMMAND, [*where, "--describe", "--group", "java"]).splitlines()
    shown = [line.split() for line in lines if line.startswith("java")]
    assert {(line[1], line[3], line[4]) for line in shown} == {(TOPIC, "10", "10")}
    assert len(shown) == PARTITIONS
    keeps.close()
