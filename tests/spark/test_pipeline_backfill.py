"""A pipeline computed again over a part of the past, into tables that take the place of the old ones; and what is left
of both when that is killed between any two of its steps. One broker, and one Spark for all.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyarrow import dataset

from barnabas.pipelines import backfill as backfilling
from barnabas.pipelines.backfill import Backfill, refuse_half_replaced
from barnabas.pipelines.definition import Pipeline, PipelineError
from barnabas.pipelines.delta_sink import DeltaTable
from barnabas.pipelines.iceberg_sink import IcebergTable
from barnabas.pipelines.machine_check import check_directories
from barnabas.pipelines.offset_ranges import OffsetRange, parse_bound, read_range
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.run_options import RunOptions
from barnabas.pipelines.runner import run_pipeline_in
from barnabas.pipelines.sinks import settings_of
from barnabas.pipelines.state_definition import definition_of
from barnabas.pipelines.state_directory import spark_path
from tests.spark.pipeline_runs import HADOOP, mount

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

PARTITIONS = 2
RECORDS = 60
SECOND_MS = 1_000
BEGIN_MS = 1_356_998_400_000
EXTENSIONS = "spark.sql.extensions"


class KilledError(Exception):
    """Stands for the end of the process."""


class Quiet:
    """A run's progress, of which the batches are kept."""

    def __init__(self) -> None:
        self.batches: list[Any] = []

    def said(self, line: str) -> None: ...

    def batch(self, progress: Any) -> None:
        self.batches.append(progress)

    def ended(self, summary: Any) -> None: ...


@pytest.fixture(scope="module")
def brokers(brokers: str) -> str:
    """With records 0 to 59 in `flights`, a second apart, the even ones in partition 0."""
    admin = AdminClient({"bootstrap.servers": brokers})
    for made in admin.create_topics([NewTopic("flights", PARTITIONS, 1, config={"retention.ms": "-1"})]).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": brokers})
    for number in range(RECORDS):
        value = json.dumps({"id": number, "carrier": "AB"[number % 2]})
        producer.produce("flights", value, partition=number % 2, timestamp=BEGIN_MS + number * SECOND_MS)
    assert producer.flush(30) == 0
    return brokers


@pytest.fixture(scope="module")
def spark(spark_with_tables: Any) -> Any:
    return spark_with_tables


def pipeline_of(
    directory: Path,
    sink: str,
    sql: str = "SELECT carrier, COUNT(*) AS flights FROM flights GROUP BY carrier",
    records: int = 1_000,
    spark: str = "",
) -> Pipeline:
    path = directory / "flights.yaml"
    path.write_text(
        f"""\
name: flights
sources:
  flights: {{topic: flights, schema: "id INT, carrier STRING", max_records_per_batch: {records}}}
steps:
  - {{name: counted, sql: "{sql}"}}
sinks:
  - {{{sink}, from: counted, key: carrier}}
{spark}"""
    )
    return read_pipeline(path)


def run(spark: Any, pipeline: Pipeline, brokers: str, offsets: OffsetRange | None = None, **options: Any) -> Quiet:
    session = spark.newSession()
    for name, value in settings_of(pipeline).items():
        if name != EXTENSIONS:
            session.conf.set(name.removeprefix(HADOOP), value)
    progress = Quiet()
    run_pipeline_in(session, pipeline, RunOptions(brokers, once=True, offsets=offsets, **options), progress)
    return progress


def compute(spark: Any, backfill: Backfill, brokers: str, **bounds: list[str]) -> Quiet:
    first, last = (parse_bound(f"--{end}", bounds.get(end, [])) for end in ("begin", "end"))
    offsets = backfill.begin(lambda: read_range(backfill.pipeline, brokers, first, last), has_range=bool(bounds))
    return run(spark, backfill.staged, brokers, offsets, commits_offsets=False, finish=backfill.commit_tables)


def rows_of(spark: Any, kind: str, table: Path) -> dict[str, int]:
    """The newest row of each carrier."""
    if kind == "parquet":
        rows = dataset.dataset(table, partitioning="hive").to_table().to_pylist()
        return {row["carrier"]: row["flights"] for row in sorted(rows, key=lambda row: row["batch_id"])}
    frame = spark.newSession().read.format(kind).load(spark_path(table))
    return {row.carrier: row.flights for row in frame.collect()}


def test_a_run_over_a_range_reads_each_record_of_it_once_and_none_beyond(
    spark: Any, brokers: str, tmp_path: Path
) -> None:
    """Partitions that come to their ends at different batches; and the next run goes on from there."""
    pipeline = pipeline_of(tmp_path, "parquet: out", records=20)
    offsets = read_range(
        pipeline,
        brokers,
        parse_bound("--from", ["flights:0=5"]),
        parse_bound("--to", ["2013-01-01T00:00:50Z", "flights:1=8"]),
    )
    assert offsets == OffsetRange({"flights": {0: 5, 1: 0}}, {"flights": {0: 25, 1: 8}})
    progress = run(spark, pipeline, brokers, offsets)
    assert sum(batch.alone.rows_in for batch in progress.batches) == 28
    assert rows_of(spark, "parquet", tmp_path / "out") == {"A": 20, "B": 8}
    assert run(spark, pipeline, brokers, offsets).batches == []
    run(spark, pipeline, brokers)
    assert rows_of(spark, "parquet", tmp_path / "out") == {"A": 25, "B": 30}


@pytest.mark.parametrize(
    "kind",
    [
        "parquet",
        "iceberg",
        pytest.param(
            "delta",
            marks=pytest.mark.night("44 s of processor time; changes places as Parquet does; found nothing yet"),
        ),
    ],
)
def test_a_changed_pipeline_is_computed_again_and_takes_the_place_of_the_old_one(
    spark: Any, brokers: str, tmp_path: Path, kind: str
) -> None:
    """Killed at each step it goes on; until the last the old table is whole; the next run goes on with the new one."""
    old = pipeline_of(tmp_path, f"{kind}: out")
    run(spark, old, brokers)
    assert rows_of(spark, kind, tmp_path / "out") == {"A": 30, "B": 30}
    changed = "SELECT carrier, SUM(IF(id < 40, 1L, 0L)) AS flights, MAX(id) AS latest FROM flights GROUP BY carrier"
    pipeline = pipeline_of(tmp_path, f"{kind}: out", changed)
    with pytest.raises(PipelineError, match=r"step counted was changed \(.*barnabas pipeline backfill"):
        check_directories(pipeline)
    backfill = Backfill(pipeline)
    check_directories(backfill.staged)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(IcebergTable, "replace", killing(IcebergTable.replace, iter(range(2)), 1))
        with contextlib.nullcontext() if kind != "iceberg" else pytest.raises(KilledError):
            compute(spark, backfill, brokers, begin=["earliest"], end=["flights:0=25", "flights:1=25"])
    if kind == "iceberg":
        compute(spark, Backfill(pipeline), brokers)
    assert rows_of(spark, kind, tmp_path / "out") == ({"A": 20, "B": 20} if kind == "iceberg" else {"A": 30, "B": 30})
    end_by_steps(backfill)
    assert rows_of(spark, kind, tmp_path / "out") == {"A": 20, "B": 20}
    check_directories(pipeline)
    run(spark, pipeline, brokers)
    assert rows_of(spark, kind, tmp_path / "out") == {"A": 20, "B": 20}
    kept = tmp_path / "out~before"
    if kind != "iceberg":
        assert rows_of(spark, kind, kept) == {"A": 30, "B": 30}
    with pytest.raises(PipelineError, match="is still kept: remove it with --discard-old"):
        compute(spark, Backfill(pipeline), brokers)
    backfill.discard()
    assert {path.name for path in tmp_path.iterdir()} - {".out.barnabas.lock"} == {"flights.yaml", "out", ".barnabas"}
    assert [path.name for path in (tmp_path / ".barnabas").iterdir()] == ["flights"]


@pytest.mark.night("67 s of processor time; found nothing yet: Iceberg, whose content is replaced alike, is by day")
def test_a_table_at_a_url_gets_the_new_content_by_one_commit(spark: Any, brokers: str, tmp_path: Path) -> None:
    """Killed between the commit and the property that says whose it is, it goes on; the former version stays."""
    settings = mount("backfilled", tmp_path / "store").replace("{{", "{").replace("}}", "}")
    sink = "delta: viewfs://backfilled/tables/out"
    run(spark, pipeline_of(tmp_path, sink, spark=settings), brokers)
    table = tmp_path / "store" / "out"
    assert rows_of(spark, "delta", table) == {"A": 30, "B": 30}
    changed = "SELECT carrier, SUM(IF(id < 40, 1L, 0L)) AS flights, MAX(id) AS latest FROM flights GROUP BY carrier"
    pipeline = pipeline_of(tmp_path, sink, changed, spark=settings)
    backfill = Backfill(pipeline)
    with pytest.MonkeyPatch.context() as patched, pytest.raises(KilledError):
        # The first call is of the run that computes.
        patched.setattr(DeltaTable, "_set", killing(DeltaTable._set, iter(range(9)), 2))
        compute(spark, backfill, brokers, begin=["earliest"], end=["flights:0=25", "flights:1=25"])
    with pytest.raises(PipelineError, match="cut short while it took its place"):
        refuse_half_replaced(pipeline)
    compute(spark, Backfill(pipeline), brokers)
    (kept, former) = Backfill(pipeline).take_place()
    assert (kept.endswith("flights~before"), former) == (True, "version 2 of delta.`viewfs://backfilled/tables/out`")
    run(spark, pipeline, brokers)
    assert rows_of(spark, "delta", table) == {"A": 20, "B": 20}
    assert [path.name for path in (tmp_path / "store").iterdir() if path.name != "out"] == ["out~backfill"]
    assert f"nothing of {sink.partition(' ')[2]}~backfill: remove it where it is" in backfill.discard()


def end_by_steps(backfill: Backfill) -> None:
    """Killed at each call that changes something: before it and behind it."""
    for number in range(100):
        with pytest.MonkeyPatch.context() as patched:
            calls = iter(range(1_000))
            for name in ("exchange", "write_json"):
                patched.setattr(backfilling, name, killing(getattr(backfilling, name), calls, number))
            patched.setattr(Path, "rename", killing(Path.rename, calls, number))
            try:
                Backfill(backfill.pipeline).take_place()
            except KilledError:
                if Backfill(backfill.pipeline).phase is backfilling.Phase.EXCHANGING:
                    with pytest.raises(PipelineError, match="cut short while it took its place"):
                        refuse_half_replaced(backfill.pipeline)
                continue
        assert number > 3
        return
    raise AssertionError("it does not come to an end")


def killing(function: Any, calls: Iterator[int], number: int) -> Any:
    """The function, which ends the process before the call of that number, or behind it, among all."""

    def called(*arguments: Any, **named: Any) -> Any:
        call = 2 * next(calls)
        if call == number:
            raise KilledError
        result = function(*arguments, **named)
        if call + 1 == number:
            raise KilledError
        return result

    return called


def test_a_backfill_that_is_killed_while_it_computes_goes_on_or_begins_anew(
    spark: Any, brokers: str, tmp_path: Path
) -> None:
    old = pipeline_of(tmp_path, "parquet: out")
    run(spark, old, brokers)
    before = rows_of(spark, "parquet", tmp_path / "out")
    backfill = Backfill(old)
    first, last = parse_bound("--from", ["earliest"]), parse_bound("--to", ["flights:0=10", "flights:1=10"])
    half = read_range(old, brokers, first, last)
    whole = read_range(old, brokers, first, parse_bound("--to", ["flights:0=20", "flights:1=30"]))
    assert backfill.begin(lambda: whole, has_range=True) == whole
    run(spark, backfill.staged, brokers, half, commits_offsets=False)
    assert rows_of(spark, "parquet", tmp_path / "out") == before
    with pytest.raises(PipelineError, match="go on with it without --from and --to"):
        compute(spark, Backfill(old), brokers, begin=["earliest"])
    compute(spark, Backfill(old), brokers)
    assert rows_of(spark, "parquet", tmp_path / "out~backfill") == {"A": 20, "B": 30}
    Backfill(old).restart()
    assert not (tmp_path / "out~backfill").exists()
    compute(spark, Backfill(old), brokers, end=["flights:0=1", "flights:1=1"])
    Backfill(old).take_place()
    assert rows_of(spark, "parquet", tmp_path / "out") == {"A": 1, "B": 1}


def test_a_topic_that_is_written_cannot_be_replaced_by_a_backfill(brokers: str, tmp_path: Path) -> None:
    """Another one can be filled."""
    old = pipeline_of(tmp_path, "topic: counts")
    state = old.state_directory
    (state / "checkpoints/counted/offsets").mkdir(parents=True)
    (state / "checkpoints/counted/offsets/0").touch()
    definition = definition_of(old)
    (state / "definition.json").write_text(json.dumps({"version": 2, "id": "i", "definition": definition}))
    with pytest.raises(PipelineError, match=r"topic counts cannot be replaced.*such as counts-2"):
        Backfill(old).begin(lambda: OffsetRange({}, {}), has_range=False)
    Backfill(pipeline_of(tmp_path, "topic: counts-2")).begin(lambda: OffsetRange({}, {}), has_range=False)
    shutil.rmtree(state)
