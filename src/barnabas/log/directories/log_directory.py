"""One of a broker's log directories (`log.dirs`): its lock, its checkpoints, and whether its disk still works."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Iterable, Mapping

from barnabas.kernel.host import Files, Host, OffloadKind
from barnabas.kernel.ids import Uuid
from barnabas.kernel.timers import Timers
from barnabas.log.directories.checkpoints import CorruptCheckpointError, read_offsets, write_offsets
from barnabas.log.directories.directory_files import lock_directory, take_clean_shutdown, write_clean_shutdown
from barnabas.log.directories.names import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from barnabas.log.directories.offload_with_retry import LaneOffload
from barnabas.log.directories.queued_files import QueuedFiles
from barnabas.wire.sentinels import NO_EPOCH
from barnabas.wire.topics import TopicPartition


class LogDirectory:
    """A directory with partition directories in it. A disk that fails takes this directory away and no other."""

    def __init__(
        self,
        host: Host,
        timers: Timers,
        path: str,
        logger: logging.Logger,
        on_failure: Callable[[LogDirectory], object],
        is_queued: bool = False,
    ) -> None:
        """`on_failure` is called once, when the directory has gone offline. With `is_queued` nothing that its logs
        change is changed on the loop."""
        self.path = path
        self.uuid: Uuid | None = None
        """Its id in `meta.properties`, set by who reads that."""
        self.error: Exception | None = None
        """What took it offline."""
        self.is_held = False
        """It does not answer, and nothing is to be written to it on the loop until it does; see `directory_watch`."""
        self.is_full = False
        """So much waits to be written that nothing is to be added."""
        self.has_appends = False
        """Something was appended to a log here since it was last asked whether it answers."""
        self.was_clean = False
        """Whether the last broker here stopped in order."""
        self.previous_broker_epoch = NO_EPOCH
        self.offload = LaneOffload(host, timers, path)
        """By workers of this directory: another one that hangs lets it not wait."""
        self._files: Files = host.files
        self.queue = QueuedFiles(host, path, self.fail, self._fills) if is_queued else None
        """What changes its files in order, off the loop; None where that is done on the loop."""
        self.loop_files: Files = host.files if self.queue is None else self.queue
        """For whatever is done on the loop with the files of its logs."""
        self.on_full: Callable[[LogDirectory], object] = lambda _directory: None
        """Called when it is full, and when it is not any more."""
        self._logger = logger
        self._on_failure = on_failure
        self._lock: int | None = None
        self._has_cleaner_offsets = False

    def __repr__(self) -> str:
        return f"LogDirectory({self.path})"

    @property
    def is_offline(self) -> bool:
        return self.error is not None

    def fail(self, error: Exception) -> None:
        """Takes the directory offline; what comes after the first failure changes nothing."""
        if self.error is not None:
            return
        self.error = error
        self._logger.error(
            "Log directory %s has failed and is offline until the broker is started again: %s", self.path, error
        )
        if self.queue is not None:
            self.queue.give_up(error if isinstance(error, OSError) else OSError(errno.EIO, str(error), self.path))
        self._on_failure(self)

    def _fills(self, is_full: bool) -> None:
        self.is_full = is_full
        if is_full:
            self._logger.warning("Log directory %s is slower than what is to be written to it", self.path)
        self.on_full(self)

    async def settle(self) -> None:
        """Returns when all that was changed on the loop so far is in the files. Raises OSError."""
        if self.queue is not None:
            await self.queue.settle()

    def open(self) -> None:
        """Makes the directory where it is missing and keeps other brokers out.

        Raises LogDirectoryLockedError; a directory that cannot be used goes offline.
        """
        try:
            self._make()
            self._lock = lock_directory(self._files, self.path)
        except OSError as error:
            self.fail(error)

    def _make(self) -> None:
        """Makes the directory, and its name and those of new parents durable: what is synced in it must be found."""
        missing = []
        path = self.path
        while path and not self._files.exists(path):
            missing.append(path)
            path = os.path.dirname(path)
        self._files.make_directories(self.path)
        for path in missing:
            self._files.fsync_directory(os.path.dirname(path) or ".")

    def take_clean_shutdown(self) -> None:
        """Reads and removes the sign of a clean stop: a crash from now on is an unclean one. Raises OSError."""
        epoch = take_clean_shutdown(self._files, self.path)
        self.was_clean = epoch is not None
        self.previous_broker_epoch = NO_EPOCH if epoch is None else epoch

    def close(self, broker_epoch: int | None) -> None:
        """Lets other brokers in; with `broker_epoch`, says before that every log here is complete. Raises OSError."""
        try:
            if broker_epoch is not None and not self.is_offline:
                write_clean_shutdown(self._files, self.path, broker_epoch)
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Gives the lock back."""
        if self._lock is not None:
            self._files.close(self._lock)
            self._lock = None

    def free_bytes(self) -> int:
        """Bytes that may still be written there; a system call. Raises OSError."""
        return self._files.free_bytes(self.path)

    # Checkpoints. A lost or damaged one costs time at the next start, or repeats deletions, and loses no record: it
    # is read as an empty one. All reads raise OSError, and may be made off the loop.

    def read_recovery_points(self) -> dict[TopicPartition, int]:
        """Up to where each log is durable."""
        return self._read(RECOVERY_POINT_CHECKPOINT)

    def read_log_start_offsets(self) -> dict[TopicPartition, int]:
        return self._read(LOG_START_OFFSET_CHECKPOINT)

    def read_high_watermarks(self) -> dict[TopicPartition, int]:
        """For the owner of the high watermarks."""
        return self._read(HIGH_WATERMARK_CHECKPOINT)

    def read_cleaner_offsets(self) -> dict[TopicPartition, int]:
        """Up to where each log was compacted."""
        offsets = self._read(CLEANER_CHECKPOINT)
        self._has_cleaner_offsets = bool(offsets)
        return offsets

    async def write_recovery_points(self, offsets: Mapping[TopicPartition, int]) -> None:
        await self._write(RECOVERY_POINT_CHECKPOINT, offsets)

    async def write_log_start_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        await self._write(LOG_START_OFFSET_CHECKPOINT, offsets)

    async def write_cleaner_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Writes nothing while no log here was ever compacted."""
        if offsets or self._has_cleaner_offsets:
            self._has_cleaner_offsets = True
            await self._write(CLEANER_CHECKPOINT, offsets)

    async def write_high_watermarks(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replaces the checkpoint, off the loop. A failure takes the directory offline and is not raised."""
        await self._write(HIGH_WATERMARK_CHECKPOINT, offsets)

    def _read(self, name: str) -> dict[TopicPartition, int]:
        try:
            return read_offsets(self._files, f"{self.path}/{name}")
        except CorruptCheckpointError as error:
            self._logger.warning("Ignoring a checkpoint that cannot be read: %s", error)
        return {}

    async def _write(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        if self.is_offline:
            return
        path = f"{self.path}/{name}"
        try:
            await self.offload(OffloadKind.SYNC, write_offsets, self._files, path, dict(offsets), order=path)
        except OSError as error:
            self.fail(error)


def changes_under_way(directories: Iterable[LogDirectory], path: str) -> asyncio.Future[None] | None:
    """What is done when all that was changed on the loop so far in the directory of that path is in the files, or has
    the OSError that keeps it from that; None where it is already."""
    queue = next((each.queue for each in directories if each.path == path), None)
    return None if queue is None or queue.is_idle else queue.when_done()
