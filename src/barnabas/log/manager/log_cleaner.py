"""The log cleaner: one compaction after another, of the log that needs it most, in a child process.

The loop chooses and swaps; whatever grows with a log is read and written by the child.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Mapping
from typing import Final, Protocol

from barnabas.kernel.host import ChildLimitError, ChildProcess, Host, HostClosedError, OffloadFullError, OffloadKind
from barnabas.kernel.turns import yield_to_loop
from barnabas.log.cleaner.batch_filter import LastBatch
from barnabas.log.cleaner.compaction import ENTRY, Compaction, read_result, remove_cleaned
from barnabas.log.cleaner.offset_map import ENTRY_BYTES
from barnabas.log.cleaner.plan import CleanableRange, SegmentFacts, cleanable_range
from barnabas.log.directories.log_directory import LogDirectory
from barnabas.log.partition.log_config import LogSettings
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.wire.errors import KafkaError
from barnabas.wire.topics import TopicPartition

_LOOKED_AT_PER_TURN: Final = 100
_KILL_SIGNAL: Final = 9


class CleanedLogs(Protocol):
    """What the cleaner needs of the `LogManager`."""

    @property
    def settings(self) -> LogSettings: ...

    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]: ...

    @property
    def future_logs(self) -> Mapping[TopicPartition, PartitionLog]: ...

    def write_cleaner_offsets(self, directory: LogDirectory) -> Awaitable[None]: ...

    def write_recovery_points(self, directory: LogDirectory) -> Awaitable[None]: ...


class LogCleaner:
    """That of one `LogManager`."""

    def __init__(self, manager: CleanedLogs, host: Host, logger: logging.Logger) -> None:
        self._manager = manager
        self._host = host
        self._logger = logger
        self._task: asyncio.Task[None] | None = None
        self._child: ChildProcess | None = None
        self._uncleanable: set[PartitionLog] = set()

    def start(self) -> None:
        """Begins to look for work, after the first `log.cleaner.backoff.ms`."""
        self._task = self._host.loop.create_task(self._run())

    def cancel(self) -> None:
        """Ends at once; what the child has written goes at the next start."""
        if self._task is not None:
            self._task.cancel()
        if self._child is not None:
            self._child.signal(_KILL_SIGNAL)

    async def _run(self) -> None:
        while True:
            await self._back_off()
            with contextlib.suppress(HostClosedError):
                while await self.clean_filthiest():
                    pass

    async def _back_off(self) -> None:
        loop = self._host.loop
        is_over: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(max(self._manager.settings.cleaner_backoff_ms, 1) / 1000, is_over.set_result, None)
        try:
            await is_over
        finally:
            timer.cancel()

    async def clean_filthiest(self) -> bool:
        """Compacts the log that needs it most; False where none does."""
        found = await self._filthiest()
        if found is None:
            return False
        log, chosen = found
        try:
            await self._clean(log, chosen)
        except (OSError, KafkaError, ChildLimitError, OffloadFullError) as error:
            self._logger.warning("Cleaning of %r did not come to an end: %s", log, error)
            return False
        except ValueError as error:  # more than a child takes as its argument: too many segments or producers
            self._uncleanable.add(log)
            self._logger.error("%r cannot be compacted: %s", log, error)  # noqa: TRY400 - the reason is all there is
        return True

    async def _filthiest(self) -> tuple[PartitionLog, CleanableRange] | None:
        best: tuple[PartitionLog, CleanableRange] | None = None
        self._uncleanable = {log for log in self._uncleanable if not log.is_closed}
        for number, log in enumerate(list(self._manager.logs.values()), start=1):
            if not number % _LOOKED_AT_PER_TURN:
                await yield_to_loop()
            if not log.config.is_compacted or not self._is_free(log):
                continue
            chosen = self._range(log)
            if chosen is not None and (best is None or chosen.ratio > best[1].ratio):
                best = log, chosen
        return best

    def _is_free(self, log: PartitionLog) -> bool:
        """A log that is copied to another directory stays as it is: the copy has what was there before."""
        return not (
            log.is_closed
            or log.is_truncating
            or log in self._uncleanable
            or log.partition in self._manager.future_logs
            or log.segment_count == 1
        )

    def _range(self, log: PartitionLog) -> CleanableRange | None:
        config = log.config
        chosen = cleanable_range(
            segment_facts(log),
            max(log.first_dirty_offset, log.segments.first.base_offset),
            stable_offset=min(log.last_stable_offset, log.recovery_point),
            min_lag_ms=config.min_compaction_lag_ms,
            max_lag_ms=config.max_compaction_lag_ms,
            now_ms=self._host.clock.time_ms(),
        )
        if chosen is None or not (chosen.is_overdue or chosen.ratio > config.min_cleanable_dirty_ratio):
            return None
        return chosen

    async def _clean(self, log: PartitionLog, chosen: CleanableRange) -> None:
        files, directory, truncations = self._host.files, log.directory, log.truncations
        work = self._compaction(log, chosen)
        segments = {segment.base_offset: segment for segment in log.segments}
        child = self._child = await self._host.spawn(ENTRY, work.encode())
        try:
            status = await child.wait()
        finally:
            self._child = None
        if not self._is_free(log) or log.truncations != truncations or log.directory != directory:
            self._logger.info("Cleaning of %r is given up: the log has changed", log)
            return
        if status:
            if list(log.segments)[: len(work.segments)] == list(segments.values())[: len(work.segments)]:
                self._uncleanable.add(log)
                self._logger.error("%r cannot be compacted, and is not until the broker is started again", log)
            await self._host.offload(OffloadKind.DISK, remove_cleaned, files, directory)
            return
        result = await self._host.offload(OffloadKind.DISK, read_result, files, directory)
        # Above the checkpoint a recovery would take the gaps between compacted segments for holes.
        await self._manager.write_recovery_points(log.log_directory)
        for group in result.groups:
            if not self._is_free(log) or not await log.replace_segments(
                [segments[base] for base in group], truncations
            ):
                self._logger.info("Cleaning of %r is given up: the log has changed", log)
                return
            await yield_to_loop()
        # A copy for another log directory may have begun before: to it, this is not compacted.
        if log.truncations != truncations or not self._is_free(log):
            return
        log.compacted_to(result.end_offset)
        await self._manager.write_cleaner_offsets(log.log_directory)
        self._logger.info("Compacted %r up to offset %d, %d bytes are left", log, result.end_offset, log.size_bytes)

    def _compaction(self, log: PartitionLog, chosen: CleanableRange) -> Compaction:
        settings = self._manager.settings
        entries_max = int(settings.cleaner_dedupe_buffer_size * settings.cleaner_io_buffer_load_factor) // ENTRY_BYTES
        return Compaction(
            directory=log.directory,
            segments=tuple(facts for facts in segment_facts(log) if facts.end_offset <= chosen.end_offset),
            first_dirty_offset=chosen.first_dirty_offset,
            end_offset=chosen.end_offset,
            aborted=tuple(entry for segment in log.segments for entry in segment.transaction_index),
            producers={
                entry.producer_id: LastBatch(entry.batches[-1].last_offset if entry.batches else None, entry.epoch)
                for entry in log.producers
            },
            config=log.config.segment_config(),
            now_ms=self._host.clock.time_ms(),
            delete_retention_ms=log.config.delete_retention_ms,
            entries_max=max(entries_max, 1),
        )


def segment_facts(log: PartitionLog) -> list[SegmentFacts]:
    """All but the active segment."""
    segments = list(log.segments)
    return [
        SegmentFacts(
            base_offset=segment.base_offset,
            size_bytes=segment.size_bytes,
            index_bytes=max(segment.offset_index.size_bytes, segment.time_index.size_bytes),
            end_offset=following.base_offset,
            max_timestamp_ms=segment.max_timestamp.timestamp_ms,
        )
        for segment, following in itertools.pairwise(segments)
    ]
