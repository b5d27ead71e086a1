"""Apache Kafka's own tools against three broker processes: what operators call beside producers and consumers."""

from __future__ import annotations

import json
import uuid

import pytest

from tests.clients.drivers import java
from tests.clients.drivers.model import Client, Record, TransactionalClient
from tests.support.apache_kafka import CONSUMER_GROUP_COMMAND, TOPIC_COMMAND, run_tool
from tests.support.waiting import wait_until

PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"
VERIFIABLE_PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
BROKER_API_VERSIONS = "kafka.admin.BrokerApiVersionsCommand"
RECORDS = 20_000


@pytest.fixture(autouse=True)
def _java() -> None:
    if reason := java.reason_to_skip():
        pytest.skip(reason)


def test_performance_tools_produce_and_consume(bootstrap_servers: str, wide_topic: str) -> None:
    said = run_tool(
        PRODUCER_PERFORMANCE,
        [
            *("--topic", wide_topic, "--num-records", str(RECORDS), "--record-size", "100", "--throughput", "-1"),
            *("--producer-props", f"bootstrap.servers={bootstrap_servers}", "acks=all", "compression.type=lz4"),
        ],
    )
    assert f"{RECORDS} records sent" in said
    consumed = run_tool(
        CONSUMER_PERFORMANCE,
        [
            *("--bootstrap-server", bootstrap_servers, "--topic", wide_topic, "--messages", str(RECORDS)),
            *("--timeout", "30000", "--hide-header"),
        ],
    )
    assert int(float(consumed.split(",")[4])) == RECORDS


def test_the_performance_tool_commits_transactions(bootstrap_servers: str, topic: str, python_client: Client) -> None:
    said = run_tool(
        PRODUCER_PERFORMANCE,
        [
            *("--topic", topic, "--num-records", "400", "--record-size", "10", "--throughput", "200"),
            *("--transactional-id", f"id-{uuid.uuid4()}", "--transaction-duration-ms", "100"),
            *("--producer-props", f"bootstrap.servers={bootstrap_servers}"),
        ],
    )
    assert "400 records sent" in said
    assert isinstance(python_client, TransactionalClient)
    # The end of the last transaction is acknowledged before its marker is written.
    wait_until(lambda: len(python_client.read_committed(topic)) >= 400, "all are read")
    assert len(python_client.read_committed(topic)) == 400


def test_the_verifiable_producer_gets_every_acknowledgement(bootstrap_servers: str, wide_topic: str) -> None:
    said = run_tool(
        VERIFIABLE_PRODUCER,
        ["--bootstrap-server", bootstrap_servers, "--topic", wide_topic, "--max-messages", "500", "--acks", "-1"],
    )
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    (summary,) = [event for event in events if event["name"] == "tool_data"]
    assert (summary["sent"], summary["acked"]) == (500, 500)


def test_groups_are_described_and_their_offsets_reset(
    bootstrap_servers: str, topic: str, python_client: Client
) -> None:
    group = f"group-{uuid.uuid4()}"
    python_client.produce(topic, [Record(b"%d" % number) for number in range(10)])
    at = ("--bootstrap-server", bootstrap_servers, "--group", group)
    reset = run_tool(
        CONSUMER_GROUP_COMMAND, [*at, "--topic", topic, "--reset-offsets", "--to-offset", "4", "--execute"]
    )
    assert topic in reset
    described = run_tool(CONSUMER_GROUP_COMMAND, [*at, "--describe"])
    (line,) = [line.split() for line in described.splitlines() if topic in line]
    assert line[2:6] == ["0", "4", "10", "6"], "partition, current offset, end, lag"
    assert group in run_tool(CONSUMER_GROUP_COMMAND, ["--bootstrap-server", bootstrap_servers, "--list"])
    run_tool(CONSUMER_GROUP_COMMAND, [*at, "--delete"])
    assert group not in run_tool(CONSUMER_GROUP_COMMAND, ["--bootstrap-server", bootstrap_servers, "--list"])


def test_topics_are_described(bootstrap_servers: str, wide_topic: str) -> None:
    said = run_tool(TOPIC_COMMAND, ["--bootstrap-server", bootstrap_servers, "--describe", "--topic", wide_topic])
    assert "PartitionCount: 4" in said
    assert "ReplicationFactor: 3" in said
    lines = [line for line in said.splitlines() if "Isr: " in line]
    assert len(lines) == 4
    for line in lines:
        isr = line.partition("Isr: ")[2].split()[0]
        assert len(isr.split(",")) == 3, line


def test_records_are_deleted(
    bootstrap_servers: str, topic: str, python_client: Client, tmp_path_factory: pytest.TempPathFactory
) -> None:
    python_client.produce(topic, [Record(b"%d" % number) for number in range(10)])
    wanted = tmp_path_factory.mktemp("delete-records") / "offsets.json"
    wanted.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 7}]}))
    run_tool(DELETE_RECORDS, ["--bootstrap-server", bootstrap_servers, "--offset-json-file", str(wanted)])
    assert [record.value for record in python_client.read(topic, 3)] == [b"7", b"8", b"9"]


def test_log_directories_are_described(bootstrap_servers: str, topic: str, python_client: Client) -> None:
    python_client.produce(topic, [Record(b"x" * 1_000)])
    said = run_tool(LOG_DIRS, ["--bootstrap-server", bootstrap_servers, "--describe", "--topic-list", topic])
    document = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    sizes = [
        partition["size"]
        for broker in document["brokers"]
        for directory in broker["logDirs"]
        for partition in directory["partitions"]
    ]
    assert len(sizes) == 3
    assert all(size > 1_000 for size in sizes)


def test_every_api_is_usable_by_the_java_client(bootstrap_servers: str) -> None:
    said = run_tool(BROKER_API_VERSIONS, ["--bootstrap-server", bootstrap_servers])
    for api in ("Produce(0)", "Fetch(1)", "Metadata(3)", "JoinGroup(11)", "CreateTopics(19)", "InitProducerId(22)"):
        lines = [line for line in said.splitlines() if line.strip().startswith(f"{api}:")]
        assert len(lines) == 3, f"{api} of every broker"
        assert all("usable" in line for line in lines), lines
