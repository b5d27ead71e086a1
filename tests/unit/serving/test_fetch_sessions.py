"""Fetch sessions (`barnabas.serving.fetch_sessions`, `fetch_session`): which there are, and what each remembers."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.kernel.metrics import Gauge, MetricName, MetricsRegistry
from barnabas.log.partition.leader_epochs import EpochEnd
from barnabas.serving import fetch_session, fetch_sessions
from barnabas.serving.fetch_partition import FetchPartition, PartitionRead
from barnabas.serving.fetch_sessions import EVICTION_SECONDS, FetchScope, FetchSessionCache, SessionRequest
from barnabas.wire.errors import ErrorCode
from barnabas.wire.fetch_session import FINAL_EPOCH, INITIAL_EPOCH
from barnabas.wire.primitives import ZERO_UUID


class Watched:
    """A partition that can be watched."""

    def __init__(self) -> None:
        self.watchers: dict[Any, None] = {}
        self.left: list[int] = []

    def follower_left(self, follower_id: int, _clock: object) -> None:
        self.left.append(follower_id)


class Sessions:
    """A cache whose clock and ids the test decides."""

    def __init__(self, slots: int) -> None:
        self.now = 1000.0
        self.metrics = MetricsRegistry(lambda: self.now)
        self._last_id = 0
        self.cache = FetchSessionCache(slots, lambda: self.now, self._entropy, self.metrics)

    def _entropy(self, count: int) -> bytes:
        self._last_id += 1
        return self._last_id.to_bytes(count, "big")

    def scope(
        self,
        session_id: int = 0,
        epoch: int = INITIAL_EPOCH,
        *,
        count: int = 0,
        follower_id: int = -1,
        forgets: int = 0,
        follower_epoch: int = -1,
    ) -> FetchScope:
        """A request that names `count` partitions, or forgets the first `forgets`."""
        return self.cache.scope(
            SessionRequest(
                session_id=session_id,
                session_epoch=epoch,
                follower_id=follower_id,
                uses_topic_ids=False,
                asked=[item(number) for number in range(count)],
                forgotten=[("flights", number) for number in range(forgets)],
                follower_epoch=follower_epoch,
            )
        )

    def open(self, count: int = 1, follower_id: int = -1, follower_epoch: int = -1) -> int:
        """The id of a new session; 0 if there is no room."""
        scope = self.scope(count=count, follower_id=follower_id, follower_epoch=follower_epoch)
        list(scope.select([(each, PartitionRead(ErrorCode.NONE)) for each in scope.items()]))
        return scope.session_id

    def use(self, session_id: int) -> None:
        session = self.cache.sessions[session_id]
        assert self.scope(session_id, session.epoch).error == ErrorCode.NONE

    def gauge(self, name: str) -> float:
        found = self.metrics.get(MetricName("kafka.server", "FetchSessionCache", name))
        assert isinstance(found, Gauge)
        return found.read()


def item(number: int, **options: Any) -> FetchPartition:
    return FetchPartition("flights", ZERO_UUID, number, **({"fetch_offset": 0, "max_bytes": 1 << 20} | options))


def test_counts_sessions_and_partitions() -> None:
    sessions = Sessions(10)
    first, _ = sessions.open(3), sessions.open(4)
    assert (sessions.gauge("NumIncrementalFetchSessions"), sessions.gauge("NumIncrementalFetchPartitionsCached")) == (
        2,
        7,
    )
    sessions.scope(first, 1, forgets=2)
    assert sessions.gauge("NumIncrementalFetchPartitionsCached") == 5
    sessions.scope(first, FINAL_EPOCH)
    assert (sessions.gauge("NumIncrementalFetchSessions"), sessions.gauge("NumIncrementalFetchPartitionsCached")) == (
        1,
        4,
    )


def test_the_clock_of_a_followers_session_has_the_epoch_of_its_last_request() -> None:
    sessions = Sessions(10)
    session_id = sessions.open(follower_id=2, follower_epoch=5)
    clock = sessions.cache.sessions[session_id].clock
    assert clock.broker_epoch == 5
    sessions.scope(session_id, 1, follower_id=2, follower_epoch=5)
    assert clock.broker_epoch == 5
    sessions.scope(session_id, 2, follower_id=2, follower_epoch=8)
    assert clock.broker_epoch == 8


def test_a_session_that_is_closed_while_it_is_read_in_steps_watches_nothing_more() -> None:
    sessions = Sessions(10)
    session_id = sessions.open(2)
    session = sessions.cache.sessions[session_id]
    sessions.scope(session_id, FINAL_EPOCH)
    partition: Any = Watched()
    session.watch(session.candidates[0], partition)
    assert not partition.watchers


def test_a_session_has_so_many_partitions_however_often_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fetch_session, fetch_sessions):
        monkeypatch.setattr(module, "PARTITIONS_MAX", 10)
    sessions = Sessions(10)
    session_id = sessions.open(8)
    for epoch, count, forgets in ((1, 8, 0), (2, 10, 0), (3, 10, 5), (4, 10, 0)):
        assert sessions.scope(session_id, epoch, count=count, forgets=forgets).error == ErrorCode.NONE
        assert len(sessions.cache.sessions[session_id]) == count - forgets
    assert sessions.scope(session_id, 5, count=11).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert not sessions.cache.sessions


def test_a_session_without_partitions_is_over() -> None:
    sessions = Sessions(10)
    session_id = sessions.open(2)
    scope = sessions.scope(session_id, 1, forgets=2)
    assert (scope.error, scope.session, scope.session_id) == (ErrorCode.NONE, None, 0)
    assert not sessions.cache.sessions


def test_without_slots_there_are_no_sessions() -> None:
    assert Sessions(0).open(5) == 0


def test_a_client_takes_no_place_of_others_that_are_in_use() -> None:
    sessions = Sessions(2)
    sessions.open(1)
    sessions.open(1, follower_id=3)
    assert sessions.open(100) == 0
    assert sessions.cache.evictions.count == 0


def test_a_follower_takes_the_place_of_the_clients_smallest_session() -> None:
    sessions = Sessions(3)
    large, small, follower = sessions.open(9), sessions.open(2), sessions.open(1, follower_id=3)
    assert sessions.open(1, follower_id=4) != 0
    assert set(sessions.cache.sessions) & {large, small, follower} == {large, follower}
    assert sessions.cache.evictions.count == 1


@pytest.mark.parametrize(("seconds", "evicts"), [(EVICTION_SECONDS, False), (EVICTION_SECONDS + 1, True)])
def test_a_session_that_nobody_uses_goes_first(seconds: float, *, evicts: bool) -> None:
    sessions = Sessions(2)
    unused = sessions.open(100, follower_id=3)
    sessions.now += seconds / 2
    used = sessions.open(1)
    sessions.now += seconds / 2
    sessions.use(used)
    assert (sessions.open(1) != 0) is evicts
    assert (unused in sessions.cache.sessions) is not evicts
    assert used in sessions.cache.sessions


@pytest.mark.parametrize(("count", "evicts"), [(2, False), (3, False), (4, True)])
def test_an_old_session_goes_for_one_that_is_worth_more(count: int, *, evicts: bool) -> None:
    sessions = Sessions(2)
    ids = [sessions.open(3), sessions.open(5)]
    for _ in range(3):
        sessions.now += EVICTION_SECONDS / 2
        for session_id in ids:
            sessions.use(session_id)
    assert (sessions.open(count) != 0) is evicts
    assert (ids[0] in sessions.cache.sessions) is not evicts
    assert ids[1] in sessions.cache.sessions


def test_epochs_count_on_and_wrap_to_1() -> None:
    sessions = Sessions(1)
    session_id = sessions.open(1)
    session = sessions.cache.sessions[session_id]
    session.epoch = 2**31 - 1
    assert sessions.scope(session_id, 2**31 - 1).error == ErrorCode.NONE
    assert session.epoch == 1
    assert sessions.scope(session_id, 2**31 - 1).error == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_looks_again_only_at_what_was_named_or_has_changed() -> None:
    sessions = Sessions(1)
    session_id = sessions.open(4)
    session = sessions.cache.sessions[session_id]
    partitions: list[Any] = [Watched() for _ in range(4)]
    for each, partition in zip(session.candidates, partitions, strict=True):
        session.watch(each, partition)
        session.settle(each, gave=False, has_more=False)
    assert session.candidates == []
    session.partition_changed(partitions[2])
    scope = sessions.scope(session_id, 1, count=1)
    assert [each.topic_partition.partition for each in scope.items()] == [2, 0]
    first, second = scope.items()
    session.settle(first, gave=True, has_more=True)
    session.settle(second, gave=False, has_more=True)
    assert session.candidates == [second, first]


def test_what_was_never_found_is_looked_at_every_time() -> None:
    sessions = Sessions(1)
    session = sessions.cache.sessions[sessions.open(1)]
    (unknown,) = session.candidates
    session.settle(unknown, gave=False, has_more=False)
    assert session.candidates == [unknown]


def test_closing_ends_the_watch_and_tells_the_leader() -> None:
    sessions = Sessions(1)
    session_id = sessions.open(2, follower_id=7)
    session = sessions.cache.sessions[session_id]
    partitions: list[Any] = [Watched(), Watched()]
    for each, partition in zip(session.candidates, partitions, strict=True):
        session.watch(each, partition)
    assert all(session in partition.watchers for partition in partitions)
    sessions.scope(session_id, 1, forgets=1)
    assert [partition.left for partition in partitions] == [[7], []]
    sessions.scope(session_id, FINAL_EPOCH)
    assert [partition.left for partition in partitions] == [[7], [7]]
    assert not any(partition.watchers for partition in partitions)


def test_a_partition_that_is_another_object_now_is_watched_instead() -> None:
    sessions = Sessions(1)
    session = sessions.cache.sessions[sessions.open(1)]
    (each,) = session.candidates
    before: Any = Watched()
    after: Any = Watched()
    session.watch(each, before)
    session.watch(each, after)
    assert (list(before.watchers), list(after.watchers)) == ([], [session])
    session.settle(each, gave=False, has_more=False)
    session.partition_changed(before)
    assert session.candidates == []
    session.partition_changed(after)
    assert session.candidates == [each]


@pytest.mark.parametrize(
    ("change", "is_news"),
    [
        ({}, False),
        ({"high_watermark": 6}, True),
        ({"log_start_offset": 1}, True),
        ({"code": ErrorCode.NOT_LEADER_OR_FOLLOWER}, True),
        ({"last_stable_offset": 6}, False),
    ],
)
def test_news_is_what_the_client_was_not_told(change: dict[str, Any], *, is_news: bool) -> None:
    fetched = item(0)
    read = PartitionRead(ErrorCode.NONE, high_watermark=5, last_stable_offset=5, log_start_offset=0)
    assert fetched.note_sent(read)
    assert not fetched.note_sent(read)
    assert fetched.note_sent(read._replace(**change)) is is_news
    if "code" in change:
        assert fetched.note_sent(read)  # that the error is over


@pytest.mark.parametrize("epoch", [3, 4])
def test_what_a_follower_could_not_take_over_is_said_again(epoch: int) -> None:
    """Where the logs part, nothing else counts; and one in a new epoch drops what was said in the former one."""
    fetched = item(0, leader_epoch=3)
    read = PartitionRead(ErrorCode.NONE, high_watermark=5, log_start_offset=0)
    assert fetched.note_sent(read._replace(diverging=EpochEnd(2, 4)))
    assert fetched.note_sent(read)
    assert not fetched.note_sent(read)
    fetched.update(item(0, leader_epoch=epoch))
    assert fetched.note_sent(read) is (epoch == 4)


def test_what_had_something_to_say_comes_after_all_others() -> None:
    sessions = Sessions(1)
    session = sessions.cache.sessions[sessions.open(5)]
    reads = {
        0: PartitionRead(ErrorCode.OFFSET_OUT_OF_RANGE),
        1: PartitionRead(ErrorCode.NONE, preferred_replica=2),
        2: PartitionRead(ErrorCode.NONE, diverging=EpochEnd(2, 4)),
        3: PartitionRead(ErrorCode.NONE),
    }
    scope = sessions.scope(session.session_id, 1)
    list(scope.select([(each, reads[each.topic_partition.partition]) for each in session.candidates[:4]]))
    assert [each.topic_partition.partition for each in session.candidates] == [3, 4, 0, 1, 2]


def test_a_full_scope_has_what_it_names() -> None:
    scope = Sessions(1).scope(count=2)
    assert [each.topic_partition.partition for each in scope.items()] == [0, 1]
    assert scope.has_others(1)
    assert not scope.has_others(2)


class Parked:
    """A fetch that waits in a session."""

    def __init__(self) -> None:
        self.answered = 0

    def partition_changed(self, _fetched: FetchPartition) -> None:
        raise AssertionError("no partition has changed")

    def answer_now(self) -> None:
        self.answered += 1


def test_followers_that_are_called_have_their_parked_fetches_answered() -> None:
    sessions = Sessions(slots=3)
    fetches = {}
    for follower_id in (1, 2, -1):
        fetches[follower_id] = Parked()
        session = sessions.cache.sessions[sessions.open(follower_id=follower_id)]
        session.parked[fetches[follower_id]] = None
    sessions.cache.call_followers({2, 3})
    assert {follower_id: fetch.answered for follower_id, fetch in fetches.items()} == {1: 0, 2: 1, -1: 0}


class Followed(Watched):
    """A partition that a follower fetches; `hears` is what `update_follower` would have told."""

    def __init__(self, *, hears: bool) -> None:
        super().__init__()
        self.hears = hears
        self.clock: object | None = None

    def follower_joined(self, _follower_id: int, clock: object) -> None:
        if self.hears and self.clock is None:
            self.clock = clock

    def is_fetched_by(self, _follower_id: int, clock: object) -> bool:
        return self.clock is clock


def quiet_read(partition: Followed) -> PartitionRead:
    return PartitionRead(ErrorCode.NONE, partition=partition, has_more=False)  # type: ignore[arg-type]


def test_a_followers_clock_tells_of_a_quiet_partition_from_the_fetch_on_that_opens_the_session() -> None:
    sessions = Sessions(1)
    partition = Followed(hears=True)
    scope = sessions.scope(count=1, follower_id=3)
    list(scope.select([(each, quiet_read(partition)) for each in scope.items()]))
    session = sessions.cache.sessions[scope.session_id]
    assert partition.clock is session.clock
    assert session.candidates == [], "there is nothing to say of it"


def test_a_partition_that_has_not_heard_of_its_follower_is_looked_at_until_it_has() -> None:
    sessions = Sessions(1)
    partition = Followed(hears=False)  # it became readable only while the fetch was parked
    scope = sessions.scope(count=1, follower_id=3)
    list(scope.select([(each, quiet_read(partition)) for each in scope.items()]))
    session = sessions.cache.sessions[scope.session_id]
    for _ in range(2):
        scope = sessions.scope(session.session_id, session.epoch, follower_id=3)
        assert len(scope.items()) == 1
        list(scope.select([(each, quiet_read(partition)) for each in scope.items()]))
    partition.clock = session.clock
    scope = sessions.scope(session.session_id, session.epoch, follower_id=3)
    list(scope.select([(each, quiet_read(partition)) for each in scope.items()]))
    assert session.candidates == []


def test_a_clients_session_asks_for_no_such_thing() -> None:
    sessions = Sessions(1)
    scope = sessions.scope(count=1)
    list(scope.select([(each, quiet_read(Followed(hears=False))) for each in scope.items()]))
    assert sessions.cache.sessions[scope.session_id].candidates == []
