"""A broker's states, and its good-bye."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from barnabas.kernel.timers import Timers
from barnabas.kernel.transitions import IllegalTransitionError
from barnabas.link.errors import ConnectionLostError
from barnabas.server.config import LifecycleSettings
from barnabas.server.controller_channel import ControllerChannel
from barnabas.server.lifecycle import BROKER, BrokerEvent, BrokerState, ControlledShutdown
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import ControlledShutdownRequest, ControlledShutdownResponse

Run = Callable[[Coroutine[Any, Any, Any]], Any]
LEGAL = {
    (BrokerState.NOT_RUNNING, BrokerEvent.STARTED),
    (BrokerState.STARTING, BrokerEvent.LOGS_LOADING),
    (BrokerState.STARTING, BrokerEvent.ABANDONED),
    (BrokerState.RECOVERY, BrokerEvent.SERVING),
    (BrokerState.RECOVERY, BrokerEvent.ABANDONED),
    (BrokerState.RUNNING, BrokerEvent.ASKED_TO_STOP),
    (BrokerState.PENDING_CONTROLLED_SHUTDOWN, BrokerEvent.LEADERS_MOVED),
    (BrokerState.SHUTTING_DOWN, BrokerEvent.STOPPED),
}
Answer = ControlledShutdownResponse | Exception


@pytest.mark.parametrize(("state", "event"), list(itertools.product(BrokerState, BrokerEvent)))
def test_every_state_and_event(state: BrokerState, event: BrokerEvent) -> None:
    if (state, event) in LEGAL:
        assert BROKER.advance("broker 1", state, event) != state
    else:
        with pytest.raises(IllegalTransitionError):
            BROKER.advance("broker 1", state, event)


class Controller:
    """Answers in the given order, and notes what it is sent."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.sent: list[tuple[ControlledShutdownRequest, int]] = []

    async def send_once(self, message: ControlledShutdownRequest, version: int) -> ControlledShutdownResponse:
        self.sent.append((message, version))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def still_led(*partitions: int) -> ControlledShutdownResponse:
    left = [ControlledShutdownResponse.RemainingPartition(topic_name="t", partition_index=p) for p in partitions]
    return ControlledShutdownResponse(remaining_partitions=left)


async def shut_down(
    controller: Controller, *, enable: bool = True, protocol: str = "3.9-IV0", others: bool = True
) -> bool:
    loop = asyncio.get_running_loop()
    settings = LifecycleSettings(
        controlled_shutdown_enable=enable, controlled_shutdown_retries_max=3, controlled_shutdown_retry_backoff_ms=1
    )
    timers = Timers(loop)
    shutdown = ControlledShutdown(
        4,
        lambda: 55,
        protocol,
        settings,
        cast("ControllerChannel", controller),
        lambda: others,
        timers,
        logging.getLogger("test"),
    )
    try:
        return await shutdown.run()
    finally:
        timers.close()


def test_tries_until_nothing_is_led_any_more(run: Run) -> None:
    controller = Controller(still_led(0, 1), ConnectionLostError("no controller is known"), still_led())
    assert run(shut_down(controller))
    assert [(message.broker_id, message.broker_epoch, version) for message, version in controller.sent] == [
        (4, 55, 3)
    ] * 3


def test_gives_up_after_the_configured_tries(run: Run) -> None:
    refused = ControlledShutdownResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    controller = Controller(refused, still_led(1), still_led(1), still_led())
    assert not run(shut_down(controller))
    assert len(controller.sent) == 3


def test_does_not_try_again_when_nobody_else_could_lead(run: Run) -> None:
    controller = Controller(still_led(1), still_led())
    assert not run(shut_down(controller, others=False))
    assert len(controller.sent) == 1


def test_asks_nobody_when_it_is_switched_off(run: Run) -> None:
    controller = Controller()
    assert not run(shut_down(controller, enable=False))
    assert controller.sent == []


@pytest.mark.parametrize(
    ("protocol", "version"),
    [("3.9-IV0", 3), ("2.4-IV1", 3), ("2.4-IV0", 2), ("2.2-IV0", 2), ("0.9.0", 1), ("0.8.2", 0)],
)
def test_the_version_follows_the_protocol_between_brokers(run: Run, protocol: str, version: int) -> None:
    controller = Controller(still_led())
    assert run(shut_down(controller, protocol=protocol))
    assert controller.sent[0][1] == version
