"""All logs of a broker, over one or several log directories.

Start: `open_directories`, then `load`, then `start`. Stop: `close`, when nobody appends any more. A directory whose
disk fails goes offline with the logs in it, and the others go on.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from barnabas.kernel.host import Host, OffloadKind
from barnabas.kernel.ids import Uuid
from barnabas.kernel.later_turns import LaterTurns
from barnabas.kernel.logs import Logs
from barnabas.kernel.metrics import MetricName, MetricsRegistry
from barnabas.kernel.scheduler import Scheduler
from barnabas.kernel.system_errors import reason
from barnabas.kernel.tick import Tick
from barnabas.kernel.timers import Timers
from barnabas.kernel.turns import yield_to_loop
from barnabas.log.directories.deletions import Deletions
from barnabas.log.directories.log_directory import LogDirectory, changes_under_way
from barnabas.log.directories.names import DirectoryKind, marked_directory_name, partition_directory_name
from barnabas.log.manager.log_metrics import LogMetrics
from barnabas.log.manager.log_replacement import complete_replacement, is_replaceable, prepare_replacement
from barnabas.log.manager.log_tasks import LogTasks
from barnabas.log.manager.offset_checkpoints import OffsetCheckpoints
from barnabas.log.manager.start_up import LogStartUp, StartUpProgress, loads_at_once
from barnabas.log.partition.appending import storage_error
from barnabas.log.partition.loaded_log import create_log
from barnabas.log.partition.log_config import LogConfig, LogSettings
from barnabas.log.partition.log_services import LogServices
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.partition.queued_log import make_log
from barnabas.log.partition.write_queue import WriteQueue
from barnabas.log.segments.reading import LogReader
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.sentinels import NO_EPOCH
from barnabas.wire.topics import TopicPartition

_CLOSED_AT_ONCE: Final = 16
"""Syncs of several files at a time share the journal of their file system."""
_PUT_AWAY_PER_TURN: Final = 200
_DELETED_PER_TURN: Final = 100
_PREFERRED_MAX: Final = 100_000


class NoLogDirectoryError(Exception):
    """Every log directory is offline: the broker cannot go on."""


class LogManager:
    """The owner of every `PartitionLog`."""

    def __init__(
        self,
        host: Host,
        settings: LogSettings,
        *,
        directories: Sequence[str],
        timers: Timers,
        scheduler: Scheduler,
        tick: Tick,
        metrics: MetricsRegistry,
        logs: Logs,
        default_config: LogConfig | None = None,
        on_directory_offline: Callable[[LogDirectory], object] | None = None,
    ) -> None:
        """`directories` are absolute paths, each once; `default_config` is that of topics without their own configs."""
        self.default_config = LogConfig() if default_config is None else default_config
        self.settings = settings
        self.on_directory_offline = on_directory_offline
        """Called when a directory went offline, after its logs have."""
        self.write_queue = WriteQueue(tick)
        self.reader = LogReader(host, self._read_failed)
        self._host = host
        self._logger: logging.Logger = logs.logger("kafka.log.LogManager")
        self._metrics = LogMetrics(metrics)
        is_queued = settings.queues_writes(len(directories))
        self.directories: tuple[LogDirectory, ...] = tuple(
            LogDirectory(host, timers, path, self._logger, self._directory_failed, is_queued) for path in directories
        )
        self._deletions = Deletions(host, timers, self._logger, functools.partial(changes_under_way, self.directories))
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._future_logs: dict[TopicPartition, PartitionLog] = {}
        self._checkpoints = OffsetCheckpoints(host.loop, self.directories, self._all_logs, self._logs_of)
        self._services = LogServices(
            host=host,
            timers=timers,
            settings=settings,
            write_queue=self.write_queue,
            deletions=self._deletions,
            logger=logs.logger("kafka.log.UnifiedLog"),
            checkpoint_recovery_points=self._checkpoints.write_recovery_points,
            checkpoint_start_offsets=self._checkpoints.write_start_offsets,
            flush_timing=metrics.timing(MetricName("kafka.log", "LogFlushStats", "LogFlushRateAndTimeMs")),
        )
        self._preferred_directories: dict[TopicPartition, LogDirectory] = {}
        self._logs_of_topics: dict[str, dict[int, PartitionLog]] = {}
        self._log_counts: dict[LogDirectory, int] = {}
        self._offline_logs = LaterTurns[tuple[TopicPartition, bool], PartitionLog](
            host.loop, self._put_away, _PUT_AWAY_PER_TURN
        )
        self._leaving: dict[str, asyncio.Future[list[Any]]] = {}  # by the directory that another log may get
        self._kept: set[TopicPartition] = set()  # logs that the next start finds, of which there may be no other
        self._tasks = LogTasks(self, host, timers, scheduler, self._logger)
        self._metrics.register(self.directories, loads_at_once(settings, was_clean=False), self._tasks.cleaner)

    # What there is.

    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]:
        """Every log that is online."""
        return MappingProxyType(self._logs)

    @property
    def future_logs(self) -> Mapping[TopicPartition, PartitionLog]:
        """Those of replicas on their way to another log directory (KIP-113); `logs` has the current ones."""
        return MappingProxyType(self._future_logs)

    def _all_logs(self) -> list[PartitionLog]:
        return [*self._logs.values(), *self._future_logs.values()]

    def _logs_of(self, partition: TopicPartition) -> list[PartitionLog]:
        return [log for logs in (self._logs, self._future_logs) if (log := logs.get(partition)) is not None]

    @property
    def live_directories(self) -> tuple[LogDirectory, ...]:
        return tuple(directory for directory in self.directories if not directory.is_offline)

    @property
    def offline_directories(self) -> tuple[LogDirectory, ...]:
        return tuple(directory for directory in self.directories if directory.is_offline)

    @property
    def previous_broker_epoch(self) -> int:
        """The broker epoch of the last stop, where that was clean in every directory; -1 otherwise."""
        epochs = {directory.previous_broker_epoch for directory in self.directories}
        return epochs.pop() if len(epochs) == 1 else NO_EPOCH

    @property
    def start_up(self) -> StartUpProgress:
        """How far the load is."""
        return self._metrics.progress

    def get_log(self, partition: TopicPartition) -> PartitionLog | None:
        return self._logs.get(partition)

    # Beginning.

    def open_directories(self) -> None:
        """Makes and locks the directories. Raises LogDirectoryLockedError; one that cannot be used goes offline, and
        NoLogDirectoryError where none is left.
        """
        for directory in self.directories:
            directory.open()
        self._check_any_live()

    def fail_directory(self, directory: LogDirectory, error: Exception) -> None:
        """Takes a directory offline that its user finds at fault."""
        directory.fail(error)

    async def load(self, config_for: Callable[[str], LogConfig]) -> None:
        """Loads every log, each directory's in parallel, after taking the signs of a clean stop.

        Raises NoLogDirectoryError, and DuplicateLogError for a partition that lies in two directories.
        """
        start_up = LogStartUp(self._host, self._services, self._deletions, self._logger, self._metrics.progress)
        for log in await start_up.load(self.directories, config_for):
            if log.log_directory.is_offline:
                continue
            if log.is_future:
                self._add_future(log)
            else:
                self._add(log)
        # Whoever makes a log under the name of one that was deleted is not to find its offsets after a crash.
        await asyncio.gather(*map(self._checkpoints.write_all, start_up.with_leftovers))
        self._check_any_live()

    def start(self) -> None:
        """Schedules the tasks, by Kafka's names."""
        self._tasks.schedule()

    def _check_any_live(self) -> None:
        if not self.live_directories:
            reasons = "; ".join(
                reason(directory.error)
                if isinstance(directory.error, OSError) and directory.error.filename
                else f"{directory.path}: {directory.error}"
                for directory in self.directories
            )
            raise NoLogDirectoryError(f"no log directory can be used: {reasons}")

    # Logs come and go.

    def get_or_create_log(
        self, partition: TopicPartition, *, is_new: bool, topic_id: Uuid | None, config: LogConfig
    ) -> PartitionLog:
        """The log, made where it is missing.

        A log that should be here and is not may lie in a directory that is offline; an empty one in its place would
        lose it, so then, and when the directory fails, KafkaError is raised with KAFKA_STORAGE_ERROR.
        """
        log = self._logs.get(partition)
        if log is not None:
            return log
        if partition in self._kept or (not is_new and self.offline_directories):
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{partition_directory_name(partition)} is not in the directories that are online, and"
                f" {', '.join(each.path for each in self.offline_directories)} is not",
            )
        while True:
            directory = self._preferred_directories.pop(partition, None)
            if directory is None or directory.is_offline or directory.is_held:
                directory = self._next_directory()
            log = self._make_log(partition, directory, partition_directory_name(partition), topic_id, config)
            if log is None:
                continue
            self._add(log)
            leaving = self._leaving.get(log.directory)
            if leaving is not None:
                log.keep_apart_from(leaving)
            self._logger.info("Created log for partition %s in %s", partition_directory_name(partition), log.directory)
            return log

    def _make_log(
        self, partition: TopicPartition, directory: LogDirectory, name: str, topic_id: Uuid | None, config: LogConfig
    ) -> PartitionLog | None:
        """None where the directory fails."""
        try:
            loaded = create_log(
                *(directory.loop_files, f"{directory.path}/{name}", topic_id, config, self.settings),
                self._host.clock.time_ms(),
            )
        except OSError as error:
            directory.fail(error)
            return None
        return make_log(self._services, directory, partition, config, loaded)

    def _next_directory(self) -> LogDirectory:
        """The one with the fewest logs, as Kafka chooses, of those that answer."""
        directories = self.live_directories
        if not directories:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "every log directory is offline")
        return min(directories, key=lambda directory: (directory.is_held, self._log_counts.get(directory, 0)))

    async def delete_log(self, partition: TopicPartition) -> None:
        """Takes a log away: its directory is renamed at once, and goes after `file.delete.delay.ms`. No checkpoint
        tells of it when this returns.

        There is no error where there is none. Raises KafkaError where the directory fails.
        """
        await self.delete_logs((partition,))
        await self.checkpoint_deletions((partition,))

    async def delete_logs(self, partitions: Iterable[TopicPartition]) -> None:
        """As `delete_log`, of several that are there now, some in a turn; the renames are durable when this returns.
        After the last ones of a request, `checkpoint_deletions` of all is to be awaited.

        Where a directory fails, those in the others are deleted all the same before that is raised.
        """
        deleted = list(partitions)
        # Future ones first: alone, after a crash, one might be taken for the current log.
        logs = [log for log in map(self._future_logs.get, deleted) if log is not None]
        logs += [log for log in map(self._logs.get, deleted) if log is not None]
        for partition in deleted:
            self._preferred_directories.pop(partition, None)
        await self._delete(logs)

    async def _delete(self, logs: Sequence[PartitionLog]) -> None:
        changed: dict[LogDirectory, None] = {}
        for number, log in enumerate(logs):
            if number and not number % _DELETED_PER_TURN:
                await yield_to_loop()
            partition = log.partition
            if self._future_logs.get(partition) is log:
                self._remove_future(log)
            elif self._logs.get(partition) is log:
                self._remove(log)
            else:  # deleted by another meanwhile, or its directory has failed
                continue
            unique_id = self._host.entropy(16).hex()
            name = marked_directory_name(partition, DirectoryKind.DELETE, unique_id)
            path = f"{log.log_directory.path}/{name}"
            if not self._detach(log, path):
                continue
            self._logger.info(
                "Log for partition %s is renamed to %s and is scheduled for deletion",
                partition_directory_name(partition),
                path,
            )
            self._deletions.delete_directory(path, log.config.file_delete_delay_ms, log.log_directory.fail)
            self._checkpoints.log_deleted(log.log_directory, partition, path)
            changed[log.log_directory] = None
        for directory in changed:
            sync, path = self._host.files.fsync_directory, directory.path
            try:
                await self._services.offload(OffloadKind.SYNC, sync, path, directory=directory, order=path)
            except OSError as error:
                directory.fail(error)
        failed = next((log.log_directory for log in logs if log.log_directory.is_offline), None)
        if failed is not None:
            raise storage_error(failed.path, failed.error)

    # Replicas on their way to another log directory.

    def find_directory(self, path: str) -> LogDirectory | None:
        """The log directory of that path, which is absolute; None where there is none that is online."""
        return next((directory for directory in self.live_directories if directory.path == path), None)

    def prefer_directory(self, partition: TopicPartition, directory: LogDirectory) -> None:
        """Has the partition's log be made there, when it is made; without effect where it is, or is on its way. Of very
        many, those that were named first are forgotten."""
        logs = self._logs.get(partition), self._future_logs.get(partition)
        if not any(log is not None and log.log_directory is directory for log in logs):
            self._preferred_directories.pop(partition, None)
            self._preferred_directories[partition] = directory
            if len(self._preferred_directories) > _PREFERRED_MAX:
                del self._preferred_directories[next(iter(self._preferred_directories))]

    def create_future_log(self, current: PartitionLog, directory: LogDirectory) -> PartitionLog:
        """An empty log in another directory, to which the current one is copied. Raises KafkaError with
        KAFKA_STORAGE_ERROR where a directory is offline: a copy of an earlier move may be there.
        """
        partition = current.partition
        if self.offline_directories:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{partition_directory_name(partition)} cannot be moved while log directories are offline:"
                f" {', '.join(each.path for each in self.offline_directories)}",
            )
        if partition in self._future_logs or current.log_directory is directory:
            raise ValueError(f"{partition} is on its way, or in {directory.path} already")
        self._preferred_directories.pop(partition, None)
        name = marked_directory_name(partition, DirectoryKind.FUTURE, self._host.entropy(16).hex())
        log = self._make_log(partition, directory, name, current.topic_id, current.config)
        if log is None:
            raise storage_error(directory.path, directory.error)
        self._add_future(log)
        current.take_least_end()  # what was cut off before is not in the copy
        self._logger.info("Created future log for partition %s in %s", partition_directory_name(partition), directory)
        return log

    async def begin_copy(self, partition: TopicPartition) -> None:
        """To be awaited before anything is appended to a future log: a recovery would trust, or delete, by what an
        earlier log of the partition has left in the directory's checkpoints."""
        future = self._future_logs.get(partition)
        if future is not None:
            await self._checkpoints.write_all(future.log_directory)

    async def delete_future_log(self, partition: TopicPartition) -> None:
        """Ends a move that is not to be completed; as `delete_logs` otherwise. Whoever makes another log there has the
        checkpoints written first: `begin_copy`, and the deletion of the current log."""
        log = self._future_logs.get(partition)
        if log is not None:
            await self._delete((log,))

    async def prepare_replacement(self, partition: TopicPartition) -> None:
        """Makes durable what the future log has, so that `replace_current` can be tried. Nothing else may change it
        meanwhile. Raises KafkaError when its disk fails.
        """
        current, future = self._logs.get(partition), self._future_logs.get(partition)
        if current is not None and future is not None:
            await prepare_replacement(self._services, current, future, self._checkpoints.write_all)

    def replace_current(self, partition: TopicPartition) -> PartitionLog | None:
        """Has the future log take the place of the current one, if it may now, and returns it.

        It may some time after `prepare_replacement`, when it has all that the current log has. The current log is
        closed then. Raises KafkaError when the future log's disk fails.
        """
        current, future = self._logs.get(partition), self._future_logs.get(partition)
        if current is None or future is None or not is_replaceable(current, future):
            return None
        name = partition_directory_name(partition)
        path = f"{future.log_directory.path}/{name}"
        if path in self._leaving:
            return None
        future.write_pending()
        durable: asyncio.Future[None] = self._host.loop.create_future()
        try:
            future.take_place_of(current, path, durable)
        except OSError as error:
            future.log_directory.fail(error)
            raise storage_error(future.log_directory.path, error) from error
        self._remove(current)
        self._remove_future(future)
        self._add(future)
        old = current.log_directory
        old_name = marked_directory_name(partition, DirectoryKind.DELETE, self._host.entropy(16).hex())
        old_path = f"{old.path}/{old_name}"
        self._detach(current, old_path)
        self._checkpoints.log_deleted(old, partition, old_path)
        forget = functools.partial(self._checkpoints.forget, (partition,))
        arrival = (self._services, future, old, old_path, durable, forget, self._logs, self._kept)
        future.start_arrival(complete_replacement(*arrival))
        self._logger.info("The current log of partition %s is replaced by that in %s", name, future.log_directory.path)
        return future

    def _detach(self, log: PartitionLog, path: str) -> bool:
        """Gives a log that is known no more the name of a deleted one; False where its directory fails."""
        self._watch_leaving(log)
        self._tasks.cleaner.abort_cleaning(log)
        try:
            log.detach(path)
        except OSError as error:
            log.log_directory.fail(error)
            log.go_offline()  # it is not among those that the directory has now
            self._offline_logs.add((log.partition, log.is_future), log)
            return False
        return True

    def _watch_leaving(self, log: PartitionLog) -> None:
        """Work off the loop knows the directory by the name that it had; a new log there has to beware of it."""
        work = log.background_work()
        if not work:
            return
        path = log.directory
        ended = asyncio.gather(*work, return_exceptions=True)
        self._leaving[path] = ended

        def forget(_: object) -> None:
            if self._leaving.get(path) is ended:
                del self._leaving[path]

        ended.add_done_callback(forget)

    def _add(self, log: PartitionLog) -> None:
        self._offline_logs.do_now((log.partition, False))  # its gauges have the same names
        self._logs[log.partition] = log
        self._logs_of_topics.setdefault(log.partition.topic, {})[log.partition.partition] = log
        self._log_counts[log.log_directory] = self._log_counts.get(log.log_directory, 0) + 1
        self._metrics.add(log)

    def _add_future(self, log: PartitionLog) -> None:
        self._offline_logs.do_now((log.partition, True))
        self._future_logs[log.partition] = log
        self._log_counts[log.log_directory] = self._log_counts.get(log.log_directory, 0) + 1
        self._metrics.add(log, is_future=True)

    def _forget_future(self, log: PartitionLog) -> None:
        del self._future_logs[log.partition]
        self._log_counts[log.log_directory] -= 1

    def _remove_future(self, log: PartitionLog) -> None:
        self._forget_future(log)
        self._metrics.remove(log, is_future=True)

    def _remove(self, log: PartitionLog) -> None:
        self._forget(log)
        self._metrics.remove(log)

    def _forget(self, log: PartitionLog) -> None:
        del self._logs[log.partition]
        of_topic = self._logs_of_topics[log.partition.topic]
        del of_topic[log.partition.partition]
        if not of_topic:
            del self._logs_of_topics[log.partition.topic]
        self._log_counts[log.log_directory] -= 1

    def _read_failed(self, log_path: str, error: OSError) -> None:
        """A disk that cannot be read is as broken as one that cannot be written: other replicas shall lead."""
        path = log_path.rpartition("/")[0]
        for directory in self.directories:
            if directory.path == path:
                directory.fail(error)

    def _directory_failed(self, directory: LogDirectory) -> None:
        # All its logs are offline in one act: nobody finds one that cannot be written. What is left can wait.
        for log in [each for each in self._logs.values() if each.log_directory is directory]:
            self._forget(log)
            log.go_offline()
            self._offline_logs.add((log.partition, False), log)
        for log in [each for each in self._future_logs.values() if each.log_directory is directory]:
            self._forget_future(log)
            log.go_offline()
            self._offline_logs.add((log.partition, True), log)
        directory.let_go()
        # Not within the append or read that has found it out: its caller is in the middle of something.
        self._host.loop.call_soon(self._tell_offline, directory)

    def _put_away(self, log: PartitionLog) -> None:
        # Another may have taken its place, whose gauges have the same names.
        if log.partition not in (self._future_logs if log.is_future else self._logs):
            self._metrics.remove(log, is_future=log.is_future)
        log.let_go()

    def _tell_offline(self, directory: LogDirectory) -> None:
        if self.on_directory_offline is not None:
            self.on_directory_offline(directory)

    # Configs.

    def take_settings(self, settings: LogSettings) -> None:
        """Takes the broker's own configs: for the next `load`, for tasks when they are scheduled, for cleaners now."""
        former, self.settings = self.settings, settings
        self._tasks.cleaner.reconfigure(former)
        # Logs have the services that they were made with; of the settings, only loading reads them there.
        self._services = dataclasses.replace(self._services, settings=settings)
        for log in self._all_logs():
            log.producers.expiration_ms = settings.producer_id_expiration_ms

    def reconfigure(self, topic: str, config: LogConfig) -> None:
        """Gives the logs of a topic its new configs."""
        for log in self._logs_of_topics.get(topic, {}).values():
            log.reconfigure(config)
            future = self._future_logs.get(log.partition)
            if future is not None:
                future.reconfigure(config)

    async def delete_old_segments(self) -> None:
        """Retention of every log; what the task `kafka-log-retention` does."""
        await self._tasks.delete_old_segments()

    async def delete_given_up_logs(self) -> None:
        """Removes the directories of deleted logs whose time has come; what the task `kafka-delete-logs` does."""
        await self._deletions.delete_due_directories()

    # Checkpoints.

    async def checkpoint_recovery_points(self) -> None:
        """Writes up to where each log is durable."""
        await asyncio.gather(*map(self._checkpoints.write_recovery_points, self.live_directories))

    async def checkpoint_log_start_offsets(self) -> None:
        """Writes where each log starts, as far as its first segment does not say that."""
        await asyncio.gather(*map(self._checkpoints.write_start_offsets, self.live_directories))

    async def write_recovery_points(self, directory: LogDirectory) -> None:
        """Writes up to where each log there is durable; see `OffsetCheckpoints`."""
        await self._checkpoints.write_recovery_points(directory)

    async def write_cleaner_offsets(self, directory: LogDirectory) -> None:
        """Writes up to where each log there is compacted."""
        await self._checkpoints.write_cleaner_offsets(directory)

    def told_of_in(self, deleted: Collection[TopicPartition]) -> list[LogDirectory]:
        """The directories which `checkpoint_deletions` of these has to write to."""
        return self._checkpoints.that_tell_of(deleted)

    async def checkpoint_deletions(self, deleted: Collection[TopicPartition]) -> None:
        """Writes the checkpoints that may tell of the deleted logs of these.

        Invariant: when this returns, a log that is made under the name of a deleted one does not start at the other's
        start offset after a crash, nor is what lies below the other's recovery point trusted in it.
        """
        await self._checkpoints.forget(deleted)

    # Ending.

    async def close(self, broker_epoch: int = NO_EPOCH) -> None:
        """Completes every log, writes the checkpoints and, last of all, the sign of a clean stop.

        A directory that fails meanwhile gets no such sign: its logs are recovered at the next start.
        """
        self._logger.info("Shutting down.")
        self._tasks.cancel()
        self._deletions.close()
        at_once = max(_CLOSED_AT_ONCE, self.settings.recovery_threads_per_data_dir * len(self.directories))
        limit = asyncio.Semaphore(at_once)

        async def close_log(log: PartitionLog) -> None:
            async with limit:
                try:
                    await log.close()
                except KafkaError as error:
                    self._logger.warning("%r could not be completed: %s", log, error)

        await asyncio.gather(*map(close_log, self._all_logs()))
        await self.checkpoint_recovery_points()
        await self.checkpoint_log_start_offsets()
        for directory in self.directories:
            try:
                await self._services.offload(
                    *(OffloadKind.SYNC, directory.close, None if directory.is_offline else broker_epoch),
                    directory=directory,
                )
            except OSError as error:
                directory.fail(error)
        while self._offline_logs:
            await yield_to_loop()
        self._logger.info("Shutdown complete.")

    def abandon(self) -> None:
        """Closes every descriptor and writes nothing: what a crash does, for tests."""
        self._tasks.cancel()
        self._checkpoints.cancel()
        self._deletions.close()
        self._offline_logs.finish()
        for log in self._all_logs():
            log.abandon()
        for directory in self.directories:
            directory.let_go()
