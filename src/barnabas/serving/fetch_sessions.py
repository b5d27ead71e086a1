"""Fetch sessions (KIP-227): what a client or follower fetches is remembered, and only news go over the wire.

Kafka walks all partitions of a session for each of its requests. Here a session watches its partitions, and keeps those
of which there may be something to say: what a request has named, what has changed since, and what had more to give than
fitted. A follower of 2,000 quiet partitions costs its leader nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from barnabas.kernel.metrics import MetricName, MetricsRegistry
from barnabas.kernel.steps import Steps
from barnabas.leader.remote_replica import FetchClock
from barnabas.serving.fetch_partition import FetchPartition, NamedPartition, SessionKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.fetch_session import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION
from barnabas.wire.sentinels import NO_EPOCH

if TYPE_CHECKING:
    from barnabas.leader.partition import Partition
    from barnabas.serving.fetch_partition import PartitionRead

PARTITIONS_MAX: Final = 30_000
"""A session has no more. Whoever fetches more names them in each request, as before there were sessions."""
FEW_PARTITIONS: Final = 1024
"""More than these are looked at in steps."""
_PER_STEP: Final = 1024
EVICTION_SECONDS: Final = 120.0
"""A session that was not used for so long may be evicted by any other; one that is younger than that is spared from
those that are worth more only by being larger (`min.incremental.fetch.session.eviction.ms`, which is fixed)."""
_EPOCH_MAX: Final = 0x7FFFFFFF
_GROUP: Final = "kafka.server"
_TYPE: Final = "FetchSessionCache"


class Parked(Protocol):
    """A fetch that waits for news."""

    def partition_changed(self, fetched: FetchPartition) -> None: ...
    def answer_now(self) -> None: ...


class FetchSession:
    """One session. It watches its partitions from the first look at each until it is closed.

    Invariant: every partition that is not among `candidates` is watched, and has nothing to say that was not sent.
    """

    __slots__ = (
        "_candidates",
        "_items",
        "_watched",
        "clock",
        "created",
        "epoch",
        "follower_id",
        "is_closed",
        "is_privileged",
        "last_used",
        "parked",
        "session_id",
        "uses_topic_ids",
    )

    def __init__(
        self,
        session_id: int,
        items: Iterable[FetchPartition],
        *,
        follower_id: int,
        uses_topic_ids: bool,
        now: float,
        broker_epoch: int = NO_EPOCH,
    ) -> None:
        """`follower_id` is -1 for a client; `now` is of the loop's clock, in seconds; `broker_epoch` that of the
        follower, in the request that opens the session."""
        self.session_id = session_id
        self.epoch = 1
        """That of the next request."""
        self.follower_id = follower_id
        self.is_privileged = follower_id >= 0
        """A follower's session is evicted for no client's."""
        self.uses_topic_ids = uses_topic_ids
        self.created = self.last_used = now
        self.clock = FetchClock(now, broker_epoch)
        self.parked: dict[Parked, None] = {}
        self.is_closed = False
        """It may be closed while it is read in steps."""
        self._items = {item.key(uses_topic_ids=uses_topic_ids): item for item in items}
        self._candidates: dict[FetchPartition, None] = dict.fromkeys(self._items.values())
        self._watched: dict[Partition, FetchPartition] = {}

    def __len__(self) -> int:
        return len(self._items)

    @property
    def candidates(self) -> list[FetchPartition]:
        """The partitions of which there may be something to say; who has got the most lately comes last."""
        return list(self._candidates)

    @property
    def candidate_count(self) -> int:
        """How many partitions there may be something to say of."""
        return len(self._candidates)

    def item(self, key: SessionKey) -> FetchPartition | None:
        """The partition as the session has it."""
        return self._items.get(key)

    def has_news_besides(self, item: FetchPartition) -> bool:
        """There may be something to say of another partition than this one."""
        candidates = self._candidates
        return len(candidates) > (item in candidates)

    def count_after(self, asked: Sequence[FetchPartition], forgotten: Sequence[SessionKey]) -> int:
        """How many partitions it will have after `update`; more than that only where it has room enough."""
        items, uses_topic_ids = self._items, self.uses_topic_ids
        count = len(items) + len(asked)
        if count > PARTITIONS_MAX:
            count -= sum(item.key(uses_topic_ids=uses_topic_ids) in items for item in asked)
            count -= sum(key in items for key in forgotten)
        return count

    def update(self, asked: Sequence[FetchPartition], forgotten: Iterable[SessionKey]) -> None:
        """Takes over what an incremental request names."""
        items, candidates = self._items, self._candidates
        for item in asked:
            key = item.key(uses_topic_ids=self.uses_topic_ids)
            known = items.get(key)
            if known is None:
                items[key] = item
                candidates[item] = None
            else:
                known.update(item)
                candidates[known] = None
        for key in forgotten:
            gone = items.pop(key, None)
            if gone is not None:
                candidates.pop(gone, None)
                self._unwatch(gone)

    def update_known(self, named: Sequence[NamedPartition]) -> bool:
        """As `update`, where the session has all that is named; False, and nothing done, where it has not."""
        items = self._items
        try:
            known = [items[each.key] for each in named]
        except KeyError:
            return False
        candidates = self._candidates
        for item, each in zip(known, named, strict=True):
            item.update(each)
            candidates[item] = None
        return True

    def named_again(self, item: FetchPartition) -> None:
        """As `update_known`, of an item that has been updated."""
        self._candidates[item] = None

    def watch(self, item: FetchPartition, partition: Partition) -> None:
        """The partition of an item was found; it tells its changes from now on."""
        if item.watched is not partition and not self.is_closed:
            self._unwatch(item)
            item.watched = partition
            self._watched[partition] = item
            partition.watchers[self] = None

    def settle(self, item: FetchPartition, *, gave: bool, has_more: bool) -> None:
        """A response was made: what gave bytes goes to the end, so that all get their turn; what may have more to say
        stays, all else is looked at again when it has changed."""
        if item not in self._candidates:
            return
        if gave:
            del self._candidates[item]
            self._candidates[item] = None
        elif not has_more and item.watched is not None:
            del self._candidates[item]

    def partition_changed(self, partition: Partition) -> None:
        """A partition reports."""
        item = self._watched.get(partition)
        if item is not None:
            self._candidates[item] = None
            item.has_changed = True
            for fetch in tuple(self.parked):
                fetch.partition_changed(item)

    def close(self) -> None:
        """Watches nothing any more; fetches that are parked are answered."""
        self.is_closed = True
        for item in list(self._items.values()):
            self._unwatch(item)
        self.answer_parked()

    def answer_parked(self) -> None:
        """Has the fetches that are parked answered with what there is."""
        for fetch in tuple(self.parked):
            fetch.answer_now()

    def advance(self, now: float, broker_epoch: int) -> None:
        """A request of the present epoch has come, from a follower in that epoch of its broker."""
        self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1
        self.last_used = self.clock.time = now
        self.clock.broker_epoch = broker_epoch

    def _unwatch(self, item: FetchPartition) -> None:
        partition, item.watched = item.watched, None
        if partition is not None:
            del self._watched[partition]
            partition.watchers.pop(self, None)
            if self.is_privileged:
                partition.follower_left(self.follower_id, self.clock)


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
        session.settle(item, gave=read.size_bytes > 0, has_more=read.has_more or is_unheard or has_changed)

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
