"""Copies logs to other log directories of this broker, until the copies can take their places (KIP-113).

One task copies one log at a time, in the order of names, as Apache Kafka's ReplicaAlterLogDirsThread does. It reads the
current log directly: what is appended, cut off or deleted there meanwhile is followed until, in one turn of the loop,
both logs are the same.

Invariant: after each step, the copy is what the current log has, or had between two of its truncations, of the offsets
from some start of the log up to the copy's end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from barnabas.follower.truncation import truncation
from barnabas.kernel.turns import yield_to_loop
from barnabas.log.partition.appending import AppendError
from barnabas.log.partition.read_plans import ReadIsolation
from barnabas.wire.errors import KafkaError
from barnabas.wire.record_errors import RecordsError
from barnabas.wire.records import walk_batches
from barnabas.wire.sentinels import NO_EPOCH

if TYPE_CHECKING:
    import logging

    from barnabas.kernel.timers import Timers
    from barnabas.log.manager.log_manager import LogManager
    from barnabas.log.partition.partition_log import PartitionLog
    from barnabas.wire.topics import TopicPartition

_STILL_BUSY_MS: Final = 5
"""How long a log is left alone that has been copied, and was not still enough to be replaced."""


@dataclass(eq=False, slots=True)
class _Move:
    """A log that is copied."""

    topic_partition: TopicPartition
    is_compared: bool = False
    """Whether the two logs were found to be the same, as far as the copy goes; from then on the current log tells what
    is cut off."""
    is_prepared: bool = False
    """Whether the copy has been complete once, and was made ready to take the other's place."""
    rests_until: float = 0.0
    """In the loop's time."""


class LogCopier:
    """The copier of one broker. All calls are made on the loop."""

    def __init__(
        self,
        log_manager: LogManager,
        *,
        loop: asyncio.AbstractEventLoop,
        timers: Timers,
        piece_bytes_max: int,
        backoff_ms: int,
        bytes_per_second: float,
        on_replaced: Callable[[TopicPartition, PartitionLog], object],
        logger: logging.Logger,
    ) -> None:
        """`bytes_per_second` is the most that is copied (`replica.alter.log.dirs.io.max.bytes.per.second`); with 0
        nothing is. `on_replaced` is told of the log that a partition has now, in the turn in which it has it.
        """
        self.bytes_copied = 0
        self._log_manager = log_manager
        self._loop = loop
        self._timers = timers
        self._piece_bytes_max = piece_bytes_max
        self._backoff_ms = backoff_ms
        self._bytes_per_second = bytes_per_second
        self._on_replaced = on_replaced
        self._logger = logger
        self._moves: dict[TopicPartition, _Move] = {}
        self._present: _Move | None = None
        self._throttled_until = 0.0
        self._awake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._moves)

    @property
    def copied(self) -> tuple[TopicPartition, ...]:
        """What is being copied, or waits for that."""
        return tuple(self._moves)

    def __contains__(self, topic_partition: object) -> bool:
        return topic_partition in self._moves

    @property
    def is_dead(self) -> bool:
        """The task has ended, though nobody closed the copier."""
        return self._task is not None and self._task.done() and not self._task.cancelled()

    def add(self, topic_partition: TopicPartition) -> None:
        """Copies the partition's log to its future log from now on, beginning with a comparison of the two."""
        self._moves[topic_partition] = _Move(topic_partition)
        self._awake.set()
        if self._task is None:
            self._task = self._loop.create_task(self._run(), name="ReplicaAlterLogDirsThread-0")

    def remove(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Copies these no more; the future logs stay as they are."""
        for topic_partition in topic_partitions:
            self._moves.pop(topic_partition, None)

    def limit(self, bytes_per_second: float) -> None:
        """Takes another limit, at once."""
        self._bytes_per_second = bytes_per_second
        self._throttled_until = 0.0
        self._awake.set()

    async def close(self) -> None:
        """Ends the copier; what is copied is found at the next start."""
        self._moves.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # The task.

    async def _run(self) -> None:
        while True:
            self._awake.clear()
            move = self._next()
            if move is None:
                await self._rest()
                continue
            try:
                await self._step(move)
            except (KafkaError, AppendError, RecordsError, OSError) as error:
                if self._holds(move):
                    self._logger.warning("Copying the log of partition %s failed: %s", move.topic_partition, error)
                    move.is_compared = False
                    move.rests_until = self._loop.time() + self._backoff_ms / 1000
            except Exception:
                self._logger.exception("Copying the log of partition %s failed", move.topic_partition)
                move.is_compared = False
                move.rests_until = self._loop.time() + self._backoff_ms / 1000
            await yield_to_loop()

    def _next(self) -> _Move | None:
        """The log to go on with; None where all rest or the limit is reached."""
        now = self._loop.time()
        if now < self._throttled_until or not self._bytes_per_second:
            return None
        present = self._present
        if present is None or not self._holds(present) or now < present.rests_until:
            ready = [move for move in self._moves.values() if move.rests_until <= now]
            present = self._present = min(ready, key=lambda move: move.topic_partition, default=None)
        return present

    async def _rest(self) -> None:
        """Waits until a log comes, or the limit allows more, or one has rested."""
        end = None
        if self._moves and self._bytes_per_second:
            end = max(self._throttled_until, min(move.rests_until for move in self._moves.values()))
        timer = None
        if end is not None:
            timer = self._timers.call_after(max(0.0, end - self._loop.time()) * 1000, self._awake.set)
        try:
            await self._awake.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _holds(self, move: _Move) -> bool:
        return self._moves.get(move.topic_partition) is move

    # One log.

    async def _step(self, move: _Move) -> None:
        """Copies a piece, or replaces the current log. Raises what the logs raise."""
        manager, topic_partition = self._log_manager, move.topic_partition
        current, future = manager.get_log(topic_partition), manager.future_logs.get(topic_partition)
        if current is None or future is None:
            self.remove((topic_partition,))
            return
        if future.topic_id is None and current.topic_id is not None:
            future.assign_topic_id(current.topic_id)
        if future.has_unwritten:
            await future.wait_written()
        if not move.is_compared:
            await manager.begin_copy(topic_partition)
            await self._compare(current, future)
            move.is_compared = True
        if current.was_truncated:
            least = current.take_least_end()
            if least < future.log_end_offset:
                await future.truncate_to(least)
            return
        if future.log_end_offset < current.log_end_offset:
            await self._copy(move, current, future)
            if future.log_end_offset < current.log_end_offset:
                return
        else:
            self._follow_offsets(current, future)
        if not self._holds(move) or current.was_truncated:
            return
        await self._replace(move, current, future)

    async def _compare(self, current: PartitionLog, future: PartitionLog) -> None:
        """Cuts the copy off where it parts from the current log, as a follower's from its leader's."""
        current.take_least_end()
        if future.log_start_offset > current.log_start_offset:
            # A crash has taken the log's start back; the start of a copy only goes on.
            await future.truncate_fully_and_start_at(current.log_start_offset)
        is_complete = not future.log_end_offset
        while not is_complete:
            epoch = future.latest_epoch
            found = truncation(
                current.end_offset_for_epoch(NO_EPOCH if epoch is None else epoch),
                log_end_offset=future.log_end_offset,
                fallback_offset=future.log_start_offset,
                local_end=future.end_offset_for_epoch,
            )
            await future.truncate_to(found.offset)
            is_complete = found.is_complete
        self._logger.info("Copying %r to %r from offset %d", current, future, future.log_end_offset)

    async def _copy(self, move: _Move, current: PartitionLog, future: PartitionLog) -> None:
        """Copies one piece; nothing where something was cut off while it was read."""
        begins_anew = future.log_end_offset < current.log_start_offset
        offset = current.log_start_offset if begins_anew else future.log_end_offset
        plan = current.read(offset, self._piece_bytes_max, ReadIsolation.LOG_END, has_minimum=True).plan
        if plan is None:
            if begins_anew:  # the log starts at its end
                await future.truncate_fully_and_start_at(offset)
            return
        reader = self._log_manager.reader
        data = reader.read_cached(plan)
        if data is None:
            data = await reader.read(plan)
        spans = walk_batches(data).spans
        if not spans:
            return
        if begins_anew:
            # The log may start within a batch, which is copied as a whole.
            first_offset = int.from_bytes(data[:8], "big")
            await future.truncate_fully_and_start_at(first_offset)
        if current.was_truncated or current.is_closed or not self._holds(move):
            return
        result = future.append_as_follower(data)
        self._follow_offsets(current, future)
        if result is not None:
            self.bytes_copied += result.size_bytes
            now = self._loop.time()
            self._throttled_until = max(now, self._throttled_until) + result.size_bytes / self._bytes_per_second

    @staticmethod
    def _follow_offsets(current: PartitionLog, future: PartitionLog) -> None:
        """Has the copy know what is committed and what was deleted, as far as it goes."""
        future.update_high_watermark(current.high_watermark)
        start = min(current.log_start_offset, future.high_watermark)
        if start > future.log_start_offset:
            future.increase_log_start_offset(start, "the current replica's log start")

    async def _replace(self, move: _Move, current: PartitionLog, future: PartitionLog) -> None:
        topic_partition = move.topic_partition
        if not move.is_prepared:
            await self._log_manager.prepare_replacement(topic_partition)
            move.is_prepared = True
            return
        replaced = self._log_manager.replace_current(topic_partition)
        if replaced is not None:
            self.remove((topic_partition,))
            self._on_replaced(topic_partition, replaced)
            return
        if future.recovery_point < current.recovery_point or not future.is_settled:
            await future.make_ready()
        else:
            move.rests_until = self._loop.time() + _STILL_BUSY_MS / 1000
