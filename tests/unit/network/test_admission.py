"""Connections of which too many come in a second, on simulated hosts: they wait unread, in order, or are closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from barnabas.kernel.host import Host
from barnabas.network.admission import HELD_MAX
from barnabas.network.config import ListenerConfig, NetworkConfig
from barnabas.quotas.connection_rates import ConnectionRates
from barnabas.quotas.settings import ClientQuotaSettings
from barnabas.testing.simulation import Simulation
from tests.unit.network.serving import Client, Serving, serving

BACKLOG = 50
DATA = ListenerConfig("DATA", "0.0.0.0", 9092, backlog=BACKLOG)
OTHER = ListenerConfig("OTHER", "0.0.0.0", 9093, backlog=BACKLOG)
BROKERS = ListenerConfig("BROKERS", "0.0.0.0", 9094, is_protected=True)
CONTROL = ListenerConfig("CONTROL", "0.0.0.0", 9095, is_control_plane=True)
Body = Callable[["World"], Awaitable[None]]


class World:
    """A server with bounds, and clients that note when they are answered."""

    def __init__(self, host: Host, served: Serving, rates: ConnectionRates) -> None:
        self.host = host
        self.served = served
        self.rates = rates
        self.clients: list[Client] = []

    @property
    def waiting(self) -> int:
        return self.served.server._admission.waiting

    async def connect(self, listener: ListenerConfig = DATA) -> Client:
        client = await Client.connect(self.host, listener.port)
        self.clients.append(client)
        return client

    async def answered(self, client: Client, name: str = "x") -> float | None:
        """After how many seconds from now it was answered; None if it was closed."""
        begun = self.host.loop.time()
        client.send(name.encode())
        try:
            assert await client.receive() == name.encode()
        except (asyncio.IncompleteReadError, OSError):
            return None
        return self.host.loop.time() - begun

    async def many(self, count: int, listener: ListenerConfig = DATA) -> list[float | None]:
        clients = [await self.connect(listener) for _ in range(count)]
        return list(await asyncio.gather(*(self.answered(client, f"{n}") for n, client in enumerate(clients))))


def in_world(body: Body) -> None:
    async def main(host: Host) -> None:
        rates = ConnectionRates(ClientQuotaSettings(window_count=11, window_seconds=1))
        listeners = (DATA, OTHER, BROKERS, CONTROL)
        async with serving(host, NetworkConfig(), listeners, rates=rates) as served:
            world = World(host, served, rates)
            try:
                await body(world)
            finally:
                for client in world.clients:
                    await client.close()

    with Simulation(1) as simulation:
        simulation.run_on(simulation.machine("server"), main, 3600)


def test_beyond_the_bound_connections_wait_and_are_served_in_their_order() -> None:
    async def body(world: World) -> None:
        world.rates.limit_broker(2)
        times = await world.many(40)
        waited = [time for time in times if time is not None]
        assert len(waited) == 40
        assert max(waited[:20]) < 0.1
        in_turn = [round(time, 2) for time in waited[20:]]
        assert in_turn == sorted(in_turn)
        assert waited[20] > 0.1
        assert waited[-1] > 5
        assert world.waiting == 0
        assert [int(request) for request in world.served.handler.handled][20:] == list(range(20, 40))

    in_world(body)


def test_what_waits_is_bounded_and_the_rest_is_closed() -> None:
    async def body(world: World) -> None:
        world.rates.limit_broker(1)
        clients = [await world.connect() for _ in range(10 + 1 + BACKLOG + 7)]
        await asyncio.sleep(0.01)
        assert world.waiting == 1 + BACKLOG
        assert world.served.server.connections == 10 + 1 + BACKLOG
        for client in clients[-7:]:
            assert await world.answered(client) is None

    in_world(body)


def test_a_listener_waits_for_itself_and_brokers_and_the_controller_for_nobody() -> None:
    async def body(world: World) -> None:
        world.rates.limit_listener("DATA", 1)
        waiting = asyncio.ensure_future(world.many(30))
        await asyncio.sleep(0.01)
        for listener in (OTHER, BROKERS, CONTROL):
            assert max(time or 99 for time in await world.many(30, listener)) < 0.1
        world.rates.limit_broker(1)
        for listener in (BROKERS, CONTROL):
            assert max(time or 99 for time in await world.many(30, listener)) < 0.1
        assert max(time or 99 for time in await world.many(2, OTHER)) > 0.5
        waiting.cancel()

    in_world(body)


def test_from_an_address_too_many_are_closed_after_a_while() -> None:
    async def body(world: World) -> None:
        world.rates.limit_address(None, 1)
        times = await world.many(15)
        assert [time is None for time in times] == [False] * 10 + [True] * 5
        assert world.waiting == 0
        assert world.served.server.connections == 10
        assert len(world.served.handler.opened) == 10
        assert max(time or 99 for time in await world.many(20, CONTROL)) < 0.1

    in_world(body)


def test_very_many_from_an_address_are_not_all_held() -> None:
    async def body(world: World) -> None:
        world.rates.limit_address(None, 0)
        for _ in range(HELD_MAX + 20):
            await world.connect()
        assert world.waiting <= HELD_MAX
        assert world.served.server.connections <= HELD_MAX
        await asyncio.sleep(2)
        assert (world.waiting, world.served.server.connections) == (0, 0)

    in_world(body)


def test_who_goes_while_it_waits_leaves_nothing() -> None:
    async def body(world: World) -> None:
        world.rates.limit_broker(1)
        clients = [await world.connect() for _ in range(20)]
        await asyncio.sleep(0.01)
        assert world.waiting == 10
        for connection in list(world.served.server._connections)[10:15]:
            connection.abort()
        await asyncio.sleep(0.01)
        assert world.waiting == 5
        times = await asyncio.gather(*(world.answered(client) for client in clients[15:]))
        assert None not in times
        assert world.served.server.connections == 15

    in_world(body)


def test_a_server_that_closes_lets_nobody_in_any_more() -> None:
    async def body(world: World) -> None:
        world.rates.limit_broker(1)
        world.rates.limit_address(None, 1000)
        for _ in range(30):
            await world.connect()
        await asyncio.sleep(0.01)
        assert await world.served.server.close(5_000)
        assert world.served.server.connections == 0
        assert len(world.served.handler.opened) == 10
        await asyncio.sleep(30)
        assert len(world.served.handler.opened) == 10

    in_world(body)


@pytest.mark.parametrize("limit", [1, 5])
def test_those_that_wait_count_against_no_other_limit(limit: int) -> None:
    async def body(world: World) -> None:
        world.served.server.limit_connections(10 + limit, 10 + limit)
        world.rates.limit_broker(1)
        clients = [await world.connect() for _ in range(10 + limit + 1)]
        times = await asyncio.gather(*(world.answered(client) for client in clients))
        assert [time is None for time in times] == [False] * (10 + limit) + [True]

    in_world(body)
