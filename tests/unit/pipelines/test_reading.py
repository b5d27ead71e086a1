"""Pipelines of files: what is taken, and what is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.pipelines.definition import (
    Column,
    Delivery,
    DeltaSink,
    IcebergSink,
    OnError,
    ParquetSink,
    PipelineError,
    ReadMode,
    SourceFormat,
    Starting,
    StartingPosition,
    TopicSink,
    Watermark,
)
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.record_columns import RewrittenSql
from tests.unit.pipelines.pipeline_files import FLIGHTS, flights, read_flights


def test_reads_a_whole_pipeline(tmp_path: Path) -> None:
    pipeline = read_flights(tmp_path, ("sinks:", "trigger: 5 seconds\nstate: kept/state\nsinks:"))
    assert (pipeline.name, pipeline.group_id, pipeline.trigger_ms) == ("delays", "barnabas-pipeline-delays", 5_000)
    assert pipeline.state_directory == tmp_path / "kept" / "state"
    stream, table = pipeline.sources
    assert (stream.name, stream.topic) == ("flights", "flights")
    assert (stream.read, stream.format) == (ReadMode.STREAM, SourceFormat.JSON)
    assert stream.columns == (Column("carrier", "STRING"), Column("delay", "DOUBLE"), Column("time", "TIMESTAMP"))
    assert stream.schema == "`carrier` STRING, `delay` DOUBLE, `time` TIMESTAMP"
    assert (stream.starting, stream.max_records_per_batch, stream.allow_data_loss) == (Starting(), 500_000, False)
    assert (table.name, table.read) == ("airlines", ReadMode.TABLE)
    assert (stream.line, stream.topic_line, stream.schema_line, table.line) == (3, 4, 5, 6)
    named, by_hour = pipeline.steps
    assert (named.reads, by_hour.reads) == (("flights", "airlines"), ("named",))
    assert (named.line, named.watermark) == (11, Watermark("time", 3_600_000, 16))
    assert named.watermark is not None
    assert named.watermark.ahead_ms == 86_400_000
    assert (by_hour.line, by_hour.watermark) == (17, None)
    assert [by_hour.line_at(RewrittenSql(by_hour.sql).offset_of(line, 0)) for line in (1, 2, 3)] == [19, 20, 21]
    key = ("name", "hour")
    topic = TopicSink("delays", "by_hour", line=25, from_line=26, key=key, key_line=27)
    parquet = ParquetSink(tmp_path / "out" / "delays", "by_hour", line=28, from_line=29, key=key, key_line=30)
    assert pipeline.sinks == (topic, parquet)
    assert [(query.from_view, query.sinks) for query in pipeline.queries] == [("by_hour", (topic, parquet))]


def test_tables_may_be_at_urls_and_file_urls_are_paths(tmp_path: Path) -> None:
    _, delta = read_flights(tmp_path, ("parquet: out/delays", "delta: S3A://bucket/lake/delays/")).sinks
    assert isinstance(delta, DeltaSink)
    assert (delta.directory, delta.url) == (None, "s3a://bucket/lake/delays")
    assert delta.target == "delta s3a://bucket/lake/delays"
    _, iceberg = read_flights(tmp_path, ("parquet: out/delays", "iceberg: hdfs://nn:8020/delays")).sinks
    assert isinstance(iceberg, IcebergSink)
    assert (iceberg.directory, iceberg.table, iceberg.target) == (None, "", "iceberg hdfs://nn:8020/delays")
    here = f"file://{tmp_path}/here"
    pipeline = read_flights(
        tmp_path, ("parquet: out/delays", f"delta: {here}/t"), ("sinks:", f"state: {here}/s\nsinks:")
    )
    assert pipeline.state_directory == tmp_path / "here" / "s"


def test_a_topic_is_written_exactly_once_unless_its_sink_says_otherwise(tmp_path: Path) -> None:
    (topic, _) = read_flights(tmp_path).sinks
    assert isinstance(topic, TopicSink)
    assert topic.delivery is Delivery.EXACTLY_ONCE
    for delivery in Delivery:
        text = ("  - topic: delays\n", f"  - topic: delays\n    delivery: {delivery.value}\n")
        (topic, _) = read_flights(tmp_path, text).sinks
        assert isinstance(topic, TopicSink)
        assert topic.delivery is delivery


def test_how_far_ahead_of_now_a_row_may_be(tmp_path: Path) -> None:
    pipeline = read_flights(tmp_path, ("delay: 1 hour}", "delay: 1 hour, ahead: 365 days}"))
    assert pipeline.steps[0].watermark == Watermark("time", 3_600_000, 16, 365 * 86_400_000)


def test_what_becomes_of_a_record_that_does_not_fit(tmp_path: Path) -> None:
    # A table is read whole by each run, so that each would send the same letters.
    assert [source.on_error for source in read_flights(tmp_path).sources] == [OnError.TOPIC, OnError.FAIL]
    skipping = read_flights(tmp_path, ("    topic: flights\n", "    topic: flights\n    on_error: skip\n"))
    assert skipping.sources[0].on_error is OnError.SKIP
    assert skipping.letters_topic == "delays.dlq"


def test_keeps_the_state_beside_the_file_and_paths_relative_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inner").mkdir()
    flights(tmp_path / "inner")
    monkeypatch.chdir(tmp_path)
    pipeline = read_pipeline(Path("inner/delays.yaml"))
    assert pipeline.state_directory == tmp_path / "inner" / ".barnabas" / "delays"
    assert pipeline.sinks[1].target == f"parquet {tmp_path}/inner/out/delays"
    assert str(pipeline.error("wrong", 7)) == "inner/delays.yaml:7: wrong"


def test_writes_a_source_to_a_sink_without_steps(tmp_path: Path) -> None:
    path = tmp_path / "copy.yaml"
    path.write_text(
        "name: copy\nsources: {A: {topic: a, schema: x INT}}\nsinks: [{topic: b, from: a, key: [_KEY, X]}]\n",
        encoding="utf-8",
    )
    pipeline = read_pipeline(path)
    assert pipeline.steps == ()
    assert pipeline.sinks[0].from_view == "A"


@pytest.mark.parametrize(
    ("written", "starting"),
    [
        ("earliest", Starting(StartingPosition.EARLIEST)),
        ("latest", Starting(StartingPosition.LATEST)),
        ("2013-01-01", Starting(StartingPosition.TIMESTAMP, 1_356_998_400_000)),
        ("2013-01-01T00:00:00.250Z", Starting(StartingPosition.TIMESTAMP, 1_356_998_400_250)),
        ("'2013-01-01 01:00:00+01:00'", Starting(StartingPosition.TIMESTAMP, 1_356_998_400_000)),
    ],
)
def test_begins_where_it_is_told(tmp_path: Path, written: str, starting: Starting) -> None:
    pipeline = read_flights(tmp_path, ("  airlines:\n", f"    starting: {written}\n  airlines:\n"))
    assert pipeline.sources[0].starting == starting


REFUSALS = (Path(__file__).parent / "refused_pipelines.txt").read_text(encoding="utf-8").split("\n\n")


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.strip().splitlines()[-1][2:50])
def test_refuses_with_line_reason_and_remedy(tmp_path: Path, case: str) -> None:
    """Each case of the text file is a difference of the file of `pipeline_files`, and what is said of it."""
    lines = [(line[:2], line[2:] + "\n") for line in case.strip("\n").splitlines()]
    old = "".join(line for mark, line in lines if mark in {"  ", "- "})
    new = "".join(line for mark, line in lines if mark in {"  ", "+ "})
    (message,) = (line.rstrip("\n") for mark, line in lines if mark == "! ")
    path = flights(tmp_path, (old, new))
    with pytest.raises(PipelineError) as caught:
        read_pipeline(path)
    assert str(caught.value) == f"{path}:{message.format(directory=tmp_path)}"


@pytest.mark.parametrize(
    ("scalar", "line"),
    [
        ("carrier STRING, delay DUBLE", 5),
        (">-\n      carrier STRING,\n      delay DUBLE", 7),
        ("|\n      carrier STRING,\n\n      delay DUBLE", 8),
        ("carrier STRING,\n      delay DUBLE", 6),
    ],
)
def test_finds_a_fault_of_a_schema_in_its_own_line(tmp_path: Path, scalar: str, line: int) -> None:
    path = flights(tmp_path, ("carrier STRING, delay DOUBLE, time TIMESTAMP", scalar))
    with pytest.raises(PipelineError, match=rf'delays\.yaml:{line}: sources.flights: schema: "DUBLE" is not a type'):
        read_pipeline(path)


@pytest.mark.parametrize(
    ("scalar", "line"),
    [
        ("SELECT name, FROM named WHERE", 18),
        (">-\n      SELECT name\n      FROM named\n      WHERE", 21),
        ("|-\n      -- a comment\n\n      SELECT name\n      FROM named\n      WHERE", 23),
        ('"SELECT name\n      FROM named\n      WHERE"', 20),
    ],
)
def test_finds_a_fault_of_sql_in_its_own_line(tmp_path: Path, scalar: str, line: int) -> None:
    sql = FLIGHTS[FLIGHTS.index("|\n      SELECT name") : FLIGHTS.index("\nsinks:")]
    path = flights(tmp_path, (sql, scalar))
    with pytest.raises(PipelineError, match=rf'delays\.yaml:{line}: steps\[2\]: by_hour: SQL error near "WHERE"'):
        read_pipeline(path)


def test_bounds_what_a_file_may_have(tmp_path: Path) -> None:
    many = "".join(f"  - {{name: s{number}, sql: SELECT * FROM flights}}\n" for number in range(99))
    with pytest.raises(PipelineError, match=r"delays\.yaml:11: steps has 101 items: there must be 1 to 100"):
        read_flights(tmp_path, ("steps:\n", f"steps:\n{many}"))
    sources = "".join(f"  s{number}: {{topic: t, schema: a INT}}\n" for number in range(49))
    with pytest.raises(PipelineError, match=r"delays\.yaml:3: sources: there must be 1 to 50 sources, not 51"):
        read_flights(tmp_path, ("sources:\n", f"sources:\n{sources}"))


def test_settings_of_spark_are_what_was_written_and_not_what_yaml_makes_of_it(tmp_path: Path) -> None:
    written = {"00123": "00123", "0x1F": "0x1F", "0.10": "0.10", "4": "4", "True": "true", "'no'": "no", '""': ""}
    settings = "".join(f"  spark.a.b{number}: {value}\n" for number, value in enumerate(written))
    pipeline = read_flights(tmp_path, ("sinks:", f"spark:\n{settings}sinks:"))
    assert [value for _, value in pipeline.spark] == list(written.values())


def test_errors_are_one_line_without_a_file_too() -> None:
    assert str(PipelineError("Java is\n  missing")) == "Java is missing"
    assert str(PipelineError("gone", path=Path("a.yaml"))) == "a.yaml: gone"
