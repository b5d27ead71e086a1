"""The log cleaner: so many compactions at a time as `log.cleaner.threads` says, each of the log that needs it most and
in a child process.

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
from barnabas.log.cleaner.compaction import (
    CHUNK_BYTES_MIN,
    DISK_FAILED,
    ENTRY,
    Compaction,
    read_result,
    remove_cleaned,
)
from barnabas.log.cleaner.key_tables import SLOT_BYTES
from barnabas.log.cleaner.plan import CleanableRange, SegmentFacts, cleanable_range
from barnabas.log.directories.log_directory import LogDirectory
from barnabas.log.partition.log_config import LogSettings
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.segments.batch_scan import read_first_timestamp
from barnabas.log.segments.indexes import AbortedTransaction
from barnabas.wire.errors import KafkaError
from barnabas.wire.topics import TopicPartition

INT64_MAX: Final = (1 << 63) - 1
_LOOKED_AT_PER_TURN: Final = 1000
"""Logs, and segments of those that may be compacted."""
_GATHERED_PER_TURN: Final = 2000
_KILL_SIGNAL: Final = 9
_BYTES_PER_SECOND_MIN: Final = 1.0
"""So that what is asked for in a limit of 0 or less ends some day."""
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
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """Of each cleaner, by its number, what runs it."""
        self._is_started = False
        self._children: dict[PartitionLog, ChildProcess] = {}
        self._under_way: set[PartitionLog] = set()
        """Invariant: a log is in the hands of one cleaner."""
        self._reconfigurations = 0
        self._last_run_ms = host.clock.time_ms()
        self._uncleanable: set[PartitionLog] = set()
        self._put_off: set[PartitionLog] = set()
        """Those that have failed in this round."""
        self._deaths: Counter[PartitionLog] = Counter()
        """How often a child of each was killed, in a row."""

    def start(self) -> None:
        """Begins to look for work, after the first `log.cleaner.backoff.ms`."""
        self._is_started = True
        self._start_missing()

    def _start_missing(self) -> None:
        for number in range(self._manager.settings.cleaner_threads):
            if number not in self._tasks:
                self._tasks[number] = self._host.loop.create_task(self._run(number))

    def reconfigure(self, former: LogSettings) -> None:
        """The settings have changed. As in Apache Kafka, what is under way begins anew where a cleaning goes by what
        has changed; in the middle of a replacement it comes to its end."""
        if not self._is_started or _of_cleaners(former) == _of_cleaners(self._manager.settings):
            return
        self._reconfigurations += 1
        self._kill_children()
        self._start_missing()

    def _kill_children(self) -> None:
        for child in self._children.values():
            child.signal(_KILL_SIGNAL)

    def abort_cleaning(self, log: PartitionLog) -> None:
        """A log is taken away: its child finds files by their names, and those of another log may have the same."""
        child = self._children.get(log)
        if child is not None:
            child.signal(_KILL_SIGNAL)

    def cancel(self) -> None:
        """Ends at once; what the child has written goes at the next start."""
        self._is_started = False
        for task in self._tasks.values():
            task.cancel()
        self._kill_children()

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

    async def _run(self, number: int) -> None:
        """Invariant: nothing but `cancel`, and fewer `log.cleaner.threads`, ends this, and every log that needs it gets
        its turn between two waits."""
        while self._is_wanted(number):
            await self._back_off()
            self.begin_round()
            try:
                while self._is_wanted(number) and await self.clean_filthiest():
                    pass
            except HostClosedError:
                pass
            except Exception:
                self._logger.exception("The log cleaner has failed; it goes on after log.cleaner.backoff.ms")
        del self._tasks[number]

    def _is_wanted(self, number: int) -> bool:
        return number < self._manager.settings.cleaner_threads

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
        chosen = self._range(log) if self._is_free(log) and log not in self._under_way else None
        if chosen is None:
            return True
        self._under_way.add(log)
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
        finally:
            self._under_way.discard(log)
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
            if not log.config.is_compacted or not self._is_free(log) or log in self._under_way:
                continue
            looked_at += log.segment_count
            try:
                if log.config.max_compaction_lag_ms < INT64_MAX:
                    await self._learn_ages(log)
                    if not self._is_free(log):
                        continue
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

    async def _learn_ages(self, log: PartitionLog) -> None:
        """Reads the first timestamps of dirty segments that are not known yet."""
        for facts, segment in zip(segment_facts(log), list(log.segments), strict=False):
            if segment.first_timestamp_ms is None and facts.size_bytes and facts.end_offset > log.first_dirty_offset:
                try:
                    found = await self._host.offload(
                        OffloadKind.DISK,
                        read_first_timestamp,
                        self._host.files,
                        segment.path,
                        facts.size_bytes,
                        lane=log.log_directory.path,
                    )
                except (OSError, OffloadFullError) as error:  # retention may have taken it meanwhile
                    self._put_off.add(log)
                    self._logger.info("The age of %r is not known: %s", log, error)
                    return
                segment.learn_first_timestamp(found)

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
        try:
            await log.log_directory.settle()  # the child finds files by their names
        except OSError:
            return  # the directory has failed
        files, directory, truncations = self._host.files, log.directory, log.truncations
        reconfigurations = self._reconfigurations
        segments = {segment.base_offset: segment for segment in log.segments}
        work = await self._compaction(log, chosen)
        argument = []
        for piece in work.encode():
            argument.append(piece)
            await yield_to_loop()
        child = await self._host.spawn(ENTRY, b"".join(argument))
        self._children[log] = child
        try:
            if reconfigurations != self._reconfigurations or log.is_closed:
                child.signal(_KILL_SIGNAL)
            status = await child.wait()
        finally:
            del self._children[log]
        if not self._is_free(log) or log.truncations != truncations or log.directory != directory:
            self._logger.info("Cleaning of %r is given up: the log has changed", log)
            return
        if status:
            await self._host.offload(OffloadKind.DISK, remove_cleaned, files, directory, lane=log.log_directory.path)
            if status < 0 and reconfigurations != self._reconfigurations:
                return  # it was killed for other settings, and begins anew
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
        threads = max(settings.cleaner_threads, 1)
        slots = max(settings.cleaner_dedupe_buffer_size // threads // SLOT_BYTES, 1)
        entries_max = min(int(slots * settings.cleaner_io_buffer_load_factor), slots)
        segments = tuple(facts for facts in segment_facts(log) if facts.end_offset <= chosen.end_offset)
        aborted: list[AbortedTransaction] = []
        for segment in list(log.segments):
            aborted += segment.transaction_index
            await yield_to_loop()
        producers: dict[int, LastBatch] = {}
        for number, entry in enumerate(list(log.producers), start=1):
            last_offset = entry.last_offset
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
            # Half of it is for what is written.
            chunk_bytes=max(settings.cleaner_io_buffer_size // threads // 2, CHUNK_BYTES_MIN),
            bytes_per_second=max(settings.cleaner_io_max_bytes_per_second / threads, _BYTES_PER_SECOND_MIN),
        )


def _of_cleaners(settings: LogSettings) -> tuple[float, ...]:
    """What a cleaning goes by; Apache Kafka's LogCleaner.ReconfigurableConfigs."""
    return (
        settings.cleaner_threads,
        settings.cleaner_dedupe_buffer_size,
        settings.cleaner_io_buffer_load_factor,
        settings.cleaner_io_buffer_size,
        settings.cleaner_io_max_bytes_per_second,
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
            first_timestamp_ms=segment.first_timestamp_ms or 0,
        )
        for segment, following in itertools.pairwise(segments)
    ]
