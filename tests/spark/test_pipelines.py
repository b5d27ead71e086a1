"""Pipelines on three real brokers and real Spark: whole runs, killed runs, runs that lose a broker, runs that fail."""

from __future__ import annotations

import datetime as dt
import json
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from pyarrow import dataset

from barnabas.pipelines.class_archive import VARIABLE, ArchiveUse
from barnabas.pipelines.cluster_identity import read_identity
from barnabas.pipelines.connector import resolve_connector
from barnabas.pipelines.java import find_java
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.sinks import held_tables
from barnabas.pipelines.state_directory import StateDirectory
from tests.spark.conftest import new_cluster
from tests.spark.pipeline_process import HELD_AT_START, PipelineProcess, held_in_batch, java_processes
from tests.support.supervised_cluster import RunningCluster
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(900)

PARTITIONS = 3
ROWS = 3_600
LATE_ROWS = 3
BATCH_ROWS = 1_200
CARRIERS = {"AA": "American", "B6": "JetBlue", "UA": "United"}
BEGIN = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
# On a machine that is busy with other tests; much of it is the end of Java.
ENDS_WITHIN_SECONDS = 90.0
GroupKey = tuple[str, str]


def pipeline_text(
    name: str, *, topic: str = "flights", trigger: str = "", batch_rows: int = BATCH_ROWS, on_error: str = "topic"
) -> str:
    """Flights by airline and day; `name` is also that of its topic, table and state."""
    return f"""
name: {name}
sources:
  flights:
    topic: {topic}
    schema: "carrier STRING, time TIMESTAMP, delay INT"
    max_records_per_batch: {batch_rows}
    on_error: {on_error}
  airlines:
    topic: airlines
    read: table
    schema: "carrier STRING, name STRING"
steps:
  - name: timed
    sql: |
      SELECT a.name AS airline, f.time, f.delay
      FROM flights f JOIN airlines a ON a.carrier = f.carrier
    watermark: {{column: time, delay: 1 hour}}
  - name: by_day
    sql: |
      SELECT airline, CAST(window(time, '1 day').start AS DATE) AS day, COUNT(*) AS flights, SUM(delay) AS delay
      FROM timed
      GROUP BY airline, window(time, '1 day')
sinks:
  - topic: {name}
    from: by_day
    key: [airline, day]
  - parquet: tables/{name}
    from: by_day
    key: [airline, day]
state: states/{name}
{trigger}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with new_cluster(tmp_path_factory.mktemp("brokers")) as running:
        load(running.bootstrap_servers)
        yield running


@pytest.fixture(scope="module")
def expected() -> dict[GroupKey, tuple[int, int]]:
    """Flights and delay of each airline and day, counted without Spark and without the rows that come too late."""
    result: dict[GroupKey, tuple[int, int]] = {}
    for row in flights():
        key = (CARRIERS[row["carrier"]], row["time"][:10])
        count, delay = result.get(key, (0, 0))
        result[key] = (count + 1, delay + row["delay"])
    return result


def flights() -> Iterator[dict[str, Any]]:
    """In the order of their time, a tenth of an hour apart, so that only what is meant to be late is."""
    carriers = list(CARRIERS)
    for number in range(ROWS):
        time = BEGIN + dt.timedelta(minutes=6 * number)
        yield {"carrier": carriers[number % 3], "time": time.isoformat(), "delay": number % 50 - 10}


def load(bootstrap_servers: str) -> None:
    """Topics of flights (a partition for each carrier, late rows at the ends) and of airlines."""
    create(bootstrap_servers, "flights", "airlines", "whole", "killed", "stopped")
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for carrier, name in CARRIERS.items():
        producer.produce("airlines", json.dumps({"carrier": carrier, "name": "to be replaced"}), carrier)
        producer.produce("airlines", json.dumps({"carrier": carrier, "name": name}), carrier)
    producer.produce("airlines", json.dumps({"carrier": "ZZ", "name": "Gone"}), "ZZ")
    producer.produce("airlines", None, "ZZ")
    carriers = list(CARRIERS)
    late = [{"carrier": carrier, "time": BEGIN.isoformat(), "delay": 1_000} for carrier in carriers]
    for row in [*flights(), *late]:
        place = carriers.index(row["carrier"])
        producer.produce("flights", json.dumps(row), row["carrier"], partition=place)
        producer.poll(0)
    assert producer.flush(60) == 0


def create(bootstrap_servers: str, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for done in admin.create_topics([NewTopic(topic, PARTITIONS, 3) for topic in topics]).values():
        done.result()


def is_created(bootstrap_servers: str, topic: str) -> bool:
    """Whether it could be created now; not while one of that name is being deleted."""
    try:
        create(bootstrap_servers, topic)
    except KafkaException as error:
        if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
            raise
        return False
    return True


def write(directory: Path, name: str, **settings: Any) -> Path:
    path = directory / f"{name}.yaml"
    path.write_text(pipeline_text(name, **settings))
    return path


def newest_in_parquet(table: Path) -> dict[GroupKey, tuple[int, int]]:
    """The table as a reader has it: of each key the row of the highest batch."""
    rows = dataset.dataset(table, partitioning="hive").to_table().to_pylist()
    result = {}
    for row in sorted(rows, key=lambda row: int(row["batch_id"])):
        result[row["airline"], row["day"].isoformat()] = (row["flights"], row["delay"])
    return result


def newest_in_topic(bootstrap_servers: str, topic: str) -> dict[GroupKey, tuple[int, int]]:
    """The topic as a reader has it: of each key the last record."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "unused", "enable.partition.eof": True})
    result: dict[GroupKey, tuple[int, int]] = {}
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        ends = 0
        while ends < PARTITIONS:
            message = consumer.poll(30)
            assert message is not None
            if message.error() is not None:
                assert message.error().name() == "_PARTITION_EOF"
                ends += 1
                continue
            key, value = json.loads(message.key()), json.loads(message.value())
            assert {name: value[name] for name in key} == key
            result[key["airline"], key["day"]] = (value["flights"], value["delay"])
    finally:
        consumer.close()
    return result


def committed(bootstrap_servers: str, group: str) -> dict[int, int]:
    """The committed offset of each partition of flights."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    (answer,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return {place.partition: place.offset for place in answer.result().topic_partitions if place.topic == "flights"}


ALL_READ = dict.fromkeys(range(PARTITIONS), (ROWS + LATE_ROWS) // PARTITIONS)


def environment_without_java_and_network(directory: Path) -> Mapping[str, str]:
    """A minimal environment with a new home and cache; its PATH has Python, and neither Java nor anything of the
    system's. Nothing can be fetched: the proxy that is named refuses.
    """
    programs = directory / "programs"
    programs.mkdir()
    for program in ("sh", "bash", "chmod", "ls", "readlink", "stat", "uname", "id", "setsid"):
        found = shutil.which(program)
        if found is not None:
            (programs / program).symlink_to(found)
    (programs / "python").symlink_to(sys.executable)
    home, scratch = directory / "home", directory / "scratch"
    home.mkdir()
    scratch.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as refusing:
        proxy = f"127.0.0.1:{refusing.getsockname()[1]}"
    places = {"PATH": str(programs), "HOME": str(home), "TMPDIR": str(scratch), "HTTPS_PROXY": proxy}
    return {**places, VARIABLE: ArchiveUse.USE.value}


def copied_jars(directory: Path) -> Path:
    """A directory of the connector's four jars, for --jars."""
    jars = directory / "jars"
    jars.mkdir()
    for jar in resolve_connector(find_java(), None, lambda _line: None):
        shutil.copy(jar, jars)
    assert len(list(jars.iterdir())) == 4
    return jars


def test_a_run_over_what_is_there_with_the_packages_java_a_directory_of_jars_and_no_network(
    cluster: RunningCluster, tmp_path: Path, expected: dict[GroupKey, tuple[int, int]]
) -> None:
    path = write(tmp_path, "whole")
    environment = environment_without_java_and_network(tmp_path)
    jars = ("--jars", str(copied_jars(tmp_path)))
    with PipelineProcess(path, cluster.bootstrap_servers, "--once", *jars, environment=environment) as run:
        *batches, summary = run.finish()
        said = run.errors()
    assert [batch["batch_id"] for batch in batches] == list(range(len(batches)))
    assert sum(batch["rows_in"] for batch in batches) == ROWS + LATE_ROWS
    assert sum(batch["rows_dropped_by_watermark"] for batch in batches) == LATE_ROWS
    assert summary["event"] == "summary"
    assert summary["rows_in"] == ROWS + LATE_ROWS
    assert summary["rows_dropped_by_watermark"] == LATE_ROWS
    assert summary["rows_out"] == sum(batch["rows_out"] for batch in batches)
    assert summary["lag"] == {"flights": 0}
    assert summary["warnings"] == []
    assert batches[0]["lag"]["flights"] == ROWS + LATE_ROWS - batches[0]["rows_in"]
    assert newest_in_parquet(tmp_path / "tables" / "whole") == expected
    assert newest_in_topic(cluster.bootstrap_servers, "whole") == expected
    assert committed(cluster.bootstrap_servers, "barnabas-pipeline-whole") == ALL_READ
    # Nothing but what the run itself says comes to the terminal, and nothing stays behind.
    assert "on Java 21" in said
    assert "WARN" not in said
    assert "Exception" not in said
    assert list((tmp_path / "home").iterdir()) == []
    assert list((tmp_path / "scratch").iterdir()) == []
    assert java_processes(tmp_path) == []


def test_jars_that_spark_cannot_take_are_told_in_a_line(cluster: RunningCluster, tmp_path: Path) -> None:
    path, jars = write(tmp_path, "whole"), copied_jars(tmp_path)
    environment = environment_without_java_and_network(tmp_path)

    def refusal(*arguments: str) -> str:
        with PipelineProcess(path, cluster.bootstrap_servers, "--once", *arguments, environment=environment) as run:
            status = run.wait()
            *_, line = run.errors().splitlines()
            assert "Traceback" not in run.errors()
        assert line.startswith("barnabas pipeline run: ")
        return f"{status} {line}"

    (clients,) = jars.glob("kafka-clients-*")
    content = clients.read_bytes()
    clients.write_bytes(content[: len(content) // 2])
    assert re.match(rf"1 .*{clients.name} is damaged \(.+\); copy it again$", refusal("--jars", str(jars)))
    clients.rename(jars / "kafka-clients-2.8.1.jar")
    lacking = refusal("--jars", str(jars))
    assert re.match(r"4 .*lacks kafka-clients-3\.x\.jar \(it has kafka-clients-2\.8\.1\.jar\); ", lacking)
    (jars / "kafka-clients-2.8.1.jar").unlink()
    assert re.match(r"4 .*lacks kafka-clients-3\.x\.jar; ", refusal("--jars", str(jars)))
    assert re.match(r"1 .*could not be fetched .*refused.*--jars DIR$", refusal())
    assert not (tmp_path / "states" / "whole" / "checkpoints").exists()


def test_a_run_that_is_killed_and_one_that_loses_a_broker_make_the_same_table(
    cluster: RunningCluster, tmp_path: Path, expected: dict[GroupKey, tuple[int, int]]
) -> None:
    path = write(tmp_path, "killed", trigger="trigger: 100 milliseconds")
    with PipelineProcess(path, cluster.bootstrap_servers, program=held_in_batch(2)) as run:
        run.batches(2)
        run.kill()
    wait_until(lambda: java_processes(tmp_path) == [], "Java is gone with the process that started it")
    # What a kill leaves in the middle of writing a batch is no part of the table.
    torn = tmp_path / "tables" / "killed" / ".batch_id=7.being-written"
    torn.mkdir()
    (torn / "part-0.parquet").write_bytes(b"torn")
    before = newest_in_parquet(tmp_path / "tables" / "killed")
    assert before
    assert before != expected
    with PipelineProcess(path, cluster.bootstrap_servers, "--once") as run:
        first = run.batches(1)
        cluster.kill_broker(2)
        try:
            *batches, summary = first + run.finish()
            said = run.errors()
        finally:
            cluster.start_broker(2)
    assert "Connection refused" not in said
    assert not torn.exists()
    assert [batch["batch_id"] for batch in batches] == list(range(2, 2 + len(batches)))
    assert summary["lag"] == {"flights": 0}
    assert batches[-1]["totals"]["rows_dropped_by_watermark"] == LATE_ROWS
    assert newest_in_parquet(tmp_path / "tables" / "killed") == expected
    assert newest_in_topic(cluster.bootstrap_servers, "killed") == expected
    assert committed(cluster.bootstrap_servers, "barnabas-pipeline-killed") == ALL_READ


def test_a_continuous_run_takes_what_comes_and_ends_in_order(cluster: RunningCluster, tmp_path: Path) -> None:
    create(cluster.bootstrap_servers, "coming")
    path = write(tmp_path, "stopped", topic="coming")
    with PipelineProcess(path, cluster.bootstrap_servers) as run:
        lines = run.lines()
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        seen = 0
        for number in range(3):
            row = {"carrier": "AA", "time": (BEGIN + dt.timedelta(days=number)).isoformat(), "delay": 1}
            producer.produce("coming", json.dumps(row), "AA")
            assert producer.flush(30) == 0
            while seen <= number:
                seen += next(lines)["rows_in"]
        # A second run of the same pipeline would count twice: it is refused.
        with PipelineProcess(path, cluster.bootstrap_servers, "--once") as second:
            assert second.wait() == 1
            assert "is already running" in second.errors()
        run.terminate()
        rest = list(lines)
        assert run.wait() == 0, run.errors()
    assert rest[-1]["was_stopped"] is True
    assert rest[-1]["rows_in"] == 3
    assert java_processes(tmp_path) == []
    assert newest_in_parquet(tmp_path / "tables" / "stopped") == {
        ("American", f"2013-01-0{day}"): (1, 1) for day in (1, 2, 3)
    }


def ends(run: PipelineProcess, directory: Path, status: int) -> list[dict[str, Any]]:
    """What it still says; soon, without a traceback, and with its Java."""
    began = time.monotonic()
    said = list(run.lines())
    assert run.wait() == status, run.errors()
    assert time.monotonic() - began < ENDS_WITHIN_SECONDS, run.errors()
    assert "Traceback" not in run.errors()
    assert java_processes(directory) == []
    return said


def test_a_run_that_is_told_to_stop_while_spark_starts_ends_soon(cluster: RunningCluster, tmp_path: Path) -> None:
    create(cluster.bootstrap_servers, "told")
    path = write(tmp_path, "told")
    with PipelineProcess(path, cluster.bootstrap_servers, "--once", program=HELD_AT_START) as run:
        run.until_said("starting Spark")
        run.terminate()
        (summary,) = ends(run, tmp_path, 130)
        assert (summary["was_stopped"], summary["batches"]) == (True, 0)
        assert "ready after" not in run.errors()


@pytest.mark.night("two whole runs, 60 s of processor time; found nothing yet: kill -9 in a batch is tried by day")
def test_a_run_that_is_cut_short_in_the_middle_of_a_batch_ends_soon_and_the_next_one_does_it(
    cluster: RunningCluster, tmp_path: Path, expected: dict[GroupKey, tuple[int, int]]
) -> None:
    """By a second Ctrl-C."""
    create(cluster.bootstrap_servers, "cut")
    path = write(tmp_path, "cut", batch_rows=ROWS // 2)
    with PipelineProcess(path, cluster.bootstrap_servers, "--once", program=held_in_batch(1)) as run:
        run.batches(1)
        run.interrupt()
        run.until_said("stopping; Ctrl-C again")
        run.interrupt()
        ends(run, tmp_path, 130)
    assert newest_in_parquet(tmp_path / "tables" / "cut") != expected
    with PipelineProcess(path, cluster.bootstrap_servers, "--once") as run:
        *_, summary = run.finish()
    assert summary["lag"] == {"flights": 0}
    assert newest_in_parquet(tmp_path / "tables" / "cut") == expected
    assert newest_in_topic(cluster.bootstrap_servers, "cut") == expected


def test_a_topic_that_is_missing_is_told_before_spark_starts(cluster: RunningCluster, tmp_path: Path) -> None:
    path = write(tmp_path, "missing", topic="no-such-topic")
    with PipelineProcess(path, cluster.bootstrap_servers, "--once") as run:
        assert run.wait() == 4
        assert "no-such-topic" in run.errors()
        assert f"{path}:5" in run.errors()
    assert not (tmp_path / "states").exists()


def test_a_topic_that_was_made_again_is_refused_before_spark_starts(cluster: RunningCluster, tmp_path: Path) -> None:
    create(cluster.bootstrap_servers, "again")
    path = write(tmp_path, "whole", topic="again")
    pipeline = read_pipeline(path)
    state = StateDirectory(pipeline.state_directory)
    state.directory.mkdir(parents=True)
    state_id, _ = state.take_definition(pipeline, read_identity(pipeline, cluster.bootstrap_servers))
    with held_tables(pipeline, state, state_id):
        pass
    begun = state.checkpoint("by_day") / "offsets" / "0"
    begun.parent.mkdir(parents=True)
    begun.touch()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.delete_topics(["again"])["again"].result()
    wait_until(lambda: is_created(cluster.bootstrap_servers, "again"), "the topic is gone and made again")
    with PipelineProcess(path, cluster.bootstrap_servers, "--once") as run:
        assert run.wait() == 1
        assert f'{path}:5: the topic "again" was deleted and made again' in run.errors()
        assert "starting Spark" not in run.errors()


# The command, whose process is killed when the letters of its first batch are written, and the batch is not done.
KILLED_BEHIND_ITS_LETTERS = """
import os, signal
from barnabas.cli.entry import run
from barnabas.pipelines.dead_letters import LetterWriter

write = LetterWriter.write


def write_and_end(writer, batch_id):
    write(writer, batch_id)
    os.kill(os.getpid(), signal.SIGKILL)


LetterWriter.write = write_and_end
run()
"""


def letters_in(bootstrap_servers: str, topic: str) -> list[Message]:
    """All records of a topic of PARTITIONS partitions."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "unused", "enable.partition.eof": True})
    found = []
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        ends = 0
        while ends < PARTITIONS:
            message = consumer.poll(30)
            assert message is not None
            if message.error() is None:
                found.append(message)
            else:
                assert message.error().name() == "_PARTITION_EOF"
                ends += 1
    finally:
        consumer.close()
    return found


@pytest.mark.night("two whole runs, 50 s of processor time; found nothing yet: test_pipeline_letters is by day")
def test_a_letter_is_written_before_its_batch_is_done_and_not_again_with_it(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    servers = cluster.bootstrap_servers
    create(servers, "mixed", "letters")
    producer = Producer({"bootstrap.servers": servers})
    good = {"carrier": "AA", "time": BEGIN.isoformat(), "delay": 1}
    spoiled = [b"no JSON", b'{"carrier": "AA", "delay": "none"}', b"\xff\x00"]
    for number in range(2 * len(spoiled)):
        value = spoiled[number // 2] if number % 2 else json.dumps(good)
        producer.produce("mixed", value, b"AA", partition=1, headers=[("trace", b"\x01"), ("none", None)])
    assert producer.flush(30) == 0
    path = write(tmp_path, "letters", topic="mixed")

    def letters() -> list[int]:
        admin = AdminClient({"bootstrap.servers": servers})
        if "letters.dlq" not in admin.list_topics(timeout=60).topics:
            return []
        found = letters_in(servers, "letters.dlq")
        for letter in found:
            told = dict(letter.headers())
            offset = int(told["barnabas.error.offset"])
            assert (letter.key(), letter.value()) == (b"AA", spoiled[offset // 2])
            assert letter.headers()[:2] == [("trace", b"\x01"), ("none", None)]
            assert (told["barnabas.error.topic"], told["barnabas.error.partition"]) == (b"mixed", b"1")
            assert (told["barnabas.error.pipeline"], told["barnabas.error.batch"]) == (b"letters", b"by_day/0")
        return sorted(int(dict(letter.headers())["barnabas.error.offset"]) for letter in found)

    with PipelineProcess(path, servers, "--once", program=("-c", KILLED_BEHIND_ITS_LETTERS)) as run:
        assert run.wait() == -signal.SIGKILL, run.errors()
    assert letters() == [1, 3, 5]
    batches = StateDirectory(tmp_path / "states" / "letters").batches_done("by_day")
    assert (batches.begun, batches.finished) == (0, -1)
    assert committed(servers, "barnabas-pipeline-letters") == {}
    with PipelineProcess(path, servers, "--once") as run:
        batch, *_, summary = run.finish()
        assert (
            "records that do not fit their schema: they are left out, and sent to the topic letters.dlq" in run.errors()
        )
    assert (batch["batch_id"], batch["records_refused"], batch["rows_out"]) == (0, 3, 1)
    assert summary["records_refused"] == batch["totals"]["records_refused"] == 3
    # Those of the batch that was killed were looked for.
    assert letters() == [1, 3, 5]
    assert newest_in_parquet(tmp_path / "tables" / "letters") == {("American", "2013-01-01"): (3, 3)}
    admin = AdminClient({"bootstrap.servers": servers})
    described = admin.list_topics(timeout=60).topics["letters.dlq"]
    assert [len(partition.replicas) for partition in described.partitions.values()] == [3] * PARTITIONS
