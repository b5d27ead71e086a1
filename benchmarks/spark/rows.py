"""Rows of flights that Spark makes and writes into a topic, as many as are wanted; and what its process has cost."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from barnabas.pipelines.sources import KafkaOptions
from benchmarks.brokers.servers import BARNABAS, Cluster, cpu_seconds
from benchmarks.spark.work import TOPIC_SECONDS_MAX, WrongResultError, bootstrap_servers
from demo import traffic
from tests.support import wire_calls
from tests.support.waiting import wait_until

PARTITIONS = 6
ROWS_PER_DAY = 1_000_000
CHUNK_ROWS = 250_000
"""So many are written side by side: rows are so far out of order at most."""
CARRIERS = 17


@contextlib.contextmanager
def one_broker(directory: Path) -> Iterator[Cluster]:
    """A broker of ours that takes transactions, killed at the end."""
    alone = {"transaction.state.log.replication.factor": 1, "transaction.state.log.min.isr": 1}
    made = Cluster(BARNABAS, directory, 1, properties=alone)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def create(running: Cluster, topic: str) -> None:
    """Makes a topic, with a replica on each broker, and waits until all know it."""
    replicas = len(running.brokers)
    wire_calls.create_topic(running.brokers[0].port, topic, PARTITIONS, replicas, **{"file.delete.delay.ms": "0"})
    for broker in running.brokers:
        wait_until(
            lambda: len(wire_calls.leaders(broker.port, topic)) == PARTITIONS,  # noqa: B023 - called in this turn
            f"{broker.process.name} knows {topic}",
            TOPIC_SECONDS_MAX,
        )


def chunks(first: int, beyond: int) -> Iterator[tuple[int, int]]:
    """The numbers from `first` on, up to and not with `beyond`, in stretches."""
    for start in range(first, beyond, CHUNK_ROWS):
        yield start, min(start + CHUNK_ROWS, beyond)


def fill(spark: Any, running: Cluster, topic: str, first: int, beyond: int) -> None:
    """Writes the rows of these numbers, in order but for what a chunk has; sees that the topic has `beyond` then."""
    options = {**KafkaOptions(bootstrap_servers(running)).writing, "topic": topic, "kafka.compression.type": "lz4"}
    for start, end in chunks(first, beyond):
        rows = spark.range(start, end).selectExpr(
            "id AS number",
            f"concat('c', id % {CARRIERS}) AS carrier",
            "elt(int(id % 3) + 1, 'EWR', 'JFK', 'LGA') AS origin",
            "id * 7919 % 300 - 60 AS dep_delay",
            f"date_format(timestamp_micros(id * {86_400_000_000 // ROWS_PER_DAY} + 1356998400000000), "
            "\"yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'\") AS time_hour",
            "substr('a remark of some words on this flight, as they are', 1, int(id % 50)) AS remark",
        )
        rows.selectExpr("string(number) AS key", "to_json(struct(*)) AS value").write.format("kafka").options(
            **options
        ).save()
    count = sum(traffic.end_offsets(bootstrap_servers(running), topic).values())
    if count != beyond:
        raise WrongResultError(f"{topic} has {count:,} records instead of {beyond:,}")


class Costs:
    """Wall and processor time, of this process and Spark's, since it was made."""

    def __init__(self, spark: Any) -> None:
        self._java = int(spark._jvm.java.lang.ProcessHandle.current().pid())
        self._began, self._cpu = time.monotonic(), self._cpu_now()

    def wall(self) -> float:
        return time.monotonic() - self._began

    def cpu(self) -> float:
        return self._cpu_now() - self._cpu

    def _cpu_now(self) -> float:
        return cpu_seconds(self._java) + time.process_time()
