"""The checkpoints of the log directories: recovery points, log start offsets, and up to where logs are compacted."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, Final

from barnabas.kernel.joined_runs import JoinedRuns
from barnabas.kernel.turns import yield_to_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Sequence

    from barnabas.log.directories.log_directory import LogDirectory
    from barnabas.log.partition.partition_log import PartitionLog
    from barnabas.wire.topics import TopicPartition

GATHERED_PER_TURN: Final = 1000
"""Offsets: a few milliseconds of them."""


class OffsetCheckpoints:
    """Writes them, those of all logs of a directory at a time, as they are from the call on. A failure takes the
    directory offline and is not raised.

    Invariant: a file never goes back to an offset that was gathered earlier (`JoinedRuns`), as to a recovery point from
    before a truncation. So whoever moves an offset back, or takes a log away, has it written after that.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        directories: Sequence[LogDirectory],
        all_logs: Callable[[], Sequence[PartitionLog]],
    ) -> None:
        """`all_logs` are those that are online, future ones too."""
        self._all_logs = all_logs
        self._deleted: dict[LogDirectory, dict[TopicPartition, str]] = {each: {} for each in directories}
        """The logs that were taken away, as long as a checkpoint may tell of them; the name that each got then."""

        def runs(work: Callable[[LogDirectory], Coroutine[Any, Any, None]]) -> dict[LogDirectory, JoinedRuns]:
            return {each: JoinedRuns(loop, functools.partial(work, each)) for each in directories}

        self._recovery_points = runs(self._write_recovery_points)
        self._start_offsets = runs(self._write_start_offsets)
        self._cleaner_offsets = runs(self._write_cleaner_offsets)

    async def write_recovery_points(self, directory: LogDirectory) -> None:
        """Up to where each log is durable; and before, up to where each is compacted, which is never more."""
        await self._recovery_points[directory].run()

    async def write_start_offsets(self, directory: LogDirectory) -> None:
        """Where each log starts, as far as its first segment does not say that."""
        await self._start_offsets[directory].run()

    async def write_cleaner_offsets(self, directory: LogDirectory) -> None:
        """Up to where each log is compacted."""
        await self._cleaner_offsets[directory].run()

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
        await asyncio.gather(*map(self.write_all, directories))
        for directory, written in zip(directories, before, strict=True):
            left = self._deleted[directory]
            for partition, path in written.items():
                if left.get(partition) == path:  # else another of its name was deleted since
                    del left[partition]

    def cancel(self) -> None:
        """Writes nothing more, but what is being written already."""
        for runs in (self._recovery_points, self._start_offsets, self._cleaner_offsets):
            for each in runs.values():
                each.cancel()

    async def _write_recovery_points(self, directory: LogDirectory) -> None:
        await self.write_cleaner_offsets(directory)
        await directory.write_recovery_points(await self._gather(directory, lambda log: log.recovery_point))

    async def _write_start_offsets(self, directory: LogDirectory) -> None:
        await directory.write_log_start_offsets(await self._gather(directory, lambda log: log.start_offset_to_keep))

    async def _write_cleaner_offsets(self, directory: LogDirectory) -> None:
        offsets = await self._gather(directory, lambda log: log.first_dirty_offset or -1)
        await directory.write_cleaner_offsets(offsets)

    async def _gather(
        self, directory: LogDirectory, offset_of: Callable[[PartitionLog], int]
    ) -> dict[TopicPartition, int]:
        offsets: dict[TopicPartition, int] = {}
        for number, log in enumerate(self._all_logs()):
            if number and not number % GATHERED_PER_TURN:
                await yield_to_loop()
            if log.log_directory is directory:
                offset = offset_of(log)
                if offset >= 0:
                    offsets[log.partition] = offset
        return offsets
