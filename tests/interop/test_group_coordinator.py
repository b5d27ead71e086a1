"""Our group coordinator under Apache Kafka's own tools: what they show of a live group, and how they read the
`__consumer_offsets` that it wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.coordinators.placement import partition_for
from tests.support.apache_kafka import CONSOLE_CONSUMER, CONSUMER_GROUP_COMMAND, run_tool
from tests.support.broker_process import BrokerCluster, broker_cluster

TOPIC = "payments"
GROUP = "tellers"
OFFSETS_PARTITIONS = 5
OVERRIDES = {"offsets.topic.replication.factor": 1, "offsets.topic.num.partitions": OFFSETS_PARTITIONS}


@pytest.fixture(scope="module")
def cluster(oracle_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    """One of our brokers, with a topic of two partitions and three records in each."""
    with broker_cluster(tmp_path_factory.mktemp("groups"), 1, overrides=OVERRIDES) as running:
        settings = {"bootstrap.servers": running.bootstrap_servers, "log_level": 0}
        admin = AdminClient(settings)
        admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(60)
        producer = Producer(settings)
        for number in range(6):
            producer.produce(TOPIC, str(number).encode(), partition=number % 2)
        assert producer.flush(60) == 0
        yield running


@pytest.fixture(scope="module")
def teller(cluster: BrokerCluster) -> Iterator[Consumer]:
    """A static member of the group that has read everything and committed with metadata."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "log_level": 0,
            "group.id": GROUP,
            "group.instance.id": "till-1",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([TOPIC])
    assert len(consumer.consume(6, 60)) == 6
    consumer.commit(
        offsets=[TopicPartition(TOPIC, 0, 3, metadata="till ☃"), TopicPartition(TOPIC, 1, 3)], asynchronous=False
    )
    yield consumer
    consumer.close()


def formatted(cluster: BrokerCluster, formatter: str) -> list[dict[str, Any]]:
    """The records of `__consumer_offsets` that a formatter of Kafka's console consumer shows, of our group."""
    # Of its partition as many as there are: for more it would wait until a time-out. Without a group of its own, which
    # would be among them.
    partition = partition_for(GROUP, OFFSETS_PARTITIONS)
    reader = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "reader", "log_level": 0})
    _, end = reader.get_watermark_offsets(TopicPartition("__consumer_offsets", partition), 60)
    reader.close()
    arguments = ["--bootstrap-server", cluster.bootstrap_servers, "--topic", "__consumer_offsets"]
    arguments += ["--partition", str(partition), "--offset", "earliest", "--max-messages", str(end)]
    arguments += ["--formatter", f"org.apache.kafka.tools.consumer.{formatter}"]
    text = run_tool(CONSOLE_CONSUMER, arguments)
    shown, decoder = [], json.JSONDecoder()
    while text := text.lstrip():
        document, end = decoder.raw_decode(text)
        text = text[end:]
        if document["key"]["data"]["group"] == GROUP:
            shown.append(document)
    return shown


@pytest.mark.usefixtures("teller")
def test_kafkas_formatter_reads_the_offsets(cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dfile.encoding=UTF-8 -Dstdout.encoding=UTF-8 -Dsun.stdout.encoding=UTF-8")
    shown = {
        document["key"]["data"]["partition"]: (document["key"]["version"], document["value"])
        for document in formatted(cluster, "OffsetsMessageFormatter")
    }
    assert {partition: (version, value["version"]) for partition, (version, value) in shown.items()} == {
        0: (1, 3),
        1: (1, 3),
    }
    # This client ends the text with the zero of its C string.
    assert [shown[0][1]["data"][name] for name in ("offset", "metadata")] == [3, "till ☃\0"]
    assert [shown[1][1]["data"][name] for name in ("offset", "metadata")] == [3, ""]


@pytest.mark.usefixtures("teller")
def test_kafkas_formatter_reads_the_group(cluster: BrokerCluster) -> None:
    document = formatted(cluster, "GroupMetadataMessageFormatter")[0]
    assert (document["key"]["version"], document["value"]["version"]) == (2, 3)
    group = document["value"]["data"]
    assert (group["protocolType"], group["generation"]) == ("consumer", 1)
    (member,) = group["members"]
    assert group["leader"] == member["memberId"]
    assert member["memberId"].startswith("till-1-")
    assert [member[name] for name in ("groupInstanceId", "clientHost")] == ["till-1", "/127.0.0.1"]


@pytest.mark.usefixtures("teller")
def test_kafkas_group_command_describes_the_group(cluster: BrokerCluster) -> None:
    where = ["--bootstrap-server", cluster.bootstrap_servers, "--group", GROUP, "--describe"]
    lines = [line.split() for line in run_tool(CONSUMER_GROUP_COMMAND, where).splitlines() if line.startswith(GROUP)]
    assert {(line[1], line[2], line[3], line[4], line[5]) for line in lines} == {
        (TOPIC, "0", "3", "3", "0"),
        (TOPIC, "1", "3", "3", "0"),
    }
    (state,) = [
        line.split()
        for line in run_tool(CONSUMER_GROUP_COMMAND, [*where, "--state"]).splitlines()
        if line.startswith(GROUP)
    ]
    assert "Stable" in state
    assert state[-1] == "1"


def test_what_the_coordinator_hands_out_is_what_the_leader_assigned(cluster: BrokerCluster, teller: Consumer) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    (member,) = admin.describe_consumer_groups([GROUP])[GROUP].result(30).members
    described = {(each.topic, each.partition) for each in member.assignment.topic_partitions}
    assert described == {(each.topic, each.partition) for each in teller.assignment()} == {(TOPIC, 0), (TOPIC, 1)}


@pytest.mark.usefixtures("teller")
def test_a_restart_loads_what_was_committed(cluster: BrokerCluster) -> None:
    broker = cluster.brokers[1]
    broker.kill()
    broker.start()
    fetched = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": GROUP, "log_level": 0})
    found = fetched.committed([TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)], timeout=60)
    fetched.close()
    assert [(each.partition, each.offset) for each in found] == [(0, 3), (1, 3)]
