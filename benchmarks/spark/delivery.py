"""Topics written exactly once beside topics written at least once, by the same pipeline in one Spark session.

    python -m benchmarks.spark.delivery [--rounds N] [--records N] [--batches N] [--seconds N]

Every row that is read is written, the most that a sink has to do. Three of our brokers, three replicas. In each
round the two take turns, after one that only warms up; figures are medians, and the ratio is the median of the rounds'.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from barnabas.pipelines.definition import Delivery, Pipeline, TopicSink
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.runner import RunOptions, run_pipeline_in
from benchmarks.brokers.servers import BARNABAS, Cluster, cluster
from benchmarks.spark.work import REPLICAS, Warnings, WrongResultError, bootstrap_servers
from demo import traffic
from demo.source import SourceRecord
from tests.support import wire_calls
from tests.support.spark import spark_session
from tests.support.waiting import wait_until

PARTITIONS = 6
TOPIC_SECONDS_MAX = 60.0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark.delivery", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=600_000)
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--seconds", type=int, default=300, help="no round begins later, but the first")
    options = parser.parse_args(arguments)
    rates: dict[Delivery, list[float]] = {delivery: [] for delivery in Delivery}
    until = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory(prefix="delivery-") as name:
        directory = Path(name)
        with (
            cluster(BARNABAS, directory / "brokers", REPLICAS) as running,
            spark_session(directory / "spark", "benchmark") as spark,
        ):
            create(running, "rows")
            addresses = bootstrap_servers(running)
            traffic.produce(addresses, rows(options.records), lambda _count: None, threading.Event())
            for number in range(options.rounds + 1):
                if number > 1 and time.monotonic() > until:
                    print(f"the time is over after {number - 1} rounds", file=sys.stderr, flush=True)
                    break
                for delivery in list(Delivery) if number % 2 else list(Delivery)[::-1]:
                    place = directory / f"{number}-{delivery.value}"
                    rate = run(spark, running, place, delivery, options.records, options.batches)
                    print(f"round {number}: {delivery.value} {rate:,.0f} rows/s", file=sys.stderr, flush=True)
                    if number:
                        rates[delivery].append(rate)
    exact, plain = rates[Delivery.EXACTLY_ONCE], rates[Delivery.AT_LEAST_ONCE]
    ratio = statistics.median(one / other for one, other in zip(exact, plain, strict=True))
    print("| exactly once | at least once | ratio | goal |\n|---|---|---|---|")
    is_met = "met" if ratio >= 0.85 else "NOT met"
    told = [f"{statistics.median(each):,.0f} rows/s" for each in (exact, plain)]
    print(f"| {told[0]} | {told[1]} | {ratio:.2f} | at least 0.85: {is_met} |")
    return 0


def rows(count: int) -> Iterator[SourceRecord]:
    for number in range(count):
        value = {"number": number, "carrier": f"c{number % 17}", "origin": "LGA", "text": "x" * (number % 80)}
        yield SourceRecord("rows", b"%d" % number, json.dumps(value).encode())


def run(spark: Any, running: Cluster, directory: Path, delivery: Delivery, records: int, batches: int) -> float:
    """Copies all rows into a new topic; rows a second."""
    topic = f"copy-{directory.name}"
    create(running, topic)
    directory.mkdir()
    pipeline = read(directory, topic, delivery, records // batches)
    began = time.monotonic()
    summary = run_pipeline_in(
        spark.newSession(), pipeline, RunOptions(bootstrap_servers(running), once=True), Warnings()
    )
    seconds = time.monotonic() - began
    if summary.rows_in != records:
        raise WrongResultError(f"{summary.rows_in:,} of {records:,} rows were read")
    wire_calls.delete_topic(running.brokers[0].port, topic)
    return records / seconds


def read(directory: Path, topic: str, delivery: Delivery, batch_rows: int) -> Pipeline:
    path = directory / "copy.yaml"
    path.write_text(f"""
name: copy
sources:
  rows:
    topic: rows
    schema: "number INT, carrier STRING, origin STRING, text STRING"
    max_records_per_batch: {batch_rows}
sinks:
  - {{topic: {topic}, from: rows, key: [number]}}
""")
    pipeline = read_pipeline(path)
    (sink,) = pipeline.sinks
    if not isinstance(sink, TopicSink):
        raise TypeError("the sink is a topic")
    return dataclasses.replace(pipeline, sinks=(dataclasses.replace(sink, delivery=delivery),))


def create(running: Cluster, topic: str) -> None:
    configs = {"min.insync.replicas": "2", "file.delete.delay.ms": "0"}
    wire_calls.create_topic(running.brokers[0].port, topic, PARTITIONS, REPLICAS, **configs)
    for broker in running.brokers:
        wait_until(
            lambda: len(wire_calls.leaders(broker.port, topic)) == PARTITIONS,  # noqa: B023 - called in this turn
            f"{broker.process.name} knows {topic}",
            TOPIC_SECONDS_MAX,
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
