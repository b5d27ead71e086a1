"""The reassignments whose step has failed: each is tried again, and the log says why, once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from barnabas.controller.effects import Result, Steps
from barnabas.coordination.errors import NoAuthError
from barnabas.wire.topics import TopicPartition


class ReassignmentFaults:
    """Of one term. Invariant: a partition is here from its fault until it has been tried to the end."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._failed: dict[TopicPartition, None] = {}
        self._logged: dict[TopicPartition, str] = {}

    def __bool__(self) -> bool:
        """Whether anything is to be tried again."""
        return bool(self._failed)

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._failed

    def fail(self, partition: TopicPartition, reason: object) -> None:
        """A step could not be done; it says so where the reason is not the last one."""
        self._failed[partition] = None
        text = str(reason)
        if self._logged.get(partition) == text:
            return
        self._logged[partition] = text
        self._logger.error(
            "The reassignment of %s-%d cannot go on for now: %s. It is tried again every few seconds%s",
            *partition,
            text,
            "; give the brokers access to that znode" if isinstance(reason, NoAuthError) else ", until it is cancelled",
        )

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """They are to be tried again, for a reason that the log has."""
        self._failed.update(dict.fromkeys(partitions))

    def discard(self, partitions: Iterable[TopicPartition]) -> None:
        """They are being tried."""
        for partition in partitions:
            self._failed.pop(partition, None)

    def or_again(self, partitions: Iterable[TopicPartition], steps: Steps[Result]) -> Steps[Result]:
        """Carries out the steps; where these end with an error, the partitions are tried again."""
        is_over = False
        try:
            result = yield from steps
            is_over = True
        finally:
            if not is_over:
                self.add(partitions)
        return result

    def take(self, is_under_way: Callable[[TopicPartition], bool]) -> tuple[TopicPartition, ...]:
        """All that are to be tried again; what the log says of those that are over is forgotten."""
        for partition in [each for each in self._logged if not is_under_way(each)]:
            del self._logged[partition]
        failed, self._failed = self._failed, {}
        return tuple(failed)
