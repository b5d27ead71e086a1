"""`barnabas.api.fetch_fast_path`: two brokers are asked the same, of which one has only the general path."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from barnabas.api.follower_fetch import FollowerFetch
from barnabas.leader.partition import Partition
from barnabas.security.acls import (
    CLUSTER_NAME,
    AccessControlEntry,
    AclOperation,
    AclPermissionType,
    ResourcePattern,
    ResourceType,
)
from barnabas.serving.fetch_reads import FetchReader
from barnabas.serving.fetch_sessions import FEW_PARTITIONS, FetchSessionCache
from barnabas.serving.leader_throttle import LeaderThrottle
from barnabas.testing.simulation import simulation_seeds
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import FetchRequest
from barnabas.wire.topics import TopicPartition
from tests.unit.api.data_broker import DataBroker, batch, produce_request, topic_id
from tests.unit.api.fetch_stories import Taken, tell
from tests.unit.api.fetching import Run, Session, asked, fetch_request, only, scenario, settled, values


@pytest.mark.parametrize("seed", simulation_seeds(8))
def test_does_what_the_general_path_does(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    told = []
    for is_fast in (False, True):
        with monkeypatch.context() as patch:
            session_ids = itertools.count(1_000)
            patch.setattr(FetchSessionCache, "_new_id", lambda _, numbers=session_ids: next(numbers))
            taken = Taken(patch, is_fast=is_fast)
            told.append(tell(seed))
            assert is_fast or not taken.count
    for general, fast in zip(*told, strict=True):
        assert fast == general


@pytest.mark.parametrize("seed", simulation_seeds(8))
def test_a_followers_repeated_requests_do_what_the_general_path_does(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    counts = {"taken": 0, "answered": 0, "read": 0}
    take, frame, read = FollowerFetch.take, FollowerFetch._frame, FollowerFetch._read

    def count(name: str, of: Any) -> Any:
        def counted(*arguments: Any) -> Any:
            found = of(*arguments)
            counts[name] += found is not None and found is not False
            return found

        return counted

    told = []
    for is_fast in (False, True):
        with monkeypatch.context() as patch:
            session_ids = itertools.count(1_000)
            patch.setattr(FetchSessionCache, "_new_id", lambda _, numbers=session_ids: next(numbers))
            Taken(patch, is_fast=is_fast)
            patch.setattr(FollowerFetch, "take", count("taken", take))
            patch.setattr(FollowerFetch, "_frame", count("answered", frame))
            patch.setattr(FollowerFetch, "_read", count("read", read))
            told.append(tell(seed, is_steady=True))
    for general, fast in zip(*told, strict=True):
        assert fast == general
    assert counts["taken"] > 20
    assert counts["answered"] >= counts["read"] > 5


@pytest.mark.parametrize("seed", simulation_seeds(8))
def test_holds_back_from_throttled_followers_what_the_general_path_does(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    told = []
    taken: list[int] = []
    held: list[object] = []
    holds_back = LeaderThrottle.holds_back

    def noted(throttle: LeaderThrottle, partition: Partition, follower_id: int) -> bool:
        found = holds_back(throttle, partition, follower_id)
        if found:
            held.append((partition.topic_partition, follower_id))
        return found

    for is_fast in (False, True):
        with monkeypatch.context() as patch:
            session_ids = itertools.count(1_000)
            patch.setattr(FetchSessionCache, "_new_id", lambda _, numbers=session_ids: next(numbers))
            counter = Taken(patch, is_fast=is_fast)
            patch.setattr(LeaderThrottle, "holds_back", noted)
            told.append(tell(seed, is_steady=True, is_throttled=True))
            taken.append(counter.count)
    for general, fast in zip(*told, strict=True):
        assert fast == general
    assert taken[0] == 0 < 20 < taken[1]
    assert len(held) > 5


@pytest.fixture(name="taken")
def _taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    return Taken(monkeypatch, is_fast=True)


async def in_session(broker: DataBroker) -> Session:
    """A follower in step, whose next request is as usual."""
    broker.lead("flights", isr=(1, 2), replicas=(1, 2))
    await settled()
    follower = Session(broker.connect(), 17, replica_id=2)
    await follower.fetch(asked(log_start_offset=0))
    assert await follower.fetch() == {}
    return follower


def test_goes_on_when_the_followers_broker_has_registered_anew(run: Run, tmp_path: Path, taken: Taken) -> None:
    async def body(broker: DataBroker) -> None:
        follower = await in_session(broker)
        (session,) = broker.sessions.sessions.values()
        for epoch in (7, 9):
            before = taken.count
            assert await follower.fetch(replica_epoch=epoch) == {}
            assert taken.count == before, "the fast path of the former epoch does not take it"
            assert await follower.fetch(replica_epoch=epoch) == {}
            assert taken.count == before + 1
            assert session.clock.broker_epoch == epoch

    scenario(run, tmp_path, body)


def test_takes_what_is_as_usual(run: Run, tmp_path: Path, taken: Taken) -> None:
    async def body(broker: DataBroker) -> None:
        follower = await in_session(broker)
        before = taken.count
        for number in range(5):
            follower.caller.send(follower.request(asked(0, number, log_start_offset=0), max_wait_ms=600_000), 17)
            while not broker.replicas.fetch_purgatory.delayed:
                await asyncio.sleep(0)
            await broker.produce("flights", b"one")
            (response,) = await follower.caller.responses(1)
            assert {number: values(data) for number, data in follower.take(response).items()} == {0: [b"one"]}
        await follower.fetch(asked(0, 4, log_start_offset=0))
        assert taken.count - before == 6
        assert broker.replicas.get_partition(TopicPartition("flights", 0)).high_watermark == 4

    scenario(run, tmp_path, body)


async def parked_in_step(broker: DataBroker, followers: list[Session], offset: int, **options: Any) -> None:
    """All followers wait for what comes after the offset, by a request that is like the one before."""
    for follower in followers:
        parked = broker.replicas.fetch_purgatory.delayed
        epochs = {"last_fetched_epoch": 0 if offset else -1, "current_leader_epoch": 0}
        request = follower.request(asked(0, offset, log_start_offset=0, **epochs), max_wait_ms=600_000, **options)
        follower.caller.send(request, 17)
        while broker.replicas.fetch_purgatory.delayed == parked:
            await asyncio.sleep(0)


async def in_step(broker: DataBroker, *, records: int = 3) -> list[Session]:
    """Two followers with a session each that have some records, and wait for the next."""
    broker.lead("flights", isr=(1, 2, 3), replicas=(1, 2, 3))
    await settled()
    followers = [Session(broker.connect(), 17, replica_id=follower_id) for follower_id in (2, 3)]
    for follower in followers:
        await follower.fetch(asked(log_start_offset=0))
        assert await follower.fetch() == {}
    for offset in range(records + 1):
        await parked_in_step(broker, followers, offset)
        if offset < records:
            await produced(broker, followers)
    return followers


async def produced(broker: DataBroker, followers: list[Session]) -> None:
    """A record comes, and is given to the followers that wait for it."""
    await broker.produce("flights", b"one")
    for follower in followers:
        (response,) = await follower.caller.responses(1)
        assert {number: values(data) for number, data in follower.take(response).items()} == {0: [b"one"]}


def test_followers_at_one_offset_share_one_read(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: Taken
) -> None:
    async def body(broker: DataBroker) -> None:
        read, reads = FollowerFetch._read, list[int]()

        def counted(fetch: FollowerFetch, *arguments: Any) -> Any:
            reads.append(1)
            return read(fetch, *arguments)

        monkeypatch.setattr(FollowerFetch, "_read", counted)
        followers = await in_step(broker)
        before, parked = len(reads), [*broker.sessions.sessions.values()]
        waiting = [next(iter(session.parked)) for session in parked]
        for offset in range(4, 8):
            await produced(broker, followers)
            await parked_in_step(broker, followers, offset)
        assert len(reads) - before == 4
        assert [next(iter(session.parked)) for session in parked] == waiting, "the same objects wait again"
        assert broker.fetches.shared_read is None

    scenario(run, tmp_path, body)


def test_what_is_read_for_a_request_that_need_not_wait_is_kept_for_its_tick_only(
    run: Run, tmp_path: Path, taken: Taken
) -> None:
    async def body(broker: DataBroker) -> None:
        followers = await in_step(broker)
        await produced(broker, followers)
        await broker.produce("flights", b"one")
        request = followers[0].request(
            asked(0, 4, log_start_offset=0, last_fetched_epoch=0, current_leader_epoch=0), max_wait_ms=600_000
        )
        followers[0].caller.send(request, 17)
        (response,) = await followers[0].caller.responses(1)
        assert values(followers[0].take(response)[0]) == [b"one"]
        assert broker.fetches.shared_read is None, "the log may have other records at these offsets one day"

    scenario(run, tmp_path, body)


def test_a_follower_whose_fetch_moves_the_high_watermark_is_told_of_it_with_what_another_has_read(
    run: Run, tmp_path: Path, taken: Taken
) -> None:
    async def body(broker: DataBroker) -> None:
        followers = await in_step(broker)
        await produced(broker, followers)
        await broker.produce("flights", b"one")
        before = taken.count
        for follower in followers:
            epochs = {"last_fetched_epoch": 0, "current_leader_epoch": 0}
            request = follower.request(asked(0, 4, log_start_offset=0, **epochs), max_wait_ms=600_000)
            follower.caller.send(request, 17)
        told = [follower.take((await follower.caller.responses(1))[0])[0] for follower in followers]
        assert taken.count == before + 2
        assert [values(each) for each in told] == [[b"one"]] * 2
        assert [each.high_watermark for each in told] == [3, 4]

    scenario(run, tmp_path, body)


def test_a_follower_that_may_not_fetch_any_more_is_told_so(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: Taken
) -> None:
    take, repeated = FollowerFetch.take, list[bool]()

    def noted(fetch: FollowerFetch, *arguments: Any) -> bool:
        repeated.append(take(fetch, *arguments))
        return repeated[-1]

    monkeypatch.setattr(FollowerFetch, "take", noted)
    anonymous = AccessControlEntry("User:ANONYMOUS", "*", AclOperation.CLUSTER_ACTION, AclPermissionType.DENY)
    cluster = ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME)

    async def body(broker: DataBroker) -> None:
        broker.authorize()
        follower, _ = followers = await in_step(broker)
        await produced(broker, followers)
        epochs = {"last_fetched_epoch": 0, "current_leader_epoch": 0}

        async def fetched() -> dict[int, Any]:
            follower.caller.send(follower.request(asked(0, 4, log_start_offset=0, **epochs), max_wait_ms=20), 17)
            return follower.take((await follower.caller.responses(1))[0])

        for _ in range(3):  # the third is taken as one that is like the second
            assert await fetched() == {}
        assert repeated[-1]
        broker.rules.replace(cluster, {anonymous})
        assert (await fetched())[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert not repeated[-1]

    scenario(run, tmp_path, body)


def test_a_request_that_is_like_the_last_one_is_answered_when_its_time_is_over(
    run: Run, tmp_path: Path, taken: Taken
) -> None:
    async def body(broker: DataBroker) -> None:
        followers = await in_step(broker)
        purgatory = broker.replicas.fetch_purgatory
        await produced(broker, followers)
        for _ in range(3):  # the third is taken as one that is like the second
            request = followers[0].request(
                asked(0, 4, log_start_offset=0, last_fetched_epoch=0, current_leader_epoch=0), max_wait_ms=20
            )
            followers[0].caller.send(request, 17)
            (response,) = await followers[0].caller.responses(1)
            assert followers[0].take(response) == {}
        assert purgatory.expired_count == 3
        assert purgatory.delayed == 0

    scenario(run, tmp_path, body)


def test_a_lost_connection_gives_up_a_request_that_is_like_the_last_one(run: Run, tmp_path: Path, taken: Taken) -> None:
    async def body(broker: DataBroker) -> None:
        followers = await in_step(broker)
        assert broker.replicas.fetch_purgatory.delayed == 2
        followers[0].caller.transport.abort()
        assert broker.replicas.fetch_purgatory.delayed == 1
        assert not broker.sessions.sessions[followers[0].session_id].parked
        await produced(broker, followers[1:])

    scenario(run, tmp_path, body)


def test_a_broker_that_stops_answers_requests_that_are_like_the_last_ones(
    run: Run, tmp_path: Path, taken: Taken
) -> None:
    async def body(broker: DataBroker) -> None:
        followers = await in_step(broker)
        for operation in broker.replicas.fetch_purgatory.close():
            operation.force_complete()
        assert broker.replicas.fetch_purgatory.delayed == 0
        for follower in followers:
            (response,) = await follower.caller.responses(1)
            follower.take(response)

    scenario(run, tmp_path, body)


def test_a_leader_that_is_deposed_answers_a_request_that_is_like_the_last_one(
    run: Run, tmp_path: Path, taken: Taken
) -> None:
    async def body(broker: DataBroker) -> None:
        followers = await in_step(broker)
        broker.lead("flights", leader=2, leader_epoch=1, isr=(1, 2, 3), replicas=(1, 2, 3))
        for follower in followers:
            (response,) = await follower.caller.responses(1)
            assert follower.take(response)[0].error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert broker.replicas.fetch_purgatory.delayed == 0

    scenario(run, tmp_path, body)


def test_leaves_to_the_general_path_what_comes_while_another_waits(run: Run, tmp_path: Path, taken: Taken) -> None:
    async def body(broker: DataBroker) -> None:
        follower = await in_session(broker)
        follower.caller.send(follower.request(max_wait_ms=600_000), 17)
        while not broker.replicas.fetch_purgatory.delayed:
            await asyncio.sleep(0)
        before = taken.count
        follower.epoch += 1
        follower.caller.send(follower.request(), 17)
        await broker.produce("flights", b"one")
        first, second = await follower.caller.responses(2)
        assert taken.count == before
        assert (first.error_code, second.error_code) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0)

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("version", [11, 17])
def test_a_client_that_asks_for_much_at_once_gets_it_bit_by_bit(
    run: Run, tmp_path: Path, taken: Taken, version: int
) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        await broker.produce("flights", bytes(900_000))
        caller = broker.connect()
        await caller.call(fetch_request(version, "flights", asked()), version)
        at_once: list[int] = []
        caller.transport.writelines = lambda buffers: at_once.append(sum(map(len, buffers)))  # type: ignore[method-assign]
        with caller.kept_back() as kept:
            for _ in range(40):
                caller.send(fetch_request(version, "flights", asked(), max_bytes=1 << 20, session_epoch=-1), version)
        caller.send_bytes(bytes(kept))
        while sum(at_once) < 40 * 900_000:
            await asyncio.sleep(0)
        assert len(at_once) >= 40 / 3
        assert max(at_once) < 3 << 20
        assert taken.count >= len(at_once) // 2

    scenario(run, tmp_path, body)


def test_a_connection_that_produces_keeps_the_way_for_that(run: Run, tmp_path: Path, taken: Taken) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        caller = broker.connect()
        for number in range(3):
            await caller.call(produce_request("flights", batch(b"one")), 9)
            path = caller.connection.fast_path
            assert path is not None
            response = await caller.call(fetch_request(17, "flights", asked(0, number)), 17)
            assert values(only(response)) == [b"one"]
            assert type(caller.connection.fast_path) is type(path)
        assert not taken.count

    scenario(run, tmp_path, body)


def test_a_request_that_takes_steps_teaches_nothing_to_a_connection_that_was_diverted_meanwhile(
    run: Run, tmp_path: Path, taken: Taken
) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        caller = broker.connect()
        diverted: list[Any] = []

        caller.send(fetch_request(17, "flights", *map(asked, range(1023))), 17)
        while not caller.connection.unanswered:
            await asyncio.sleep(0)
        assert not caller.transport.written
        caller.connection.divert(
            lambda *frame: diverted.append(frame)
        )  # as at the end of the session of who has logged in
        await caller.responses(1)
        assert caller.connection.fast_path is None
        caller.send(fetch_request(17, "flights", asked()), 17, answered=False)
        await settled()
        assert len(diverted) == 1
        assert not caller.transport.written
        assert not taken.count

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("waits", [False, True])
def test_records_that_are_not_cached_are_brought(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: Taken, waits: bool
) -> None:
    async def body(broker: DataBroker) -> None:
        follower = await in_session(broker)
        before = taken.count
        monkeypatch.setattr(broker.log_manager.reader, "read_cached", lambda _: None)
        if waits:
            follower.caller.send(follower.request(max_wait_ms=600_000), 17)
            while not broker.replicas.fetch_purgatory.delayed:
                await asyncio.sleep(0)
        await broker.produce("flights", b"one")
        if not waits:
            follower.caller.send(follower.request(), 17)
        (response,) = await follower.caller.responses(1)
        assert values(follower.take(response)[0]) == [b"one"]
        assert (taken.count - before, broker.log_manager.reader.cold_reads) == (1, 1)
        assert broker.calls.queue.queued == 0

    scenario(run, tmp_path, body)


def test_a_failure_while_it_waits_is_answered(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: Taken
) -> None:
    async def body(broker: DataBroker) -> None:
        follower = await in_session(broker)
        before = taken.count
        follower.caller.send(follower.request(max_wait_ms=600_000), 17)
        while not broker.replicas.fetch_purgatory.delayed:
            await asyncio.sleep(0)

        def fail(_: object) -> None:
            raise RuntimeError("on purpose")

        monkeypatch.setattr(broker.log_manager.reader, "read_cached", fail)
        await broker.produce("flights", b"one")
        (response,) = await follower.caller.responses(1)
        assert (taken.count - before, response.error_code) == (1, ErrorCode.UNKNOWN_SERVER_ERROR)
        assert any("has waited failed" in line for line in broker.calls.lines.lines)

    scenario(run, tmp_path, body)


def test_a_failure_at_once_ends_the_connection(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: Taken
) -> None:
    async def body(broker: DataBroker) -> None:
        follower = await in_session(broker)

        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("on purpose")

        monkeypatch.setattr(broker.fetches, "fetch", fail)
        with pytest.raises(RuntimeError, match="on purpose"):
            follower.caller.send(follower.request(), 17)
        assert follower.caller.transport.closed

    scenario(run, tmp_path, body)


def test_a_lost_connection_gives_up_what_waits(run: Run, tmp_path: Path, taken: Taken) -> None:
    async def body(broker: DataBroker) -> None:
        follower = await in_session(broker)
        before = taken.count
        follower.caller.send(follower.request(max_wait_ms=600_000), 17)
        while not broker.replicas.fetch_purgatory.delayed:
            await asyncio.sleep(0)
        follower.caller.transport.abort()
        assert (taken.count - before, broker.replicas.fetch_purgatory.delayed) == (1, 0)
        assert not broker.sessions.sessions[follower.session_id].parked

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("path", ["general", "fast", "repeated"])
def test_a_fetch_that_cannot_be_answered_is_told_so_and_keeps_no_other_waiting(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    async def body(broker: DataBroker) -> None:
        if path == "repeated":
            callers = [follower.caller for follower in await in_step(broker)]
            monkeypatch.setattr(FollowerFetch, "_frame", lambda *_: None)
        else:
            broker.lead("flights")
            await settled()
            callers = [broker.connect() for _ in range(3)]
            for caller in callers:
                if path == "fast":
                    await caller.call(fetch_request(17, "flights", asked()), 17)
                caller.send(fetch_request(17, "flights", asked(), max_wait_ms=600_000), 17)
        while broker.replicas.fetch_purgatory.delayed < len(callers):
            await asyncio.sleep(0)
        read, reads = FetchReader.read, list[int]()

        def read_or_fail(reader: FetchReader, *arguments: Any, **options: Any) -> Any:
            reads.append(1)
            if len(reads) == 1:
                raise RuntimeError("this log is not to be read")
            return read(reader, *arguments, **options)

        monkeypatch.setattr(FetchReader, "read", read_or_fail)
        await broker.produce("flights", b"one")
        answers = [(await caller.responses(1))[0] for caller in callers]
        assert answers[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert [values(only(answer)) for answer in answers[1:]] == [[b"one"]] * (len(callers) - 1)
        assert broker.replicas.fetch_purgatory.delayed == 0

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("empty_topics", [1, 2])
def test_a_follower_may_name_topics_of_which_it_asks_for_nothing(
    run: Run, tmp_path: Path, taken: Taken, empty_topics: int
) -> None:
    """No broker does, but the frame is legal: it names one partition, and is none that is learnt."""

    async def body(broker: DataBroker) -> None:
        broker.lead("trains")
        follower = await in_session(broker)
        before = taken.count
        for _ in range(4):
            request = follower.request(asked(log_start_offset=0), max_wait_ms=1)
            request.topics += [FetchRequest.FetchTopic(topic_id=topic_id("trains")) for _ in range(empty_topics)]
            assert follower.take(await follower.caller.call(request, 17)) == {}
        assert taken.count - before == 4

    scenario(run, tmp_path, body)


def test_very_many_partitions_in_one_request_are_looked_at_in_steps(run: Run, tmp_path: Path, taken: Taken) -> None:
    """Each of two arrays in a usual frame may have as many elements as one byte can count: that many times as many."""

    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        client = broker.connect()
        await client.call(fetch_request(17, "flights", asked()), 17)
        for count, is_taken in ((FEW_PARTITIONS, True), (FEW_PARTITIONS + 1, False)):
            request = fetch_request(17, "flights", asked())
            request.topics = [
                FetchRequest.FetchTopic(topic_id=topic_id("flights"), partitions=[asked(at) for at in range(some)])
                for some in [100] * (count // 100) + [count % 100]
            ]
            before = taken.count
            response = await client.call(request, 17)
            assert response.error_code == 0
            assert taken.count - before == is_taken

    scenario(run, tmp_path, body)
