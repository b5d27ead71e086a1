"""The log of one replica of a partition: what Apache Kafka calls UnifiedLog.

It is composed: `LogState` is what is known in memory, `LocalLog` the files, `LogFlusher` brings them to the disk,
appenders and `LogTruncation` change the end. Offsets and what they mean are explained in `log_state`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from barnabas.kernel.ids import Uuid
from barnabas.log.directories.checkpoints import EpochEntry
from barnabas.log.directories.log_directory import LogDirectory
from barnabas.log.directories.names import DirectoryKind
from barnabas.log.partition.background_work import BackgroundWork
from barnabas.log.partition.follower_appender import FollowerAppender
from barnabas.log.partition.leader_appender import LeaderAppender
from barnabas.log.partition.leader_epochs import EpochEnd
from barnabas.log.partition.loaded_log import LoadedLog
from barnabas.log.partition.local_log import LocalLog
from barnabas.log.partition.log_config import LogConfig
from barnabas.log.partition.log_flusher import LogFlusher
from barnabas.log.partition.log_services import LogServices
from barnabas.log.partition.log_state import NO_TRUNCATION, LogState
from barnabas.log.partition.log_truncation import LogTruncation
from barnabas.log.partition.read_plans import LogRead, ReadIsolation, available_bytes, plan_log_read
from barnabas.log.partition.segment_replacement import SegmentReplacement
from barnabas.log.partition.timestamp_lookup import ListedOffset, list_offset
from barnabas.log.producers.producer_snapshot import ProducerSnapshotEntry
from barnabas.log.producers.producer_snapshots import snapshot_path
from barnabas.log.producers.producer_state import ProducerEntry, ProducerState
from barnabas.log.segments.index_file import CorruptIndexError
from barnabas.log.segments.segment import Segment
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.record_errors import RecordsError
from barnabas.wire.sentinels import NO_EPOCH
from barnabas.wire.topics import TopicPartition


class PartitionLog:
    """One log. `make_log` of `queued_log` makes it."""

    _state_type: type[LogState] = LogState
    _flusher_type: type[LogFlusher] = LogFlusher
    has_unwritten = False
    """Whether something was appended that is not in the files, and that nobody sees yet (`queued_log`)."""

    def __init__(
        self,
        services: LogServices,
        log_directory: LogDirectory,
        partition: TopicPartition,
        config: LogConfig,
        loaded: LoadedLog,
    ) -> None:
        has_remote_storage = services.settings.remote_storage_system_enable
        state = self._state_type(log_directory, partition, config, loaded, has_remote_storage=has_remote_storage)
        work = BackgroundWork(services, state)
        flusher = self._flusher_type(services, state, work, loaded)
        local_log = LocalLog(services, state, work, flusher, loaded)
        leader = LeaderAppender(services, state, local_log, flusher)
        follower = FollowerAppender(services, state, local_log, flusher)
        self.partition = partition
        self.log_directory = log_directory
        self.segments = state.segments
        self.leader_epochs = state.leader_epochs
        self.written = flusher.written
        self._services = services
        self._state = state
        self._work = work
        self._flusher = flusher
        self._local_log = local_log
        self._arrival: asyncio.Task[None] | None = None
        self._truncation = LogTruncation(services, state, work, local_log, flusher)
        self._replacement = SegmentReplacement(services, state, work, local_log)
        # What is called for every record goes straight to the part that does it, without a call in between.
        self.append_as_leader = leader.append_as_leader
        self.append_all_as_leader = leader.append_all_as_leader
        self.append_validated = leader.append_validated
        self.append_after = leader.append_after
        self.validation = leader.validation
        self.append_as_follower = follower.append_as_follower
        self.update_high_watermark = state.update_high_watermark
        self.increase_high_watermark = state.increase_high_watermark

    def __repr__(self) -> str:
        return repr(self._state)

    # What it is and how far it reaches.

    @property
    def directory(self) -> str:
        """The path; another one after `detach`."""
        return self._state.directory

    @property
    def is_future(self) -> bool:
        """Whether its directory is that of a replica on its way to this log directory (KIP-113)."""
        return self._state.directory.endswith(DirectoryKind.FUTURE.value)

    @property
    def topic_id(self) -> Uuid | None:
        return self._state.topic_id

    @property
    def config(self) -> LogConfig:
        return self._state.config

    @property
    def producers(self) -> ProducerState:
        return self._state.producers

    @property
    def log_start_offset(self) -> int:
        return self._state.log_start_offset

    @property
    def start_offset_to_keep(self) -> int:
        """Where the log starts, for a checkpoint; -1 where its first segment says that."""
        state = self._state
        has_own = state.is_tiered or state.log_start_offset > state.segments.first.base_offset
        return state.log_start_offset if has_own else -1

    @property
    def local_log_start_offset(self) -> int:
        """Where what can be read here starts; what is before it, from the log start offset on, is in remote storage."""
        return self._state.local_start_offset

    @property
    def is_tiered(self) -> bool:
        """Its segments are copied to remote storage (KIP-405)."""
        return self._state.is_tiered

    @property
    def remote_end_offset(self) -> int:
        """Up to where the log is known to be in remote storage; 0 for nothing."""
        return self._state.remote_end_offset

    @property
    def last_stable_offset(self) -> int:
        return self._state.last_stable_offset

    @property
    def high_watermark(self) -> int:
        return self._state.high_watermark

    @property
    def log_end_offset(self) -> int:
        """Where it ends for all but those who append."""
        return self._state.log_end_offset

    @property
    def append_end_offset(self) -> int:
        """Where the next record goes."""
        return self._state.log_end_offset

    @property
    def recovery_point(self) -> int:
        return self._state.recovery_point

    @property
    def is_offline(self) -> bool:
        """The log directory has failed."""
        return self._state.is_offline

    @property
    def is_closed(self) -> bool:
        """The log is deleted, its directory has failed, or the broker stops."""
        return self._state.is_closed

    @property
    def is_truncating(self) -> bool:
        """The producers' state is being rebuilt; nothing can be appended."""
        return self._state.is_truncating

    @property
    def must_sync(self) -> bool:
        """Whether something must be durable before appends are acknowledged."""
        return self._flusher.must_sync

    @property
    def last_flush_ms(self) -> int:
        """When the last flush ended."""
        return self._flusher.last_flush_ms

    @property
    def size_bytes(self) -> int:
        """Of all batches, also those below the log start offset that are in a segment with later ones."""
        return self.segments.size_bytes

    @property
    def segment_count(self) -> int:
        return len(self.segments)

    def reconfigure(self, config: LogConfig) -> None:
        """Takes over a topic's new configs, at once."""
        self._state.reconfigure(config)

    def assign_topic_id(self, topic_id: Uuid) -> None:
        """Ties the log to its topic (KIP-516). Raises ValueError where it belongs to another."""
        state = self._state
        if state.topic_id is not None and state.topic_id != topic_id:
            raise ValueError(f"{self!r} belongs to topic id {state.topic_id} and not to {topic_id}")
        if state.topic_id is None:
            state.topic_id = topic_id
            self._flusher.topic_id_assigned()

    # Epochs.

    def begin_epoch(self, leader_epoch: int, start_offset: int) -> None:
        """Says that this replica leads, in this epoch, from this offset on."""
        if leader_epoch > self.leader_epochs.latest_epoch:
            self._state.assign_epoch(leader_epoch, start_offset)

    @property
    def latest_epoch(self) -> int | None:
        """The epoch of the last record, or the one begun since."""
        epoch = self.leader_epochs.latest_epoch
        return None if epoch == NO_EPOCH else epoch

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEnd:
        """Where an epoch ends in this log; (-1, -1) where that is not known."""
        return self.leader_epochs.end_offset_for(leader_epoch, self._state.log_end_offset)

    # Reading.

    def read(self, offset: int, bytes_max: int, isolation: ReadIsolation, *, has_minimum: bool) -> LogRead:
        """Where the batches from `offset` on lie, as far as this reader may see.

        `has_minimum` lets the first batch be larger than `bytes_max`. Raises KafkaError: OFFSET_OUT_OF_RANGE outside of
        the log, OFFSET_MOVED_TO_TIERED_STORAGE before the local log start offset, KAFKA_STORAGE_ERROR where the
        directory has failed, CORRUPT_MESSAGE where the files are damaged.
        """
        state = self._state
        if state.is_closed or not state.local_start_offset <= offset <= state.log_end_offset:
            self._check_readable(offset)
        try:
            return plan_log_read(state, state.log_end_offset, offset, bytes_max, isolation, has_minimum)
        except OSError as error:
            raise state.storage_failed(error) from error
        except (RecordsError, CorruptIndexError) as error:
            raise self._damaged(error) from error

    def bytes_from(self, offset: int, isolation: ReadIsolation) -> int:
        """How many bytes a read from `offset` could give now; raises as `read`."""
        self._check_readable(offset)
        try:
            return available_bytes(self._state, self.log_end_offset, offset, isolation)
        except OSError as error:
            raise self._state.storage_failed(error) from error
        except (RecordsError, CorruptIndexError) as error:
            raise self._damaged(error) from error

    async def list_offset(self, timestamp_ms: int) -> ListedOffset | None:
        """The offset for a timestamp, or for one of the numbers that ListOffsets has for places (-2 to -5).

        None where there is no such record. Only a look-up by time and that of the largest timestamp suspend.
        """
        self._state.check_online()
        try:
            return await list_offset(self._state, self._services.host, timestamp_ms)
        except OSError as error:
            raise self._state.storage_failed(error) from error
        except (RecordsError, CorruptIndexError) as error:
            raise self._damaged(error) from error

    def active_producers(self) -> list[ProducerEntry]:
        """For DescribeProducers."""
        return list(self._state.producers)

    def _check_readable(self, offset: int) -> None:
        state = self._state
        state.check_online()
        if not state.log_start_offset <= offset <= state.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.partition.topic}-{self.partition.partition} is not between"
                f" {state.log_start_offset} and {state.log_end_offset}",
            )
        if offset < state.local_start_offset:
            raise KafkaError(
                ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE,
                f"offset {offset} of {self.partition.topic}-{self.partition.partition} is in remote storage: the local"
                f" log starts at {state.local_start_offset}",
            )

    def _damaged(self, error: Exception) -> KafkaError:
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{self!r} is damaged: {error}")

    # The start of the log.

    def delete_records_to(self, offset: int) -> int:
        """Deletes the records before `offset` (-1: before the high watermark); returns where the log starts now.

        Invariant: only what is committed is deleted by request. Raises KafkaError with OFFSET_OUT_OF_RANGE for what is
        not, and POLICY_VIOLATION for a topic that is only compacted.
        """
        state = self._state
        state.check_online()
        if not state.config.is_deleted:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"records of {self.partition.topic} cannot be deleted: its cleanup.policy is"
                f" {','.join(state.config.cleanup_policy)}",
            )
        wanted = state.high_watermark if offset == -1 else offset
        if not 0 <= wanted <= state.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"records before {offset} cannot be deleted: the high watermark is {state.high_watermark}",
            )
        self.increase_log_start_offset(wanted, "client delete records request")
        return state.log_start_offset

    def increase_log_start_offset(self, offset: int, reason: str) -> bool:
        """Moves the start of the log forward; the segments before it go with the next retention. True where it moved.

        Raises KafkaError with OFFSET_OUT_OF_RANGE above the high watermark.
        """
        state = self._state
        if offset <= state.log_start_offset:
            return False
        if offset > state.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"the log cannot start at {offset}: the high watermark is {state.high_watermark}",
            )
        state.log_start_offset = offset
        state.settle_local_start()
        state.epochs_changed |= state.leader_epochs.truncate_from_start(offset)
        state.producers.log_start_moved(offset)
        state.committed_more()
        self._services.logger.info("%r: incremented log start offset to %d due to %s", self, offset, reason)
        return True

    def delete_first_segments(self, count: int, reason: str) -> int:
        """Retention: gives up the oldest segments; their files go later. Returns how many went.

        Raises ValueError where not all of them lie below the high watermark. Where that is every segment, a new one is
        begun first. Raises KafkaError when the directory fails.
        """
        if not count:
            return 0
        state, segments = self._state, self.segments
        doomed = list(segments)[:count]
        following = segments.after(doomed[-1])
        end = state.log_end_offset if following is None else following.base_offset
        if end > state.high_watermark:
            raise ValueError(f"segments up to {end} are not all below the high watermark {state.high_watermark}")
        try:
            if following is None:
                self._local_log.roll(state.log_end_offset)
            removed = segments.remove_first(count)
            self._local_log.give_up(removed)
        except OSError as error:
            raise state.storage_failed(error) from error
        self._services.logger.info(
            "%r: deleting segments %s due to %s", self, [each.base_offset for each in removed], reason
        )
        state.settle_local_start()
        if not state.is_tiered:
            self.increase_log_start_offset(segments.first.base_offset, "segment deletion")
        return len(removed)

    # Remote storage (KIP-405).

    def copied_to(self, end_offset: int) -> None:
        """Takes note of up to where the log is in remote storage, from its local start on; retention may delete that
        much here."""
        self._state.remote_end_offset = min(end_offset, self._state.log_end_offset)

    def producer_snapshot_path(self, offset: int) -> str:
        """Where the state of producers up to an offset is kept, if it is."""
        return snapshot_path(self.directory, offset)

    def last_producer_snapshots(self, offset: int, count: int) -> list[int]:
        """The offsets of the last snapshots of producers that go no further than `offset`, the latest first. A crash
        may have taken one, or torn it."""
        return self._local_log.last_snapshots(offset, count)

    async def begin_behind_remote(
        self,
        offset: int,
        log_start_offset: int,
        epochs: Sequence[EpochEntry],
        producers: Sequence[ProducerSnapshotEntry],
        is_still_due: Callable[[], bool] | None = None,
    ) -> bool:
        """Drops everything and goes on at `offset`, with the epochs and the producers of what is in remote storage
        before it; False, and nothing is dropped, where it is not due any more. Durable when this returns.

        Raises KafkaError when the directory fails.
        """
        state = self._state
        was_done = await self._truncation.begin_behind_remote(offset, log_start_offset, epochs, producers, is_still_due)
        if was_done:
            state.remote_end_offset = max(state.remote_end_offset, offset)
            await self.make_ready()
        return was_done

    # Compaction.

    @property
    def first_dirty_offset(self) -> int:
        """Up to where the log is compacted."""
        return self._state.first_dirty_offset

    @property
    def truncations(self) -> int:
        """How many were begun so far: what was planned before one does not hold after it."""
        return self._state.truncations

    def compacted_to(self, offset: int) -> None:
        """Takes note that the log is compacted up to there; at most to the recovery point."""
        self._state.first_dirty_offset = min(offset, self._state.recovery_point)

    async def replace_segments(self, replaced: list[Segment], truncations: int) -> bool:
        """Puts what the cleaner has made of these segments, in files with the ending `.cleaned`, in their place;
        durable when this returns. False, and they stay, where the log has changed since it had so many `truncations`.

        Raises KafkaError when the directory fails.
        """
        try:
            return await asyncio.shield(self._work.start(self._replacement.replace(replaced, truncations)))
        except OSError as error:
            raise self._state.storage_failed(error) from error

    # The end of the log.

    async def flush(self, up_to: int | None = None) -> None:
        """Makes durable what lies below `up_to` (all of it where that is None), and moves the recovery point there.

        Raises KafkaError when the disk fails. The invariants are those of `LogFlusher.flush`.
        """
        await self._flusher.flush(up_to)

    async def flush_complete(self, end_offset: int) -> None:
        """See `LocalLog.flush_complete`."""
        await self._local_log.flush_complete(end_offset)

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
        return await self._truncation.truncate_to(offset, is_still_due)

    async def truncate_fully_and_start_at(
        self, offset: int, log_start_offset: int | None = None, is_still_due: Callable[[], bool] | None = None
    ) -> None:
        """Drops everything; the log goes on at `offset`, and starts there or at `log_start_offset`. As `truncate_to`
        otherwise."""
        await self._truncation.truncate_fully_and_start_at(offset, log_start_offset, is_still_due)

    # Ending.

    async def close(self) -> None:
        """Completes the log for a clean stop: everything synced, the producers' state kept. Nobody appends any more.

        Raises KafkaError when the disk fails.
        """
        state = self._state
        state.check_online()
        await self._work.finish()
        try:
            await self._flusher.complete()
            await self._local_log.complete_snapshots()
        except OSError as error:
            raise state.storage_failed(error) from error
        self.written.finish(None)
        state.is_closed = True
        state.refusal = ErrorCode.NOT_LEADER_OR_FOLLOWER
        self._local_log.close()

    def detach(self, directory: str) -> None:
        """Moves the directory, which marks it as deleted, and closes everything in it. Raises OSError."""
        self._local_log.move(directory)
        self._end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.let_go()

    def take_place_of(self, current: PartitionLog, directory: str, durable: asyncio.Future[None]) -> None:
        """Gives the directory another name, and takes over from `current`, which has the same records, what is no
        matter of records: the epoch that was begun at its end, and the high watermark. What is appended from now on
        counts as written when `durable` is done. Nothing may go on off the loop, for that knows the old name. Raises
        OSError.
        """
        self._local_log.move(directory)
        self._flusher.hold_until(durable)
        state = self._state
        for entry in current.leader_epochs.entries:
            if entry.epoch > self.leader_epochs.latest_epoch:
                state.assign_epoch(entry.epoch, entry.start_offset)
        state.update_high_watermark(current.high_watermark)
        self.compacted_to(current.first_dirty_offset)

    async def make_ready(self) -> None:
        """Makes durable what the log has now, its topic's id too, and waits for its work off the loop. Raises
        KafkaError when the disk fails."""
        await self._flusher.prepare()
        await self.flush()
        await self._work.finish()

    async def wait_written(self) -> None:
        """Returns when the log has nothing unwritten. Raises KafkaError when the disk fails."""

    def write_pending(self) -> None:
        """Brings everything that was appended to the file. Raises KafkaError when the disk fails."""
        error = self._flusher.write_pending()
        if error is not None:
            raise error

    @property
    def is_quiet(self) -> bool:
        """Whether nothing goes on, here or off the loop, and nobody waits for an append to count as written."""
        state = self._state
        return not (
            state.is_closed
            or state.is_truncating
            or state.coming_truncations
            or self.written.is_waited_for
            or self.written.is_syncing
        )

    @property
    def is_settled(self) -> bool:
        """Whether it is quiet, and its directory may get another name."""
        return self.is_quiet and self._flusher.is_settled and not self._work.tasks()

    def take_least_end(self) -> int:
        """The least end that the log has had since this was asked for the last time, by truncations; NO_TRUNCATION
        where there was none. For the one who copies it.
        """
        state = self._state
        least, state.least_end_offset = state.least_end_offset, NO_TRUNCATION
        return least

    @property
    def was_truncated(self) -> bool:
        """Whether `take_least_end` has something to tell."""
        return self._state.least_end_offset != NO_TRUNCATION

    def check_online(self) -> None:
        """Raises KafkaError where the log has ended."""
        self._state.check_online()

    def start_arrival(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs in the background what is left to do after `take_place_of`; who closes the log waits for it."""
        self._arrival = self._work.start(work)

    async def wait_arrived(self) -> None:
        """Returns when nothing is left to do of that, however it has ended."""
        if self._arrival is not None and not self._arrival.done():
            await asyncio.wait([self._arrival])

    def keep_apart_from(self, ended: asyncio.Future[Any]) -> None:
        """For a log in a directory of the same name as one that was just taken away: what that one's last work off the
        loop may have written here is removed when it has `ended`.
        """
        self._work.start(self._local_log.remove_foreign(ended))

    def background_work(self) -> tuple[asyncio.Task[Any], ...]:
        """What this log does off the loop now."""
        return self._work.tasks()

    def directory_held(self) -> None:
        """The log directory does not answer, or answers again."""
        self._state.settle_refusal()

    def go_offline(self) -> None:
        """The log directory has failed: nothing is read or written any more, and who waits is told. `let_go` is to
        follow.
        """
        self._state.is_offline = True
        self._end(ErrorCode.KAFKA_STORAGE_ERROR)

    def abandon(self) -> None:
        """Closes everything and writes nothing, as a crash does."""
        self._work.cancel()
        self._end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.let_go()

    def let_go(self) -> None:
        """Closes the descriptors of a log that has ended."""
        self._local_log.let_go()

    def _end(self, refusal: ErrorCode) -> None:
        state = self._state
        state.is_closed = True
        state.refusal, self.written.refused = refusal, state.refused
        if self.written.is_waited_for:
            self.written.finish(state.refused())
