"""A log of keyed records is compacted: beside Apache Kafka 3.9.1, in one run.

    python -m benchmarks.cleaner [--rounds N] [--records N] [--keys N] [--value-bytes FROM TO] [--json FILE]

One broker; a topic of one partition is filled with records of keys at random, the same for both, and made a compacted
one. Timed is Kafka's cleaning as its log tells it, and ours from the child's start until the cleaner's checkpoint has
all. With it come the processor time of broker and child, the most memory that the process that cleans has held, and how
long a producer of single records on another topic waits, before and meanwhile. The table is the one of
docs/performance.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from benchmarks.brokers.servers import BARNABAS, KAFKA, KINDS, Broker, Cluster, cpu_seconds
from benchmarks.ratios import Row, table
from tests.support import wire_calls
from tests.support.waiting import wait_until

TOPIC, OTHER = "cleaned", "other"
SEGMENT_BYTES = 100 * 1024 * 1024
CLEANED_SECONDS_MAX = 1800.0
IDLE_SECONDS = 15.0
ROWS = {
    "seconds": Row("from the beginning to the end", "s", 1.2, False),
    "cpu": Row("processor time, with the broker's", "s", 1.2, False),
    "memory": Row("the most memory of the process that cleans", "MiB", 1.0, False),
}
_PROPERTIES = {
    "log.cleaner.enable": "true",
    "log.cleaner.dedupe.buffer.size": 134_217_728,
    "log.cleaner.backoff.ms": "1000",
    "offsets.topic.num.partitions": 1,
}
_KAFKA_ENDED = re.compile(r"^\s+[\d,.]+ MB of log processed in ([\d,.]+) seconds", re.MULTILINE)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time the log cleaner beside Apache Kafka's.")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=4_000_000)
    parser.add_argument("--value-bytes", type=int, nargs=2, default=[40, 120], metavar=("FROM", "TO"))
    parser.add_argument("--compression", default="none")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    figures: dict[str, dict[str, list[float]]] = {}
    for number in range(given.rounds):
        for kind in given.kinds if number % 2 == 0 else reversed(given.kinds):
            with tempfile.TemporaryDirectory() as directory:
                for row, figure in measure(kind, Path(directory), given).items():
                    figures.setdefault(row, {}).setdefault(kind, []).append(figure)
                    print(f"{row}: {kind} {figure:,.4g}", file=sys.stderr, flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")
    if set(given.kinds) == set(KINDS):
        print(table(ROWS, figures, BARNABAS, KAFKA))
        for kind in KINDS:
            idle, busy = (statistics.median(figures[row][kind]) for row in ("p99 idle", "p99 cleaning"))
            print(
                f"{kind}: p99 of a single record {idle:.2f} ms idle, {busy:.2f} ms meanwhile: {busy / idle:.2f} times"
            )
    return 0


def measure(kind: str, directory: Path, given: argparse.Namespace) -> dict[str, float]:
    with _cluster(kind, directory) as running:
        (broker,) = running.brokers
        wire_calls.create_topic(broker.port, TOPIC, 1, 1, **{"segment.bytes": str(SEGMENT_BYTES)})
        wire_calls.create_topic(broker.port, OTHER, 1, 1)
        wait_until(lambda: len(wire_calls.leaders(broker.port, OTHER)) == 1, "the topics have leaders", 60.0)
        fill(broker, given)
        os.sync()
        idle = latencies(broker, lambda spent: spent < IDLE_SECONDS)
        before = running.cpu_seconds()
        _compact(broker)
        child = _Child(broker if kind == BARNABAS else None)
        checkpoint = next(directory.rglob("meta.properties")).with_name("cleaner-offset-checkpoint")
        busy = latencies(broker, lambda _: child.looks() and not _is_cleaned(checkpoint), CLEANED_SECONDS_MAX)
        cpu = running.cpu_seconds() - before + child.cpu_seconds
        if kind == BARNABAS:
            seconds, memory = time.time() - child.began, child.memory_mib
        else:
            log = (directory / "broker-0" / "server.log").read_text()
            seconds = sum(float(found.replace(",", "")) for found in _KAFKA_ENDED.findall(log))
            memory = _peak_mib(broker.process.process_id)
            print(
                "\n".join(re.findall(r"^.*(?:MB of log|Cleaned|Indexed|size reduction).*$", log, re.MULTILINE)),
                file=sys.stderr,
            )
        return {
            "seconds": seconds,
            "cpu": cpu,
            "memory": memory,
            "p99 idle": idle,
            "p99 cleaning": busy,
        }


@contextlib.contextmanager
def _cluster(kind: str, directory: Path) -> Iterator[Cluster]:
    made = Cluster(kind, directory, 1, properties=_PROPERTIES)
    try:
        made.start()
        yield made
    finally:
        made.stop()


class _Child:
    """The process that cleans, where it is one of its own: what it takes, as far as it was seen."""

    def __init__(self, broker: Broker | None) -> None:
        self._parent = None if broker is None else broker.process.process_id
        self.began = 0.0
        self.cpu_seconds = 0.0
        self.memory_mib = 0.0

    def looks(self) -> bool:
        if self._parent is not None:
            for process in Path(f"/proc/{self._parent}/task/{self._parent}/children").read_text().split():
                with contextlib.suppress(OSError, RuntimeError):
                    if b"cleaner" in Path(f"/proc/{process}/cmdline").read_bytes():
                        self.began = self.began or time.time()
                        self.cpu_seconds = max(self.cpu_seconds, cpu_seconds(int(process)))
                        self.memory_mib = max(self.memory_mib, _peak_mib(int(process)))
        return True


def fill(broker: Broker, given: argparse.Namespace) -> None:
    """The same for everybody: keys at random, values that do not compress to nothing."""
    failed: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{broker.port}",
            "linger.ms": 20,
            "batch.size": 16_384,
            "compression.type": given.compression,
            "queue.buffering.max.messages": 500_000,
        }
    )

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    choose = random.Random(1)
    text = choose.randbytes(4096)
    least, most = given.value_bytes
    for number in range(given.records):
        at = number % 3900
        value = text[at : at + (least if least == most else choose.randrange(least, most + 1))]
        key = b"key-%09d" % int(choose.random() * given.keys)
        while True:
            try:
                producer.produce(TOPIC, value, key, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        if not number % 1000:
            producer.poll(0)
    if producer.flush(300) or failed:
        raise RuntimeError(f"not all was delivered: {failed[:1]}")


def latencies(broker: Broker, goes_on: Callable[[float], bool], seconds_max: float = 600.0) -> float:
    """The 99th percentile, in ms, of how long one small record after another waits, 100 a second at most."""
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{broker.port}", "linger.ms": 0, "acks": "1"})
    found: list[float] = []
    began = time.perf_counter()
    while goes_on(time.perf_counter() - began):
        if time.perf_counter() - began > seconds_max:
            raise RuntimeError(f"the cleaning has not ended after {seconds_max} s\n{broker.process.log_tail()}")
        at = time.perf_counter()
        producer.produce(OTHER, b"x" * 100)
        if producer.flush(60):
            raise RuntimeError("a record was not delivered")
        found.append((time.perf_counter() - at) * 1000)
        time.sleep(0.01)
    return statistics.quantiles(found[10:], n=100)[98]


def _compact(broker: Broker) -> None:
    changes = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    resource = ConfigResource(
        ResourceType.TOPIC,
        TOPIC,
        incremental_configs=[
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in changes.items()
        ],
    )
    client = AdminClient({"bootstrap.servers": f"127.0.0.1:{broker.port}"})
    for future in client.incremental_alter_configs([resource]).values():
        future.result(30)


def _is_cleaned(checkpoint: Path) -> bool:
    """All but the active segment: a cleaning may end before, and another go on."""
    segments = [int(path.stem) for path in (checkpoint.parent / f"{TOPIC}-0").glob("*.log")]
    found = re.search(rf"^{TOPIC} 0 (\d+)$", checkpoint.read_text(), re.MULTILINE) if checkpoint.exists() else None
    return found is not None and int(found[1]) >= max(segments)


def _peak_mib(process_id: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process_id}/status").read_text())
    if found is None:
        raise RuntimeError("the kernel does not tell a process's memory")
    return int(found[1]) / 1024


if __name__ == "__main__":
    sys.exit(main())
