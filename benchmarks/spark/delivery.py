"""Topics written exactly once beside topics written at least once, by the same pipeline in one Spark session.

    python -m benchmarks.spark.delivery [--rounds N] [--records N] [--batches N] [--seconds N] [--senders N ...]

Every row that is read is written, the most that a sink has to do. Three of our brokers, three replicas. In each
round all take turns, after one that only warms up; figures are medians, and a ratio is the median of the rounds'. With
`--senders 1 2 4` a batch is also sent by two and four senders side by side; "sending" is what that takes of a run, when
the batch is staged and Spark waits.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from barnabas.pipelines.definition import Delivery, Pipeline, TopicSink
from barnabas.pipelines.outbox import Outbox
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.run_options import RunOptions
from barnabas.pipelines.runner import run_pipeline_in
from barnabas.pipelines.staged_batches import StagedBatch
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
    parser.add_argument("--senders", type=int, nargs="+", default=[1])
    options = parser.parse_args(arguments)
    ways = [Way(Delivery.EXACTLY_ONCE, count) for count in options.senders] + [Way(Delivery.AT_LEAST_ONCE)]
    found: dict[Way, list[Figures]] = {way: [] for way in ways}
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
                for way in ways if number % 2 else ways[::-1]:
                    place = directory / f"{number}-{way.name}"
                    figures = run(spark, running, place, way, options.records, options.batches)
                    print(f"round {number}: {way.name} {figures}", file=sys.stderr, flush=True)
                    if number:
                        found[way].append(figures)
    report(found)
    return 0


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """How the topic is written."""

    delivery: Delivery
    senders: int = 1

    @property
    def name(self) -> str:
        return f"{self.delivery.value}-{self.senders}"


@dataclasses.dataclass(frozen=True, slots=True)
class Figures:
    """Of one run: rows a second, and the seconds in which staged batches were sent."""

    rate: float
    sending: float

    def __str__(self) -> str:
        return f"{self.rate:,.0f} rows/s, sending {self.sending:.2f} s"


def report(found: Mapping[Way, Sequence[Figures]]) -> None:
    (plain,) = (figures for way, figures in found.items() if way.delivery is Delivery.AT_LEAST_ONCE)
    print("| how | rows/s | sending | beside at least once | goal |\n|---|---|---|---|---|")
    for way, figures in found.items():
        rate = statistics.median(each.rate for each in figures)
        sending = statistics.median(each.sending for each in figures)
        ratio = statistics.median(one.rate / other.rate for one, other in zip(figures, plain, strict=True))
        if way.delivery is Delivery.AT_LEAST_ONCE:
            print(f"| at least once | {rate:,.0f} | | | |")
            continue
        goal = ("at least 0.85: " + ("met" if ratio >= 0.85 else "NOT met")) if way.senders == 1 else ""
        senders = "one sender" if way.senders == 1 else f"{way.senders} senders"
        print(f"| exactly once, {senders} | {rate:,.0f} | {sending:.2f} s | {ratio:.2f} | {goal} |")


def rows(count: int) -> Iterator[SourceRecord]:
    for number in range(count):
        value = {"number": number, "carrier": f"c{number % 17}", "origin": "LGA", "text": "x" * (number % 80)}
        yield SourceRecord("rows", b"%d" % number, json.dumps(value).encode())


def run(spark: Any, running: Cluster, directory: Path, way: Way, records: int, batches: int) -> Figures:
    """Copies all rows into a new topic."""
    topic = f"copy-{directory.name}"
    create(running, topic)
    directory.mkdir()
    pipeline = read(directory, topic, way, records // batches)
    sending: list[float] = []
    with timed(sending):
        began = time.monotonic()
        summary = run_pipeline_in(
            spark.newSession(), pipeline, RunOptions(bootstrap_servers(running), once=True), Warnings()
        )
        seconds = time.monotonic() - began
    if summary.rows_in != records:
        raise WrongResultError(f"{summary.rows_in:,} of {records:,} rows were read")
    wire_calls.delete_topic(running.brokers[0].port, topic)
    return Figures(records / seconds, sum(sending))


@contextlib.contextmanager
def timed(found: list[float]) -> Iterator[None]:
    """Notes how long each staged batch takes to be sent."""
    deliver = Outbox.deliver

    def delivered(outbox: Outbox, batch: StagedBatch) -> None:
        began = time.monotonic()
        deliver(outbox, batch)
        found.append(time.monotonic() - began)

    Outbox.deliver = delivered  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Outbox.deliver = deliver  # type: ignore[method-assign]


def read(directory: Path, topic: str, way: Way, batch_rows: int) -> Pipeline:
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
    return dataclasses.replace(pipeline, sinks=(dataclasses.replace(sink, delivery=way.delivery, senders=way.senders),))


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
