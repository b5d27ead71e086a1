"""Pipelines write topics exactly once, while Spark and brokers are killed with -9: counted by a reader of committed
records.

What is computed differs each time (`rand()`), so that a batch that were computed again in the middle would show.
BARNABAS_PIPELINE_FAILURE_SECONDS says for how long everything is killed at random; `.ci/nightly` does ten minutes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.spark.conftest import BROKERS, new_cluster
from tests.spark.pipeline_process import PipelineProcess, java_processes
from tests.support.supervised_cluster import RunningCluster
from tests.support.waiting import wait_until

SECONDS: Final = float(os.environ.get("BARNABAS_PIPELINE_FAILURE_SECONDS", "0"))
SEED: Final = int(os.environ.get("BARNABAS_FAILURE_SEED", "0")) or random.randrange(1, 1_000_000)
PARTITIONS: Final = 3
SPARK_SECONDS: Final = 240.0
pytestmark = pytest.mark.timeout(SECONDS + 600)


def pipeline_file(directory: Path, batch_rows: int) -> Path:
    path = directory / "numbers.yaml"
    path.write_text(f"""
name: numbers
sources:
  numbers: {{topic: numbers, schema: "number INT", max_records_per_batch: {batch_rows}}}
steps:
  - name: lucky
    sql: SELECT number, rand() AS luck FROM numbers
sinks:
  - {{topic: lucky, from: lucky, key: [number]}}
  - {{topic: unlucky, from: lucky}}
state: state
""")
    return path


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with new_cluster(tmp_path / "brokers") as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap_servers})
        config = {"min.insync.replicas": "2"}
        made = [NewTopic(name, PARTITIONS, 3, config=config) for name in ("numbers", "lucky", "unlucky")]
        for done in admin.create_topics(made).values():
            done.result()
        yield running


class Numbers:
    """Writes numbers into the first topic, each once, whatever becomes of brokers."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.count = 0
        self._failures: list[KafkaError] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "message.timeout.ms": 300_000,
                "log_level": 2,  # brokers that are gone are what this is about
            }
        )
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def add(self, count: int) -> None:
        for _ in range(count):
            value = json.dumps({"number": self.count})
            self._producer.produce(
                "numbers", value, partition=self.count % PARTITIONS, on_delivery=lambda error, _: self._told(error)
            )
            self.count += 1
            self._producer.poll(0)

    def keep_adding(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()
        assert self._producer.flush(120) == 0
        assert not self._failures

    def _write(self) -> None:
        while not self._ending.wait(0.5):
            self.add(20)

    def _told(self, error: KafkaError | None) -> None:
        if error is not None:
            self._failures.append(error)


def committed(bootstrap_servers: str, topic: str) -> list[dict[str, float]]:
    """The rows that a reader of committed records is given, to the end of the topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "unused",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    rows: list[dict[str, float]] = []
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        ends: set[int | None] = set()
        while len(ends) < PARTITIONS:
            message = consumer.poll(60)
            assert message is not None, f"a transaction is open in {topic}"
            if message.error() is None:
                rows.append(json.loads(message.value() or b""))
            elif message.error().code() == KafkaError._PARTITION_EOF:  # public in their documentation
                ends.add(message.partition())
    finally:
        consumer.close()
    return rows


def check(cluster: RunningCluster, count: int) -> None:
    """Every number is in both topics once, with the same luck: a batch is in both, or in none."""
    servers = cluster.bootstrap_servers
    # The end of the last transaction is acknowledged before its markers are written.
    for topic in ("lucky", "unlucky"):
        wait_until(lambda: len(committed(servers, topic)) >= count, f"{topic} is read", SPARK_SECONDS)  # noqa: B023
    lucky, unlucky = (committed(servers, topic) for topic in ("lucky", "unlucky"))
    assert Counter(row["number"] for row in lucky) == Counter(range(count)), f"seed {SEED}"
    assert Counter(row["number"] for row in unlucky) == Counter(range(count)), f"seed {SEED}"


# The command, whose process is killed when the records of its second batch are in both topics, and the transaction is
# open.
KILLED_IN_ITS_TRANSACTION = """
import os, signal
from barnabas.cli.entry import run
from barnabas.pipelines.outbox_sender import QuerySender

send_part = QuerySender._send_part


async def send_and_end(sender, producer, part):
    await send_part(sender, producer, part)
    if (part.directory.parent.name, part.topic) == ("batch-1", "unlucky"):
        await producer.flush()
        os.kill(os.getpid(), signal.SIGKILL)


QuerySender._send_part = send_and_end
run()
"""


def is_staged(state: Path) -> bool:
    return any((state / "outbox").glob("lucky/batch-*/manifest.json"))


def test_each_row_is_there_once_although_spark_and_a_broker_are_killed_in_the_middle_of_a_batch(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    numbers = Numbers(cluster.bootstrap_servers)
    numbers.add(9_000)
    numbers.finish()
    path = pipeline_file(tmp_path, batch_rows=3_000)
    with PipelineProcess(path, cluster.bootstrap_servers, program=("-c", KILLED_IN_ITS_TRANSACTION)) as run:
        assert run.wait() == -signal.SIGKILL, run.errors()
        cluster.kill_broker(2)
    assert is_staged(tmp_path / "state")
    wait_until(lambda: java_processes(tmp_path) == [], "Java is gone with the process that started it")
    cluster.start_broker(2)
    with PipelineProcess(path, cluster.bootstrap_servers, "--once") as run:
        *batches, summary = run.finish()
    assert batches[0]["batch_id"] == 1
    assert summary["lag"] == {"numbers": 0}
    check(cluster, numbers.count)
    assert [entry.name for entry in (tmp_path / "state" / "outbox" / "lucky").iterdir()] == ["sent.json"]


@pytest.mark.skipif(not SECONDS, reason="BARNABAS_PIPELINE_FAILURE_SECONDS says for how long")
def test_each_row_is_there_once_although_everybody_is_killed_at_random(cluster: RunningCluster, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    numbers = Numbers(cluster.bootstrap_servers)
    numbers.add(1_000)
    numbers.keep_adding()
    path = pipeline_file(tmp_path, batch_rows=2_000)
    deadline = time.monotonic() + SECONDS
    kills: Counter[str] = Counter()
    while time.monotonic() < deadline:
        with PipelineProcess(path, cluster.bootstrap_servers) as run:
            run.batches(1)  # it is up, and goes on from where the last one was killed
            ends_at = time.monotonic() + chance.uniform(2, 30)
            while time.monotonic() < ends_at:
                victim = chance.randrange(1, BROKERS + 1)
                cluster.kill_broker(victim)
                kills["broker"] += 1
                time.sleep(chance.uniform(0, 3))
                cluster.start_broker(victim)
                time.sleep(chance.uniform(0, 3))
            if chance.random() < 0.5:
                wait_until(lambda: is_staged(tmp_path / "state"), "a batch is staged", SPARK_SECONDS)
                kills["staged"] += 1
            run.kill()
            kills["spark"] += 1
        wait_until(lambda: java_processes(tmp_path) == [], "Java is gone with the process that started it")
    numbers.finish()
    with PipelineProcess(path, cluster.bootstrap_servers, "--once") as run:
        summary = run.finish()[-1]
    assert summary["lag"] == {"numbers": 0}
    check(cluster, numbers.count)
    assert kills["spark"]
    assert kills["broker"] > kills["spark"]
