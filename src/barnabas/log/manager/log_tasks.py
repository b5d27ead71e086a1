"""What is done with the logs from time to time, under the names and at the intervals of Kafka's scheduler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final, Protocol

from barnabas.kernel.host import Host
from barnabas.kernel.scheduler import ScheduledTask, Scheduler
from barnabas.kernel.timers import Timers
from barnabas.kernel.turns import yield_to_loop
from barnabas.log.directories.directory_watch import DirectoryWatch
from barnabas.log.directories.log_directory import LogDirectory
from barnabas.log.manager.log_cleaner import CleanedLogs, LogCleaner
from barnabas.log.manager.retention import delete_old_segments, doomed_end_offset
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.segments.segment import Segment
from barnabas.wire.errors import KafkaError

_PERIOD_MAX_MS: Final = 365 * 24 * 60 * 60 * 1000
"""`log.flush.scheduler.interval.ms` is as good as never by default; timers need not know such numbers."""
_PERIOD_MIN_MS: Final = 100
LOOKED_AT_PER_TURN: Final = 1000
"""Logs of which most need nothing done: about a millisecond of them."""
_DELETED_LOGS_PERIOD_MS: Final = 60_000


class TendedLogs(CleanedLogs, Protocol):
    """What the tasks need of the `LogManager`."""

    def checkpoint_recovery_points(self) -> Awaitable[None]: ...

    def checkpoint_log_start_offsets(self) -> Awaitable[None]: ...

    def delete_given_up_logs(self) -> Awaitable[None]: ...


class LogTasks:
    """The tasks of one `LogManager`."""

    def __init__(
        self, manager: TendedLogs, host: Host, timers: Timers, scheduler: Scheduler, logger: logging.Logger
    ) -> None:
        self._manager = manager
        self._host = host
        self._timers = timers
        self._watches: list[DirectoryWatch] = []
        self._scheduler = scheduler
        self._logger = logger
        self._scheduled: list[ScheduledTask] = []
        self._retaining: dict[LogDirectory, asyncio.Task[int]] = {}
        self.cleaner = LogCleaner(manager, host, logger)
        for directory in manager.directories:
            directory.on_full = self.directory_held

    def schedule(self) -> None:
        """Starts all of them."""
        settings, manager = self._manager.settings, self._manager
        delay_ms = settings.initial_task_delay_ms
        for name, function, period_ms in (
            ("kafka-log-retention", self.delete_old_segments, settings.retention_check_interval_ms),
            ("kafka-log-flusher", self.flush_dirty_logs, settings.flush_scheduler_interval_ms),
            (
                "kafka-recovery-point-checkpoint",
                manager.checkpoint_recovery_points,
                settings.flush_offset_checkpoint_interval_ms,
            ),
            (
                "kafka-log-start-offset-checkpoint",
                manager.checkpoint_log_start_offsets,
                settings.flush_start_offset_checkpoint_interval_ms,
            ),
            (
                "kafka-delete-logs",
                manager.delete_given_up_logs,
                min(settings.segment_delete_delay_ms, _DELETED_LOGS_PERIOD_MS),
            ),
            (
                "PeriodicProducerExpirationCheck",
                self.remove_expired_producers,
                settings.producer_id_expiration_check_interval_ms,
            ),
        ):
            self._scheduled.append(
                self._scheduler.schedule(
                    name, function, delay_ms=delay_ms, period_ms=max(_PERIOD_MIN_MS, min(period_ms, _PERIOD_MAX_MS))
                )
            )
        if settings.directory_patience_ms:
            for directory in manager.directories:
                watch = DirectoryWatch(
                    self._host,
                    self._timers,
                    directory,
                    settings.directory_patience_ms,
                    self.directory_held,
                    self._logger,
                )
                self._watches.append(watch)
                watch.start()
        if settings.cleaner_enable:
            self.cleaner.start()

    def cancel(self) -> None:
        """Lets no further run start."""
        for task in self._scheduled:
            task.cancel()
        self._scheduled.clear()
        for watch in self._watches:
            watch.close()
        self.cleaner.cancel()

    def directory_held(self, directory: LogDirectory) -> None:
        """A directory is held or full, or is not any more. Its retention waits for the next run, and nobody for it."""
        if directory.is_held and directory in self._retaining:
            self._retaining[directory].cancel()
        for log in (*self._manager.logs.values(), *self._manager.future_logs.values()):
            if log.log_directory is directory:
                log.directory_held()

    async def delete_old_segments(self) -> None:
        """Retention of every log; gives way to the loop after each. A directory that does not answer keeps that of
        others from nothing."""
        started = self._host.loop.time()
        logs: dict[LogDirectory, list[PartitionLog]] = {}
        for log in self._manager.logs.values():
            logs.setdefault(log.log_directory, []).append(log)
        create_task = self._host.loop.create_task
        running = {directory: create_task(self._retain(directory, each)) for directory, each in logs.items()}
        self._retaining = running
        ended = await asyncio.gather(*running.values(), return_exceptions=True)
        for outcome in ended:
            if isinstance(outcome, Exception):
                raise outcome
        self._logger.debug(
            "Log cleanup completed. %d files deleted in %d ms",
            sum(outcome for outcome in ended if isinstance(outcome, int)),
            round((self._host.loop.time() - started) * 1000),
        )

    async def _retain(self, directory: LogDirectory, logs: list[PartitionLog]) -> int:
        """Retention of one directory's logs: what is to go is synced, the recovery points are in their checkpoint (one
        write for all), and then it goes; see `retention`. Returns how many segments went."""
        points: dict[PartitionLog, tuple[int, int]] = {}

        def modified_ms(segment: Segment) -> int:
            return directory.loop_files.status(segment.path).modified_ms

        for log in logs:
            if self._is_retained(log):
                try:
                    end_offset = doomed_end_offset(log, self._host.clock.time_ms(), modified_ms)
                    if end_offset >= 0:
                        await log.flush_complete(end_offset)
                        points[log] = (0, 0)
                except KafkaError as error:
                    self._logger.warning("Retention of %r failed: %s", log, error)
            await yield_to_loop()
        if not points or directory.is_offline or directory.is_held:
            return 0
        points = {log: (log.recovery_point, log.truncations) for log in points}
        await self._manager.write_recovery_points(directory)
        deleted = 0
        for log, (checkpointed, truncations) in points.items():
            # A truncation may have written a lower one.
            if self._is_retained(log) and log.truncations == truncations:
                try:
                    deleted += delete_old_segments(log, self._host.clock.time_ms(), modified_ms, checkpointed)
                except KafkaError as error:
                    self._logger.warning("Retention of %r failed: %s", log, error)
            await yield_to_loop()
        return deleted

    def _is_retained(self, log: PartitionLog) -> bool:
        if log.is_closed or log.is_truncating or log.log_directory.is_held:
            return False
        # The copy of a tiered log in another log directory needs all that is here.
        return not (log.is_tiered and log.partition in self._manager.future_logs)

    async def flush_dirty_logs(self) -> None:
        """Syncs the logs whose `flush.ms` has passed; gives way to the loop after so many that it has not."""
        for number, log in enumerate(list(self._manager.logs.values()), start=1):
            if not number % LOOKED_AT_PER_TURN:
                await yield_to_loop()
            if log.is_closed or self._host.clock.time_ms() - log.last_flush_ms < log.config.flush_ms:
                continue
            if log.log_directory.is_held:
                continue
            try:
                await log.flush()
            except KafkaError as error:
                self._logger.warning("Flush of %r failed: %s", log, error)

    async def remove_expired_producers(self) -> None:
        """Forgets producers that have been silent for `producer.id.expiration.ms`."""
        for log in list(self._manager.logs.values()):
            log.producers.remove_expired(self._host.clock.time_ms())
            await yield_to_loop()
