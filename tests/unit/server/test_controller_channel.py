"""Requests to whichever broker is the controller, in virtual time."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.kernel.host import Host
from barnabas.kernel.timers import Timers
from barnabas.link.connection import LinkContext
from barnabas.link.connector import Connector
from barnabas.link.errors import ConnectionLostError, RequestTimeoutError, UnsupportedVersionError
from barnabas.link.limits import LinkLimits
from barnabas.server.controller_channel import ControllerChannel
from barnabas.testing.simulated_host import Main
from barnabas.testing.simulation import Simulation, simulation_seeds
from barnabas.wire import codec
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.classes import Message
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    ApiVersionsResponse,
    UpdateMetadataRequest,
)
from tests.unit.server.coordinated import Lines, logger_of, pause

SEEDS = simulation_seeds(3)
PORT = 9092
KEY = ApiKey.ALLOCATE_PRODUCER_IDS
REQUEST = AllocateProducerIdsRequest(broker_id=9, broker_epoch=1)
Answers = Callable[[int], AllocateProducerIdsResponse | None]


class _Server(asyncio.Protocol):
    """Answers every request with what `answers` gives for its key, version and correlation id, None being silence."""

    def __init__(self, answers: Callable[[ApiKey, int, int], Message | None]) -> None:
        self._answers = answers
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4 and len(self._received) >= 4 + struct.unpack_from(">i", self._received)[0]:
            size, code, version, correlation_id = struct.unpack_from(">ihhi", self._received)
            self._received = self._received[4 + size :]
            key = ApiKey(code)
            answer = self._answers(key, version, correlation_id)
            if answer is not None:
                self._transport.write(b"".join(codec.response_encoder(key, version)(correlation_id, answer)))


def broker(answers: Answers, seen: list[int]) -> Main:
    """Answers with what `answers` gives for the number of a request, and keeps their correlation ids."""

    def answer(_key: ApiKey, _version: int, correlation_id: int) -> Message | None:
        seen.append(correlation_id)
        return answers(len(seen) - 1)

    return serving(answer)


def serving(answers: Callable[[ApiKey, int, int], Message | None]) -> Main:
    async def main(host: Host) -> None:
        await host.loop.create_server(lambda: _Server(answers), None, PORT)
        await host.loop.create_future()

    return main


def update(controller_id: int, epoch: int = 1) -> UpdateMetadataRequest:
    """Brokers 1 and 2 are alive, and one of them controls."""
    live = [
        UpdateMetadataRequest.UpdateMetadataBroker(
            id=broker_id,
            endpoints=[
                UpdateMetadataRequest.UpdateMetadataEndpoint(
                    port=PORT, host=f"broker{broker_id}", listener="PLAINTEXT", security_protocol=0
                )
            ],
        )
        for broker_id in (1, 2)
    ]
    return UpdateMetadataRequest(controller_id=controller_id, controller_epoch=epoch, live_brokers=live)


def channel_on(host: Host, *, learns_versions: bool = False) -> tuple[ControllerChannel, MetadataCache]:
    logger = logger_of(host, Lines())
    cache = MetadataCache(9, logger)
    channel = ControllerChannel(
        "test",
        Connector(LinkContext.of(host.loop, Timers(host.loop), LinkLimits(), logger), host.random, "9"),
        metadata=cache,
        listener_name="PLAINTEXT",
        request_timeout_ms=2_000,
        logger=logger,
        learns_versions=learns_versions,
    )
    return channel, cache


def granted(start: int) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(producer_id_start=start, producer_id_len=1000)


@pytest.mark.parametrize("seed", SEEDS)
def test_waits_for_a_controller_and_follows_it_to_another_broker(seed: int) -> None:
    async def use(host: Host) -> list[int]:
        channel, cache = channel_on(host)
        waiting = host.loop.create_task(channel.send(REQUEST, 0))
        await pause(0.5)
        assert not waiting.done()
        cache.apply(update(1))
        found = [(await waiting).producer_id_start]
        cache.apply(update(2, epoch=2))
        found.append((await channel.send(REQUEST, 0)).producer_id_start)
        channel.close()
        return found

    with Simulation(seed) as simulation:
        simulation.machine("broker1").start(broker(lambda _: granted(1000), []))
        simulation.machine("broker2").start(broker(lambda _: granted(2000), []))
        assert simulation.run_on(simulation.machine("broker9"), use) == [1000, 2000]


@pytest.mark.parametrize("seed", SEEDS)
def test_asks_again_when_the_broker_is_not_the_controller_or_is_lost(seed: int) -> None:
    seen: list[int] = []

    def answers(number: int) -> AllocateProducerIdsResponse:
        if number < 3:
            return AllocateProducerIdsResponse(error_code=ErrorCode.NOT_CONTROLLER)
        return granted(7)

    async def use(host: Host) -> None:
        channel, cache = channel_on(host)
        cache.apply(update(1))
        assert (await channel.send(REQUEST, 0, 20_000)).producer_id_start == 7
        # Any other error is the caller's.
        channel.close()

    with Simulation(seed) as simulation:
        machine = simulation.machine("broker1")
        machine.start(broker(answers, seen))
        simulation.after(0.02, machine.crash)
        simulation.after(2.0, machine.restart)
        simulation.run_on(simulation.machine("broker9"), use)
    assert len(seen) >= 4


@pytest.mark.parametrize("seed", SEEDS)
def test_gives_up_in_time_and_says_why(seed: int) -> None:
    async def use(host: Host) -> None:
        channel, cache = channel_on(host)
        began = host.loop.time()
        with pytest.raises(RequestTimeoutError, match="no controller is known"):
            await channel.send(REQUEST, 0, 1_000)
        assert 1.0 <= host.loop.time() - began < 1.1
        with pytest.raises(ConnectionLostError, match="no controller is known"):
            await channel.send_once(REQUEST, 0)
        cache.apply(update(1))
        with pytest.raises(ConnectionLostError, match="is not the controller"):
            await channel.send_once(REQUEST, 0)
        cache.apply(update(2, epoch=2))
        with pytest.raises(TimeoutError):
            await channel.send(REQUEST, 0)  # broker 2 is silent
        waiting = host.loop.create_task(channel.send(REQUEST, 0, 60_000))
        await pause(0.1)
        channel.close()
        with pytest.raises(ConnectionLostError):
            await waiting

    with Simulation(seed) as simulation:
        refusal = AllocateProducerIdsResponse(error_code=ErrorCode.NOT_CONTROLLER)
        simulation.machine("broker1").start(broker(lambda _: refusal, []))
        simulation.machine("broker2").start(broker(lambda _: None, []))
        simulation.run_on(simulation.machine("broker9"), use)


@pytest.mark.parametrize("seed", SEEDS)
def test_hands_other_errors_on(seed: int) -> None:
    async def use(host: Host) -> int:
        channel, cache = channel_on(host)
        cache.apply(update(1))
        code = int((await channel.send(REQUEST, 0)).error_code)
        channel.close()
        return code

    with Simulation(seed) as simulation:
        stale = AllocateProducerIdsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        simulation.machine("broker1").start(broker(lambda _: stale, []))
        assert simulation.run_on(simulation.machine("broker9"), use) == ErrorCode.STALE_BROKER_EPOCH


def speaking(highest: int, code: ErrorCode, asked: list[int]) -> Main:
    """Speaks AlterPartition up to `highest`, keeps the versions that it was asked in, and answers `code`."""

    def answer(key: ApiKey, version: int, _correlation_id: int) -> Message:
        if key is ApiKey.API_VERSIONS:
            spoken = ApiVersionsResponse.ApiVersion(api_key=ApiKey.ALTER_PARTITION, min_version=0, max_version=highest)
            return ApiVersionsResponse(api_keys=[spoken])
        asked.append(version)
        return AlterPartitionResponse(error_code=code)

    return serving(answer)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_controller_is_asked_in_the_highest_version_that_it_speaks(seed: int) -> None:
    asked: dict[int, list[int]] = {1: [], 2: []}

    async def use(host: Host) -> None:
        channel, cache = channel_on(host, learns_versions=True)
        built: list[int] = []

        def build(version: int) -> AlterPartitionRequest:
            built.append(version)
            return AlterPartitionRequest(broker_id=9, broker_epoch=1)

        cache.apply(update(1))
        waiting = host.loop.create_task(channel.send_in_version(ApiKey.ALTER_PARTITION, 0, 3, build))
        await pause(0.5)
        cache.apply(update(2, epoch=2))
        response, version = await waiting
        assert (response.error_code, version, set(built)) == (0, 3, {2, 3})
        _, version = await channel.send_in_version(ApiKey.ALTER_PARTITION, 0, 1, build)
        assert version == 1
        with pytest.raises(UnsupportedVersionError):
            await channel.send_in_version(ApiKey.ALTER_PARTITION, 4, 5, build)
        channel.close()

    with Simulation(seed) as simulation:
        simulation.machine("broker1").start(speaking(2, ErrorCode.NOT_CONTROLLER, asked[1]))
        simulation.machine("broker2").start(speaking(3, ErrorCode.NONE, asked[2]))
        simulation.run_on(simulation.machine("broker9"), use)
    assert (set(asked[1]), asked[2]) == ({2}, [3, 1])
