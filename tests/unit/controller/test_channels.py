"""The channels to the brokers: one request at a time, in order, until the broker answers or is gone."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from barnabas.controller.channels import BrokerChannels
from barnabas.controller.effects import BrokerRequest
from barnabas.controller.live_broker import LiveBroker
from barnabas.controller.settings import ControllerSettings
from barnabas.coordination.layout.brokers import BrokerRegistration
from barnabas.kernel.host import Host
from barnabas.kernel.metrics import Gauge, MetricName, MetricsRegistry, Timing
from barnabas.kernel.timers import Timers
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.classes import Message
from barnabas.wire.endpoints import BrokerEndpoint
from barnabas.wire.messages import UpdateMetadataRequest, UpdateMetadataResponse
from barnabas.wire.primitives import EncodeError

LISTENER = "PLAINTEXT"
REFUSED = 666
"""The request whose answer cannot be taken over."""
Run = Callable[[Coroutine[Any, Any, None]], None]


class Connection:
    """Answers when the test says so."""

    def __init__(self, address: tuple[str, int, str]) -> None:
        self.address = address
        self.waiting: list[tuple[Message, asyncio.Future[Message]]] = []
        self.is_closed = False

    async def send(self, message: Message, version: int, timeout_ms: float) -> Message:
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.waiting.append((message, answer))
        return await answer

    def close(self) -> None:
        self.is_closed = True
        for _, answer in self.waiting:
            if not answer.done():
                answer.set_exception(ConnectionError("closed"))

    def answer(self) -> None:
        self.waiting.pop(0)[1].set_result(UpdateMetadataResponse())


class Fixture:
    """Channels on the running loop, the connections that they made, and the answers that came."""

    def __init__(self, listener: str | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.timers = Timers(loop)
        self.metrics = MetricsRegistry(loop.time)
        self.made: list[Connection] = []
        self.answered: list[int] = []
        unused = cast("Any", None)
        host = Host("test", loop, unused, random.Random(1), unused, unused, unused, unused)
        self.channels = BrokerChannels(
            host,
            ControllerSettings(1, LISTENER, control_plane_listener_name=listener, retry_backoff_ms=1),
            self,
            timers=self.timers,
            logger=logging.getLogger("test"),
            metrics=self.metrics,
            on_response=self._take_over,
        )

    def _take_over(self, request: BrokerRequest, _response: Message) -> None:
        number = cast("Any", request.message).controller_epoch
        if number == REFUSED:
            raise RuntimeError("unforeseen")
        self.answered.append(number)

    def connect(self, broker_id: int, host: str, port: int, listener_name: str, security_protocol: str) -> Connection:
        self.made.append(Connection((host, port, listener_name)))
        return self.made[-1]

    def send(self, number: int, broker_id: int = 2) -> None:
        message = UpdateMetadataRequest(controller_epoch=number)
        self.channels.send(BrokerRequest(broker_id, ApiKey.UPDATE_METADATA, 8, message))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await self.timers.sleep(1)


def broker(broker_id: int = 2, port: int = 9092, epoch: int = 1) -> LiveBroker:
    endpoints = (
        BrokerEndpoint(LISTENER, "data", port, LISTENER),
        BrokerEndpoint("CONTROL", "control", port, LISTENER),
    )
    return LiveBroker(broker_id, epoch, BrokerRegistration(endpoints, 0))


def test_one_request_is_in_flight_and_they_go_in_order(run: Run) -> None:
    async def scenario() -> None:
        fixture = Fixture()
        fixture.channels.open(broker())
        for number in range(3):
            fixture.send(number)
        await fixture.until(lambda: bool(fixture.made) and bool(fixture.made[0].waiting))
        assert (len(fixture.made[0].waiting), fixture.channels.queue_size) == (1, 2)
        gauge = fixture.metrics.get(MetricName(*QUEUE_SIZE))
        assert isinstance(gauge, Gauge)
        assert gauge.read() == 2
        for number in range(3):
            await fixture.until(lambda: bool(fixture.made[0].waiting))
            fixture.made[0].answer()
            await fixture.until(lambda number=number: len(fixture.answered) == number + 1)  # type: ignore[misc]
        assert fixture.answered == [0, 1, 2]
        timing = fixture.metrics.get(
            MetricName(QUEUE_SIZE[0], QUEUE_SIZE[1], "RequestRateAndQueueTimeMs", QUEUE_SIZE[3])
        )
        assert isinstance(timing, Timing)
        await fixture.channels.close_all()

    run(scenario())


QUEUE_SIZE = ("kafka.controller", "ControllerChannelManager", "QueueSize", (("broker-id", "2"),))


def test_a_request_is_repeated_until_it_is_answered(run: Run) -> None:
    async def scenario() -> None:
        fixture = Fixture()
        fixture.channels.open(broker())
        fixture.send(7)
        for _ in range(3):
            await fixture.until(lambda: bool(fixture.made) and bool(fixture.made[0].waiting))
            _, answer = fixture.made[0].waiting.pop(0)
            answer.set_exception(ConnectionError("lost"))
        await fixture.until(lambda: bool(fixture.made[0].waiting))
        fixture.made[0].answer()
        await fixture.until(lambda: fixture.answered == [7])
        assert len(fixture.made) == 1
        await fixture.channels.close_all()

    run(scenario())


def test_nothing_holds_a_request_that_was_answered(run: Run) -> None:
    async def scenario() -> None:
        fixture = Fixture()
        fixture.channels.open(broker())
        message = UpdateMetadataRequest(controller_epoch=7)
        held = sys.getrefcount(message)
        fixture.channels.send(BrokerRequest(2, ApiKey.UPDATE_METADATA, 8, message))
        await fixture.until(lambda: bool(fixture.made) and bool(fixture.made[0].waiting))
        assert sys.getrefcount(message) > held
        fixture.made[0].answer()
        await fixture.until(lambda: fixture.answered == [7] and sys.getrefcount(message) == held)
        await fixture.channels.close_all()

    run(scenario())


def test_a_request_that_cannot_be_written_holds_up_no_later_request(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        fixture = Fixture()
        fixture.channels.open(broker())
        for number in (6, 7):
            fixture.send(number)
        await fixture.until(lambda: bool(fixture.made) and bool(fixture.made[0].waiting))
        _, answer = fixture.made[0].waiting.pop(0)
        answer.set_exception(EncodeError("UpdateMetadataRequest version 8: controller_id: 2147483648"))
        await fixture.until(lambda: bool(fixture.made[0].waiting))
        fixture.made[0].answer()
        await fixture.until(lambda: fixture.answered == [7])
        await fixture.channels.close_all()

    run(scenario())
    assert "leaves out a request of UPDATE_METADATA to broker 2" in caplog.text
    assert "2147483648" in caplog.text


def test_an_answer_that_cannot_be_taken_over_holds_up_no_later_request(run: Run) -> None:
    async def scenario() -> None:
        fixture = Fixture()
        fixture.channels.open(broker())
        for number in (REFUSED, 7):
            fixture.send(number)
        for _ in range(2):
            await fixture.until(lambda: bool(fixture.made) and bool(fixture.made[0].waiting))
            fixture.made[0].answer()
        await fixture.until(lambda: fixture.answered == [7])
        await fixture.channels.close_all()

    run(scenario())


def test_a_closed_channel_drops_what_waits_and_a_new_one_begins_empty(run: Run) -> None:
    async def scenario() -> None:
        fixture = Fixture()
        fixture.channels.open(broker())
        fixture.send(1)
        fixture.send(2)
        await fixture.until(lambda: bool(fixture.made) and bool(fixture.made[0].waiting))
        await fixture.channels.close([2, 3])
        assert (fixture.made[0].is_closed, fixture.channels.queue_size) == (True, 0)
        assert fixture.metrics.get(MetricName(*QUEUE_SIZE)) is None
        fixture.send(3)
        fixture.channels.open(broker(epoch=2))
        fixture.send(4)
        await fixture.until(lambda: len(fixture.made) == 2 and bool(fixture.made[1].waiting))
        fixture.made[1].answer()
        await fixture.until(lambda: fixture.answered == [4])
        await fixture.channels.close_all()

    run(scenario())


def test_who_is_cancelled_while_a_channel_ends_hears_of_it(run: Run) -> None:
    async def scenario() -> None:
        fixture = Fixture()
        fixture.channels.open(broker())
        fixture.send(1)
        await fixture.until(lambda: bool(fixture.made) and bool(fixture.made[0].waiting))
        closing = asyncio.ensure_future(fixture.channels.close([2]))
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing

    run(scenario())


def test_a_channel_follows_its_broker_to_another_address(run: Run) -> None:
    async def scenario() -> None:
        fixture = Fixture()
        fixture.channels.open(broker())
        fixture.send(1)
        await fixture.until(lambda: bool(fixture.made) and bool(fixture.made[0].waiting))
        fixture.channels.open(broker())
        assert not fixture.made[0].is_closed
        fixture.channels.open(broker(port=9999))
        await fixture.until(lambda: len(fixture.made) == 2 and bool(fixture.made[1].waiting))
        assert fixture.made[1].address == ("data", 9999, LISTENER)
        fixture.made[1].answer()
        await fixture.until(lambda: fixture.answered == [1])
        await fixture.channels.close_all()

    run(scenario())


def test_the_control_plane_is_used_where_there_is_one(run: Run) -> None:
    async def scenario() -> None:
        fixture = Fixture("CONTROL")
        fixture.channels.open(broker())
        fixture.send(1)
        await fixture.until(lambda: bool(fixture.made))
        assert fixture.made[0].address == ("control", 9092, "CONTROL")
        await fixture.channels.close_all()

    run(scenario())


def test_a_broker_without_the_listener_is_reached_once_it_has_it(run: Run) -> None:
    async def scenario() -> None:
        fixture = Fixture("MISSING")
        fixture.channels.open(broker())
        fixture.send(1)
        await fixture.until(lambda: fixture.channels.queue_size == 0)
        assert fixture.made == []
        endpoints = (BrokerEndpoint("MISSING", "found", 1, LISTENER),)
        fixture.channels.open(LiveBroker(2, 1, BrokerRegistration(endpoints, 0)))
        await fixture.until(lambda: bool(fixture.made) and bool(fixture.made[0].waiting))
        await fixture.channels.close_all()

    run(scenario())
