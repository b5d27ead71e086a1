"""The server and our client's end on simulated hosts: random chunks, loss of connections, buffers used again."""

from __future__ import annotations

import asyncio
import logging

import pytest

from barnabas.kernel.host import Host
from barnabas.kernel.timers import Timers
from barnabas.link.client import ClientConnection, connect
from barnabas.link.connection import LinkContext
from barnabas.link.errors import ConnectionLostError
from barnabas.link.limits import LinkLimits
from barnabas.network.config import ListenerConfig
from barnabas.testing.simulation import Simulation
from barnabas.wire.primitives import Buffer
from tests.unit.network.serving import framed, serving

PORT = 9092
LISTENER = ListenerConfig("DATA", "0.0.0.0", PORT)


def send(connection: ClientConnection, payload: bytes) -> asyncio.Future[bytes]:
    """Sends a correlation id and the payload, which the server's handler echoes."""
    future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def encode(correlation_id: int) -> list[Buffer]:
        return [framed(correlation_id.to_bytes(4, "big") + payload)]

    def decode(buffer: Buffer, start: int, end: int) -> bytes:
        return bytes(buffer[start + 4 : end])

    connection.start(encode, decode, 60_000, future.set_result, future.set_exception)
    return future


async def serve(host: Host) -> None:
    async with serving(host, None, (LISTENER,)):
        await host.loop.create_future()


async def connected(host: Host) -> ClientConnection:
    context = LinkContext.of(host.loop, Timers(host.loop), LinkLimits(), logging.getLogger("link"))
    return await connect(context, "server", PORT, in_flight_max=1000)


@pytest.mark.parametrize("seed", range(1, 6))
def test_every_payload_comes_back_through_random_chunks(seed: int) -> None:
    async def main(host: Host) -> None:
        connection = await connected(host)
        sizes = [0, 1, 3, 1_000, 65_524, 65_532, 65_536, 300_000, 5] * 3
        payloads = [host.entropy(size) for size in sizes]
        assert await asyncio.gather(*(send(connection, payload) for payload in payloads)) == payloads
        connection.close()
        await connection.closed

    with Simulation(seed) as simulation:
        simulation.machine("server").start(serve)
        simulation.run_on(simulation.machine("client"), main)


def test_a_connection_that_breaks_fails_what_waits_and_the_next_one_works() -> None:
    with Simulation(3) as simulation:
        simulation.machine("server").start(serve)

        async def main(host: Host) -> None:
            connection = await connected(host)
            assert await send(connection, b"whole") == b"whole"
            waiting = [send(connection, bytes(400_000)) for _ in range(20)]
            simulation.after(0.0005, lambda: simulation.network.reset_connections("client", "server"))
            results = await asyncio.gather(*waiting, return_exceptions=True)
            assert isinstance(results[-1], ConnectionLostError)
            again = await connected(host)
            assert await send(again, b"again") == b"again"
            again.abort()
            await again.closed

        simulation.run_on(simulation.machine("client"), main)
