"""`barnabas.pipelines.outbox`: each batch once, whatever ends a run between any two of its steps."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from barnabas.pipelines import outbox as module
from barnabas.pipelines.durable_files import write_json
from barnabas.pipelines.outbox import Outbox
from barnabas.pipelines.outbox_offsets import OutboxError, Sent, SentNote, settle
from barnabas.pipelines.staged_batches import StagedBatch
from barnabas.pipelines.state_directory import SENT_NOTE, BatchesDone

TOPICS = [("delays", True)]
IDS = {"delays": "id-1"}


class Killed(Exception):  # no error: kill -9
    """The run has ended here."""


class Cluster:
    """Topics and a group, behind transactions; `at` is called at each step, and may end the run."""

    group_id = "barnabas-pipeline-delays-one"

    def __init__(self) -> None:
        self.offset: int | None = None
        self.fingerprint = ""
        self.records: list[bytes] = []
        self.at: Callable[[str], None] = lambda _: None

    def open(self, sender: int = 1) -> Sent | None:
        self.at("open")
        return None if self.offset is None else Sent(self.offset, self.fingerprint)

    def send(self, batch: StagedBatch | None, sent: Sent, sender: int = 1) -> None:
        self.at("send")
        parts = batch.parts if batch else ()
        values = [value or b"" for part in parts for _, found in part.columns() for value in found]
        self.at("commit")
        self.records += values
        self.offset, self.fingerprint = sent.next_batch, sent.fingerprint
        self.at("committed")


class Machine:
    """Runs over one state, each of which may be killed at any step, and Spark, which repeats what was not finished."""

    def __init__(self, directory: Path, batches: int) -> None:
        self.directory = directory
        self.cluster = Cluster()
        self.batches = batches
        self.begun = self.finished = -1
        self.attempts = itertools.count()
        self.staged: dict[int, bytes] = {}
        self.empty: set[int] = set()

    def run(self) -> None:
        outbox = Outbox(self.directory, "one", IDS, self.cluster)
        outbox.open(BatchesDone(self.begun, self.finished))
        for batch_id in range(self.finished + 1, self.batches):
            self.begun = batch_id
            self.cluster.at("begin")
            self.do(outbox, batch_id)
            self.cluster.at("finish")
            self.finished = batch_id

    def do(self, outbox: Outbox, batch_id: int) -> None:
        """What `BatchWriter` does; what is computed differs each time."""
        if outbox.is_sent(batch_id):
            return
        batch = outbox.find(batch_id, TOPICS)
        if batch is None:
            directory = outbox.staged.being_written(batch_id, 0)
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            value = b"%d, computed in attempt %d" % (batch_id, next(self.attempts))
            (directory / "part-0").write_bytes(b"" if batch_id in self.empty else b"key\n" + value + b"\n")
            self.cluster.at("stage")
            batch = outbox.staged.publish(batch_id, TOPICS)
            self.staged[batch_id] = value
            self.cluster.at("staged")
        outbox.deliver(batch)


def heed(note: Path, begin_at: int) -> None:
    """What a person does who is told to."""
    note.write_text(json.dumps({**json.loads(note.read_text()), "begin_at": begin_at}))


def killing_at(monkeypatch: pytest.MonkeyPatch, machine: Machine, step_number: int) -> Callable[[], bool]:
    """Ends the run at the step of that number, counted over all; returns whether that was reached."""
    steps = itertools.count()
    reached: list[str] = []

    def at(name: str) -> None:
        if next(steps) == step_number:
            reached.append(name)
            raise Killed(name)

    def noted(path: Path, content: Mapping[str, object]) -> None:
        at("note")
        write_json(path, content)
        at("noted")

    def removed(path: Path, **_: object) -> None:
        at("remove")
        rmtree(path, ignore_errors=True)

    rmtree = shutil.rmtree
    machine.cluster.at = at
    monkeypatch.setattr(module, "write_json", noted)
    monkeypatch.setattr(shutil, "rmtree", removed)
    return lambda: bool(reached)


@pytest.mark.parametrize("again", [None, 2, 5, 9])
def test_each_batch_is_there_once_wherever_a_run_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: int | None
) -> None:
    """`again`: the next run is killed too, after so many steps."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # what is killed is no machine
    for step in itertools.count():
        machine = Machine(tmp_path / f"{step}", batches=2)
        with monkeypatch.context() as patched:
            was_reached = killing_at(patched, machine, step)
            with contextlib.suppress(Killed):
                machine.run()
            was_killed = was_reached()
        if again is not None:
            with monkeypatch.context() as patched:
                killing_at(patched, machine, again)
                with contextlib.suppress(Killed):
                    machine.run()
        machine.cluster.at = lambda _: None
        machine.run()
        assert [int(value.split(b",")[0]) for value in machine.cluster.records] == [0, 1], f"killed at step {step}"
        assert machine.cluster.records == [machine.staged[number] for number in range(2)], "staged rows never change"
        assert machine.cluster.offset == 2
        assert [entry.name for entry in machine.directory.iterdir()] == [SENT_NOTE]
        if not was_killed:
            assert step > 15
            return


def test_a_vanished_offset_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    machine = Machine(tmp_path, batches=2)
    machine.run()
    machine.cluster.offset = None
    with pytest.raises(
        OutboxError, match=rf'has no offset any more, .* batch 2 .*: if this state .* "begin_at": 2 to \S*{SENT_NOTE}'
    ):
        machine.run()
    assert len(machine.cluster.records) == 2
    heed(tmp_path / SENT_NOTE, 2)
    machine.batches = 3
    machine.run()
    assert len(machine.cluster.records) == 3
    assert machine.cluster.offset == 3


@pytest.mark.parametrize("was_sent", [True, False])
def test_whether_a_batch_was_sent_is_left_to_a_person_when_the_offset_has_vanished(
    tmp_path: Path, was_sent: bool
) -> None:
    machine = Machine(tmp_path, batches=1)

    def at(step: str) -> None:
        if step == ("committed" if was_sent else "commit") and machine.begun == 0:
            raise Killed

    machine.cluster.at = at
    with pytest.raises(Killed):
        machine.run()
    machine.cluster.at = lambda _: None
    machine.cluster.offset = None
    with pytest.raises(OutboxError, match=r'"begin_at": 1 to .* if so, or "begin_at": 0 if not'):
        machine.run()
    note = tmp_path / SENT_NOTE
    heed(note, 1 if was_sent else 0)
    machine.run()
    assert len(machine.cluster.records) == 1
    assert "begin_at" not in json.loads(note.read_text())


@pytest.mark.parametrize(
    ("noted", "offset", "done", "expected"),
    [
        (None, None, (-1, -1), None),
        (None, 0, (-1, -1), 0),  # killed before the first note
        (0, 1, (0, -1), 1),  # killed between commit and note
        (4, 4, (4, 3), 4),
        (5, 3, (4, 4), 5),  # somebody has set the group back
        (5, None, (4, 4), OutboxError),
        (None, 7, (3, 3), OutboxError),  # an older copy of the state
        (2, 7, (3, 3), OutboxError),
        (1, 1, (-1, -1), OutboxError),  # without its checkpoints
    ],
)
def test_the_offset_decides_and_the_note_says_that_there_is_one(
    noted: int | None, offset: int | None, done: tuple[int, int], expected: int | type[Exception] | None
) -> None:
    note = None if noted is None else SentNote("one", noted, IDS)
    sent = None if offset is None else Sent(offset)
    if isinstance(expected, type):
        with pytest.raises(expected):
            settle(note, sent, BatchesDone(*done), IDS)
    else:
        assert settle(note, sent, BatchesDone(*done), IDS) == (None if expected is None else Sent(expected))


def killed_when(machine: Machine, step: str, batch_id: int) -> None:
    """Runs, until that step of that batch."""

    def at(name: str) -> None:
        if name == step and machine.begun == batch_id:
            raise Killed

    machine.cluster.at = at
    with pytest.raises(Killed):
        machine.run()
    machine.cluster.at = lambda _: None


def test_a_batch_that_was_noted_and_not_finished_is_not_sent_again_when_the_offset_has_vanished(tmp_path: Path) -> None:
    machine = Machine(tmp_path, batches=2)
    killed_when(machine, "finish", 1)
    machine.cluster.offset = None
    with pytest.raises(OutboxError, match=r'add "begin_at": 2 to .* no batch was cut short'):
        machine.run()
    heed(tmp_path / SENT_NOTE, 2)
    machine.run()
    assert len(machine.cluster.records) == 2


def test_a_batch_behind_an_empty_one_is_asked_for_when_the_offset_has_vanished(tmp_path: Path) -> None:
    """An empty batch is not noted, so that the note is of the batch before it."""
    machine = Machine(tmp_path, batches=2)
    machine.empty = {0}
    killed_when(machine, "committed", 1)
    machine.cluster.offset = None
    with pytest.raises(OutboxError, match=r'batch-1, add "begin_at": 2 to .* if so, or "begin_at": 1 if not'):
        machine.run()
    heed(tmp_path / SENT_NOTE, 2)
    machine.run()
    assert len(machine.cluster.records) == 1


@pytest.mark.parametrize("step", ["begin", "staged", "finish"])
def test_a_batch_that_another_copy_has_sent_is_not_taken_for_this_ones(tmp_path: Path, step: str) -> None:
    """The copy made another batch of that number: records that are in one of the two would be lost, or come twice."""
    machine, copy = (Machine(tmp_path / name, batches=3) for name in ("one", "copy"))
    copy.cluster = machine.cluster
    machine.batches = 1
    machine.run()
    shutil.copytree(machine.directory, copy.directory)
    copy.begun = copy.finished = machine.finished
    machine.batches, copy.attempts = 3, itertools.count(100)
    killed_when(machine, step, 1)
    if step == "finish":
        machine.cluster.offset, machine.cluster.fingerprint = 1, ""  # what the copy sends then is another history
    killed_when(copy, "finish", 1)
    with pytest.raises(OutboxError, match="batch 1 was sent by another copy of this state: go on with that copy"):
        machine.run()
    copy.run()
    assert [int(value.split(b",")[0]) for value in machine.cluster.records][-2:] == [1, 2]


def test_what_somebody_else_has_set_is_believed_as_it_always_was(tmp_path: Path) -> None:
    machine = Machine(tmp_path, batches=2)
    killed_when(machine, "staged", 1)
    machine.cluster.offset, machine.cluster.fingerprint = 2, ""
    machine.run()
    assert len(machine.cluster.records) == 1


def test_topics_that_were_made_again_have_nothing_of_before(tmp_path: Path) -> None:
    note = SentNote("one", 5, {"a": "1", "b": "2"})
    done = BatchesDone(4, 4)
    assert settle(note, None, done, {"a": "3", "b": "4"}) is None
    with pytest.raises(OutboxError):
        settle(note, None, done, {"a": "3", "b": "2"})
    with pytest.raises(OutboxError):
        settle(SentNote("one", 5, {}), None, done, {})


def test_batches_of_another_state_are_not_taken_for_this_ones(tmp_path: Path) -> None:
    machine = Machine(tmp_path, batches=2)
    machine.run()
    other = Cluster()
    outbox = Outbox(tmp_path, "two", IDS, other)
    outbox.open(BatchesDone(-1, -1))
    assert not outbox.is_sent(0)
    assert other.offset == 0


def test_a_state_from_before_there_was_an_outbox_goes_on_where_it_is(tmp_path: Path) -> None:
    cluster = Cluster()
    outbox = Outbox(tmp_path, "one", IDS, cluster)
    outbox.open(BatchesDone(7, 6))
    assert outbox.is_sent(6)
    assert not outbox.is_sent(7)
    assert cluster.offset == 7


def test_a_batch_staged_for_other_topics_is_staged_anew(tmp_path: Path) -> None:
    machine = Machine(tmp_path, batches=0)
    outbox = Outbox(tmp_path, "one", IDS, machine.cluster)
    outbox.open(BatchesDone(-1, -1))
    directory = outbox.staged.being_written(0, 0)
    directory.mkdir(parents=True)
    (directory / "part-0").write_bytes(b"k\nv\n")
    outbox.staged.publish(0, TOPICS)
    assert outbox.find(0, TOPICS) is not None
    assert outbox.find(0, [*TOPICS, ("other", False)]) is None
    assert outbox.find(0, [("delays", False)]) is None


def test_an_empty_batch_is_no_transaction(tmp_path: Path) -> None:
    cluster = Cluster()
    outbox = Outbox(tmp_path, "one", IDS, cluster)
    outbox.open(BatchesDone(-1, -1))
    sent: list[str] = []
    cluster.at = sent.append
    outbox.staged.being_written(0, 0).mkdir(parents=True)
    outbox.deliver(outbox.staged.publish(0, TOPICS))
    assert sent == []
    assert outbox.staged.find(0) is None


def test_a_note_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / SENT_NOTE).write_text("[")
    with pytest.raises(OutboxError, match="cannot be understood"):
        Outbox(tmp_path, "one", IDS, Cluster()).open(BatchesDone(-1, -1))
