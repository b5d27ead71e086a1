"""Batches of a query, each exactly once in its topics: staged whole, then sent in one transaction that also commits the
batch's number as an offset of a group. Whatever ends a run, the offset tells the next one which batches are there.

OUTBOX/sent.json    the next batch to be sent, and of which state and topics that is said
       batch-N/     see `staged_batches`

What a batch passes, with a crash possible between any two:

    stage     its records are on the disk, and never change from then on
    send      a transaction has its records and the offset N+1, and is committed: now it is there, and at once
    note      `sent.json` says N+1
    remove    the staged files go

The offset decides. `sent.json` only says that there must be one: groups expire, and without it a vanished offset could
not be told from a group that never had one. So an offset is committed before the first batch is sent.

The offset's metadata is the fingerprint of the batch before it. Two copies of a state make batches of the same numbers
of other records: what the other copy has sent must not be taken for this one's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from barnabas.pipelines.durable_files import write_json
from barnabas.pipelines.staged_batches import StagedBatch, StagedBatchError, StagedBatches
from barnabas.pipelines.state_directory import SENT_NOTE, BatchesDone


class OutboxError(Exception):
    """The outbox and its topics do not fit together: what is wrong, and what to do, in one sentence."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What the group says: the next batch to be sent, and the fingerprint of the one before it; that is empty where
    nothing was sent, and where somebody else has set the offset.
    """

    next_batch: int
    fingerprint: str = ""


class OutboxPort(Protocol):
    """The cluster, for the outbox of one query; calls block, and raise PipelineError and PipelineUnreachableError."""

    @property
    def group_id(self) -> str:
        """The group whose offsets tell what was sent."""
        ...

    def open(self) -> Sent | None:
        """Ends what a former sender has begun, fences it, and returns what the group's offset says; None where the
        group has no offset.
        """
        ...

    def send(self, batch: StagedBatch | None, sent: Sent) -> None:
        """Sends the records of a batch, and commits `sent` with them; all of it, once, or nothing."""
        ...


@dataclass(frozen=True, slots=True)
class SentNote:
    """What `sent.json` has; `topic_ids` are those of the topics that the offset is kept with, as far as they are known.

    `begin_at` was put there by a person, who has seen what is in the topics when the offset had vanished.
    """

    state_id: str
    next_batch: int
    topic_ids: Mapping[str, str]
    begin_at: int | None = None
    fingerprint: str = ""


def settle(
    note: SentNote | None,
    sent: Sent | None,
    done: BatchesDone,
    topic_ids: Mapping[str, str],
    staged: str | None = None,
) -> Sent | None:
    """What was sent, by what the state's note and the group say; None where the group is to be begun. `staged` is the
    fingerprint of the batch that the group says was sent last, if it is staged here; empty where that is damaged.

    Raises OutboxError, with what is wrong, where nobody can tell which batches were sent.
    """
    if sent is None:
        if note is None or _are_others(note.topic_ids, topic_ids):
            return None
        if note.begin_at is not None:
            return Sent(note.begin_at)
        raise OutboxError(f"has no offset any more, and said before that batch {note.next_batch} is the next")
    if sent.next_batch > done.begun + 1:
        raise OutboxError(
            f"says that batch {sent.next_batch - 1} was sent, and the state knows of none after {done.begun}, as with "
            "an older copy"
        )
    if note is not None and note.begin_at is not None:
        return Sent(max(note.begin_at, note.next_batch, sent.next_batch))
    if _is_of_another_copy(note, sent, staged):
        raise OutboxError(f"says that batch {sent.next_batch - 1} was sent by another copy of this state")
    # A group that somebody has set back does not undo what was noted.
    return sent if note is None or sent.next_batch >= note.next_batch else Sent(note.next_batch, note.fingerprint)


def _is_of_another_copy(note: SentNote | None, sent: Sent, staged: str | None) -> bool:
    """Whether the batch before the offset is none that was sent from here. A batch stays staged until it is noted."""
    if not sent.fingerprint or (note is not None and sent.next_batch < note.next_batch):
        return False
    if note is not None and sent.next_batch == note.next_batch:
        return note.fingerprint not in {"", sent.fingerprint}
    return staged not in {"", sent.fingerprint} and (note is not None or staged is not None)


def _are_others(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether all topics were made again: what was sent to the former ones went with them, as did the offsets."""
    return bool(before) and all(topic in now and now[topic] != topic_id for topic, topic_id in before.items())


class Outbox:
    """The outbox of one query; for one thread at a time."""

    def __init__(self, directory: Path, state_id: str, topic_ids: Mapping[str, str], port: OutboxPort) -> None:
        """`topic_ids` has the ids of the query's topics, as far as brokers tell them."""
        self.directory = directory
        self.staged = StagedBatches(directory, state_id)
        self._state_id = state_id
        self._topic_ids = dict(topic_ids)
        self._port = port
        self._next_batch: int | None = None

    def open(self, done: BatchesDone) -> None:
        """Finds out which batches were sent, and makes sure that later runs can; nothing of another sender comes after
        this. `done` is what Spark's checkpoint says. Raises OutboxError, and what the port raises.
        """
        note = self.read_note()
        told = self._port.open()
        staged = None if told is None else self._fingerprint(told.next_batch - 1)
        try:
            sent = settle(note, told, done, self._topic_ids, staged)
        except OutboxError as error:
            raise OutboxError(f"group {self._port.group_id} {error}: {self._remedy(note, told, done)}") from None
        if sent is None:
            sent = Sent(done.finished + 1)
        # Also where nothing has changed: groups expire by the time of their last commit.
        self._port.send(None, sent)
        self._take(sent)
        self.staged.tidy(sent.next_batch)

    def is_sent(self, batch_id: int) -> bool:
        """Whether the batch is in the topics, for good."""
        return batch_id < self._known

    def find(self, batch_id: int, topics: Sequence[tuple[str, bool]]) -> StagedBatch | None:
        """The batch, if it is staged for exactly these topics (name, whether there are keys).

        Staged for others (`delivery` of a sink was changed), it was not sent, and may be staged anew.
        """
        batch = self.staged.find(batch_id)
        if batch is None or [(part.topic, part.has_keys) for part in batch.parts] != list(topics):
            return None
        return batch

    def deliver(self, batch: StagedBatch) -> None:
        """Sends a staged batch that is not sent, notes it, and removes what was staged. Raises what the port raises."""
        if batch.batch_id < self._known:
            raise RuntimeError(f"batch {batch.batch_id} was sent before")
        if batch.record_count:
            sent = Sent(batch.batch_id + 1, batch.fingerprint)
            self._port.send(batch, sent)
            self._take(sent)
        self.staged.remove(batch.batch_id)

    # The note.

    def read_note(self) -> SentNote | None:
        """None where there is none, and where it is that of another state, whose batches have the same numbers."""
        try:
            content: Any = json.loads((self.directory / SENT_NOTE).read_text(encoding="utf-8"))
            begin_at = content.get("begin_at")
            note = SentNote(
                str(content["state_id"]),
                int(content["next_batch"]),
                dict(content["topic_ids"]),
                None if begin_at is None else int(begin_at),
                str(content.get("fingerprint", "")),
            )
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise OutboxError(f"{self.directory / SENT_NOTE} cannot be understood ({error!r}): restore it") from error
        return note if note.state_id == self._state_id else None

    def write_note(self, note: SentNote) -> None:
        """It is on the disk when this returns."""
        self.directory.mkdir(parents=True, exist_ok=True)
        content = {
            "state_id": note.state_id,
            "next_batch": note.next_batch,
            "fingerprint": note.fingerprint,
            "topic_ids": dict(note.topic_ids),
        }
        write_json(self.directory / SENT_NOTE, content)

    # Inside.

    @property
    def _known(self) -> int:
        if self._next_batch is None:
            raise RuntimeError("the outbox was not opened")
        return self._next_batch

    def _take(self, sent: Sent) -> None:
        note = SentNote(self._state_id, sent.next_batch, self._topic_ids, fingerprint=sent.fingerprint)
        self.write_note(note)
        self._next_batch = sent.next_batch

    def _fingerprint(self, batch_id: int) -> str | None:
        try:
            batch = self.staged.find(batch_id)
        except StagedBatchError:
            return ""
        return None if batch is None else batch.fingerprint

    def _remedy(self, note: SentNote | None, told: Sent | None, done: BatchesDone) -> str:
        again = "compute everything again under a new state and into new topics"
        if told is not None and told.next_batch <= done.begun + 1:
            return f"go on with that copy, or {again}"
        if note is None or done.begun < note.next_batch - 1:
            return f"restore the state of that time, or {again}"
        path, batch_id = f"{self.directory}/{SENT_NOTE}", max(note.next_batch, done.begun)
        if self._fingerprint(batch_id) is None:
            # What was sent and is not noted would be staged yet.
            return (
                f'if this state is no older copy, add "begin_at": {note.next_batch} to {path} and run it again: no '
                "batch was cut short"
            )
        topics = " and ".join(self._topic_ids) or "the topic"
        return (
            f"see whether {topics} has the records in {self.directory}/batch-{batch_id}, add "
            f'"begin_at": {batch_id + 1} to {path} if so, or "begin_at": {batch_id} if not, and run it again'
        )
