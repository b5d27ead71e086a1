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

A large batch may be sent by several senders, side by side, each its share in a transaction of its own, with the same
number as an offset of a group of its own (0057). The first one commits last: its offset says that all of the batch is
there. How many there are stands in its metadata too, before another has sent anything: whoever opens the outbox knows
whom to fence, and whose offsets to read.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

from barnabas.pipelines.durable_files import write_json
from barnabas.pipelines.outbox_offsets import (
    FirstOffset,
    OutboxError,
    Sent,
    SentNote,
    name_of_sender,
    settle,
    settle_side,
)
from barnabas.pipelines.staged_batches import MANIFEST, StagedBatch, StagedBatchError, StagedBatches
from barnabas.pipelines.state_directory import SENT_NOTE, BatchesDone

_AGAIN: Final = "compute everything again under a new state and into new topics"


class OutboxPort(Protocol):
    """The cluster, for the outbox of one query; calls block, and raise PipelineError and PipelineUnreachableError."""

    @property
    def group_id(self) -> str:
        """The group whose offsets tell what was sent."""
        ...

    def open(self, sender: int = 1) -> Sent | None:
        """Ends what a former sender of that number has begun, fences it, and returns what its group's offset says; None
        where that has no offset. The first comes first: nobody sends beside it from then on.
        """
        ...

    def send(self, batch: StagedBatch | None, sent: Sent, sender: int = 1) -> None:
        """Sends the records of a batch, each share by its sender that has not sent it, and commits `sent` with each,
        with that of the first last. Without a batch: commits `sent` for that sender.
        """
        ...


class Outbox:
    """The outbox of one query; for one thread at a time."""

    def __init__(
        self, directory: Path, state_id: str, topic_ids: Mapping[str, str], port: OutboxPort, senders: int = 1
    ) -> None:
        """`topic_ids` has the ids of the query's topics, as far as brokers tell them; `senders` is how many are to send
        batches that are staged from now on.
        """
        self.directory = directory
        self.wanted = senders
        self._senders = senders
        self.sent_in_part: set[int] = set()
        """Batches of which shares were sent, and not all, when the outbox was opened."""
        self._may_be_sent: set[int] = set()
        """Batches that this run has tried to send, and does not know what became of."""
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
        self._refuse_impossible(note, done)
        told = self._port.open()
        staged = None if told is None else self._fingerprint(told.next_batch - 1)
        try:
            sent = settle(note, told, done, self._topic_ids, staged)
        except OutboxError as error:
            raise OutboxError(f"group {self._port.group_id} {error}: {self._remedy(note, told, done)}") from None
        is_beginning = sent is None and note is not None  # all topics were made again: what senders say went with them
        if sent is None:
            sent = Sent(done.finished + 1)
        sides = self._open_sides(note, told, sent, done, is_beginning=is_beginning)
        self._senders = 1 + len(sides)
        sent = replace(sent, senders=self._senders)
        # Also where nothing has changed: groups expire by the time of their last commit. The first comes last: it names
        # the others, and that this still is the one who has its id is known behind the opening of all of theirs.
        for number, side in sides.items():
            self._port.send(None, side, number)
        self._port.send(None, sent)
        self._take(sent)
        self.staged.tidy(sent.next_batch)

    def is_sent(self, batch_id: int) -> bool:
        """Whether the batch is in the topics, for good."""
        return batch_id < self._known

    def find(self, batch_id: int, topics: Sequence[tuple[str, bool]]) -> StagedBatch | None:
        """The batch, if it is staged for exactly these topics (name, whether there are keys).

        Staged for others (`delivery` of a sink was changed), it was not sent, and may be staged anew. Raises
        OutboxError where some of its senders have sent their shares to those.
        """
        with self._told_in_part(batch_id):
            batch = self.staged.find(batch_id)
        if batch is not None and [(part.topic, part.has_keys) for part in batch.parts] == list(topics):
            return batch
        if batch_id in self.sent_in_part:
            names = "" if batch is None else f" to {' and '.join(part.topic for part in batch.parts)}"
            raise OutboxError(
                f"a part of batch {batch_id} was sent{names}: run it once with the sinks of before, then change them"
            )
        return None

    def deliver(self, batch: StagedBatch) -> None:
        """Sends a staged batch that is not sent, notes it, and removes what was staged. Raises what the port raises."""
        if batch.batch_id < self._known:
            raise RuntimeError(f"batch {batch.batch_id} was sent before")
        if batch.record_count:
            sent = Sent(batch.batch_id + 1, batch.fingerprint, self._senders)
            if batch.senders[-1] > self._senders:
                raise RuntimeError(f"batch {batch.batch_id} is for senders that were not opened")
            with self._told_in_part(batch.batch_id):
                self._send(batch, sent)
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
                int(content.get("senders", 1)),
                {int(number): int(batch_id) for number, batch_id in content.get("senders_begin_at", {}).items()},
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
            "senders": note.senders,
            "topic_ids": dict(note.topic_ids),
        }
        write_json(self.directory / SENT_NOTE, content)

    # Inside.

    def _refuse_impossible(self, note: SentNote | None, done: BatchesDone) -> None:
        """Raises OutboxError where a person has named a batch that cannot be the next: others would be lost."""
        given = () if note is None else (note.begin_at, *note.senders_begin_at.values())
        for batch_id in given:
            if batch_id is not None and not 0 <= batch_id <= done.begun + 1:
                raise OutboxError(
                    f"{self.directory / SENT_NOTE} says that batch {batch_id} is the next, and the state knows of none "
                    f"after {done.begun}: correct that, and run it again"
                )

    def _open_sides(
        self, note: SentNote | None, told: Sent | None, sent: Sent, done: BatchesDone, *, is_beginning: bool
    ) -> dict[int, Sent]:
        """What those beside the first sender have sent, of all that are needed; whoever may send yet is fenced."""
        begun = max(1 if note is None else note.senders, 1 if told is None else told.senders)
        # Only what Spark has begun and not finished may be staged and not sent.
        pending = self._share_numbers(done.begun, begun) if done.begun >= sent.next_batch else ()
        needed = max(self.wanted, *pending, 1)
        first = FirstOffset(sent.next_batch, done.begun, self._fingerprint)
        found: dict[int, Sent] = {}
        # All are fenced before anything is said of one.
        for number, side in [(each, self._port.open(each)) for each in range(2, max(begun, needed) + 1)]:
            is_pending = number in pending
            begin_at = (
                None if note is None else note.senders_begin_at.get(number, None if is_pending else note.begin_at)
            )
            try:
                settled = settle_side(
                    None if is_beginning else side,
                    first,
                    was_begun=number <= begun and not is_beginning,
                    begin_at=begin_at,
                )
            except OutboxError as error:
                given = {} if note is None else note.senders_begin_at
                remedy = self._remedy_of_side(number, side, done.begun if is_pending else None, sent, given)
                raise OutboxError(f"group {name_of_sender(self._port.group_id, number)} {error}: {remedy}") from None
            if settled.next_batch > sent.next_batch:
                self.sent_in_part.add(settled.next_batch - 1)
            if number <= needed:
                found[number] = settled
        return found

    def _share_numbers(self, batch_id: int, begun: int = 1) -> tuple[int, ...]:
        """Who sends a batch that is staged, or may send it where it is damaged."""
        try:
            batch = self.staged.find(batch_id)
        except StagedBatchError:
            return tuple(range(1, begun + 1))
        return () if batch is None else batch.senders

    def _has_share(self, batch_id: int, number: int) -> bool:
        batch = self.staged.find(batch_id)
        return batch is not None and bool(batch.share(number).record_count)

    def _send(self, batch: StagedBatch, sent: Sent) -> None:
        try:
            self._port.send(batch, sent)
        except StagedBatchError:
            raise  # found before anything was committed
        except Exception:
            # A share may be there, or the answer to its commit was lost: only what is staged can end this batch.
            self._may_be_sent.add(batch.batch_id)
            raise

    @contextlib.contextmanager
    def _told_in_part(self, batch_id: int) -> Iterator[None]:
        try:
            yield
        except StagedBatchError as error:
            if batch_id not in self.sent_in_part | self._may_be_sent:
                raise
            how = "was sent" if batch_id in self.sent_in_part else "was sent, or may have been"
            raise OutboxError(
                f"a part of batch {batch_id} {how}, and {self.directory}/batch-{batch_id} {error}: restore it, or "
                f"{_AGAIN}"
            ) from error

    @property
    def _known(self) -> int:
        if self._next_batch is None:
            raise RuntimeError("the outbox was not opened")
        return self._next_batch

    def _take(self, sent: Sent) -> None:
        note = SentNote(
            self._state_id, sent.next_batch, self._topic_ids, fingerprint=sent.fingerprint, senders=sent.senders
        )
        self.write_note(note)
        self._next_batch = sent.next_batch

    def _fingerprint(self, batch_id: int) -> str | None:
        try:
            batch = self.staged.find(batch_id)
        except StagedBatchError:
            return ""
        return None if batch is None else batch.fingerprint

    def _remedy(self, note: SentNote | None, told: Sent | None, done: BatchesDone) -> str:
        if told is not None and told.next_batch <= done.begun + 1:
            return f"go on with that copy, or {_AGAIN}"
        if note is None or done.begun < note.next_batch - 1:
            return f"restore the state of that time, or {_AGAIN}"
        path, batch_id = f"{self.directory}/{SENT_NOTE}", max(note.next_batch, done.begun)
        if self._fingerprint(batch_id) is None:
            # What was sent and is not noted would be staged yet.
            return (
                f'if this state is no older copy, add "begin_at": {note.next_batch} to {path} and run it again: no '
                "batch was cut short"
            )
        are_shared = len(self._share_numbers(batch_id)) > 1
        if are_shared and not self._has_share(batch_id, 1):
            # The others have offsets of their own.
            return f'if this state is no older copy, add "begin_at": {batch_id} to {path} and run it again'
        what = self._share(batch_id, 1) if are_shared else f"the records in {self.directory}/batch-{batch_id}"
        return (
            f"see whether {self._topics} has {what}, add "
            f'"begin_at": {batch_id + 1} to {path} if so, or "begin_at": {batch_id} if not, and run it again'
        )

    def _remedy_of_side(
        self, number: int, told: Sent | None, pending: int | None, sent: Sent, given: Mapping[int, int]
    ) -> str:
        """`given` is what a person has said of other senders."""
        path = f"{self.directory}/{SENT_NOTE}"
        if told is not None:
            copy = f"restore {self.directory}/batch-{told.next_batch - 1}, or go on with the copy of this state that"
            return f"{copy} has it, or {_AGAIN}"
        if pending is None:
            return (
                f'if this state is no older copy, add "begin_at": {sent.next_batch} to {path} and run it again: no '
                "batch was cut short"
            )
        chosen = [
            f'"senders_begin_at": {json.dumps({**given, number: batch_id})}' for batch_id in (pending + 1, pending)
        ]
        return (
            f"see whether {self._topics} has {self._share(pending, number)}, have {chosen[0]} in {path} if so, or "
            f"{chosen[1]} if not, and run it again"
        )

    def _share(self, batch_id: int, number: int) -> str:
        return f"the records that {self.directory}/batch-{batch_id}/{MANIFEST} gives to sender {number}"

    @property
    def _topics(self) -> str:
        return " and ".join(self._topic_ids) or "the topic"
