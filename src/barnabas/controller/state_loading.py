"""Reads the states of very many partitions, while others come to be known."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

from barnabas.controller.context import ControllerContext
from barnabas.controller.effects import Steps
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.controller.partition_znodes import NotMadeAgainYetError, read_leadership
from barnabas.controller.settings import PARTITIONS_PER_BATCH
from barnabas.coordination.layout.topics import partition_state_paths
from barnabas.wire.topics import TopicPartition


class StateLoading:
    """Reads in batches, each while the one before is looked at. `refreshed` has the partitions that have or had a
    leader, of those read so far. States that cannot be used are logged.
    """

    def __init__(
        self,
        context: ControllerContext,
        logger: logging.Logger,
        written_at: dict[TopicPartition, int] | None = None,
    ) -> None:
        """`written_at` is as `read_leadership` has it."""
        self.refreshed: list[TopicPartition] = []
        self._context = context
        self._logger = logger
        self._written_at = written_at
        self._left: list[TopicPartition] = []
        self._batches: deque[list[TopicPartition]] = deque()
        self._paths: list[str] = []
        """Of the first of them, once they are made."""

    def add(self, partitions: Sequence[TopicPartition]) -> None:
        """Has these read, too."""
        count, left = PARTITIONS_PER_BATCH, [*self._left, *partitions]
        whole = len(left) - len(left) % count
        self._batches.extend(left[start : start + count] for start in range(0, whole, count))
        self._left = left[whole:]

    def read_some(self) -> Steps[None]:
        """Reads what has been added, but for the last whole batch, which the store reads meanwhile, and the rest."""
        while len(self._batches) > 1:
            yield from self._read_first()

    def read_all(self) -> Steps[None]:
        """Reads everything that has been added."""
        if self._left:
            self._batches.append(self._left)
            self._left = []
        while self._batches:
            yield from self._read_first()

    def _read_first(self) -> Steps[None]:
        batch = self._batches.popleft()
        paths = self._paths or partition_state_paths(batch)
        self._paths = partition_state_paths(self._batches[0]) if self._batches else []
        found = yield from read_leadership(self._context, batch, self._written_at, paths=paths, ahead=self._paths)
        usable = {partition: known for partition, known in found.items() if isinstance(known, LeaderAndIsr)}
        self._context.set_leaderships(usable)
        self.refreshed += usable
        if len(usable) < len(found):
            for partition, known in found.items():
                if isinstance(known, Exception) and not isinstance(known, NotMadeAgainYetError):
                    self._logger.error("The state of %s-%d cannot be used: %s", *partition, known)
