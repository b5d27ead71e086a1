"""Partitions are moved onto a new broker: what producers of others notice, of ours and of Apache Kafka 3.9.1.

    python -m benchmarks.reassignment [--gigabytes N] [--throttle MEGABYTES] [--kinds KIND ...]

Four brokers, of which the last is new and has nothing. Eight partitions with three replicas and so many gigabytes in
all are moved from broker 2 to it by `barnabas reassign execute --throttle`, on either side. Meanwhile a producer sends
one record of 100 bytes every 5 ms, acks=all, to a partition on brokers 0, 1 and 2 that is not moved, one request in
flight; the same for some seconds before is what idle means. The rate is what arrived at the new broker each second from
the beginning of the command to its end, as a share of the throttle.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.messages import CreateTopicsRequest, ProduceRequest
from barnabas.wire.record_builder import RecordBatchBuilder
from benchmarks.brokers.load import LoadGenerator
from benchmarks.brokers.servers import KINDS, Cluster, cluster
from tests.support.waiting import wait_until
from tests.support.wire_calls import Connection, call, controller_port, metadata

BROKERS, NEW = 4, 3
MOVED = tuple(f"moved-{number}" for number in range(8))
OTHER = "other"
INTERVAL_SECONDS = 0.005
SETTLE_SECONDS = 10.0
MOVE_SECONDS_MAX = 3_600.0
START_SECONDS_MAX = 60.0
RECORD_BYTES, RECORDS_PER_BATCH = 1_000, 1_000
GOALS = {"p99 while they move, times idle": "at most 2", "rate, of the throttle": "0.8 to 1.2"}
_CREATE_VERSION, _PRODUCE_VERSION = 5, 8


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Move partitions onto a new broker beside a producer of others.")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="in all, of one replica")
    parser.add_argument("--throttle", type=int, default=30, metavar="MEGABYTES", help="a second")
    parser.add_argument("--seconds", type=float, default=20.0, help="idle, before")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    found: dict[str, dict[str, float]] = {}
    for kind in given.kinds:
        with tempfile.TemporaryDirectory() as directory:
            found[kind] = measure(kind, Path(directory), given.gigabytes, given.throttle, given.seconds)
    print(table(found))
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def measure(kind: str, directory: Path, gigabytes: float, throttle: int, seconds: float) -> dict[str, float]:
    """One cluster of the kind, one move: what each row says."""
    with cluster(kind, directory, BROKERS) as running:
        for topic in (*MOVED, OTHER):
            _create(running, topic, [0, 1, 2] if topic == OTHER else _rotated(int(topic[-1])))
        _fill(running, directory, int(gigabytes * 1e9) // len(MOVED))
        os.sync()  # the disk still writes what was produced, at some speed or other
        idle = Probe(running.brokers[0].port)
        idle.start()
        time.sleep(SETTLE_SECONDS)
        idle.forget()
        time.sleep(seconds)
        idle.end()
        moving = Probe(running.brokers[0].port)
        moving.start()
        began = time.perf_counter()
        _move(running, directory, throttle)
        taken = time.perf_counter() - began
        moving.end()
        arrived = sum(path.stat().st_size for path in _log_directory(directory, kind).glob("moved-*/*.log"))
        return {
            "idle, p99 (ms)": idle.p99_ms(),
            "while they move, p99 (ms)": moving.p99_ms(),
            "p99 while they move, times idle": moving.p99_ms() / idle.p99_ms(),
            "median while they move, times idle": moving.median_ms() / idle.median_ms(),
            "longest while they move (ms)": moving.longest_ms(),
            "rate, of the throttle": arrived / taken / (throttle * 1e6),
        }


def _rotated(number: int) -> list[int]:
    """The old brokers, each the leader of as many; the last is the one that the new one takes the place of."""
    return [0, 1, 2] if number % 2 else [1, 0, 2]


def _create(running: Cluster, topic: str, replicas: list[int]) -> None:
    (port, *_) = (broker.port for broker in running.brokers)
    assignment = CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=replicas)
    wanted = CreateTopicsRequest.CreatableTopic(
        name=topic, num_partitions=-1, replication_factor=-1, assignments=[assignment]
    )
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=60_000)
    (result,) = call(controller_port(port), ApiKey.CREATE_TOPICS, _CREATE_VERSION, request).topics
    if result.error_code:
        raise RuntimeError(f"topic {topic} was not created: {result.error_code}")
    wait_until(lambda: _in_sync(port, topic) == set(replicas), f"{topic} is in sync", START_SECONDS_MAX)


def _in_sync(port: int, topic: str) -> set[int]:
    (found,) = metadata(port, [topic]).topics
    return {broker_id for each in found.partitions for broker_id in each.isr_nodes}


def _fill(running: Cluster, directory: Path, size_bytes: int) -> None:
    load = LoadGenerator(directory)
    for topic in MOVED:
        (leader, *_) = _rotated(int(topic[-1]))
        load.produce(
            running.brokers[leader].port,
            topic,
            connections=1,
            depth=5,
            records_per_batch=RECORDS_PER_BATCH,
            value_bytes=[RECORD_BYTES],
            requests=max(1, size_bytes // (RECORD_BYTES * RECORDS_PER_BATCH)),
            acks=-1,
        )


def _move(running: Cluster, directory: Path, throttle: int) -> None:
    """Until the command says that all are where they are to be."""
    plan = directory / "plan.json"
    moves = [{"topic": topic, "partition": 0, "replicas": [*_rotated(int(topic[-1]))[:2], NEW]} for topic in MOVED]
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    address = f"127.0.0.1:{running.brokers[0].port}"
    options = ["--throttle", f"{throttle}MB", "-b", address]
    command = [sys.executable, "-m", "barnabas.cli", "reassign", "execute", str(plan), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MOVE_SECONDS_MAX, check=False)
    if done.returncode:
        raise RuntimeError(f"the move failed with {done.returncode}: {done.stdout}\n{done.stderr}")
    for topic in MOVED:
        if NEW not in _in_sync(running.brokers[0].port, topic):
            raise RuntimeError(f"{topic} was not moved: {done.stdout}")


def _log_directory(directory: Path, kind: str) -> Path:
    (found,) = (path.parent for path in (directory / f"broker-{NEW}").rglob("meta.properties"))
    return found


class Probe:
    """A producer with one request in flight that has a record for one partition every few milliseconds."""

    def __init__(self, port: int) -> None:
        builder = RecordBatchBuilder()
        builder.append(int(time.time() * 1000), None, bytes(100))
        data = ProduceRequest.PartitionProduceData(index=0, records=memoryview(builder.build()))
        self._request = ProduceRequest(
            acks=-1,
            timeout_ms=30_000,
            topic_data=[ProduceRequest.TopicProduceData(name=OTHER, partition_data=[data])],
        )
        self._port = port
        self._taken_ms: list[float] = []
        self._failure: Exception | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def forget(self) -> None:
        """What was measured so far does not count."""
        self._taken_ms = []

    def end(self) -> None:
        self._ending.set()
        self._thread.join()
        if self._failure is not None:
            raise RuntimeError("a record was not taken") from self._failure

    def p99_ms(self) -> float:
        return statistics.quantiles(self._taken_ms, n=100, method="inclusive")[98]

    def median_ms(self) -> float:
        return statistics.median(self._taken_ms)

    def longest_ms(self) -> float:
        return max(self._taken_ms)

    def _run(self) -> None:
        try:
            with Connection(self._port) as connection:
                while not self._ending.wait(INTERVAL_SECONDS):
                    began = time.perf_counter()
                    answer = connection.call(ApiKey.PRODUCE, _PRODUCE_VERSION, self._request)
                    self._taken_ms.append(1000 * (time.perf_counter() - began))
                    ((partition,),) = (each.partition_responses for each in answer.responses)
                    if partition.error_code:
                        raise RuntimeError(f"error {partition.error_code}")
        except (OSError, RuntimeError) as failure:
            self._failure = failure


def table(found: dict[str, dict[str, float]]) -> str:
    """The rows, with a column for each cluster."""
    lines = [f"| what | {' | '.join(found)} | goal |", "|---" * (len(found) + 2) + "|"]
    for name in next(iter(found.values())):
        figures = " | ".join(f"{each[name]:.3g}" for each in found.values())
        lines.append(f"| {name} | {figures} | {GOALS.get(name, '')} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
