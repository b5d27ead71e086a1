"""Tables at URLs: of a file system of Hadoop's that is no path of this machine. One run has a table,
without a lock that a store could keep.

Files stand for topics, and one Spark is for all. That each batch is there once, also in the middle of a commit, and
what tables of a catalog have besides, is in `test_pipeline_tables`. Real kills are in `test_pipeline_table_command`.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from barnabas.pipelines.definition import PipelineError
from barnabas.pipelines.lake_sink import LakeWriter
from barnabas.pipelines.sinks import writer_of, writers_of
from barnabas.pipelines.sources import KafkaOptions
from tests.spark.pipeline_runs import APPENDED, KEYED, row, runs_at

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]


@pytest.fixture(scope="module")
def spark(spark_with_tables: Any) -> Any:
    return spark_with_tables


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
