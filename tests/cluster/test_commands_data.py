"""`barnabas produce`, `consume` and `log dump` against brokers of ours."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.broker_process import BrokerCluster, broker_cluster
from tests.support.command_suite import fresh, new_topic
from tests.support.data_command_suite import DataCommandSuite, consumed, produce, run, values
from tests.support.retention import RETENTION_DOES_NOT_RUN

OVERRIDES = {
    "zookeeper.session.timeout.ms": 18_000,
    "offsets.topic.num.partitions": 4,
    "offsets.topic.replication.factor": 1,
    **RETENTION_DOES_NOT_RUN,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with broker_cluster(tmp_path_factory.mktemp("data-commands"), 2, overrides=OVERRIDES) as running:
        yield running
        running.check_that_none_exited_by_itself()


class TestOnBarnabas(DataCommandSuite):
    @pytest.fixture
    def bootstrap(self, cluster: BrokerCluster) -> str:
        return cluster.bootstrap_servers


def test_the_log_of_a_running_broker_can_be_looked_at(cluster: BrokerCluster) -> None:
    with new_topic(cluster.bootstrap_servers, "--partitions", "1", "--replication-factor", "2") as topic:
        lines = b"".join(b"%0200d\n" % number for number in range(3_000))
        produce(cluster.bootstrap_servers, topic, lines)
        for broker in cluster.brokers.values():
            (directory,) = Path(broker.directory).rglob(f"{topic}-0")
            output, _ = run(cluster.bootstrap_servers, "log", "dump", "--records", "--verify", "--json", str(directory))
            found = [json.loads(line) for line in output.splitlines()]
            records = [each for each in found if each["type"] == "record"]
            assert [int(each["value"]) for each in records] == list(range(3_000))
            (totals,) = [each for each in found if each["type"] == "totals"]
            assert (totals["records"], totals["faulty_position"]) == (3_000, None)


@pytest.mark.parametrize(
    ("command", "others"),
    [
        ("topic list", {"barnabas.client.consumer", "barnabas.client.producer", "barnabas.client.group_coordinator"}),
        ("group list", {"barnabas.client.consumer", "barnabas.client.producer"}),
        ("consume TOPIC --until-end", {"barnabas.client.producer"}),
        ("produce TOPIC --file /dev/null", {"barnabas.client.consumer", "barnabas.client.group_coordinator"}),
    ],
)
def test_a_command_loads_little_so_that_it_starts_soon(cluster: BrokerCluster, command: str, others: set[str]) -> None:
    """A module takes half a millisecond and more; the machine decides on the time, and not on their number."""
    program = (
        "import sys\n"
        "from barnabas.cli.main import main\n"
        "try:\n    main(sys.argv[1:], prog_name='barnabas')\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "print('modules:', *sys.modules)\n"
    )
    with new_topic(cluster.bootstrap_servers, "--partitions", "1", "--replication-factor", "1") as topic:
        words = command.replace("TOPIC", topic).split()
        done = subprocess.run(
            [sys.executable, "-c", program, *words, "--bootstrap-server", cluster.bootstrap_servers],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    loaded = set(done.stdout.partition("modules: ")[2].split())
    assert "barnabas.client.client" in loaded
    unwanted = {"ssl", "_ssl", "rich", "yaml", "pyspark", "prometheus_client", "http.client", "email"} | others
    assert not loaded & unwanted
    # From 66 to 95 when this was written.
    ours = {name for name in loaded if name.startswith("barnabas.")}
    assert len(ours) <= 110, sorted(ours)
    assert len(loaded) <= 300, sorted(loaded - ours)
    assert not [name for name in ours if name.split(".")[1] in ("server", "testing", "pipelines", "api", "log", "sasl")]


def test_a_command_whose_output_is_closed_says_so(cluster: BrokerCluster) -> None:
    """What it was to do is done all the same, as with other tools."""
    command = f"{sys.executable} -m barnabas.cli"
    where = f"--bootstrap-server {cluster.bootstrap_servers}"

    def closed(line: str) -> tuple[int, str]:
        done = subprocess.run(
            ["/bin/sh", "-c", f"{command} {line} {where} >&-"], capture_output=True, text=True, timeout=60, check=False
        )
        return done.returncode, done.stderr

    topic = fresh("topic")
    for line in (f"topic create {topic} --replication-factor 1", "topic list", f"topic describe {topic}"):
        status, errors = closed(line)
        assert (status, errors.splitlines()[-1].split(": ", 1)[1]) == (
            1,
            "the output cannot be written: standard output is closed",
        )
    produce(cluster.bootstrap_servers, topic, b"a\n")
    status, errors = closed(f"consume {topic} --from earliest --until-end")
    assert status == 1
    assert "standard output is closed" in errors


Headers = list[tuple[str, bytes | None]]


def letter_headers(topic: str, partition: int, timestamp_ms: int) -> Headers:
    """What a pipeline adds to a record that does not fit."""
    texts = {"reason": "no JSON", "topic": topic, "partition": partition, "offset": 7, "timestamp": timestamp_ms}
    return [(f"barnabas.error.{name}", str(text).encode()) for name, text in texts.items()]


def post(bootstrap: str, topic: str, *letters: tuple[bytes | None, bytes, Headers]) -> None:
    """Records of partition 0."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for key, value, headers in letters:
        producer.produce(topic, value, key, partition=0, headers=headers)
    assert producer.flush(60) == 0


def replayed(bootstrap: str, name: str, *options: str, status: int = 0) -> tuple[dict[str, Any], str]:
    """What a replay prints as JSON, {} where it fails, and what it says."""
    output, errors = run(bootstrap, "pipeline", "replay", name, "--json", *options, status=status)
    return json.loads(output or b"{}"), errors


def test_letters_go_back_once_to_where_they_came_from(cluster: BrokerCluster) -> None:
    servers, name = cluster.bootstrap_servers, fresh("pipeline")
    run(servers, "topic", "create", f"{name}.dlq", "--partitions", "2", "--replication-factor", "1")
    with new_topic(servers, "--partitions", "3", "--replication-factor", "1") as topic:
        mine: Headers = [("trace", b"\x00\xff"), ("none", None)]
        first = letter_headers(topic, 2, 1_356_998_400_123)
        post(servers, f"{name}.dlq", (b"k", b"\xff", [*mine, *first]), (None, b"stranger", mine), (b"k", b"x", first))
        expected = {"topic": topic, "letters": 2, "reason": "no JSON"}
        for _ in range(2):
            found, errors = replayed(servers, name, "--dry-run")
            assert (found["letters"], found["not_letters"], found["topics"]) == (2, 1, [expected])
            assert errors == f"warning: 1 record of {name}.dlq without a pipeline's headers left out\n"
            assert consumed(servers, topic) == []
        found, _ = replayed(servers, name)
        assert (found["letters"], found["dry_run"]) == (2, False)
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "unused"})
        consumer.assign([TopicPartition(topic, 2, 0)])
        records = consumer.consume(2, timeout=30)
        assert [(each.key(), each.value(), each.headers()) for each in records] == [
            (b"k", b"\xff", mine),
            (b"k", b"x", None),
        ]
        assert {each.timestamp()[1] for each in records} == {1_356_998_400_123}
        consumer.close()
        # The next one sends what is new; a topic that was made again may have fewer partitions.
        assert replayed(servers, name)[0]["letters"] == 0
        post(servers, f"{name}.dlq", (b"k", b"new", letter_headers(topic, 9, -1)))
        assert replayed(servers, name)[0]["letters"] == 1
        assert {record.get("value") for record in consumed(servers, topic)} == {None, "x", "new"}
        # More than are sent at a time: their order stays.
        numbers = [str(number) for number in range(1_200)]
        headers = letter_headers(topic, 0, -1)
        post(servers, f"{name}.dlq", *((b"k", number.encode(), headers) for number in numbers))
        assert replayed(servers, name)[0]["letters"] == len(numbers)
        assert values(consumed(servers, topic, "--partition", "0"))[-len(numbers) :] == numbers


def test_a_letter_that_its_topic_refuses_ends_a_replay_and_none_is_left_out(cluster: BrokerCluster) -> None:
    servers, name = cluster.bootstrap_servers, fresh("pipeline")
    assert "there is no topic" in replayed(servers, name, status=4)[1]
    run(servers, "topic", "create", f"{name}.dlq", "--partitions", "1", "--replication-factor", "1")
    small = ("--partitions", "1", "--replication-factor", "1", "--config", "max.message.bytes=1000")
    with new_topic(servers, *small) as topic:
        headers = letter_headers(topic, 0, -1)
        post(servers, f"{name}.dlq", (b"1", b"first", headers), (b"2", b"x" * 5_000, headers), (b"3", b"last", headers))
        told = replayed(servers, name, status=1)[1]
        assert f"the letter at {name}.dlq-0 offset 1 could not be sent back: " in told
        run(servers, "config", "set", f"topic:{topic}", "max.message.bytes=10000")
        assert replayed(servers, name)[0]["letters"] == 3
        assert {record["key"] for record in consumed(servers, topic)} == {"1", "2", "3"}
    post(servers, f"{name}.dlq", (b"4", b"more", headers))
    assert (
        f"the topic {topic}, which letters came from, does not exist any more" in replayed(servers, name, status=4)[1]
    )
