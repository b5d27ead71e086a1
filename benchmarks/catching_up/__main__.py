"""A follower is far behind and catches up: what producers of others notice, of ours and of Apache Kafka 3.9.1.

    python -m benchmarks.catching_up [--gigabytes N] [--rounds N] [--kinds KIND ...]

Three brokers; the third is stopped, so many gigabytes are written with acks=all to four partitions of all three, two of
each leader, and it is started again. Meanwhile two producers send one record of 100 bytes every 5 ms each, acks=all,
one request in flight: one to a partition that the third broker has no part in, one to a partition that it follows over
the same connection, and is in sync with all the time. It is measured from when it has joined the latter until it has
caught up with all; the same for some seconds before it is stopped is what idle means. The kinds take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.brokers.servers import KINDS, cluster
from benchmarks.replicated import START_SECONDS_MAX, Probe, create_topic, fill, in_sync, table
from tests.support.waiting import wait_until

BROKERS, STOPPED = 3, 2
BEHIND = {f"behind-{number}": number % 2 for number in range(4)}
"""With their leaders."""
APART, SHARED = "apart", "shared"
SETTLE_SECONDS = 5.0
CATCH_UP_SECONDS_MAX = 3_600.0
GOALS = {
    "apart: p99 while it catches up, times idle": "at most 2",
    "shared: p99 while it catches up, times idle": "at most 2",
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Have a follower catch up beside producers of other partitions.")
    parser.add_argument("--gigabytes", type=float, default=10.0, help="by which it is behind")
    parser.add_argument("--seconds", type=float, default=15.0, help="idle, before")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    rounds: dict[str, list[dict[str, float]]] = {kind: [] for kind in given.kinds}
    for _ in range(given.rounds):
        for kind in given.kinds:
            with tempfile.TemporaryDirectory() as directory:
                rounds[kind].append(measure(kind, Path(directory), given.gigabytes, given.seconds))
            print(f"{kind}: {rounds[kind][-1]}", file=sys.stderr, flush=True)
    if given.json:
        given.json.write_text(json.dumps(rounds, indent=2) + "\n")
    print(table({kind: _medians(each) for kind, each in rounds.items()}, GOALS))
    return 0


def measure(kind: str, directory: Path, gigabytes: float, seconds: float) -> dict[str, float]:
    """One cluster of the kind: what each row says."""
    with cluster(kind, directory, BROKERS) as running:
        port = running.brokers[0].port
        for topic, leader in BEHIND.items():
            create_topic(running, topic, [leader, 1 - leader, STOPPED])
        create_topic(running, APART, [0, 1])
        create_topic(running, SHARED, [0, 1, STOPPED])
        idle = [Probe(port, topic) for topic in (APART, SHARED)]
        for probe in idle:
            probe.start()
        time.sleep(SETTLE_SECONDS)
        for probe in idle:
            probe.forget()
        time.sleep(seconds)
        for probe in idle:
            probe.end()
        stopped = running.brokers[STOPPED].process
        stopped.stop(START_SECONDS_MAX)
        wait_until(lambda: all(STOPPED not in in_sync(port, topic) for topic in BEHIND), "it is missed", 60.0)
        fill(running, directory, BEHIND, int(gigabytes * 1e9) // len(BEHIND))
        os.sync()  # the disk still writes what was produced, at some speed or other
        stopped.start()
        wait_until(lambda: STOPPED in in_sync(port, SHARED), "it is in sync", START_SECONDS_MAX, stopped.log_tail)
        busy = [Probe(port, topic) for topic in (APART, SHARED)]
        began = time.perf_counter()
        for probe in busy:
            probe.start()
        wait_until(
            lambda: all(STOPPED in in_sync(port, topic) for topic in BEHIND),
            "it has caught up",
            CATCH_UP_SECONDS_MAX,
            stopped.log_tail,
        )
        taken = time.perf_counter() - began
        for probe in busy:
            probe.end()
        found = {"time to catch up (s)": taken}
        for before, after, topic in zip(idle, busy, (APART, SHARED), strict=True):
            found |= {
                f"{topic}: idle, p99 (ms)": before.p99_ms(),
                f"{topic}: while it catches up, p99 (ms)": after.p99_ms(),
                f"{topic}: p99 while it catches up, times idle": after.p99_ms() / before.p99_ms(),
                f"{topic}: median while it catches up, times idle": after.median_ms() / before.median_ms(),
                f"{topic}: longest while it catches up (ms)": after.longest_ms(),
            }
        return found


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


if __name__ == "__main__":
    sys.exit(main())
