"""Which fetch sessions there are (KIP-227), and what one request fetches: what it names, or what its session has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from barnabas.kernel.metrics import MetricName, MetricsRegistry
from barnabas.kernel.steps import Steps
from barnabas.serving.fetch_partition import FetchPartition, NamedPartition, SessionKey
from barnabas.serving.fetch_session import PARTITIONS_MAX, FetchSession, Parked
from barnabas.wire.errors import ErrorCode
from barnabas.wire.fetch_session import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION
from barnabas.wire.sentinels import NO_EPOCH

if TYPE_CHECKING:
    from barnabas.serving.fetch_partition import PartitionRead

FEW_PARTITIONS: Final = 512
"""More than these are looked at in steps."""
_PER_STEP: Final = 1024
EVICTION_SECONDS: Final = 120.0
"""A session that was not used for so long may be evicted by any other; one that is younger than that is spared from
those that are worth more only by being larger (`min.incremental.fetch.session.eviction.ms`, which is fixed)."""
_GROUP: Final = "kafka.server"
_TYPE: Final = "FetchSessionCache"


class SessionRequest(NamedTuple):
    """What a Fetch request says of sessions, and what it names. `follower_id` is -1 for a client, `follower_epoch` that
    of the follower's broker."""

    session_id: int
    session_epoch: int
    follower_id: int
    uses_topic_ids: bool
    asked: Sequence[FetchPartition]
    forgotten: Sequence[SessionKey] = ()
    follower_epoch: int = NO_EPOCH

    @property
    def is_full(self) -> bool:
        return self.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH)


class Access(Protocol):
    """The rights of who has sent a request; `fetch_reads.FetchAccess` says more."""

    @property
    def epoch(self) -> int: ...


class FetchScope:
    """What one request fetches: what it names, or what its session has.

    At the end `select` says what goes into the response, and `error` and `session_id` what the response says of the
    session. `call_count` is how often its follower had been called when the request came.
    """

    __slots__ = ("_cache", "_expected_epoch", "_opens", "_request", "call_count", "error", "session", "session_id")

    def __init__(
        self,
        cache: FetchSessionCache,
        request: SessionRequest,
        *,
        session: FetchSession | None = None,
        opens: bool = False,
        error: ErrorCode = ErrorCode.NONE,
        expected_epoch: int | None = None,
    ) -> None:
        """`expected_epoch` is what the session's was when the request had come; None where that is now."""
        self._cache = cache
        self._request = request
        self._opens = opens
        self.call_count = cache.call_counts.get(request.follower_id, 0)
        if expected_epoch is None:
            expected_epoch = session.epoch if session is not None else 0
        self._expected_epoch = expected_epoch
        self.session = session
        self.error = error
        self.session_id = session.session_id if session is not None else NO_SESSION

    @property
    def uses_topic_ids(self) -> bool:
        """Whether topics are named by their ids."""
        return self._request.uses_topic_ids

    @property
    def goes_on(self) -> bool:
        """The last response of its session has not told all that there was; asked before anything is read."""
        return self.session is not None and self.session.has_left_some

    def park(self, fetch: Parked) -> None:
        """It waits, until `unpark`; told when its session ends or its follower is called, or has been since."""
        session, cache, follower_id = self.session, self._cache, self._request.follower_id
        if session is not None:
            session.parked[fetch] = None
        elif follower_id >= 0:
            cache.parked_without_session[fetch] = follower_id
        if cache.call_counts.get(follower_id, 0) != self.call_count or (session is not None and session.is_closed):
            fetch.answer_now()

    def unpark(self, fetch: Parked) -> None:
        parked = self._cache.parked_without_session if self.session is None else self.session.parked
        parked.pop(fetch, None)

    def items(self) -> Sequence[FetchPartition]:
        """What is to be looked at now, in this order."""
        return self.session.candidates if self.session is not None else self._request.asked

    def few_items(self) -> Sequence[FetchPartition]:
        """The first of them, as many as are looked at in one turn; what is asked for without session is no more."""
        return self.session.first_candidates(FEW_PARTITIONS) if self.session is not None else self._request.asked

    def named_items(self, count: int) -> Iterator[Sequence[FetchPartition]]:
        """What the request names, as its session has it, so many at a time."""
        session, request = self.session, self._request
        for start in range(0, len(request.asked), count):
            some = request.asked[start : start + count]
            if session is not None:
                found = (session.item(asked.key(uses_topic_ids=request.uses_topic_ids)) for asked in some)
                some = [item for item in found if item is not None]
            yield some

    def has_others(self, count: int) -> bool:
        """There are more partitions than so many."""
        return (len(self.session) if self.session is not None else len(self._request.asked)) > count

    def select(self, reads: Sequence[tuple[FetchPartition, PartitionRead]]) -> Iterator[int]:
        """The positions of the reads that go into the response, all others being no news.

        Opens the session, if one was asked for and there is room.
        """
        session = self.session
        if session is None:
            if self._opens:
                self._open(reads)
            return iter(range(len(reads)))
        if session.epoch != self._expected_epoch:
            self.error = ErrorCode.INVALID_FETCH_SESSION_EPOCH
            return iter(())
        return iter(self._news(session, reads, in_steps=False))

    def give_nothing(self) -> None:
        """In place of `select`, where nothing of what was read is given: it is read again for the next request, and no
        session is opened."""
        session = self.session
        if session is not None and session.epoch != self._expected_epoch:
            self.error = ErrorCode.INVALID_FETCH_SESSION_EPOCH

    def select_in_steps(self, reads: Sequence[tuple[FetchPartition, PartitionRead]]) -> Steps[Sequence[int]]:
        """As `select`, of very many that were read in steps. What has changed since it was read is looked at again when
        the next request comes: what a new session is told first, which was not watched, altogether.
        """
        if self.session is not None:
            if self.session.epoch != self._expected_epoch:
                self.error = ErrorCode.INVALID_FETCH_SESSION_EPOCH
                return ()
            news: list[int] = []
            for start in range(0, len(reads), _PER_STEP):
                some = reads[start : start + _PER_STEP]
                news += [start + found for found in self._news(self.session, some, in_steps=True)]
                yield
            return news
        if self._opens and len(reads) <= PARTITIONS_MAX:
            session = self._cache.make(self._request, [item for item, _ in reads])
            opened = False
            try:
                for start in range(0, len(reads), _PER_STEP):
                    self._fill(session, reads[start : start + _PER_STEP], in_steps=True)
                    yield
                opened = self._cache.add(session)
            finally:
                if not opened:
                    session.close()
            self.session_id = session.session_id if opened else NO_SESSION
        return range(len(reads))

    def _open(self, reads: Sequence[tuple[FetchPartition, PartitionRead]]) -> None:
        session = self._cache.make(self._request, [item for item, _ in reads])
        if self._cache.add(session):
            self.session_id = session.session_id
            self._fill(session, reads, in_steps=False)

    def _fill(
        self, session: FetchSession, reads: Sequence[tuple[FetchPartition, PartitionRead]], *, in_steps: bool
    ) -> None:
        """Takes note of what a new session is told first, and watches its partitions."""
        for item, read in reads:
            item.note_sent(read)
            if read.partition is not None:
                session.watch(item, read.partition)
                if session.is_privileged and read.code is ErrorCode.NONE and read.diverging is None:
                    read.partition.follower_joined(session.follower_id, session.clock)
            self._settle(session, item, read, has_changed=in_steps)

    def _settle(self, session: FetchSession, item: FetchPartition, read: PartitionRead, *, has_changed: bool) -> None:
        """A partition that became readable only while the fetch was parked does not know of its follower yet: it is
        looked at again when the next request comes, though it may have nothing to say; and so is one that may have
        changed since it was read."""
        is_unheard = (
            session.is_privileged
            and read.partition is not None
            and not read.partition.is_fetched_by(session.follower_id, session.clock)
        )
        session.settle(item, gave=read.is_said_again, has_more=read.has_more or is_unheard or has_changed)

    def _news(
        self, session: FetchSession, reads: Sequence[tuple[FetchPartition, PartitionRead]], *, in_steps: bool
    ) -> list[int]:
        found = []
        for position, (item, read) in enumerate(reads):
            if item.note_sent(read):
                found.append(position)
            self._settle(session, item, read, has_changed=in_steps and item.has_changed)
        return found


class FetchSessionCache:
    """The sessions of a broker, at most `slots` (`max.incremental.fetch.session.cache.slots`).

    A new session takes the place of one that was not used for two minutes, or of one that is worth less: a client's
    before a follower's, few partitions before many (KIP-227).
    """

    def __init__(
        self, slots: int, now: Callable[[], float], entropy: Callable[[int], bytes], metrics: MetricsRegistry
    ) -> None:
        """`now` is the loop's time in seconds."""
        self._slots = slots
        self._now = now
        self._entropy = entropy
        # In the order of their last use.
        self._sessions: dict[int, FetchSession] = {}
        self.parked_without_session: dict[Parked, int] = {}
        """The followers whose they are."""
        self.call_counts: dict[int, int] = {}
        self.evictions = metrics.meter(MetricName(_GROUP, _TYPE, "IncrementalFetchSessionEvictionsPerSec"))
        metrics.gauge(MetricName(_GROUP, _TYPE, "NumIncrementalFetchSessions"), lambda: len(self._sessions))
        metrics.gauge(MetricName(_GROUP, _TYPE, "NumIncrementalFetchPartitionsCached"), self._count_partitions)

    @property
    def sessions(self) -> Mapping[int, FetchSession]:
        return self._sessions

    def scope(self, request: SessionRequest) -> FetchScope:
        """What a request fetches."""
        if request.is_full:
            self._remove(self._sessions.get(request.session_id))
            return FetchScope(self, request, opens=request.session_epoch == INITIAL_EPOCH)
        session = self._sessions.get(request.session_id)
        if session is None:
            return FetchScope(self, request, error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            return FetchScope(self, request, error=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != request.uses_topic_ids:
            return FetchScope(self, request, error=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if (
            max(len(request.asked), len(request.forgotten)) > PARTITIONS_MAX
            or session.count_after(request.asked, request.forgotten) > PARTITIONS_MAX
        ):
            self._remove(session)
            return FetchScope(self, request, error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.update(request.asked, request.forgotten)
        if not len(session):
            self._remove(session)
            return FetchScope(self, request)
        return self._go_on(session, request)

    def scope_of_known(self, request: SessionRequest, named: Sequence[NamedPartition]) -> FetchScope | None:
        """As `scope`, for an incremental request that names (`named`, and not in `request`) only what its session has,
        and forgets nothing; None for any other, and then nothing has been taken over."""
        session = self._sessions.get(request.session_id)
        if (
            session is None
            or session.epoch != request.session_epoch
            or session.uses_topic_ids != request.uses_topic_ids
            or not len(session)
            or session.candidate_count > FEW_PARTITIONS
            or not session.update_known(named)
        ):
            return None
        return self._go_on(session, request)

    def rights_are(self, session_id: int, access: Access | None) -> None:
        """A request of the session has come, from somebody with these rights."""
        session = None if access is None else self._sessions.get(session_id)
        if session is not None and access is not None:
            session.rights_are(access.epoch)

    def call_followers(self, broker_ids: Collection[int]) -> None:
        """Has what these followers have parked answered, or are about to: this broker leads partitions now that they
        are to fetch too, which they can only say in another request."""
        for broker_id in broker_ids:
            self.call_counts[broker_id] = self.call_counts.get(broker_id, 0) + 1
        for session in tuple(self._sessions.values()):
            if session.follower_id in broker_ids:
                session.answer_parked()
        for fetch, follower_id in tuple(self.parked_without_session.items()):
            if follower_id in broker_ids:
                fetch.answer_now()

    def make(self, request: SessionRequest, items: Sequence[FetchPartition]) -> FetchSession:
        """A new session, which nobody finds before it is added."""
        return FetchSession(
            self._new_id(),
            items,
            follower_id=request.follower_id,
            uses_topic_ids=request.uses_topic_ids,
            now=self._now(),
            broker_epoch=request.follower_epoch,
        )

    def add(self, session: FetchSession) -> bool:
        """True if there is room for the session, or could be made; and no other has got its id meanwhile."""
        if session.session_id in self._sessions:
            return False
        if len(self._sessions) >= self._slots and not self._evict(
            len(session), self._now(), is_privileged=session.is_privileged
        ):
            return False
        self._sessions[session.session_id] = session
        return True

    def use(self, session: FetchSession, now: float, follower_epoch: int) -> None:
        """A request of the session's present epoch has come."""
        session.advance(now, follower_epoch)
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)

    def scope_in(self, session: FetchSession, expected_epoch: int) -> FetchScope:
        """What a request fetches that `use` was called for, after which the session was in `expected_epoch`."""
        request = SessionRequest(
            session.session_id,
            expected_epoch,
            session.follower_id,
            session.uses_topic_ids,
            (),
            (),
            session.clock.broker_epoch,
        )
        return FetchScope(self, request, session=session, expected_epoch=expected_epoch)

    def _go_on(self, session: FetchSession, request: SessionRequest) -> FetchScope:
        """A request of the session's present epoch has come, and what it names was taken over."""
        self.use(session, self._now(), request.follower_epoch)
        return FetchScope(self, request, session=session)

    def _evict(self, size: int, now: float, *, is_privileged: bool) -> bool:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now - oldest.last_used > EVICTION_SECONDS:
            self._remove(oldest)
            self.evictions.count += 1
            return True
        evictable = [
            (session.is_privileged, len(session), session.session_id)
            for session in self._sessions.values()
            if (is_privileged and not session.is_privileged) or now - session.created > EVICTION_SECONDS
        ]
        least = min(evictable, default=None)
        if least is None or (is_privileged, size, 0) < least:
            return False
        self._remove(self._sessions[least[2]])
        self.evictions.count += 1
        return True

    def _remove(self, session: FetchSession | None) -> None:
        if session is not None:
            del self._sessions[session.session_id]
            session.close()

    def _new_id(self) -> int:
        while True:
            session_id = int.from_bytes(self._entropy(4), "big") & 0x7FFFFFFF
            if session_id != NO_SESSION and session_id not in self._sessions:
                return session_id

    def _count_partitions(self) -> int:
        return sum(map(len, self._sessions.values()))
