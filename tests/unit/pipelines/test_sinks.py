"""A Parquet table's batches take their place whole, and belong to one state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import dataset, parquet

from barnabas.pipelines.definition import Pipeline, PipelineError
from barnabas.pipelines.sinks import MARKER, prepare_tables, publish
from tests.unit.pipelines.made_pipelines import made_pipeline


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return made_pipeline(tmp_path)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


def put_batch(table: Path, batch_id: int, *values: int) -> None:
    """Writes a batch as Spark does, and publishes it."""
    hidden = table / f".batch_id={batch_id}.being-written"
    hidden.mkdir(parents=True)
    parquet.write_table(pa.table({"value": pa.array(values, pa.int64())}), hidden / "part-0.parquet")
    publish(hidden, table, batch_id)


def read(table: Path) -> list[tuple[int, int]]:
    rows = dataset.dataset(table, partitioning="hive").to_table().to_pylist()
    return sorted((row["batch_id"], row["value"]) for row in rows)


def test_a_repeated_batch_replaces_itself(pipeline: Pipeline, table: Path) -> None:
    prepare_tables(pipeline, "one", has_state=False)
    put_batch(table, 0, 1, 2)
    put_batch(table, 1, 3)
    put_batch(table, 1, 4, 5)
    assert read(table) == [(0, 1), (0, 2), (1, 4), (1, 5)]
    assert sorted(entry.name for entry in table.iterdir()) == [MARKER, "batch_id=0", "batch_id=1"]


def test_a_batch_without_rows_has_no_place(pipeline: Pipeline, table: Path) -> None:
    prepare_tables(pipeline, "one", has_state=False)
    put_batch(table, 0, 1)
    put_batch(table, 1)
    put_batch(table, 0)
    assert [entry.name for entry in table.iterdir()] == [MARKER]


def test_what_a_killed_run_was_writing_is_removed(pipeline: Pipeline, table: Path) -> None:
    prepare_tables(pipeline, "one", has_state=False)
    put_batch(table, 0, 1)
    for name in (".batch_id=1.being-written", ".batch_id=0.replaced"):
        (table / name).mkdir()
        (table / name / "part-0.parquet").write_bytes(b"torn")
    assert read(table) == [(0, 1)]
    prepare_tables(pipeline, "one", has_state=True)
    assert sorted(entry.name for entry in table.iterdir()) == [MARKER, "batch_id=0"]


@pytest.mark.parametrize(
    ("change", "told"),
    [({}, "an earlier state, and this run begins anew"), ({"name": "other"}, "pipeline delays, and this run begins")],
)
def test_a_table_of_another_state_is_refused(
    pipeline: Pipeline, table: Path, change: dict[str, str], told: str
) -> None:
    prepare_tables(pipeline, "one", has_state=False)
    put_batch(table, 0, 1)
    with pytest.raises(PipelineError, match=rf"delays.yaml:33: {table} holds a table written from {told}"):
        prepare_tables(replace(pipeline, **change), "two", has_state=False)  # type: ignore[arg-type]
    assert read(table) == [(0, 1)]


def test_a_directory_of_something_else_is_refused(pipeline: Pipeline, table: Path) -> None:
    table.mkdir()
    (table / "letters.txt").touch()
    with pytest.raises(PipelineError, match=r"holds what no pipeline has written \(letters.txt\)"):
        prepare_tables(pipeline, "one", has_state=False)


def test_a_table_that_has_gone_is_told(pipeline: Pipeline) -> None:
    with pytest.raises(PipelineError, match="has not the batches any more"):
        prepare_tables(pipeline, "one", has_state=True)


def test_an_empty_table_may_change_hands(pipeline: Pipeline, table: Path) -> None:
    prepare_tables(pipeline, "one", has_state=False)
    prepare_tables(pipeline, "two", has_state=False)
    assert '"two"' in (table / MARKER).read_text()


def test_a_directory_that_cannot_be_made_is_told_at_its_line(pipeline: Pipeline, table: Path) -> None:
    table.touch()
    with pytest.raises(PipelineError, match=r"delays.yaml:33: the Parquet directory .* cannot be used: File exists"):
        prepare_tables(pipeline, "one", has_state=False)
