"""Quotas that are set, changed and removed while clients send: whatever they do, each request is answered once and in
its turn, and nothing is written twice or not at all. In virtual time, with real logs.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Final

import pytest

from barnabas.kernel.host import Host
from barnabas.quotas.client_quotas import DEFAULT, QuotaEntity
from barnabas.testing.simulation import Simulation
from barnabas.wire.messages import MetadataRequest, ProduceResponse
from tests.unit.api.calling import Caller
from tests.unit.api.data_broker import DataBroker, batch, data_broker, produce_request
from tests.unit.api.fetching import asked, fetch_request, only, values
from tests.unit.api.test_client_throttles import answer

TOPIC: Final = "flights"
USER: Final = "ANONYMOUS"
DAY_SECONDS: Final = 86_400.0


def scenario(body: Callable[[DataBroker], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    async def main(host: Host) -> None:
        async with data_broker(host, "/logs") as broker:
            broker.lead(TOPIC)
            await body(broker)

    with Simulation(seed) as simulation:
        simulation.run_on(simulation.machine("broker"), main, limit_seconds=40 * DAY_SECONDS)


def is_held_back(caller: Caller) -> bool:
    return caller.connection.is_throttled


async def settled(caller: Caller, is_done: Callable[[], bool], seconds: float = 3_600.0) -> None:
    """Waits until it is done, or the time is over."""
    now = asyncio.get_running_loop().time
    until = now() + seconds
    while not is_done() and not caller.transport.closed and now() < until:
        await asyncio.sleep(0.05)


def test_a_quota_that_is_set_amid_requests_holds_from_the_next_one_on_and_none_is_lost() -> None:
    async def body(broker: DataBroker) -> None:
        caller = broker.connect("limited")
        got: list[ProduceResponse] = []
        for number in range(30):
            if number == 9:
                await asyncio.sleep(1.0)
                broker.throttles.produce.set(QuotaEntity(None, "limited"), 100.0)
            caller.send(produce_request(TOPIC, batch(number.to_bytes(4, "big") + bytes(500))), 9)
            if number % 3 == 2:  # three come at once
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.1)
        got += caller.received()
        assert len(got) < 30
        assert is_held_back(caller)
        broker.throttles.produce.set(QuotaEntity(None, "limited"), None)
        await asyncio.sleep(0.5)
        got += caller.received()
        assert is_held_back(caller), "what a client was told holds, as in Apache Kafka"
        while len(got) < 30:
            await asyncio.sleep(1.0)
            got += caller.received()
        assert not is_held_back(caller)
        times = [response.throttle_time_ms for response in got]
        assert not any(times[:9])
        assert any(times[9:])
        offsets = [response.responses[0].partition_responses[0].base_offset for response in got]
        assert offsets == list(range(30))

    scenario(body)


def test_who_was_held_back_for_ever_comes_again_when_the_quota_is_gone() -> None:
    """A quota of 0 holds back for 24 days. The connection is closed as idle, and the next one of its client is free."""

    async def body(broker: DataBroker) -> None:
        broker.throttles.produce.set(QuotaEntity(None, "limited"), 0.0)
        caller = broker.connect("limited")
        response = await answer(caller, produce_request(TOPIC, batch(b"a")), 9)
        assert response.throttle_time_ms == 2**31 - 1
        caller.send(produce_request(TOPIC, batch(b"never")), 9, answered=False)
        broker.throttles.produce.set(QuotaEntity(None, "limited"), None)
        again = broker.connect("limited")
        assert (await answer(again, produce_request(TOPIC, batch(b"b")), 9)).throttle_time_ms == 0
        await settled(caller, lambda: False, DAY_SECONDS)
        assert caller.transport.closed
        assert not caller.transport.written
        response = await answer(broker.connect("reader"), fetch_request(17, TOPIC, asked()), 17)
        assert values(only(response)) == [b"a", b"b"]

    scenario(body)


ENTITIES: Final = (
    QuotaEntity(None, DEFAULT),
    QuotaEntity(None, "c0"),
    QuotaEntity(USER, None),
    QuotaEntity(USER, "c1"),
    QuotaEntity(USER, DEFAULT),
    QuotaEntity(DEFAULT, None),
    QuotaEntity(DEFAULT, DEFAULT),
    QuotaEntity(DEFAULT, "c2"),
)
BOUNDS: Final = (*[None, 200.0, 1_000.0, 10_000.0, 1e308] * 8, 1e-300)


def messages(chance: random.Random, numbers: Iterator[int]) -> list[tuple[Any, int, int | None]]:
    """Some requests that are sent at once, with their versions, and the number that each is to write."""
    found: list[tuple[Any, int, int | None]] = []
    for _ in range(chance.choice([1, 1, 2, 7])):
        kind = chance.random()
        if kind < 0.7:
            number = next(numbers)
            value = number.to_bytes(4, "big") + bytes(chance.choice([4, 100, 3_000, 9_000]))
            found.append((produce_request(TOPIC, batch(value), acks=chance.choice([1, -1])), 9, number))
        elif kind < 0.85:
            found.append((fetch_request(12, TOPIC, asked(partition_max_bytes=2_000), max_wait_ms=0), 12, None))
        else:
            found.append((MetadataRequest(topics=[]), 9, None))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_whatever_quotas_change_each_request_is_answered_once_and_in_its_turn(seed: int) -> None:
    counts = {"throttled": 0, "changes": 0, "at once": 0}

    async def body(broker: DataBroker) -> None:
        chance, numbers = random.Random(seed), iter(range(1 << 20))
        throttles = broker.throttles
        kinds = (throttles.produce, throttles.fetch, throttles.request)
        callers = [broker.connect(f"c{number}") for number in range(4)]
        sent: dict[Caller, list[int | None]] = {caller: [] for caller in callers}
        answered = dict.fromkeys(callers, 0)
        written: list[int] = []

        def take(caller: Caller) -> None:
            for response in caller.received():
                number = sent[caller][answered[caller]]
                answered[caller] += 1
                counts["throttled"] += response.throttle_time_ms > 0
                if number is not None:
                    part = response.responses[0].partition_responses[0]
                    assert part.error_code == 0
                    written.append(number)

        def is_answered(caller: Caller) -> bool:
            take(caller)
            return answered[caller] == len(sent[caller])

        for _ in range(60):
            for quotas in kinds:
                if chance.random() < 0.3:
                    counts["changes"] += 1
                    quotas.set(chance.choice(ENTITIES), chance.choice(BOUNDS))
            for caller in callers:
                if chance.random() < 0.6 and len(sent[caller]) - answered[caller] < 50:
                    for message, version, number in messages(chance, numbers):
                        sent[caller].append(number)
                        caller.send(message, version)
            await asyncio.sleep(chance.choice([0, 0.001, 0.1, 3.0]))
            for caller in callers:
                take(caller)
                assert not caller.transport.closed, "nobody is idle for so long here"
        for quotas in kinds:
            for entity in ENTITIES:
                quotas.set(entity, None)
        counts["at once"] = sum(answered.values())
        for caller in callers:
            # What holds it back may be days: its client would come again.
            await settled(caller, partial(is_answered, caller))
            if not caller.transport.closed:
                assert answered[caller] == len(sent[caller])
        reader = broker.connect("reader")
        response = await answer(reader, fetch_request(12, TOPIC, asked(partition_max_bytes=1 << 26)), 12)
        found = [int.from_bytes(value[:4], "big") for value in values(only(response)) if value is not None]
        assert sorted(set(found)) == sorted(found), "nothing is written twice"
        assert set(written) == set(found), "what is answered is there, and nothing else"

    scenario(body, seed)
    assert counts["changes"] > 20
    assert counts["throttled"] > 2
    assert counts["at once"] > 20
