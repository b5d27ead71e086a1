"""A log of a directory the files of which are changed in order, off the loop: no turn of the loop waits for its disk.

What is not written is to it what is not synced is to others. Offsets are given, and the states of epochs and producers
go on, when something is appended; but it is there for nobody before it is in the file. So the log ends, for all but
those who append, where it is written: there end reads, followers' fetches, the high watermark and the answers to
producers. Whoever takes note of where the next record goes asks for `append_end_offset`.
"""

from __future__ import annotations

import asyncio
import functools

from barnabas.log.directories.log_directory import LogDirectory
from barnabas.log.directories.queued_files import QueuedFiles
from barnabas.log.partition.loaded_log import LoadedLog
from barnabas.log.partition.log_config import LogConfig
from barnabas.log.partition.log_flusher import LogFlusher
from barnabas.log.partition.log_services import LogServices
from barnabas.log.partition.log_state import LogState
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.partition.read_plans import LogRead, ReadIsolation, plan_log_read
from barnabas.log.partition.timestamp_lookup import ListedOffset, is_searched
from barnabas.log.segments.index_file import CorruptIndexError
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.record_errors import RecordsError
from barnabas.wire.sentinels import NO_OFFSET
from barnabas.wire.topics import TopicPartition


def make_log(
    services: LogServices, directory: LogDirectory, partition: TopicPartition, config: LogConfig, loaded: LoadedLog
) -> PartitionLog:
    """The log in a directory, of the kind that the directory has."""
    kind = PartitionLog if directory.queue is None else QueuedPartitionLog
    return kind(services, directory, partition, config, loaded)


class QueuedLogState(LogState):
    """Knows besides where the log is written. Invariant: high_watermark <= written_end_offset <= log_end_offset."""

    __slots__ = ("_awaited_high_watermark", "written_end_offset")

    def __init__(
        self,
        log_directory: LogDirectory,
        partition: TopicPartition,
        config: LogConfig,
        loaded: LoadedLog,
        *,
        has_remote_storage: bool = False,
    ) -> None:
        super().__init__(log_directory, partition, config, loaded, has_remote_storage=has_remote_storage)
        self.written_end_offset = self.log_end_offset
        self._awaited_high_watermark = NO_OFFSET

    def update_high_watermark(self, offset: int) -> int:
        """As of a `LogState`. What is said of records that are not written comes to count when they are.

        Invariant: of nothing beyond the present end. What takes those offsets later, from another leader or, once this
        broker leads, from producers, is committed by nobody yet.
        """
        self._awaited_high_watermark = min(offset, self.log_end_offset)
        return super().update_high_watermark(min(offset, self.written_end_offset))

    def increase_high_watermark(self, offset: int) -> bool:
        return super().increase_high_watermark(min(offset, self.written_end_offset))

    def written_to(self, end_offset: int) -> None:
        """What lies before is in the files."""
        self.written_end_offset = end_offset
        if self._awaited_high_watermark > self.high_watermark:
            self.increase_high_watermark(self._awaited_high_watermark)

    def end_went_back(self, end_offset: int) -> None:
        self.written_end_offset = min(self.written_end_offset, end_offset)
        self._awaited_high_watermark = NO_OFFSET
        if self.high_watermark > self.written_end_offset:  # begun anew further on
            self.written_end_offset = end_offset

    def all_written(self) -> None:
        self.written_end_offset = self.log_end_offset


class QueuedLogFlusher(LogFlusher):
    """Has appends count as written when they are, by the same ways on which others have them count when synced."""

    __slots__ = ()

    _state: QueuedLogState

    def queue(self) -> None:
        self._state.log_directory.has_appends = True
        self._services.write_queue.add(self)

    def write_pending(self) -> KafkaError | None:
        """As of a `LogFlusher`. What is written is there for others, also while what came before is synced."""
        state = self._state
        error = super().write_pending()
        if error is None and state.written_end_offset < state.log_end_offset:
            written = _queue_of(state).when_done()
            written.add_done_callback(functools.partial(self._written, state.log_end_offset, state.truncations))
        return error

    @property
    def must_sync(self) -> bool:
        return self._state.written_end_offset < self._state.log_end_offset or super().must_sync

    def start_sync(self) -> asyncio.Future[KafkaError | None]:
        is_to_be_synced = super().must_sync
        written = _queue_of(self._state).when_done()
        if is_to_be_synced:
            return self._work.start(self._sync_what_is_written(written))
        ended: asyncio.Future[KafkaError | None] = self._services.host.loop.create_future()
        written.add_done_callback(functools.partial(self._ended, ended))
        return ended

    async def _sync_what_is_written(self, written: asyncio.Future[None]) -> KafkaError | None:
        """Not every sync is of the records: one may be of the directory's name, or of nothing any more."""
        error = await self._sync()
        if error is None:
            try:
                await written
            except OSError as failure:
                error = self._state.storage_failed(failure)
        return error

    def _written(self, end_offset: int, truncations: int, written: asyncio.Future[None]) -> None:
        state = self._state
        if written.cancelled() or written.exception() is not None or state.is_closed:
            return
        if truncations == state.truncations and end_offset > state.written_end_offset:
            state.written_to(end_offset)
            self._services.write_queue.on_written(state.partition)

    def _ended(self, ended: asyncio.Future[KafkaError | None], written: asyncio.Future[None]) -> None:
        """In the same turn: whoever waits is told before the next is done."""
        if ended.cancelled() or written.cancelled():
            return
        error = written.exception()
        ended.set_result(self._state.storage_failed(error) if isinstance(error, OSError) else None)


class QueuedPartitionLog(PartitionLog):
    """A log that ends, for all but those who append, where it is written."""

    _state_type = QueuedLogState
    _flusher_type = QueuedLogFlusher
    _state: QueuedLogState

    def __init__(
        self,
        services: LogServices,
        log_directory: LogDirectory,
        partition: TopicPartition,
        config: LogConfig,
        loaded: LoadedLog,
    ) -> None:
        for segment in loaded.segments:
            segment.use_files(log_directory.loop_files)
        super().__init__(services, log_directory, partition, config, loaded)

    @property
    def log_end_offset(self) -> int:
        return self._state.written_end_offset

    @property
    def has_unwritten(self) -> bool:  # type: ignore[override]
        """As of a `PartitionLog`."""
        return self._state.written_end_offset < self._state.log_end_offset

    def read(self, offset: int, bytes_max: int, isolation: ReadIsolation, *, has_minimum: bool) -> LogRead:
        state = self._state
        if state.is_closed or not state.local_start_offset <= offset <= state.log_end_offset:
            self._check_readable(offset)
        try:
            return plan_log_read(state, state.written_end_offset, offset, bytes_max, isolation, has_minimum)
        except OSError as error:
            raise state.storage_failed(error) from error
        except (RecordsError, CorruptIndexError) as error:
            raise self._damaged(error) from error

    async def list_offset(self, timestamp_ms: int) -> ListedOffset | None:
        self._state.check_online()
        if is_searched(timestamp_ms):
            try:
                await _queue_of(self._state).settle()
            except OSError as error:
                raise self._state.storage_failed(error) from error
        return await super().list_offset(timestamp_ms)

    async def wait_written(self) -> None:
        while self.has_unwritten and not self._state.is_closed:
            told: asyncio.Future[KafkaError | None] = self._services.host.loop.create_future()
            self._services.write_queue.when_written(self, functools.partial(_tell, told))
            if told.done() and told.result() is None:  # nobody goes on with it, as while the host is closing
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{self!r} is not written, and nothing waits to be")
            error = await told
            if error is not None:
                raise error


def _queue_of(state: LogState) -> QueuedFiles:
    queue = state.log_directory.queue
    if queue is None:
        raise TypeError(f"{state!r} is not in a directory with a queue")
    return queue


def _tell(told: asyncio.Future[KafkaError | None], error: KafkaError | None) -> None:
    if not told.done():
        told.set_result(error)
