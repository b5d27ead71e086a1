"""What a row costs in a pipeline over more and more records: flat, as the goal says, or not.

    python -m benchmarks.spark.growth [--millions N ...] [--rounds N] [--batch-rows N] [--seconds N] [--json FILE]
    python -m benchmarks.spark.growth --millions 1 5 20 50 --rounds 1 --seconds 7200

The rows of a topic are grouped by carrier and day, with a watermark, into a Parquet table and, exactly once, into a
topic; one broker of ours. The topic is filled up to each size in turn, and read from its beginning by a new state. Cost
is wall and processor time (of Spark's process and the pipeline's) for a row, from the second batch on, since the first
has what a query needs once; and that of a run's last quarter beside its first. A run over
the smallest size warms up. Fifty million records need 4 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from barnabas.pipelines.progress import Progress, RunSummary
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.run_options import RunOptions
from barnabas.pipelines.runner import run_pipeline_in
from benchmarks.brokers.servers import Cluster
from benchmarks.spark.rows import Costs, create, fill, one_broker
from benchmarks.spark.work import WrongResultError, bootstrap_servers
from tests.support.spark import spark_session

GROWTH_MAX: Final = 1.25
"""Times what a row costs among few: what it may cost among many, and still be called flat."""
BATCH_ROWS: Final = 100_000
TOPIC, RESULT = "flights", "delays"
PIPELINE: Final = """\
name: growth
sources:
  flights:
    topic: {topic}
    schema: "number BIGINT, carrier STRING, origin STRING, dep_delay INT, time_hour TIMESTAMP, remark STRING"
    max_records_per_batch: {batch_rows}
steps:
  - {{name: timed, sql: "SELECT * FROM flights", watermark: {{column: time_hour, delay: 2 days}}}}
  - name: by_day
    sql: |
      SELECT carrier, window.start AS day, COUNT(*) AS flights, SUM(dep_delay) AS minutes
      FROM timed GROUP BY carrier, window(time_hour, '1 day')
sinks:
  - {{topic: {result}, from: by_day, key: [carrier, day]}}
  - {{parquet: table, from: by_day, key: [carrier, day]}}
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a row, in microseconds; `late` is that of the last quarter of the batches, `early` that of the first."""

    wall: float
    cpu: float
    early: float
    late: float


class Batches:
    """How many rows the batches of a run had, how long each took, and the processor time when it had ended."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self.rows: list[int] = []
        self.seconds: list[float] = []
        self.cpu: list[float] = []

    def said(self, line: str) -> None:
        if line.startswith("warning"):
            say(line)

    def batch(self, progress: Progress) -> None:
        if not progress.rows_in:
            return  # by which Spark only forgets groups, at the end
        self.rows.append(progress.rows_in)
        self.seconds.append(progress.duration_ms / 1_000)
        self.cpu.append(self._costs.cpu())

    def ended(self, summary: RunSummary) -> None:
        """Nothing to say."""


def cost_of(rows: Sequence[int], seconds: Sequence[float], cpu: Sequence[float]) -> Cost:
    """Of batches, in their order, with the processor time at the end of each. The first has no part in it."""
    if len(rows) < 3:
        raise WrongResultError(f"a run of {len(rows)} batches says nothing of growth: more records are needed")
    quarter = max((len(rows) - 1) // 4, 1)

    def wall(part: slice) -> float:
        return 1e6 * sum(seconds[part]) / sum(rows[part])

    of_cpu = 1e6 * (cpu[-1] - cpu[0]) / sum(rows[1:])
    return Cost(wall(slice(1, None)), of_cpu, wall(slice(1, 1 + quarter)), wall(slice(len(rows) - quarter, None)))


def table(costs: Mapping[int, Sequence[Cost]]) -> str:
    """The figures as a table in Markdown: medians over rounds, beside those of the smallest size."""
    lines = [
        "| records | wall, a row | processor time, a row | last quarter to first | goal |",
        "|---|---|---|---|---|",
    ]
    first: tuple[float, float] | None = None
    for records, found in sorted(costs.items()):
        wall, cpu = (statistics.median(getattr(each, what) for each in found) for what in ("wall", "cpu"))
        within = statistics.median(each.late / each.early for each in found)
        if first is None:
            first, beside, goal = (wall, cpu), ("", ""), ""
        else:
            ratios = (wall / first[0], cpu / first[1])
            beside = tuple(f" ({each:.2f})" for each in ratios)  # type: ignore[assignment]
            goal = f"at most {GROWTH_MAX}: {'met' if max(*ratios, within) <= GROWTH_MAX else 'NOT met'}"
        lines.append(f"| {records:,} | {wall:.2f} µs{beside[0]} | {cpu:.2f} µs{beside[1]} | {within:.2f} | {goal} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark.growth", description=__doc__)
    parser.add_argument("--millions", nargs="+", type=float, default=[1, 2, 4], metavar="N", help="such as 1 5 20 50")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batch-rows", type=int, default=BATCH_ROWS)
    parser.add_argument("--seconds", type=int, default=300, help="no round begins later, but the first")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every figure")
    options = parser.parse_args(arguments)
    sizes = sorted({round(each * 1_000_000) for each in options.millions})
    if options.rounds < 1 or options.batch_rows < 1 or sizes[0] < 4 * options.batch_rows:
        parser.error("--rounds must be at least 1, and the fewest records four batches")
    until = time.monotonic() + options.seconds
    costs: dict[int, list[Cost]] = {}
    with tempfile.TemporaryDirectory(prefix="growth-") as name:
        directory = Path(name)
        with one_broker(directory / "broker") as running, spark_session(directory / "spark") as spark:
            for number in range(options.rounds):
                if number and time.monotonic() > until:
                    say(f"the time is over after {number} of {options.rounds} rounds")
                    break
                # Rows are added to a topic and never removed, so that each round has one of its own.
                place = directory / f"{number}"
                place.mkdir()
                found = measure(spark, running, place, sizes, options.batch_rows, warms_up=not number)
                for size, cost in found.items():
                    costs.setdefault(size, []).append(cost)
    print(f"batches of {options.batch_rows:,} records, {max(map(len, costs.values()))} rounds")
    print(table(costs))
    if options.json:
        options.json.write_text(json.dumps({size: [str(each) for each in found] for size, found in costs.items()}))
    return 0


def measure(
    spark: Any, running: Cluster, directory: Path, sizes: Sequence[int], batch_rows: int, *, warms_up: bool
) -> dict[int, Cost]:
    """What a row costs at each size, over one topic that grows."""
    topic, found, filled = f"{TOPIC}-{directory.name}", dict[int, Cost](), 0
    create(running, topic)
    for size in sizes:
        fill(spark, running, topic, filled, size)
        filled = size
        if warms_up and size == sizes[0]:
            run(spark, running, directory / "warm", topic, size, batch_rows)
        found[size] = run(spark, running, directory / f"{size}", topic, size, batch_rows)
        say(f"{size:,} records: {found[size]}")
    return found


def run(spark: Any, running: Cluster, directory: Path, topic: str, size: int, batch_rows: int) -> Cost:
    """One run over the whole topic, with a new state and a new topic for what comes out."""
    directory.mkdir()
    result = f"{RESULT}-{topic}-{directory.name}"
    create(running, result)
    path = directory / "growth.yaml"
    path.write_text(PIPELINE.format(topic=topic, result=result, batch_rows=batch_rows))
    told = Batches(Costs(spark))
    options = RunOptions(bootstrap_servers(running), once=True)
    summary = run_pipeline_in(spark.newSession(), read_pipeline(path), options, told)
    if (summary.rows_in, summary.rows_dropped_by_watermark, summary.records_refused) != (size, 0, 0):
        raise WrongResultError(f"the pipeline did not take every row: {summary}")
    return cost_of(told.rows, told.seconds, told.cpu)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
