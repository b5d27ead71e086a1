"""High watermarks across restarts: `replication-offset-checkpoint` of each log directory."""

from __future__ import annotations

import logging
from collections.abc import Iterable
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

    def load(self, directories: Iterable[LogDirectory]) -> None:
        """Reads the files of the directories, once, before any log is taken over. A directory that fails goes
        offline."""
        for directory in directories:
            try:
                self._loaded[directory.path] = directory.read_high_watermarks()
            except OSError as error:
                directory.fail(error)

    def restore(self, log: PartitionLog) -> None:
        """Sets the high watermark of a log that is taken over, or made."""
        known = self._loaded.get(log.log_directory.path, {})
        log.update_high_watermark(known.pop(log.partition, 0))

    def forget(self, partition: TopicPartition) -> None:
        """The partition is deleted; a later one of its name begins anew."""
        for known in self._loaded.values():
            known.pop(partition, None)

    async def write(self, logs: Iterable[PartitionLog], directories: Iterable[LogDirectory]) -> None:
        """Writes the high watermarks of these logs, and those that were loaded and not taken over yet. A directory in
        which nothing moved since is left alone. One call at a time."""
        offsets: dict[str, dict[TopicPartition, int]] = {
            path: dict(known) for path, known in self._loaded.items() if known
        }
        for number, log in enumerate(logs):
            if number and not number % _GATHERED_PER_TURN:
                await yield_to_loop()
            offsets.setdefault(log.log_directory.path, {})[log.partition] = log.high_watermark
        for directory in directories:
            present = offsets.get(directory.path, {})
            if self._written.get(directory.path, {}) != present:
                await directory.write_high_watermarks(present)
                self._written[directory.path] = present
