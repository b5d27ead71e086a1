"""Loading all logs at start: directory by directory, in parallel, with a line and figures on how far it is."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from barnabas.kernel.host import Host, OffloadKind
from barnabas.log.directories.deletions import Deletions
from barnabas.log.directories.log_directory import LogDirectory
from barnabas.log.directories.names import DirectoryKind, parse_partition_directory
from barnabas.log.manager.interrupted_moves import settle_moves
from barnabas.log.manager.log_loader import ANY_OFFSET, LoadProgress, LoadRequest, load_log
from barnabas.log.partition.log_config import LogConfig, LogSettings
from barnabas.log.partition.log_services import LogServices
from barnabas.log.partition.log_state import is_tiered
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.partition.queued_log import make_log
from barnabas.wire.topics import TopicPartition

_RECOVERED_AT_ONCE: Final = 2
"""Of each directory, at least, after any end but a clean stop: what is checked needs a core, and what is not in the
page cache the disk. Kafka's default is one, and two from 4.0 on (KIP-1030)."""


class DuplicateLogError(Exception):
    """A partition has a directory in two log directories, and nobody can say which is the right one."""


@dataclass(slots=True)
class StartUpProgress:
    """How far the load is; gauges read it."""

    logs_remaining: dict[str, int] = field(default_factory=dict)
    """By log directory (Kafka's remainingLogsToRecover)."""
    loads: dict[tuple[str, int], LoadProgress] = field(default_factory=dict)
    """The log that is being loaded, by log directory and by which of those at a time it is (Kafka's
    remainingSegmentsToRecover has the number of a thread)."""
    logs_found: int = 0
    logs_loaded: int = 0
    batches_read: int = 0
    """Of the logs that are loaded; see `work_done`."""

    @property
    def work_done(self) -> int:
        """A number that grows as long as the load goes on."""
        return self.logs_loaded + self.batches_read + sum(load.batches_read for load in self.loads.values())


class _Found(NamedTuple):
    """What a log directory has, before its logs are loaded."""

    recovery_points: dict[TopicPartition, int]
    start_offsets: dict[TopicPartition, int]
    cleaned: dict[TopicPartition, int]
    names: list[str]
    """Of partition directories."""


def _gaps_end_offset(partition: TopicPartition, config: LogConfig, found: _Found) -> int:
    """See `LoadRequest`. Where a compacted log is not in the checkpoint of the recovery points, that was lost, or the
    log was brought here by hand: anything may be missing in it, and nothing is dropped for that.
    """
    if config.is_compacted and partition not in found.recovery_points:
        return ANY_OFFSET
    return found.cleaned.get(partition, 0)


def loads_at_once(settings: LogSettings, *, was_clean: bool) -> int:
    """How many logs of a directory are loaded at a time. After a clean stop hardly anything is read, and a second
    thread would only wait for the first one's Python.
    """
    threads = settings.recovery_threads_per_data_dir
    return threads if was_clean else max(threads, _RECOVERED_AT_ONCE)


class LogStartUp:
    """One load of all directories."""

    def __init__(
        self,
        host: Host,
        services: LogServices,
        deletions: Deletions,
        logger: logging.Logger,
        progress: StartUpProgress,
    ) -> None:
        self._host = host
        self._services = services
        self._deletions = deletions
        self._logger = logger
        self._progress = progress
        self._found: dict[TopicPartition, str] = {}
        self.with_leftovers: list[LogDirectory] = []
        """Those whose checkpoints tell of logs that are not there, once they are loaded."""

    async def load(
        self, directories: Sequence[LogDirectory], config_for: Callable[[str], LogConfig]
    ) -> list[PartitionLog]:
        """The logs of all directories that are online, those of future replicas too. A directory that fails goes
        offline and gives none.

        Raises DuplicateLogError.
        """
        started = self._host.loop.time()
        live = [directory for directory in directories if not directory.is_offline]
        self._logger.info("Loading logs from log dirs %s", ", ".join(directory.path for directory in live))
        found = dict(zip(live, await asyncio.gather(*map(self._find, live)), strict=True))
        settled = await self._host.offload(
            OffloadKind.DISK,
            settle_moves,
            self._host.files,
            {directory.path: each.names for directory, each in found.items() if each is not None},
            lambda: self._host.entropy(16).hex(),
            self._logger,
        )
        for directory in live:
            failure = settled.failures.get(directory.path)
            if failure is not None:
                directory.fail(failure)
        loaded = await asyncio.gather(
            *(
                self._load_directory(directory, each, settled.names[directory.path], config_for)
                for directory, each in found.items()
                if each is not None and not directory.is_offline
            )
        )
        logs = [log for some in loaded for log in some]
        self._logger.info("Loaded %d logs in %d ms", len(logs), round((self._host.loop.time() - started) * 1000))
        return logs

    async def _find(self, directory: LogDirectory) -> _Found | None:
        """What is there; None where the directory fails."""
        offload = functools.partial(self._host.offload, OffloadKind.DISK, lane=directory.path)
        try:
            # First of all: whatever happens from here on, the next start must not take this stop for a clean one.
            await offload(directory.take_clean_shutdown)
            recovery_points = await offload(directory.read_recovery_points)
            start_offsets = await offload(directory.read_log_start_offsets)
            cleaned = await offload(directory.read_cleaner_offsets)
            names = await offload(self._partition_directories, directory.path)
        except OSError as error:
            directory.fail(error)
            return None
        return _Found(recovery_points, start_offsets, cleaned, names)

    async def _load_directory(
        self, directory: LogDirectory, found: _Found, names: list[str], config_for: Callable[[str], LogConfig]
    ) -> list[PartitionLog]:
        self._logger.info(
            "%s log directory %s",
            "Skipping recovery of logs in" if directory.was_clean else "Recovering",
            directory.path,
        )
        requests = []
        for name in names:
            request = self._request(directory, name, config_for, found)
            if request is not None:
                requests.append(request)
        known = {request.partition for request in requests}
        if any(offsets.keys() - known for offsets in (found.recovery_points, found.start_offsets, found.cleaned)):
            self.with_leftovers.append(directory)
        return await self._load_all(directory, requests, found.cleaned)

    def _partition_directories(self, path: str) -> list[str]:
        files = self._host.files
        return [
            name
            for name in files.list_directory(path)
            if parse_partition_directory(name) is not None and files.status(f"{path}/{name}").is_directory
        ]

    def _request(
        self,
        directory: LogDirectory,
        name: str,
        config_for: Callable[[str], LogConfig],
        found: _Found,
    ) -> LoadRequest | None:
        """What is to be loaded of a directory; None for one that is neither a current nor a future replica."""
        path = f"{directory.path}/{name}"
        parsed = parse_partition_directory(name)
        if parsed is None:
            return None
        if parsed.kind is DirectoryKind.DELETE:
            self._deletions.delete_directory(path, self._services.settings.segment_delete_delay_ms, directory.fail)
            return None
        if parsed.kind is DirectoryKind.STRAY:
            self._logger.warning("%s is left alone: it is no current replica (stray)", path)
            return None
        partition = parsed.partition
        other = path if parsed.kind is DirectoryKind.FUTURE else self._found.setdefault(partition, path)
        if other != path:
            raise DuplicateLogError(
                f"partition {name} is in {other} and in {path}: remove one of them, then start again"
            )
        config = config_for(partition.topic)
        return LoadRequest(
            partition=partition,
            directory=path,
            config=config,
            settings=self._services.settings,
            recovery_point=found.recovery_points.get(partition, 0),
            log_start_offset=found.start_offsets.get(partition, 0),
            was_clean=directory.was_clean,
            gaps_end_offset=_gaps_end_offset(partition, config, found),
            now_ms=self._host.clock.time_ms(),
            is_tiered=self._services.settings.remote_storage_system_enable and is_tiered(partition.topic, config),
        )

    async def _load_all(
        self, directory: LogDirectory, requests: list[LoadRequest], cleaned: dict[TopicPartition, int]
    ) -> list[PartitionLog]:
        logs: list[PartitionLog] = []
        remaining = self._progress.logs_remaining
        remaining[directory.path] = len(requests)
        self._progress.logs_found += len(requests)
        waiting = iter(requests)

        async def work(number: int) -> None:
            for request in waiting:
                if directory.is_offline:
                    return
                progress = self._progress.loads[directory.path, number] = LoadProgress()
                try:
                    log = await self._load_one(directory, request, progress)
                    log.compacted_to(min(cleaned.get(request.partition, 0), log.recovery_point))
                    logs.append(log)
                except OSError as error:
                    directory.fail(error)
                finally:
                    del self._progress.loads[directory.path, number]
                    self._progress.batches_read += progress.batches_read
                remaining[directory.path] -= 1
                self._progress.logs_loaded += 1
                done = len(requests) - remaining[directory.path]
                if not directory.is_offline:
                    self._logger.info(
                        "Completed load of %r with %d segments, log start offset %d, log end offset %d (%d/%d in %s)",
                        logs[-1],
                        logs[-1].segment_count,
                        logs[-1].log_start_offset,
                        logs[-1].log_end_offset,
                        done,
                        len(requests),
                        directory.path,
                    )

        at_once = loads_at_once(self._services.settings, was_clean=directory.was_clean)
        await asyncio.gather(*map(work, range(at_once)))
        if directory.is_offline:
            for log in logs:
                log.go_offline()
                log.let_go()
            return []
        return logs

    async def _load_one(self, directory: LogDirectory, request: LoadRequest, progress: LoadProgress) -> PartitionLog:
        loaded = await self._host.offload(
            *(OffloadKind.DISK, load_log, self._host.files, request, self._logger, progress), lane=directory.path
        )
        return make_log(self._services, directory, request.partition, request.config, loaded)
