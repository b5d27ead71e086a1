"""The gauges of logs and log directories, under Kafka's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from barnabas.kernel.metrics import MetricName, MetricsRegistry
from barnabas.log.directories.log_directory import LogDirectory
from barnabas.log.manager.log_cleaner import LogCleaner
from barnabas.log.manager.start_up import StartUpProgress
from barnabas.log.partition.partition_log import PartitionLog


class LogMetrics:
    """Registers and removes them as logs come and go."""

    def __init__(self, registry: MetricsRegistry) -> None:
        self.progress = StartUpProgress()
        self._registry = registry

    def register(self, directories: Sequence[LogDirectory], loads_at_once: int, cleaner: LogCleaner) -> None:
        """The gauges that do not belong to a log; `loads_at_once` is how many logs of each are."""
        gauge = self._registry.gauge
        gauge(_cleaner_name("time-since-last-run-ms"), lambda: cleaner.ms_since_last_run)
        gauge(_manager_name("OfflineLogDirectoryCount"), lambda: sum(directory.is_offline for directory in directories))
        for directory in directories:
            tags = (("logDirectory", directory.path),)
            gauge(_manager_name("LogDirectoryOffline", tags), partial(_offline, directory))
            gauge(_cleaner_name("uncleanable-partitions-count", tags), partial(_uncleanable_count, cleaner, directory))
            gauge(_cleaner_name("uncleanable-bytes", tags), partial(_uncleanable_bytes, cleaner, directory))
            tags = (("dir", directory.path),)
            gauge(_manager_name("remainingLogsToRecover", tags), partial(self._logs_remaining, directory.path))
            for number in range(loads_at_once):
                of_thread = (("dir", directory.path), ("threadNum", str(number)))
                read = partial(self._segments_remaining, directory.path, number)
                gauge(_manager_name("remainingSegmentsToRecover", of_thread), read)

    def _logs_remaining(self, path: str) -> int:
        return self.progress.logs_remaining.get(path, 0)

    def _segments_remaining(self, path: str, number: int) -> int:
        load = self.progress.loads.get((path, number))
        return 0 if load is None else load.segments_remaining

    def add(self, log: PartitionLog, *, is_future: bool = False) -> None:
        """The gauges of a current log, or those of a copy on its way, which have the tag `is-future` (KIP-113)."""
        for name, read in self._of_log(log, is_future):
            self._registry.gauge(name, read)

    def remove(self, log: PartitionLog, *, is_future: bool = False) -> None:
        """Those that it was added with: a copy that has taken its place calls itself future no more."""
        for name, _ in self._of_log(log, is_future):
            self._registry.remove(name)

    @staticmethod
    def _of_log(log: PartitionLog, is_future: bool) -> tuple[tuple[MetricName, Callable[[], int]], ...]:
        tags: tuple[tuple[str, str], ...] = (
            ("topic", log.partition.topic),
            ("partition", str(log.partition.partition)),
        )
        if is_future:
            tags += (("is-future", "true"),)
        return (
            (MetricName("kafka.log", "Log", "NumLogSegments", tags), lambda: log.segment_count),
            (MetricName("kafka.log", "Log", "LogStartOffset", tags), lambda: log.log_start_offset),
            (MetricName("kafka.log", "Log", "LogEndOffset", tags), lambda: log.log_end_offset),
            (MetricName("kafka.log", "Log", "Size", tags), lambda: log.size_bytes),
        )


def _manager_name(name: str, tags: tuple[tuple[str, str], ...] = ()) -> MetricName:
    return MetricName("kafka.log", "LogManager", name, tags)


def _cleaner_name(name: str, tags: tuple[tuple[str, str], ...] = ()) -> MetricName:
    return MetricName("kafka.log", "LogCleanerManager", name, tags)


def _uncleanable_count(cleaner: LogCleaner, directory: LogDirectory) -> int:
    return sum(log.log_directory is directory for log in cleaner.uncleanable)


def _uncleanable_bytes(cleaner: LogCleaner, directory: LogDirectory) -> int:
    """Of the segments behind what is compacted, but for those that are appended to."""
    return sum(
        segment.size_bytes
        for log in cleaner.uncleanable
        if log.log_directory is directory
        for segment in log.segments
        if segment.base_offset >= log.first_dirty_offset and segment is not log.segments.active
    )


def _offline(directory: LogDirectory) -> int:
    return int(directory.is_offline)
