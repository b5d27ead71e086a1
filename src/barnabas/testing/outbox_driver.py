"""A driver of a pipeline in a simulated cluster, sans Spark: the outbox and its sender, unchanged, over a state that
outlives the driver; and what Spark does: it notes which input a batch has before the batch is computed, repeats the
batch that was not finished, and computes something else each time.

The outbox blocks where it asks the cluster. Here such a call ends with what it asks for; when that is answered the call
is made again, with the answer: before the last answer nothing is changed.
"""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from barnabas.client.errors import ClientError, TransactionInDoubtError
from barnabas.pipelines.definition import PipelineError, PipelineUnreachableError, TopicSink
from barnabas.pipelines.outbox import Outbox
from barnabas.pipelines.outbox_offsets import OutboxError, Sent, SentNote
from barnabas.pipelines.side_by_side import FirstSender, SideSender
from barnabas.pipelines.staged_batches import StagedBatch, StagedBatches, StagedFile, StagedRecords
from barnabas.pipelines.state_directory import BatchesDone
from barnabas.testing.cluster_history import RecordId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
    from random import Random

    from barnabas.client.client import Client
    from barnabas.kernel.host import Host
    from barnabas.testing.cluster_load import Users

Result = TypeVar("Result")
TOPICS: Final = ("outbox-keyed", "outbox-plain")
VIEW: Final = "view"
GROUP: Final = "barnabas-pipeline-simulated-one"
_STATE_ID: Final = "one"
_SINKS: Final = (TopicSink(TOPICS[0], VIEW, 1, 1, key=("number",)), TopicSink(TOPICS[1], VIEW, 2, 2))
_KILLED_AT_A_STEP: Final = 0.02
_LOST: Final = 0.03
_CALL_MS_MAX: Final = 600
"""So short that commits stay in doubt while a coordinator is away."""
_CHUNK_RECORDS: Final = 20
_SENDERS: Final = (1, 1, 2, 3)
"""How many send what a run computes."""
_PAUSE_MS: Final = 150.0
_PLACE: Any = "the state"


class _KilledError(Exception):
    """The driver has ended here, between two steps on its own disk."""


class _AskingError(Exception):
    """The outbox waits for the cluster."""

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        super().__init__()
        self.ask = ask


@dataclass(slots=True)
class State:
    """What is on the disk of a driver. Copied, it is the state of another driver, of the same id."""

    name: str
    ends: list[int] = field(default_factory=list)
    """Of each batch that was begun, the number behind its last input."""
    finished: int = -1
    note: SentNote | None = None
    staged: dict[int, StagedBatch] = field(default_factory=dict)

    def copied(self, name: str) -> State:
        """As `cp -r` does it."""
        return State(name, list(self.ends), self.finished, self.note, dict(self.staged))

    @property
    def done(self) -> BatchesDone:
        """What Spark's checkpoint says."""
        return BatchesDone(len(self.ends) - 1, self.finished)


@dataclass(frozen=True)
class _MemoryRecords(StagedRecords):
    """Records that are on a simulated disk."""

    lines: tuple[tuple[bytes, bytes, int], ...] = ()
    """Key, value, and who sends it."""

    def share(self, sender: int) -> StagedRecords:
        lines = tuple(line for line in self.lines if line[2] == sender)
        return replace(self, files=tuple(file for file in self.files if file.sender == sender), lines=lines)

    def columns(self) -> Iterator[tuple[Sequence[bytes] | None, Sequence[bytes]]]:
        for first in range(0, len(self.lines), _CHUNK_RECORDS):
            chunk = self.lines[first : first + _CHUNK_RECORDS]
            yield [key for key, *_ in chunk] if self.has_keys else None, [value for _, value, _ in chunk]


class _MemoryBatches(StagedBatches):
    def __init__(self, state: State, step: Callable[[str], None]) -> None:
        super().__init__(_PLACE, _STATE_ID)
        self._state = state
        self._step = step

    def find(self, batch_id: int) -> StagedBatch | None:
        return self._state.staged.get(batch_id)

    def remove(self, batch_id: int) -> None:
        self._step("remove")
        self._state.staged.pop(batch_id, None)

    def tidy(self, first: int) -> None:
        self._step("tidy")
        for batch_id in [number for number in self._state.staged if number < first]:
            del self._state.staged[batch_id]


class _MemoryOutbox(Outbox):
    def __init__(self, state: State, port: _Port, step: Callable[[str], None], senders: int) -> None:
        super().__init__(_PLACE, _STATE_ID, dict.fromkeys(TOPICS, ""), port, senders)
        self.staged = _MemoryBatches(state, step)
        self._state = state
        self._step = step

    def read_note(self) -> SentNote | None:
        return self._state.note

    def write_note(self, note: SentNote) -> None:
        self._step("note")
        self._state.note = note
        self._step("noted")


class _Port:
    """The sender, for an outbox whose calls are made again and again until all that they ask for is answered."""

    group_id = GROUP

    def __init__(self, sender: FirstSender) -> None:
        self._sender = sender
        self._answers: list[Any] = []
        self._place = 0

    def open(self, sender: int = 1) -> Sent | None:
        found: Sent | None = self._answered(lambda: self._sender.opened(sender))
        return found

    def send(self, batch: StagedBatch | None, sent: Sent, sender: int = 1) -> None:
        self._answered(lambda: self._sender.deliver(batch, sent, sender))

    async def call(self, call: Callable[[], None]) -> None:
        """Has the outbox do it."""
        self._answers = []
        while True:
            self._place = 0
            try:
                call()
            except _AskingError as asking:
                self._answers.append(await asking.ask())
            else:
                return

    def _answered(self, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        if self._place == len(self._answers):
            raise _AskingError(ask)
        self._place += 1
        return self._answers[self._place - 1]


class _Senders:
    """What a sender has of its run."""

    group_id = GROUP

    def __init__(self, client: Client) -> None:
        self.pipeline: Any = self
        self.state_directory = _PLACE
        self._client = client

    async def client(self) -> Client:
        return self._client

    def error(self, message: str, _line: int | None = None) -> PipelineError:
        return PipelineError(message)

    def now_ms(self) -> int:
        return self._client.host.clock.time_ms()

    def gone(self, topics: Iterable[str]) -> list[str]:
        del topics
        return []

    def call(self, work: Awaitable[Result], *, is_opening: bool = False) -> Result:
        raise NotImplementedError("the driver is on the loop")


class _CountingSender(FirstSender):
    def __init__(self, senders: _Senders, counts: Counter[str]) -> None:
        super().__init__(senders, f"{GROUP}-{VIEW}", _SINKS)
        self._counts = counts

    def make_side(self, number: int) -> SideSender:
        return _CountingSide(self._senders, self._name, self._sinks, number, self._counts)

    async def _give_up_transaction(self, error: Exception) -> Exception:
        self._counts["outbox: attempts failed"] += 1
        return await super()._give_up_transaction(error)

    async def _attempt(self, batch: StagedBatch | None, sent: Sent) -> None:
        counts, begun = self._counts, self._counts["outbox: transactions"]
        await super()._attempt(batch, sent)
        if batch is not None and counts["outbox: transactions"] == begun:
            counts["outbox: turned out to be committed"] += 1

    async def _transact(self, producer: Any, batch: StagedBatch | None, sent: Sent) -> None:
        self._counts["outbox: transactions"] += 1
        client = await self._senders.client()
        losing: Any = _LosingProducer(producer, client.host.random)
        await super()._transact(losing, batch, sent)


class _CountingSide(SideSender):
    def __init__(self, senders: Any, name: str, sinks: Any, number: int, counts: Counter[str]) -> None:
        super().__init__(senders, name, sinks, number)
        self._counts = counts

    async def commit_share(self, sent: Sent) -> None:
        whole, random = self._producer, (await self._senders.client()).host.random
        losing: Any = _LosingProducer(whole, random)
        self._producer = losing
        try:
            await super().commit_share(sent)
        finally:
            self._producer = whole
        self._counts["outbox: shares"] += 1


class _LosingProducer:
    """A transactional producer whose commits are sometimes not asked for, and sometimes done and not answered; then it
    is of no use any more, as one that is in doubt.
    """

    def __init__(self, producer: Any, source: Random) -> None:
        self._producer = producer
        self._random = source

    async def commit(self) -> None:
        chance = self._random.random()
        if chance >= _LOST:
            await self._producer.commit()
        if not _LOST <= chance <= 1 - _LOST:
            await self._producer.close()
            raise TransactionInDoubtError("the request, or the answer, is lost")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)


class Driver:
    """Runs over one state, each until it ends, is killed or is stopped by an error."""

    def __init__(self, users: Users, state: State, counts: Counter[str], computed: Iterator[int]) -> None:
        """`computed` numbers what Spark computes, over all drivers."""
        self.state = state
        self.is_open = False
        """Whether the last run has found its place."""
        self.stopped_by = ""
        """What has ended it for a person to look after: `taken` by another run, or `refused`, since another copy has
        sent what this one has not.
        """
        self.is_to_end = False
        self.batches_left: int | None = None
        """How many batches it is to do; as many as there are with None."""
        self.messages: list[str] = []
        self._users = users
        self._counts = counts
        self._computed = computed

    async def run(self, host: Host) -> None:
        """One run; `main` of a process."""
        self.is_open, self.stopped_by = False, ""
        try:
            async with self._users.client(host, _CALL_MS_MAX) as client:
                await self._run(client)
        except _KilledError:
            self._counts["outbox: killed between steps"] += 1
        except (PipelineUnreachableError, ClientError):
            self._counts["outbox: brokers were away"] += 1

    async def _run(self, client: Client) -> None:
        random = client.host.random
        sender = _CountingSender(_Senders(client), self._counts)
        port = _Port(sender)

        def step(name: str) -> None:
            if random.random() < _KILLED_AT_A_STEP:
                raise _KilledError(name)

        outbox = _MemoryOutbox(self.state, port, step, random.choice(_SENDERS))
        try:
            await port.call(lambda: outbox.open(self.state.done))
            self.is_open = True
            self._counts["outbox: went on with a part"] += bool(outbox.sent_in_part)
            while self._goes_on():
                await self._batch(outbox, port, random, step)
                if random.random() < 0.1:
                    await sender.refresh()
                await client.timers.sleep(random.expovariate(1 / _PAUSE_MS))
        except OutboxError as error:
            self._stopped("refused", error)
        except PipelineUnreachableError:
            raise
        except PipelineError as error:
            self._stopped("taken", error)
        finally:
            await sender.end()

    async def _batch(self, outbox: Outbox, port: _Port, random: Random, step: Callable[[str], None]) -> None:
        """What Spark and `pipelines.sinks.BatchWriter` do."""
        state, number = self.state, self.state.finished + 1
        begin = state.ends[number - 1] if number else 0
        if number == len(state.ends):
            state.ends.append(begin + random.choice((0, 1, 2, 7, 50)))
            step("begun")
        if outbox.is_sent(number):
            self._counts["outbox: was sent before"] += 1
        else:
            batch = state.staged.get(number)
            if batch is None:
                batch = self._computed_batch(number, range(begin, state.ends[number]), outbox.wanted)
                step("stage")
                state.staged[number] = batch
                step("staged")
            else:
                self._counts["outbox: was staged before"] += 1
            await port.call(lambda: outbox.deliver(batch))
            self._counts["outbox: sent"] += bool(batch.record_count)
        step("finish")
        state.finished = number
        if self.batches_left is not None:
            self.batches_left -= 1

    def _goes_on(self) -> bool:
        if self.is_to_end or self.batches_left == 0:
            return False
        return self._users.goes_on() or self.state.finished < len(self.state.ends) - 1

    def _computed_batch(self, number: int, inputs: range, senders: int) -> StagedBatch:
        made = next(self._computed)
        lines = tuple((b"%d" % each, RecordId(made, each).value(), each % senders + 1) for each in inputs)
        files = tuple(
            StagedFile(f"part-{sender}", len(content), len(content), zlib.crc32(b"".join(content)), sender)
            for sender in range(1, senders + 1)
            if (content := [value for _, value, whose in lines if whose == sender])
        )
        return StagedBatch(
            number, tuple(_MemoryRecords(sink.topic, bool(sink.key), _PLACE, files, lines=lines) for sink in _SINKS)
        )

    def _stopped(self, how: str, error: Exception) -> None:
        self.stopped_by = how
        self.messages.append(str(error))
        self._counts[f"outbox: {how}"] += 1
