"""A broker with many partitions, or much that was not flushed, starts: beside Apache Kafka 3.9.1, in one run.

    python -m benchmarks.starts [--rounds N] [--partitions N] [--megabytes N] [--only WORD ...] [--json FILE]

Clean: one broker with so many partitions, a record in each, is stopped with SIGTERM and started again; timed from the
start of its process until it answers for the end of each of them. Idle: its processor time then, with nobody there, its
memory and its open files. Killed: ten partitions are filled with so many megabytes, none of which was flushed, the
broker is killed with -9 and started again; timed until it answers for the end of all ten, which has to be the one that
it had before. The row is one of the page cache, which loses some of ten gigabytes within seconds on some machines: so
all of the logs is read once before the start, and the rows say how much is cached then and what the start has read from
the disk. The table that is printed is the one of docs/performance.md.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from confluent_kafka import Producer

from barnabas.coordination.client import Client
from barnabas.coordination.layout.brokers import broker_id_path
from barnabas.kernel.real_host import RealHost
from barnabas.kernel.timers import Timers
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.messages import ListOffsetsRequest
from benchmarks.brokers.servers import BARNABAS, KAFKA, KINDS, Broker, Cluster, cluster
from benchmarks.controller.beside_kafka import on_coordinator
from benchmarks.page_cache import cached_part, read_through
from benchmarks.ratios import Row, table
from tests.support import wire_calls
from tests.support.waiting import wait_until

PARTITIONS_PER_TOPIC = 1_000
FILLED = "filled"
FILLED_PARTITIONS = 10
START_SECONDS_MAX = 600.0
STOP_SECONDS_MAX = 300.0
SETTLE_SECONDS = 10.0
IDLE_SECONDS = 30.0
ROWS = {
    "clean": Row("a clean start, until all partitions are served", "s", 0.5, False),
    "idle": Row("idle, processor time", "% of a core", 0.5, False),
    "memory": Row("... resident memory", "MiB", 0.5, False),
    "files": Row("... open files and mapped ones", "files", 0.5, False),
    "killed": Row("a start after `kill -9`, until all is recovered and served", "s", 0.5, False),
    "processor": Row("... processor time", "s", None, False),
    "cached": Row("... of the logs in the page cache before", "%", None, True),
    "not_read": Row("... of the logs not read from the disk meanwhile", "%", None, True),
}
_LIST_OFFSETS_VERSION = 5
_LATEST = -1
_RECORD_BYTES = 1_000


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time starts of a broker beside Apache Kafka's.")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--partitions", type=int, default=10_000, help="of the broker that starts clean")
    parser.add_argument("--megabytes", type=int, default=10_000, help="not flushed by the broker that is killed")
    parser.add_argument("--only", nargs="*", choices=["clean", "killed"])
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    measures: dict[str, Callable[[str, Path], dict[str, float]]] = {
        "clean": functools.partial(clean, given.partitions),
        "killed": functools.partial(killed, given.megabytes),
    }
    figures: dict[str, dict[str, list[float]]] = {}
    for _ in range(given.rounds):
        for name, measure in measures.items():
            if given.only and name not in given.only:
                continue
            for kind in given.kinds:
                with tempfile.TemporaryDirectory() as directory:
                    for row, figure in measure(kind, Path(directory)).items():
                        figures.setdefault(row, {}).setdefault(kind, []).append(figure)
                        print(f"{row}: {kind} {figure:,.4g}", file=sys.stderr, flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")
    if set(given.kinds) == set(KINDS):
        print(table(ROWS, figures, BARNABAS, KAFKA))
    return 0


# What is measured.


def clean(partition_count: int, kind: str, directory: Path) -> dict[str, float]:
    with cluster(kind, directory, 1) as running:
        (broker,) = running.brokers
        topics = {
            f"topic-{first // PARTITIONS_PER_TOPIC:03}": min(PARTITIONS_PER_TOPIC, partition_count - first)
            for first in range(0, partition_count, PARTITIONS_PER_TOPIC)
        }
        for topic, count in topics.items():
            wire_calls.create_topic(broker.port, topic, count, 1)
            _wait_for_leaders(broker, topic, count)
        _produce(broker, topics, dict.fromkeys(topics, 1), 100)
        broker.process.stop(STOP_SECONDS_MAX)
        taken = _start(running, dict.fromkeys(topics, 1), topics)
        time.sleep(SETTLE_SECONDS)
        before, began = running.cpu_seconds(), time.perf_counter()
        time.sleep(IDLE_SECONDS)
        idle = 100 * (running.cpu_seconds() - before) / (time.perf_counter() - began)
        return {"clean": taken, "idle": idle, "memory": _memory_mib(broker), "files": _open_files(broker)}


def killed(megabytes: int, kind: str, directory: Path) -> dict[str, float]:
    with cluster(kind, directory, 1) as running:
        (broker,) = running.brokers
        topics = {FILLED: FILLED_PARTITIONS}
        # One segment each, however much: a segment that is full is flushed, and no longer looked through.
        wire_calls.create_topic(broker.port, FILLED, FILLED_PARTITIONS, 1, **{"segment.bytes": "2147483647"})
        _wait_for_leaders(broker, FILLED, FILLED_PARTITIONS)
        records = megabytes * 1_000_000 // (FILLED_PARTITIONS * _RECORD_BYTES)
        _produce(broker, topics, {FILLED: records}, _RECORD_BYTES)
        broker.process.kill()
        on_coordinator(running, _wait_for_expiry)  # before it Apache Kafka does not start
        os.sync()  # the disk still writes what was produced, at some speed or other
        logs = sorted(directory.glob(f"broker-0/logs/{FILLED}-*/*.log"))
        read_through(logs)
        cached = cached_part(logs)
        taken = _start(running, {FILLED: records}, topics)
        read = _read_bytes(broker) / sum(log.stat().st_size for log in logs)
        found = {"killed": taken, "processor": running.cpu_seconds(), "not_read": 100 * (1 - read)}
        return found if cached is None else found | {"cached": 100 * cached}


# By what.


async def _wait_for_expiry(host: RealHost, client: Client) -> float:
    timers = Timers(host.loop)
    while await client.exists(broker_id_path(0)) is not None:
        await timers.sleep(100)
    return 0.0


def _produce(broker: Broker, topics: dict[str, int], records: dict[str, int], size: int) -> None:
    """So many records of `size` bytes, which do not compress, to each partition of each topic."""
    failed: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{broker.port}",
            "linger.ms": 20,
            "batch.size": 500_000,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 200_000,
        }
    )

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    value = os.urandom(size)
    for topic, count in topics.items():
        for _ in range(records[topic]):
            for partition in range(count):
                while True:
                    try:
                        producer.produce(topic, value, partition=partition, on_delivery=delivered)
                        break
                    except BufferError:
                        producer.poll(0.1)
            producer.poll(0)
    if producer.flush(STOP_SECONDS_MAX) or failed:
        raise RuntimeError(f"not all was delivered: {failed[:1]}")


def _start(running: Cluster, ends: dict[str, int], topics: dict[str, int]) -> float:
    """Starts the broker, and returns the seconds until it answers for all ends, which have to be these."""
    (broker,) = running.brokers
    began = time.perf_counter()
    broker.process.start()
    for topic, count in topics.items():
        wait_until(
            lambda: _ends(broker, topic, count) == {ends[topic]},  # noqa: B023 - called in this turn
            f"{topic} is served by {broker.process.name}",
            START_SECONDS_MAX,
            broker.process.log_tail,
        )
    return time.perf_counter() - began


def _ends(broker: Broker, topic: str, count: int) -> set[int]:
    """The ends of all partitions; -1 is among them where there is an error. Empty while the broker does not answer."""
    asked = [
        ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=_LATEST)
        for partition in range(count)
    ]
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=asked)]
    )
    if not broker.process.is_running:
        raise RuntimeError(f"{broker.process.name} ended\n{broker.process.log_tail()}")
    try:
        (answer,) = wire_calls.call(broker.port, ApiKey.LIST_OFFSETS, _LIST_OFFSETS_VERSION, request).topics
    except OSError:
        return set()
    return {-1 if partition.error_code else partition.offset for partition in answer.partitions}


def _wait_for_leaders(broker: Broker, topic: str, count: int) -> None:
    wait_until(lambda: len(wire_calls.leaders(broker.port, topic)) == count, f"{topic} has leaders", START_SECONDS_MAX)


def _memory_mib(broker: Broker) -> float:
    status = Path(f"/proc/{broker.process.process_id}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    if found is None:
        raise RuntimeError("the kernel does not tell a process's memory")
    return int(found[1]) / 1024


def _read_bytes(broker: Broker) -> int:
    """From disks so far, whatever was read."""
    told = Path(f"/proc/{broker.process.process_id}/io").read_text()
    found = re.search(r"^read_bytes: (\d+)", told, re.MULTILINE)
    if found is None:
        raise RuntimeError("the kernel does not tell what a process has read")
    return int(found[1])


def _open_files(broker: Broker) -> float:
    """Descriptors, and files of logs that are mapped without one."""
    process = Path(f"/proc/{broker.process.process_id}")
    mapped = {line.split()[-1] for line in (process / "maps").read_text().splitlines() if line.endswith("index")}
    return len(list((process / "fd").iterdir())) + len(mapped)


if __name__ == "__main__":
    sys.exit(main())
