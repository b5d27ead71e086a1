"""The turns of a run: batches told once, failures that pass, ends in order. Spark is played by the test."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.pipelines import pipeline_run, runner, running_query
from barnabas.pipelines.definition import (
    OnError,
    Pipeline,
    PipelineError,
    PipelineUnreachableError,
    RunStopped,
    TopicSink,
)
from barnabas.pipelines.parquet_table import MARKER
from barnabas.pipelines.plan import OutputMode
from barnabas.pipelines.progress import Progress, RunSummary
from barnabas.pipelines.run_notes import NOTES_MAX
from barnabas.pipelines.run_options import RunOptions
from barnabas.pipelines.state_directory import StateDirectory
from barnabas.pipelines.status import read_status
from barnabas.pipelines.topic_tables import TableFailedError, TablesMoved
from tests.unit.pipelines.made_pipelines import IDENTITY, airlines, flights, made_pipeline

Script = Callable[["FakeSpark", "FakeQuery"], None]


class FakeQuery:
    """A started query, or one about to be: what a session's `writeStream` builds."""

    def __init__(self, spark: FakeSpark, view: str) -> None:
        self._spark = spark
        self.view = view
        self.runId = f"{view}-{len(spark.started)}"
        self.isActive = False
        self.status = {"isTriggerActive": False}
        self.settings: dict[str, Any] = {}
        self.write: Any = None

    def __getattr__(self, name: str) -> Any:
        if name == "writeStream":
            return self

        def set_it(*arguments: Any, **named: Any) -> FakeQuery:
            self.settings[name] = arguments or named
            return self

        return set_it

    def foreachBatch(self, write: Any) -> FakeQuery:  # noqa: N802  # Spark's name
        self.write = write
        return self

    def start(self) -> FakeQuery:
        self.isActive = True
        self._spark.started.append(self)
        script = self._spark.scripts.popleft() if self._spark.scripts else lambda _spark, _query: None
        script(self._spark, self)
        return self

    def stop(self) -> None:
        if self.isActive:
            self.end()

    def end(self, error: str | None = None) -> None:
        self.isActive = False
        self._spark.listener.onQueryTerminated(SimpleNamespace(runId=self.runId, exception=error))

    def idle(self) -> None:
        self._spark.listener.onQueryIdle(SimpleNamespace(runId=self.runId))

    def finish_batch(self, batch_id: int, offset: int = 0, **changes: Any) -> None:
        content = {
            "batchId": batch_id,
            "timestamp": "2026-01-02T03:04:05.600Z",
            "numInputRows": 10,
            "durationMs": {"addBatch": 5, "triggerExecution": 10},
            "sources": [{"endOffset": {"flights": {"0": offset}}, "latestOffset": {"flights": {"0": 100}}}],
            "observedMetrics": {"barnabas_rows_out": {"rows": 3}},
            **changes,
        }
        progress = SimpleNamespace(name=self.view, json=json.dumps(content))
        self._spark.listener.onQueryProgress(SimpleNamespace(progress=progress))


class FakeSpark:
    """A session whose queries do, at each start, what the next script says."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = deque(scripts)
        self.started: list[FakeQuery] = []
        self.listener: Any = None
        self.streams = SimpleNamespace(addListener=lambda listener: setattr(self, "listener", listener))

    def table(self, view: str) -> FakeQuery:
        return FakeQuery(self, view)


class Told:
    """A progress sink that keeps everything."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.batches: list[Progress] = []

    def said(self, line: str) -> None:
        self.lines.append(line)

    def batch(self, progress: Progress) -> None:
        self.batches.append(progress)

    def ended(self, summary: RunSummary) -> None:
        raise AssertionError("the runner says that, not the run")


class NoTables:
    """The tables of a run that has none, unless they cannot be read."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self.moved: list[str] = []

    def read(self) -> None:
        if self._error is not None:
            raise self._error

    def begin(self, *_: object) -> None: ...

    def admit(self, *_: object) -> None: ...

    def move(self, view: str) -> None:
        self.moved.append(view)
        if self._error is not None:
            raise self._error


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was given to the group, in order."""
    given: list[Any] = []

    @contextlib.contextmanager
    def fake(*_: object) -> Iterator[Any]:
        yield SimpleNamespace(finished=given.append)

    monkeypatch.setattr(pipeline_run, "committing", fake)
    return given


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (runner, pipeline_run):
        monkeypatch.setattr(module, "read_identity", lambda *_: IDENTITY)
    monkeypatch.setattr(runner, "opened_outboxes", lambda *_: contextlib.nullcontext({}))
    monkeypatch.setattr(runner, "opened_tables", lambda *_, refreshes: contextlib.nullcontext(NoTables()))
    monkeypatch.setattr(pipeline_run, "counted", lambda frame: frame)
    monkeypatch.setattr(pipeline_run, "create_views", lambda *_: None)
    monkeypatch.setattr(
        pipeline_run, "check_views", lambda made, _: {each.from_view: OutputMode.UPDATE for each in made.queries}
    )
    monkeypatch.setattr(pipeline_run, "_RESTART_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(pipeline_run, "_POLL_SECONDS", 0.01)


def run(
    pipeline: Pipeline, spark: FakeSpark, told: Told, *, once: bool = True, stop: Any = None, tables: Any = None
) -> RunSummary:
    state = StateDirectory(pipeline.state_directory)
    state.directory.mkdir(exist_ok=True)
    options, stop, tables = RunOptions("host:1", once), stop or threading.Event(), tables or NoTables()
    made = pipeline_run.PipelineRun(pipeline, options, told, stop, state, spark, {}, tables)
    made.prepare()
    made.work(0.0)
    return made.summary(0.0)


def test_each_batch_is_told_once_and_committed(tmp_path: Path, committed: list[Any]) -> None:
    def script(_spark: FakeSpark, query: FakeQuery) -> None:
        query.finish_batch(0, 10)
        query.finish_batch(0, 10)
        query.finish_batch(1, 0, durationMs={"triggerExecution": 1})
        query.finish_batch(1, 20)
        query.end()

    told, pipeline = Told(), made_pipeline(tmp_path)
    summary = run(pipeline, FakeSpark(script), told)
    assert [batch.batch_id for batch in told.batches] == [0, 1]
    assert committed == [{"flights": {0: 10}}, {"flights": {0: 20}}]
    assert (summary.batches, summary.rows_in, summary.rows_out, summary.lag) == (2, 20, 6, {"flights": 80})
    assert not summary.was_stopped
    assert StateDirectory(pipeline.state_directory).last_progress()["by_day"]["batch_id"] == 1


def test_sums_go_on_from_the_run_before(tmp_path: Path, committed: list[Any]) -> None:
    def script(batch_id: int) -> Script:
        def play(_spark: FakeSpark, query: FakeQuery) -> None:
            query.finish_batch(batch_id, 10)
            query.end()

        return play

    told, pipeline = Told(), made_pipeline(tmp_path)
    run(pipeline, FakeSpark(script(0)), told)
    run(pipeline, FakeSpark(script(1)), told)
    assert [batch.totals.rows_in for batch in told.batches] == [10, 20]


def test_a_topic_is_committed_as_far_as_all_its_readers_are(tmp_path: Path, committed: list[Any]) -> None:
    sinks = tuple(TopicSink(view, view, 1, 1) for view in ("by_day", "timed"))

    def first(_spark: FakeSpark, query: FakeQuery) -> None:
        query.finish_batch(0, 50)
        query.end()

    def second(_spark: FakeSpark, query: FakeQuery) -> None:
        query.finish_batch(0, 30)
        query.end()

    run(made_pipeline(tmp_path, sinks=sinks), FakeSpark(first, second), Told())
    assert committed == [{"flights": {0: 30}}]


def test_a_failure_that_passes_is_started_again(tmp_path: Path, committed: list[Any]) -> None:
    def fail(_spark: FakeSpark, query: FakeQuery) -> None:
        query.finish_batch(0, 10)
        query.end("org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment")

    def go_on(_spark: FakeSpark, query: FakeQuery) -> None:
        query.finish_batch(1, 20)
        query.end()

    told, spark = Told(), FakeSpark(fail, go_on)
    summary = run(made_pipeline(tmp_path), spark, told)
    assert [batch.batch_id for batch in told.batches] == [0, 1]
    first, second = spark.started
    assert first.settings["option"] == second.settings["option"]
    assert len(summary.warnings) == 1
    assert "goes on from its checkpoint" in summary.warnings[0]


def test_lost_records_are_counted_in_the_report(
    tmp_path: Path, committed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[int | Exception] = [0, 4, PipelineUnreachableError("nobody answers"), 3]

    def lost(_pipeline: Pipeline, servers: str, _content: object, starts: Any) -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def script(_spark: FakeSpark, query: FakeQuery) -> None:
        for number in (0, 1, 1, 2, 3):
            query.finish_batch(number, 10 * number)
        query.end()

    monkeypatch.setattr(pipeline_run, "lost_records", lost)
    told = Told()
    summary = run(made_pipeline(tmp_path), FakeSpark(script), told)
    assert [batch.records_lost for batch in told.batches] == [0, 4, 0, 3]
    assert (summary.records_lost, told.batches[-1].totals.records_lost) == (7, 7)
    assert [line.split(":")[0] for line in summary.warnings] == [
        "by_day has lost 4 records",
        "by_day may have lost records that are not counted",
        "by_day has lost 3 records",
    ]


def test_records_that_are_gone_are_told_at_once_and_not_tried_again(
    tmp_path: Path, committed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = made_pipeline(tmp_path)

    def refuse(*_: object) -> None:
        raise pipeline.error("the topic has lost 5 records", 3)

    def fail(_spark: FakeSpark, query: FakeQuery) -> None:
        monkeypatch.setattr(pipeline_run, "refuse_lost_records", refuse)
        query.end("org.apache.spark.SparkException: [KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE]")

    spark = FakeSpark(fail)
    with pytest.raises(PipelineError, match=r"delays.yaml:3: the topic has lost 5 records"):
        run(pipeline, spark, Told())
    assert len(spark.started) == 1


def test_what_a_batchs_writer_says_itself_is_told_as_it_is(tmp_path: Path, committed: list[Any]) -> None:
    def fail(error: PipelineError) -> Script:
        def play(_spark: FakeSpark, query: FakeQuery) -> None:
            query.write.error = error
            query.end("py4j.protocol.Py4JException: An exception was raised by the Python Proxy")

        return play

    pipeline = made_pipeline(tmp_path)
    refused = pipeline.error("the topic of dead letters could not be made", 3)
    spark = FakeSpark(fail(PipelineUnreachableError("nobody answers")), fail(refused))
    with pytest.raises(PipelineError) as error:
        run(pipeline, spark, Told())
    assert str(error.value) == f"{pipeline.path}:3: the topic of dead letters could not be made"
    assert len(spark.started) == 2


@pytest.mark.parametrize(
    ("on_error", "told"),
    [(OnError.TOPIC, "they are left out, and sent to the topic delays.dlq"), (OnError.SKIP, "they are left out (")],
)
def test_records_that_do_not_fit_are_told_once_and_counted(
    tmp_path: Path, committed: list[Any], on_error: OnError, told: str
) -> None:
    def script(_spark: FakeSpark, query: FakeQuery) -> None:
        for number, refused in enumerate((0, 2, 3)):
            query.finish_batch(number, observedMetrics={"barnabas_refused_flights": {"records": refused}})
        query.end()

    pipeline = made_pipeline(tmp_path, sources=(flights(on_error=on_error), airlines()))
    summary = run(pipeline, FakeSpark(script), Told())
    assert summary.records_refused == 5
    (warning,) = summary.warnings
    assert f"by_day reads records that do not fit their schema: {told}" in warning


def test_a_topic_that_is_made_again_is_not_read_from_offsets_of_the_one_before(
    tmp_path: Path, committed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = made_pipeline(tmp_path)
    state = StateDirectory(pipeline.state_directory)
    state.directory.mkdir()
    state.take_definition(pipeline, IDENTITY)

    def fail(_spark: FakeSpark, query: FakeQuery) -> None:
        begun = state.checkpoint("by_day") / "offsets" / "0"
        begun.parent.mkdir(parents=True)
        begun.touch()
        query.finish_batch(0, 10)
        again = dataclasses.replace(IDENTITY, topic_ids={"flights": "f2"})
        monkeypatch.setattr(pipeline_run, "read_identity", lambda *_: again)
        query.end("org.apache.kafka.common.errors.UnknownTopicOrPartitionException: gone")

    spark = FakeSpark(fail)
    with pytest.raises(PipelineError, match=r'delays.yaml:4: the topic "flights" was deleted and made again'):
        run(pipeline, spark, Told())
    assert len(spark.started) == 1


def test_brokers_that_are_away_when_a_query_starts_again_are_sparks_to_find(
    tmp_path: Path, committed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise PipelineUnreachableError("nobody answers")

    def fail(_spark: FakeSpark, query: FakeQuery) -> None:
        monkeypatch.setattr(pipeline_run, "read_identity", away)
        query.end("org.apache.kafka.common.errors.TimeoutException: no answer")

    def go_on(_spark: FakeSpark, query: FakeQuery) -> None:
        query.finish_batch(0, 10)
        query.end()

    assert run(made_pipeline(tmp_path), FakeSpark(fail, go_on), Told()).batches == 1


def test_a_failure_that_does_not_pass_ends_the_run(tmp_path: Path, committed: list[Any]) -> None:
    def fail(_spark: FakeSpark, query: FakeQuery) -> None:
        query.end("Caused by: org.apache.kafka.common.errors.TimeoutException: no")

    spark = FakeSpark(*[fail] * 20)
    with pytest.raises(PipelineError, match="did not answer by_day in time"):
        run(made_pipeline(tmp_path), spark, Told())
    assert 2 <= len(spark.started) <= 10


@pytest.mark.parametrize("is_idle", [True, False])
def test_time_in_which_a_query_had_nothing_to_do_is_no_failure(
    tmp_path: Path, committed: list[Any], monkeypatch: pytest.MonkeyPatch, *, is_idle: bool
) -> None:
    now = [1_000.0]
    for module in (pipeline_run, running_query):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def fail_after_two_minutes(_spark: FakeSpark, query: FakeQuery) -> None:
        now[0] += 121
        if is_idle:
            query.idle()
        query.end("org.apache.kafka.common.errors.TimeoutException: no answer")

    def go_on(_spark: FakeSpark, query: FakeQuery) -> None:
        query.finish_batch(0, 10)
        query.end()

    spark = FakeSpark(fail_after_two_minutes, go_on)
    if is_idle:
        assert run(made_pipeline(tmp_path), spark, Told(), once=False).batches == 1
        return
    with pytest.raises(PipelineError, match="did not answer by_day in time"):
        run(made_pipeline(tmp_path), spark, Told(), once=False)


def test_a_failure_of_the_pipelines_own_ends_it_at_once_and_every_query(tmp_path: Path, committed: list[Any]) -> None:
    sinks = tuple(TopicSink(view, view, 1, 1) for view in ("by_day", "timed"))

    def fail(_spark: FakeSpark, query: FakeQuery) -> None:
        query.end("org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero")

    spark = FakeSpark(fail)
    with pytest.raises(PipelineError, match="Division by zero"):
        run(made_pipeline(tmp_path, sinks=sinks), spark, Told())
    assert len(spark.started) == 2
    assert not any(query.isActive for query in spark.started)


def test_a_query_that_waits_for_a_reader_of_its_rows_keeps_no_run_from_ending(
    tmp_path: Path, committed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sinks = tuple(TopicSink(view, view, 1, 1) for view in ("by_day", "timed"))
    stopped: list[bool] = []

    def say_much(_spark: FakeSpark, query: FakeQuery) -> None:
        rows = ["rows"] * 100 * NOTES_MAX
        (thread := threading.Thread(target=lambda: [query.write._say(each) for each in rows], daemon=True)).start()

        def stop() -> None:
            thread.join(10)
            stopped.append(not thread.is_alive())

        monkeypatch.setattr(query, "stop", stop)

    def fail(_spark: FakeSpark, query: FakeQuery) -> None:
        query.end("[DIVIDE_BY_ZERO] Division by zero")

    with pytest.raises(PipelineError, match="Division by zero"):
        run(made_pipeline(tmp_path, sinks=sinks), FakeSpark(say_much, fail), Told())
    assert stopped == [True]


def test_stop_ends_an_idle_query_at_once(tmp_path: Path, committed: list[Any]) -> None:
    stop = threading.Event()

    def idle(_spark: FakeSpark, query: FakeQuery) -> None:
        query.finish_batch(0, 10)
        stop.set()

    told, spark = Told(), FakeSpark(idle)
    summary = run(made_pipeline(tmp_path), spark, told, once=False, stop=stop)
    assert summary.was_stopped
    assert summary.batches == 1
    assert not spark.started[0].isActive


def test_stop_lets_a_batch_end_and_no_other_begin(tmp_path: Path, committed: list[Any]) -> None:
    stop = threading.Event()

    def busy(_spark: FakeSpark, query: FakeQuery) -> None:
        query.status = {"isTriggerActive": True}
        stop.set()
        query.finish_batch(0, 10)
        with pytest.raises(RunStopped):
            query.write(None, 1)
        query.end("[FOREACH_BATCH_USER_FUNCTION_ERROR] RunStopped")

    told = Told()
    summary = run(made_pipeline(tmp_path), FakeSpark(busy), told, once=False, stop=stop)
    assert summary.was_stopped
    assert [batch.batch_id for batch in told.batches] == [0]
    assert summary.warnings == ()


def test_a_batch_that_does_not_end_is_left_when_its_time_is_over(
    tmp_path: Path, committed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_run, "STOP_SECONDS_MAX", 0.0)
    stop = threading.Event()

    def refuse() -> None:
        raise TimeoutError("the query did not stop in time")

    def hang(_spark: FakeSpark, query: FakeQuery) -> None:
        query.status = {"isTriggerActive": True}
        query.__dict__["stop"] = refuse
        stop.set()

    summary = run(made_pipeline(tmp_path), FakeSpark(hang), Told(), once=False, stop=stop)
    assert summary.was_stopped


def test_a_table_that_cannot_be_read_ends_the_run(tmp_path: Path, committed: list[Any]) -> None:
    error = TableFailedError(airlines(), "org.apache.kafka.common.errors.TimeoutException: no answer")
    with pytest.raises(PipelineError, match="did not answer airlines in time"):
        run(made_pipeline(tmp_path), FakeSpark(), Told(), tables=NoTables(error))


def moving(_spark: FakeSpark, query: FakeQuery) -> None:
    query.write.error = TablesMoved()
    query.end("[FOREACH_BATCH_USER_FUNCTION_ERROR] TablesMoved")


def test_a_query_whose_tables_have_moved_begins_its_batch_again_and_that_is_no_failure(
    tmp_path: Path, committed: list[Any]
) -> None:
    def go_on(_spark: FakeSpark, query: FakeQuery) -> None:
        query.finish_batch(0, 10)
        query.end()

    tables, spark = NoTables(), FakeSpark(*[moving] * 8, go_on)
    summary = run(made_pipeline(tmp_path), spark, Told(), tables=tables)
    assert (summary.batches, summary.warnings, tables.moved) == (1, (), ["by_day"] * 8)
    assert len(spark.started) == 9


def test_a_table_that_cannot_be_read_on_is_tried_again_and_ends_the_run_in_the_end(
    tmp_path: Path, committed: list[Any]
) -> None:
    class Unreachable(NoTables):
        def read(self) -> None: ...

    tables = Unreachable(PipelineUnreachableError("nobody tells where airlines ends"))
    spark = FakeSpark(*[moving] * 20)
    with pytest.raises(PipelineError, match="nobody tells where airlines ends"):
        run(made_pipeline(tmp_path), spark, Told(), tables=tables)
    assert 2 <= len(spark.started) <= 10


def test_stop_while_a_table_is_read_on_ends_the_run(tmp_path: Path, committed: list[Any]) -> None:
    stop = threading.Event()

    class Stopping(NoTables):
        def move(self, view: str) -> None:
            stop.set()
            raise RunStopped

    spark = FakeSpark(moving)
    summary = run(made_pipeline(tmp_path), spark, Told(), once=False, stop=stop, tables=Stopping())
    assert (summary.was_stopped, len(spark.started)) == (True, 1)


def test_a_query_that_ended_without_a_word_is_found_out(
    tmp_path: Path, committed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_run, "_LOOK_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(pipeline_run, "_LAST_EVENTS_SECONDS_MAX", 0.05)

    def vanish(_spark: FakeSpark, query: FakeQuery) -> None:
        query.isActive = False
        query.__dict__["exception"] = lambda: None

    assert run(made_pipeline(tmp_path), FakeSpark(vanish), Told()).batches == 0


class ToldToTheEnd(Told):
    """Also the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.summaries: list[RunSummary] = []

    def ended(self, summary: RunSummary) -> None:
        self.summaries.append(summary)


def test_a_run_in_a_session_that_is_there_leaves_its_state(tmp_path: Path, committed: list[Any]) -> None:
    def script(_spark: FakeSpark, query: FakeQuery) -> None:
        query.finish_batch(0, 10)
        query.end()

    told, pipeline = ToldToTheEnd(), made_pipeline(tmp_path)
    summary = runner.run_pipeline_in(FakeSpark(script), pipeline, RunOptions("host:1", once=True), told)
    assert told.summaries == [summary]
    assert (summary.batches, summary.was_stopped) == (1, False)
    assert read_status(pipeline).queries[0].totals.rows_in == 10
    assert (tmp_path / "table" / MARKER).exists()
    # A state that another pipeline has made is refused here too.
    begun = StateDirectory(pipeline.state_directory).checkpoint("by_day") / "offsets" / "0"
    begun.parent.mkdir(parents=True)
    begun.touch()
    fewer = made_pipeline(tmp_path, sinks=pipeline.sinks[1:])
    with pytest.raises(PipelineError, match="sink topic delays was removed"):
        runner.run_pipeline_in(FakeSpark(), fewer, RunOptions("host:1", once=True), told)


def test_a_run_in_a_session_that_is_stopped_at_once_starts_nothing(tmp_path: Path, committed: list[Any]) -> None:
    stop, spark = threading.Event(), FakeSpark()
    stop.set()
    summary = runner.run_pipeline_in(
        spark, made_pipeline(tmp_path), RunOptions("host:1", once=True), ToldToTheEnd(), stop
    )
    assert (summary.was_stopped, summary.batches, spark.started) == (True, 0, [])
