"""Spark on our brokers beside Spark on Apache Kafka 3.9.1, in one run: the main job's pipeline, a read, and a write.

    python -m benchmarks.spark [--rounds N] [--seconds N] [--only WORD ...] [--json FILE]

Three brokers of each kind, set up alike, and one Spark session for both. In each round the two take turns, after one
round that only warms up; figures are medians over rounds, and the ratio is the median of the rounds' ratios. CPU is
user and system time of the three broker processes meanwhile. The pipeline is demo/delays.yaml over a year of flights.
On two cores that do nothing else it takes some minutes; on busy ones no further round begins once --seconds are over.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.brokers.servers import BARNABAS, KINDS, Cluster, cluster
from benchmarks.spark.work import Work
from tests.support.spark import spark_session

ROUNDS = 5
SECONDS_MAX = 420
BROKERS = 3
READ_MEGABYTES = 300
WRITE_MEGABYTES = 100
SETTLE_SECONDS = 3.0

Measure = Callable[[Cluster], float]
Figures = dict[str, dict[str, list[float]]]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: ours to Kafka's is to be at least, or at most, `goal`; None has no goal."""

    name: str
    unit: str
    goal: float | None
    is_at_least: bool


ROWS = {
    "pipeline": Row("the main job's pipeline", "rows/s", 0.95, True),
    "pipeline-cpu": Row("... CPU of the brokers", "s", 1.0, False),
    "read": Row(f"read {READ_MEGABYTES} MB, 1 KB each, as a batch", "MB/s", None, True),
    "read-cpu": Row("... CPU of the brokers", "s", None, False),
    "write": Row(f"write {WRITE_MEGABYTES} MB, 1 KB each, RF 3, acks=all", "MB/s", None, True),
    "write-cpu": Row("... CPU of the brokers", "s", None, False),
}
MEASURES = tuple(name for name in ROWS if not name.endswith("-cpu"))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=int, default=SECONDS_MAX, help="the first round of each is never left out")
    parser.add_argument(
        "--only", nargs="+", choices=MEASURES, default=list(MEASURES), metavar="WORD", help=", ".join(MEASURES)
    )
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="spark-") as directory:
        figures = measure(Path(directory), options.rounds, options.only, began + options.seconds)
    print(table(figures))
    say(f"took {time.monotonic() - began:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    return 0


def measure(directory: Path, rounds: int, only: list[str], until: float) -> Figures:
    """By row and kind, a figure for each round; after `until`, on the monotonic clock, only each first one."""
    figures: Figures = {}
    with contextlib.ExitStack() as stack:
        say(f"starting {BROKERS} brokers of each kind, and Spark ...")
        running = {
            kind: stack.enter_context(cluster(kind, directory / kind.replace(" ", "-"), BROKERS)) for kind in KINDS
        }
        spark = stack.enter_context(spark_session(directory / "spark", "benchmark"))
        work = Work(spark, directory, read_megabytes=READ_MEGABYTES, write_megabytes=WRITE_MEGABYTES)
        for kind, made in running.items():
            say(f"filling the topics of {kind} ...")
            work.fill(made)
        time.sleep(SETTLE_SECONDS)
        measures: dict[str, Measure] = {"pipeline": work.pipeline, "read": work.read, "write": work.write}
        for name in only:
            for number in range(rounds + 1):
                if number > 1 and time.monotonic() > until:
                    say(f"{name}: the time is over after {number - 1} of {rounds} rounds")
                    break
                for kind in KINDS if number % 2 else KINDS[::-1]:
                    before = running[kind].cpu_seconds()
                    figure = measures[name](running[kind])
                    cpu_seconds = running[kind].cpu_seconds() - before
                    unit = ROWS[name].unit
                    say(f"{name}, round {number}: {kind} {figure:,.4g} {unit}, brokers' CPU {cpu_seconds:.2f} s")
                    if number:
                        figures.setdefault(name, {}).setdefault(kind, []).append(figure)
                        figures.setdefault(f"{name}-cpu", {}).setdefault(kind, []).append(cpu_seconds)
    return figures


def table(figures: Figures) -> str:
    """The figures as a table in Markdown."""
    other = next(kind for kind in KINDS if kind != BARNABAS)
    lines = ["| what | ours / Kafka's | ratio | rounds | goal |", "|---|---|---|---|---|"]
    for name, by_kind in figures.items():
        row, ours, theirs = ROWS[name], by_kind[BARNABAS], by_kind[other]
        ratio = statistics.median(mine / its for mine, its in zip(ours, theirs, strict=True))
        both = f"{statistics.median(ours):,.4g} / {statistics.median(theirs):,.4g} {row.unit}"
        lines.append(f"| {row.name} | {both} | {ratio:.2f} | {len(ours)} | {verdict(row, ratio)} |")
    return "\n".join(lines)


def verdict(row: Row, ratio: float) -> str:
    """What the row's goal is and whether it is met."""
    if row.goal is None:
        return "none"
    is_met = ratio >= row.goal if row.is_at_least else ratio <= row.goal
    return f"{'at least' if row.is_at_least else 'at most'} {row.goal}: {'met' if is_met else 'NOT met'}"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
