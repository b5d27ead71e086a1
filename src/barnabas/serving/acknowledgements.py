"""Who may be told, and when, that records are written, and replicated.

Appends of one partition in one tick wait together: for the one write of the tick, and then in the partition's queue for
the high watermark, which passes them in their order. So a move of the high watermark costs as much as it acknowledges,
and one timer stands for all who wait.
"""

from __future__ import annotations

import functools
import heapq
from collections import deque
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from barnabas.kernel.lazy_timer import ROUNDING_SECONDS
from barnabas.kernel.purgatory import Purgatory
from barnabas.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from barnabas.leader.partition import Partition
    from barnabas.log.partition.partition_log import PartitionLog
    from barnabas.log.partition.write_queue import WriteQueue


_required_offset: Final = itemgetter(0)


class Answer(Protocol):
    """A producer that waits."""

    def complete(self, code: ErrorCode, *, is_written: bool) -> None:
        """Called once: NONE, or why its records do not count. If `is_written`, they are in the log all the same, where
        they were appended; otherwise that cannot be said.
        """
        ...


class Acknowledgements:
    """Waits for what was appended, for producers that sent one batch."""

    def __init__(self, write_queue: WriteQueue, purgatory: Purgatory[Any], now: Callable[[], float]) -> None:
        """`purgatory` is checked by topic partition when a high watermark or an ISR changes; `now` is the loop's
        time in seconds."""
        self._write_queue = write_queue
        self._purgatory = purgatory
        self._now = now
        self._appended: dict[PartitionLog, _Appended] = {}
        self._queues: dict[Partition, ReplicationQueue] = {}

    @property
    def partitions_waited_for(self) -> int:
        """How many partitions have a queue: somebody waits in it, or has lately."""
        return len(self._queues)

    def when_written(self, partition: Partition, log: PartitionLog, answer: Answer) -> None:
        """Calls `answer.complete` when what was appended so far is written; at once where it is."""
        self._appended_to(partition, log).unwritten.append(answer)
        self._look_at(log)

    def when_in_file(self, log: PartitionLog, answer: Answer) -> None:
        """Calls `answer.complete` in this tick, before it sends, for what needs no sync; at once where it is written.

        Invariant: an answer that has taken its place is told here whether it is true, and by nothing that comes later.
        """
        self._write_queue.when_in_file(log, functools.partial(_tell_written, answer))

    def when_replicated(
        self, partition: Partition, log: PartitionLog, required_offset: int, timeout_ms: int, answer: Answer
    ) -> None:
        """Calls `answer.complete` when all before `required_offset` is written and replicated, or after `timeout_ms`.

        Calls for one partition should come with ascending offsets, as appends make them but for what was sent again.
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
        found, syncs_begun = self._appended.get(log), log.written.syncs_begun
        if found is None or found.syncs_begun != syncs_begun:
            found = self._appended[log] = _Appended(partition, syncs_begun)
        return found

    def _look_at(self, log: PartitionLog) -> None:
        appended = self._appended[log]
        if not appended.is_registered:
            appended.is_registered = True
            self._write_queue.when_written(log, functools.partial(self._written, log, appended))

    def _queue_of(self, partition: Partition) -> ReplicationQueue:
        found = self._queues.get(partition)
        if found is None:
            found = ReplicationQueue(partition, self._purgatory, self._now, self._forget)
            self._queues[partition] = found
        return found

    def _forget(self, queue: ReplicationQueue) -> None:
        if queue.completed and self._queues.get(queue.partition) is queue:
            del self._queues[queue.partition]

    def _written(self, log: PartitionLog, appended: _Appended, error: KafkaError | None) -> None:
        if self._appended.get(log) is appended:
            del self._appended[log]
        code, is_written = (ErrorCode.NONE, True) if error is None else (error.code, False)
        for answer in appended.unwritten:
            _tell(answer, code, self._purgatory, is_written=is_written)
        for timeout_ms, waiting in appended.unreplicated.items():
            if error is None:
                # What was sent again, by an idempotent producer, is before what others appended meanwhile.
                in_order = deque(sorted(waiting, key=_required_offset))
                _answer_replicated(appended.partition, in_order, self._purgatory)
                if in_order:
                    self._queue_of(appended.partition).add(in_order, timeout_ms)
                continue
            for _, answer in waiting:
                _tell(answer, code, self._purgatory, is_written=False)


class _Appended:
    """Who appended to a log since its last write.

    Invariant: all of them did between the same two syncs. Who appends while a sync goes on waits for the next one.
    """

    __slots__ = ("is_registered", "partition", "syncs_begun", "unreplicated", "unwritten")

    def __init__(self, partition: Partition, syncs_begun: int) -> None:
        self.partition = partition
        self.is_registered = False
        self.syncs_begun = syncs_begun
        self.unwritten: list[Answer] = []
        self.unreplicated: dict[int, deque[tuple[int, Answer]]] = {}


class _Waiting(NamedTuple):
    """Appends of one tick to one partition."""

    deadline: float
    answers: deque[tuple[int, Answer]]
    """Each with the offset that the high watermark has to reach; ascending."""


class ReplicationQueue:
    """Who waits for the high watermark of one partition; it stands in the purgatory while anybody does.

    Invariants: in each deque of those who wait, offsets and deadlines ascend; so whoever is to be answered next, by the
    high watermark or by the time, is the first. Nobody is told NONE whose records the partition does not call
    replicated at that moment. Each is told once.
    """

    def __init__(
        self,
        partition: Partition,
        purgatory: Purgatory[Any],
        now: Callable[[], float],
        when_idle: Callable[[ReplicationQueue], object],
    ) -> None:
        """`when_idle` is called when nobody has waited for as long as the longest time-out lately, or nobody will."""
        self.partition = partition
        self._purgatory = purgatory
        self._now = now
        self._waiting: dict[object, deque[_Waiting]] = {}
        """By time-out, of which there are few; each tick by itself that has appended nothing new, which is rare."""
        # No deque's first deadline is before its entry here; so an expiry looks at those only that may be due.
        self._deadlines: list[tuple[float, int, object]] = []
        self._listed: set[object] = set()
        self._listed_count = 0
        self._when_idle = functools.partial(when_idle, self)
        self._timer = purgatory.lazy_timer(self._expire, self._when_idle)
        self._deadline: float | None = None

    @property
    def waiting_count(self) -> int:
        """How many ticks have appended what waits."""
        return sum(map(len, self._waiting.values()))

    @property
    def completed(self) -> bool:
        """Nobody waits."""
        return not self._waiting

    def add(self, answers: deque[tuple[int, Answer]], timeout_ms: int) -> None:
        """They wait, behind all that do already; the first of them needs to. Their offsets ascend."""
        deadline = self._now() + timeout_ms / 1000
        key: object = timeout_ms
        queue = self._waiting.get(key)
        if queue is not None:
            last = queue[-1].answers  # there are none left while the last of them is told, and comes again at once
            if last and answers[0][0] <= last[-1][0]:
                key, queue = object(), None  # sent again: it waits for less than those who came before
        if queue is None:
            if not self._waiting:
                self._purgatory.stand(self, self.partition.topic_partition)
            queue = self._waiting[key] = deque()
        queue.append(_Waiting(deadline, answers))
        if key not in self._listed:
            self._list(deadline, key)
        if self._deadline is None or deadline < self._deadline:
            self._deadline = deadline
            self._timer.set(deadline)

    def try_complete(self) -> bool:
        """Answers those that the high watermark has passed, or whose partition is not led here any more."""
        for key, queue in tuple(self._waiting.items()):
            while queue:
                _answer_replicated(self.partition, queue[0].answers, self._purgatory)
                if queue[0].answers:
                    break
                queue.popleft()
                self._purgatory.completed_count += 1
            if not queue:
                del self._waiting[key]
        if self._waiting:
            return False
        self._rest()
        return True

    def force_complete(self) -> bool:
        """Answers all with REQUEST_TIMED_OUT."""
        waiting, self._waiting = self._waiting, {}
        self._rest()
        for queue in waiting.values():
            for each in queue:
                self._time_out(each)
        return bool(waiting)

    def _expire(self) -> None:
        """The first deadline is over, if nobody was answered who had it."""
        now, due = self._now() + ROUNDING_SECONDS, list[_Waiting]()
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now:
            _, _, key = heapq.heappop(deadlines)
            self._listed.remove(key)
            queue = self._waiting.get(key)
            if queue is None:
                continue
            while queue and queue[0].deadline <= now:
                due.append(queue.popleft())
            if queue:
                self._list(queue[0].deadline, key)
            else:
                del self._waiting[key]
        if self._waiting:
            self._deadline = deadlines[0][0]
            self._timer.set(self._deadline)
        else:
            self._rest()
        for each in due:
            self._purgatory.expired_count += 1
            self._time_out(each)

    def _list(self, deadline: float, key: object) -> None:
        self._listed.add(key)
        self._listed_count += 1
        heapq.heappush(self._deadlines, (deadline, self._listed_count, key))

    def _time_out(self, waiting: _Waiting) -> None:
        self._purgatory.completed_count += 1
        while waiting.answers:
            _tell(waiting.answers.popleft()[1], ErrorCode.REQUEST_TIMED_OUT, self._purgatory)

    def _rest(self) -> None:
        self._deadline = None
        self._deadlines.clear()
        self._listed.clear()
        self._timer.clear()
        self._purgatory.leave(self, self.partition.topic_partition)
        if self.partition.log is None:  # it was deleted, and if it comes again it is another one
            self._timer.close()
            self._when_idle()


def _answer_replicated(partition: Partition, answers: deque[tuple[int, Answer]], purgatory: Purgatory[Any]) -> None:
    """Answers those of which the partition can tell, up to the first of which it cannot."""
    is_replicated = partition.is_replicated
    while answers:
        required_offset, answer = answers[0]
        code = is_replicated(required_offset)
        if code is None:
            return
        answers.popleft()
        _tell(answer, code, purgatory)


def _tell_written(answer: Answer, error: KafkaError | None) -> None:
    answer.complete(ErrorCode.NONE if error is None else error.code, is_written=error is None)


def _tell(answer: Answer, code: ErrorCode, purgatory: Purgatory[Any], *, is_written: bool = True) -> None:
    """One that cannot be told must not keep the others waiting."""
    try:
        answer.complete(code, is_written=is_written)
    except Exception as error:  # noqa: BLE001 - logged there
        purgatory.report_failed(answer, error)
