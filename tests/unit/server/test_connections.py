"""Connections of the controller: what is large is encoded for one broker after the other."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from barnabas.kernel.steps import RunsSteps, StepRunner, Steps
from barnabas.server.connections import PARTITIONS_AT_ONCE, ControlConnection, ControlLinks
from barnabas.wire.messages import UpdateMetadataRequest, UpdateMetadataResponse
from tests.unit.kernel.virtual_loop import run_virtually

STEPS = 5
State = UpdateMetadataRequest.UpdateMetadataTopicState
LARGE = UpdateMetadataRequest(
    topic_states=[
        State(
            topic_name="t",
            partition_states=[
                UpdateMetadataRequest.UpdateMetadataPartitionState(partition_index=number)
                for number in range(PARTITIONS_AT_ONCE + 1)
            ],
        )
    ]
)


class Brokers:
    """Where connections lead to, and what was encoded for which of them, step by step."""

    login = tls = None

    def __init__(self) -> None:
        self.encoded: list[int] = []
        self.answers = asyncio.Event()

    def connect(self, _host: str, port: int, **_options: Any) -> Any:
        return Broker(self, port)


class Broker:
    def __init__(self, brokers: Brokers, port: int) -> None:
        self._brokers = brokers
        self._port = port

    async def send_in_steps(self, _message: object, _version: int, _timeout_ms: float, steps: RunsSteps) -> Any:
        def encode() -> Steps[None]:
            for _ in range(STEPS):
                self._brokers.encoded.append(self._port)
                yield

        await steps.run(encode(), is_urgent=True)
        await self._brokers.answers.wait()
        return UpdateMetadataResponse()

    async def send(self, _message: object, _version: int, _timeout_ms: float) -> Any:
        return UpdateMetadataResponse()


def connections(brokers: Brokers, *ports: int) -> list[ControlConnection]:
    links = ControlLinks(cast("Any", brokers), StepRunner(asyncio.get_running_loop()))
    return [links.connect(port, "host", port, "PLAINTEXT", "PLAINTEXT") for port in ports]


def test_a_large_request_is_encoded_for_one_broker_after_the_other_and_none_waits_for_answers() -> None:
    async def main() -> None:
        brokers = Brokers()
        sending = [asyncio.ensure_future(each.send(LARGE, 8, 1_000)) for each in connections(brokers, 1, 2, 3)]
        while len(brokers.encoded) < 3 * STEPS:
            await asyncio.sleep(0)
        assert brokers.encoded == [1] * STEPS + [2] * STEPS + [3] * STEPS
        brokers.answers.set()
        await asyncio.gather(*sending)

    run_virtually(main())


def test_who_is_given_up_in_between_holds_up_nobody() -> None:
    async def main() -> None:
        brokers = Brokers()
        sending = [asyncio.ensure_future(each.send(LARGE, 8, 1_000)) for each in connections(brokers, 1, 2, 3)]
        while not brokers.encoded:
            await asyncio.sleep(0)
        for given_up in sending[:2]:
            given_up.cancel()
        brokers.answers.set()
        assert isinstance(await sending[2], UpdateMetadataResponse)
        assert set(brokers.encoded) == {1, 3}

    run_virtually(main())
