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
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.brokers.servers import KINDS, Cluster, cluster
from benchmarks.replicated import Probe, create_topic, fill, in_sync, table

BROKERS, NEW = 4, 3
MOVED = tuple(f"moved-{number}" for number in range(8))
OTHER = "other"
SETTLE_SECONDS = 10.0
MOVE_SECONDS_MAX = 3_600.0
GOALS = {"p99 while they move, times idle": "at most 2", "rate, of the throttle": "0.8 to 1.2"}


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
    print(table(found, GOALS))
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def measure(kind: str, directory: Path, gigabytes: float, throttle: int, seconds: float) -> dict[str, float]:
    """One cluster of the kind, one move: what each row says."""
    with cluster(kind, directory, BROKERS) as running:
        for topic in (*MOVED, OTHER):
            create_topic(running, topic, [0, 1, 2] if topic == OTHER else _rotated(int(topic[-1])))
        leaders = {topic: _rotated(int(topic[-1]))[0] for topic in MOVED}
        fill(running, directory, leaders, int(gigabytes * 1e9) // len(MOVED))
        os.sync()  # the disk still writes what was produced, at some speed or other
        idle = Probe(running.brokers[0].port, OTHER)
        idle.start()
        time.sleep(SETTLE_SECONDS)
        idle.forget()
        time.sleep(seconds)
        idle.end()
        moving = Probe(running.brokers[0].port, OTHER)
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
        if NEW not in in_sync(running.brokers[0].port, topic):
            raise RuntimeError(f"{topic} was not moved: {done.stdout}")


def _log_directory(directory: Path, kind: str) -> Path:
    (found,) = (path.parent for path in (directory / f"broker-{NEW}").rglob("meta.properties"))
    return found


if __name__ == "__main__":
    sys.exit(main())
