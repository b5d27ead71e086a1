"""What is kept between runs: the lock, the definition, offsets, progress, how the last run ended."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import pytest

from barnabas.pipelines import state_directory
from barnabas.pipelines.cluster_identity import ClusterIdentity
from barnabas.pipelines.definition import Pipeline, PipelineError, TopicSink
from barnabas.pipelines.state_directory import SENT_NOTE, BatchesDone, RunEnd, StateDirectory, merged_offsets
from tests.unit.pipelines.made_pipelines import IDENTITY, by_day, flights, made_pipeline, timed

# A process that holds the lock of a state directory until it is killed.
HOLDER = """
import fcntl, sys
with open(sys.argv[1], "a") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return made_pipeline(tmp_path)


@pytest.fixture
def state(pipeline: Pipeline) -> StateDirectory:
    pipeline.state_directory.mkdir()
    return StateDirectory(pipeline.state_directory)


def put_batch(state: StateDirectory, batch_id: int, *sources: object, view: str = "by_day") -> None:
    """A finished batch, as Spark's checkpoint has it."""
    for part in ("offsets", "commits"):
        (state.checkpoint(view) / part).mkdir(parents=True, exist_ok=True)
    lines = ["v1", '{"batchWatermarkMs":0}', *(json.dumps(source) for source in sources)]
    (state.checkpoint(view) / "offsets" / str(batch_id)).write_text("\n".join(lines))
    (state.checkpoint(view) / "commits" / str(batch_id)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def test_a_second_run_is_refused_by_name_and_process(pipeline: Pipeline, state: StateDirectory) -> None:
    with state.locked(pipeline):
        with (
            pytest.raises(PipelineError, match=f"pipeline delays is already running, in process {os.getpid()} "),
            StateDirectory(pipeline.state_directory).locked(pipeline),
        ):
            pass
        assert state.lock_holder() == os.getpid()
    assert state.lock_holder() is None
    with state.locked(pipeline):
        pass


def test_a_killed_run_holds_no_lock(pipeline: Pipeline, state: StateDirectory) -> None:
    command = [sys.executable, "-c", HOLDER, str(state.directory / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert state.lock_holder() == 0
        holder.kill()
    with state.locked(pipeline):
        assert state.lock_holder() == os.getpid()


def test_a_state_is_not_taken_while_spark_of_a_killed_run_is_there(pipeline: Pipeline, state: StateDirectory) -> None:
    # The process of a run, which is gone, had started this one, which has inherited the lock.
    left = subprocess.Popen([sys.executable, "-c", "pass"])
    left.wait()
    command = [sys.executable, "-c", HOLDER, str(state.directory / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        (state.directory / "lock").write_text(f"{left.pid}\n")
        is_killed = threading.Event()

        def kill() -> None:
            is_killed.set()
            holder.kill()

        ending = threading.Timer(0.5, kill)
        ending.start()
        # A process that ends lets go of its files before anybody is told.
        with state.locked(pipeline):
            assert is_killed.is_set()
        ending.join()


def test_spark_has_the_lock_as_long_as_it_lives(pipeline: Pipeline, state: StateDirectory) -> None:
    with state.locked(pipeline):
        assert state.lock_descriptor is not None
        kept = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(state.lock_descriptor,)
        )
    try:
        assert state.lock_holder() == os.getpid()
        with pytest.raises(PipelineError, match="is already running"), state.locked(pipeline):
            pass
    finally:
        kept.communicate(b"\n")
    with state.locked(pipeline):
        pass


def test_a_run_does_not_begin_with_a_state_that_a_backfill_has_put_elsewhere(
    pipeline: Pipeline, state: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would have the lock of the old one, and another run that of the new one."""
    flocked = state_directory._flocked

    def replaced(lock: TextIO) -> bool:
        state.directory.rename(state.directory.with_name("state~before"))
        state.directory.mkdir()
        return flocked(lock)

    monkeypatch.setattr(state_directory, "_flocked", replaced)
    with pytest.raises(PipelineError, match="was replaced while this run began: run it again"), state.locked(pipeline):
        pass


def test_a_state_directory_that_cannot_be_made_is_told_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    pipeline = made_pipeline(tmp_path, state_directory=tmp_path / "file" / "state", state_line=40)
    with (
        pytest.raises(PipelineError, match=r"delays.yaml:40: state directory .*Not a directory"),
        StateDirectory(pipeline.state_directory).locked(pipeline),
    ):
        pass


def test_the_same_definition_goes_on_with_the_same_id(pipeline: Pipeline, state: StateDirectory) -> None:
    first, _ = state.take_definition(pipeline, IDENTITY)
    put_batch(state, 0)
    moved = replace(pipeline, sources=(flights(max_records_per_batch=7, allow_data_loss=True), pipeline.sources[1]))
    assert state.take_definition(replace(moved, trigger_ms=5_000), IDENTITY) == (first, ())
    spaced = timed("SELECT *\n  FROM flights JOIN airlines USING (carrier)")
    assert state.take_definition(replace(pipeline, steps=(spaced, by_day())), IDENTITY) == (first, ())


@pytest.mark.parametrize("where", [f"outbox/by_day/{SENT_NOTE}", "tables/0123.json"])
def test_a_recomputation_has_an_id_of_its_own_once_batches_were_sent(
    pipeline: Pipeline, state: StateDirectory, where: str
) -> None:
    """Its batches begin at 0 again, and would be taken for those that are in a topic, or in a table."""
    first, _ = state.take_definition(pipeline, IDENTITY)
    note = state.directory / where
    note.parent.mkdir(parents=True)
    note.write_text('{"next_batch": 0}')
    assert state.take_definition(pipeline, IDENTITY)[0] == first, "nothing was sent under it"
    put_batch(state, 0)
    note.write_text('{"next_batch": 1}')
    assert state.take_definition(pipeline, IDENTITY)[0] == first
    shutil.rmtree(state.directory / "checkpoints")
    assert state.take_definition(pipeline, IDENTITY)[0] != first
    assert not note.exists()


def test_a_run_that_is_killed_while_it_takes_another_id_has_not_forgotten_that_batches_were_sent(
    pipeline: Pipeline, state: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the note of what was sent it would go on under the former id, whose group knows more batches than it."""
    first, _ = state.take_definition(pipeline, IDENTITY)
    note = state.outbox("by_day") / SENT_NOTE
    note.parent.mkdir(parents=True)
    note.write_text('{"next_batch": 3}')

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(state_directory, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            state.take_definition(pipeline, IDENTITY)
    assert state.take_definition(pipeline, IDENTITY)[0] != first


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"steps": (timed("SELECT 1"), by_day())}, r"delays.yaml:10: step timed was changed \(sql\)"),
        ({"steps": (timed(delay_ms=1), by_day())}, r"delays.yaml:10: step timed was changed \(watermark\)"),
        ({"steps": (by_day(),)}, r"delays.yaml:20: step timed was removed"),
        ({"sources": (flights(topic="others"),)}, r"delays.yaml:3: source flights was changed \(topic\)"),
        ({"sinks": ()}, r"delays.yaml:1: sink topic delays was removed"),
    ],
)
def test_a_changed_definition_is_refused_over_its_old_state(
    pipeline: Pipeline, state: StateDirectory, change: dict[str, object], told: str
) -> None:
    state.take_definition(pipeline, IDENTITY)
    put_batch(state, 0)
    with pytest.raises(PipelineError, match=told) as error:
        state.take_definition(replace(pipeline, **change), IDENTITY)  # type: ignore[arg-type]  # the parametrization's
    assert f"remove {pipeline.state_directory}" in str(error.value)


@pytest.mark.parametrize(
    ("before", "now", "is_same"),
    [
        ("SELECT 'x  y' AS a FROM flights", "SELECT 'x y' AS a FROM flights", False),
        ("SELECT 'x\ny' AS a FROM flights", "SELECT 'x y' AS a FROM flights", False),
        ("SELECT 'AA' AS a FROM flights", "SELECT 'aa' AS a FROM flights", False),
        ("SELECT a, b\nFROM flights", "SELECT a -- , b\nFROM flights", False),
        ("SELECT a\n-- , b\nFROM flights", "SELECT a\n-- \n, b\nFROM flights", False),
        ("SELECT a /* , b */ FROM flights", "SELECT a , b FROM flights", False),
        ("SELECT `a  b` FROM flights", "SELECT `a b` FROM flights", False),
        ("SELECT a AS Day FROM flights", "SELECT a AS day FROM flights", False),
        ("SELECT 1.0 AS a FROM flights", "SELECT 1.00 AS a FROM flights", False),
        ("SELECT CAST(a AS INT) FROM flights", "SELECT TRY_CAST(a AS INT) FROM flights", False),
        ("SELECT /*+ BROADCAST(b) */ a FROM flights", "SELECT a FROM flights", False),
        ("SELECT count(a) AS n FROM flights -- all", "select COUNT( a ) as n\n\tfrom flights /* some */", True),
    ],
)
def test_sql_is_compared_by_what_it_says_and_not_by_its_layout(
    pipeline: Pipeline, state: StateDirectory, before: str, now: str, *, is_same: bool
) -> None:
    state_id, _ = state.take_definition(replace(pipeline, steps=(timed(before), by_day())), IDENTITY)
    put_batch(state, 0)
    changed = replace(pipeline, steps=(timed(now), by_day()))
    if is_same:
        assert state.take_definition(changed, IDENTITY) == (state_id, ())
        return
    try:
        _, warnings = state.take_definition(changed, IDENTITY)
    except PipelineError as error:
        warnings = (error.message,)
    assert warnings
    assert warnings[0].startswith("step timed was changed (")


def test_a_schema_is_compared_to_the_last_space_in_a_name(pipeline: Pipeline, state: StateDirectory) -> None:
    state.take_definition(replace(pipeline, sources=(flights(schema="`a  b` STRING"), pipeline.sources[1])), IDENTITY)
    put_batch(state, 0)
    _, warnings = state.take_definition(
        replace(pipeline, sources=(flights(schema="`a b` STRING"), pipeline.sources[1])), IDENTITY
    )
    assert len(warnings) == 1


@pytest.mark.parametrize(
    ("version", "told"), [(None, r"an earlier version .*\(form 1, this"), (3, r"a later version .*\(form 3, this")]
)
def test_a_state_of_another_version_is_refused_once_it_has_batches(
    pipeline: Pipeline, state: StateDirectory, version: int | None, told: str
) -> None:
    state_id, _ = state.take_definition(pipeline, IDENTITY)
    path = state.directory / "definition.json"
    content = json.loads(path.read_text())
    del content["version"]
    path.write_text(json.dumps({**content, **({} if version is None else {"version": version})}))
    noted = path.read_text()
    put_batch(state, 0)
    remedy = rf"remove {state.directory} and {pipeline.path.parent / 'table'} to .*\(delete the topic delays too"
    with pytest.raises(PipelineError, match=rf"{told}.*{remedy}"):
        state.take_definition(pipeline, IDENTITY)
    assert path.read_text() == noted
    (state.checkpoint("by_day") / "offsets" / "0").unlink()
    assert state.take_definition(pipeline, IDENTITY) == (state_id, ())


def test_an_added_sink_is_refused_too_since_it_would_lack_the_past(pipeline: Pipeline, state: StateDirectory) -> None:
    state.take_definition(replace(pipeline, sinks=pipeline.sinks[:1]), IDENTITY)
    put_batch(state, 0)
    with pytest.raises(PipelineError, match=r"delays.yaml:33: sink parquet .* was added"):
        state.take_definition(pipeline, IDENTITY)


def test_a_sink_whose_query_has_begun_no_batch_may_go_again(pipeline: Pipeline, state: StateDirectory) -> None:
    """Else a sink with a mistake that only Spark finds could not be taken out again."""
    state.take_definition(pipeline, IDENTITY)
    put_batch(state, 0, {"flights": {"0": 1}})
    more = replace(pipeline, sinks=(*pipeline.sinks, TopicSink("more", "timed", line=40, from_line=41)))
    StateDirectory(state.directory).take_definition(more, IDENTITY)
    StateDirectory(state.directory).check_definition(pipeline)
    put_batch(state, 0, {"flights": {"0": 1}}, view="timed")
    (state.checkpoint("timed") / "commits" / "0").unlink()
    with pytest.raises(PipelineError, match="sink topic more was removed"):
        StateDirectory(state.directory).check_definition(pipeline)


def test_a_changed_schema_is_a_warning_once(pipeline: Pipeline, state: StateDirectory) -> None:
    state_id, _ = state.take_definition(pipeline, IDENTITY)
    put_batch(state, 0)
    wider = replace(pipeline, sources=(flights(schema="carrier STRING, time STRING"), pipeline.sources[1]))
    same_id, warnings = state.take_definition(wider, IDENTITY)
    assert same_id == state_id
    assert len(warnings) == 1
    assert "source flights" in warnings[0]
    assert state.take_definition(wider, IDENTITY) == (state_id, ())


def test_a_definition_may_change_before_anything_was_computed(pipeline: Pipeline, state: StateDirectory) -> None:
    state_id, _ = state.take_definition(pipeline, IDENTITY)
    state.checkpoint("by_day").mkdir(parents=True)
    assert state.take_definition(replace(pipeline, steps=(by_day(),)), IDENTITY) == (state_id, ())
    assert not state.checkpoint("by_day").exists()


def test_a_check_finds_the_same_and_changes_nothing(pipeline: Pipeline, state: StateDirectory) -> None:
    assert state.check_definition(pipeline) == (None, ())
    assert list(state.directory.iterdir()) == []
    state_id, _ = state.take_definition(pipeline, IDENTITY)
    put_batch(state, 0)
    noted = (state.directory / "definition.json").read_text()
    wider = replace(pipeline, sources=(flights(schema="carrier STRING, time STRING"), pipeline.sources[1]))
    for _ in range(2):
        found, warnings = state.check_definition(wider)
        assert (found, len(warnings)) == (state_id, 1)
    with pytest.raises(PipelineError, match="step timed was removed"):
        state.check_definition(replace(pipeline, steps=(by_day(),)))
    assert (state.directory / "definition.json").read_text() == noted


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"cluster_id": "other"}, r"delays.yaml:1: the brokers are those of cluster other, not of cluster that"),
        (
            {"topic_ids": {**IDENTITY.topic_ids, "flights": "f2"}},
            r'delays.yaml:4: the topic "flights" was deleted and made again \(its id is f2, and was f1\)',
        ),
    ],
)
def test_offsets_of_another_topic_or_cluster_are_refused(
    pipeline: Pipeline, state: StateDirectory, change: dict[str, object], told: str
) -> None:
    other = replace(IDENTITY, **change)  # type: ignore[arg-type]  # the parametrization's
    state.take_definition(pipeline, other)
    assert state.check_identity(pipeline, IDENTITY) == ()
    state.take_definition(pipeline, IDENTITY)
    put_batch(state, 0)
    assert state.check_identity(pipeline, IDENTITY) == ()
    for look in (state.check_identity, state.take_definition):
        with pytest.raises(PipelineError, match=rf"{told}.* remove {state.directory} and \S+ to compute everything"):
            look(pipeline, other)
    assert state.check_identity(pipeline, IDENTITY) == ()


def test_a_table_of_a_topic_that_was_made_again_is_read_anew(pipeline: Pipeline, state: StateDirectory) -> None:
    state.take_definition(pipeline, IDENTITY)
    put_batch(state, 0)
    again = replace(IDENTITY, topic_ids={**IDENTITY.topic_ids, "airlines": "a2"})
    assert state.take_definition(pipeline, again)[1] == ()


def test_an_output_that_was_made_again_is_a_warning_once(pipeline: Pipeline, state: StateDirectory) -> None:
    state.take_definition(pipeline, IDENTITY)
    put_batch(state, 0)
    again = replace(IDENTITY, topic_ids={**IDENTITY.topic_ids, "delays": "d2"})
    (warning,) = state.take_definition(pipeline, again)[1]
    assert 'the topic "delays" was deleted and made again' in warning
    assert state.take_definition(pipeline, again)[1] == ()


def test_brokers_that_tell_no_ids_are_taken_as_they_are(pipeline: Pipeline, state: StateDirectory) -> None:
    state.take_definition(pipeline, IDENTITY)
    put_batch(state, 0)
    assert state.take_definition(pipeline, ClusterIdentity(None))[1] == ()


def test_checkpoints_of_nobody_are_refused(pipeline: Pipeline, state: StateDirectory) -> None:
    put_batch(state, 0)
    with pytest.raises(PipelineError, match=r"without a readable definition.json.*remove it"):
        state.take_definition(pipeline, IDENTITY)


def test_offsets_of_the_last_finished_batch(state: StateDirectory) -> None:
    assert state.finished_offsets("by_day") == {}
    put_batch(state, 9, {"flights": {"0": 5, "1": 6}})
    put_batch(state, 10, {"flights": {"0": 15, "1": 16}}, {"flights": {"0": 12, "1": 20}, "other": {"0": 1}})
    # Begun, and not finished.
    (state.checkpoint("by_day") / "offsets" / "11").write_text('v1\n{}\n{"flights":{"0":99,"1":99}}')
    assert state.finished_offsets("by_day") == {"flights": {0: 12, 1: 16}, "other": {0: 1}}


def test_the_last_batches_that_were_begun_and_finished(state: StateDirectory) -> None:
    assert state.batches_done("by_day") == BatchesDone(-1, -1)
    put_batch(state, 9)
    put_batch(state, 10)
    (state.checkpoint("by_day") / "offsets" / ".12.crc").touch()
    (state.checkpoint("by_day") / "offsets" / "11").touch()
    assert state.batches_done("by_day") == BatchesDone(11, 10)


def test_offsets_that_cannot_be_read_are_none(state: StateDirectory) -> None:
    put_batch(state, 0)
    (state.checkpoint("by_day") / "offsets" / "0").write_text("v1\n{}\n{torn")
    assert state.finished_offsets("by_day") == {}


def test_merged_offsets_are_what_all_have_passed() -> None:
    assert merged_offsets(iter([{"a": {"0": 3}}, {"a": {"0": 2, "1": 7}}])) == {"a": {0: 2, 1: 7}}


def test_progress_is_bounded_and_its_last_lines_are_found(
    state: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_directory, "PROGRESS_BYTES_MAX", 2_000)
    state.add_progress({"query": "rare", "batch_id": 1})
    for batch_id in range(200):
        state.add_progress({"query": "by_day", "batch_id": batch_id, "text": "x" * 20})
    with (state.directory / "progress.jsonl").open("a") as output:
        output.write('{"query": "by_day", "batch_')
    assert state.last_progress()["by_day"]["batch_id"] == 199
    assert state.last_progress()["rare"]["batch_id"] == 1
    files = sorted(state.directory.glob("progress.jsonl*"))
    assert [file.name for file in files] == ["progress.jsonl", "progress.jsonl.1"]
    assert sum(file.stat().st_size for file in files) < 5_000


def test_how_the_last_run_ended(state: StateDirectory) -> None:
    assert state.last_run() is None
    state.begin()
    begun = state.last_run()
    assert begun is not None
    assert (begun.process_id, begun.end) == (os.getpid(), None)
    state.end(RunEnd.FAILED, "because")
    ended = state.last_run()
    assert ended is not None
    assert (ended.end, ended.reason, ended.started_ms) == (RunEnd.FAILED, "because", begun.started_ms)
    (state.directory / "run.json").write_text('{"torn')
    assert state.last_run() is None
