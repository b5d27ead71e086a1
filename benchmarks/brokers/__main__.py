"""Our brokers beside Apache Kafka 3.9.1, in one run: start, memory, produce, fetch, replication, many partitions.

    python -m benchmarks.brokers [--rounds N] [--only WORD ...] [--json FILE]
    python -m benchmarks.brokers --secure [--rounds N] [--turns N] ...

Both are set up alike; Apache Kafka runs with the flags of its own start scripts and a ZooKeeper, ours with the embedded
coordinator, its modules compiled first as pip does for users. In each round the two take turns, after one round that
only warms up; figures are medians over rounds, the ratio is the median of the rounds' ratios, and the middle half says
between which two the middle half of them lies. The goal says what the ratio of ours to Kafka's is to be. The table that
is printed is the one of docs/performance.md. What `--secure` measures is said in `benchmarks/brokers/secure.py`.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import barnabas
from benchmarks.brokers.load import Load, LoadGenerator
from benchmarks.brokers.servers import BARNABAS, KAFKA, KINDS, Cluster, cluster
from benchmarks.ratios import Row, table
from tests.support import wire_calls
from tests.support.processes import resident_memory_bytes
from tests.support.waiting import wait_until

ROUNDS = 5
BATCH_RECORDS = 1_000
BATCH_VALUE_BYTES = 1_000
FETCH_BATCHES = 300
SMALL_VALUE_BYTES = (100,)
VARIED_VALUE_BYTES = range(60, 141)
MANY_PARTITIONS = 1_000
TOPIC_SECONDS_MAX = 120.0
SETTLE_SECONDS = 3.0

Measure = Callable[[Cluster, int], float]


ROWS = {
    "start": Row("from exec to the first Metadata answer", "s", 0.25, False),
    "memory": Row("resident memory of an idle broker", "MiB", 0.2, False),
    "bulk": Row("produce 1 MB batches, 1 connection, 5 in flight, acks=1", "MB/s", 1.15, True),
    "connections": Row("produce 1 record of 100 B, 100 connections", "1/s", 1.4, True),
    "varied": Row("... 1 record of 60 to 140 B, idempotent", "1/s", 1.4, True),
    "pipelined": Row("... 1 connection, 50 in flight", "1/s", 2.5, True),
    "single": Row("... 1 connection, 1 in flight, median", "us", 0.85, False),
    "fetch": Row("fetch 1 MB, 5 in flight, from the page cache", "MB/s", 1.0, True),
    "replicated-bulk": Row("3 brokers, RF 3, acks=all: 1 MB batches, 5 in flight", "MB/s", 1.5, True),
    "replicated-small": Row("... 1 record of 100 B, 100 connections", "1/s", 1.6, True),
    "replicated-single": Row("... 1 record, 1 connection, 1 in flight, median", "us", 0.9, False),
    "partitions": Row(f"topic of {MANY_PARTITIONS:,} partitions, RF 3, until all have leaders", "s", 0.5, False),
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.brokers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS), metavar="WORD", help=", ".join(ROWS))
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args(arguments)
    figures: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="brokers-") as directory:
        bench = Bench(Path(directory), options.rounds, set(options.only), figures)
        bench.run()
    print(table(ROWS, figures, BARNABAS, KAFKA))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    return 0


class Bench:
    """One run. What it measures goes into `figures`: by row and kind, a figure for each round."""

    def __init__(
        self, directory: Path, rounds: int, only: set[str], figures: dict[str, dict[str, list[float]]]
    ) -> None:
        self._directory = directory
        self._rounds = rounds
        self._only = only
        self._figures = figures
        self._load = LoadGenerator(directory)
        self._topics = 0

    def run(self) -> None:
        if self._only & {"start", "memory"}:
            self._measure_starts()
        single: dict[str, Measure] = {
            "bulk": self._bulk(acks=1, requests=600),
            "connections": self._small(connections=100, depth=1, requests=100_000, acks=1),
            "varied": self._varied(requests=100_000, acks=1),
            "pipelined": self._small(connections=1, depth=50, requests=60_000, acks=1),
            "single": self._single(requests=20_000, acks=1),
            "fetch": self._fetch,
        }
        self._measure(1, single)
        replicated: dict[str, Measure] = {
            "replicated-bulk": self._bulk(acks=-1, requests=150),
            "replicated-small": self._small(connections=100, depth=1, requests=40_000, acks=-1),
            "replicated-single": self._single(requests=5_000, acks=-1),
            "partitions": self._partitions,
        }
        self._measure(3, replicated)

    # Each measure takes a cluster and says one figure.

    def _bulk(self, *, acks: int, requests: int) -> Measure:
        def measure(running: Cluster, replicas: int) -> float:
            with self._topic(running, replicas) as topic:
                return self._produce(
                    running, topic, 1, 5, BATCH_RECORDS, (BATCH_VALUE_BYTES,), requests, acks
                ).megabytes_out_per_second

        return measure

    def _small(self, *, connections: int, depth: int, requests: int, acks: int) -> Measure:
        def measure(running: Cluster, replicas: int) -> float:
            with self._topic(running, replicas) as topic:
                return self._produce(
                    running, topic, connections, depth, 1, SMALL_VALUE_BYTES, requests, acks
                ).requests_per_second

        return measure

    def _varied(self, *, requests: int, acks: int) -> Measure:
        """What librdkafka and Java send without further settings: idempotent, and hardly two records of one size."""

        def measure(running: Cluster, replicas: int) -> float:
            with self._topic(running, replicas) as topic:
                return self._produce(
                    running, topic, 100, 1, 1, VARIED_VALUE_BYTES, requests, acks, is_idempotent=True
                ).requests_per_second

        return measure

    def _single(self, *, requests: int, acks: int) -> Measure:
        def measure(running: Cluster, replicas: int) -> float:
            with self._topic(running, replicas) as topic:
                return self._produce(running, topic, 1, 1, 1, SMALL_VALUE_BYTES, requests, acks).median_us

        return measure

    def _fetch(self, running: Cluster, replicas: int) -> float:
        with self._topic(running, replicas) as topic:
            self._produce(running, topic, 1, 5, BATCH_RECORDS, (BATCH_VALUE_BYTES,), FETCH_BATCHES, 1)
            return self._load.fetch(
                wire_calls.leader_port(running.brokers[0].port, topic),
                topic,
                connections=1,
                depth=5,
                bytes_max=BATCH_RECORDS * (BATCH_VALUE_BYTES + 24),
                requests=5_000,
                records_per_batch=BATCH_RECORDS,
                batches=FETCH_BATCHES,
            ).megabytes_in_per_second

    def _partitions(self, running: Cluster, replicas: int) -> float:
        name = self._new_name()
        port = running.brokers[0].port
        began = time.monotonic()
        wire_calls.create_topic(port, name, MANY_PARTITIONS, replicas)
        for broker in running.brokers:
            wait_until(
                functools.partial(has_leaders, broker.port, name, MANY_PARTITIONS),
                f"{name} has leaders at {broker.process.name}",
                TOPIC_SECONDS_MAX,
            )
        seconds = time.monotonic() - began
        wire_calls.delete_topic(port, name)
        time.sleep(SETTLE_SECONDS)
        return seconds

    # Inside.

    def _measure(self, broker_count: int, measures: dict[str, Measure]) -> None:
        wanted = {name: measure for name, measure in measures.items() if name in self._only}
        if not wanted:
            return
        with contextlib.ExitStack() as stack:
            running = {
                kind: stack.enter_context(cluster(kind, self._directory / f"{broker_count}-{slug(kind)}", broker_count))
                for kind in KINDS
            }
            time.sleep(SETTLE_SECONDS)
            for name, measure in wanted.items():
                for number in range(self._rounds + 1):
                    for kind in KINDS if number % 2 else KINDS[::-1]:
                        # What another has left to write would hold back the writes of this one.
                        os.sync()
                        figure = measure(running[kind], min(3, broker_count))
                        if number:
                            self._record(name, kind, figure)

    def _measure_starts(self) -> None:
        # As pip does for users: an editable checkout may not be compiled yet, and the first start would do it.
        compileall.compile_dir(str(Path(barnabas.__file__).parent), quiet=1)
        for number in range(self._rounds):
            for kind in KINDS if number % 2 else KINDS[::-1]:
                made = Cluster(kind, self._directory / f"start-{number}-{slug(kind)}", 1)
                try:
                    self._measure_start(made)
                finally:
                    made.stop()

    def _measure_start(self, made: Cluster) -> None:
        made.start_coordinator()
        (broker,) = made.brokers
        began = time.monotonic()
        broker.process.start()
        while time.monotonic() - began < TOPIC_SECONDS_MAX:
            with contextlib.suppress(OSError):
                if wire_calls.brokers_known_at(broker.port):
                    break
            time.sleep(0.002)
        self._record("start", made.kind, time.monotonic() - began)
        time.sleep(SETTLE_SECONDS)
        self._record("memory", made.kind, resident_memory_bytes(broker.process.process_id) / 2**20)

    def _produce(
        self,
        running: Cluster,
        topic: str,
        connections: int,
        depth: int,
        records_per_batch: int,
        value_bytes: Sequence[int],
        requests: int,
        acks: int,
        *,
        is_idempotent: bool = False,
    ) -> Load:
        return self._load.produce(
            wire_calls.leader_port(running.brokers[0].port, topic),
            topic,
            connections=connections,
            depth=depth,
            records_per_batch=records_per_batch,
            value_bytes=value_bytes,
            requests=requests,
            acks=acks,
            is_idempotent=is_idempotent,
        )

    @contextlib.contextmanager
    def _topic(self, running: Cluster, replicas: int) -> Iterator[str]:
        """A topic of one partition, led and in sync, gone at the end: old data must not fill the disk."""
        name, port = self._new_name(), running.brokers[0].port
        wire_calls.create_topic(port, name, 1, replicas, **{"file.delete.delay.ms": "0"})
        wait_until(lambda: wire_calls.leaders(port, name), f"{name} has a leader", TOPIC_SECONDS_MAX)
        leader = wire_calls.leader_port(port, name)
        wait_until(lambda: wire_calls.leaders(leader, name), f"the leader of {name} knows it", TOPIC_SECONDS_MAX)
        yield name
        wire_calls.delete_topic(port, name)

    def _new_name(self) -> str:
        self._topics += 1
        return f"topic-{self._topics}"

    def _record(self, name: str, kind: str, figure: float) -> None:
        if name in self._only:
            self._figures.setdefault(name, {}).setdefault(kind, []).append(figure)
            print(f"{ROWS[name].name}: {kind} {figure:,.4g} {ROWS[name].unit}", file=sys.stderr, flush=True)


def has_leaders(port: int, topic: str, count: int) -> bool:
    """Whether the broker at `port` knows a leader of each of the topic's `count` partitions."""
    return len(wire_calls.leaders(port, topic)) == count


def slug(kind: str) -> str:
    return kind.lower().replace(" ", "-")


if __name__ == "__main__":
    if "--secure" in sys.argv:
        from benchmarks.brokers import secure

        sys.exit(secure.main([argument for argument in sys.argv[1:] if argument != "--secure"]))
    sys.exit(main(sys.argv[1:]))
