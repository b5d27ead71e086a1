"""Shards: what a coordinator has for each partition of its internal topic that this broker leads.

A shard is elected with the partition's leader, loads by replaying the log, and resigns with the leader. In between, a
request decides on the state as it is, without changing it, and yields records; these are appended, replayed onto the
state as a load would replay them, and the request is answered when they are committed. Which requests there are, and
what the records mean, is the coordinator's: groups use shards, and transactions may.

Invariant: durable state changes only by the replay of records that are in the log. The log says at once whether it
takes a batch and where, so a batch that is refused is never replayed, and there is nothing to be put back; a batch that
was taken stays in the log as long as the shard lives, and so in the state, whatever its outcome is.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from barnabas.coordinators.ports import Buffer, InternalLog
from barnabas.kernel.host import Host
from barnabas.kernel.ids import ZERO_UUID, Uuid
from barnabas.kernel.steps import STEP_ELEMENTS, StepRunner, Steps, at_once, each
from barnabas.kernel.timers import Timers
from barnabas.kernel.transitions import TransitionTable
from barnabas.wire.batch_formats import batch_at
from barnabas.wire.compression_types import NO_COMPRESSION, Compression
from barnabas.wire.errors import ErrorCode, KafkaError, raise_for_code
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.records import Batch, BatchSpan, walk_batches
from barnabas.wire.topics import TopicPartition

Content = TypeVar("Content")
Loader = TypeVar("Loader", bound="ShardLoader")

_COORDINATOR_SEQUENCE: Final = 0
"""Nobody looks at the sequences of what coordinators write; as in Kafka."""
_WALKED_PER_STEP_BYTES: Final = 65_536
"""How many bytes of a chunk are searched for batches at a time."""
_RETRY_MS: Final = 1_000
_RETRY_MS_MAX: Final = 30_000


class ShardState(enum.Enum):
    """How far a shard is."""

    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    """Could not be loaded; is tried again."""
    CLOSED = "closed"
    """Resigned: another broker, or a later shard here, has the partition."""


class ShardEvent(enum.Enum):
    """What happens to a shard."""

    LOADED = "loaded"
    LOAD_FAILED = "load failed"
    RETRIED = "retried"
    RESIGNED = "resigned"


SHARD: Final = TransitionTable(
    "shard",
    start=ShardState.LOADING,
    transitions={
        (ShardState.LOADING, ShardEvent.LOADED): ShardState.ACTIVE,
        (ShardState.LOADING, ShardEvent.LOAD_FAILED): ShardState.FAILED,
        (ShardState.FAILED, ShardEvent.RETRIED): ShardState.LOADING,
        (ShardState.LOADING, ShardEvent.RESIGNED): ShardState.CLOSED,
        (ShardState.ACTIVE, ShardEvent.RESIGNED): ShardState.CLOSED,
        (ShardState.FAILED, ShardEvent.RESIGNED): ShardState.CLOSED,
    },
    final=(ShardState.CLOSED,),
)

_NOT_ACTIVE: Final = {
    ShardState.LOADING: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ShardState.FAILED: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ShardState.CLOSED: ErrorCode.NOT_COORDINATOR,
}


APPEND_ERRORS: Final[Mapping[ErrorCode, ErrorCode]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
"""What a client is told instead of the error of an append, whatever the records were: as for a Produce it would ask for
metadata of the internal topic. Coordinators add what their records need; other errors are told as they are."""


class ShardLoader(Protocol):
    """Makes the content of a shard from its log. What it counts towards a step goes on from batch to batch."""

    def replay(self, batch: Batch) -> Steps[None]:
        """Takes the next batch of the log, control batches too."""
        ...

    def build(self) -> Steps[None]:
        """Makes the content of all that was replayed; called again if more was replayed afterwards."""
        ...

    def emptied(self) -> Steps[None]:
        """Gives back what only loading needed: freed all at once, a million records hold the loop, too."""
        ...


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """How shards read and write."""

    load_buffer_bytes: int
    append_timeout_ms: float
    compression: Compression = NO_COMPRESSION
    loads_committed: bool = False
    """Whether a shard is active only when all that it has loaded is committed: nobody is told what may yet be lost."""


class _Append:
    """One append: its outcome is told once, by the log or because the shard has resigned, and after the replay."""

    __slots__ = ("_is_replayed", "_on_done", "_outcome", "_under_way")

    def __init__(self, under_way: dict[_Append, None], on_done: Callable[[ErrorCode], None]) -> None:
        self._under_way = under_way
        self._on_done = on_done
        self._is_replayed = False
        self._outcome: ErrorCode | None = None
        """What the log said before the batch was replayed."""
        under_way[self] = None

    def done(self, error: ErrorCode) -> None:
        if self not in self._under_way:
            return
        if self._is_replayed:
            del self._under_way[self]
            self._on_done(error)
        elif self._outcome is None:
            self._outcome = error

    def replayed(self) -> None:
        self._is_replayed = True
        if self._outcome is not None:
            self.done(self._outcome)

    def refused(self) -> None:
        """There is no outcome: whoever appended is told by the exception."""
        del self._under_way[self]


class _Late(NamedTuple):
    """A batch that was not committed in time, and who is to be told when it is."""

    base_offset: int
    on_committed: Callable[[int], None]


class Shard(Generic[Content]):
    """One partition's share. `ShardRuntime` makes, loads and closes it."""

    __slots__ = (
        "_content",
        "_is_awaiting",
        "_late",
        "_log",
        "_settings",
        "_under_way",
        "leader_epoch",
        "loading",
        "partition",
        "state",
    )

    def __init__(self, partition: TopicPartition, leader_epoch: int, log: InternalLog, settings: ShardSettings) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.state = ShardState.LOADING
        self.loading: asyncio.Task[None] | None = None
        self._log = log
        self._settings = settings
        self._under_way: dict[_Append, None] = {}
        self._late: dict[Hashable, _Late] = {}
        """The last batch of each owner that was not committed in time."""
        self._is_awaiting = False
        """Whether the log is to tell of one of them."""
        self._content: Content | None = None

    @property
    def is_active(self) -> bool:
        return self.state is ShardState.ACTIVE

    @property
    def content(self) -> Content:
        """What was loaded; KafkaError with what a client is to be told while the shard is not active."""
        if self._content is None or self.state is not ShardState.ACTIVE:
            raise KafkaError(_NOT_ACTIVE.get(self.state, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return self._content

    def append(
        self,
        records: Sequence[tuple[bytes, bytes | None]],
        timestamp_ms: int,
        replay: Callable[[int], None],
        on_done: Callable[[ErrorCode], None],
    ) -> None:
        """Appends the records as one batch, and has them replayed.

        Raises `KafkaError` where the log refuses them: nothing has changed then. Otherwise `replay(base_offset)` is
        called before this returns, and makes of the state what these records make of it; `on_done(code)` is called once
        after that, perhaps before this returns: when the records are committed, when they were not in time, or when the
        shard resigns before it is known. They stay replayed in any case.
        """
        self.append_batch(self._batch(records, timestamp_ms), replay, on_done)

    def append_batch(
        self,
        batch: bytearray,
        replay: Callable[[int], None],
        on_done: Callable[[ErrorCode], None],
    ) -> None:
        """As `append`, of a batch that `batch_in_steps` has made."""
        self._check_active()
        append = _Append(self._under_way, on_done)
        try:
            base_offset = self._log.start_append(
                self.partition,
                self.leader_epoch,
                batch,
                timeout_ms=self._settings.append_timeout_ms,
                on_done=append.done,
            )
        except BaseException:
            append.refused()
            raise
        replay(base_offset)
        append.replayed()

    def append_unacknowledged(
        self, records: Sequence[tuple[bytes, bytes | None]], timestamp_ms: int, replay: Callable[[int], None]
    ) -> None:
        """As `append`, without waiting for replicas: what became of the records is not told."""
        self._check_active()
        batch = self._batch(records, timestamp_ms)
        replay(self._log.append_unacknowledged(self.partition, self.leader_epoch, batch))

    def advance(self, event: ShardEvent) -> None:
        self.state = SHARD.advance(self.partition, self.state, event)

    def activate(self, content: Content) -> None:
        self._content = content
        self.advance(ShardEvent.LOADED)

    def fail_appends(self) -> Steps[None]:
        """Tells every append under way that this broker leads no more; what became of it is not known here."""
        yield from each(lambda append: append.done(ErrorCode.NOT_LEADER_OR_FOLLOWER), list(self._under_way))

    def await_commit(self, owner: Hashable, base_offset: int, on_committed: Callable[[int], None]) -> None:
        """For a batch whose `on_done` was told REQUEST_TIMED_OUT: calls `on_committed(offset)` when all that was
        written up to the offset is committed, while the shard is active; perhaps several times, until that is
        `base_offset` or more. Of one owner the last call counts: so what waits is bounded by who waits, however long
        nothing is committed.
        """
        if self.is_active:
            self._late[owner] = _Late(base_offset, on_committed)
            if not self._is_awaiting:
                self._await_last()

    def _await_last(self) -> None:
        """Waits for the last batch that is late now. What leads no more is told so, or resigns."""
        offset = max(late.base_offset for late in self._late.values())

        def told(error: ErrorCode) -> None:
            self._is_awaiting = False
            passed, self._late = self._late, {}
            if error is not ErrorCode.NONE or not self.is_active:
                return
            for owner, late in passed.items():
                if late.base_offset > offset:
                    self._late[owner] = late
            for late in passed.values():
                late.on_committed(offset)
            if self._late and not self._is_awaiting:
                self._await_last()

        self._is_awaiting = True
        try:
            self._log.when_committed(self.partition, self.leader_epoch, offset, told)
        except KafkaError:
            self._is_awaiting = False
            self._late = {}

    def _check_active(self) -> None:
        if self.state is not ShardState.ACTIVE:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _batch(self, records: Sequence[tuple[bytes, bytes | None]], timestamp_ms: int) -> bytearray:
        return at_once(batch_in_steps(records, timestamp_ms, self._settings.compression))


def batch_in_steps(
    records: Iterable[tuple[bytes, bytes | None]],
    timestamp_ms: int,
    compression: Compression,
    transaction: tuple[int, int] | None = None,
) -> Steps[bytearray]:
    """One batch of the records, so many in each step; part of the `transaction` of that producer id and epoch."""
    if transaction is None:
        builder = RecordBatchBuilder(compression=compression)
    else:
        producer_id, epoch = transaction
        builder = RecordBatchBuilder(
            compression=compression,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=_COORDINATOR_SEQUENCE,
            is_transactional=True,
        )
    left = STEP_ELEMENTS
    for key, value in records:
        builder.append(timestamp_ms, key, value)
        left -= 1
        if not left:
            yield
            left = STEP_ELEMENTS
    return builder.build()


class ShardRuntime(Generic[Content, Loader]):
    """The shards of one internal topic, by partition.

    `new_loader` begins a load and `take_content` ends it, on which the shard is active at once. `on_loaded` and
    `on_unloaded` are called with the content of a shard that has become active, or has resigned, for what must be so
    at once, and return the steps of the rest: after the latter the appends under way are failed. A shard that resigns
    ends the steps of `on_loaded`.

    All that takes long is done in steps, of which all shards and everything else that runs in `steps` share one per
    turn of the loop.
    """

    def __init__(
        self,
        topic: str,
        *,
        host: Host,
        timers: Timers,
        log: InternalLog,
        settings: ShardSettings,
        steps: StepRunner,
        new_loader: Callable[[Shard[Content]], Loader],
        take_content: Callable[[Loader], Content],
        on_loaded: Callable[[Shard[Content], Content, float], Steps[None]],
        on_unloaded: Callable[[Shard[Content], Content], Steps[None]],
        logger: logging.Logger,
    ) -> None:
        self.topic = topic
        self._loop = host.loop
        self._timers = timers
        self._log = log
        self._settings = settings
        self._steps = steps
        self._new_loader = new_loader
        self._take_content = take_content
        self._on_loaded = on_loaded
        self._on_unloaded = on_unloaded
        self._logger = logger
        self._shards: dict[int, Shard[Content]] = {}
        self._epochs: dict[int, int] = {}
        """The latest epoch heard of for each partition, elected or not."""
        self._topic_ids: dict[int, Uuid] = {}
        """The topic whose epochs these are, by id: they begin anew with a topic that has the name of a deleted one."""
        self._giving_back: set[asyncio.Task[None]] = set()
        """Steps that end what shards were, and nobody waits for."""

    @property
    def is_loading(self) -> bool:
        return any(shard.state is ShardState.LOADING for shard in self._shards.values())

    def shard(self, index: int) -> Shard[Content]:
        """The active shard of a partition; KafkaError COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE or
        NOT_COORDINATOR where there is none.
        """
        shard = self._shards.get(index)
        if shard is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if shard.state is not ShardState.ACTIVE:
            raise KafkaError(_NOT_ACTIVE[shard.state])
        return shard

    def elect(self, index: int, leader_epoch: int, topic_id: Uuid = ZERO_UUID) -> None:
        """This broker leads the partition in that epoch: loads its shard, unless it has led it all along.

        A topic with another id than before is another topic: what is left of the one before it is given up first. The
        id is zero where the cluster has none.
        """
        self._notice(index, topic_id)
        if leader_epoch < self._epochs.get(index, leader_epoch):
            self._logger.info(
                "Not loading %s-%d in epoch %d since the current epoch is %d",
                self.topic,
                index,
                leader_epoch,
                self._epochs[index],
            )
            return
        self._epochs[index] = leader_epoch
        shard = self._shards.get(index)
        if shard is not None:
            shard.leader_epoch = leader_epoch
            return
        shard = Shard(TopicPartition(self.topic, index), leader_epoch, self._log, self._settings)
        self._shards[index] = shard
        self._logger.info("Elected as coordinator for %s-%d in epoch %d; loading", self.topic, index, leader_epoch)
        shard.loading = self._loop.create_task(self._load(shard), name=f"load-{self.topic}-{index}")

    def resign(self, index: int, leader_epoch: int | None, topic_id: Uuid = ZERO_UUID) -> None:
        """This broker leads the partition no more, as of that epoch; None, or what the controller says instead of an
        epoch while it deletes a topic, stands for whatever epoch.
        """
        self._notice(index, topic_id)
        current = self._epochs.get(index)
        if leader_epoch is not None and leader_epoch >= 0:
            if current is not None and leader_epoch < current:
                self._logger.info(
                    "Not unloading %s-%d in epoch %d since the current epoch is %d",
                    self.topic,
                    index,
                    leader_epoch,
                    current,
                )
                return
            self._epochs[index] = leader_epoch
        shard = self._shards.pop(index, None)
        if shard is not None:
            self._logger.info("Resigned as coordinator for %s-%d in epoch %s", self.topic, index, leader_epoch)
            self._close(shard)

    def forget(self, index: int) -> None:
        """The partition is deleted: gives its shard up, and takes a new one on in whatever epoch."""
        self.resign(index, None)
        self._epochs.pop(index, None)
        self._topic_ids.pop(index, None)

    async def stop(self) -> None:
        """Closes every shard, and waits until none is loading or has anything left to answer."""
        tasks = [shard.loading for shard in self._shards.values() if shard.loading is not None]
        for index in list(self._shards):
            self.resign(index, None)
        await asyncio.gather(*tasks, return_exceptions=True)
        while self._giving_back:
            await asyncio.gather(*self._giving_back, return_exceptions=True)

    def _notice(self, index: int, topic_id: Uuid) -> None:
        known = self._topic_ids.get(index, ZERO_UUID)
        if topic_id in (ZERO_UUID, known):
            return
        if known != ZERO_UUID:
            self.forget(index)
        self._topic_ids[index] = topic_id

    def _close(self, shard: Shard[Content]) -> None:
        content = shard.content if shard.state is ShardState.ACTIVE else None
        shard.advance(ShardEvent.RESIGNED)
        if shard.loading is not None:
            shard.loading.cancel()
        rest: Steps[None] | None = None
        try:
            if content is not None:
                rest = self._on_unloaded(shard, content)
        except Exception:
            self._logger.exception("Giving up %s-%d failed", *shard.partition)
        self._give_back(self._unloaded(shard, rest))

    def _unloaded(self, shard: Shard[Content], rest: Steps[None] | None) -> Steps[None]:
        try:
            if rest is not None:
                yield from rest
        except Exception:
            self._logger.exception("Giving up %s-%d failed", *shard.partition)
        yield from shard.fail_appends()

    def _give_back(self, steps: Steps[None]) -> None:
        """Does the first step now, and others in later turns."""
        try:
            next(steps)
        except StopIteration:
            return
        task = self._loop.create_task(self._steps.run(steps), name=f"give-back-{self.topic}")
        self._giving_back.add(task)
        task.add_done_callback(self._given_back)

    def _given_back(self, task: asyncio.Task[None]) -> None:
        self._giving_back.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._logger.error("Giving back what a shard had failed", exc_info=error)

    async def _load(self, shard: Shard[Content]) -> None:
        started = self._loop.time()
        retry_ms = _RETRY_MS
        while (content := await self._try_to_load(shard)) is None:
            shard.advance(ShardEvent.LOAD_FAILED)
            await self._timers.sleep(retry_ms)
            retry_ms = min(retry_ms * 2, _RETRY_MS_MAX)
            shard.advance(ShardEvent.RETRIED)
        shard.activate(content)
        seconds = self._loop.time() - started
        self._logger.info("Finished loading %s-%d in %d ms", *shard.partition, round(seconds * 1000))
        try:
            await self._steps.run(self._on_loaded(shard, content, seconds))
        except Exception:
            self._logger.exception("What follows the loading of %s-%d failed", *shard.partition)
        shard.loading = None

    async def _try_to_load(self, shard: Shard[Content]) -> Content | None:
        """The content, where nothing comes between the end of its log and this; None where that failed."""
        loader = self._new_loader(shard)
        try:
            await self._replay_log(shard, loader)
            return self._take_content(loader)
        except KafkaError as error:
            self._logger.warning("Loading %s-%d failed: %s", *shard.partition, error)
        except Exception:
            self._logger.exception("Error loading %s-%d", *shard.partition)
        finally:
            self._give_back(loader.emptied())
        return None

    async def _replay_log(self, shard: Shard[Content], loader: Loader) -> None:
        """Replays up to the end of the log, builds, and goes on where something was appended meanwhile."""
        start, end = self._log.offsets(shard.partition, shard.leader_epoch)
        position = start
        while True:
            while position < end:
                chunk = await self._log.read(
                    shard.partition, shard.leader_epoch, position, self._settings.load_buffer_bytes
                )
                following = await self._steps.run(self._replay(shard, loader, chunk, position))
                if following == position:
                    break  # the log ends before what it said
                position = following
            await self._steps.run(loader.build())
            if self._settings.loads_committed and end > start:
                await self._until_committed(shard, end - 1)
            # Nothing comes between here and the shard's being active.
            new_end = self._log.offsets(shard.partition, shard.leader_epoch)[1]
            if new_end <= end:
                return
            end = new_end

    async def _until_committed(self, shard: Shard[Content], offset: int) -> None:
        told: asyncio.Future[ErrorCode] = self._loop.create_future()
        on_done = functools.partial(_tell, told)
        self._log.when_committed(shard.partition, shard.leader_epoch, offset, on_done)
        raise_for_code(await told, f"{shard.partition} up to {offset}")

    def _replay(self, shard: Shard[Content], loader: Loader, chunk: Buffer, position: int) -> Steps[int]:
        """Replays the batches of a chunk that are not before `position`; returns the offset behind them."""
        if len(chunk) > self._settings.load_buffer_bytes:
            self._logger.warning(
                "Loaded %s-%d with a larger buffer (%d bytes) than configured (%d bytes)",
                *shard.partition,
                len(chunk),
                self._settings.load_buffer_bytes,
            )
        for span in _spans(chunk):
            batch = batch_at(chunk, span)
            if batch.last_offset < position:
                continue
            batch.verify()
            yield from loader.replay(batch)
            position = batch.last_offset + 1
        return position


def _tell(told: asyncio.Future[ErrorCode], error: ErrorCode) -> None:
    if not told.done():
        told.set_result(error)


def _spans(chunk: Buffer) -> Iterator[BatchSpan]:
    """The batches of a chunk, found a few at a time."""
    start = 0
    while start < len(chunk):
        walk = walk_batches(chunk, start, min(start + _WALKED_PER_STEP_BYTES, len(chunk)))
        if not walk.spans and walk.next_size_bytes is not None:  # a larger one
            walk = walk_batches(chunk, start, min(start + walk.next_size_bytes, len(chunk)))
        if not walk.spans:
            return
        yield from walk.spans
        start = walk.end_position
