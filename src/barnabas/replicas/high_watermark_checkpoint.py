"""High watermarks across restarts: `replication-offset-checkpoint` of each log directory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from barnabas.kernel.turns import yield_to_loop

if TYPE_CHECKING:
    from barnabas.log.directories.log_directory import LogDirectory
    from barnabas.log.partition.partition_log import PartitionLog
    from barnabas.wire.topics import TopicPartition

_GATHERED_PER_TURN: Final = 1000
"""High watermarks: a few milliseconds of them."""


class HighWatermarkCheckpoints:
    """What the files said at the start, and writing them.

    A high watermark from a file is a lower bound: the log holds it within its own bounds, and a leader raises it again.
    Without one a log begins at its start offset, which is safe, and only makes its first readers wait.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._loaded: dict[str, dict[TopicPartition, int]] = {}
        self._written: dict[str, dict[TopicPartition, int]] = {}

    def load(
        self, directories: Iterable[LogDirectory], get_log: Callable[[TopicPartition], PartitionLog | None]
    ) -> None:
        """Reads the files of the directories, once, before any log is taken over. A directory that fails goes offline.
        What is told of logs that are not there, as of deleted ones, is for no other log."""
        for directory in directories:
            try:
                found = self._written[directory.path] = directory.read_high_watermarks()
            except OSError as error:
                directory.fail(error)
                continue
            logs = ((get_log(partition), partition) for partition in found)
            there = [name for log, name in logs if log is not None and log.log_directory is directory]
            self._loaded[directory.path] = {partition: found[partition] for partition in there}

    def restore(self, log: PartitionLog) -> None:
        """Sets the high watermark of a log that is taken over, or made."""
        known = self._loaded.get(log.log_directory.path, {})
        log.update_high_watermark(known.pop(log.partition, 0))

    def forget(self, partition: TopicPartition) -> None:
        """The partition is deleted; a later one of its name begins anew."""
        for known in self._loaded.values():
            known.pop(partition, None)

    async def write(self, logs: Iterable[PartitionLog], directory: LogDirectory) -> None:
        """Writes the high watermarks of the directory's logs among these, and those that were loaded and not taken over
        yet. Where nothing moved since, or nothing was loaded, the file is left alone. One call at a time for each."""
        written = self._written.get(directory.path)
        if written is None:
            return
        offsets = dict(self._loaded[directory.path])
        for number, log in enumerate(logs):
            if number and not number % _GATHERED_PER_TURN:
                await yield_to_loop()
            if log.log_directory is directory:
                offsets[log.partition] = log.high_watermark
        if written != offsets:
            await directory.write_high_watermarks(offsets)
            self._written[directory.path] = offsets
