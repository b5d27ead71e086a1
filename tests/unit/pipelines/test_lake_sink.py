"""What a batch passes on its way into a table: once, although nobody hears of a commit, and beside no other run."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.pipelines import lake_sink
from barnabas.pipelines.definition import DeltaSink, KeyedRows, Pipeline, PipelineError
from barnabas.pipelines.lake_marks import TableMarks, writer_name
from barnabas.pipelines.lake_sink import LakeWriter, merge_statement
from barnabas.pipelines.sink import Written
from barnabas.pipelines.state_directory import StateDirectory
from tests.unit.pipelines.made_pipelines import made_pipeline

US = writer_name("delays", "one", "by_day")
NEW, BEFORE = Written(is_computed=True, is_held=True), Written(is_computed=False, is_held=True)


class Table:
    """A table that keeps rows and marks; `fails` is called behind a commit."""

    title, provider, name, log_directory = "Delta", "delta", "delta.`x`", "_delta_log"

    def __init__(self) -> None:
        self.batches: dict[str, int] = {}
        self.rows: list[int] = []
        self.fails: Callable[[], None] = lambda: None
        self.is_there = False
        self.is_whole = True
        self.table_id = "table"
        self.owner = self.run = self.commit = ""
        self.has_run = False
        self.is_doubled = False

    def refused_names(self, names: object) -> list[str]:
        return []

    def exists(self, session: object) -> bool:
        return self.is_there

    def marks(self, session: object) -> TableMarks:
        return TableMarks(
            self.table_id, dict(self.batches), self.is_whole, self.owner, self.run, is_doubled=self.is_doubled
        )

    def take(self, session: object, writer: str, run: str) -> None:
        self.owner = writer
        if self.has_run:
            self.run = run

    def told(self, session: object, writer: str, batch_id: int) -> str:
        return self.commit

    def append(self, rows: object, writer: str, batch_id: int, told: str) -> None:
        self.rows.append(batch_id)
        self.batches[writer] = batch_id
        self.commit = told
        self.fails()

    def merging(self, *_: object) -> Any:
        raise NotImplementedError

    def files(self, *_: object) -> Any:
        raise NotImplementedError

    def compact(self, *_: object) -> Any:
        raise NotImplementedError


class Frame:
    """A frame of one column."""

    columns = ("carrier",)
    dtypes = (("carrier", "string"),)

    def __init__(self, table: Table) -> None:
        def sql(text: str) -> None:
            table.is_there = table.is_there or text.startswith("CREATE TABLE")
            self.said.append(text)

        self.said: list[str] = []
        self.sparkSession = SimpleNamespace(table=lambda _: self, sql=sql)

    @cached_property
    def schema(self) -> Any:
        from pyspark.sql.types import StringType, StructType

        return StructType().add("carrier", StringType())

    def select(self, *_: object) -> Frame:
        return self


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    monkeypatch.setattr(lake_sink, "_columns", lambda *_: [])
    sink = DeltaSink(tmp_path / "table", "by_day", line=33, from_line=34, rows=KeyedRows(partition_by=("carrier",)))
    return made_pipeline(tmp_path, sinks=(sink,))


def recovered(pipeline: Pipeline, table: Table) -> tuple[LakeWriter, Frame]:
    (sink,) = pipeline.sinks
    assert isinstance(sink, DeltaSink)
    writer, frame = LakeWriter(pipeline, sink, table), Frame(table)
    writer.recover(frame, StateDirectory(pipeline.state_directory), "one")
    return writer, frame


def begin(pipeline: Pipeline, batch_id: int, log: str = "offsets") -> None:
    """Has Spark's checkpoint know of a batch."""
    directory = StateDirectory(pipeline.state_directory).checkpoint("by_day") / log
    directory.mkdir(parents=True, exist_ok=True)
    (directory / str(batch_id)).touch()


def test_a_batch_is_written_noted_and_known(pipeline: Pipeline) -> None:
    table = Table()
    writer, frame = recovered(pipeline, table)
    assert frame.said == ["CREATE TABLE delta.`x` (`carrier` string) USING delta PARTITIONED BY (`carrier`)"]
    begin(pipeline, 0)
    assert writer.write(frame, 0) == NEW
    writer.commit(0, {})
    (note,) = StateDirectory(pipeline.state_directory).table_notes.iterdir()
    content = json.loads(note.read_text())
    assert (content["next_batch"], content["mark"], content["writer"]) == (1, 0, US)
    # The next run knows it, whether Spark does or not.
    again, frame = recovered(pipeline, table)
    assert again.write(frame, 0) == Written(is_computed=False, is_held=False)
    assert table.rows == [0]


def test_a_commit_that_nobody_has_heard_of_is_not_made_again(pipeline: Pipeline) -> None:
    table = Table()
    writer, frame = recovered(pipeline, table)
    begin(pipeline, 0)

    def fail() -> None:
        raise TimeoutError

    table.fails = fail
    with pytest.raises(TimeoutError):
        writer.write(frame, 0)
    assert writer.write(frame, 0) == BEFORE
    writer.commit(0, {})
    assert table.rows == [0]
    # Cut short before the note, it is the table that knows.
    begin(pipeline, 1)
    with pytest.raises(TimeoutError):
        writer.write(frame, 1)
    again, frame = recovered(pipeline, table)
    assert again.write(frame, 1) == Written(is_computed=False, is_held=False)
    assert table.rows == [0, 1]


def test_a_table_has_one_run_at_a_time_whatever_its_state(pipeline: Pipeline, tmp_path: Path) -> None:
    (sink,) = pipeline.sinks
    assert isinstance(sink, DeltaSink)
    copy = StateDirectory(tmp_path / "copy")
    (tmp_path / "link").symlink_to(tmp_path)
    same = replace(sink, directory=tmp_path / "link" / "table")
    with LakeWriter(pipeline, sink, Table()).prepare(StateDirectory(pipeline.state_directory), "one"):
        assert not (tmp_path / "table").exists()
        again = LakeWriter(pipeline, same, Table()).prepare(copy, "one")
        with pytest.raises(PipelineError, match=r"yaml:33: \S+table is being written by another run"), again:
            pass
    with LakeWriter(pipeline, same, Table()).prepare(copy, "one"):
        pass
    (tmp_path / "file").touch()
    inside = LakeWriter(pipeline, replace(sink, directory=tmp_path / "file" / "table"), Table())
    with pytest.raises(PipelineError, match=r"the Delta directory \S+ cannot be used"), inside.prepare(copy, "one"):
        pass


def test_a_table_at_a_url_needs_nothing_of_this_machine_but_the_state(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sink,) = pipeline.sinks
    assert isinstance(sink, DeltaSink)
    for name in ("refuse_unknown_stores", "refuse_other_files"):
        monkeypatch.setattr(lake_sink, name, lambda *_: None)
    monkeypatch.delattr(lake_sink, "sync_new_files")
    table, state = Table(), StateDirectory(pipeline.state_directory)
    writer, frame = LakeWriter(pipeline, replace(sink, directory=None, url="s3a://bucket/t"), table), Frame(table)
    writer.check(state, "one")
    with writer.prepare(state, "one"):
        writer.recover(frame, state, "one")
        begin(pipeline, 0)
        assert writer.write(frame, 0) == NEW
        writer.commit(0, {})
    assert (writer.place, table.rows, [path.name for path in tmp_path.iterdir()]) == ("s3a://bucket/t", [0], ["state"])


def test_a_table_of_another_state_is_refused_as_it_is(pipeline: Pipeline) -> None:
    table = Table()
    table.is_there, table.batches = True, {writer_name("delays", "two", "by_day"): 3}
    (sink,) = pipeline.sinks
    assert isinstance(sink, DeltaSink)
    frame = Frame(table)
    frame.sparkSession.table = lambda _: SimpleNamespace(dtypes=())
    writer = LakeWriter(pipeline, sink, table)
    with pytest.raises(PipelineError, match="rows that another state has written"):
        writer.recover(frame, StateDirectory(pipeline.state_directory), "one")
    assert frame.said == []
    table.batches = {}
    writer.recover(frame, StateDirectory(pipeline.state_directory), "one")
    assert frame.said == ["ALTER TABLE delta.`x` ADD COLUMNS (`carrier` string)"]


def test_what_was_done_to_a_table_since_the_note_is_on_the_disk_before_the_next_one(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = StateDirectory(pipeline.state_directory).table_notes
    synced: list[tuple[int, bool]] = []

    def sync(directory: Path, since_ns: int) -> None:
        """Notes what is brought to the disk, and whether there was a note that is older than now."""
        note = next(notes.iterdir(), None) if notes.exists() else None
        synced.append((since_ns, note is not None and note.stat().st_mtime_ns == 10**18))

    monkeypatch.setattr(lake_sink, "sync_new_files", sync)
    table = Table()
    recovered(pipeline, table)
    assert synced == [(0, False)]
    (note,) = notes.iterdir()
    os.utime(note, ns=(10**18, 10**18))
    recovered(pipeline, table)
    assert synced[1:] == [(10**18 - 2 * 10**9, True)]
    assert note.stat().st_mtime_ns > 10**18


def test_a_batch_that_is_done_again_before_it_was_on_the_disk_is_brought_there(pipeline: Pipeline) -> None:
    table = Table()
    writer, frame = recovered(pipeline, table)
    assert writer.write(frame, 0) == NEW
    # Letters could not be sent, say, and the query starts again.
    assert writer.write(frame, 0) == BEFORE
    writer.commit(0, {})
    (note,) = StateDirectory(pipeline.state_directory).table_notes.iterdir()
    assert json.loads(note.read_text())["next_batch"] == 1
    assert writer.write(frame, 0) == Written(is_computed=False, is_held=False)


def test_a_table_that_is_removed_before_its_first_batch_is_made_again(pipeline: Pipeline) -> None:
    recovered(pipeline, Table())
    begin(pipeline, 0)
    table = Table()
    table.table_id = "another"
    writer, frame = recovered(pipeline, table)
    assert writer.write(frame, 0) == NEW
    writer.commit(0, {})
    table.table_id = "a third"
    with pytest.raises(PipelineError, match="is another table than the one that this state has written to"):
        recovered(pipeline, table)


def test_a_batch_that_was_cut_short_is_not_guessed_at_however_often_snapshots_are_expired(pipeline: Pipeline) -> None:
    table = Table()
    for batch_id in (0, 1):
        writer, frame = recovered(pipeline, table)
        begin(pipeline, batch_id)
        assert writer.write(frame, batch_id) == NEW
        if batch_id == 0:
            writer.commit(0, {})
            begin(pipeline, 0, "commits")
        # A compaction, and the snapshots before it are expired; batch 1 is there, and was never noted.
        table.batches, table.is_whole = {}, False
    with pytest.raises(PipelineError, match="while batch 1 was cut short: see whether its rows are there"):
        recovered(pipeline, table)


@pytest.mark.parametrize("marks", [{US: 1}, {US: 2}, {US: 0, writer_name("delays", "two", "by_day"): 0}])
def test_another_run_that_writes_the_table_ends_this_one(pipeline: Pipeline, marks: dict[str, int]) -> None:
    table = Table()
    writer, frame = recovered(pipeline, table)
    writer.write(frame, 0)
    table.batches = marks
    with pytest.raises(PipelineError, match=r"yaml:33: \S+ is written by another run too .* stop that one"):
        writer.write(frame, 1)
    assert table.rows == [0]


def test_a_table_whose_state_was_removed_is_not_appended_to_though_its_snapshots_are_gone(pipeline: Pipeline) -> None:
    table = Table()
    writer, frame = recovered(pipeline, table)
    begin(pipeline, 0)
    writer.write(frame, 0)
    shutil.rmtree(pipeline.state_directory)
    table.batches, table.is_whole = {}, False
    (sink,) = pipeline.sinks
    assert isinstance(sink, DeltaSink)
    with pytest.raises(PipelineError, match=rf"rows that another state has written \({US}\)"):
        LakeWriter(pipeline, sink, table).recover(Frame(table), StateDirectory(pipeline.state_directory), "two")
    # A table that is whole, and has no batch, has no rows of that state either.
    table.is_whole = True
    LakeWriter(pipeline, sink, table).recover(Frame(table), StateDirectory(pipeline.state_directory), "two")
    assert table.owner == writer_name("delays", "two", "by_day")


def test_a_copy_of_a_state_whose_batch_has_other_records_is_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    table = Table()
    writer, frame = recovered(pipeline, table)
    offsets = StateDirectory(pipeline.state_directory).checkpoint("by_day") / "offsets" / "0"
    begin(pipeline, 0)
    offsets.write_text('v1\n{"batchTimestampMs":1}\n{"flights":{"0":10,"1":5}}')
    writer.write(frame, 0)
    # Begun anew with the same records, whatever else Spark notes, it is the same batch.
    offsets.write_text('v1\n{"batchTimestampMs":2}\n{"flights":{"1":5,"0":10}}')
    recovered(pipeline, table)
    offsets.write_text('v1\n{"batchTimestampMs":1}\n{"flights":{"0":20,"1":5}}')
    with pytest.raises(PipelineError, match=r"yaml:33: \S+ has a batch 0 of other records than this state's: a copy"):
        recovered(pipeline, table)
    table.commit = "not ours"
    recovered(pipeline, table)


def test_a_run_ends_where_another_one_has_taken_the_table_and_where_both_added_a_batch(pipeline: Pipeline) -> None:
    table = Table()
    table.has_run = True
    first, frame = recovered(pipeline, table)
    second, _ = recovered(pipeline, table)
    with pytest.raises(PipelineError, match="is written by another run too"):
        first.write(frame, 0)
    assert table.rows == []
    begin(pipeline, 0)
    second.write(frame, 0)
    table.is_doubled = True
    with pytest.raises(PipelineError, match=r"has batch 0 twice: .*rollback_to_snapshot"):
        second.write(frame, 1)
    with pytest.raises(PipelineError, match="has batch 0 twice"):
        recovered(pipeline, table)
    assert table.rows == [0]


def test_a_commit_that_does_not_say_whose_it_is_ends_the_run(pipeline: Pipeline) -> None:
    table = Table()
    writer, frame = recovered(pipeline, table)
    table.fails = table.batches.clear
    with pytest.raises(PipelineError, match="does not say whose it is"):
        writer.write(frame, 0)


def test_a_note_that_cannot_be_understood_is_told(pipeline: Pipeline) -> None:
    recovered(pipeline, Table())
    (note,) = StateDirectory(pipeline.state_directory).table_notes.iterdir()
    note.write_text("torn")
    with pytest.raises(PipelineError, match=r"\.json cannot be understood .*: restore it"):
        recovered(pipeline, Table())


def test_a_directory_of_something_else_is_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "letters.txt").touch()
    (sink,) = pipeline.sinks
    assert isinstance(sink, DeltaSink)
    writer = LakeWriter(pipeline, sink, Table())
    with pytest.raises(PipelineError, match=r"yaml:33: \S+ holds files that are no Delta table \(letters.txt\)"):
        writer.check(StateDirectory(pipeline.state_directory), "one")
    (tmp_path / "table" / "_delta_log").mkdir()
    writer.check(StateDirectory(pipeline.state_directory), "one")


def test_names_of_fields_stay_names_in_sql(pipeline: Pipeline) -> None:
    from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructType

    fields = StructType().add("user-agent", StringType()).add("a`b", ArrayType(LongType()))
    schema = StructType().add("headers", MapType(StringType(), fields))
    ddl = "MAP<string, STRUCT<`user-agent`: string, `a``b`: ARRAY<bigint>>>"
    table, (sink,) = Table(), pipeline.sinks
    assert isinstance(sink, DeltaSink)
    frame = Frame(table)
    frame.columns, frame.schema, frame.dtypes = ("headers",), schema, (("headers", "map"),)
    state = StateDirectory(pipeline.state_directory)
    LakeWriter(pipeline, replace(sink, rows=KeyedRows()), table).recover(frame, state, "one")
    frame.sparkSession.table = lambda _: SimpleNamespace(dtypes=())
    LakeWriter(pipeline, sink, table).recover(frame, state, "one")
    assert frame.said == [
        f"CREATE TABLE delta.`x` (`headers` {ddl}) USING delta",
        f"ALTER TABLE delta.`x` ADD COLUMNS (`headers` {ddl})",
    ]


def test_names_of_columns_stay_names_in_sql() -> None:
    columns = ["a`b", "Id", "x) --"]
    every = "(`a``b`, `Id`, `x) --`) VALUES (s.`a``b`, s.`Id`, s.`x) --`)"
    assert merge_statement("t.`x`", "s", columns, ["id"], "gone").splitlines() == [
        "MERGE INTO t.`x` AS t USING s AS s ON t.`Id` <=> s.`Id`",
        "WHEN MATCHED AND coalesce(s.`gone`, false) THEN DELETE",
        "WHEN MATCHED THEN UPDATE SET t.`a``b` = s.`a``b`, t.`Id` = s.`Id`, t.`x) --` = s.`x) --`",
        f"WHEN NOT MATCHED AND NOT coalesce(s.`gone`, false) THEN INSERT {every}",
    ]
