"""Clients whose requests' time is limited, in virtual time: on the fast paths, on the general one, and in the turns of
coroutines; with a clock by which each look at it takes a while."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any

import pytest

from barnabas.api.context import RequestContext
from barnabas.api.request_time import RequestTime, Timed, timed_steps
from barnabas.kernel.steps import STEP_ELEMENTS, each
from barnabas.quotas.client_quotas import DEFAULT, AccountLimits, QuotaEntity, RateAccount
from barnabas.server.client_quota_metrics import client_quota_metrics
from barnabas.serving.fetch_reads import READ_PER_STEP
from barnabas.serving.fetch_sessions import FEW_PARTITIONS
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import KafkaError
from barnabas.wire.messages import (
    ApiVersionsRequest,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    MetadataRequest,
    WriteTxnMarkersRequest,
)
from tests.unit.api.data_broker import DataBroker, batch, produce_request
from tests.unit.api.fetching import Session, asked, fetch_request, only, values
from tests.unit.api.test_client_throttles import answer, scenario

LOOK_SECONDS = 0.002
PERCENT = 5.0


class SlowClock:
    """Each look takes two milliseconds, and nothing else any time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += LOOK_SECONDS
        return self.seconds


def limited(broker: DataBroker, percent: float = PERCENT) -> SlowClock:
    clock = broker.throttles.elapsed = SlowClock()
    broker.throttles.request.set(QuotaEntity(None, "limited"), percent)
    return clock


MESSAGES: dict[str, tuple[Any, int]] = {
    "a produce request on the fast path": (produce_request("flights", batch(b"x")), 9),
    "one on the general path": (produce_request("flights", batch(b"x")), 2),
    "a fetch on the fast path": (fetch_request(17, "flights", asked(0)), 17),
    "a fetch on the general path": (fetch_request(12, "flights", asked(0)), 12),
    "what is answered at once": (ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3),
    "metadata": (MetadataRequest(topics=[]), 12),
}


@pytest.mark.parametrize("what", MESSAGES)
def test_who_takes_more_time_than_his_share_is_held_back(what: str) -> None:
    message, version = MESSAGES[what]

    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        clock = limited(broker)
        caller, free = broker.connect("limited"), broker.connect("free")
        loop = asyncio.get_running_loop()
        began, throttled = loop.time(), 0
        while loop.time() - began < 60:
            response = await answer(caller, message, version)
            throttled += response.throttle_time_ms > 0
            assert response.throttle_time_ms <= 1_000, "no longer than a window"
            assert caller.connection.is_throttled or response.throttle_time_ms < 20
            await asyncio.sleep(0.001)
        assert throttled
        seconds = clock.seconds
        assert (await answer(free, message, version)).throttle_time_ms == 0
        assert clock.seconds == seconds, "who has no quota is not measured"
        place = "kafka.server:type=Request,name=request-time,client-id=limited"
        (rate,) = [metric.read() for name, metric in client_quota_metrics(broker.throttles) if str(name) == place]
        assert rate == pytest.approx(PERCENT, rel=0.2)

    scenario(body)


def test_a_fetch_above_the_quota_is_empty_and_its_records_come_later() -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        await broker.produce("flights", b"x")
        limited(broker, 0.01)
        caller = broker.connect("limited")
        session = Session(caller, 17)
        response = await answer(caller, session.request(asked(0)), 17)
        assert (response.throttle_time_ms, response.session_id, response.responses) == (1_000, 0, [])
        broker.throttles.request.set(QuotaEntity(None, "limited"), None)
        assert len(values(only(await answer(caller, session.request(asked(0)), 17)))) == 1

    scenario(body)


def test_what_brokers_ask_each_other_is_nobodys_time() -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", isr=(1,), replicas=(1, 2))
        clock = broker.throttles.elapsed = SlowClock()
        broker.throttles.request.set(QuotaEntity(DEFAULT, None), 0.001)
        caller = broker.connect("broker-2")
        await answer(caller, WriteTxnMarkersRequest(markers=[]), 1)
        for version in (12, 17):
            session = Session(caller, version, 2)
            for _ in range(3):
                session.take(await answer(caller, session.request(asked(log_start_offset=0)), version))
        assert clock.seconds == 0
        assert not caller.connection.is_throttled

    scenario(body)


class SlowHandler:
    """Works in some turns, and waits between them."""

    api_key = ApiKey.DELETE_GROUPS
    versions = (0, 2)

    async def handle(self, _context: RequestContext, _request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        for _ in range(5):
            await asyncio.sleep(1)
        return DeleteGroupsResponse(results=[])

    def error_response(
        self, _context: RequestContext, _request: DeleteGroupsRequest, _error: KafkaError
    ) -> DeleteGroupsResponse:
        return DeleteGroupsResponse(results=[])


def test_the_turns_of_a_coroutine_count_and_its_waits_do_not() -> None:
    async def body(broker: DataBroker) -> None:
        broker.calls.registry.add(SlowHandler())
        clock = limited(broker)
        caller = broker.connect("limited")
        await answer(caller, DeleteGroupsRequest(groups_names=[]), 2)
        (account,) = broker.throttles.request
        # Each of the turns, what is before and behind them, by two looks; ten windows but one are the measured time.
        assert clock.seconds >= 2 * 6 * LOOK_SECONDS
        assert 6 * LOOK_SECONDS * 100 <= account.rate * 10.5 <= clock.seconds * 100

    scenario(body)


class SteppingHandler(SlowHandler):
    """Has long work done in steps."""

    STEPS = 10

    async def handle(self, context: RequestContext, _request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        await context.in_steps(each(lambda _: None, range(self.STEPS * STEP_ELEMENTS)))
        return DeleteGroupsResponse(results=[])


def test_the_time_of_a_request_counts_though_its_client_is_gone() -> None:
    """Else whoever hangs up has no quota."""

    async def body(broker: DataBroker) -> None:
        broker.calls.registry.add(SlowHandler())
        limited(broker)
        caller = broker.connect("limited")
        caller.send(DeleteGroupsRequest(groups_names=[]), 2)
        await asyncio.sleep(2)
        caller.transport.abort()
        await asyncio.sleep(4)
        (account,) = broker.throttles.request
        assert account.rate * 10.5 >= 6 * LOOK_SECONDS * 100

    scenario(body)


def test_the_steps_of_a_coroutine_count() -> None:
    async def body(broker: DataBroker) -> None:
        broker.calls.registry.add(SteppingHandler())
        limited(broker)
        caller = broker.connect("limited")
        await answer(caller, DeleteGroupsRequest(groups_names=[]), 2)
        (account,) = broker.throttles.request
        assert account.rate * 10.5 >= SteppingHandler.STEPS * LOOK_SECONDS * 100

    scenario(body)


def test_a_produce_request_without_an_answer_counts_like_one_with() -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        limited(broker, 1e6)
        counted, before = [], 0.0
        for acks in (1, 0):
            caller = broker.connect("limited")
            for _ in range(10):
                message = produce_request("flights", batch(b"x"), acks=acks)
                if acks:
                    await answer(caller, message, 2)
                else:
                    caller.send(message, 2, answered=False)
                    await asyncio.sleep(0)
                    await broker.written()
            (account,) = broker.throttles.request
            counted.append(account.rate - before)
            before = account.rate
        # Writing the answer is a part of it, by one look.
        assert 0.5 * counted[0] < counted[1] <= counted[0]

    scenario(body)


def test_all_steps_of_a_large_fetch_count() -> None:
    count = 2 * FEW_PARTITIONS

    async def body(broker: DataBroker) -> None:
        broker.lead("flights")  # and not the others, which are looked at all the same
        clock = limited(broker, 1e6)
        caller = broker.connect("limited")
        partitions = [asked(number) for number in range(count)]
        await answer(caller, fetch_request(12, "flights", *partitions), 12)
        (account,) = broker.throttles.request
        # Named, read, chosen, answered; all that is measured lies between two looks.
        assert 4 * (count // READ_PER_STEP) * LOOK_SECONDS * 100 <= account.rate * 10.5
        assert account.rate * 10 <= clock.seconds * 100

    scenario(body)


def account_and_time() -> tuple[RateAccount, RequestTime, list[float]]:
    seconds = [0.0]
    account = RateAccount("u", "", 1.0, AccountLimits(lambda: 0.0, 11, 1.0))
    return account, RequestTime(account, lambda: seconds[0]), seconds


def test_time_counts_once_and_only_while_it_is_measured() -> None:
    account, time, seconds = account_and_time()
    seconds[0] += 0.01
    time.rest()
    seconds[0] += 5.0
    time.rest()
    time.go_on()
    seconds[0] += 0.02
    time.go_on()
    seconds[0] += 0.03
    time.count()
    assert account.rate == pytest.approx(6.0 / 10)
    time.count()
    assert account.rate == pytest.approx(6.0 / 10)
    seconds[0] += 0.94
    assert time.charge() == pytest.approx(90_000, abs=1)


def test_a_timed_awaitable_passes_on_results_errors_and_cancellation() -> None:
    async def main() -> None:
        async def work(outcome: Any) -> Any:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        async def timed(coroutine: Coroutine[Any, Any, Any]) -> Any:
            return await Timed(coroutine, account_and_time()[1])

        seen: list[str] = []
        assert await timed(work(7)) == 7
        with pytest.raises(ZeroDivisionError):
            await timed(work(ZeroDivisionError()))
        task = asyncio.ensure_future(timed(work(1)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen == ["cancelled"]
        future = asyncio.get_running_loop().create_future()
        future.set_result(3)
        assert await Timed(future, account_and_time()[1]) == 3

    asyncio.run(main())


def test_timed_steps_give_what_the_steps_give() -> None:
    def work() -> Generator[None, None, int]:
        yield
        yield
        return 7

    steps = timed_steps(work(), account_and_time()[1])
    count, found = 0, None
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            found = stop.value
            break
        count += 1
    assert (count, found) == (2, 7)
