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
from collections.abc import Coroutine
from typing import Any, Final

from barnabas.coordination.layout.topics import TopicPartition
from barnabas.kernel.host import Buffer, OffloadKind
from barnabas.kernel.ids import Uuid
from barnabas.log.appending import (
    AppendError,
    AppendResult,
    FetchedRecords,
    check_fetched,
    header_of,
    marker_in,
    storage_error,
)
from barnabas.log.directory_files import write_partition_metadata
from barnabas.log.flushing import FlushWork, perform_flush
from barnabas.log.leader_epochs import UNDEFINED_EPOCH, EpochEnd, LeaderEpochCache
from barnabas.log.loaded_log import LoadedLog
from barnabas.log.log_config import LogConfig
from barnabas.log.log_directory import LogDirectory
from barnabas.log.log_services import LogServices
from barnabas.log.names import LEADER_EPOCH_CHECKPOINT
from barnabas.log.producer_snapshots import (
    LogRange,
    ProducerReplay,
    remove_snapshots,
    replay_producers,
    write_snapshot,
)
from barnabas.log.producer_state import ProducerEntry, ProducerState, ProducerStateError, Update
from barnabas.log.read_plans import LogRead, ReadIsolation, available_bytes, plan_log_read
from barnabas.log.segment import Segment
from barnabas.log.timestamp_lookup import ListedOffset, list_offset
from barnabas.log.write_queue import Written
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.record_errors import RecordsError
from barnabas.wire.record_validation import (
    AppendOrigin,
    ValidatedBatch,
    assign_offsets,
    check_produce_version,
    validate_records,
)
from barnabas.wire.records import NO_PRODUCER_ID, TimestampType

_CLIENT: Final = AppendOrigin.CLIENT
_LOG_APPEND_TIME: Final = TimestampType.LOG_APPEND_TIME
_new_tuple: Final = tuple.__new__


class PartitionLog:
    """One log. `LogManager` makes it."""

    def __init__(
        self,
        services: LogServices,
        log_directory: LogDirectory,
        partition: TopicPartition,
        config: LogConfig,
        loaded: LoadedLog,
    ) -> None:
        self.partition = partition
        self.log_directory = log_directory
        self.directory = loaded.directory
        self.topic_id = loaded.topic_id
        self.segments = loaded.segments
        self.leader_epochs: LeaderEpochCache = loaded.leader_epochs
        self.producers: ProducerState = loaded.producers
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.high_watermark = loaded.log_start_offset
        self.last_stable_offset = loaded.log_start_offset
        self.recovery_point = loaded.recovery_point
        self.is_offline = False
        """The log directory has failed."""
        self.is_closed = False
        """The log is deleted, or the broker stops."""
        self.is_truncating = False
        self.written = Written()
        self.last_flush_ms = services.time_ms()
        self._services = services
        self._files = services.host.files
        self._time_ms = services.time_ms
        self._refusal: ErrorCode | None = None
        self._snapshots = set(loaded.snapshot_offsets)
        self._unsynced = list(loaded.unsynced_segments)
        self._names_changed = loaded.is_new
        self._is_new_directory = loaded.is_new
        self._metadata_is_written = loaded.has_metadata_file
        self._epochs_changed = loaded.epochs_changed
        self._truncations = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self.config = config
        self.reconfigure(config)

    def __repr__(self) -> str:
        return f"Log(dir={self.directory}, topic={self.partition.topic}, partition={self.partition.partition})"

    @property
    def size_bytes(self) -> int:
        """Of all batches, also those below the log start offset that are in a segment with later ones."""
        return self.segments.size_bytes

    @property
    def segment_count(self) -> int:
        return len(self.segments)

    @property
    def local_log_start_offset(self) -> int:
        """There is no tiered storage: everything is local."""
        return self.log_start_offset

    def reconfigure(self, config: LogConfig) -> None:
        """Takes over a topic's new configs, at once."""
        self.config = config
        self._rules = config.append_rules()
        self._segment_config = config.segment_config()
        self._flush_messages = config.flush_messages
        self.segments.active.config = self._segment_config

    def assign_topic_id(self, topic_id: Uuid) -> None:
        """Ties the log to its topic (KIP-516). Raises ValueError where it belongs to another."""
        if self.topic_id is not None and self.topic_id != topic_id:
            raise ValueError(f"{self!r} belongs to topic id {self.topic_id} and not to {topic_id}")
        if self.topic_id is None:
            self.topic_id = topic_id
            self._metadata_is_written = False

    # Appending.

    def append_as_leader(
        self,
        records: Buffer,
        leader_epoch: int,
        *,
        origin: AppendOrigin = _CLIENT,
        produce_version: int | None = None,
    ) -> AppendResult:
        """Validates, gives offsets to, and appends what a producer has sent.

        `records` must be writable: offset, epoch and timestamps are stored in it. It may change again when this
        returns. Raises AppendError, and then nothing has changed.
        """
        if self._refusal is not None:
            raise self._refused()
        now_ms = self._time_ms()
        try:
            if produce_version is not None:
                check_produce_version(records, produce_version)
            batch = validate_records(records, self._rules, now_ms, origin)
        except RecordsError as error:
            raise AppendError.of_records(error, self.log_start_offset) from error
        return self.append_validated(batch, leader_epoch, now_ms, origin)

    def append_validated(
        self, batch: ValidatedBatch, leader_epoch: int, now_ms: int, origin: AppendOrigin = _CLIENT
    ) -> AppendResult:
        """The second half of `append_as_leader`, for a batch that was validated off the loop."""
        if self._refusal is not None:
            raise self._refused()
        header = batch.header
        base_offset = self.log_end_offset
        is_append_time = batch.timestamp_type is _LOG_APPEND_TIME
        max_timestamp_ms = now_ms if is_append_time else batch.max_timestamp_ms
        update = None
        if header.producer_id != NO_PRODUCER_ID:
            try:
                prepared = self._prepare(batch, base_offset, max_timestamp_ms, origin)
            except ProducerStateError as error:
                raise AppendError.of_producer(error, self.log_start_offset) from error
            if isinstance(prepared, AppendResult):
                return prepared
            update = prepared
        records = batch.records
        size_bytes = len(records)
        last_offset = assign_offsets(batch, base_offset, leader_epoch, now_ms)
        try:
            segment = self._segment_for(size_bytes, base_offset, last_offset, max_timestamp_ms, now_ms)
            segment.append(records, last_offset, max_timestamp_ms)
        except OSError as error:
            raise self._failed_append(error) from error
        # From here on the batch is in the log: nothing below may fail.
        end_offset = self.log_end_offset = last_offset + 1
        if leader_epoch > self.leader_epochs.latest_epoch:
            self._epochs_changed |= self.leader_epochs.assign(leader_epoch, base_offset)
        if update is not None:
            aborted = self.producers.apply(update, end_offset)
            if aborted is not None:
                segment.transaction_index.append(aborted)
        if not self.written.is_queued:
            self._queue()
        return _new_tuple(
            AppendResult,
            (
                base_offset, last_offset, max_timestamp_ms, now_ms if is_append_time else -1, self.log_start_offset,
                header.record_count, size_bytes, False, batch.converted_count, batch.uncompressed_bytes,
            ),
        )  # fmt: skip

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
        first_offset, last_offset, max_timestamp_ms = (
            fetched.first_offset,
            fetched.last_offset,
            fetched.max_timestamp_ms,
        )
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
            first_offset,
            last_offset,
            max_timestamp_ms,
            -1,
            self.log_start_offset,
            last_offset - first_offset + 1,
            size_bytes,
            False,
            0,
            size_bytes,
        )

    def _prepare(
        self, batch: ValidatedBatch, base_offset: int, max_timestamp_ms: int, origin: AppendOrigin
    ) -> Update | AppendResult:
        """What the batch changes for its producer; or the answer to a duplicate."""
        header = batch.header
        if origin is _CLIENT:
            duplicate = self.producers.find_duplicate(header)
            if duplicate is not None:
                return AppendResult(
                    duplicate.first_offset,
                    duplicate.last_offset,
                    duplicate.timestamp_ms,
                    duplicate.timestamp_ms,
                    self.log_start_offset,
                    header.record_count,
                    len(batch.records),
                    True,
                    0,
                    batch.uncompressed_bytes,
                )
            return self.producers.prepare_client(header, base_offset, max_timestamp_ms)
        if header.is_control:
            marker = marker_in(RecordBatch(batch.records))
            if marker is not None:
                return self.producers.prepare_marker(header, marker, base_offset, max_timestamp_ms)
        return self.producers.prepare_coordinator(header, base_offset, max_timestamp_ms)

    def _replay(self, fetched: FetchedRecords, segment: Segment) -> None:
        """Takes over epochs and producers from batches that are in the log now."""
        epochs, producers = self.leader_epochs, self.producers
        for batch in fetched.batches:
            header = header_of(batch)
            if header is None:
                continue
            if header.partition_leader_epoch > epochs.latest_epoch:
                self._epochs_changed |= epochs.assign(header.partition_leader_epoch, header.base_offset)
            if header.producer_id == NO_PRODUCER_ID or not isinstance(batch, RecordBatch):
                continue
            try:
                aborted = producers.replay(header, marker_in(batch))
            except ProducerStateError as error:
                # The leader has accepted it; what it knew of the producer has expired here, or the reverse.
                self._services.logger.warning("%r: state of a producer differs from the leader's: %s", self, error)
                continue
            if aborted is not None:
                segment.transaction_index.append(aborted)

    def _segment_for(
        self, append_bytes: int, first_offset: int, last_offset: int, max_timestamp_ms: int, now_ms: int
    ) -> Segment:
        segment = self.segments.active
        if segment.should_roll(append_bytes, last_offset, max_timestamp_ms, now_ms):
            if append_bytes > segment.config.segment_bytes:
                raise AppendError(
                    ErrorCode.RECORD_LIST_TOO_LARGE,
                    f"{append_bytes} bytes do not fit into a segment of {segment.config.segment_bytes} (segment.bytes)",
                    log_start_offset=self.log_start_offset,
                )
            return self._roll(first_offset)
        return segment

    def _queue(self) -> None:
        """Sees to it that what was appended gets written, and counts as written no sooner than it may."""
        if self.segments.active.pending_bytes or self.must_sync:
            self._services.write_queue.add(self)

    def _failed_append(self, error: OSError) -> AppendError:
        self.log_directory.fail(error)
        return AppendError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{self.directory} cannot be written: {error}",
            log_start_offset=self.log_start_offset,
        )

    def _refused(self) -> AppendError:
        code = self._refusal or ErrorCode.UNKNOWN_SERVER_ERROR
        if code is ErrorCode.KAFKA_STORAGE_ERROR:
            return AppendError(code, f"log directory {self.log_directory.path} is offline")
        return AppendError(code, f"{self!r} is {'closed' if self.is_closed else 'being truncated'}")

    # Rolling.

    def _roll(self, base_offset: int) -> Segment:
        """Begins a new segment; the one before it is synced in the background, and the producers' state is kept."""
        segments = self.segments
        completed = segments.active
        if completed.base_offset == base_offset and not completed.size_bytes:
            return completed
        completed.become_inactive()
        segment = self._new_segment(base_offset)
        segments.add(segment)
        self._unsynced.append(completed)
        self._take_snapshot(base_offset)
        self._start(self._flush_quietly(base_offset))
        self._services.logger.debug("%r: rolled new log segment at offset %d", self, base_offset)
        return segment

    def _new_segment(self, base_offset: int) -> Segment:
        config = self.config
        jitter_max_ms = min(config.segment_jitter_ms, config.segment_ms)
        jitter_ms = self._services.host.random.randrange(jitter_max_ms) if jitter_max_ms > 0 else 0
        segment = Segment(
            self._files,
            self.directory,
            base_offset,
            self._segment_config,
            created_ms=self._time_ms(),
            jitter_ms=jitter_ms,
        )
        segment.create()
        self._names_changed = True
        return segment

    def _take_snapshot(self, offset: int) -> None:
        """Writes the producers' state off the loop. A loss of it costs time at the next recovery and nothing else."""
        self.producers.end_offset = offset
        self._snapshots.add(offset)
        entries = self.producers.snapshot()
        self._start(self._offload_disk(write_snapshot, self._files, self.directory, offset, entries))

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
        return None if epoch == UNDEFINED_EPOCH else epoch

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEnd:
        """Where an epoch ends in this log; (-1, -1) where that is not known."""
        return self.leader_epochs.end_offset_for(leader_epoch, self.log_end_offset)

    # Reading.

    def read(self, offset: int, bytes_max: int, isolation: ReadIsolation, *, has_minimum: bool) -> LogRead:
        """Where the batches from `offset` on lie, as far as this reader may see.

        `has_minimum` lets the first batch be larger than `bytes_max`. Raises KafkaError: OFFSET_OUT_OF_RANGE outside of
        the log, KAFKA_STORAGE_ERROR where the directory has failed.
        """
        self._check_readable(offset)
        try:
            return plan_log_read(self, offset, bytes_max, isolation, has_minimum)
        except OSError as error:
            raise self._storage_failed(error) from error

    def bytes_from(self, offset: int, isolation: ReadIsolation) -> int:
        """How many bytes a read from `offset` could give now; raises as `read`."""
        self._check_readable(offset)
        try:
            return available_bytes(self, offset, isolation)
        except OSError as error:
            raise self._storage_failed(error) from error

    async def list_offset(self, timestamp_ms: int) -> ListedOffset | None:
        """The offset for a timestamp, or for one of the numbers that ListOffsets has for places (-2 to -5).

        None where there is no such record. Only a look-up by time and that of the largest timestamp suspend.
        """
        self._check_online()
        try:
            return await list_offset(self, self._services.host, timestamp_ms)
        except OSError as error:
            raise self._storage_failed(error) from error

    def active_producers(self) -> list[ProducerEntry]:
        """For DescribeProducers."""
        return list(self.producers)

    def _check_online(self) -> None:
        if self.is_offline:
            raise storage_error(self.log_directory.path, self.log_directory.error)
        if self.is_closed:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self!r} is closed")

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

    def _give_up(self, removed: list[Segment]) -> None:
        """Renames the files of segments that left the list, and lets them be deleted later."""
        paths: list[str] = []
        offsets = []
        for segment in removed:
            paths += segment.mark_deleted()
            segment.let_go()
            offsets.append(segment.base_offset)
        self._names_changed = True
        self._unsynced = [segment for segment in self._unsynced if segment not in removed]
        self._services.deletions.delete_files(paths, self.config.file_delete_delay_ms, self.log_directory.fail)
        snapshots = [offset for offset in offsets if offset in self._snapshots]
        self._snapshots.difference_update(snapshots)
        if snapshots:
            self._start(self._offload_disk(remove_snapshots, self._files, self.directory, snapshots))

    # Truncating.

    async def truncate_to(self, offset: int) -> bool:
        """Drops everything from `offset` on, in whole batches; True where there was anything.

        Offsets and epochs are right before this suspends for the first time; until it ends, nothing can be appended,
        since the producers' state is rebuilt from the log. A caller who is cancelled leaves that going on.
        """
        self._check_online()
        if offset >= self.log_end_offset:
            # An epoch that began at the log's end and got no record may contradict the leader's.
            self._epochs_changed |= self.leader_epochs.truncate_from_end(offset)
            return False
        if offset < self.segments.first.base_offset:
            await self.truncate_fully_and_start_at(offset)
            return True
        try:
            removed = self.segments.remove_from(offset)
            self._give_up(removed)
            self.segments.active.truncate_to(offset)
        except OSError as error:
            raise self._storage_failed(error) from error
        self.segments.active.config = self._segment_config
        self._services.logger.info("%r: truncated to offset %d", self, self.segments.active.next_offset)
        await self._truncated(self.segments.active.next_offset)
        return True

    async def truncate_fully_and_start_at(self, offset: int, log_start_offset: int | None = None) -> None:
        """Drops everything; the log goes on at `offset`, and starts there or at `log_start_offset`."""
        self._check_online()
        self._services.logger.info("%r: truncate and start at offset %d", self, offset)
        try:
            self._give_up(list(self.segments))
            self.segments.replace_all(self._new_segment(offset))
        except OSError as error:
            raise self._storage_failed(error) from error
        self._epochs_changed |= self.leader_epochs.clear()
        self.producers.clear(offset)
        self.log_start_offset = offset if log_start_offset is None else log_start_offset
        await self._truncated(offset)
        self.update_high_watermark(self.log_end_offset)

    async def _truncated(self, end_offset: int) -> None:
        """Invariant: no offset that the log knows of lies behind its new end, before anybody else gets to run."""
        self._truncations += 1
        self.log_end_offset = end_offset
        self.log_start_offset = min(self.log_start_offset, end_offset)
        self.recovery_point = min(self.recovery_point, end_offset)
        self._epochs_changed |= self.leader_epochs.truncate_from_end(end_offset)
        if self.high_watermark > end_offset:
            self.high_watermark = end_offset
        self.is_truncating = True
        self._refusal = ErrorCode.NOT_LEADER_OR_FOLLOWER
        await asyncio.shield(self._start(self._rebuild_producers(end_offset)))

    async def _rebuild_producers(self, end_offset: int) -> None:
        """The producers' state at the new end. The removal of later snapshots and segments is durable before anything
        is appended: a loss of power must not bring them back beside new records.
        """
        try:
            stale = sorted(offset for offset in self._snapshots if offset > end_offset)
            self._snapshots.difference_update(stale)
            await self._offload_disk(remove_snapshots, self._files, self.directory, stale)
            await self._services.host.offload(
                OffloadKind.SYNC, self._files.fsync_directory, self.directory, order=self.directory
            )
            if self.producers.changed_end_offset <= end_offset:
                self.producers.end_offset = end_offset
            else:
                self.producers = await self._replayed_producers(end_offset)
        except OSError as error:
            raise self._storage_failed(error) from error
        finally:
            self.is_truncating = False
            if not (self.is_offline or self.is_closed):
                self._refusal = None
        self._committed_more()

    async def _replayed_producers(self, end_offset: int) -> ProducerState:
        segments = list(self.segments)
        replay = ProducerReplay(
            directory=self.directory,
            snapshot_offsets=tuple(sorted(self._snapshots)),
            ranges=tuple(
                LogRange(segment.data_descriptor(), segment.base_offset, segment.size_bytes) for segment in segments
            ),
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

    # Writing and syncing.

    def write_pending(self) -> KafkaError | None:
        """For the write queue: brings what was appended to the file."""
        if self._refusal is not None and (self.is_offline or self.is_closed):
            return self._refused()
        try:
            self.segments.active.write_pending()
        except OSError as error:
            return self._storage_failed(error)
        return None

    @property
    def must_sync(self) -> bool:
        """Whether something must be durable before appends are acknowledged: the records where `flush.messages` has
        come, the topic's id before the first record.
        """
        return not self._metadata_is_written or self.log_end_offset - self.recovery_point >= self._flush_messages

    def start_sync(self) -> asyncio.Future[KafkaError | None]:
        """For the write queue: begins what `must_sync` asks for."""
        return self._start(self._sync())

    async def _sync(self) -> KafkaError | None:
        try:
            if not self._metadata_is_written:
                await self._write_metadata()
            if self.log_end_offset - self.recovery_point >= self._flush_messages:
                await self.flush()
        except KafkaError as error:
            return error
        return None

    async def _write_metadata(self) -> None:
        if self.topic_id is None:
            self._metadata_is_written = True
            return
        try:
            await self._services.host.offload(
                OffloadKind.SYNC, write_partition_metadata, self._files, self.directory, self.topic_id
            )
        except OSError as error:
            raise self._storage_failed(error) from error
        self._metadata_is_written = True

    async def flush(self, up_to: int | None = None) -> None:
        """Makes durable what lies below `up_to` (all of it where that is None), and moves the recovery point there.

        Invariants: the recovery point moves only after the sync, and not past a truncation that came meanwhile; the
        epochs that begin below it are in their checkpoint before it moves, since a recovery reads only what is above.
        Raises KafkaError when the disk fails: a sync that failed is never tried again, the directory is given up.
        """
        self._check_online()
        end_offset = self.log_end_offset if up_to is None else min(up_to, self.log_end_offset)
        if end_offset <= self.recovery_point and not self._unsynced and not self._epochs_changed:
            return
        truncations = self._truncations
        try:
            work, pinned = self._prepare_flush(end_offset)
        except OSError as error:
            raise self._storage_failed(error) from error
        started = self._services.host.loop.time()
        try:
            await asyncio.shield(self._start(self._perform_flush(work, pinned)))
        except OSError as error:
            raise self._storage_failed(error) from error
        self._services.flush_timing.update(round((self._services.host.loop.time() - started) * 1000))
        self.last_flush_ms = self._time_ms()
        if truncations == self._truncations and end_offset > self.recovery_point:
            self.recovery_point = end_offset

    def _prepare_flush(self, end_offset: int) -> tuple[FlushWork, list[Segment]]:
        sealed, self._unsynced = self._unsynced, []
        descriptors: list[int] = []
        for segment in sealed:
            descriptors += segment.prepare_sync().descriptors
        pinned = list(sealed)
        active = self.segments.active
        if end_offset > active.base_offset:
            descriptors.append(active.data_descriptor())
            pinned.append(active)
        directories: list[str] = []
        if self._names_changed:
            directories.append(self.directory)
            self._names_changed = False
        if self._is_new_directory:
            directories.append(self.log_directory.path)
            self._is_new_directory = False
        epochs = None
        if self._epochs_changed:
            epochs = self.leader_epochs.entries
            self._epochs_changed = False
        for segment in pinned:
            segment.pin()
        path = f"{self.directory}/{LEADER_EPOCH_CHECKPOINT}"
        return FlushWork(tuple(descriptors), tuple(directories), path, epochs), pinned

    async def _perform_flush(self, work: FlushWork, pinned: list[Segment]) -> None:
        try:
            await self._services.host.offload(OffloadKind.SYNC, perform_flush, self._files, work, order=self.directory)
        finally:
            for segment in pinned:
                segment.unpin()

    async def _offload_disk(self, function: Any, *arguments: Any) -> Any:
        """Runs disk work of this log off the loop, one after another."""
        return await self._services.host.offload(OffloadKind.DISK, function, *arguments, order=self.directory)

    async def _flush_quietly(self, up_to: int) -> None:
        try:
            await self.flush(up_to)
        except KafkaError as error:
            self._services.logger.warning("%r: flush up to %d failed: %s", self, up_to, error)

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs work of this log in the background; `close` waits for it."""
        task = self._services.host.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._background_ended)
        return task

    def _background_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, OSError):
            self.log_directory.fail(error)

    # Ending.

    async def close(self) -> None:
        """Completes the log for a clean stop: everything synced, the producers' state kept. Nobody appends any more.

        Raises KafkaError when the disk fails.
        """
        self._check_online()
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        try:
            if not self._metadata_is_written:
                await self._write_metadata()
            self._unsynced.append(self.segments.active)  # with its indexes: it is loaded as it is
            await self.flush()
            if self.log_end_offset not in self._snapshots and self.producers.changed_end_offset:
                self._take_snapshot(self.log_end_offset)
                await asyncio.gather(*self._tasks)
        except OSError as error:
            raise self._storage_failed(error) from error
        self.is_closed = True
        self._refusal = ErrorCode.NOT_LEADER_OR_FOLLOWER
        for segment in self.segments:
            segment.close()

    def detach(self, directory: str) -> None:
        """Moves the directory, which marks it as deleted, and closes everything in it. Raises OSError."""
        self._files.rename(self.directory, directory)
        self.directory = directory
        self._end(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def go_offline(self) -> None:
        """The log directory has failed: closes everything and writes nothing."""
        self.is_offline = True
        self._end(ErrorCode.KAFKA_STORAGE_ERROR)

    def abandon(self) -> None:
        """Closes everything and writes nothing, as a crash does."""
        for task in list(self._tasks):
            task.cancel()
        self._end(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _end(self, refusal: ErrorCode) -> None:
        self.is_closed = True
        self._refusal = refusal
        for segment in self.segments:
            segment.let_go()
        self.written.finish(self._refused())

    def _storage_failed(self, error: OSError) -> KafkaError:
        if not self.is_closed:
            self.log_directory.fail(error)
        return storage_error(self.log_directory.path, error)
