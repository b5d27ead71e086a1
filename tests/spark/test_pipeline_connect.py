"""The same pipelines by Spark Connect: a server has Spark, and the run is its client. Whichever of both is killed, and
wherever, the next run goes on, and each row is there once.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyarrow import dataset

from barnabas.pipelines.connector import resolve_connector
from barnabas.pipelines.java import find_java
from tests.spark.pipeline_process import PipelineProcess, held_in_batch
from tests.support.spark_connect import ConnectServer
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.night("a Spark Connect server besides the broker, started again by the last test"),
]

PARTITIONS = 2
SECONDS_MAX = 300.0
ROWS = 600
BATCH = 200
CARRIERS = ("AA", "B6", "UA", "DL")
BAD = b"not JSON"
# The command, which waits for ever when a batch is in its topics, before it says so to anybody.
HELD_WHEN_SENT = (
    "-c",
    """
import time
from barnabas.cli.entry import run
from barnabas.pipelines import topic_sink

commit = topic_sink.OutboxWriter.commit


def commit_and_wait(self, batch_id, offsets):
    commit(self, batch_id, offsets)
    if batch_id >= 1:
        print("held", file=__import__("sys").stderr, flush=True)
        time.sleep(3600)


topic_sink.OutboxWriter.commit = commit_and_wait
run()
""",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    jars = resolve_connector(find_java(), None, print)
    with ConnectServer(tmp_path_factory.mktemp("connect"), jars) as server:
        yield server


@pytest.fixture
def topics(brokers: str, request: pytest.FixtureRequest) -> tuple[str, str]:
    """The names of a topic to be read, with rows and one record that is none, and of one to be written."""
    name = request.node.name.replace("[", "-").replace("]", "")[-60:]
    read, written = f"{name}-in", f"{name}-out"
    admin = AdminClient({"bootstrap.servers": brokers})
    for made in admin.create_topics([NewTopic(each, PARTITIONS, 1) for each in (read, written)]).values():
        made.result(30)
    fill(brokers, read, range(ROWS))
    producer = Producer({"bootstrap.servers": brokers})
    producer.produce(read, BAD, partition=0)
    assert producer.flush(30) == 0
    return read, written


def fill(brokers: str, topic: str, numbers: Iterable[int]) -> None:
    producer = Producer({"bootstrap.servers": brokers})
    for number in numbers:
        value = json.dumps({"id": number, "carrier": CARRIERS[number % len(CARRIERS)]})
        producer.produce(topic, value, partition=number % PARTITIONS)
    assert producer.flush(30) == 0


def written(directory: Path, topics: tuple[str, str]) -> Path:
    path = directory / "flights.yaml"
    read, copies = topics
    path.write_text(
        f"""\
name: {read}
sources:
  flights: {{topic: {read}, schema: "id INT, carrier STRING", max_records_per_batch: {BATCH}}}
steps:
  - {{name: sums, sql: "SELECT carrier, COUNT(*) AS flights, SUM(id) AS ids FROM flights GROUP BY carrier"}}
sinks:
  - {{topic: {copies}, from: flights}}
  - {{parquet: copies, from: flights}}
  - {{parquet: sums, from: sums, key: carrier}}
spark: {{spark.sql.shuffle.partitions: 2}}
"""
    )
    return path


def run_of(path: Path, brokers: str, server: ConnectServer, *arguments: str, **more: Any) -> PipelineProcess:
    return PipelineProcess(path, brokers, "--master", server.master, *arguments, seconds_max=SECONDS_MAX, **more)


def see_that_all_is_there_once(directory: Path, brokers: str, topics: tuple[str, str], rows: int = ROWS) -> None:
    read, copies = topics
    expected = Counter(range(rows))
    assert Counter(row["id"] for row in rows_of(directory / "copies")) == expected
    assert Counter(json.loads(value)["id"] for value in committed(brokers, copies)) == expected
    assert sums_of(directory / "sums") == sums(rows)
    assert committed(brokers, f"{read}.dlq") == [BAD]
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": f"barnabas-pipeline-{read}"})
    places = consumer.committed([TopicPartition(read, number) for number in range(PARTITIONS)], 30)
    consumer.close()
    assert sum(place.offset for place in places) == rows + 1


def test_a_run_is_as_in_a_spark_of_its_own(
    brokers: str, server: ConnectServer, topics: tuple[str, str], tmp_path: Path
) -> None:
    """Topics, tables, letters, offsets; a second run has nothing to do, and leaves no session."""
    path = written(tmp_path, topics)
    with run_of(path, brokers, server, "--once") as run:
        summary = run.finish()[-1]
    assert (summary["rows_in"], summary["records_refused"]) == (2 * (ROWS + 1), 2)
    with run_of(path, brokers, server, "--once") as run:
        assert run.finish()[-1]["batches"] == 0
    see_that_all_is_there_once(tmp_path, brokers, topics)
    (state,) = (file.parent for file in tmp_path.rglob("definition.json"))
    assert not (state / "connect.json").exists()


@pytest.mark.parametrize("where", ["computing", "sent"])
def test_a_client_that_is_killed_in_a_batch_costs_no_row_and_doubles_none(
    brokers: str, server: ConnectServer, topics: tuple[str, str], tmp_path: Path, where: str
) -> None:
    """Its query waits at the server, with a command under way; the next run ends both, and does the batch again."""
    path = written(tmp_path, topics)
    program = held_in_batch(1) if where == "computing" else HELD_WHEN_SENT
    with run_of(path, brokers, server, "--once", program=program) as run:
        if where == "computing":
            run.batches(2)
            time.sleep(3)  # the next one is under way at the server
        else:
            run.until_said("held")
        run.kill()
    with run_of(path, brokers, server, "--once") as run:
        run.finish()
    see_that_all_is_there_once(tmp_path, brokers, topics)


def test_a_client_that_is_killed_while_it_waits_for_records_is_followed_by_the_next(
    brokers: str, server: ConnectServer, topics: tuple[str, str], tmp_path: Path
) -> None:
    """What comes meanwhile its query at the server sees, and nobody does that batch for it."""
    path = written(tmp_path, topics)
    with run_of(path, brokers, server) as run:
        wait_until(lambda: len(rows_of(tmp_path / "copies")) >= ROWS, "every row", SECONDS_MAX)
        wait_until(lambda: sums_of(tmp_path / "sums") == sums(ROWS), "every sum", SECONDS_MAX)
        time.sleep(3)
        run.kill()
    fill(brokers, topics[0], range(ROWS, ROWS + 100))
    time.sleep(3)
    with run_of(path, brokers, server) as run:
        wait_until(lambda: len(rows_of(tmp_path / "copies")) >= ROWS + 100, "every row", SECONDS_MAX)
        wait_until(lambda: sums_of(tmp_path / "sums") == sums(ROWS + 100), "every sum", SECONDS_MAX)
        run.terminate()
        assert run.finish()[-1]["was_stopped"]
    see_that_all_is_there_once(tmp_path, brokers, topics, ROWS + 100)


def test_a_server_that_is_killed_ends_the_run_and_the_next_one_goes_on(
    brokers: str, server: ConnectServer, topics: tuple[str, str], tmp_path: Path
) -> None:
    path = written(tmp_path, topics)
    with run_of(path, brokers, server, "--once", program=held_in_batch(1)) as run:
        run.batches(2)
        time.sleep(2)
        began = time.monotonic()
        server.kill()
        assert run.wait() == 1
        assert time.monotonic() - began < 60
        assert "Spark Connect" in run.errors()
    with run_of(path, brokers, server, "--once") as run:
        assert run.wait() != 0
        assert "nobody answers at" in run.errors()
    server.start()
    with run_of(path, brokers, server, "--once") as run:
        run.finish()
    see_that_all_is_there_once(tmp_path, brokers, topics)


def rows_of(table: Path) -> list[dict[str, Any]]:
    if not table.is_dir() or not any(table.glob("batch_id=*")):
        return []
    rows: list[dict[str, Any]] = dataset.dataset(table, partitioning="hive").to_table().to_pylist()
    return rows


def sums(rows: int) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for number in range(rows):
        count, ids = found.get(CARRIERS[number % len(CARRIERS)], (0, 0))
        found[CARRIERS[number % len(CARRIERS)]] = (count + 1, ids + number)
    return found


def sums_of(table: Path) -> dict[str, tuple[int, int]]:
    rows = sorted(rows_of(table), key=lambda row: int(row["batch_id"]))
    return {row["carrier"]: (row["flights"], row["ids"]) for row in rows}


def committed(brokers: str, topic: str) -> list[bytes]:
    """All values, as a reader of committed records has them. An end is told, since it is a marker and no record."""
    config = {"bootstrap.servers": brokers, "group.id": "counting", "isolation.level": "read_committed"}
    consumer = Consumer(config | {"enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: list[bytes] = []
    ended: set[int] = set()
    deadline = time.monotonic() + SECONDS_MAX
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline, f"{ended} of {topic} came to an end"
        message = consumer.poll(1)
        if message is None:
            continue
        error = message.error()
        if error is None:
            found.append(message.value())
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
    consumer.close()
    return found
