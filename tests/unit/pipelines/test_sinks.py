"""A Parquet table's batches take their place whole, and belong to one state."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.pipelines import parquet_sink, topic_sink
from barnabas.pipelines.definition import ParquetSink, Pipeline, PipelineError, Query, TopicSink
from barnabas.pipelines.outbox import Outbox
from barnabas.pipelines.outbox_offsets import Sent
from barnabas.pipelines.parquet_sink import ParquetWriter
from barnabas.pipelines.parquet_table import LOCK, MANIFEST, MARKER, ParquetTable
from barnabas.pipelines.sink import SinkWriter, Written
from barnabas.pipelines.sinks import BatchWriter, check_tables, held_tables, writers_of
from barnabas.pipelines.sources import ROW_BYTES_MAX, KafkaOptions
from barnabas.pipelines.staged_batches import StagedBatch
from barnabas.pipelines.state_directory import StateDirectory
from barnabas.pipelines.topic_outboxes import QueryOutbox
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
    note(state, "offsets", batch_id)


def finish_batch(state: StateDirectory, batch_id: int) -> None:
    """Has Spark's checkpoint say that the batch was begun and finished."""
    note(state, "offsets", batch_id)
    note(state, "commits", batch_id)


def note(state: StateDirectory, log: str, batch_id: int) -> None:
    directory = state.checkpoint("by_day") / log
    directory.mkdir(parents=True, exist_ok=True)
    (directory / str(batch_id)).touch()


def take(pipeline: Pipeline, state: StateDirectory, state_id: str) -> None:
    """What a run does with its tables before Spark starts."""
    with held_tables(pipeline, state, state_id):
        pass


def put_batch(table: Path, batch_id: int, *values: int) -> None:
    """Writes a batch as Spark does, and publishes it."""
    import pyarrow as pa
    from pyarrow import parquet

    hidden = table / f".batch_id={batch_id}.being-written"
    hidden.mkdir(parents=True)
    parquet.write_table(pa.table({"value": pa.array(values, pa.int64())}), hidden / "part-0.parquet")
    ParquetTable(table).publish(hidden, batch_id, {"flights": {0: 10 * batch_id}})


def read(table: Path) -> list[tuple[int, int]]:
    from pyarrow import dataset

    rows = dataset.dataset(table, partitioning="hive").to_table().to_pylist()
    return sorted((row["batch_id"], row["value"]) for row in rows)


def test_a_repeated_batch_replaces_itself(pipeline: Pipeline, state: StateDirectory, table: Path) -> None:
    take(pipeline, state, "one")
    put_batch(table, 0, 1, 2)
    put_batch(table, 1, 3)
    put_batch(table, 1, 4, 5)
    assert read(table) == [(0, 1), (0, 2), (1, 4), (1, 5)]
    assert sorted(entry.name for entry in table.iterdir()) == [LOCK, MARKER, MANIFEST, "batch_id=0", "batch_id=1"]


def test_a_batch_without_rows_has_no_place(pipeline: Pipeline, state: StateDirectory, table: Path) -> None:
    take(pipeline, state, "one")
    put_batch(table, 0, 1)
    put_batch(table, 1)
    put_batch(table, 0)
    assert sorted(entry.name for entry in table.iterdir()) == [LOCK, MARKER, MANIFEST]


def test_what_a_killed_run_was_writing_is_removed(pipeline: Pipeline, state: StateDirectory, table: Path) -> None:
    take(pipeline, state, "one")
    put_batch(table, 0, 1)
    for name in (".batch_id=1.being-written", ".batch_id=0.replaced"):
        (table / name).mkdir()
        (table / name / "part-0.parquet").write_bytes(b"torn")
    assert read(table) == [(0, 1)]
    begin_batch(state, 0)
    take(pipeline, state, "one")
    assert sorted(entry.name for entry in table.iterdir()) == [LOCK, MARKER, MANIFEST, "batch_id=0"]


@pytest.mark.parametrize(
    ("change", "told"),
    [({}, "an earlier state, and this run begins anew"), ({"name": "other"}, "pipeline delays, and this run begins")],
)
def test_a_table_of_another_state_is_refused(
    pipeline: Pipeline, state: StateDirectory, table: Path, change: dict[str, str], told: str
) -> None:
    take(pipeline, state, "one")
    put_batch(table, 0, 1)
    with pytest.raises(PipelineError, match=rf"delays.yaml:33: {table} holds a table written from {told}"):
        take(replace(pipeline, **change), state, "two")  # type: ignore[arg-type]
    assert read(table) == [(0, 1)]


def test_a_directory_of_something_else_is_refused(pipeline: Pipeline, state: StateDirectory, table: Path) -> None:
    table.mkdir()
    (table / "letters.txt").touch()
    with pytest.raises(PipelineError, match=r"holds files that no pipeline has written \(letters.txt\)"):
        take(pipeline, state, "one")


def test_a_table_that_has_gone_is_told(pipeline: Pipeline, state: StateDirectory) -> None:
    finish_batch(state, 0)
    with pytest.raises(PipelineError, match="lacks batches that"):
        take(pipeline, state, "one")


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_table_that_is_newer_than_its_state_is_refused(
    pipeline: Pipeline, state: StateDirectory, table: Path, ahead: int
) -> None:
    take(pipeline, state, "one")
    for batch_id in (0, 1, 2):
        finish_batch(state, batch_id)
        put_batch(table, batch_id, batch_id)
    take(pipeline, state, "one")
    # An older copy of the state was brought back: its next batch would be less than the one that is there.
    known = 2 - ahead
    for batch_id in range(known + 1, 3):
        for log in ("offsets", "commits"):
            (state.checkpoint("by_day") / log / str(batch_id)).unlink()
    with pytest.raises(
        PipelineError, match=rf"delays.yaml:33: \S+ has batch 2, and the state knows of none after {known}"
    ):
        take(pipeline, state, "one")
    assert len(read(table)) == 3


def test_the_marker_of_a_table_is_written_once(pipeline: Pipeline, state: StateDirectory, table: Path) -> None:
    # Written anew by each run, it would be torn by one that is killed, and the table be taken for a stranger's.
    take(pipeline, state, "one")
    before = (table / MARKER).stat()
    take(pipeline, state, "one")
    after = (table / MARKER).stat()
    # Not the whole: it is read in between, which changes st_atime.
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)


def test_a_check_of_tables_makes_nothing(pipeline: Pipeline, state: StateDirectory, table: Path) -> None:
    check_tables(pipeline, state, None)
    assert not table.exists()


def test_an_empty_table_may_change_hands(pipeline: Pipeline, state: StateDirectory, table: Path) -> None:
    take(pipeline, state, "one")
    take(pipeline, state, "two")
    assert '"two"' in (table / MARKER).read_text()


def test_a_directory_that_cannot_be_made_is_told_at_its_line(
    pipeline: Pipeline, state: StateDirectory, table: Path
) -> None:
    table.touch()
    with pytest.raises(
        PipelineError, match=r"delays.yaml:33: the Parquet directory .* cannot be used: Not a directory"
    ):
        take(pipeline, state, "one")


def written_table(pipeline: Pipeline, state: StateDirectory, table: Path) -> None:
    """Three batches that are finished, one of them without rows, and one that was begun."""
    take(pipeline, state, "one")
    for batch_id, values in enumerate([(1, 2), (), (3,), (4,)]):
        put_batch(table, batch_id, *values)
        (finish_batch if batch_id < 3 else begin_batch)(state, batch_id)


def test_the_list_has_what_each_batch_is(pipeline: Pipeline, state: StateDirectory, table: Path) -> None:
    written_table(pipeline, state, table)
    put_batch(table, 3, 5, 6)
    listed = ParquetTable(table).batches()
    assert {number: batch.rows for number, batch in listed.items()} == {0: 2, 1: 0, 2: 1, 3: 2}
    assert listed[2].offsets == {"flights": {0: 20}}
    assert listed[2].files == {"part-0.parquet": (table / "batch_id=2" / "part-0.parquet").stat().st_size}
    assert listed[1].files == {}
    take(pipeline, state, "one")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda table: shutil.rmtree(table / "batch_id=0"), r"\(0\)"),
        (
            lambda table: (table / "batch_id=2" / "part-0.parquet").rename(table / "batch_id=2" / "part-1.parquet"),
            r"\(2\)",
        ),
        (lambda table: (table / "batch_id=2" / "part-0.parquet").write_bytes(b"PAR1"), r"\(2\)"),
        (lambda table: (table / "batch_id=2" / "part-1.parquet").touch(), r"\(2\)"),
        (lambda table: (table / "batch_id=2").rename(table / "batch_id=1"), r"\(1, 2\)"),
        (lambda table: (table / MANIFEST).unlink(), r"\(0, 1, 2\)"),
        (shutil.rmtree, r"\(0, 1, 2\)"),
    ],
)
def test_a_batch_that_is_missing_or_another_is_found(
    pipeline: Pipeline, state: StateDirectory, table: Path, damage: Callable[[Path], object], told: str
) -> None:
    written_table(pipeline, state, table)
    check_tables(pipeline, state, "one")
    damage(table)
    with pytest.raises(
        PipelineError, match=rf"delays.yaml:33: {table} lacks batches that .* another time {told}: rest"
    ):
        check_tables(pipeline, state, "one")


def test_a_batch_that_was_cut_short_may_be_anything(pipeline: Pipeline, state: StateDirectory, table: Path) -> None:
    written_table(pipeline, state, table)
    # Between the two renames of a batch that is done again.
    (table / "batch_id=3").rename(table / ".batch_id=3.replaced")
    take(pipeline, state, "one")
    put_batch(table, 3, 7)
    finish_batch(state, 3)
    take(pipeline, state, "one")
    assert read(table) == [(0, 1), (0, 2), (2, 3), (3, 7)]


def test_a_line_that_was_cut_short_is_removed(pipeline: Pipeline, state: StateDirectory, table: Path) -> None:
    written_table(pipeline, state, table)
    with (table / MANIFEST).open("ab") as manifest:
        manifest.write(b'{"batch_id":3,"ro')
    check_tables(pipeline, state, "one")
    take(pipeline, state, "one")
    put_batch(table, 3, 8)
    assert ParquetTable(table).batches()[3].rows == 1


def test_a_list_that_is_damaged_is_told(pipeline: Pipeline, state: StateDirectory, table: Path) -> None:
    written_table(pipeline, state, table)
    content = (table / MANIFEST).read_bytes()
    (table / MANIFEST).write_bytes(content.replace(b"{", b"(", 1))
    with pytest.raises(PipelineError, match=rf"a list of batches that is damaged \({MANIFEST}, line 1\): restore it"):
        check_tables(pipeline, state, "one")


def test_a_table_has_one_run_at_a_time(pipeline: Pipeline, state: StateDirectory, table: Path) -> None:
    other = replace(pipeline, name="other", state_directory=pipeline.path.parent / "other")
    with held_tables(pipeline, state, "one"):
        with pytest.raises(PipelineError, match=r"33: \S+ is being written by a run of pipeline delays: stop that run"):
            take(other, StateDirectory(other.state_directory), "two")
        put_batch(table, 0)
    # One batch was written, although it has no rows: the table has an owner for good.
    with pytest.raises(PipelineError, match="written from pipeline delays, and this run begins anew"):
        take(other, StateDirectory(other.state_directory), "two")


def test_a_batch_is_on_the_disk_in_the_order_that_a_loss_of_power_needs(
    pipeline: Pipeline, state: StateDirectory, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def synced(descriptor: int) -> None:
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).relative_to(table.parent).as_posix())
        fsync(descriptor)

    def renamed(path: Path, target: Path) -> Path:
        done.append(f"to {target.name}")
        return rename(path, target)

    def write(_frame: object, directory: Path, batch_id: int, _run: str) -> Path:
        import pyarrow as pa
        from pyarrow import parquet

        hidden = directory / f".batch_id={batch_id}.being-written"
        hidden.mkdir()
        parquet.write_table(pa.table({"value": [1]}), hidden / "part-0.parquet")
        return hidden

    take(pipeline, state, "one")
    finish_batch(state, 0)
    monkeypatch.setattr(parquet_sink, "write_hidden", write)
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    sink = pipeline.sinks[1]
    assert isinstance(sink, ParquetSink)
    writer = BatchWriter(Query("by_day", (sink,)), [ParquetWriter(pipeline, sink)], state, threading.Event())
    writer(SimpleNamespace(dtypes=[]), 0)
    hidden = "table/.batch_id=0.being-written"
    steps = ["state/checkpoints/by_day/offsets/0", f"{hidden}/part-0.parquet", hidden, "to batch_id=0", "table"]
    following = iter(done)
    assert all(step in following for step in [*steps, f"table/{MANIFEST}"]), done
    # What was there before is not brought to the disk again.
    done.clear()
    for path in state.directory.rglob("*"):
        os.utime(path, ns=(0, 0))
    begin_batch(state, 1)
    os.utime(state.checkpoint("by_day") / "commits", ns=(0, 0))
    writer(SimpleNamespace(dtypes=[]), 1)
    assert "state/checkpoints/by_day/offsets/1" in done
    assert "state/checkpoints/by_day/offsets/0" not in done
    assert "state/checkpoints/by_day/commits" not in done


class Frame:
    """Notes what is written of it."""

    def __init__(self, notes: list[str], dtypes: Sequence[tuple[str, str]] = ()) -> None:
        self.notes = notes
        self.write = self
        self.dtypes = dtypes

    def selectExpr(self, *columns: str) -> Frame:  # noqa: N802  # Spark's name
        self.notes.append(f"selects {', '.join(columns)}")
        return self

    def format(self, name: str) -> Frame:
        self.notes.append(f"computed as {name}")
        return self

    def mode(self, _mode: str) -> Frame:
        return self

    def save(self) -> None:
        return

    def persist(self) -> Frame:
        return self

    def unpersist(self) -> None:
        return


class Taking:
    """A cluster that takes everything."""

    group_id = "group"

    def __init__(self, notes: list[str]) -> None:
        self.notes = notes
        self.offset: Sent | None = None

    def open(self, sender: int = 1) -> Sent | None:
        return self.offset

    def send(self, batch: StagedBatch | None, sent: Sent, sender: int = 1) -> None:
        values = [value for part in batch.parts for _, found in part.columns() for value in found] if batch else []
        self.notes.append(f"sent {values}")
        self.offset = sent


def test_a_batch_is_staged_once_and_sent_when_its_checkpoint_is_on_the_disk(
    pipeline: Pipeline, state: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    sink = pipeline.sinks[0]
    assert isinstance(sink, TopicSink)
    port = Taking(notes)
    outbox = Outbox(state.outbox("by_day"), "one", {}, port)
    outbox.open(state.batches_done("by_day"))
    notes.clear()

    def stage(_frame: object, _sink: TopicSink, directory: Path) -> None:
        directory.mkdir(parents=True)
        (directory / "part-0").write_bytes(b"key\nvalue %d\n" % len(notes))
        notes.append("staged")

    def write_letters(batch_id: int) -> None:
        # What is staged never changes: as long as letters are missing nothing is.
        assert outbox.is_sent(batch_id) or "computed as noop" in notes or exact.find(batch_id) is None
        notes.append("letters")

    monkeypatch.setattr(topic_sink, "stage_records", stage)
    monkeypatch.setattr(state, "sync_checkpoint", lambda *_: notes.append("synced"))
    query = Query("by_day", (sink,))
    exact = QueryOutbox(pipeline, (sink,), outbox)
    writers = writers_of(pipeline, query, KafkaOptions("host:1"), exact)
    letters: Any = SimpleNamespace(write=write_letters)
    writer = BatchWriter(query, writers, state, threading.Event(), letters)
    writer(Frame(notes), 0)
    assert notes == ["staged", "letters", "synced", "sent [b'value 0']"]
    # Spark has not noted it: it is computed again, for Spark's state, and nothing is sent.
    notes.clear()
    writer(Frame(notes), 0)
    assert notes == ["computed as noop", "letters"]
    # Staged and not sent: what is sent is what was staged.
    notes.clear()
    monkeypatch.setattr(port, "send", lambda *_: (_ for _ in ()).throw(PipelineError("away")))
    with pytest.raises(PipelineError):
        writer(Frame(notes), 1)
    monkeypatch.undo()
    monkeypatch.setattr(state, "sync_checkpoint", lambda *_: notes.append("synced"))
    writer(Frame(notes), 1)
    assert notes == ["staged", "letters", "synced", "computed as noop", "letters", "synced", "sent [b'value 0']"]
    assert port.offset is not None
    assert port.offset.next_batch == 2


class AtOnce(SinkWriter):
    """A table whose commits are seen at once."""

    commits_at_once = True

    def __init__(self, notes: list[str], first: int = 0) -> None:
        self.notes, self.first = notes, first

    def write(self, frame: object, batch_id: int) -> Written:
        is_new = batch_id >= self.first
        self.notes += ["committed"] if is_new else []
        return Written(is_computed=is_new, is_held=is_new)

    def commit(self, batch_id: int, offsets: object) -> None:
        self.notes.append("noted")


def test_a_table_that_commits_at_once_does_so_behind_the_offsets_of_its_batch(
    state: StateDirectory, monkeypatch: pytest.MonkeyPatch, pipeline: Pipeline
) -> None:
    notes: list[str] = []
    monkeypatch.setattr(state, "sync_checkpoint", lambda *_: notes.append("synced"))
    decodings = SimpleNamespace(
        begin=lambda _: notes.append("begun"), written=lambda _, was_there: notes.append(f"was there: {was_there}")
    )
    letters: Any = SimpleNamespace(write=lambda _: notes.append("letters"), decodings=decodings)
    query = Query("by_day", pipeline.sinks[:1])
    BatchWriter(query, [AtOnce(notes)], state, threading.Event(), letters)(Frame(notes), 0)
    # The second time it is for the state that Spark has computed with the rows.
    assert notes == ["synced", "begun", "committed", "was there: False", "letters", "synced", "noted"]
    notes.clear()
    BatchWriter(query, [AtOnce(notes, first=1)], state, threading.Event(), letters)(Frame(notes), 0)
    assert notes == ["synced", "begun", "was there: True", "computed as noop", "letters"]


def test_damage_of_a_staged_batch_is_told_with_what_to_do(pipeline: Pipeline, state: StateDirectory) -> None:
    sink = pipeline.sinks[0]
    assert isinstance(sink, TopicSink)
    outbox = Outbox(state.outbox("by_day"), "one", {}, Taking([]))
    outbox.open(state.batches_done("by_day"))
    exact = QueryOutbox(pipeline, (sink,), outbox)
    directory = exact.being_written(3, 0)
    directory.mkdir(parents=True)
    (directory / "part-0").write_bytes(b"key\nvalue\n")
    exact.publish(3)
    (state.outbox("by_day") / "batch-3" / "0" / "part-0").unlink()
    with pytest.raises(PipelineError, match=r"delays.yaml:30: \S+/batch-3 lacks a part of 0/part-0; remove it and run"):
        exact.find(3)


def test_the_size_of_a_record_is_bounded_by_the_topic_and_not_by_the_producers_default() -> None:
    options = KafkaOptions("host:1").writing
    assert int(options["kafka.max.request.size"]) == ROW_BYTES_MAX > 1024 * 1024
    # The producer refuses a record that is larger than all its memory.
    assert int(options["kafka.buffer.memory"]) > ROW_BYTES_MAX
