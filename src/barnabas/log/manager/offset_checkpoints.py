"""The checkpoints of the log directories: recovery points, log start offsets, and up to where logs are compacted."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Final

from barnabas.kernel.joined_runs import JoinedRuns
from barnabas.kernel.turns import yield_to_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from barnabas.log.directories.log_directory import LogDirectory
    from barnabas.log.partition.partition_log import PartitionLog
    from barnabas.wire.topics import TopicPartition

GATHERED_PER_TURN: Final = 1000
"""Offsets: a few milliseconds of them."""


class _Checkpoint:
    """One of the files of a directory.

    Invariant: it never goes back to an offset that was gathered earlier (`JoinedRuns`). What a run writes is what is
    true of all logs, or, where nobody has asked for more than that deleted ones go, what the file has but for these.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        directory: LogDirectory,
        all_logs: Callable[[], Sequence[PartitionLog]],
        logs_of: Callable[[TopicPartition], Sequence[PartitionLog]],
        deleted: Mapping[TopicPartition, str],
        offset_of: Callable[[PartitionLog], int],
        write: Callable[[dict[TopicPartition, int]], Awaitable[None]],
    ) -> None:
        """`offset_of` gives -1 for none; `deleted` are the logs that may be in the file and are not there any more."""
        self._directory = directory
        self._all_logs = all_logs
        self._logs_of = logs_of
        self._deleted = deleted
        self._offset_of = offset_of
        self._write = write
        self._runs = JoinedRuns(loop, self._run)
        self._is_to_be_gathered = True
        self._written: dict[TopicPartition, int] = {}

    async def write(self) -> None:
        """Has the file say what is true from now on."""
        self._is_to_be_gathered = True
        await self._runs.run()

    async def forget(self) -> None:
        """Has it tell of none of those that are deleted by now."""
        await self._runs.run()

    def cancel(self) -> None:
        self._runs.cancel()

    async def _run(self) -> None:
        if self._is_to_be_gathered or self._is_any_made_anew():
            self._is_to_be_gathered = False
            offsets = await self._gather()
        elif self._written.keys().isdisjoint(self._deleted):
            return
        else:
            offsets = self._written.copy()
            for partition in self._deleted:
                offsets.pop(partition, None)
        await self._write(offsets)
        self._written = offsets

    def _is_any_made_anew(self) -> bool:
        """Whether the file may tell of a log, under the name of one that was deleted, that is there."""
        directory, logs_of = self._directory, self._logs_of
        return any(log.log_directory is directory for partition in self._deleted for log in logs_of(partition))

    async def _gather(self) -> dict[TopicPartition, int]:
        directory, offset_of = self._directory, self._offset_of
        offsets: dict[TopicPartition, int] = {}
        for number, log in enumerate(self._all_logs()):
            if number and not number % GATHERED_PER_TURN:
                await yield_to_loop()
            if log.log_directory is directory:
                offset = offset_of(log)
                if offset >= 0:
                    offsets[log.partition] = offset
        return offsets


class OffsetCheckpoints:
    """Writes them, those of all logs of a directory at a time, as they are from the call on. A failure takes the
    directory offline and is not raised.

    Invariant: whoever moves an offset back, as to a recovery point from before a truncation, or takes a log away, has
    it written after that.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        directories: Sequence[LogDirectory],
        all_logs: Callable[[], Sequence[PartitionLog]],
        logs_of: Callable[[TopicPartition], Sequence[PartitionLog]],
    ) -> None:
        """`all_logs` are those that are online, future ones too; `logs_of` gives those of one partition."""
        self._deleted: dict[LogDirectory, dict[TopicPartition, str]] = {each: {} for each in directories}
        """The logs that were taken away, as long as a checkpoint may tell of them; the name that each got then."""

        def checkpoints(
            offset_of: Callable[[PartitionLog], int],
            write: Callable[[LogDirectory, dict[TopicPartition, int]], Awaitable[None]],
        ) -> dict[LogDirectory, _Checkpoint]:
            return {
                each: _Checkpoint(loop, each, all_logs, logs_of, deleted, offset_of, functools.partial(write, each))
                for each, deleted in self._deleted.items()
            }

        self._recovery_points = checkpoints(_recovery_point, _write_recovery_points)
        self._start_offsets = checkpoints(_start_offset, _write_start_offsets)
        self._cleaner_offsets = checkpoints(_cleaner_offset, _write_cleaner_offsets)

    async def write_recovery_points(self, directory: LogDirectory) -> None:
        """Up to where each log is durable; and before, up to where each is compacted, which is never more."""
        await self._cleaner_offsets[directory].write()
        await self._recovery_points[directory].write()

    async def write_start_offsets(self, directory: LogDirectory) -> None:
        """Where each log starts, as far as its first segment does not say that."""
        await self._start_offsets[directory].write()

    async def write_cleaner_offsets(self, directory: LogDirectory) -> None:
        """Up to where each log is compacted."""
        await self._cleaner_offsets[directory].write()

    async def write_all(self, directory: LogDirectory) -> None:
        """All three."""
        await asyncio.gather(self.write_recovery_points(directory), self.write_start_offsets(directory))

    def log_deleted(self, directory: LogDirectory, partition: TopicPartition, path: str) -> None:
        """A log there has the name `path` now, which no other had or will have, and is known no more."""
        self._deleted[directory][partition] = path

    def that_tell_of(self, deleted: Collection[TopicPartition]) -> list[LogDirectory]:
        """The directories whose checkpoints may tell of some of these yet."""
        return [each for each, logs in self._deleted.items() if not logs.keys().isdisjoint(deleted)]

    async def forget(self, deleted: Collection[TopicPartition]) -> None:
        """Has no checkpoint tell of any of these when it returns, whoever has deleted them. Waits for no
        directory but theirs: another may hang."""
        directories = self.that_tell_of(deleted)
        before = [dict(self._deleted[each]) for each in directories]
        await asyncio.gather(*map(self._forget, directories))
        for directory, written in zip(directories, before, strict=True):
            left = self._deleted[directory]
            for partition, path in written.items():
                if left.get(partition) == path:  # else another of its name was deleted since
                    del left[partition]

    async def _forget(self, directory: LogDirectory) -> None:
        await self._cleaner_offsets[directory].forget()
        await asyncio.gather(self._recovery_points[directory].forget(), self._start_offsets[directory].forget())

    def cancel(self) -> None:
        """Writes nothing more, but what is being written already."""
        for checkpoints in (self._recovery_points, self._start_offsets, self._cleaner_offsets):
            for each in checkpoints.values():
                each.cancel()


def _recovery_point(log: PartitionLog) -> int:
    return log.recovery_point


def _start_offset(log: PartitionLog) -> int:
    return log.start_offset_to_keep


def _cleaner_offset(log: PartitionLog) -> int:
    return log.first_dirty_offset or -1


async def _write_recovery_points(directory: LogDirectory, offsets: dict[TopicPartition, int]) -> None:
    await directory.write_recovery_points(offsets)


async def _write_start_offsets(directory: LogDirectory, offsets: dict[TopicPartition, int]) -> None:
    await directory.write_log_start_offsets(offsets)


async def _write_cleaner_offsets(directory: LogDirectory, offsets: dict[TopicPartition, int]) -> None:
    await directory.write_cleaner_offsets(offsets)
