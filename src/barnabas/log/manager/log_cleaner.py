"""The log cleaner: one compaction after another, of the log that needs it most, in a child process.

The loop chooses and swaps; whatever grows with a log is read and written by the child.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Mapping
from typing import Final, Protocol

from barnabas.kernel.host import ChildLimitError, ChildProcess, Host, HostClosedError, OffloadFullError, OffloadKind
from barnabas.kernel.turns import yield_to_loop
from barnabas.log.cleaner.batch_filter import LastBatch
from barnabas.log.cleaner.compaction import DISK_FAILED, ENTRY, Compaction, read_result, remove_cleaned
from barnabas.log.cleaner.offset_map import SLOT_BYTES
from barnabas.log.cleaner.plan import CleanableRange, SegmentFacts, cleanable_range
from barnabas.log.directories.log_directory import LogDirectory
from barnabas.log.partition.log_config import LogSettings
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.segments.indexes import AbortedTransaction
from barnabas.wire.errors import KafkaError
from barnabas.wire.topics import TopicPartition

_LOOKED_AT_PER_TURN: Final = 1000
"""Logs, and segments of those that may be compacted."""
_GATHERED_PER_TURN: Final = 2000
_KILL_SIGNAL: Final = 9
_DEATHS_MAX: Final = 4


class CleanedLogs(Protocol):
    """What the cleaner needs of the `LogManager`."""

    @property
    def settings(self) -> LogSettings: ...

    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]: ...

    @property
    def future_logs(self) -> Mapping[TopicPartition, PartitionLog]: ...

    @property
    def directories(self) -> tuple[LogDirectory, ...]: ...

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
        self._last_run_ms = host.clock.time_ms()
        self._uncleanable: set[PartitionLog] = set()
        self._put_off: set[PartitionLog] = set()
        """Those that have failed in this round."""
        self._deaths: Counter[PartitionLog] = Counter()
        """How often a child of each was killed, in a row."""

    def start(self) -> None:
        """Begins to look for work, after the first `log.cleaner.backoff.ms`."""
        self._task = self._host.loop.create_task(self._run())

    def cancel(self) -> None:
        """Ends at once; what the child has written goes at the next start."""
        if self._task is not None:
            self._task.cancel()
        if self._child is not None:
            self._child.signal(_KILL_SIGNAL)

    # What gauges tell.

    @property
    def uncleanable(self) -> list[PartitionLog]:
        """Logs that are not compacted before the broker is started again."""
        return [log for log in self._uncleanable if not log.is_closed]

    @property
    def ms_since_last_run(self) -> int:
        """How long ago it looked for work; since the start where it has not yet."""
        return self._host.clock.time_ms() - self._last_run_ms

    # Running.

    async def _run(self) -> None:
        """Invariant: nothing but `cancel` ends this, and every log that needs it gets its turn between two waits."""
        while True:
            await self._back_off()
            self.begin_round()
            try:
                while await self.clean_filthiest():
                    pass
            except HostClosedError:
                pass
            except Exception:
                self._logger.exception("The log cleaner has failed; it goes on after log.cleaner.backoff.ms")

    def begin_round(self) -> None:
        """Has logs tried again that have failed."""
        self._put_off.clear()

    async def _back_off(self) -> None:
        loop = self._host.loop
        is_over: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(max(self._manager.settings.cleaner_backoff_ms, 1) / 1000, is_over.set_result, None)
        try:
            await is_over
        finally:
            timer.cancel()

    async def clean_filthiest(self) -> bool:
        """Compacts the log that needs it most, or puts it off to the next round where it cannot; False where none needs
        it. An OSError of its disk takes the log directory offline, as in Apache Kafka; what cannot be compacted for
        another reason is uncleanable until the next start."""
        self._last_run_ms = self._host.clock.time_ms()
        found = await self._filthiest()
        if found is None:
            return False
        log, _ = found
        # Others were looked at since; and what was stable then may have been cut off, and not be stable now.
        chosen = self._range(log) if self._is_free(log) else None
        if chosen is None:
            return True
        try:
            await self._clean(log, chosen)
        except (OSError, KafkaError, ChildLimitError, OffloadFullError) as error:
            self._put_off.add(log)
            self._logger.warning("Cleaning of %r did not come to an end: %s", log, error)
        except HostClosedError:
            raise
        except Exception:
            self._logger.exception("Unexpected error when cleaning %r", log)
            self._give_up(log, "see the error before this")
        return True

    def _give_up(self, log: PartitionLog, reason: str) -> None:
        if not log.is_closed:
            self._uncleanable.add(log)
            self._logger.error("%r is uncleanable until the broker is started again: %s", log, reason)

    def _child_failed(self, log: PartitionLog, status: int) -> None:
        """The child ended with an error of the disk, by a signal (the kernel's, where memory is short), or because of
        what is in the log, which has not changed meanwhile."""
        if status >= DISK_FAILED:
            number = status - DISK_FAILED
            log.log_directory.fail(OSError(number, os.strerror(number), log.directory))
        elif status < 0 and self._deaths[log] < _DEATHS_MAX:
            self._deaths[log] += 1
            self._put_off.add(log)
            self._logger.warning("Cleaning of %r was ended by signal %d", log, -status)
        else:
            self._give_up(log, f"the child process ended with status {status}, and has said why")

    async def _filthiest(self) -> tuple[PartitionLog, CleanableRange] | None:
        best: tuple[PartitionLog, CleanableRange] | None = None
        for failed in [log for log in {*self._uncleanable, *self._put_off, *self._deaths} if log.is_closed]:
            self._uncleanable.discard(failed)
            self._put_off.discard(failed)
            del self._deaths[failed]
        looked_at = 0
        for log in list(self._manager.logs.values()):
            if looked_at >= _LOOKED_AT_PER_TURN:
                await yield_to_loop()
                looked_at = 0
            looked_at += 1
            if not log.config.is_compacted or not self._is_free(log):
                continue
            looked_at += log.segment_count
            try:
                chosen = self._range(log)
            except Exception:
                self._logger.exception("Unexpected error when looking at %r", log)
                self._give_up(log, "see the error before this")
                continue
            if chosen is not None and (best is None or chosen.ratio > best[1].ratio):
                best = log, chosen
        return best

    def _is_free(self, log: PartitionLog) -> bool:
        """A log that is copied to another directory stays as it is: the copy has what was there before."""
        return not (
            log.is_closed
            or log.is_truncating
            or log.log_directory.is_held
            or log in self._uncleanable
            or log in self._put_off
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
        segments = {segment.base_offset: segment for segment in log.segments}
        work = await self._compaction(log, chosen)
        argument = []
        for piece in work.encode():
            argument.append(piece)
            await yield_to_loop()
        child = self._child = await self._host.spawn(ENTRY, b"".join(argument))
        try:
            status = await child.wait()
        finally:
            self._child = None
        if not self._is_free(log) or log.truncations != truncations or log.directory != directory:
            self._logger.info("Cleaning of %r is given up: the log has changed", log)
            return
        if status:
            await self._host.offload(OffloadKind.DISK, remove_cleaned, files, directory, lane=log.log_directory.path)
            if list(log.segments)[: len(work.segments)] == list(segments.values())[: len(work.segments)]:
                self._child_failed(log, status)
            return
        self._deaths.pop(log, None)
        result = await self._host.offload(OffloadKind.DISK, read_result, files, directory, lane=log.log_directory.path)
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

    async def _compaction(self, log: PartitionLog, chosen: CleanableRange) -> Compaction:
        """What the child is to do, gathered in pieces: what changes meanwhile lies behind what is compacted."""
        settings = self._manager.settings
        slots = settings.cleaner_dedupe_buffer_size // SLOT_BYTES
        entries_max = min(int(slots * settings.cleaner_io_buffer_load_factor), slots)
        segments = tuple(facts for facts in segment_facts(log) if facts.end_offset <= chosen.end_offset)
        aborted: list[AbortedTransaction] = []
        for segment in list(log.segments):
            aborted += segment.transaction_index
            await yield_to_loop()
        producers: dict[int, LastBatch] = {}
        for number, entry in enumerate(list(log.producers), start=1):
            last_offset = entry.batches[-1].last_offset if entry.batches else None
            if last_offset is None or last_offset < chosen.end_offset:
                producers[entry.producer_id] = LastBatch(last_offset, entry.epoch)
            if not number % _GATHERED_PER_TURN:
                await yield_to_loop()
        return Compaction(
            directory=log.directory,
            segments=segments,
            first_dirty_offset=chosen.first_dirty_offset,
            end_offset=chosen.end_offset,
            aborted=tuple(aborted),
            producers=producers,
            config=log.config.segment_config,
            now_ms=self._host.clock.time_ms(),
            delete_retention_ms=log.config.delete_retention_ms,
            entries_max=max(entries_max, 1),
            slots=slots,
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
