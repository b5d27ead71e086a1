"""The log of one replica of a partition: what Apache Kafka calls UnifiedLog.

Everything happens on the loop, one thing after another, but for syncs, cold reads and deletions. Offsets are ordered so
at all times:

    log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset, and recovery_point <= log_end_offset

*Committed* is what lies below the high watermark. It is moved by the replica's owner only (`replication`), never by an
append. A record counts as *written*, and may be acknowledged, when the write queue says so; it is *synced* below the
recovery point.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from barnabas.kernel.host import Buffer
from barnabas.log.appending import (
    AppendResult,
    FetchedRecords,
    check_fetched,
    header_of,
    marker_in,
)
from barnabas.log.flushing import FlushWork
from barnabas.log.index_file import CorruptIndexError
from barnabas.log.leader_appends import LeaderAppends
from barnabas.log.leader_epochs import EpochEnd
from barnabas.log.producer_snapshots import (
    ProducerReplay,
    log_ranges,
    remove_snapshots,
    replay_producers,
)
from barnabas.log.producer_state import ProducerEntry, ProducerState, ProducerStateError
from barnabas.log.read_plans import LogRead, ReadIsolation, available_bytes, plan_log_read
from barnabas.log.segment import Segment
from barnabas.log.timestamp_lookup import ListedOffset, list_offset
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.record_errors import RecordsError
from barnabas.wire.sentinels import NO_EPOCH, NO_OFFSET, NO_PRODUCER_ID, NO_TIMESTAMP


class PartitionLog(LeaderAppends):
    """One log. `LogManager` makes it."""

    # Appending what a leader has sent.

    def append_as_follower(self, records: Buffer, leader_epoch: int | None = None) -> AppendResult | None:
        """Appends what the leader has sent, under the offsets that it has there; None where there is no whole batch.

        What it answers to is in `appending.check_fetched`, which also says what is raised; KafkaError besides, when the
        log directory has failed.
        """
        if self._refusal is not None:
            raise self._refused()
        fetched = check_fetched(records, self.log_end_offset, leader_epoch)
        if fetched is None:
            return None
        first_offset, last_offset = fetched.first_offset, fetched.last_offset
        max_timestamp_ms = fetched.max_timestamp_ms
        size_bytes = len(fetched.records)
        try:
            segment = self._segment_for(size_bytes, first_offset, last_offset, max_timestamp_ms, self._time_ms())
            segment.append_batches(fetched.records, fetched.places)
        except OSError as error:
            raise self._failed_append(error) from error
        self.log_end_offset = last_offset + 1
        self._replay(fetched, segment)
        if not self.written.is_queued:
            self._queue()
        return AppendResult(
            first_offset=first_offset,
            last_offset=last_offset,
            max_timestamp_ms=max_timestamp_ms,
            log_append_time_ms=NO_TIMESTAMP,
            log_start_offset=self.log_start_offset,
            record_count=last_offset - first_offset + 1,
            size_bytes=size_bytes,
            is_duplicate=False,
            converted_count=0,
            uncompressed_bytes=size_bytes,
        )

    def _replay(self, fetched: FetchedRecords, segment: Segment) -> None:
        """Takes over epochs and producers from batches that are in the log now."""
        epochs, producers = self.leader_epochs, self.producers
        for batch in fetched.batches:
            header = header_of(batch)
            if header is None:
                continue
            if header.partition_leader_epoch > epochs.latest_epoch:
                self._epochs_changed |= epochs.assign(header.partition_leader_epoch, header.base_offset)
            if header.producer_id <= NO_PRODUCER_ID or not isinstance(batch, RecordBatch):
                continue
            try:
                aborted = producers.replay(header, marker_in(batch))
            except ProducerStateError as error:
                # The leader has accepted it; what it knew of the producer has expired here, or the reverse.
                self._services.logger.warning("%r: state of a producer differs from the leader's: %s", self, error)
                continue
            if aborted is not None:
                self._index_aborted(segment, aborted)

    # What is committed.

    def update_high_watermark(self, offset: int) -> int:
        """Sets the high watermark, also to an earlier offset; within the log. Returns it.

        For a replica that begins anew, as follower or after a truncation; a leader uses `increase_high_watermark`.
        """
        self.high_watermark = max(min(offset, self.log_end_offset), self.log_start_offset)
        self._committed_more()
        return self.high_watermark

    def increase_high_watermark(self, offset: int) -> bool:
        """Moves the high watermark forward, at most to the log's end; False where it is there already.

        Invariant: it never goes back here, whatever the caller has computed.
        """
        if offset > self.log_end_offset:
            offset = self.log_end_offset
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        if self.producers.is_stable:
            self.last_stable_offset = offset
        else:
            self._committed_more()
        return True

    def _committed_more(self) -> None:
        self.producers.high_watermark_moved(self.high_watermark)
        unstable = self.producers.first_unstable_offset
        stable = self.high_watermark if unstable is None else min(unstable, self.high_watermark)
        self.last_stable_offset = max(stable, self.log_start_offset)

    def begin_epoch(self, leader_epoch: int, start_offset: int) -> None:
        """Says that this replica leads, in this epoch, from this offset on."""
        if leader_epoch > self.leader_epochs.latest_epoch:
            self._epochs_changed |= self.leader_epochs.assign(leader_epoch, start_offset)

    @property
    def latest_epoch(self) -> int | None:
        """The epoch of the last record, or the one begun since."""
        epoch = self.leader_epochs.latest_epoch
        return None if epoch == NO_EPOCH else epoch

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEnd:
        """Where an epoch ends in this log; (-1, -1) where that is not known."""
        return self.leader_epochs.end_offset_for(leader_epoch, self.log_end_offset)

    # Reading.

    def read(self, offset: int, bytes_max: int, isolation: ReadIsolation, *, has_minimum: bool) -> LogRead:
        """Where the batches from `offset` on lie, as far as this reader may see.

        `has_minimum` lets the first batch be larger than `bytes_max`. Raises KafkaError: OFFSET_OUT_OF_RANGE outside of
        the log, KAFKA_STORAGE_ERROR where the directory has failed, CORRUPT_MESSAGE where the files are damaged.
        """
        self._check_readable(offset)
        try:
            return plan_log_read(self, offset, bytes_max, isolation, has_minimum)
        except OSError as error:
            raise self._storage_failed(error) from error
        except (RecordsError, CorruptIndexError) as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{self!r} is damaged: {error}") from error

    def bytes_from(self, offset: int, isolation: ReadIsolation) -> int:
        """How many bytes a read from `offset` could give now; raises as `read`."""
        self._check_readable(offset)
        try:
            return available_bytes(self, offset, isolation)
        except OSError as error:
            raise self._storage_failed(error) from error
        except (RecordsError, CorruptIndexError) as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{self!r} is damaged: {error}") from error

    async def list_offset(self, timestamp_ms: int) -> ListedOffset | None:
        """The offset for a timestamp, or for one of the numbers that ListOffsets has for places (-2 to -5).

        None where there is no such record. Only a look-up by time and that of the largest timestamp suspend.
        """
        self._check_online()
        try:
            return await list_offset(self, self._services.host, timestamp_ms)
        except OSError as error:
            raise self._storage_failed(error) from error
        except (RecordsError, CorruptIndexError) as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{self!r} is damaged: {error}") from error

    def active_producers(self) -> list[ProducerEntry]:
        """For DescribeProducers."""
        return list(self.producers)

    def _check_readable(self, offset: int) -> None:
        if self.is_offline or self.is_closed:
            self._check_online()
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.partition.topic}-{self.partition.partition} is not between"
                f" {self.log_start_offset} and {self.log_end_offset}",
            )

    # The start of the log.

    def delete_records_to(self, offset: int) -> int:
        """Deletes the records before `offset` (-1: before the high watermark); returns where the log starts now.

        Invariant: only what is committed is deleted by request. Raises KafkaError with OFFSET_OUT_OF_RANGE for what is
        not, and POLICY_VIOLATION for a topic that is only compacted.
        """
        self._check_online()
        if not self.config.is_deleted:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"records of {self.partition.topic} cannot be deleted: its cleanup.policy is"
                f" {','.join(self.config.cleanup_policy)}",
            )
        wanted = self.high_watermark if offset == -1 else offset
        if not 0 <= wanted <= self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"records before {offset} cannot be deleted: the high watermark is {self.high_watermark}",
            )
        self.increase_log_start_offset(wanted, "client delete records request")
        return self.log_start_offset

    def increase_log_start_offset(self, offset: int, reason: str) -> bool:
        """Moves the start of the log forward; the segments before it go with the next retention. True where it moved.

        Raises KafkaError with OFFSET_OUT_OF_RANGE above the high watermark.
        """
        if offset <= self.log_start_offset:
            return False
        if offset > self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"the log cannot start at {offset}: the high watermark is {self.high_watermark}",
            )
        self.log_start_offset = offset
        self._epochs_changed |= self.leader_epochs.truncate_from_start(offset)
        self.producers.log_start_moved(offset)
        self._committed_more()
        self._services.logger.info("%r: incremented log start offset to %d due to %s", self, offset, reason)
        return True

    def delete_first_segments(self, count: int, reason: str) -> int:
        """Retention: gives up the oldest segments; their files go later. Returns how many went.

        Raises ValueError where not all of them lie below the high watermark. Where that is every segment, a new one is
        begun first. Raises KafkaError when the directory fails.
        """
        if not count:
            return 0
        segments = self.segments
        doomed = list(segments)[:count]
        following = segments.after(doomed[-1])
        end = self.log_end_offset if following is None else following.base_offset
        if end > self.high_watermark:
            raise ValueError(f"segments up to {end} are not all below the high watermark {self.high_watermark}")
        try:
            if following is None:
                self._roll(self.log_end_offset)
            removed = segments.remove_first(count)
            self._give_up(removed)
        except OSError as error:
            raise self._storage_failed(error) from error
        self._services.logger.info(
            "%r: deleting segments %s due to %s", self, [each.base_offset for each in removed], reason
        )
        self.increase_log_start_offset(segments.first.base_offset, "segment deletion")
        return len(removed)

    # Truncating.

    async def truncate_to(self, offset: int, is_still_due: Callable[[], bool] | None = None) -> bool:
        """Drops everything from `offset` on, in whole batches; True where there was anything.

        Where that takes something below the recovery point, the checkpoint of a lower one is waited for first; then
        `is_still_due` says whether to go on, and nothing is dropped where it is not. Offsets and epochs are right
        before this suspends again; until it ends, and any other truncation that was begun meanwhile, nothing can be
        appended, since the producers' state is rebuilt from the log. A caller who is cancelled leaves that going on.
        Whoever waits for appends to count as written is told that they do not.

        Raises KafkaError: KAFKA_STORAGE_ERROR when the directory fails, and CORRUPT_MESSAGE where what is left cannot
        be read; nothing can be appended then until another truncation succeeds.
        """
        async with self._recovery_point_at_most(offset):
            if is_still_due is not None and not is_still_due():
                return False
            if offset >= self.log_end_offset:
                # An epoch that began at the log's end and got no record may contradict the leader's.
                self._epochs_changed |= self.leader_epochs.truncate_from_end(offset)
                return False
            completion = self._begin_anew(offset) if offset < self.segments.first.base_offset else self._cut_off(offset)
        await asyncio.shield(completion)
        return True

    async def truncate_fully_and_start_at(
        self, offset: int, log_start_offset: int | None = None, is_still_due: Callable[[], bool] | None = None
    ) -> None:
        """Drops everything; the log goes on at `offset`, and starts there or at `log_start_offset`. As `truncate_to`
        otherwise."""
        async with self._recovery_point_at_most(min(offset, self.segments.first.base_offset)):
            if is_still_due is not None and not is_still_due():
                return
            completion = self._begin_anew(offset, log_start_offset)
        await asyncio.shield(completion)

    @asynccontextmanager
    async def _recovery_point_at_most(self, offset: int) -> AsyncIterator[None]:
        """Invariant: within this, neither the recovery point nor its checkpoint is above `offset`.

        A recovery trusts what lies below, so nothing there may be removed: a loss of power can undo some of the
        removals and not others, which leaves holes.
        """
        self._check_online()
        self._coming_truncations += 1
        try:
            if offset < self.recovery_point or self._coming_truncations > 1:
                self.recovery_point = min(self.recovery_point, offset)
                await self._services.checkpoint_recovery_points(self.log_directory)
                self._check_online()
            yield
        finally:
            self._coming_truncations -= 1

    def _cut_off(self, offset: int) -> asyncio.Task[None]:
        try:
            removed = self.segments.remove_from(offset)
            self._give_up(removed)
            active = self.segments.active
            active.truncate_to(offset)
        except OSError as error:
            raise self._storage_failed(error) from error
        active.config = self._segment_config
        self._services.logger.info("%r: truncated to offset %d", self, active.next_offset)
        end_offset = active.next_offset
        return self._truncated(end_offset, min(self.high_watermark, end_offset), snapshots_until=end_offset)

    def _begin_anew(self, offset: int, log_start_offset: int | None = None) -> asyncio.Task[None]:
        self._services.logger.info("%r: truncate and start at offset %d", self, offset)
        try:
            self._give_up(list(self.segments))
            self.segments.replace_all(self._new_segment(offset))
        except OSError as error:
            raise self._storage_failed(error) from error
        self._epochs_changed |= self.leader_epochs.clear()
        self.producers.clear(offset)
        self.log_start_offset = offset if log_start_offset is None else log_start_offset
        # Whichever offsets they are of, they tell of producers whose records are gone.
        return self._truncated(offset, offset, snapshots_until=NO_OFFSET)

    def _truncated(self, end_offset: int, high_watermark: int, *, snapshots_until: int) -> asyncio.Task[None]:
        """Returns what completes it. Snapshots behind `snapshots_until` are of no use any more.

        Invariant: no offset that the log knows of lies behind its new end, before anybody else gets to run.
        """
        self._truncations += 1
        is_below_recovery_point = end_offset < self.recovery_point
        self.log_end_offset = end_offset
        self.log_start_offset = min(self.log_start_offset, end_offset)
        self.recovery_point = min(self.recovery_point, end_offset)
        self._epochs_changed |= self.leader_epochs.truncate_from_end(end_offset)
        self.high_watermark = high_watermark
        self.last_stable_offset = max(min(self.last_stable_offset, high_watermark), self.log_start_offset)
        self.is_truncating = True
        self._refusal = ErrorCode.NOT_LEADER_OR_FOLLOWER
        self.written.finish(self._refused())
        stale = sorted(offset for offset in self._snapshots if offset > snapshots_until)
        self._snapshots.difference_update(stale)
        return self._start(self._complete_truncation(end_offset, stale, is_below_recovery_point))

    async def _complete_truncation(
        self, end_offset: int, stale_snapshots: list[int], is_below_recovery_point: bool
    ) -> None:
        """Appends are let in again by the last truncation that was begun, and with its producers' state.

        Invariants: the removal of batches, of later segments and of snapshots is durable before anything is appended,
        so that a loss of power does not bring them back beside new records, or between them, each whole by itself; so
        are the epochs that went, of a log that has nothing left to contradict them; and so is a recovery point that
        went back further than was asked for, to the beginning of a batch.
        """
        number = self._truncations
        try:
            await self._offload_disk(remove_snapshots, self._files, self.directory, stale_snapshots)
            active = self.segments.active
            work = FlushWork((active.data_descriptor(),), (self.directory,), "", None)
            active.pin()
            await self._perform_flush(work, [active])
            if self._epochs_changed:
                await self._write_epochs()
            if is_below_recovery_point:
                await self._services.checkpoint_recovery_points(self.log_directory)
            if number != self._truncations:
                return
            producers = self.producers
            if producers.changed_end_offset > end_offset:
                producers = await self._replayed_producers(end_offset)
        except OSError as error:
            raise self._storage_failed(error) from error
        except RecordsError as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{self!r} is damaged: {error}") from error
        if number != self._truncations or self.is_closed:
            return
        producers.end_offset = end_offset
        self.producers = producers
        self.is_truncating = False
        self._refusal = None
        self._committed_more()

    async def _replayed_producers(self, end_offset: int) -> ProducerState:
        segments = list(self.segments)
        replay = ProducerReplay(
            directory=self.directory,
            snapshot_offsets=tuple(sorted(self._snapshots)),
            ranges=log_ranges(segments, self._snapshots, end_offset),
            log_start_offset=self.log_start_offset,
            end_offset=end_offset,
            now_ms=self._time_ms(),
            expiration_ms=self.producers.expiration_ms,
            transaction_timeout_max_ms=self.producers.transaction_timeout_max_ms,
        )
        for segment in segments:
            segment.pin()
        try:
            state: ProducerState = await self._offload_disk(
                replay_producers, self._files, replay, self._services.logger
            )
            return state
        finally:
            for segment in segments:
                segment.unpin()
