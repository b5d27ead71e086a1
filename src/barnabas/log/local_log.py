"""A partition's log as files: segments that roll, are synced, given up and closed. Apache Kafka calls it LocalLog.

What the records in it mean, to producers, followers and consumers, is the matter of `partition_log`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from barnabas.kernel.host import OffloadKind
from barnabas.kernel.ids import Uuid
from barnabas.log.appending import AppendError, storage_error
from barnabas.log.directory_files import write_partition_metadata
from barnabas.log.flushing import FlushWork, perform_flush
from barnabas.log.leader_epochs import LeaderEpochCache
from barnabas.log.loaded_log import LoadedLog
from barnabas.log.log_config import LogConfig
from barnabas.log.log_directory import LogDirectory
from barnabas.log.log_services import LogServices
from barnabas.log.names import LEADER_EPOCH_CHECKPOINT
from barnabas.log.producer_snapshots import remove_foreign, remove_snapshots, write_snapshot
from barnabas.log.producer_state import ProducerState
from barnabas.log.segment import Segment
from barnabas.log.write_queue import Written
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition


class LocalLog:
    """The half of a `PartitionLog` that faces the disk."""

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
        """The log is deleted, its directory has failed, or the broker stops."""
        self.is_truncating = False
        """The producers' state is being rebuilt; nothing can be appended."""
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
        self._coming_truncations = 0
        self._last_flush: asyncio.Task[None] | None = None
        self._complete_end_offset = loaded.complete_end_offset
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

    def _queue(self) -> None:
        """Sees to it that what was appended gets written, and counts as written no sooner than it may."""
        if self.segments.active.pending_bytes or self.must_sync:
            self._services.write_queue.add(self)

    def _refused(self) -> AppendError:
        code = self._refusal or ErrorCode.UNKNOWN_SERVER_ERROR
        if code is ErrorCode.KAFKA_STORAGE_ERROR:
            return AppendError(code, f"log directory {self.log_directory.path} is offline")
        return AppendError(code, f"{self!r} is {'closed' if self.is_closed else 'being truncated'}")

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
            await self._services.offload(
                OffloadKind.SYNC, write_partition_metadata, self._files, self.directory, self.topic_id
            )
        except OSError as error:
            raise self._storage_failed(error) from error
        self._metadata_is_written = True

    async def flush(self, up_to: int | None = None) -> None:
        """Makes durable what lies below `up_to` (all of it where that is None), and moves the recovery point there.

        Invariants: the recovery point moves only after this sync and those that were begun before it, and not past a
        truncation that came meanwhile or is about to; the epochs that begin below it are in their checkpoint before it
        moves, since a recovery reads only what is above.
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
        flush = self._last_flush = self._start(self._flush_after(self._last_flush, work, pinned))
        try:
            await asyncio.shield(flush)
        except OSError as error:
            raise self._storage_failed(error) from error
        if self.is_offline:  # the one before has failed
            self._check_online()
        self._services.flush_timing.update(round((self._services.host.loop.time() - started) * 1000))
        self.last_flush_ms = self._time_ms()
        if truncations == self._truncations and not self._coming_truncations and end_offset > self.recovery_point:
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

    async def _flush_after(self, earlier: asyncio.Task[None] | None, work: FlushWork, pinned: list[Segment]) -> None:
        """Ends after the flush before it, which has taken what this one did not find any more, and which may have had
        to wait longer for a place off the loop.
        """
        await self._perform_flush(work, pinned)
        if earlier is not None and not earlier.done():
            await asyncio.wait([earlier])

    async def _perform_flush(self, work: FlushWork, pinned: list[Segment]) -> None:
        try:
            await self._services.offload(OffloadKind.SYNC, perform_flush, self._files, work, order=self.directory)
        finally:
            for segment in pinned:
                segment.unpin()

    async def _write_epochs(self) -> None:
        """Brings the checkpoint of the epochs up to date, durably."""
        epochs = self.leader_epochs.entries
        self._epochs_changed = False
        work = FlushWork((), (), f"{self.directory}/{LEADER_EPOCH_CHECKPOINT}", epochs)
        await self._perform_flush(work, [])

    async def _offload_disk(self, function: Any, *arguments: Any) -> Any:
        """Runs disk work of this log off the loop, one after another."""
        return await self._services.offload(OffloadKind.DISK, function, *arguments, order=self.directory)

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
            self._storage_failed(error)

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
            if self.log_end_offset != self._complete_end_offset:
                self._unsynced.append(self.segments.active)  # with its indexes: it is loaded as it is
            await self.flush()
            has_producers = bool(self._snapshots) or self.producers.changed_end_offset > 0
            # What is known of producers while a truncation has not succeeded is not that of this log.
            if has_producers and self.log_end_offset not in self._snapshots and not self.is_truncating:
                self._take_snapshot(self.log_end_offset)
                await asyncio.gather(*self._tasks)
        except OSError as error:
            raise self._storage_failed(error) from error
        self.written.finish(None)
        self.is_closed = True
        self._refusal = ErrorCode.NOT_LEADER_OR_FOLLOWER
        for segment in self.segments:
            segment.close()

    def detach(self, directory: str) -> None:
        """Moves the directory, which marks it as deleted, and closes everything in it. Raises OSError."""
        self._files.rename(self.directory, directory)
        self.directory = directory
        self._end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.let_go()

    def keep_apart_from(self, ended: asyncio.Future[Any]) -> None:
        """For a log in a directory of the same name as one that was just taken away: what that one's last work off the
        loop may have written here is removed when it has `ended`.
        """
        self._start(self._remove_foreign(ended))

    async def _remove_foreign(self, ended: asyncio.Future[Any]) -> None:
        await asyncio.wait([ended])
        await self._offload_disk(remove_foreign, self._files, self.directory, frozenset(self._snapshots))
        self._epochs_changed = True

    def background_work(self) -> tuple[asyncio.Task[Any], ...]:
        """What this log does off the loop now."""
        return tuple(self._tasks)

    def go_offline(self) -> None:
        """The log directory has failed: nothing is read or written any more, and who waits is told. `let_go` is to
        follow.
        """
        self.is_offline = True
        self._end(ErrorCode.KAFKA_STORAGE_ERROR)

    def abandon(self) -> None:
        """Closes everything and writes nothing, as a crash does."""
        for task in list(self._tasks):
            task.cancel()
        self._end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.let_go()

    def let_go(self) -> None:
        """Closes the descriptors of a log that has ended."""
        for segment in self.segments:
            segment.let_go()

    def _end(self, refusal: ErrorCode) -> None:
        self.is_closed = True
        self._refusal = refusal
        if self.written.callbacks or self.written.covered:
            self.written.finish(self._refused())

    def _check_online(self) -> None:
        if self.is_offline:
            raise storage_error(self.log_directory.path, self.log_directory.error)
        if self.is_closed:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self!r} is closed")

    def _storage_failed(self, error: OSError) -> KafkaError:
        if not self.is_closed:
            self.log_directory.fail(error)
        return storage_error(self.log_directory.path, error)
