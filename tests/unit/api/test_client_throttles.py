"""Clients with quotas, in virtual time, with real logs: they get their rate, and are told of the delay."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from barnabas.kernel.host import Host
from barnabas.quotas.client_quotas import DEFAULT, QuotaEntity
from barnabas.testing.simulation import Simulation
from barnabas.wire.messages import FetchResponse, ProduceResponse
from barnabas.wire.record_conversion import down_convert
from tests.unit.api.calling import Caller
from tests.unit.api.data_broker import DataBroker, batch, data_broker, produce_request
from tests.unit.api.fetching import Session, asked, fetch_request, only, values

SECONDS = 40.0
BOUND = 20_000.0
TOLERANCE = 0.2


def scenario(body: Callable[[DataBroker], Coroutine[Any, Any, None]]) -> None:
    async def main(host: Host) -> None:
        async with data_broker(host, "/logs") as broker:
            await body(broker)

    with Simulation(1) as simulation:
        simulation.run_on(simulation.machine("broker"), main, limit_seconds=100_000)


async def answer(caller: Caller, message: Any, version: int) -> Any:
    """As `Caller.call`, where the answer may take virtual time."""
    caller.send(message, version)
    for turn in itertools.count():
        if caller.transport.written:
            break
        await asyncio.sleep(0.001 if turn > 20 else 0)
    (response,) = caller.received()
    return response


def check_muted(caller: Caller, throttle_time_ms: int) -> None:
    """Its connection waits for as long as it is told; what is about to end may have ended."""
    if throttle_time_ms == 0 or throttle_time_ms > 20:
        assert caller.connection.is_throttled == (throttle_time_ms > 0)


async def taken(seconds: float, take: Callable[[], Coroutine[Any, Any, int]]) -> float:
    """Bytes per second of somebody who takes as fast as he can."""
    now = asyncio.get_running_loop().time
    began, size_bytes = now(), 0
    while now() - began < seconds:
        size_bytes += await take()
        await asyncio.sleep(0.002)
    return size_bytes / (now() - began)


@pytest.mark.parametrize("acks", [1, 0])
@pytest.mark.parametrize("size", [50, 3_000, 9_000])
def test_a_producer_gets_the_rate_of_its_quota(size: int, acks: int) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        broker.throttles.produce.set(QuotaEntity(None, "limited"), BOUND)
        caller, free = broker.connect("limited"), broker.connect("free")
        chance = random.Random(size)
        throttled: set[bool] = set()

        async def produce() -> int:
            records = batch(bytes(chance.randrange(size, 2 * size)))
            message = produce_request("flights", records, acks=acks)
            if acks:
                response: ProduceResponse = await answer(caller, message, 9)
                throttled.add(response.throttle_time_ms > 0)
                check_muted(caller, response.throttle_time_ms)
            else:
                caller.send(message, 9, answered=False)
                while caller.connection.is_throttled:
                    await asyncio.sleep(0.01)
            return len(records)

        assert await taken(SECONDS, produce) == pytest.approx(BOUND, rel=TOLERANCE)
        assert throttled == ({True, False} if acks else set())
        began = asyncio.get_running_loop().time()
        for _ in range(20):
            response = await answer(free, produce_request("flights", batch(bytes(size))), 9)
            assert response.throttle_time_ms == 0
        assert asyncio.get_running_loop().time() - began < 1.0, "who has no quota does not wait"

    scenario(body)


@pytest.mark.parametrize("version", [9, 2])
def test_what_waits_for_replicas_counts_though_its_client_is_gone(version: int) -> None:
    """Else whoever hangs up has no quota. Version 2 is decoded by the codec, which has no fast path for it."""

    async def body(broker: DataBroker) -> None:
        broker.lead("flights", isr=(1, 2), replicas=(1, 2))
        broker.throttles.produce.set(QuotaEntity(None, "limited"), 100.0)
        caller = broker.connect("limited")
        records = batch(bytes(5_000))
        if version < 3:
            records = bytes(down_convert(records, 1).data)
        caller.send(produce_request("flights", records, acks=-1, timeout_ms=500), version)
        await asyncio.sleep(0.1)
        caller.transport.abort()
        await asyncio.sleep(1)
        response = await answer(broker.connect("limited"), produce_request("flights", batch(b"x")), 9)
        assert response.throttle_time_ms > 10_000

    scenario(body)


@pytest.mark.parametrize(
    ("version", "in_session"),
    # Sessions are there from version 7 on.
    [(4, False), (11, False), (12, False), (17, False), (11, True), (12, True), (17, True)],
)
def test_a_consumer_gets_the_rate_of_its_quota_and_every_record_once(version: int, in_session: bool) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        sent = [number.to_bytes(4, "big") + bytes(1000) for number in range(1_500)]
        for value in sent:
            await broker.produce("flights", value)
        broker.throttles.fetch.set(QuotaEntity("ANONYMOUS", DEFAULT), BOUND)
        caller = broker.connect("limited")
        session = Session(caller, version)
        read: list[bytes | None] = []
        throttled = 0

        async def fetch() -> int:
            nonlocal throttled
            part = asked(offset=len(read), partition_max_bytes=4_000)
            if in_session:
                response: FetchResponse = await answer(caller, session.request(part), version)
                found = session.take(response).get(0)
            else:
                response = await answer(caller, fetch_request(version, "flights", part), version)
                found = None if response.throttle_time_ms else only(response)
            check_muted(caller, response.throttle_time_ms)
            if response.throttle_time_ms:
                throttled += 1
                assert found is None
            if found is None:
                return 0
            read.extend(values(found))
            return len(found.records or b"")

        assert await taken(SECONDS, fetch) == pytest.approx(BOUND, rel=TOLERANCE)
        assert throttled
        assert read == sent[: len(read)]

    scenario(body)


def test_a_parked_fetch_is_held_back_when_it_is_answered() -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        broker.throttles.fetch.set(QuotaEntity(None, DEFAULT), 100.0)
        caller = broker.connect("limited")
        session = Session(caller, 17)
        assert session.take(await answer(caller, session.request(asked(offset=0)), 17))[0].error_code == 0
        for number, is_throttled in enumerate((False, True)):
            caller.send(session.request(asked(offset=number), max_wait_ms=60_000), 17)
            await asyncio.sleep(1)
            assert not caller.transport.written
            await broker.produce("flights", bytes(600))
            await asyncio.sleep(0.1)
            (response,) = caller.received()
            found = session.take(response)
            assert (response.throttle_time_ms > 0) == is_throttled
            assert caller.connection.is_throttled == is_throttled
            assert len(found) == (not is_throttled)
        # What was not given is given later, in the same session, which does not name it again.
        found = {}
        while not found:
            found = session.take(await answer(caller, session.request(), 17))
        assert len(values(found[0])) == 1

    scenario(body)


def test_followers_are_not_clients() -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", isr=(1,), replicas=(1, 2))
        for _ in range(20):
            await broker.produce("flights", bytes(5_000))
        for entity in (QuotaEntity(None, DEFAULT), QuotaEntity(DEFAULT, None)):
            broker.throttles.fetch.set(entity, 1.0)
        caller = broker.connect("broker-2-fetcher-0")
        for version in (12, 17):
            session = Session(caller, version, 2)
            response = await answer(caller, session.request(asked(log_start_offset=0)), version)
            assert response.throttle_time_ms == 0
            assert len(values(session.take(response)[0])) == 20
            assert not caller.connection.is_throttled

    scenario(body)


def test_a_fetch_is_never_larger_than_what_may_be_taken_at_once() -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        for _ in range(20):
            await broker.produce("flights", bytes(1_000))
        broker.throttles.fetch.set(QuotaEntity(None, DEFAULT), 500.0)
        caller = broker.connect("limited")
        for _ in range(2):  # on the general path, and on the fast one
            response = await answer(caller, fetch_request(17, "flights", asked()), 17)
            if response.throttle_time_ms == 0:
                assert 3 <= len(values(only(response))) <= 5
        assert caller.connection.is_throttled

    scenario(body)


def test_a_batch_that_is_larger_than_any_burst_is_given_after_a_pause() -> None:
    """Kafka holds it back for ever."""

    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        for _ in range(2):
            await broker.produce("flights", bytes(30_000))
        broker.throttles.fetch.set(QuotaEntity(None, DEFAULT), 1_000.0)
        caller = broker.connect("limited")
        now = asyncio.get_running_loop().time
        for offset in range(2):
            began = now()
            while (response := await answer(caller, fetch_request(17, "flights", asked(offset=offset)), 17)) and (
                response.throttle_time_ms
            ):
                assert now() - began < 60
            assert len(values(only(response))) == 1
            assert (now() - began > 5) == (offset > 0)

    scenario(body)


def test_a_quota_that_is_raised_counts_from_the_next_request_on() -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        produce, fetch = broker.throttles.produce, broker.throttles.fetch
        entity = QuotaEntity(None, "limited")
        produce.set(entity, 1_000.0)
        caller = broker.connect("limited")
        message = produce_request("flights", batch(bytes(11_000)))
        assert (await answer(caller, message, 9)).throttle_time_ms == pytest.approx(1_000, abs=150)
        produce.set(entity, None)
        assert (await answer(caller, message, 9)).throttle_time_ms == 0
        reader = broker.connect("limited")
        fetch.set(entity, 1_000.0)
        await answer(reader, fetch_request(17, "flights", asked()), 17)
        assert (await answer(reader, fetch_request(17, "flights", asked()), 17)).throttle_time_ms > 0
        fetch.set(entity, None)
        assert len(values(only(await answer(reader, fetch_request(17, "flights", asked()), 17)))) == 2
        assert next(iter(fetch)).throttle_ms_average > 0

    scenario(body)
