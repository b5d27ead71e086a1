"""A follower's fetches of one partition, of which each is like the one before: nearly all that a leader with a busy
partition gets.

Such a request is compared with its last one, and only its fields that may be new are taken over; the object that is
parked, its timer and the response's form are the same again and again. Followers that fetch the same in one turn share
one read and one frame. Whatever is not as usual is left to the general path, at any point.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from barnabas.api.fetch_frames import shared_response
from barnabas.log.partition.read_plans import ReadIsolation
from barnabas.serving.fetch import SharedRead
from barnabas.wire.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.log.partition.partition_log import PartitionLog
    from barnabas.log.segments.segment import ReadPlan
    from barnabas.network.connection import ServerConnection, Slot
    from barnabas.serving.fetch import DelayedFetches
    from barnabas.serving.fetch_partition import FetchPartition
    from barnabas.serving.fetch_reads import FetchParameters
    from barnabas.serving.fetch_session import FetchSession
    from barnabas.serving.fetch_sessions import FetchScope, FetchSessionCache
    from barnabas.wire.compiler_templates import RepeatedReader
    from barnabas.wire.primitives import Buffer

_LOG_END: Final = ReadIsolation.LOG_END
_READ_BYTES_MAX: Final = 4 * 1024 * 1024
"""More than this is left to the general path, which copies off the loop what would take long."""


class RequestAnswers(Protocol):
    """The path of all requests of the connection: it counts, and answers what is not as usual."""

    def count_request(self) -> None: ...
    def count_answered_at_once(self) -> None: ...
    def count_waited(self, received: float) -> None: ...
    def count_given(self, item: FetchPartition, size_bytes: int) -> None: ...

    def answer_or_park(
        self,
        connection: ServerConnection,
        correlation_id: int,
        parameters: FetchParameters,
        scope: FetchScope,
        *,
        updates_followers: bool,
    ) -> list[Buffer] | None:
        """The response to a request, if there is one now; None where it is parked."""
        ...

    def answer_waiting(
        self, correlation_id: int, parameters: FetchParameters, scope: FetchScope, received: float, slot: Slot
    ) -> None:
        """Answers a request that has waited, with what there is."""
        ...

    def fail_waiting(self, correlation_id: int, received: float, slot: Slot, error: Exception) -> None:
        """Answers a request that has waited with what went wrong."""
        ...


class FollowerFetch:
    """The requests of one connection that name one partition of one session, and the parked one among them.

    Invariants: what a request changes (session, item, what the follower is known to have) is what the general path
    would change, and nothing has changed where `take` returns False. What is parked has nothing to give: its follower
    has fetched all of the log, so the session needs to tell it of changes only. It is answered once, by whatever comes
    first: a change, its time, or the end of its connection.
    """

    __slots__ = (
        "_correlation_id",
        "_epoch",
        "_fetches",
        "_is_parked",
        "_item",
        "_leader_epoch",
        "_max_bytes",
        "_now",
        "_parameters",
        "_path",
        "_read_cached",
        "_read_frame",
        "_received",
        "_session",
        "_sessions",
        "_slot",
        "_timer",
        "_wait_seconds",
        "size_bytes",
    )

    def __init__(
        self,
        path: RequestAnswers,
        fetches: DelayedFetches,
        sessions: FetchSessionCache,
        now: Callable[[], float],
        read_cached: Callable[[ReadPlan], memoryview | None],
        reader: RepeatedReader,
        parameters: FetchParameters,
        session: FetchSession,
        item: FetchPartition,
    ) -> None:
        """`item` is as the request says from which `reader` was made, and `session` the one that it is of;
        `read_cached` is as of `LogReader`."""
        self.size_bytes = reader.size_bytes
        """Of the frames that it takes."""
        self._path = path
        self._fetches = fetches
        self._sessions = sessions
        self._now = now
        self._read_cached = read_cached
        self._read_frame = reader.read
        self._parameters = parameters
        self._wait_seconds = parameters.max_wait_ms / 1000
        self._session = session
        self._item = item
        self._leader_epoch = item.leader_epoch
        self._max_bytes = item.max_bytes
        self._timer = fetches.purgatory.lazy_timer(self._expire)
        # Of the request that is parked, or was last.
        self._is_parked = False
        self._slot: Slot | None = None
        self._correlation_id = 0
        self._received = 0.0
        self._epoch = 0

    def take(self, connection: ServerConnection, buffer: bytearray | memoryview, start: int) -> bool:
        """Handles the request in the frame of `size_bytes` at `start`, header first, if it is as usual."""
        request = self._read_frame(buffer, start)
        if request is None:
            return False
        correlation_id, epoch, fetch_offset, last_fetched_epoch, log_start_offset = request
        session, item, parameters = self._session, self._item, self._parameters
        if session.epoch != epoch or session.parked or session.has_news_besides(item):
            return False
        access = parameters.access
        if access is not None and session.access_epoch != access.epoch:
            return False  # there may be something to say of all partitions
        reader = self._fetches.reader
        log = reader.log_in_step(parameters, item, self._leader_epoch, fetch_offset, last_fetched_epoch)
        if log is None:
            return False
        item.fetch_offset = fetch_offset
        item.max_bytes = self._max_bytes
        item.leader_epoch = self._leader_epoch
        item.last_fetched_epoch = last_fetched_epoch
        item.log_start_offset = log_start_offset
        session.named_again(item)
        now = self._now()
        self._sessions.use(session, now, parameters.follower_epoch)
        self._correlation_id, self._received, self._epoch = correlation_id, now, session.epoch
        reader.follower_has(parameters, item, log, session.clock, now)
        if fetch_offset < log.log_end_offset:
            self._answer_now(connection, log)
        else:
            self._path.count_request()
            reader.count_read(item)
            self._park(connection, now)
        return True

    @property
    def waiting_count(self) -> int:
        """How many requests are parked."""
        return int(self._is_parked)

    @property
    def completed(self) -> bool:
        return not self._is_parked

    def try_complete(self) -> bool:
        """Whoever has news tells; there are none otherwise."""
        return False

    def force_complete(self) -> bool:
        """Answers what is parked with what there is."""
        if not self._is_parked:
            return False
        slot = self._end_wait()
        if slot is None:
            return False
        self._fetches.purgatory.completed_count += 1
        path = self._path
        try:
            log = self._log_with_news()
            frame = None if log is None else self._frame(log)
            scope = None if frame is not None else self._sessions.scope_in(self._session, self._epoch)
        except Exception as error:  # noqa: BLE001 - logged there
            path.fail_waiting(self._correlation_id, self._received, slot, error)
            return True
        if scope is not None:
            path.answer_waiting(self._correlation_id, self._parameters, scope, self._received, slot)
        else:
            path.count_waited(self._received)
            slot.complete(frame)
        return True

    def partition_changed(self, fetched: FetchPartition) -> None:
        """A partition of the session may have more, or less. One byte is enough."""
        if not self._is_parked:
            return
        if self._fetches.reader.available(self._parameters, fetched) != 0:
            self._fetches.ready(self)
        else:
            self._fetches.high_watermark_may_move(self, fetched)

    def answer_now(self) -> None:
        """There is nobody left who would tell of changes, or the follower is wanted for something else."""
        if self._is_parked:
            self._fetches.ready(self)

    def close(self) -> None:
        """Nothing comes any more, and nothing is parked."""
        self._timer.close()

    def _answer_now(self, connection: ServerConnection, log: PartitionLog) -> None:
        frame = self._frame(log)
        if frame is not None:
            self._path.count_request()
            connection.collected += 1
            self._path.count_answered_at_once()
            connection.answer_collected(frame)
            return
        scope = self._sessions.scope_in(self._session, self._epoch)
        connection.collected += 1
        answer = self._path.answer_or_park(
            connection, self._correlation_id, self._parameters, scope, updates_followers=False
        )
        connection.answer_collected(answer)

    def _park(self, connection: ServerConnection, now: float) -> None:
        slot = self._slot = connection.park()
        slot.when_lost = self._give_up
        self._is_parked = True
        self._session.parked[self] = None
        self._fetches.purgatory.stand(self)
        self._timer.set(now + self._wait_seconds)

    def _end_wait(self) -> Slot | None:
        slot, self._slot = self._slot, None
        self._is_parked = False
        self._session.parked.pop(self, None)
        self._fetches.purgatory.leave(self)
        self._timer.clear()
        return slot

    def _give_up(self) -> None:
        """Nobody waits for it any more: it is not answered."""
        if self._is_parked:
            self._end_wait()
        self._timer.close()

    def _expire(self) -> None:
        self._fetches.purgatory.expired_count += 1
        if self.force_complete():
            self._fetches.expired(self._parameters)

    def _log_with_news(self) -> PartitionLog | None:
        """The log, where it has records for the request that was parked, and is all that there is to say."""
        session, item = self._session, self._item
        if session.epoch != self._epoch or session.has_news_besides(item):
            return None
        log = self._fetches.reader.log_in_step(
            self._parameters, item, self._leader_epoch, item.fetch_offset, item.last_fetched_epoch
        )
        return None if log is None or item.fetch_offset == log.log_end_offset else log

    def _frame(self, log: PartitionLog) -> list[Buffer] | None:
        """The response with the records from the item's offset on, all counted but the request; None for one that only
        the general path can give, and then nothing has changed."""
        item, fetches = self._item, self._fetches
        read = fetches.shared_read
        state = (
            log,
            item.fetch_offset,
            min(self._max_bytes, self._parameters.max_bytes),
            log.log_end_offset,
            log.high_watermark,
            log.last_stable_offset,
            log.log_start_offset,
        )
        if read is None or read.state != state:
            read = self._read(log, state)
            if read is None:
                return None
        session = self._session
        fetches.reader.count_read(item)
        item.sent_high_watermark = log.high_watermark
        item.sent_log_start_offset = log.log_start_offset
        session.settle(item, gave=True, has_more=True)
        self._path.count_given(item, read.size_bytes)
        return read.response.frame(self._correlation_id, session.session_id)

    def _read(self, log: PartitionLog, state: tuple[object, ...]) -> SharedRead | None:
        item, fetches = self._item, self._fetches
        limit = min(self._max_bytes, self._parameters.max_bytes)
        try:
            found = log.read(item.fetch_offset, limit, _LOG_END, has_minimum=True)
            plan = found.plan
            if plan is None or not 0 < plan.length_bytes <= _READ_BYTES_MAX or plan.is_first_batch_incomplete:
                return None
            data = self._read_cached(plan)
        except (KafkaError, OSError):
            return None  # said there
        if data is None:
            return None
        response = shared_response(
            item.topic_id,
            item.topic_partition.partition,
            found.high_watermark,
            found.last_stable_offset,
            found.log_start_offset,
            data,
        )
        read = SharedRead(state, len(data), response)
        fetches.share(read)
        return read
