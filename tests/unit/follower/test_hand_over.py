"""Two fetchers of one leader, for what the follower is behind with and for the rest, in virtual time."""

from __future__ import annotations

import asyncio
import functools
import logging
import random
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import pytest

from barnabas.cluster.image import Node
from barnabas.follower.fetch_protocol import FetchProtocol
from barnabas.follower.fetcher_context import FetcherContext
from barnabas.follower.fetcher_manager import FetcherManager
from barnabas.follower.fetcher_partitions import FetchedPartition, FetcherPartitions, FetchPhase
from barnabas.follower.hand_over import HandOver
from barnabas.follower.replica_fetcher import ReplicaFetcher
from barnabas.follower.settings import ReplicaSettings
from barnabas.kernel.metrics import MetricsRegistry
from barnabas.kernel.timers import Timers
from barnabas.leader.partition import Partition
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.wire import codec, headers
from barnabas.wire.errors import KafkaError
from barnabas.wire.messages import FetchRequest, FetchResponse
from barnabas.wire.topics import TopicPartition
from tests.unit.kernel.virtual_loop import run_virtually
from tests.unit.leader.memory_log import TOPIC_ID, Entry, MemoryLog
from tests.unit.leader.partition_setting import BrokerSetting, leader_and_isr

EPOCH = 5
AT_ONCE = 10
"""Records in one response."""
FEW_MS, USUAL_MS = 20, 500
"""A leader keeps a request without news for so long."""


def of(number: int) -> TopicPartition:
    return TopicPartition("flights", number)


class Link:
    """One connection to the leader, who has a session for it. It answers when there is something, or after the wait."""

    def __init__(self, leader: PlayedLeader, client_id: str) -> None:
        self.leader = leader
        self.client_id = client_id
        self.session: dict[int, int] = {}
        self.is_closed = False
        self.waits_ms: list[int] = []
        self.is_under_way = False
        self._tasks: list[asyncio.Task[None]] = []

    async def ready(self, _timeout_ms: float) -> None:
        if self.leader.is_gone:
            raise ConnectionError("nobody listens")

    def start(self, message: Any, _version: int, _timeout_ms: float, on_response: Any, on_failure: Any) -> None:
        assert isinstance(message, FetchRequest)
        self._tasks.append(asyncio.create_task(self._answer(message, on_response, on_failure)))

    def start_encoded(self, encode: Any, _decode: object, timeout_ms: float, on_response: Any, on_failure: Any) -> None:
        frame = b"".join(encode(9))
        key, version, _, _, start = headers.read_request_header(frame, 4, len(frame))
        message, _ = codec.request_decoder(key, version)(frame, start, len(frame))
        self.start(message, version, timeout_ms, on_response, on_failure)

    async def send(self, _message: Any, _version: int, _timeout_ms: float) -> Any:
        raise AssertionError("nothing is to be settled")

    def close(self) -> None:
        self.is_closed = True

    async def _answer(self, message: FetchRequest, on_response: Any, on_failure: Any) -> None:
        leader, loop = self.leader, asyncio.get_running_loop()
        self.waits_ms.append(message.max_wait_ms)
        if message.session_epoch == 0:
            self.session.clear()
        for forgotten in message.forgotten_topics_data:
            for number in forgotten.partitions:
                self.session.pop(number, None)
        for asked in message.topics:
            for partition in asked.partitions:
                self.session[partition.partition] = partition.fetch_offset
        for link in leader.links:
            is_other = link is not self and link.is_under_way and not link.is_closed
            leader.named_twice |= is_other and not link.session.keys().isdisjoint(self.session)
        self.is_under_way = True
        leader.told(self.session)
        end = loop.time() + message.max_wait_ms / 1000
        while not any(leader.ends[number] > at for number, at in self.session.items()):
            try:
                async with asyncio.timeout_at(end):
                    await leader.news.wait()
            except TimeoutError:
                break
        given = self._read()
        await asyncio.sleep(leader.seconds_per_record * sum(len(each.records or ()) for each in given))
        self.is_under_way = False
        if self.is_closed:
            return
        if leader.is_gone:
            on_failure(ConnectionError("reset"))
            return
        topic = FetchResponse.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=given)
        on_response(FetchResponse(session_id=77, responses=[topic] if given else []))

    def _read(self) -> list[FetchResponse.PartitionData]:
        leader, left, given = self.leader, AT_ONCE, []
        for number, at in list(self.session.items()):
            count = min(left, leader.ends[number] - at)
            high_watermark = leader.high_watermark(number)
            if count or leader.said.get((self, number)) != high_watermark:
                leader.said[self, number] = high_watermark
                left -= count
                records: Any = [Entry(at + index, EPOCH, "a") for index in range(count)]
                given.append(
                    FetchResponse.PartitionData(partition_index=number, high_watermark=high_watermark, records=records)
                )
            if count:  # it goes last, so that all get their turn
                self.session[number] = self.session.pop(number)
        return given


class PlayedLeader:
    """Has records of some partitions. The follower is in the ISR of those of which it has all that is committed."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.ends: dict[int, int] = {}
        self.known: dict[int, int] = {}
        """What the follower has said that it has."""
        self.in_sync: set[int] = set()
        self.said: dict[tuple[Link, int], int] = {}
        self.seconds_per_record = 0.001
        self.is_gone = False
        self.news = asyncio.Event()
        self.named_twice = self.went_back = False
        """A partition was by two requests on their way; the follower has said that it has less than before."""

    def connect(self, _node: Node, client_id: str) -> Link:
        link = Link(self, client_id)
        self.links.append(link)
        return link

    def link(self, number: int) -> Link:
        """The last one with that number of a fetcher."""
        return next(link for link in reversed(self.links) if link.client_id.endswith(f"-{number}"))

    def grow(self, number: int, count: int = 1) -> None:
        """So many records are written."""
        self.ends[number] += count
        self.news.set()
        self.news = asyncio.Event()

    def told(self, session: dict[int, int]) -> None:
        for number, at in session.items():
            self.went_back |= at < self.known.get(number, 0)
            self.known[number] = at
            if at >= self.high_watermark(number):
                self.in_sync.add(number)

    def high_watermark(self, number: int) -> int:
        return self.known[number] if number in self.in_sync else self.ends[number]


class PlayedWriteQueue:
    """Has all written at once, or when it is told to."""

    def __init__(self) -> None:
        self.is_slow = False
        self.waiting: list[Callable[[KafkaError | None], object]] = []

    def needs_wait(self, _log: object) -> bool:
        return self.is_slow

    def when_written(self, _log: object, callback: Callable[[KafkaError | None], object]) -> None:
        self.waiting.append(callback)


class Setting:
    """A broker that follows the leader."""

    def __init__(self, fetchers: int = 1) -> None:
        loop = asyncio.get_running_loop()
        self.leader, self.writes, self.logs = PlayedLeader(), PlayedWriteQueue(), dict[int, MemoryLog]()
        self.node = Node(2, "leader", 9092)
        self._partitions = BrokerSetting(1).context
        context = FetcherContext(
            broker_id=1,
            broker_epoch=lambda: 42,
            loop=loop,
            timers=Timers(loop),
            settings=ReplicaSettings(),
            protocol=FetchProtocol(),
            connections=self.leader,
            write_queue=self.writes,  # type: ignore[arg-type]
            wake_ups=BrokerSetting(1).woken,  # type: ignore[arg-type]
            logger=logging.getLogger("barnabas.tests.replication"),
        )
        self.manager = FetcherManager(context, fetchers, MetricsRegistry(loop.time))

    def follow(self, ends: dict[int, int], *, epoch: int = EPOCH) -> None:
        """Begins to follow these; the leader has so many records of each."""
        wanted = []
        for number, end in ends.items():
            self.leader.ends.setdefault(number, end)
            log = self.logs.setdefault(number, MemoryLog(of(number)))
            partition = Partition(of(number), self._partitions)
            partition.become_follower(leader_and_isr(2, epoch, (2,)), functools.partial(_given, log.as_log))
            latest = -1 if log.latest_epoch is None else log.latest_epoch
            wanted.append(FetchedPartition(partition, TOPIC_ID, epoch, log.log_end_offset, latest, FetchPhase.FETCHING))
        self.manager.remove(of(number) for number in ends)
        self.manager.add({self.node: wanted})

    def places(self) -> dict[str, set[int]]:
        """Which fetcher has which partitions."""
        return {fetcher.name[len("ReplicaFetcherThread-") :]: _numbers(fetcher) for fetcher in self.manager.fetchers}

    async def until(self, condition: Callable[[], bool], seconds: float = 30.0) -> float:
        """Returns how long it took."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not condition():
            assert loop.time() < began + seconds, (self.places(), self.leader.ends, self.leader.known)
            await asyncio.sleep(0.002)
        return loop.time() - began

    def has_all(self, numbers: Iterable[int]) -> bool:
        return all(self.leader.known.get(number) == self.leader.ends[number] for number in numbers)


def _given(log: PartitionLog) -> PartitionLog:
    return log


def _numbers(fetcher: ReplicaFetcher) -> set[int]:
    return {fetched.topic_partition.partition for fetched in fetcher.partitions}


def in_setting(test: Callable[[Setting], Coroutine[Any, Any, None]], fetchers: int = 1) -> None:
    async def run() -> None:
        setting = Setting(fetchers)
        try:
            await test(setting)
            assert not setting.leader.named_twice
            assert not setting.leader.went_back
        finally:
            await setting.manager.close()

    run_virtually(run())


BEHIND, LIVE = 0, 1


# By itself.


class Alone:
    """What one fetcher hands over, with partitions of 0 records."""

    def __init__(self, *, is_for_behind: bool) -> None:
        self.told: list[TopicPartition] = []
        self.partitions = FetcherPartitions()
        self.hand_over = HandOver(self._tell, is_for_behind=is_for_behind)

    def _tell(self, partitions: list[FetchedPartition]) -> None:
        assert partitions
        self.told += [fetched.topic_partition for fetched in partitions]

    def partition(self, number: int = 0) -> FetchedPartition:
        partition = Partition(of(number), BrokerSetting(1).context)
        log = MemoryLog(of(number)).as_log
        partition.become_follower(leader_and_isr(2, EPOCH, (2,)), functools.partial(_given, log))
        fetched = FetchedPartition(partition, TOPIC_ID, EPOCH, 0, -1, FetchPhase.FETCHING)
        self.partitions.add(fetched)
        return fetched

    def answered(self, fetched: FetchedPartition, lag: int) -> None:
        fetched.lag = lag
        self.hand_over.answered(fetched)

    def goes_on(self) -> list[int]:
        """Which go before the next request."""
        self.told.clear()
        self.hand_over.take_out(self.partitions)
        assert all(self.partitions.get(each) is None for each in self.told)
        return [each.partition for each in self.told]


def test_what_is_behind_goes_at_once_and_once() -> None:
    alone = Alone(is_for_behind=False)
    fetched = alone.partition()
    alone.answered(fetched, 0)
    assert alone.goes_on() == []
    alone.answered(fetched, 3)
    assert alone.goes_on() == [0]
    assert alone.goes_on() == []


def test_what_has_caught_up_goes_when_a_request_has_told_the_leader() -> None:
    alone = Alone(is_for_behind=True)
    fetched, other = alone.partition(), alone.partition(1)
    alone.answered(fetched, 3)
    alone.answered(other, 3)
    assert alone.goes_on() == []
    alone.answered(fetched, 0)
    assert alone.goes_on() == []
    assert alone.goes_on() == [0]
    assert alone.goes_on() == []


@pytest.mark.parametrize("answers_between", [0, 1])
def test_what_falls_behind_again_stays(answers_between: int) -> None:
    alone = Alone(is_for_behind=True)
    fetched = alone.partition()
    alone.answered(fetched, 0)
    for _ in range(answers_between):
        assert alone.goes_on() == []
    alone.answered(fetched, 1)
    assert [alone.goes_on() for _ in range(3)] == [[], [], []]


def test_what_is_not_here_any_more_or_waits_does_not_go() -> None:
    alone = Alone(is_for_behind=False)
    gone, renewed, delayed = (alone.partition(number) for number in range(3))
    for fetched in (gone, renewed, delayed):
        alone.answered(fetched, 1)
    alone.partitions.remove(gone.topic_partition)
    alone.partition(1)
    alone.partitions.delay(delayed, 1.0)
    assert alone.goes_on() == []
    assert alone.partitions.get(of(1)) is not None


# With a leader.


def test_what_is_behind_has_a_fetcher_of_its_own_until_it_has_caught_up() -> None:
    async def test(setting: Setting) -> None:
        leader = setting.leader
        setting.follow({BEHIND: 2_000, LIVE: 0})
        await setting.until(lambda: setting.places() == {"0-2": {LIVE}, "1-2": {BEHIND}}, 0.5)
        assert [link.client_id for link in leader.links] == ["broker-1-fetcher-0", "broker-1-fetcher-1"]
        for _ in range(50):  # far sooner than the 10 ms that each response of the other takes
            leader.grow(LIVE)
            assert await setting.until(lambda: setting.has_all([LIVE])) < 0.006
        assert setting.places()["1-2"] == {BEHIND}
        await setting.until(lambda: setting.has_all([BEHIND]))
        await setting.until(lambda: setting.places() == {"0-2": {BEHIND, LIVE}, "1-2": set()}, 1.0)
        await setting.until(lambda: setting.places() == {"0-2": {BEHIND, LIVE}}, 20.0)
        assert leader.link(1).is_closed
        leader.grow(BEHIND)
        await setting.until(lambda: setting.has_all([BEHIND]), 0.01)

    in_setting(test)


def test_what_a_response_brings_to_its_end_stays_where_it_is() -> None:
    async def test(setting: Setting) -> None:
        setting.follow({BEHIND: AT_ONCE, LIVE: 0})
        await setting.until(lambda: setting.has_all([BEHIND, LIVE]))
        for _ in range(100):
            setting.leader.grow(LIVE)
            await asyncio.sleep(0.003)
        assert setting.places() == {"0-2": {BEHIND, LIVE}}
        assert len(setting.leader.links) == 1

    in_setting(test)


def test_what_has_caught_up_is_handed_over_when_the_leader_knows_and_waits_shortly() -> None:
    """It is in the ISR then, and what is written to it waits for the follower: the other fetcher is soon asked."""

    async def test(setting: Setting) -> None:
        leader = setting.leader
        setting.follow({BEHIND: 500, LIVE: 0, 2: 3_000})
        await setting.until(lambda: setting.places().get("1-2") == {BEHIND, 2})
        await asyncio.sleep(1.0)  # the leader would keep a request for 500 ms by now
        assert set(leader.link(0).waits_ms[-10:]) == {FEW_MS}
        await setting.until(lambda: BEHIND in setting.places()["0-2"])
        assert BEHIND in leader.in_sync
        assert setting.places() == {"0-2": {BEHIND, LIVE}, "1-2": {2}}
        leader.grow(BEHIND)
        assert await setting.until(lambda: setting.has_all([BEHIND])) < 0.03
        await setting.until(lambda: setting.has_all([2]))
        await setting.until(lambda: not setting.places()["1-2"])
        await asyncio.sleep(5.0)
        assert leader.link(0).waits_ms[-1] == USUAL_MS

    in_setting(test)


def test_a_leader_waits_as_ever_when_what_was_behind_is_not_fetched_any_more() -> None:
    async def test(setting: Setting) -> None:
        setting.follow({BEHIND: 5_000, LIVE: 0})
        await setting.until(lambda: setting.places().get("1-2") == {BEHIND})
        setting.manager.remove([of(BEHIND)])
        setting.manager.close_idle()
        await asyncio.sleep(5.0)
        assert setting.leader.link(0).waits_ms[-1] == USUAL_MS

    in_setting(test)


def test_what_falls_behind_soon_after_finds_its_fetcher_still_there_and_keeps_it() -> None:
    async def test(setting: Setting) -> None:
        leader = setting.leader
        setting.follow({BEHIND: 100, LIVE: 0})
        await setting.until(lambda: setting.places() == {"0-2": {BEHIND, LIVE}, "1-2": set()})
        leader.in_sync.discard(BEHIND)
        leader.grow(BEHIND, 15_000)  # it takes longer than an empty fetcher is kept
        await setting.until(lambda: setting.has_all([BEHIND]))
        assert len(leader.links) == 2

    in_setting(test)


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_leader_waits_as_ever_when_what_was_behind_has_failed(has_failed: bool) -> None:
    """As where a log directory fails: nobody asks for idle fetchers to end then."""

    async def test(setting: Setting) -> None:
        setting.follow({BEHIND: 5_000, LIVE: 0})
        await setting.until(lambda: setting.places().get("1-2") == {BEHIND})
        if has_failed:
            setting.writes.is_slow = True
            await setting.until(lambda: len(setting.writes.waiting) == 1)
            setting.writes.waiting.pop()(KafkaError(56, "no room"))
        else:
            setting.manager.remove([of(BEHIND)])
        await asyncio.sleep(20.0)
        assert setting.leader.link(0).waits_ms[-1] == USUAL_MS
        assert setting.places() == {"0-2": {LIVE}}

    in_setting(test)


def test_a_fetcher_that_is_made_while_others_catch_up_waits_shortly() -> None:
    async def test(setting: Setting) -> None:
        setting.follow({BEHIND: 5_000})
        await setting.until(lambda: setting.places().get("1-2") == {BEHIND})
        setting.manager.close_idle()
        setting.follow({LIVE: 0})
        await asyncio.sleep(1.0)
        assert setting.places() == {"0-2": {LIVE}, "1-2": {BEHIND}}
        assert set(setting.leader.link(0).waits_ms) == {FEW_MS}

    in_setting(test)


@pytest.mark.parametrize("named_max", [1, 4, 512])
def test_what_is_handed_over_is_forgotten_at_once_however_much_is_to_be_named(
    named_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader would read it for both sessions, and take what the former one has said for what the follower has."""
    monkeypatch.setattr("barnabas.follower.replica_fetcher.NAMED_MAX", named_max)

    async def test(setting: Setting) -> None:
        numbers = range(24)
        setting.follow({number: 3 + 2 * number for number in numbers})
        for _ in range(200):
            await asyncio.sleep(0.005)
            assert not setting.leader.named_twice
        await setting.until(lambda: setting.has_all(numbers))
        await setting.until(lambda: setting.places() == {"0-2": set(numbers)})

    in_setting(test)


def test_nothing_is_handed_over_before_it_is_written() -> None:
    async def test(setting: Setting) -> None:
        setting.writes.is_slow = True
        setting.follow({BEHIND: 100, LIVE: 0})
        await setting.until(lambda: len(setting.writes.waiting) == 1)
        await asyncio.sleep(0.05)
        assert setting.places() == {"0-2": {BEHIND, LIVE}}
        setting.writes.waiting.pop()(None)
        assert setting.places() == {"0-2": {LIVE}, "1-2": {BEHIND}}

    in_setting(test)


def test_what_is_not_written_in_time_stays_with_its_fetcher() -> None:
    """The other one would not hear that its write has failed."""

    async def test(setting: Setting) -> None:
        setting.writes.is_slow = True
        setting.follow({BEHIND: 100, LIVE: 0})
        await setting.until(lambda: len(setting.writes.waiting) == 1)
        setting.logs[BEHIND].has_unwritten = True
        await asyncio.sleep(0.3)  # the next request was sent without it
        assert setting.places() == {"0-2": {BEHIND, LIVE}}
        setting.writes.waiting.pop()(KafkaError(56, "no room"))
        assert setting.manager.failed == {of(BEHIND)}
        assert setting.places() == {"0-2": {LIVE}}

    in_setting(test)


def test_a_leader_that_moves_and_another_number_of_fetchers_take_both_along() -> None:
    async def test(setting: Setting) -> None:
        leader = setting.leader
        setting.follow({BEHIND: 5_000, LIVE: 0, 2: 5_000})
        await setting.until(lambda: setting.places().get("1-2") == {BEHIND, 2})
        setting.node = Node(2, "elsewhere", 9092)
        setting.follow({LIVE: 0}, epoch=EPOCH)
        assert setting.places() == {"0-2": {BEHIND, LIVE, 2}}
        assert [link.is_closed for link in leader.links] == [True, True, False]
        await setting.until(lambda: setting.places().get("1-2") == {BEHIND, 2})
        setting.manager.resize(3)
        assert sorted(number for some in setting.places().values() for number in some) == [BEHIND, LIVE, 2]
        assert all(int(name[0]) < 3 for name in setting.places())
        await setting.until(lambda: sum(int(name[0]) >= 3 for name in setting.places()) == 2)
        await setting.until(lambda: setting.has_all([BEHIND, LIVE, 2]), 90.0)

    in_setting(test)


def test_a_leader_that_moves_takes_along_what_only_the_other_fetcher_has() -> None:
    async def test(setting: Setting) -> None:
        setting.follow({BEHIND: 5_000, 2: 5_000})
        await setting.until(lambda: setting.places() == {"0-2": set(), "1-2": {BEHIND, 2}})
        setting.manager.close_idle()
        setting.node = Node(2, "elsewhere", 9092)
        setting.follow({BEHIND: 0})
        assert setting.places() == {"0-2": {BEHIND, 2}}
        assert [link.is_closed for link in setting.leader.links] == [True, True, False]

    in_setting(test)


@pytest.mark.parametrize("seed", range(20))
def test_all_is_fetched_by_one_fetcher_at_a_time_whatever_happens(seed: int) -> None:
    async def test(setting: Setting) -> None:
        chosen, leader = random.Random(seed), setting.leader
        numbers = range(6)
        setting.follow({number: chosen.choice((0, 5, 500)) for number in numbers})
        for _ in range(100):
            await asyncio.sleep(chosen.choice((0.0, 0.001, 0.01, 0.1)))
            match chosen.randrange(12):
                case 0:
                    setting.manager.resize(chosen.randrange(1, 4))
                case 1:
                    setting.node = Node(2, "leader" if setting.node.host == "elsewhere" else "elsewhere", 9092)
                    setting.follow(dict.fromkeys(chosen.sample(numbers, 2), 0))
                case 2:
                    setting.manager.close_idle()
                case 3:
                    number = chosen.choice(numbers)
                    setting.manager.remove([of(number)])
                    # Until no request names it: it would be fenced by the leader epoch, of which there is one here.
                    await asyncio.sleep(2 * USUAL_MS / 1000)
                    setting.follow({number: 0})
                case 4:
                    leader.is_gone = True
                    await asyncio.sleep(chosen.choice((0.0, 0.1)))
                    leader.is_gone = False
                case 5:  # it has left the ISR, and is behind
                    number = chosen.choice(numbers)
                    leader.in_sync.discard(number)
                    leader.grow(number, chosen.choice((20, 200)))
                case _:
                    leader.grow(chosen.choice(numbers), chosen.choice((1, 1, 5)))
            held = [number for some in setting.places().values() for number in some]
            assert sorted(held) == list(numbers)
        await setting.until(lambda: setting.has_all(numbers))
        await asyncio.sleep(15.0)
        assert all(int(name[0]) < setting.manager.fetchers_per_leader for name in setting.places())
        for number in numbers:
            assert [entry.offset for entry in setting.logs[number].entries] == list(range(leader.ends[number]))

    in_setting(test, fetchers=1 + seed % 2)
