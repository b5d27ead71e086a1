"""Groups of KIP-848 on three of our brokers with real clients: librdkafka, Java's consumer of 3.9.1 and its tools;
their coordinator is killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.coordinators.placement import partition_for
from tests.support.apache_kafka import CONSOLE_CONSUMER, CONSUMER_GROUP_COMMAND, run_tool
from tests.support.broker_process import BrokerCluster, broker_cluster

TOPIC = "payments"
PARTITIONS = 6
OFFSETS_PARTITIONS = 5
OVERRIDES = {
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": OFFSETS_PARTITIONS,
    "group.coordinator.rebalance.protocols": "classic,consumer",
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
