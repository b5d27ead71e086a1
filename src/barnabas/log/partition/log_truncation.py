"""How a partition's log is cut off at its end, or begun anew elsewhere, so that a loss of power undoes none of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from barnabas.log.directories.checkpoints import EpochEntry
from barnabas.log.directories.log_directory import LogDirectory
from barnabas.log.partition.background_work import BackgroundWork
from barnabas.log.partition.local_log import LocalLog
from barnabas.log.partition.log_flusher import LogFlusher
from barnabas.log.partition.log_services import LogServices
from barnabas.log.partition.log_state import LogState
from barnabas.log.producers.producer_snapshot import ProducerSnapshotEntry
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.record_errors import RecordsError
from barnabas.wire.sentinels import NO_OFFSET


class LogTruncation:
    """The part of a `PartitionLog` that truncates."""

    __slots__ = ("_flusher", "_local_log", "_services", "_state", "_work")

    def __init__(
        self, services: LogServices, state: LogState, work: BackgroundWork, local_log: LocalLog, flusher: LogFlusher
    ) -> None:
        self._services = services
        self._state = state
        self._work = work
        self._local_log = local_log
        self._flusher = flusher

    async def truncate_to(self, offset: int, is_still_due: Callable[[], bool] | None) -> bool:
        """As `PartitionLog.truncate_to`."""
        state = self._state
        async with self._recovery_point_at_most(offset):
            if is_still_due is not None and not is_still_due():
                return False
            if offset >= state.log_end_offset:
                # An epoch that began at the log's end and got no record may contradict the leader's.
                state.epochs_changed |= state.leader_epochs.truncate_from_end(offset)
                return False
            is_before_all = offset < state.segments.first.base_offset
            completion = self._begin_anew(offset, offset) if is_before_all else self._cut_off(offset)
        await asyncio.shield(completion)
        return True

    async def truncate_fully_and_start_at(
        self, offset: int, log_start_offset: int | None, is_still_due: Callable[[], bool] | None
    ) -> None:
        """As `PartitionLog.truncate_fully_and_start_at`."""
        async with self._recovery_point_at_most(min(offset, self._state.segments.first.base_offset)):
            if is_still_due is not None and not is_still_due():
                return
            completion = self._begin_anew(offset, offset if log_start_offset is None else log_start_offset)
        await asyncio.shield(completion)

    async def begin_behind_remote(
        self,
        offset: int,
        log_start_offset: int,
        epochs: Sequence[EpochEntry],
        producers: Sequence[ProducerSnapshotEntry],
        is_still_due: Callable[[], bool] | None,
    ) -> bool:
        """As `PartitionLog.begin_behind_remote`, but for what makes it durable.

        Invariant: on the disk, the epochs of what goes are never beside the segment that takes its place: a load would
        take them for those of what is in remote storage. So they go first, and the new ones come last, after the
        producers. The recovery point is below all of the log by then, so a load after a crash that left the former
        segments finds their epochs in the batches.
        """
        async with self._recovery_point_at_most(min(offset, self._state.segments.first.base_offset)):
            try:
                await self._flusher.forget_stored_epochs()
            except OSError as error:
                raise self._state.storage_failed(error) from error
            self._state.check_online()
            if is_still_due is not None and not is_still_due():
                return False
            completion = self._begin_anew(offset, log_start_offset, epochs, producers)
        await asyncio.shield(completion)
        return True

    @asynccontextmanager
    async def _recovery_point_at_most(self, offset: int) -> AsyncIterator[None]:
        """Invariant: within this, neither the recovery point nor its checkpoint is above `offset`.

        A recovery trusts what lies below, so nothing there may be removed: a loss of power can undo some of the
        removals and not others, which leaves holes. Nor are cleaned segments being put in place.
        """
        state = self._state
        state.check_online()
        state.coming_truncations += 1
        try:
            while state.replacement_ended is not None:
                await asyncio.wait([state.replacement_ended])
                state.check_online()
            if offset < state.recovery_point or state.coming_truncations > 1:
                state.recovery_point = min(state.recovery_point, offset)
                state.first_dirty_offset = min(state.first_dirty_offset, offset)
                await self._services.checkpoint_recovery_points(state.log_directory)
                state.check_online()
            yield
        finally:
            state.coming_truncations -= 1

    def _cut_off(self, offset: int) -> asyncio.Task[None]:
        state = self._state
        try:
            removed = state.segments.remove_from(offset)
            self._local_log.give_up(removed)
            active = state.segments.active
            active.truncate_to(offset)
        except OSError as error:
            raise state.storage_failed(error) from error
        active.config = state.segment_config
        self._services.logger.info("%r: truncated to offset %d", state, active.next_offset)
        end_offset = active.next_offset
        started_at = state.log_start_offset
        return self._truncated(
            end_offset, min(state.high_watermark, end_offset), started_at, snapshots_until=end_offset
        )

    def _begin_anew(
        self,
        offset: int,
        log_start_offset: int,
        epochs: Sequence[EpochEntry] = (),
        producers: Sequence[ProducerSnapshotEntry] = (),
    ) -> asyncio.Task[None]:
        """`epochs` and `producers` are of what is elsewhere. Invariant: they are there before anybody else gets to run,
        so that nothing is appended without them."""
        state = self._state
        self._services.logger.info("%r: truncate and start at offset %d", state, offset)
        try:
            self._local_log.give_up(list(state.segments))
            state.segments.replace_all(self._local_log.new_segment(offset))
        except OSError as error:
            raise state.storage_failed(error) from error
        state.epochs_changed |= state.leader_epochs.clear()
        for epoch, start_offset in epochs:
            state.assign_epoch(epoch, start_offset)
        state.leader_epochs.truncate_from_start(log_start_offset)
        state.producers.load(producers, offset, self._services.time_ms())
        started_at, state.log_start_offset = state.log_start_offset, log_start_offset
        state.settle_local_start()
        state.least_end_offset = 0  # nothing is left of what was there, though this may go on at a later offset
        # Whichever offsets they are of, they tell of producers whose records are gone.
        return self._truncated(offset, offset, started_at, snapshots_until=NO_OFFSET, keeps_producers=bool(epochs))

    def _truncated(
        self,
        end_offset: int,
        high_watermark: int,
        started_at: int,
        *,
        snapshots_until: int,
        keeps_producers: bool = False,
    ) -> asyncio.Task[None]:
        """Returns what completes it. `started_at` is where the log started before. Snapshots behind `snapshots_until`
        are of no use any more; with `keeps_producers` one is written, since nothing in the log tells of them.

        Invariant: no offset that the log knows of lies behind its new end, before anybody else gets to run.
        """
        state = self._state
        state.truncations += 1
        is_below_recovery_point = end_offset < state.recovery_point
        is_amid_another = state.is_truncating  # whose start may not be in its checkpoint yet
        state.log_end_offset = end_offset
        state.least_end_offset = min(state.least_end_offset, end_offset)
        state.log_start_offset = min(state.log_start_offset, end_offset)
        state.settle_local_start()
        state.remote_end_offset = min(state.remote_end_offset, end_offset)
        state.recovery_point = min(state.recovery_point, end_offset)
        state.first_dirty_offset = min(state.first_dirty_offset, end_offset)
        state.epochs_changed |= state.leader_epochs.truncate_from_end(end_offset)
        state.high_watermark = high_watermark
        state.last_stable_offset = max(min(state.last_stable_offset, high_watermark), state.log_start_offset)
        state.end_went_back(end_offset)
        state.is_truncating = True
        state.settle_refusal()
        self._flusher.written.finish(state.refused())
        stale = self._local_log.forget_snapshots_behind(snapshots_until)
        checkpoints = [self._services.checkpoint_recovery_points] if is_below_recovery_point else []
        if state.log_start_offset < started_at or is_amid_another:
            checkpoints.append(self._services.checkpoint_start_offsets)
        return self._work.start(self._complete(end_offset, stale, checkpoints, keeps_producers))

    async def _complete(
        self,
        end_offset: int,
        stale_snapshots: list[int],
        checkpoints: Sequence[Callable[[LogDirectory], Awaitable[None]]],
        keeps_producers: bool,
    ) -> None:
        """Appends are let in again by the last truncation that was begun, and with its producers' state.

        Invariants: the removal of batches, of later segments and of snapshots is durable before anything is appended,
        so that a loss of power does not bring them back beside new records, or between them, each whole by itself; so
        are the epochs that went, of a log that has nothing left to contradict them; so is a recovery point that went
        back further than was asked for, to the beginning of a batch; and so is a start of the log that went back, lest
        what is appended below the former one is gone after a crash.
        """
        state = self._state
        number = state.truncations
        try:
            await self._local_log.remove_snapshots(stale_snapshots)
            if keeps_producers and number == state.truncations:
                await self._local_log.keep_snapshot(end_offset)
            await self._flusher.sync_what_is_left()
            for write in checkpoints:
                await write(state.log_directory)
            if number != state.truncations:
                return
            producers = state.producers
            if producers.changed_end_offset > end_offset:
                producers = await self._local_log.replayed_producers(end_offset)
        except OSError as error:
            raise state.storage_failed(error) from error
        except RecordsError as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{state!r} is damaged: {error}") from error
        if number != state.truncations or state.is_closed:
            return
        producers.end_offset = end_offset
        state.producers = producers
        state.all_written()
        state.is_truncating = False
        state.settle_refusal()
        state.committed_more()
