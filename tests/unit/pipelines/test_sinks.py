"""A Parquet table's batches take their place whole, and belong to one state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import dataset, parquet

from barnabas.pipelines.definition import Pipeline, PipelineError
from barnabas.pipelines.sinks import MARKER, check_tables, prepare_tables, publish
from barnabas.pipelines.state_directory import StateDirectory
from tests.unit.pipelines.made_pipelines import made_pipeline


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return made_pipeline(tmp_path)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


@pytest.fixture
def state(pipeline: Pipeline) -> StateDirectory:
    return StateDirectory(pipeline.state_directory)


def begin_batch(state: StateDirectory, batch_id: int) -> None:
    """Has Spark's checkpoint say that the batch was begun."""
    offsets = state.checkpoint("by_day") / "offsets"
    offsets.mkdir(parents=True, exist_ok=True)
    (offsets / str(batch_id)).touch()


def put_batch(table: Path, batch_id: int, *values: int) -> None:
    """Writes a batch as Spark does, and publishes it."""
    hidden = table / f".batch_id={batch_id}.being-written"
    hidden.mkdir(parents=True)
    parquet.write_table(pa.table({"value": pa.array(values, pa.int64())}), hidden / "part-0.parquet")
    publish(hidden, table, batch_id)


def read(table: Path) -> list[tuple[int, int]]:
    rows = dataset.dataset(table, partitioning="hive").to_table().to_pylist()
    return sorted((row["batch_id"], row["value"]) for row in rows)


def test_a_repeated_batch_replaces_itself(pipeline: Pipeline, state: StateDirectory, table: Path) -> None:
    prepare_tables(pipeline, state, "one")
    put_batch(table, 0, 1, 2)
    put_batch(table, 1, 3)
    put_batch(table, 1, 4, 5)
    assert read(table) == [(0, 1), (0, 2), (1, 4), (1, 5)]
    assert sorted(entry.name for entry in table.iterdir()) == [MARKER, "batch_id=0", "batch_id=1"]


def test_a_batch_without_rows_has_no_place(pipeline: Pipeline, state: StateDirectory, table: Path) -> None:
    prepare_tables(pipeline, state, "one")
    put_batch(table, 0, 1)
    put_batch(table, 1)
    put_batch(table, 0)
    assert [entry.name for entry in table.iterdir()] == [MARKER]


def test_what_a_killed_run_was_writing_is_removed(pipeline: Pipeline, state: StateDirectory, table: Path) -> None:
    prepare_tables(pipeline, state, "one")
    put_batch(table, 0, 1)
    for name in (".batch_id=1.being-written", ".batch_id=0.replaced"):
        (table / name).mkdir()
        (table / name / "part-0.parquet").write_bytes(b"torn")
    assert read(table) == [(0, 1)]
    begin_batch(state, 0)
    prepare_tables(pipeline, state, "one")
    assert sorted(entry.name for entry in table.iterdir()) == [MARKER, "batch_id=0"]


@pytest.mark.parametrize(
    ("change", "told"),
    [({}, "an earlier state, and this run begins anew"), ({"name": "other"}, "pipeline delays, and this run begins")],
)
def test_a_table_of_another_state_is_refused(
    pipeline: Pipeline, state: StateDirectory, table: Path, change: dict[str, str], told: str
) -> None:
    prepare_tables(pipeline, state, "one")
    put_batch(table, 0, 1)
    with pytest.raises(PipelineError, match=rf"delays.yaml:33: {table} holds a table written from {told}"):
        prepare_tables(replace(pipeline, **change), state, "two")  # type: ignore[arg-type]
    assert read(table) == [(0, 1)]


def test_a_directory_of_something_else_is_refused(pipeline: Pipeline, state: StateDirectory, table: Path) -> None:
    table.mkdir()
    (table / "letters.txt").touch()
    with pytest.raises(PipelineError, match=r"holds files that no pipeline has written \(letters.txt\)"):
        prepare_tables(pipeline, state, "one")


def test_a_table_that_has_gone_is_told(pipeline: Pipeline, state: StateDirectory) -> None:
    begin_batch(state, 0)
    with pytest.raises(PipelineError, match="lacks batches that"):
        prepare_tables(pipeline, state, "one")


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_table_that_is_newer_than_its_state_is_refused(
    pipeline: Pipeline, state: StateDirectory, table: Path, ahead: int
) -> None:
    prepare_tables(pipeline, state, "one")
    for batch_id in (0, 1, 2):
        begin_batch(state, batch_id)
        put_batch(table, batch_id, batch_id)
    prepare_tables(pipeline, state, "one")
    # An older copy of the state was brought back: its next batch would be less than the one that is there.
    known = 2 - ahead
    for batch_id in range(known + 1, 3):
        (state.checkpoint("by_day") / "offsets" / str(batch_id)).unlink()
    with pytest.raises(PipelineError, match=rf"delays.yaml:33: \S+ has batch 2, and \S+ knows of none after {known}"):
        prepare_tables(pipeline, state, "one")
    assert len(read(table)) == 3


def test_the_marker_of_a_table_is_written_once(pipeline: Pipeline, state: StateDirectory, table: Path) -> None:
    # Written anew by each run, it would be torn by one that is killed, and the table be taken for a stranger's.
    prepare_tables(pipeline, state, "one")
    before = (table / MARKER).stat()
    prepare_tables(pipeline, state, "one")
    after = (table / MARKER).stat()
    # Not the whole: it is read in between, which changes st_atime.
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)


def test_a_check_of_tables_makes_nothing(pipeline: Pipeline, state: StateDirectory, table: Path) -> None:
    check_tables(pipeline, state, None)
    assert not table.exists()


def test_an_empty_table_may_change_hands(pipeline: Pipeline, state: StateDirectory, table: Path) -> None:
    prepare_tables(pipeline, state, "one")
    prepare_tables(pipeline, state, "two")
    assert '"two"' in (table / MARKER).read_text()


def test_a_directory_that_cannot_be_made_is_told_at_its_line(
    pipeline: Pipeline, state: StateDirectory, table: Path
) -> None:
    table.touch()
    with pytest.raises(
        PipelineError, match=r"delays.yaml:33: the Parquet directory .* cannot be used: Not a directory"
    ):
        prepare_tables(pipeline, state, "one")
