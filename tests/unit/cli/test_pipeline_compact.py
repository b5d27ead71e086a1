"""`barnabas pipeline compact`: what is refused before Spark starts, and what is shown. Spark is played by the test."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from barnabas.cli import pipeline_compact
from barnabas.cli.pipeline import command
from barnabas.pipelines.compaction import Compacted, CompactionFailedError, TableFiles
from barnabas.pipelines.delta_sink import DeltaTable
from barnabas.pipelines.parquet_table import MARKER
from barnabas.pipelines.state_directory import StateDirectory
from tests.unit.pipelines.pipeline_files import read_flights

MEBIBYTE = 1 << 20


def compact(*arguments: object) -> Result:
    return CliRunner().invoke(command, ["compact", *map(str, arguments)])


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Delta table of five files, four of them small."""

    @contextlib.contextmanager
    def no_spark(*_: object) -> Iterator[object]:
        yield object()

    def files(_table: DeltaTable, _session: Any, target_bytes: int) -> TableFiles:
        return TableFiles(5, 300 * MEBIBYTE, 4, 2 * target_bytes, 2)

    monkeypatch.setattr(pipeline_compact, "_spark", no_spark)
    monkeypatch.setattr(DeltaTable, "exists", lambda *_: True)
    monkeypatch.setattr(DeltaTable, "files", files)
    monkeypatch.setattr(DeltaTable, "compact", lambda *_: Compacted(4, 2))
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    return tmp_path / "table"


def test_nothing_is_changed_before_that_is_asked_for(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(DeltaTable, "compact")
    done = compact(table)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[1].split() == [
        str(table), "5", "300.0", "MiB", "4", "256.0", "MiB", "2",
    ]  # fmt: skip
    assert "nothing was changed; --execute compacts them" in done.stderr
    assert not list(table.parent.glob(".*.lock"))


def test_what_was_done_is_told(table: Path) -> None:
    done = compact(table, "--execute", "--target", "64MiB", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {
        "table": str(table),
        "files": 5,
        "bytes": 300 * MEBIBYTE,
        "small_files": 4,
        "small_bytes": 128 * MEBIBYTE,
        "files_instead": 2,
    }
    assert f"{table}: 4 files became 2" in done.stderr


def test_a_table_that_is_being_written_is_left_alone(table: Path) -> None:
    with (table.parent / f".{table.name}.barnabas.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = compact(table, "--execute")
        assert done.exit_code == 1
        assert "is being written by another run" in done.stderr
        assert compact(table).exit_code == 0


def test_tables_at_urls_are_compacted_by_their_pipeline_and_not_while_it_runs(table: Path, tmp_path: Path) -> None:
    done = compact("s3a://bucket/lake/t")
    assert done.exit_code == 1
    assert "s3a://bucket/lake/t is compacted by the file of its pipeline" in done.stderr
    assert compact(f"file://{table}").exit_code == 0
    pipeline = read_flights(tmp_path, ("parquet: out/delays", "delta: s3a://bucket/lake/t"))
    done = compact(pipeline.path)
    assert (done.exit_code, "s3a://bucket/lake/t" in done.stdout, pipeline.state_directory.exists()) == (0, True, False)
    with StateDirectory(pipeline.state_directory).locked(pipeline):
        done = compact(pipeline.path, "--execute")
    assert done.exit_code == 1
    assert "pipeline delays is already running" in done.stderr
    assert "s3a://bucket/lake/t: 4 files became 2" in compact(pipeline.path, "--execute").stderr


def test_what_is_not_done_is_a_failure_and_says_that_no_row_is_lost(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Compacted:
        raise CompactionFailedError("3 files were changed by others meanwhile")

    monkeypatch.setattr(DeltaTable, "compact", fail)
    done = compact(table, "--execute")
    assert done.exit_code == 1
    assert "3 files were changed by others meanwhile; no row is lost, and the same command goes on" in done.stderr


def test_what_cannot_be_compacted_is_refused_before_spark_starts(tmp_path: Path, table: Path) -> None:
    (tmp_path / "parquet").mkdir()
    (tmp_path / "parquet" / MARKER).touch()
    done = compact(tmp_path / "parquet")
    assert (done.exit_code, "which is not compacted" in done.stderr) == (1, True)
    done = compact(tmp_path / "nothing.yaml")
    assert (done.exit_code, "nothing.yaml" in done.stderr) == (4, True)
    done = compact(table, "--target", "12")
    assert (done.exit_code, '--target "12" is not a size' in done.stderr) == (1, True)
