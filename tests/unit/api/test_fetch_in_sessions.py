"""`barnabas.api.fetch` within sessions, with real logs and replicas."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import FetchResponse
from tests.unit.api.data_broker import DataBroker, batch, produce_request
from tests.unit.api.fetching import Run, Session, asked, fetch_request, scenario, settled, values


@pytest.mark.parametrize("version", [7, 12, 13, 17])
def test_a_session_answers_with_news_only(run: Run, tmp_path: Path, version: int) -> None:
    async def body(broker: DataBroker) -> None:
        for number in range(50):
            broker.lead("flights", number)
        await settled()
        session = Session(broker.connect(), version)
        first = await session.fetch(*(asked(number) for number in range(50)))
        assert sorted(first) == list(range(50))
        assert session.session_id != 0
        examined = broker.topic_metrics.of("flights").fetch_requests
        before = examined.count
        assert await session.fetch() == {}
        assert examined.count == before
        await broker.produce("flights", b"one", number=17)
        found = await session.fetch()
        assert {number: values(data) for number, data in found.items()} == {17: [b"one"]}
        # The client did not move on, so it gets it again; then it does.
        assert list(await session.fetch()) == [17]
        assert await session.fetch(asked(17, 1)) == {}
        before = examined.count
        assert await session.fetch() == {}
        assert examined.count == before
        assert await session.fetch(forgotten=[17]) == {}
        await broker.produce("flights", b"two", number=17)
        await broker.produce("flights", b"three", number=18)
        assert list(await session.fetch()) == [18]

    scenario(run, tmp_path, body)


def test_a_parked_session_wakes_for_its_changes_alone(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        for number in range(20):
            broker.lead("flights", number)
        await settled()
        session = Session(broker.connect())
        await session.fetch(*(asked(number) for number in range(20)))
        examined = broker.topic_metrics.of("flights").fetch_requests
        before = examined.count
        session.caller.send(session.request(max_wait_ms=600_000), 12)
        while not broker.replicas.fetch_purgatory.delayed:
            await asyncio.sleep(0)
        await broker.produce("flights", b"one", number=3)
        (response,) = await session.caller.responses(1)
        assert list(session.take(response)) == [3]
        assert examined.count - before == 1

    scenario(run, tmp_path, body)


def test_who_got_bytes_lately_comes_last(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        for number in range(3):
            broker.lead("flights", number)
            for _ in range(3):
                await broker.produce("flights", bytes(1000), number=number)
        session = Session(broker.connect())
        one = len(batch(bytes(1000)))
        limits = {"max_bytes": one, "min_bytes": 1}
        offsets = dict.fromkeys(range(3), 0)
        order: list[int] = []
        found = await session.fetch(*(asked(number, partition_max_bytes=one) for number in range(3)), **limits)
        for _ in range(9):
            got = [number for number, data in found.items() if data.records]
            order += got
            for number in got:
                offsets[number] += 1
            found = await session.fetch(
                *(asked(number, offsets[number], partition_max_bytes=one) for number in got), **limits
            )
        assert order == [0, 1, 2] * 3
        assert offsets == dict.fromkeys(range(3), 3)

    scenario(run, tmp_path, body)


def test_errors_are_said_until_they_are_over(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        session = Session(broker.connect(), 13)
        assert (await session.fetch(asked(), asked(1)))[1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await session.fetch())[1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        broker.lead("flights", 1)
        found = await session.fetch()
        assert (found[1].error_code, found[1].high_watermark) == (0, 0)
        assert await session.fetch() == {}
        broker.lead("flights", 1, leader=2, leader_epoch=1, replicas=(1, 2))
        await settled()
        found = await session.fetch(asked(1, current_leader_epoch=0))
        assert found[1].error_code == ErrorCode.FENCED_LEADER_EPOCH

    scenario(run, tmp_path, body)


def test_a_session_that_is_not_there_or_not_in_step_is_refused(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        caller = broker.connect()
        session = Session(caller)
        await session.fetch(asked())

        async def code(session_id: int, epoch: int, version: int = 12) -> int:
            request = fetch_request(version, "flights", session_id=session_id, session_epoch=epoch)
            response: FetchResponse = await caller.call(request, version)
            assert response.responses == []
            return response.error_code

        other = session.session_id ^ 1
        assert await code(other, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert await code(session.session_id, 2) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert await code(session.session_id, 1, 13) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        assert await code(session.session_id, 1) == 0
        assert await code(session.session_id, -1) == 0  # ends it
        assert await code(session.session_id, 2) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert not any(partition.watchers for partition in broker.replicas.partitions.values())

    scenario(run, tmp_path, body)


def test_a_second_request_of_a_session_makes_the_parked_one_invalid(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        session = Session(broker.connect())
        await session.fetch(asked())
        session.caller.send(session.request(max_wait_ms=600_000), 12)
        again = broker.connect()
        session.epoch += 1
        again.send(session.request(), 12)
        (second,) = await again.responses(1)
        assert second.error_code == 0
        await broker.produce("flights", b"one")
        (first,) = await session.caller.responses(1)
        assert (first.error_code, first.responses) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, [])

    scenario(run, tmp_path, body)


def test_followers_push_clients_out_of_a_full_cache(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", isr=(1, 2), replicas=(1, 2, 3))
        clients = [Session(broker.connect()) for _ in range(3)]
        for client in clients:
            await client.fetch(asked())
        assert [client.session_id != 0 for client in clients] == [True, True, False]
        # A parked fetch of the session that has to go is answered.
        clients[0].caller.send(clients[0].request(max_wait_ms=600_000), 12)
        clients[1].caller.send(clients[1].request(max_wait_ms=600_000), 12)
        while broker.replicas.fetch_purgatory.delayed < 2:
            await asyncio.sleep(0)
        follower = Session(broker.connect(), replica_id=2)
        await follower.fetch(asked())
        assert follower.session_id != 0
        while broker.replicas.fetch_purgatory.delayed > 1:
            await asyncio.sleep(0)
        assert broker.sessions.evictions.count == 1
        assert len(broker.sessions.sessions) == 2

    scenario(run, tmp_path, body)


def test_a_followers_quiet_partitions_cost_nothing_and_stay_in_sync(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        for number in range(30):
            broker.lead("flights", number, isr=(1, 2), replicas=(1, 2))
        await settled()
        follower = Session(broker.connect(), 17, replica_id=2)
        await follower.fetch(*(asked(number, log_start_offset=0) for number in range(30)))
        # That the leader learns where the follower's logs begin is a change itself.
        assert await follower.fetch() == {}
        examined = broker.topic_metrics.of("flights").fetch_requests
        before = examined.count
        for _ in range(5):
            assert await follower.fetch() == {}
        assert examined.count == before
        session = broker.sessions.sessions[follower.session_id]
        partition = broker.lead("flights", 4, leader_epoch=1, isr=(1, 2), replicas=(1, 2))
        producer = broker.connect()
        producer.send(produce_request("flights", batch(b"one"), number=4, acks=-1), 9)
        while not broker.replicas.produce_purgatory.delayed:
            await asyncio.sleep(0)
        found = await follower.fetch(asked(4, log_start_offset=0, current_leader_epoch=1))
        assert values(found[4]) == [b"one"]
        assert await follower.fetch(asked(4, 1, log_start_offset=0, current_leader_epoch=1)) != {}
        (response,) = await producer.responses(1)
        assert response.responses[0].partition_responses[0].error_code == 0
        assert partition.high_watermark == 1
        assert session.clock.time == session.last_used

    scenario(run, tmp_path, body)
