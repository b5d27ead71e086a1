"""Tables at URLs: of a file system of Hadoop's that is no path of this machine. Each batch is there once, whatever ends
a run, also in the middle of a commit; and one run has a table, without a lock that a store could keep.

Files stand for topics, and one Spark is for all. Iceberg's tables are those of a catalog over the URL, and what these
have besides is in `test_pipeline_tables`. Real kills are in `test_pipeline_table_command`.
"""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from barnabas.pipelines.definition import PipelineError
from barnabas.pipelines.lake_sink import LakeWriter
from barnabas.pipelines.sinks import writer_of, writers_of
from barnabas.pipelines.sources import KafkaOptions
from tests.spark.pipeline_runs import APPENDED, KEYED, PIPELINE, Runs, mount, row

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

KINDS = ("delta", "iceberg")
NAMES = (f"lake{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def spark(spark_with_tables: Any) -> Any:
    return spark_with_tables


def runs_at(spark: Any, directory: Path, kind: str, how: str) -> Runs:
    """Of a table at a URL that nobody has used; its files are in `store` of the directory."""
    runs, name = Runs(spark, directory, "topic: unused, from: flights"), next(NAMES)
    runs.having(f"{kind}: 'viewfs://{name}/tables/flights/', {how}", PIPELINE + mount(name, directory / "store"))
    return runs


def uncommit(runs: Runs, kind: str) -> None:
    """What is there when a run is killed before the last commit has its name: its files, and no commit of them."""
    table = runs.directory / "store" / "flights"
    if kind == "delta":
        newest = max((table / "_delta_log").glob("*.json"))
        newest.rename(newest.with_name(f".{newest.name}.0.tmp"))
        newest.with_suffix(".crc").unlink(missing_ok=True)
        runs.spark.sparkContext._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    else:
        metadata = table / "metadata"
        newest = max(metadata.glob("v*.metadata.json"), key=lambda path: int(path.name[1:].partition(".")[0]))
        version = int(newest.name[1:].partition(".")[0])
        newest.rename(metadata / "0.metadata.json")
        (metadata / "version-hint.text").write_text(str(version - 1))
    for checksum in table.rglob(".*.crc"):
        checksum.unlink()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_at_a_url_once_although_runs_end_in_a_commit_and_behind_it(
    spark: Any, tmp_path: Path, kind: str
) -> None:
    runs = runs_at(spark, tmp_path, kind, APPENDED)
    assert runs.pipeline.sinks[0].target.endswith("/tables/flights")
    runs.add([row(1), row(2, "DL")])
    runs.add([row(3)])
    runs.run(killed_after=1)
    expected = [(1, "UA", "u"), (2, "DL", "u"), (3, "UA", "u")]
    assert runs.table() == expected
    assert runs.state.batches_done("flights").finished == 0
    for note in runs.state.table_notes.iterdir():
        note.write_text(json.dumps({**json.loads(note.read_text()), "next_batch": 1, "mark": 0}))
    uncommit(runs, kind)
    assert runs.table() == expected[:2]
    runs.run()
    assert runs.table() == expected
    assert runs.state.batches_done("flights").finished == 1
    runs.add([row(4)])
    runs.run()
    assert runs.table() == [*expected, (4, "UA", "u")]


def test_a_table_at_a_url_has_newest_rows_new_columns_and_few_files(spark: Any, tmp_path: Path) -> None:
    how = f"{KEYED}, compact: {{every: 2, target: 1MiB}}"
    runs = runs_at(spark, tmp_path, "delta", how)
    runs.add([row(1, minute=1), row(2), row(1, "old", minute=0)])
    runs.add([row(2, op="d"), row(3, "DL")])
    runs.run()
    assert runs.table() == [(1, "UA"), (3, "DL")]
    writer = writer_of(runs.pipeline, runs.pipeline.sinks[0])
    assert isinstance(writer, LakeWriter)
    assert writer.files(runs.session(), 1 << 20).files == 1
    text = runs.pipeline.path.read_text()
    runs.reading(text.replace("at TIMESTAMP", "at TIMESTAMP, seats BIGINT").replace("at, op", "at, seats, op"))
    runs.add([{**row(1, "AA"), "seats": 100}])
    runs.run(killed_after=2)
    runs.run()
    assert runs.table() == [(1, "AA", 100), (3, "DL", None)]


def test_a_table_at_a_url_has_one_state_and_one_run(spark: Any, tmp_path: Path) -> None:
    runs = runs_at(spark, tmp_path, "delta", APPENDED)
    runs.add([row(1)])
    runs.run()
    state, pipeline = runs.state, runs.pipeline
    # A copy of the state has written batch 0, of other records.
    offsets = state.checkpoint("flights") / "offsets" / "0"
    before = offsets.read_text()
    offsets.write_text(before.replace('"logOffset":0', '"logOffset":7'))
    assert offsets.read_text() != before
    with pytest.raises(PipelineError, match=r"viewfs://\S+/flights has a batch 0 of other records than this state's"):
        runs.run()
    offsets.write_text(before)
    # Two runs of copies of the state, which their locks know nothing of.
    (query,), state_id = pipeline.queries, state.state_id() or ""
    session = runs.session()
    frame = session.createDataFrame([(2, "DL", "u", None)], "id INT, carrier STRING, op STRING, at TIMESTAMP")
    (one,), (two,) = (writers_of(pipeline, query, KafkaOptions("unused:1")) for _ in range(2))
    for writer in (one, two):
        writer.recover(frame, state, state_id)
    with pytest.raises(PipelineError, match="is written by another run too"):
        one.write(frame, 1)
    assert two.write(frame, 1).is_computed
    assert [number for number, *_ in runs.table()] == [1, 2]
    state.directory.rename(tmp_path / "state")
    with pytest.raises(PipelineError, match=r"yaml:7: viewfs://\S+ holds rows that another state has written"):
        runs.run()
    shutil.rmtree(state.directory)
    (tmp_path / "state").rename(state.directory)
    shutil.rmtree(tmp_path / "store" / "flights")
    with pytest.raises(PipelineError, match=r"table viewfs://\S+ is gone, and the state says that batches"):
        runs.run()


def test_what_is_no_table_and_what_spark_has_no_file_system_for_is_refused(spark: Any, tmp_path: Path) -> None:
    runs = runs_at(spark, tmp_path, "iceberg", APPENDED)
    (tmp_path / "store" / "flights" / "_delta_log").mkdir(parents=True)
    with pytest.raises(PipelineError, match=r"holds files that are no Iceberg table \(_delta_log\): give the"):
        runs.run()
    for url, told in (
        (
            "s3a://bucket/t",
            r"Spark has no file system for s3a:// .*: add `jars: \[org.apache.hadoop:hadoop-aws:3\.4\.1\]`",
        ),
        ("s3://bucket/t", r"No FileSystem for scheme \"s3\".*: write s3a://"),
        ("xyz://place/t", r"its class by spark.hadoop.fs.xyz.impl under `spark`"),
    ):
        runs.having(f"delta: '{url}', {APPENDED}")
        with pytest.raises(PipelineError, match=f"yaml:7: .*{told}"):
            runs.run()
