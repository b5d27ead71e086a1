"""`barnabas pipeline table TOPIC TABLE` beside Spark's own streaming write of the same rows, in one Spark session.

    python -m benchmarks.spark.tables [--rounds N] [--records N] [--kinds WORD ...] [--seconds N] [--json FILE]

The file that the command writes is run, without the start of a process, to the end of the topic; Spark's own is what
its guide has: `from_json` of the records and `writeStream` of the format. Batches are as large, settings the same. Each
row is of one broker of ours; in each round the two take turns, after one that only warms up. Figures are medians, and
the ratio is the median of the rounds'. Whatever is written is counted before it is removed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from barnabas.cli.pipeline_table import SourceOptions, written_file
from barnabas.pipelines import session
from barnabas.pipelines.connector import DELTA, resolve_connector
from barnabas.pipelines.delta_sink import DELTA_SETTINGS
from barnabas.pipelines.jar_sets import resolve_jars
from barnabas.pipelines.java import find_java
from barnabas.pipelines.progress import Progress, RunSummary
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.run_options import RunOptions
from barnabas.pipelines.runner import run_pipeline_in
from benchmarks.brokers.servers import Cluster
from benchmarks.ratios import Row, table
from benchmarks.spark.rows import Costs, create, fill, one_broker
from benchmarks.spark.work import WrongResultError, bootstrap_servers

OURS, SPARK = "ours", "Spark's own"
KINDS: Final = {"delta": "Delta", "parquet": "Parquet"}
TOPIC: Final = "flights"
ROWS: Final = {
    key: row
    for kind, title in KINDS.items()
    for key, row in (
        (kind, Row(f"{title}, each record a row", "rows/s", 1.0, is_at_least=True)),
        (f"{kind} batches", Row("... its batches alone", "rows/s", None, is_at_least=True)),
        (f"{kind} cpu", Row("... processor time", "s", None, is_at_least=False)),
    )
}
Figures = dict[str, dict[str, list[float]]]


class Batches:
    """How long the batches of a run took."""

    def __init__(self) -> None:
        self.milliseconds = 0

    def said(self, line: str) -> None:
        if line.startswith("warning"):
            say(line)

    def batch(self, progress: Progress) -> None:
        self.milliseconds += progress.duration_ms

    def ended(self, summary: RunSummary) -> None:
        """Nothing to say."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark.tables", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seconds", type=int, default=300, help="no round begins later, but the first")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every figure")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.records < 1:
        parser.error("--rounds and --records must be at least 1")
    until = time.monotonic() + options.seconds
    figures: Figures = {}
    java = find_java()
    jars = (*resolve_connector(java, None, say), *resolve_jars(DELTA, java, None, say))
    with tempfile.TemporaryDirectory(prefix="tables-") as name:
        directory = Path(name)
        spark_options = session.SparkOptions(
            java, jars, directory / "spark", "benchmark", settings=tuple(DELTA_SETTINGS.items())
        )
        with one_broker(directory / "broker") as running, session.spark_session(spark_options) as spark:
            create(running, TOPIC)
            fill(spark, running, TOPIC, 0, options.records)
            for number in range(options.rounds + 1):
                if number > 1 and time.monotonic() > until:
                    say(f"the time is over after {number - 1} of {options.rounds} rounds")
                    break
                for kind in options.kinds:
                    for who in (OURS, SPARK) if number % 2 else (SPARK, OURS):
                        found = turn(spark, running, directory / "turn", kind, who, options.records)
                        say(f"round {number}: {kind}, {who}: " + ", ".join(f"{each:,.0f}" for each in found))
                        if number:
                            keep(figures, kind, who, found)
    print(f"{options.records:,} records, {rounds_of(figures)} rounds")
    print(table(ROWS, figures, OURS, SPARK, "ours / Spark's own"))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    return 0


def keep(figures: Figures, kind: str, who: str, found: tuple[float, float, float]) -> None:
    for row, figure in zip((kind, f"{kind} batches", f"{kind} cpu"), found, strict=True):
        figures.setdefault(row, {}).setdefault(who, []).append(figure)


def rounds_of(figures: Figures) -> int:
    return round(statistics.median(len(each) for by_kind in figures.values() for each in by_kind.values()))


def turn(
    spark: Any, running: Cluster, directory: Path, kind: str, who: str, records: int
) -> tuple[float, float, float]:
    """Rows a second of all and of the batches alone, and the processor time in seconds, of one table."""
    directory.mkdir()
    try:
        target = directory / "table"
        pipeline = read_pipeline(
            written_file(
                TOPIC, str(target), kind, (), (), SourceOptions(), directory / "t.yaml", bootstrap_servers(running)
            )
        )
        made = spark.newSession()
        costs = Costs(spark)
        if who == OURS:
            told = Batches()
            run_pipeline_in(made, pipeline, RunOptions(bootstrap_servers(running), once=True), told)
            milliseconds = told.milliseconds
        else:
            (source,) = pipeline.sources
            milliseconds = of_spark(made, running, directory, kind, source.schema, source.max_records_per_batch)
        wall, cpu = costs.wall(), costs.cpu()
        count = made.read.format(kind).load(str(target)).count()
        if count != records:
            raise WrongResultError(f"{who} wrote {count:,} rows instead of {records:,}")
    finally:
        shutil.rmtree(directory)
    return records / wall, records / milliseconds * 1_000, cpu


def of_spark(made: Any, running: Cluster, directory: Path, kind: str, schema: str, batch_rows: int) -> int:
    """Spark's own write, as its guide has it; the milliseconds of its batches."""
    from pyspark.sql import functions as F  # noqa: N812

    records = (
        made.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers(running))
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", batch_rows)
        .load()
    )
    rows = records.select(F.from_json(F.col("value").cast("string"), schema).alias("row")).select("row.*")
    query = (
        rows.writeStream.format(kind)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(directory / "table"))
    )
    query.awaitTermination()
    return sum(int(each["durationMs"].get("triggerExecution", 0)) for each in query.recentProgress)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
