"""The directories that a pipeline is to write."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from barnabas.pipelines.definition import Pipeline, PipelineError
from barnabas.pipelines.machine_check import check_directories
from barnabas.pipelines.parquet_table import ParquetTable
from barnabas.pipelines.sinks import held_tables
from barnabas.pipelines.state_directory import StateDirectory
from tests.unit.pipelines.made_pipelines import IDENTITY
from tests.unit.pipelines.pipeline_files import read_flights


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return read_flights(tmp_path)


def make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def refusal(pipeline: Pipeline) -> str:
    with pytest.raises(PipelineError) as caught:
        check_directories(pipeline)
    return str(caught.value).removeprefix(f"{pipeline.path}:")


def test_makes_nothing_where_nothing_is(pipeline: Pipeline, tmp_path: Path) -> None:
    check_directories(pipeline)
    assert [path.name for path in tmp_path.iterdir()] == ["delays.yaml"]


def leave_a_run(pipeline: Pipeline, root: Path) -> None:
    """What a run of one batch leaves, and one that was killed in the next."""
    import pyarrow as pa
    from pyarrow import parquet

    make(root / ".barnabas/delays/lock")
    state = StateDirectory(pipeline.state_directory)
    state_id, _ = state.take_definition(pipeline, IDENTITY)
    with held_tables(pipeline, state, state_id):
        pass
    for log in ("offsets", "commits"):
        make(root / f".barnabas/delays/checkpoints/by_hour/{log}/0")
    written = root / "out/delays/.batch_id=0.being-written"
    written.mkdir(parents=True)
    parquet.write_table(pa.table({"delay": [1.5]}), written / "part-0.parquet")
    ParquetTable(root / "out/delays").publish(written, 0, {})
    make(root / "out/delays/.batch_id=1.being-written/part-0.parquet")


def test_takes_directories_that_a_run_has_left(pipeline: Pipeline, tmp_path: Path) -> None:
    leave_a_run(pipeline, tmp_path)
    before = sorted(tmp_path.rglob("*"))
    check_directories(pipeline)
    assert sorted(tmp_path.rglob("*")) == before


def test_refuses_a_pipeline_that_was_changed_since(pipeline: Pipeline, tmp_path: Path) -> None:
    leave_a_run(pipeline, tmp_path)
    changed = read_flights(tmp_path, ("avg(delay)", "max(delay)"))
    told = (
        "17: step by_hour was changed (without AVG(delay), with MAX(delay)), and Spark keeps its groups that were made "
    )
    assert refusal(changed).startswith(told)


def test_refuses_a_state_whose_table_is_gone(pipeline: Pipeline, tmp_path: Path) -> None:
    leave_a_run(pipeline, tmp_path)
    shutil.rmtree(tmp_path / "out")
    assert refusal(pipeline).startswith(f"26: {tmp_path}/out/delays lacks batches that ")


def test_refuses_files_in_the_place_of_directories(pipeline: Pipeline, tmp_path: Path) -> None:
    make(tmp_path / "out")
    assert refusal(pipeline) == (
        f"26: the Parquet directory {tmp_path}/out/delays cannot be used: {tmp_path}/out is a file; name another, or "
        "correct that"
    )
    (tmp_path / "out").unlink()
    make(tmp_path / "out/delays")
    assert refusal(pipeline).startswith(
        f"26: the Parquet directory {tmp_path}/out/delays cannot be used: it is a file;"
    )
    make(tmp_path / ".barnabas/delays")
    assert refusal(pipeline).startswith(
        f"1: the state directory {tmp_path}/.barnabas/delays cannot be used: it is a file"
    )


def test_refuses_what_this_user_cannot_write(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    # Whoever runs the tests as root may write everywhere, so the system is asked in another way.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path / "out")
    assert f"{tmp_path}/out cannot be written by this user; name another, or correct that" in refusal(pipeline)


def test_refuses_directories_with_other_things_in_them(pipeline: Pipeline, tmp_path: Path) -> None:
    make(tmp_path / "out/delays/thesis.txt")
    assert refusal(pipeline) == (
        f"26: {tmp_path}/out/delays holds files that no pipeline has written (thesis.txt): give the table its own "
        "directory"
    )
    make(tmp_path / ".barnabas/delays/letters")
    assert refusal(pipeline) == (
        f"1: the state directory {tmp_path}/.barnabas/delays holds other files (letters): name a directory of its own"
    )


def test_refuses_a_table_whose_state_is_gone(pipeline: Pipeline, tmp_path: Path) -> None:
    leave_a_run(pipeline, tmp_path)
    shutil.rmtree(tmp_path / ".barnabas/delays/checkpoints")
    assert refusal(pipeline) == (
        f"26: {tmp_path}/out/delays holds a table written from an earlier state, and this run begins anew: remove "
        f"{tmp_path}/out/delays, or give the table another directory"
    )
