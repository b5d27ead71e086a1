"""A fetch session (KIP-227): what a client or follower fetches is remembered, and only news go over the wire.

Kafka walks all partitions of a session for each of its requests. Here a session watches its partitions, and keeps those
of which there may be something to say: what a request has named, what has changed since, and what had more to give than
fitted. A follower of 2,000 quiet partitions costs its leader nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.leader.remote_replica import FetchClock
from barnabas.serving.catching_up import CatchUpShare
from barnabas.serving.fetch_partition import FetchPartition, NamedPartition, SessionKey
from barnabas.wire.fetch_session import next_epoch
from barnabas.wire.sentinels import NO_EPOCH

if TYPE_CHECKING:
    from barnabas.leader.partition import Partition

PARTITIONS_MAX: Final = 30_000
"""A session has no more. Whoever fetches more names them in each request, as before there were sessions."""


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
        "access_epoch",
        "catch_up",
        "clock",
        "created",
        "epoch",
        "follower_id",
        "has_left_some",
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
        self.catch_up = CatchUpShare()
        self.parked: dict[Parked, None] = {}
        self.access_epoch = -1
        """By which rights its partitions were looked at last."""
        self.has_left_some = False
        """The last response has left partitions to the next one, which does not wait for more then."""
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

    def first_candidates(self, count: int) -> list[FetchPartition]:
        """As many of them."""
        candidates = self._candidates
        return list(candidates) if len(candidates) <= count else list(islice(candidates, count))

    @property
    def candidate_count(self) -> int:
        """How many partitions there may be something to say of."""
        return len(self._candidates)

    @property
    def has_quiet(self) -> bool:
        """There are partitions of which there is nothing to say."""
        return len(self._items) > len(self._candidates)

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

    def rights_are(self, access_epoch: int) -> None:
        """A request has come. Where rights have changed since the last, there may be something to say of all."""
        if self.access_epoch != access_epoch:
            self.access_epoch = access_epoch
            self._candidates = dict.fromkeys(self._items.values())

    def watch(self, item: FetchPartition, partition: Partition) -> None:
        """The partition of an item was found; it tells its changes from now on."""
        if item.watched is not partition and not self.is_closed:
            self._unwatch(item)
            item.watched = partition
            self._watched[partition] = item
            partition.watchers[self] = None

    def settle(self, item: FetchPartition, *, gave: bool, has_more: bool) -> None:
        """A response was made: what gave bytes, or an error, goes to the end, so that all get their turn; what may
        have more to say stays, all else is looked at again when it has changed."""
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
        self.epoch = next_epoch(self.epoch)
        self.last_used = self.clock.time = now
        self.clock.broker_epoch = broker_epoch

    def _unwatch(self, item: FetchPartition) -> None:
        partition, item.watched = item.watched, None
        if partition is not None:
            del self._watched[partition]
            partition.watchers.pop(self, None)
            if self.is_privileged:
                partition.follower_left(self.follower_id, self.clock)
