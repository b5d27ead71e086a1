"""Who may be told, and when, that records are written, and replicated.

Appends of one partition in one tick wait together: for the one write of the tick, and then as one operation for the
high watermark, which passes them in their order. So a move of the high watermark costs as much as it acknowledges.
"""

from __future__ import annotations

import functools
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from barnabas.kernel.purgatory import DelayedOperation, Purgatory
from barnabas.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from barnabas.leader.partition import Partition
    from barnabas.log.partition.partition_log import PartitionLog
    from barnabas.log.partition.write_queue import WriteQueue


class Answer(Protocol):
    """A producer that waits."""

    def complete(self, code: ErrorCode, *, is_written: bool) -> None:
        """Called once: NONE, or why its records do not count. If `is_written`, they are in the log all the same, where
        they were appended; otherwise that cannot be said.
        """
        ...


class Acknowledgements:
    """Waits for what was appended, for producers that sent one batch."""

    def __init__(self, write_queue: WriteQueue, purgatory: Purgatory[Any]) -> None:
        """`purgatory` is checked by topic partition when a high watermark or an ISR changes."""
        self._write_queue = write_queue
        self._purgatory = purgatory
        self._appended: dict[PartitionLog, _Appended] = {}

    def when_written(self, partition: Partition, log: PartitionLog, answer: Answer) -> None:
        """Calls `answer.complete` when what was appended so far is written; at once where it is."""
        self._appended_to(partition, log).unwritten.append(answer)
        self._look_at(log)

    def when_replicated(
        self, partition: Partition, log: PartitionLog, required_offset: int, timeout_ms: int, answer: Answer
    ) -> None:
        """Calls `answer.complete` when all before `required_offset` is written and replicated, or after `timeout_ms`.

        Calls for one partition must come with ascending offsets, as appends make them.
        """
        self.when_all_replicated(partition, log, ((required_offset, answer),), timeout_ms)

    def when_all_replicated(
        self, partition: Partition, log: PartitionLog, waiting: Iterable[tuple[int, Answer]], timeout_ms: int
    ) -> None:
        """`when_replicated` for several, each with its required offset; they wait together also where all is written
        already.
        """
        self._appended_to(partition, log).unreplicated.setdefault(timeout_ms, deque()).extend(waiting)
        self._look_at(log)

    def _appended_to(self, partition: Partition, log: PartitionLog) -> _Appended:
        found = self._appended.get(log)
        if found is None:
            found = self._appended[log] = _Appended(partition)
        return found

    def _look_at(self, log: PartitionLog) -> None:
        appended = self._appended[log]
        if not appended.is_registered:
            appended.is_registered = True
            self._write_queue.when_written(log, functools.partial(self._written, log, appended))

    def _written(self, log: PartitionLog, appended: _Appended, error: KafkaError | None) -> None:
        if self._appended.get(log) is appended:
            del self._appended[log]
        code = ErrorCode.NONE if error is None else error.code
        for answer in appended.unwritten:
            answer.complete(code, is_written=error is None)
        for timeout_ms, waiting in appended.unreplicated.items():
            if error is None:
                operation = _Replication(appended.partition, waiting, timeout_ms)
                self._purgatory.try_complete_else_watch(operation, (appended.partition.topic_partition,))
                continue
            for _, answer in waiting:
                answer.complete(code, is_written=False)


class _Appended:
    """Who appended to a log since its last write."""

    __slots__ = ("is_registered", "partition", "unreplicated", "unwritten")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.is_registered = False
        self.unwritten: list[Answer] = []
        self.unreplicated: dict[int, deque[tuple[int, Answer]]] = {}


class _Replication(DelayedOperation):
    """Appends of one tick to one partition, until the high watermark has passed them."""

    def __init__(self, partition: Partition, waiting: deque[tuple[int, Answer]], timeout_ms: int) -> None:
        super().__init__(timeout_ms)
        self._partition = partition
        self._waiting = waiting

    def try_complete(self) -> bool:
        waiting = self._waiting
        while waiting:
            required_offset, answer = waiting[0]
            code = self._partition.is_replicated(required_offset)
            if code is None:
                return False
            waiting.popleft()
            answer.complete(code, is_written=True)
        return self.force_complete()

    def on_complete(self) -> None:
        """Those that are left have waited for as long as they wanted."""
        while self._waiting:
            self._waiting.popleft()[1].complete(ErrorCode.REQUEST_TIMED_OUT, is_written=True)
