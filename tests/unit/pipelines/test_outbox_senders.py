"""Batches that several senders send (0057): each record once, wherever runs are killed, however many senders the next
run has, and whoever else is at work over the same state or a copy of it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from barnabas.pipelines import outbox as outbox_module
from barnabas.pipelines import staged_batches
from barnabas.pipelines.durable_files import write_json
from barnabas.pipelines.outbox import Outbox
from barnabas.pipelines.outbox_offsets import FirstOffset, OutboxError, Sent, settle_side
from barnabas.pipelines.staged_batches import StagedBatch
from barnabas.pipelines.state_directory import SENT_NOTE, BatchesDone

TOPICS = [("delays", True)]
KEYS = [b"key-%d" % number for number in range(8)]


class Killed(Exception):  # no error: kill -9
    """The run has ended here."""


class Fenced(Exception):  # no error of the outbox
    """Another run has the transactional id."""


class Cluster:
    """A topic, and for each sender a transactional id and an offset; `at` is called at each step."""

    def __init__(self) -> None:
        self.offsets: dict[int, Sent] = {}
        self.epochs: Counter[int] = Counter()
        self.records: list[bytes] = []
        self.at: Callable[[str], None] = lambda _: None

    def commit(self, records: list[bytes], sent: Sent, sender: int) -> None:
        self.records += records
        self.offsets[sender] = Sent.of(sent.next_batch, sent.metadata)


class Port:
    """What one run has of the cluster; as `side_by_side`, sans network."""

    group_id = "group"

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.epochs: dict[int, int] = {}

    def open(self, sender: int = 1) -> Sent | None:
        self.cluster.at(f"open {sender}")
        self.cluster.epochs[sender] += 1
        self.epochs[sender] = self.cluster.epochs[sender]
        return self.cluster.offsets.get(sender)

    def send(self, batch: StagedBatch | None, sent: Sent, sender: int = 1) -> None:
        if batch is None:
            self._commit(None, sent, sender)
            return
        self._check(1)
        done = {number for number, told in self.cluster.offsets.items() if told.next_batch >= sent.next_batch}
        shares = {number: values_of(batch.share(number)) for number in batch.senders}
        for number in [each for each in batch.senders if each > 1 and each not in done]:
            self._commit(shares[number], sent, number)
        self._commit(shares[1], sent, 1)

    def _commit(self, records: list[bytes] | None, sent: Sent, sender: int) -> None:
        self.cluster.at(f"commit {sender}")
        self._check(sender)
        self.cluster.commit(records or [], sent, sender)
        self.cluster.at(f"committed {sender}")

    def _check(self, sender: int) -> None:
        if self.epochs[sender] != self.cluster.epochs[sender]:
            raise Fenced


def values_of(batch: StagedBatch) -> list[bytes]:
    return [value or b"" for part in batch.parts for _, values in part.columns() for value in values]


class Machine:
    """Runs over one state, and Spark, which repeats what was not finished, and computes something else each time."""

    def __init__(self, directory: Path, cluster: Cluster, attempts: itertools.count[int]) -> None:
        self.directory = directory
        self.cluster = cluster
        self.attempts = attempts
        self.batches = 2
        self.begun = self.finished = -1

    def copied(self, name: str) -> Machine:
        copy = Machine(self.directory.with_name(name), self.cluster, self.attempts)
        if self.directory.exists():
            shutil.copytree(self.directory, copy.directory)
        copy.begun, copy.finished = self.begun, self.finished
        return copy

    def outbox(self, senders: int) -> Outbox:
        outbox = Outbox(self.directory, "one", {"delays": "id-1"}, Port(self.cluster), senders)
        outbox.open(BatchesDone(self.begun, self.finished))
        return outbox

    def run(self, senders: int) -> None:
        outbox = self.outbox(senders)
        for batch_id in range(self.finished + 1, self.batches):
            self.begun = batch_id
            self.cluster.at("begin")
            if not outbox.is_sent(batch_id):
                outbox.deliver(outbox.find(batch_id, TOPICS) or self.stage(outbox, batch_id, senders))
            self.cluster.at("finish")
            self.finished = batch_id

    def stage(self, outbox: Outbox, batch_id: int, senders: int) -> StagedBatch:
        attempt = next(self.attempts)
        directory = outbox.staged.being_written(batch_id, 0)
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for key in KEYS:
            place = directory / f"sender={zlib.crc32(key) % senders + 1}" if senders > 1 else directory
            place.mkdir(exist_ok=True)
            with (place / "part-0").open("ab") as file:
                file.write(b"%s\n%d %d %s\n" % (key, batch_id, attempt, key))
        self.cluster.at("stage")
        staged = outbox.staged.publish(batch_id, TOPICS)
        self.cluster.at("staged")
        return staged


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # what is killed is no machine
    monkeypatch.setattr(staged_batches, "BYTES_PER_SENDER", 1)


def check(cluster: Cluster, *, is_over: bool = False) -> None:
    """Of a batch that is sent all records are there, once, as they were computed once; of the next one some may be."""
    first = cluster.offsets.get(1, Sent(0)).next_batch
    found: dict[int, list[tuple[bytes, bytes]]] = {}
    for record in cluster.records:
        number, attempt, key = record.split()
        found.setdefault(int(number), []).append((attempt, key))
    for batch_id, records in found.items():
        assert len({attempt for attempt, _ in records}) == 1, "a batch is of two computations"
        assert len(set(records)) == len(records), "a record is there twice"
        assert batch_id <= first
        if batch_id < first:
            assert len(records) == len(KEYS), "a record is missing"
    assert sorted(found) == list(range(len(found)))
    if is_over:
        assert (first, len(found)) == (2, 2)


def stepping(monkeypatch: pytest.MonkeyPatch, cluster: Cluster, act: Callable[[int, str], None]) -> None:
    """Has `act` called at each step, with its number."""
    numbers = itertools.count()

    def at(name: str) -> None:
        act(next(numbers), name)

    def noted(path: Path, content: dict[str, object]) -> None:
        at("note")
        write_json(path, content)
        at("noted")

    cluster.at = at
    monkeypatch.setattr(outbox_module, "write_json", noted)


@pytest.mark.parametrize("senders", [(3, 3), (3, 2), (2, 3), (3, 1), (1, 3)], ids=str)
@pytest.mark.parametrize("again", [None, 9])
def test_each_record_is_there_once_wherever_a_run_is_killed_and_however_many_send_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, senders: tuple[int, int], again: int | None
) -> None:
    """`again`: the second run is killed too, after so many steps; the third one has as many as the first."""
    parts = 0
    for step in itertools.count():
        cluster = Cluster()
        machine = Machine(tmp_path / f"{step}", cluster, itertools.count())
        was_killed = runs_until(monkeypatch, machine, senders[0], step)
        parts += len(cluster.records) % len(KEYS) > 0
        if again is not None:
            runs_until(monkeypatch, machine, senders[1], again)
        cluster.at = lambda _: None
        machine.run(senders[1] if again is None else senders[0])
        check(cluster, is_over=True)
        assert [entry.name for entry in machine.directory.iterdir()] == [SENT_NOTE]
        if not was_killed:
            assert step > 20
            assert parts or senders[0] == 1
            return


def runs_until(monkeypatch: pytest.MonkeyPatch, machine: Machine, senders: int, last: int) -> bool:
    """Has a run end at the step of that number; whether there was one."""

    def act(number: int, _name: str) -> None:
        if number == last:
            raise Killed

    with monkeypatch.context() as patched:
        stepping(patched, machine.cluster, act)
        try:
            machine.run(senders)
        except Killed:
            return True
        finally:
            check(machine.cluster)
    return False


@pytest.mark.parametrize("is_copy", [True, False], ids=["copy", "same"])
@pytest.mark.parametrize("senders", [(3, 3), (3, 2), (2, 3), (3, 1), (1, 3)], ids=str)
@pytest.mark.parametrize("ends_at", [None, 12])
def test_no_record_is_there_twice_although_another_run_is_at_work_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, senders: tuple[int, int], is_copy: bool, ends_at: int | None
) -> None:
    """At each step of a run another begins, over the same state or a copy of it as it is then, and ends, or is killed.
    The former then goes on; over the same state, which has a lock, only what it has asked brokers for arrives late.
    """
    went_on = Counter[str]()
    for step in itertools.count():
        cluster = Cluster()
        machine = Machine(tmp_path / f"{step}", cluster, itertools.count())
        others: list[Machine] = []

        def act(number: int, _name: str) -> None:
            if others and not is_copy:  # noqa: B023 - called in this turn
                raise Killed
            if number != step or others:  # noqa: B023
                return
            other = machine.copied(f"{step}-other") if is_copy else machine  # noqa: B023
            others.append(other)  # noqa: B023
            begin = itertools.count()
            former, cluster.at = cluster.at, lambda _: ended(next(begin))  # noqa: B023
            with contextlib.suppress(Killed, OutboxError):
                other.run(senders[1])
            cluster.at = former  # noqa: B023
            check(cluster)  # noqa: B023

        def ended(number: int) -> None:
            if number == ends_at:
                raise Killed

        with monkeypatch.context() as patched, contextlib.suppress(Fenced, OutboxError, Killed):
            stepping(patched, cluster, act)
            machine.run(senders[0])
        check(cluster)
        cluster.at = lambda _: None
        for each in (machine, *others):
            with contextlib.suppress(OutboxError):
                each.run(senders[0])
                went_on["main" if each is machine else "other"] += 1
            check(cluster)
        check(cluster, is_over=True)
        if not others:
            assert step > 20
            assert went_on["main"]
            return


def killed_in_part(machine: Machine, senders: int = 3, batch_id: int = 1) -> None:
    """The second sender has sent its share of a batch, and no other has."""

    def at(name: str) -> None:
        if (name, machine.begun) == ("committed 2", batch_id):
            raise Killed

    machine.cluster.at = at
    with pytest.raises(Killed):
        machine.run(senders)
    machine.cluster.at = lambda _: None


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "state", Cluster(), itertools.count())


def test_a_part_that_another_copy_has_sent_is_told_and_nothing_is_sent_beside_it(machine: Machine) -> None:
    copy = machine.copied("copy")
    killed_in_part(machine)
    copy.begun, copy.finished = 1, 0
    with pytest.raises(
        OutboxError, match=r"group-sender-2 says that a part of batch 1 was sent, .* go on with the copy"
    ):
        copy.run(1)
    check(machine.cluster)
    machine.run(1)
    check(machine.cluster, is_over=True)


def test_a_part_that_the_state_knows_nothing_of_is_told(machine: Machine) -> None:
    older = machine.copied("older")
    killed_in_part(machine)
    older.begun = older.finished = 0
    with pytest.raises(OutboxError, match="a part of batch 1 was sent, and what is staged here is not that batch"):
        older.run(3)


def test_what_is_staged_of_a_batch_that_was_sent_in_part_is_not_staged_anew_for_other_topics(machine: Machine) -> None:
    killed_in_part(machine)
    outbox = machine.outbox(3)
    with pytest.raises(
        OutboxError, match=r"a part of batch 1 was sent to delays: run it once with the sinks of before"
    ):
        outbox.find(1, [*TOPICS, ("others", False)])
    assert outbox.find(1, TOPICS) is not None


@pytest.mark.parametrize("is_short", [True, False])
def test_damage_of_a_batch_that_was_sent_in_part_is_told_as_such(machine: Machine, is_short: bool) -> None:
    killed_in_part(machine)
    outbox = None if is_short else machine.outbox(3)
    (path,) = machine.directory.glob("batch-1/0/sender=1/part-0")
    content = path.read_bytes()
    path.write_bytes(content[:-1] if is_short else content.replace(b"1 1", b"1 7"))
    with pytest.raises(OutboxError, match=r"a part of batch 1 was sent, and .*damaged.*restore"):
        if outbox is None:
            machine.run(3)
        else:
            outbox.deliver(outbox.find(1, TOPICS) or pytest.fail("it is staged"))
    path.write_bytes(content)
    machine.run(3)
    check(machine.cluster, is_over=True)


@pytest.mark.parametrize("is_short", [True, False])
def test_damage_between_two_attempts_of_a_run_is_told_as_of_a_batch_that_may_be_there_in_part(
    machine: Machine, is_short: bool
) -> None:
    """The first attempt has committed a share and failed; what is staged is the only copy of the others."""

    def fail(name: str) -> None:
        if name == "committed 2":
            raise ConnectionError

    machine.begun, machine.finished = 1, 0
    outbox = machine.outbox(3)
    batch = machine.stage(outbox, 1, 3)
    machine.cluster.at = fail
    with pytest.raises(ConnectionError):
        outbox.deliver(batch)
    machine.cluster.at = lambda _: None
    path = machine.directory / "batch-1" / "0" / batch.share(3).parts[0].files[0].name
    content = path.read_bytes()
    path.write_bytes(content[:-3] if is_short else content.replace(b"key", b"kez"))
    with pytest.raises(
        OutboxError, match=r"a part of batch 1 was sent, or may have been, and .*(damaged|lacks).*restore"
    ):
        outbox.deliver(outbox.find(1, TOPICS) or batch)


@pytest.mark.parametrize("was_sent", [True, False])
def test_whether_a_share_was_sent_is_left_to_a_person_when_its_offset_has_vanished(
    machine: Machine, was_sent: bool
) -> None:
    killed_in_part(machine)
    del machine.cluster.offsets[2 if was_sent else 3]
    number = 2 if was_sent else 3
    with pytest.raises(
        OutboxError,
        match=rf"group-sender-{number} has no offset any more.*gives to sender {number}, have \"senders_begin_at\": "
        rf'{{"{number}": 2}} in \S*{SENT_NOTE} if so, or "senders_begin_at": {{"{number}": 1}} if not',
    ):
        machine.run(3)
    check(machine.cluster)
    note = machine.directory / SENT_NOTE
    content = json.loads(note.read_text())
    note.write_text(json.dumps({**content, "senders_begin_at": {str(number): 2 if was_sent else 1}}))
    machine.run(3)
    check(machine.cluster, is_over=True)
    assert "senders_begin_at" not in json.loads(note.read_text())


def test_what_a_person_has_said_of_one_sender_is_kept_when_another_is_asked_for(machine: Machine) -> None:
    killed_in_part(machine)
    del machine.cluster.offsets[2], machine.cluster.offsets[3]
    note = machine.directory / SENT_NOTE
    note.write_text(json.dumps({**json.loads(note.read_text()), "senders_begin_at": {"2": 2}}))
    with pytest.raises(OutboxError, match=r'have "senders_begin_at": {"2": 2, "3": 2} in .*: {"2": 2, "3": 1} if not'):
        machine.run(3)
    note.write_text(json.dumps({**json.loads(note.read_text()), "senders_begin_at": {"2": 2, "3": 1}}))
    machine.run(3)
    check(machine.cluster, is_over=True)


@pytest.mark.parametrize("said", [{"begin_at": 20}, {"begin_at": -1}, {"senders_begin_at": {"2": 1, "3": 3}}], ids=str)
def test_a_batch_that_cannot_be_the_next_is_refused_whoever_has_said_so(
    machine: Machine, said: dict[str, object]
) -> None:
    """All batches before it would be taken for sent."""
    killed_in_part(machine)
    note = machine.directory / SENT_NOTE
    before = json.loads(note.read_text())
    note.write_text(json.dumps({**before, **said}))
    with pytest.raises(OutboxError, match=rf"{SENT_NOTE} says that batch (20|-1|3) is the next, .* none after 1: corr"):
        machine.run(3)
    note.write_text(json.dumps(before))
    machine.run(3)
    check(machine.cluster, is_over=True)


def test_a_vanished_offset_of_a_side_is_no_beginning_although_no_batch_was_cut_short(machine: Machine) -> None:
    machine.run(3)
    del machine.cluster.offsets[2], machine.cluster.offsets[3]
    with pytest.raises(OutboxError, match=r'group-sender-2 has no offset any more, and had one: .* "begin_at": 2 to'):
        machine.run(3)
    note = machine.directory / SENT_NOTE
    note.write_text(json.dumps({**json.loads(note.read_text()), "begin_at": 2}))
    machine.batches = 3
    machine.run(3)
    check(machine.cluster)
    assert {number: sent.next_batch for number, sent in machine.cluster.offsets.items()} == {1: 3, 2: 3, 3: 3}


def test_senders_that_are_not_needed_any_more_are_fenced_before_anything_else(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_in_part(machine)
    steps: list[str] = []
    stepping(monkeypatch, machine.cluster, lambda _, name: steps.append(name))
    machine.run(1)
    assert steps[:3] == ["open 1", "open 2", "open 3"], "a batch is under way by all of them"
    assert machine.cluster.offsets[1].senders == 3
    steps.clear()
    machine.batches = 3
    machine.run(2)
    assert steps[:4] == ["open 1", "open 2", "open 3", "commit 2"]
    assert machine.cluster.offsets[1].senders == 2
    steps.clear()
    machine.run(1)
    assert steps[:3] == ["open 1", "open 2", "commit 1"]
    assert machine.cluster.offsets[1].senders == 1
    check(machine.cluster)


def test_all_begin_anew_where_all_topics_were_made_again(machine: Machine) -> None:
    """Although a group's coordinator may have forgotten later than another's that there was the former topic."""
    killed_in_part(machine)
    del machine.cluster.offsets[1]
    machine.cluster.records.clear()
    outbox = Outbox(machine.directory, "one", {"delays": "id-2"}, Port(machine.cluster), 2)
    outbox.open(BatchesDone(1, 0))
    outbox.deliver(outbox.find(1, TOPICS) or pytest.fail("it is staged"))
    assert len(machine.cluster.records) == len(KEYS)


@pytest.mark.parametrize(
    ("told", "was_begun", "begin_at", "expected"),
    [
        (None, False, None, Sent(4)),
        (None, True, None, "no offset any more"),
        (None, True, 5, Sent(5, "ours")),
        (None, True, 4, Sent(4)),
        (Sent(3, "old"), True, None, Sent(3, "old")),
        (Sent(4, "another"), False, None, Sent(4, "another")),
        (Sent(5, "ours"), True, None, Sent(5, "ours")),
        (Sent(5, ""), True, None, "not that batch"),
        (Sent(5, "another"), True, None, "not that batch"),
        (Sent(6, "later"), True, None, "not that batch"),
        (Sent(7, "ours"), True, None, "damaged"),
        (Sent(8, "ours"), True, None, "not that batch"),
    ],
)
def test_what_the_offset_of_a_side_says(
    told: Sent | None, was_begun: bool, begin_at: int | None, expected: Sent | str
) -> None:
    """Batch 4 comes next and is staged, batch 6 is damaged, batch 7 is not known to Spark."""
    first = FirstOffset(4, 6, {4: "ours", 6: "", 7: "ours"}.get)
    if isinstance(expected, str):
        with pytest.raises(OutboxError, match=expected):
            settle_side(told, first, was_begun=was_begun, begin_at=begin_at)
    else:
        assert settle_side(told, first, was_begun=was_begun, begin_at=begin_at) == expected


@pytest.mark.parametrize(
    "sent", [Sent(3), Sent(3, "0123456789abcdef"), Sent(3, "0123456789abcdef", 4), Sent(3, "", 2)], ids=str
)
def test_an_offset_and_its_metadata_come_back(sent: Sent) -> None:
    assert Sent.of(3, sent.metadata) == sent


def test_metadata_of_others_are_of_another_batch() -> None:
    assert Sent.of(3, "senders=many") == Sent(3, "senders=many")
    assert Sent.of(3, "by hand") == Sent(3, "by hand")
