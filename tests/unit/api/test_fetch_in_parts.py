"""Very many partitions of one session have news: a response tells of some, and the next ones of the others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.testing.fetches_in_parts import fetches_in_parts
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import FetchResponse
from barnabas.wire.topics import TopicPartition
from tests.unit.api.data_broker import DataBroker
from tests.unit.api.fetching import Run, Session, asked, scenario, settled, values

COUNT = 7
FEW = 2
WAIT_MS = 600_000
NUMBERS = range(COUNT)
ANYBODY = pytest.mark.parametrize(("version", "replica_id"), [(12, -1), (17, -1), (12, 2), (17, 2)])


@pytest.fixture(autouse=True)
def _two_are_many() -> Iterator[None]:
    with fetches_in_parts(FEW):
        yield


def lead(broker: DataBroker, *, isr: tuple[int, ...] = (1,)) -> None:
    for number in NUMBERS:
        broker.lead("flights", number, isr=isr, replicas=(1, 2))


async def opened(broker: DataBroker, version: int, replica_id: int) -> Session:
    """A session of all partitions, which has nothing to say any more."""
    session = Session(broker.connect(), version, replica_id)
    named = [asked(number, log_start_offset=0) for number in NUMBERS]
    found = await session.fetch(*named)
    while found:
        found = await session.fetch()
    return session


@ANYBODY
def test_each_news_comes_once_and_soon(run: Run, tmp_path: Path, version: int, replica_id: int) -> None:
    async def body(broker: DataBroker) -> None:
        lead(broker)
        session = await opened(broker, version, replica_id)
        for number in NUMBERS:
            await broker.produce("flights", b"one", number=number)
        ends: dict[int, int] = {}
        given: list[int] = []
        while len(ends) < COUNT:
            named = [asked(number, end, log_start_offset=0) for number, end in ends.items() if number in given[-FEW:]]
            found = await session.fetch(*named, max_wait_ms=WAIT_MS)
            fresh = [number for number, data in found.items() if data.records]
            assert 0 < len(found) <= 2 * FEW, "some are told of, and not all"
            assert fresh
            assert all(values(found[number]) == [b"one"] for number in fresh)
            ends |= dict.fromkeys(fresh, 1)
            given += fresh
        assert Counter(given) == Counter(NUMBERS)

    scenario(run, tmp_path, body)


@ANYBODY
def test_what_comes_while_a_fetch_waits_is_told_in_parts(
    run: Run, tmp_path: Path, version: int, replica_id: int
) -> None:
    """It is one turn in which a parked fetch is looked at again, whatever has come to it meanwhile."""

    async def body(broker: DataBroker) -> None:
        lead(broker)
        session = await opened(broker, version, replica_id)
        session.caller.send(session.request(max_wait_ms=WAIT_MS, min_bytes=1), version)
        await settled()
        writes = [asyncio.ensure_future(broker.produce("flights", b"one", number=number)) for number in NUMBERS]
        (response,) = await session.caller.responses(1)
        await asyncio.gather(*writes)
        given = list(session.take(response))
        assert 0 < len(given) <= 2 * FEW
        while len(set(given)) < COUNT:
            ends = [asked(number, 1, log_start_offset=0) for number in given[-2 * FEW :]]
            found = await session.fetch(*ends, max_wait_ms=WAIT_MS)
            assert {number for number, data in found.items() if data.records}.isdisjoint(given)
            given += [number for number, data in found.items() if data.records]

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("version", [12, 17])
def test_of_all_that_a_follower_has_is_taken_note_before_it_waits(run: Run, tmp_path: Path, version: int) -> None:
    """Whoever waits for replicas would wait until the follower's request is over."""

    async def body(broker: DataBroker) -> None:
        lead(broker, isr=(1, 2))
        session = await opened(broker, version, 2)
        for number in NUMBERS:
            await broker.produce("flights", b"one", number=number)
        named = [asked(number, 1, log_start_offset=0) for number in NUMBERS]
        session.caller.send(session.request(*named, max_wait_ms=WAIT_MS), version)
        for _ in range(20 * COUNT):
            await asyncio.sleep(0)
        assert [high_watermark(broker, number) for number in NUMBERS] == [1] * COUNT

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("version", [12, 17])
def test_of_all_that_a_follower_has_is_taken_note_however_much_there_is_to_give(
    run: Run, tmp_path: Path, version: int
) -> None:
    """A response that tells of some leaves the others to the next request, and these have their turn in it."""

    async def body(broker: DataBroker) -> None:
        lead(broker, isr=(1, 2))
        session = await opened(broker, version, 2)
        for number in NUMBERS:
            for value in (b"one", b"two"):
                await broker.produce("flights", value, number=number)
        found = await session.fetch(*(asked(number, 1, log_start_offset=0) for number in NUMBERS), max_wait_ms=WAIT_MS)
        assert 0 < len(found) <= 2 * FEW
        for _ in range(COUNT):
            found = await session.fetch(
                *(asked(number, 1, log_start_offset=0) for number in found), max_wait_ms=WAIT_MS
            )
            assert found
        assert [high_watermark(broker, number) for number in NUMBERS] == [1] * COUNT

    scenario(run, tmp_path, body)


@ANYBODY
def test_who_has_always_news_keeps_nobody_from_having_his(
    run: Run, tmp_path: Path, version: int, replica_id: int
) -> None:
    """More of them than one response tells of: who got the most lately comes last."""

    async def body(broker: DataBroker) -> None:
        lead(broker)
        session = await opened(broker, version, replica_id)
        busy = NUMBERS[: 2 * FEW + 1]
        for number in busy:
            for _ in range(30):
                await broker.produce("flights", b"busy", number=number)
        ends = dict.fromkeys(NUMBERS, 0)
        late = NUMBERS[-1]
        found: dict[int, int] = {}
        for turn in range(20):
            if turn == 5:
                await broker.produce("flights", b"late", number=late)
            named = [asked(each, ends[each], log_start_offset=0, partition_max_bytes=1) for each in found]
            answer = await session.fetch(*named, max_wait_ms=WAIT_MS, max_bytes=100)
            found = {each: len(values(data)) for each, data in answer.items() if data.records}
            for each, count in found.items():
                ends[each] += count
            if late in found:
                return
        pytest.fail(f"it waits for ever: {ends}")

    scenario(run, tmp_path, body)


@ANYBODY
def test_errors_of_many_keep_nobody_from_having_his_records(
    run: Run, tmp_path: Path, version: int, replica_id: int
) -> None:
    """An error is news each time."""

    async def body(broker: DataBroker) -> None:
        lead(broker)
        session = Session(broker.connect(), version, replica_id)
        ends = dict.fromkeys(NUMBERS, 99) | {NUMBERS[-1]: 0}
        await session.fetch(*(asked(number, end, log_start_offset=0) for number, end in ends.items()))
        await broker.produce("flights", b"one", number=NUMBERS[-1])
        found = await session.fetch(max_wait_ms=WAIT_MS)
        for _ in range(COUNT):
            if NUMBERS[-1] in found:
                break
            assert {data.error_code for data in found.values()} == {ErrorCode.OFFSET_OUT_OF_RANGE}
            found = await session.fetch(max_wait_ms=WAIT_MS)
        assert values(found[NUMBERS[-1]]) == [b"one"]

    scenario(run, tmp_path, body)


@ANYBODY
def test_what_a_response_has_left_comes_without_another_wait(
    run: Run, tmp_path: Path, version: int, replica_id: int
) -> None:
    """Less than `min_bytes` are left, or high watermarks only: in one response they had come together."""

    async def body(broker: DataBroker) -> None:
        lead(broker)
        session = await opened(broker, version, replica_id)
        for number in NUMBERS:
            for _ in range(2):
                await broker.produce("flights", b"one", number=number)
        size_bytes = 3 * FEW * len((await broker_read(broker)).records or b"")
        given: set[int] = set()
        found = await session.fetch(max_wait_ms=WAIT_MS, min_bytes=size_bytes)
        while found:
            given |= set(found)
            if len(given) == COUNT:
                return
            named = [asked(number, 2, log_start_offset=0) for number in found]
            request = session.fetch(*named, max_wait_ms=WAIT_MS, min_bytes=1 << 20)
            found = await asyncio.wait_for(request, 30)
        pytest.fail(f"nothing more than of {given}")

    scenario(run, tmp_path, body)


@ANYBODY
def test_what_came_while_a_fetch_waited_comes_without_another_wait(
    run: Run, tmp_path: Path, version: int, replica_id: int
) -> None:
    async def body(broker: DataBroker) -> None:
        lead(broker)
        session = await opened(broker, version, replica_id)
        session.caller.send(session.request(max_wait_ms=WAIT_MS, min_bytes=1), version)
        await settled()
        await asyncio.gather(*(broker.produce("flights", b"one", number=number) for number in NUMBERS))
        (response,) = await session.caller.responses(1)
        found = session.take(response)
        assert len(found) < COUNT
        named = [asked(number, 1, log_start_offset=0) for number in found]
        request = session.fetch(*named, max_wait_ms=WAIT_MS, min_bytes=1 << 20)
        assert await asyncio.wait_for(request, 30)

    scenario(run, tmp_path, body)


async def broker_read(broker: DataBroker) -> FetchResponse.PartitionData:
    return (await Session(broker.connect()).fetch(asked(0)))[0]


@pytest.mark.parametrize("version", [12, 17])
def test_errors_of_all_are_told_in_parts(run: Run, tmp_path: Path, version: int) -> None:
    """They are answered at once, so nobody need look at all of them before."""

    async def body(broker: DataBroker) -> None:
        lead(broker)
        session = Session(broker.connect(), version, 2)
        await session.fetch(*(asked(number, 99, log_start_offset=0) for number in NUMBERS))
        told: set[int] = set()
        for _ in range(COUNT):
            found = await session.fetch(max_wait_ms=WAIT_MS)
            assert 0 < len(found) <= 2 * FEW
            told |= set(found)
        assert told == set(NUMBERS)

    scenario(run, tmp_path, body)


def high_watermark(broker: DataBroker, number: int) -> int:
    log = broker.replicas.get_partition(TopicPartition("flights", number)).log
    assert log is not None
    return log.high_watermark


@pytest.mark.parametrize("version", [11, 12, 17])
def test_a_follower_that_keeps_up_with_steady_news_of_all_is_caught_up_with_each(
    run: Run, tmp_path: Path, version: int
) -> None:
    """Each has news in each request, and is looked at in a few: what its follower says of it counts nonetheless, when
    it says so. Later it would be behind what the leader had in the requests between, and leave the ISR."""

    async def body(broker: DataBroker) -> None:
        lead(broker, isr=(1, 2))
        session = await opened(broker, version, 2)
        ends = dict.fromkeys(NUMBERS, 0)
        given: list[int] = []
        before: dict[int, float] = {}
        for turn in range(4 * COUNT):
            if turn == 2 * COUNT:
                before = {number: caught_up_time(broker, number) for number in NUMBERS}
            for number in NUMBERS:
                await broker.produce("flights", b"more", number=number)
            named = [asked(number, ends[number], log_start_offset=0) for number in given]
            found = await session.fetch(*named, max_wait_ms=WAIT_MS)
            given = [number for number, data in found.items() if data.records]
            assert len(given) <= 2 * FEW
            for number in given:
                ends[number] += len(values(found[number]))
        assert all(caught_up_time(broker, number) > before[number] for number in NUMBERS)

    scenario(run, tmp_path, body)


def caught_up_time(broker: DataBroker, number: int) -> float:
    return broker.replicas.get_partition(TopicPartition("flights", number)).in_sync.by_id[2].caught_up_time
