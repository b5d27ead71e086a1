"""A server and a client that are connected, for tests of simulated connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from barnabas.kernel.host import Host
from barnabas.testing.simulation import Simulation

PORT = 9092


def fresh_listeners() -> type[Listener]:
    """A class of listeners with a list of its own."""
    return type("FreshListener", (Listener,), {"made": []})


class Listener(asyncio.Protocol):
    """Collects what it is told; one per accepted connection, all of them in `made`."""

    made: list[Listener]

    def __init__(self) -> None:
        self.made.append(self)
        self.transport: asyncio.Transport | None = None
        self.data = bytearray()
        self.chunks: list[int] = []
        self.ended = False
        self.lost: list[BaseException | None] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.chunks.append(len(data))

    def eof_received(self) -> bool:
        self.ended = True
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lost.append(exc)


def serving(factory: Callable[[], asyncio.BaseProtocol]) -> Callable[[Host], Coroutine[Any, Any, None]]:
    async def main(host: Host) -> None:
        server = await host.loop.create_server(factory, host.name, PORT)
        await server.serve_forever()

    return main


class ConnectedPair:
    """A simulation with a server of `Listener`s and a client that is connected to it."""

    def __init__(self, simulation: Simulation, listeners: type[Listener]) -> None:
        self.simulation = simulation
        self.server = simulation.machine("server")
        self.client = simulation.machine("client")
        self.server.start(serving(listeners))
        simulation.run_for(0.1)
        self.near = listeners()
        listeners.made.clear()
        self.client.start(self._hold)
        simulation.run_until(lambda: bool(listeners.made) and self.near.transport is not None)
        self.far = listeners.made[0]
        self.out = self._transport(self.near)
        self.back = self._transport(self.far)

    @staticmethod
    def _transport(listener: Listener) -> asyncio.Transport:
        assert listener.transport is not None
        return listener.transport

    async def _hold(self, host: Host) -> None:
        await host.loop.create_connection(lambda: self.near, "server", PORT)
        await host.loop.create_future()


def connecting(host_name: str, port: int = PORT) -> Callable[[Host], Any]:
    """A main that connects and gives the seconds until the error, and the error."""

    async def main(host: Host) -> tuple[float, OSError | None]:
        began = host.loop.time()
        try:
            transport, _ = await host.loop.create_connection(asyncio.Protocol, host_name, port)
        except OSError as error:
            return host.loop.time() - began, error
        transport.close()
        return host.loop.time() - began, None

    return main
