"""What Spark does with a cluster while it is measured: the main job's pipeline, a plain read, and a plain write."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from barnabas.pipelines.definition import ParquetSink, Pipeline
from barnabas.pipelines.progress import Progress, RunSummary
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.run_options import RunOptions
from barnabas.pipelines.runner import run_pipeline_in
from barnabas.pipelines.sources import KafkaOptions
from benchmarks.brokers.servers import Cluster
from demo import traffic
from demo.source import FLIGHTS, SOURCE_TOPICS, SourceRecord, load_tables, records_of
from tests.support import wire_calls
from tests.support.waiting import wait_until

DEFINITION = Path(__file__).resolve().parents[2] / "demo" / "delays.yaml"
RESULT_TOPIC = "delays"
READ_TOPIC = "read"
PARTITIONS = 6
REPLICAS = 3
VALUE_BYTES = 1_000
MEGABYTE = 1_000_000
TOPIC_SECONDS_MAX = 60.0
FLUSH_SECONDS_MAX = 120.0


class WrongResultError(RuntimeError):
    """Spark did not read, or write, what there was: a figure would mean nothing."""


class Work:
    """The work of one Spark session on any cluster; each call returns when all is done, and checks it."""

    def __init__(self, spark: Any, directory: Path, *, read_megabytes: int, write_megabytes: int) -> None:
        self._spark = spark
        self._directory = directory
        self._read_records = read_megabytes * MEGABYTE // VALUE_BYTES
        self._write_records = write_megabytes * MEGABYTE // VALUE_BYTES
        self._definition = read_pipeline(DEFINITION)
        self._turns = 0

    def fill(self, cluster: Cluster) -> None:
        """Makes the topics of the pipeline and of the read, and fills them."""
        addresses = bootstrap_servers(cluster)
        for topic in SOURCE_TOPICS:
            self._create(cluster, topic.name, topic.partitions)
        self._create(cluster, RESULT_TOPIC, PARTITIONS)
        self._create(cluster, READ_TOPIC, PARTITIONS)
        tables = load_tables()
        for topic in SOURCE_TOPICS:
            records: Iterator[SourceRecord] = records_of(topic, tables[topic.name])
            traffic.produce(addresses, records, lambda _count: None, threading.Event())
        producer = Producer({"bootstrap.servers": addresses, "acks": "all", "linger.ms": 20, "log_level": 2})
        for number in range(self._read_records):
            while True:
                try:
                    producer.produce(READ_TOPIC, value_of(number), partition=number % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
        if producer.flush(FLUSH_SECONDS_MAX):
            raise WrongResultError(f"topic {READ_TOPIC} was not filled within {FLUSH_SECONDS_MAX:.0f} s")

    def pipeline(self, cluster: Cluster) -> float:
        """Runs the main job's pipeline once over all flights; flights a second, without the start of Spark."""
        self._turns += 1
        pipeline = self._pipeline_in(self._directory / f"run-{self._turns}")
        options = RunOptions(bootstrap_servers(cluster), once=True)
        began = time.monotonic()
        summary = run_pipeline_in(self._spark.newSession(), pipeline, options, Warnings())
        seconds = time.monotonic() - began
        self._spark.catalog.clearCache()
        if (summary.rows_in, summary.rows_dropped_by_watermark) != (FLIGHTS.row_count, 0):
            raise WrongResultError(f"the pipeline did not take every flight: {summary}")
        return FLIGHTS.row_count / seconds

    def read(self, cluster: Cluster) -> float:
        """Reads the values of a topic as a batch; MB a second."""
        options = {**KafkaOptions(bootstrap_servers(cluster)).reading, "subscribe": READ_TOPIC}
        began = time.monotonic()
        frame = self._spark.read.format("kafka").options(**options).load()
        ((count, size_bytes),) = frame.selectExpr("count(*)", "sum(length(value))").collect()
        seconds = time.monotonic() - began
        if (count, size_bytes) != (self._read_records, self._read_records * VALUE_BYTES):
            raise WrongResultError(f"{count:,} records with {size_bytes:,} bytes were read")
        return float(size_bytes / MEGABYTE / seconds)

    def write(self, cluster: Cluster) -> float:
        """Writes a batch to a new topic; MB a second."""
        self._turns += 1
        topic = f"write-{self._turns}"
        self._create(cluster, topic, PARTITIONS)
        rows = self._spark.range(self._write_records).selectExpr(
            "string(id) AS key", f"rpad(string(id), {VALUE_BYTES}, 'x') AS value"
        )
        began = time.monotonic()
        rows.write.format("kafka").options(
            **KafkaOptions(bootstrap_servers(cluster)).connection, topic=topic, **{"kafka.acks": "all"}
        ).save()
        seconds = time.monotonic() - began
        count = sum(traffic.end_offsets(bootstrap_servers(cluster), topic).values())
        if count != self._write_records:
            raise WrongResultError(f"{count:,} records were written instead of {self._write_records:,}")
        wire_calls.delete_topic(cluster.brokers[0].port, topic)
        return self._write_records * VALUE_BYTES / MEGABYTE / seconds

    def _pipeline_in(self, directory: Path) -> Pipeline:
        """The main job's, with its state and its table in a directory of its own."""
        sinks = tuple(
            dataclasses.replace(sink, directory=directory / "table") if isinstance(sink, ParquetSink) else sink
            for sink in self._definition.sinks
        )
        return dataclasses.replace(self._definition, sinks=sinks, state_directory=directory / "state")

    def _create(self, cluster: Cluster, topic: str, partitions: int) -> None:
        configs = {"min.insync.replicas": "2", "file.delete.delay.ms": "0"}
        wire_calls.create_topic(cluster.brokers[0].port, topic, partitions, REPLICAS, **configs)
        for broker in cluster.brokers:
            wait_until(
                lambda: len(wire_calls.leaders(broker.port, topic)) == partitions,  # noqa: B023 - called in this turn
                f"{broker.process.name} knows {topic}",
                TOPIC_SECONDS_MAX,
            )


class Warnings:
    """Lets through of a run what nobody expects."""

    def said(self, line: str) -> None:
        if line.startswith("warning"):
            print(line, file=sys.stderr, flush=True)

    def batch(self, progress: Progress) -> None:
        """Nothing to say."""

    def ended(self, summary: RunSummary) -> None:
        """Nothing to say."""


def bootstrap_servers(cluster: Cluster) -> str:
    return ",".join(f"127.0.0.1:{broker.port}" for broker in cluster.brokers)


def value_of(number: int) -> bytes:
    return b"%d" % number + b"x" * (VALUE_BYTES - len(str(number)))
