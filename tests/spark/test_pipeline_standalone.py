"""The same pipelines on a Spark standalone cluster: a master and two workers, processes of their own. An executor that
is killed costs nothing; and the driver may be started by spark-submit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyarrow import dataset

from barnabas.pipelines.spark_extra import pyspark_directory
from tests.spark.pipeline_process import PipelineProcess
from tests.support.spark_standalone import StandaloneCluster, standalone_cluster
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.night("seven Javas, 100 s of processor time and more; has found nothing since its first day"),
]

PARTITIONS = 2
# Five processes of Java on a machine that is busy with other tests.
CLUSTER_SECONDS_MAX = 600.0
ROWS = 2_400
CARRIERS = ("AA", "B6", "UA", "DL")


@pytest.fixture(scope="module")
def brokers(brokers: str) -> str:
    admin = AdminClient({"bootstrap.servers": brokers})
    topics = [NewTopic(name, PARTITIONS, 1) for name in ("flights", "coming", "copies", "sums")]
    for made in admin.create_topics(topics).values():
        made.result(30)
    fill(brokers, "flights", range(ROWS))
    return brokers


def fill(brokers: str, topic: str, numbers: Iterable[int]) -> None:
    producer = Producer({"bootstrap.servers": brokers})
    for number in numbers:
        value = json.dumps({"id": number, "carrier": CARRIERS[number % len(CARRIERS)]})
        producer.produce(topic, value, partition=number % PARTITIONS)
    assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with standalone_cluster(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster


def written(directory: Path, name: str, records: int, topic: str = "flights") -> Path:
    path = directory / f"{name}.yaml"
    path.write_text(
        f"""\
name: {name}
sources:
  flights: {{topic: {topic}, schema: "id INT, carrier STRING", max_records_per_batch: {records}}}
steps:
  - {{name: sums, sql: "SELECT carrier, COUNT(*) AS flights, SUM(id) AS ids FROM flights GROUP BY carrier"}}
sinks:
  - {{topic: copies, from: flights}}
  - {{parquet: copies, from: flights}}
  - {{parquet: sums, from: sums, key: carrier}}
spark: {{spark.sql.shuffle.partitions: 2}}
"""
    )
    return path


def test_an_executor_that_is_killed_costs_no_row_and_doubles_none(
    brokers: str, standalone: StandaloneCluster, tmp_path: Path
) -> None:
    """What comes behind its end is written by what is left, and by the one that takes its place."""
    path = written(tmp_path, "killed", 800, "coming")
    fill(brokers, "coming", range(ROWS // 2))
    place = (
        "--master",
        standalone.master,
        "--executor-memory",
        "512m",
        "--executor-cores",
        "1",
        "--cores",
        "2",
    )
    with PipelineProcess(path, brokers, *place, seconds_max=CLUSTER_SECONDS_MAX) as run:
        run.batches(1)
        wait_until(lambda: len(standalone.executors()) == 2, "two executors", CLUSTER_SECONDS_MAX)
        killed = standalone.kill_executor()
        fill(brokers, "coming", range(ROWS // 2, ROWS))
        wait_until(lambda: len(rows_of(tmp_path / "copies")) >= ROWS, "every row is written", CLUSTER_SECONDS_MAX)
        wait_until(lambda: sums_of(tmp_path / "sums") == sums(), "every sum is written", CLUSTER_SECONDS_MAX)
        run.terminate()
        summary = run.finish()[-1]
    assert summary["was_stopped"]
    assert killed not in standalone.executors()
    expected = Counter(range(ROWS))
    assert Counter(row["id"] for row in rows_of(tmp_path / "copies")) == expected
    # The end of the last transaction is acknowledged before its markers are written.
    wait_until(lambda: len(committed(brokers, "copies")) >= ROWS, "all rows are read", CLUSTER_SECONDS_MAX)
    assert Counter(json.loads(value)["id"] for value in committed(brokers, "copies")) == expected
    assert sums_of(tmp_path / "sums") == sums()


def test_spark_submit_runs_a_pipeline_as_it_is(brokers: str, standalone: StandaloneCluster, tmp_path: Path) -> None:
    """Without its jars it is told what to give."""
    path = written(tmp_path, "submitted", 500_000)
    path.write_text(path.read_text().replace("  - {topic: copies, from: flights}\n", ""))
    commands = [sys.executable, "-P", "-m", "barnabas.cli", "pipeline"]
    script = subprocess.run([*commands, "submit-script"], capture_output=True, text=True, check=True).stdout.strip()
    jars = subprocess.run([*commands, "jars", str(path)], capture_output=True, text=True, check=True).stdout.strip()
    submit = [str(pyspark_directory() / "bin" / "spark-submit"), "--master", standalone.master]
    options = ["--executor-memory", "512m", "--total-executor-cores", "2", "--conf", "spark.driver.host=127.0.0.1"]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))},
        "JAVA_HOME": str(standalone.java_home),
        "SPARK_HOME": str(pyspark_directory()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    program = [script, "run", str(path), "--once", "--json", "--bootstrap-server", brokers]
    alone = [submit[0], "--master", "local[1]"]
    bare = subprocess.run([*alone, *program], capture_output=True, text=True, env=environment, check=False)
    assert bare.returncode == 1
    # spark-submit has what its program says in its output.
    assert f'--jars "$(barnabas pipeline jars {path})"' in bare.stdout
    done = subprocess.run(
        [*submit, *options, "--jars", jars, *program], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-4_000:]
    assert sums_of(tmp_path / "sums") == sums()
    assert len(rows_of(tmp_path / "copies")) == ROWS


def rows_of(table: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = dataset.dataset(table, partitioning="hive").to_table().to_pylist()
    return rows


def sums() -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for number in range(ROWS):
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
    deadline = time.monotonic() + CLUSTER_SECONDS_MAX
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
