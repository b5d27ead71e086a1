"""The shards of a coordinator: elected and loaded with the leaders of partitions, and given back with them."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Final, Generic, Protocol, TypeVar

from barnabas.coordinators.ports import Buffer, InternalLog
from barnabas.coordinators.shard import (
    NOT_ACTIVE_ERRORS,
    Content,
    Shard,
    ShardEvent,
    ShardSettings,
    ShardState,
)
from barnabas.kernel.host import Host
from barnabas.kernel.ids import ZERO_UUID, Uuid
from barnabas.kernel.steps import StepRunner, Steps
from barnabas.kernel.timers import Timers
from barnabas.wire.batch_formats import batch_at
from barnabas.wire.errors import ErrorCode, KafkaError, raise_for_code
from barnabas.wire.records import Batch, BatchSpan, walk_batches
from barnabas.wire.topics import TopicPartition

Loader = TypeVar("Loader", bound="ShardLoader")

_WALKED_PER_STEP_BYTES: Final = 65_536
"""How many bytes of a chunk are searched for batches at a time."""
_RETRY_MS: Final = 1_000
_RETRY_MS_MAX: Final = 30_000


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
            raise KafkaError(NOT_ACTIVE_ERRORS[shard.state])
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
            # From Python 3.12 on, gather would return at once while a task's callback, which takes it out, is to come.
            await asyncio.wait(set(self._giving_back))

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
