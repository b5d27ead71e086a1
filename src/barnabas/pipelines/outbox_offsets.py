"""What the offsets of an outbox say, and what follows from them: the rules, sans I/O.

Where several senders send a batch (0057), the first one commits last, so that all batches before its offset are there
whole, whoever has sent which part. Of the others only this is to be known: whether the share of the batch that comes
next was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from barnabas.pipelines.state_directory import BatchesDone

_SENDERS: Final = "senders="


class OutboxError(Exception):
    """The outbox and its topics do not fit together: what is wrong, and what to do, in one sentence."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What the group says: the next batch to be sent, and the fingerprint of the one before it; that is empty where
    nothing was sent, and where somebody else has set the offset. Of the first sender also how many there are.
    """

    next_batch: int
    fingerprint: str = ""
    senders: int = 1

    @property
    def metadata(self) -> str:
        """What is kept beside the offset."""
        return f"{self.fingerprint} {_SENDERS}{self.senders}".strip() if self.senders > 1 else self.fingerprint

    @classmethod
    def of(cls, offset: int, metadata: str) -> Sent:
        """An offset that was read; any metadata that are not ours are those of another batch."""
        fingerprint, _, count = metadata.rpartition(_SENDERS)
        if _SENDERS in metadata and count.isdecimal():
            return cls(offset, fingerprint.strip(), int(count))
        return cls(offset, metadata)


def name_of_sender(name: str, number: int) -> str:
    """The group and the transactional id of a query's sender, by those of the first."""
    return name if number == 1 else f"{name}-sender-{number}"


@dataclass(frozen=True, slots=True)
class SentNote:
    """What `sent.json` has; `topic_ids` are those of the topics that the offset is kept with, as far as they are known.

    `begin_at` was put there by a person, who has seen what is in the topics when the offset had vanished, and so was
    `senders_begin_at`, by the numbers of senders beside the first. `senders` is how many there were.
    """

    state_id: str
    next_batch: int
    topic_ids: Mapping[str, str]
    begin_at: int | None = None
    fingerprint: str = ""
    senders: int = 1
    senders_begin_at: Mapping[int, int] = field(default_factory=dict)


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


@dataclass(frozen=True, slots=True)
class FirstOffset:
    """What is known when a side's offset is read: the batch that comes next by the first sender's, the last that Spark
    has begun, and of each batch that is staged its fingerprint, which is empty where it is damaged.
    """

    next_batch: int
    begun: int
    staged: Callable[[int], str | None]


def settle_side(told: Sent | None, first: FirstOffset, *, was_begun: bool, begin_at: int | None) -> Sent:
    """What a sender beside the first has sent, by its offset, `told`. `was_begun` is whether it had one for sure, and
    `begin_at` what a person has said, who has looked. Raises OutboxError where nobody can tell.
    """
    if told is None:
        if begin_at is not None:
            return Sent(begin_at, first.staged(begin_at - 1) or "")
        if was_begun:
            raise OutboxError("has no offset any more, and had one")
        return Sent(first.next_batch)
    if told.next_batch <= first.next_batch:
        return told
    batch_id = told.next_batch - 1
    fingerprint = first.staged(batch_id) if batch_id <= first.begun else None
    if fingerprint == "":
        raise OutboxError(f"says that a part of batch {batch_id} was sent, and what is staged of that is damaged")
    if fingerprint is None or fingerprint != told.fingerprint:
        raise OutboxError(f"says that a part of batch {batch_id} was sent, and what is staged here is not that batch")
    return told
