"""Which version of a table a batch sees. Topic and Spark are played by the test: a version's rows are its offsets."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.pipelines import topic_tables
from barnabas.pipelines.definition import Pipeline, PipelineUnreachableError, RunStopped, Source
from barnabas.pipelines.state_directory import BatchesDone
from barnabas.pipelines.table_versions import Part, Seen, TableVersion, TopicLook, VersionFiles
from barnabas.pipelines.topic_tables import TableFailedError, TablesMoved, TopicTables
from tests.unit.pipelines.made_pipelines import airlines, flights, made_pipeline

NOTHING = BatchesDone(-1, -1)


class Topic:
    """Records that are counted, and the id of the topic."""

    def __init__(self) -> None:
        self.records = 10
        self.topic_id = "a"
        self.first = 0
        self.looks = 0
        self.error: Exception | None = None

    def look(self, topic: str) -> TopicLook:
        assert topic == "airlines"
        self.looks += 1
        if self.error is not None:
            raise self.error
        return TopicLook(self.topic_id, {0: self.first}, {0: self.records})


class FakeParts:
    """Versions whose parts are named by what was read for them."""

    def __init__(self, files: VersionFiles) -> None:
        self._files = files
        self.read_parts: list[str] = []
        self.forgotten = 0
        self.kept: list[str] = []
        self.errors: list[Exception] = []
        self.hangs: threading.Event | None = None

    def _part(self, name: str, rows: int) -> Part:
        self.read_parts.append(name)
        self._files.part(name).mkdir(parents=True, exist_ok=True)
        return Part(name, rows)

    def whole(self, source: Source, look: TopicLook) -> TableVersion:
        part = self._part(f"all to {look.ends[0]} of {look.topic_id}", look.ends[0])
        return TableVersion(source.topic, look.topic_id, look.ends, part)

    def newer(self, source: Source, version: TableVersion, look: TopicLook) -> TableVersion:
        first, last = version.offsets[0], look.ends[0]
        deltas = version.deltas
        if first != last:
            deltas = (*deltas, self._part(f"{first} to {last}", last - first))
        return dataclasses.replace(version, topic_id=look.topic_id, offsets=look.ends, deltas=deltas)

    def read(self, source: Source, version: TableVersion) -> int:
        if self.hangs is not None:
            assert self.hangs.wait(60)
        if self.errors:
            raise self.errors.pop(0)
        return version.base.rows

    def frame(self, source: Source, version: TableVersion) -> Any:
        return [part.name for part in version.parts]

    def forget(self, source: Source, version: TableVersion) -> None:
        self.forgotten += 1

    def keep_only(self, versions: dict[str, list[TableVersion]]) -> None:
        self.kept = sorted({part.name for each in versions["airlines"] for part in each.parts})
        self._files.keep_only(version for each in versions.values() for version in each)


class Run:
    """One run over the files of a state."""

    def __init__(self, pipeline: Pipeline, topic: Topic, *, refreshes: bool = True, begins: bool = True) -> None:
        self.files = VersionFiles(pipeline.state_directory / "read")
        self.parts = FakeParts(self.files)
        self.topic = topic
        self.said: list[str] = []
        self.stop = threading.Event()
        self.pipeline = pipeline
        self.tables = TopicTables(
            pipeline,
            self.parts,  # type: ignore[arg-type]
            self.files,
            topic,
            self.said.append,
            self._refuse,
            refreshes=refreshes,
        )
        if begins:
            self.tables.read()

    def _refuse(self) -> None:
        if self.stop.is_set():
            raise RunStopped

    def begin(self, done: BatchesDone = NOTHING, view: str = "by_day") -> Run:
        self.tables.begin(view, f"state-{view}", done)
        return self

    def batch(self, number: int, view: str = "by_day") -> list[str]:
        """What the batch sees, through as many starts of its query as it takes, two at most."""
        for _ in range(2):
            try:
                self.tables.admit(view, number)
            except TablesMoved:
                self.tables.move(view)
            else:
                break
        else:
            raise AssertionError(f"batch {number} was not admitted after its tables had moved")
        return list(self.tables.frame(view, airlines_of(self.pipeline)))


def airlines_of(pipeline: Pipeline) -> Source:
    return next(source for source in pipeline.sources if source.name == "airlines")


def pipeline_with(directory: Path, refresh_ms: int | None = 0) -> Pipeline:
    return made_pipeline(directory, sources=(flights(), dataclasses.replace(airlines(), refresh_ms=refresh_ms)))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000.0]
    monkeypatch.setattr(topic_tables, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_a_batch_sees_what_the_topic_has_when_it_begins_by_reading_what_is_new(tmp_path: Path) -> None:
    run = Run(pipeline_with(tmp_path), Topic()).begin()
    assert run.batch(0) == ["all to 10 of a"]
    assert run.batch(1) == ["all to 10 of a"]
    run.topic.records = 12
    assert run.batch(2) == ["all to 10 of a", "10 to 12"]
    run.topic.records = 13
    assert run.batch(3) == ["all to 10 of a", "10 to 12", "12 to 13"]
    assert run.parts.read_parts == ["all to 10 of a", "10 to 12", "12 to 13"]


def test_a_topic_that_grows_all_the_time_costs_each_batch_one_start_more(tmp_path: Path) -> None:
    run = Run(pipeline_with(tmp_path), Topic()).begin()
    look = run.topic.look

    def growing(topic: str) -> TopicLook:
        run.topic.records += 1
        return look(topic)

    run.topic.look = growing  # type: ignore[method-assign]
    for number in range(5):
        run.batch(number)


@pytest.mark.parametrize(("refresh_ms", "refreshes"), [(None, True), (0, False)])
def test_a_table_stays_as_the_run_began_where_that_was_said_and_where_the_run_has_an_end(
    tmp_path: Path, refresh_ms: int | None, *, refreshes: bool
) -> None:
    run = Run(pipeline_with(tmp_path, refresh_ms), Topic(), refreshes=refreshes).begin()
    looks = run.topic.looks
    run.topic.records = 12
    assert run.batch(0) == ["all to 10 of a"]
    assert run.topic.looks == looks


def test_a_table_may_be_as_old_as_was_said(tmp_path: Path, clock: list[float]) -> None:
    run = Run(pipeline_with(tmp_path, 60_000), Topic()).begin()
    run.topic.records = 12
    clock[0] += 59.9
    assert run.batch(0) == ["all to 10 of a"]
    clock[0] += 0.1
    assert run.batch(1) == ["all to 10 of a", "10 to 12"]
    run.topic.records = 13
    clock[0] += 59.9
    assert run.batch(2) == ["all to 10 of a", "10 to 12"]


def test_a_batch_that_comes_again_sees_the_same_whatever_the_topic_has_by_then(tmp_path: Path) -> None:
    pipeline, topic = pipeline_with(tmp_path), Topic()
    run = Run(pipeline, topic).begin()
    run.batch(0)
    topic.records = 12
    seen = run.batch(1)
    topic.records = 20
    # In the same run, after a failure that passes.
    assert run.batch(1) == seen
    # In the next, which was begun after a kill.
    again = Run(pipeline, topic).begin(BatchesDone(begun=1, finished=0))
    assert again.batch(1) == seen
    assert again.batch(2) == ["all to 20 of a"]
    # That was noted too, and the old parts are gone when nobody sees them.
    assert Run(pipeline, topic).begin(BatchesDone(begun=2, finished=1)).batch(2) == ["all to 20 of a"]
    assert not again.files.part("10 to 12").exists()


def test_a_batch_that_nothing_was_noted_of_sees_what_is_there_now(tmp_path: Path) -> None:
    run = Run(pipeline_with(tmp_path), Topic()).begin(BatchesDone(begun=4, finished=3))
    assert run.batch(4) == ["all to 10 of a"]


def test_a_note_of_a_state_that_was_removed_is_of_no_batch(tmp_path: Path) -> None:
    pipeline, topic = pipeline_with(tmp_path), Topic()
    Run(pipeline, topic).begin().batch(0)
    topic.records = 12
    Run(pipeline, topic).begin(NOTHING)
    assert Run(pipeline, topic).begin(BatchesDone(begun=0, finished=-1)).batch(0) == ["all to 12 of a"]


def test_a_note_of_another_topic_is_not_this_ones(tmp_path: Path) -> None:
    pipeline, topic = pipeline_with(tmp_path), Topic()
    run = Run(pipeline, topic).begin()
    run.batch(0)
    seen = run.files.seen("state-by_day")
    assert seen is not None
    other = {"airlines": dataclasses.replace(seen.versions["airlines"], topic="carriers")}
    run.files.note("state-by_day", Seen(0, other))
    topic.records = 12
    assert Run(pipeline, topic).begin(BatchesDone(begun=0, finished=-1)).batch(0) == ["all to 12 of a"]


def test_each_query_sees_its_own_version(tmp_path: Path) -> None:
    run = Run(pipeline_with(tmp_path), Topic()).begin().begin(view="timed")
    run.batch(0)
    run.batch(0, "timed")
    run.topic.records = 12
    assert run.batch(1, "timed") == ["all to 10 of a", "10 to 12"]
    # What the other still has in its plan is kept.
    assert run.parts.kept == ["10 to 12", "all to 10 of a"]
    assert run.tables.frame("by_day", airlines_of(run.pipeline)) == ["all to 10 of a"]
    assert run.batch(1) == ["all to 10 of a", "10 to 12"]


def test_a_query_without_tables_is_never_held_up(tmp_path: Path) -> None:
    pipeline = made_pipeline(tmp_path, sources=(flights(),))
    run = Run(pipeline, Topic()).begin()
    run.tables.admit("by_day", 0)
    assert run.topic.looks == 0


@pytest.mark.parametrize(
    ("change", "seen", "line"),
    [
        ({"topic_id": "b", "records": 3}, "all to 3 of b", "was deleted and made again (its id is b, and was a)"),
        ({"topic_id": "b", "records": 30}, "all to 30 of b", "was deleted and made again"),
        ({"records": 20, "first": 15}, "all to 20 of a", "has lost records before they were read (offsets 10 to 14"),
        ({"records": 4}, "all to 4 of a", "ends at 4 in partition 0, where it was read up to 10"),
    ],
)
def test_a_topic_that_is_another_or_has_lost_records_is_read_whole_and_told_in_one_line(
    tmp_path: Path, change: dict[str, Any], seen: str, line: str
) -> None:
    run = Run(pipeline_with(tmp_path), Topic()).begin()
    run.batch(0)
    for name, value in change.items():
        setattr(run.topic, name, value)
    assert run.batch(1) == [seen]
    told = [each for each in run.said if "is read whole again" in each]
    assert len(told) == 1
    assert line in told[0]


def test_a_topic_that_is_made_again_while_it_is_read_is_not_mixed_with_the_one_before(tmp_path: Path) -> None:
    run = Run(pipeline_with(tmp_path), Topic()).begin()
    run.batch(0)
    run.topic.records = 12
    newer = run.parts.newer

    def and_then_another(source: Source, version: TableVersion, look: TopicLook) -> TableVersion:
        found = newer(source, version, look)
        run.topic.topic_id = "b"
        return found

    run.parts.newer = and_then_another  # type: ignore[method-assign]
    assert run.batch(1) == ["all to 12 of b"]


def test_brokers_that_do_not_answer_hold_a_batch_up_and_lose_nothing(tmp_path: Path) -> None:
    run = Run(pipeline_with(tmp_path), Topic()).begin()
    run.batch(0)
    run.topic.records = 12
    run.topic.error = PipelineUnreachableError("nobody answers")
    with pytest.raises(PipelineUnreachableError):
        run.tables.admit("by_day", 1)
    with pytest.raises(PipelineUnreachableError):
        run.tables.move("by_day")
    run.topic.error = None
    assert run.batch(1) == ["all to 10 of a", "10 to 12"]


def test_a_record_that_does_not_fit_fails_the_table_and_is_looked_at_again(tmp_path: Path) -> None:
    run = Run(pipeline_with(tmp_path), Topic()).begin()
    run.batch(0)
    run.topic.records = 12
    run.parts.errors = [RuntimeError("barnabas-bad-record:{}")]
    with pytest.raises(TablesMoved):
        run.tables.admit("by_day", 1)
    with pytest.raises(TableFailedError, match="barnabas-bad-record") as failed:
        run.tables.move("by_day")
    assert failed.value.source.name == "airlines"
    assert run.batch(1) == ["all to 10 of a", "10 to 12"]


def test_a_schema_that_was_not_known_has_the_rows_decoded_anew_and_the_topic_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned: list[str] = []

    def learn(_pipeline: Pipeline, failure: str) -> bool:
        learned.append(failure)
        return True

    monkeypatch.setattr(topic_tables, "learn_unknown", learn)
    run = Run(pipeline_with(tmp_path), Topic(), begins=False)
    run.parts.errors = [RuntimeError("schema 1"), RuntimeError("schema 2")]
    run.tables.read()
    assert learned == ["schema 1", "schema 2"]
    assert (run.parts.forgotten, run.parts.read_parts) == (2, ["all to 10 of a"])
    assert any(line.startswith("table airlines: 10 rows") for line in run.said)


def test_stop_does_not_wait_for_a_table_that_is_being_read(tmp_path: Path) -> None:
    run = Run(pipeline_with(tmp_path), Topic(), begins=False)
    run.parts.hangs = threading.Event()
    stopping = threading.Timer(0.05, run.stop.set)
    stopping.start()
    try:
        with pytest.raises(RunStopped):
            run.tables.read()
    finally:
        run.parts.hangs.set()
        stopping.join()


def test_what_the_topic_has_while_nothing_changes_is_asked_once_for_each_batch(tmp_path: Path) -> None:
    run = Run(pipeline_with(tmp_path), Topic()).begin()
    for number in range(3):
        before = run.topic.looks
        run.batch(number)
        assert run.topic.looks == before + 1


def test_an_hour_without_a_look_may_have_had_tombstones(tmp_path: Path, clock: list[float]) -> None:
    run = Run(pipeline_with(tmp_path), Topic()).begin()
    run.batch(0)
    clock[0] += 3_601
    assert run.batch(1) == ["all to 10 of a"]  # with nothing new there was no tombstone either
    clock[0] += 3_601
    run.topic.records = 12
    assert run.batch(2) == ["all to 12 of a"]


def test_what_runs_that_were_killed_before_their_first_batch_have_read_does_not_stay(tmp_path: Path) -> None:
    topic, pipeline = Topic(), pipeline_with(tmp_path)
    Run(pipeline, topic).begin().batch(0)
    for _ in range(2):
        topic.records += 1
        Run(pipeline, topic).begin(BatchesDone(0, -1))
    topic.records += 1
    run = Run(pipeline, topic).begin(BatchesDone(0, -1))
    parts = sorted(path.name for path in (pipeline.state_directory / "read" / "parts").iterdir())
    assert parts == ["all to 10 of a", "all to 13 of a"]  # that of the batch that comes again, and that of this run
    assert run.batch(0) == ["all to 10 of a"]


def test_a_topic_that_is_made_again_while_it_is_read_whole_is_read_again(tmp_path: Path) -> None:
    topic, pipeline = Topic(), pipeline_with(tmp_path)
    run = Run(pipeline, topic, refreshes=False, begins=False)
    whole, ids = run.parts.whole, iter("bc")

    def made_again(source: Source, look: TopicLook) -> TableVersion:
        version = whole(source, look)
        topic.topic_id = next(ids, "c")
        return version

    run.parts.whole = made_again  # type: ignore[method-assign]
    run.tables.read()
    assert run.begin().batch(0) == ["all to 10 of c"]
    assert len([line for line in run.said if "was made again" in line]) == 2


def test_a_topic_that_is_made_again_without_end_ends_the_run_and_not_its_patience(tmp_path: Path) -> None:
    topic, pipeline = Topic(), pipeline_with(tmp_path)
    run = Run(pipeline, topic, begins=False)
    whole = run.parts.whole

    def made_again(source: Source, look: TopicLook) -> TableVersion:
        topic.topic_id += "a"
        return whole(source, look)

    run.parts.whole = made_again  # type: ignore[method-assign]
    with pytest.raises(PipelineUnreachableError, match="made again and again"):
        run.tables.read()
    assert len(run.parts.read_parts) <= 5


def test_a_batch_whose_note_could_not_be_written_has_it_written_when_it_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, pipeline = Topic(), pipeline_with(tmp_path)
    run = Run(pipeline, topic).begin()

    def full(_self: VersionFiles, _name: str, _seen: Seen) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(VersionFiles, "note", full)
        with pytest.raises(OSError, match="No space"):
            run.batch(0)
    run.batch(0)
    assert run.files.seen("state-by_day") is not None


def test_nothing_is_let_go_of_while_the_rows_of_a_table_are_looked_up(tmp_path: Path) -> None:
    """A query notes what it sees on a thread of its own while the run makes the plan of another."""
    run = Run(pipeline_with(tmp_path), Topic()).begin().begin(view="timed")
    is_looked_up, may_end, order = threading.Event(), threading.Event(), list[str]()
    frame, keep_only = run.parts.frame, run.parts.keep_only

    def slow_frame(source: Source, version: TableVersion) -> Any:
        is_looked_up.set()
        assert may_end.wait(60)
        order.append("looked up")
        return frame(source, version)

    def told(versions: dict[str, list[TableVersion]]) -> None:
        order.append("let go")
        keep_only(versions)

    run.parts.frame, run.parts.keep_only = slow_frame, told  # type: ignore[method-assign]
    plan = threading.Thread(target=run.tables.frame, args=("timed", airlines_of(run.pipeline)))
    note = threading.Thread(target=run.tables.admit, args=("by_day", 0))
    plan.start()
    assert is_looked_up.wait(60)
    note.start()
    note.join(0.2)
    may_end.set()
    plan.join(60)
    note.join(60)
    assert order == ["looked up", "let go"]


def test_what_is_being_made_is_not_let_go_of_when_another_query_notes_what_it_sees(tmp_path: Path) -> None:
    run = Run(pipeline_with(tmp_path), Topic()).begin().begin(view="timed")
    run.batch(0)
    run.topic.records = 12
    newer = run.parts.newer

    def meanwhile(source: Source, version: TableVersion, look: TopicLook) -> TableVersion:
        found = newer(source, version, look)
        run.topic.records = 10  # as the other query saw it a moment before
        run.tables.admit("timed", 0)
        run.topic.records = 12
        return found

    run.parts.newer = meanwhile  # type: ignore[method-assign]
    assert run.batch(1) == ["all to 10 of a", "10 to 12"]
    assert all(run.files.part(name).is_dir() for name in ("all to 10 of a", "10 to 12"))
