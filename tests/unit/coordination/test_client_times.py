"""When the client pings, leaves a silent server and gives up waiting: in virtual time, no busy machine has a say."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from barnabas.coordination.client import Client
from barnabas.coordination.errors import ConnectionLossError, NotSentError, OperationTimeoutError
from barnabas.coordination.protocol import XID_PING, OpCode
from barnabas.coordination.session_settings import ClientSettings
from barnabas.coordination.session_state import SessionState
from barnabas.kernel.host import Host
from barnabas.testing.simulation import Simulation
from tests.unit.coordination.scripted_server import ScriptedConnection, ScriptedServer, scripted_server


def in_virtual_time(scenario: Callable[[Host], Coroutine[Any, Any, None]]) -> None:
    """Runs the client and its server on a machine whose time passes only while both wait, to the microsecond."""
    with Simulation(1) as simulation:
        simulation.run_on(simulation.machine("both"), scenario)


@contextlib.asynccontextmanager
async def connected_for(
    host: Host, timeout_ms: int
) -> AsyncIterator[tuple[Client, ScriptedConnection, ScriptedServer]]:
    """A client on the host that has been granted a session with this time-out, not the one that it asks for."""
    async with scripted_server() as server:
        client = Client(host, ClientSettings(server.address, backoff_ms_min=1, backoff_ms_max=2))
        connecting = asyncio.create_task(client.connect(30_000))
        connection = await server.connection()
        await connection.accept(timeout_ms=timeout_ms)
        await connecting
        yield client, connection, server
        for each in server._all:
            each.close()
        await client.close()


def test_quiet_client_pings_at_a_third_of_the_time_out() -> None:
    async def scenario(host: Host) -> None:
        async with connected_for(host, 150) as (client, connection, _):
            before = host.loop.time()
            for _ in range(3):
                ping = await connection.request()
                assert (ping.xid, ping.op_code) == (XID_PING, OpCode.PING)
                connection.reply(ping)
                now = host.loop.time()
                assert now - before == pytest.approx(0.05, abs=0.005)
                before = now
            assert client.state is SessionState.CONNECTED

    in_virtual_time(scenario)


def test_silent_server_is_left_after_two_thirds_of_the_time_out() -> None:
    async def scenario(host: Host) -> None:
        async with connected_for(host, 150) as (client, _, server):
            connected_at = host.loop.time()
            reading = asyncio.create_task(client.get_data("/a"))
            with pytest.raises(ConnectionLossError):
                await reading
            assert host.loop.time() - connected_at == pytest.approx(0.1, abs=0.005)
            second = await server.connection()
            assert (await second.accept(timeout_ms=6_000)).session_id == 7
            await client.connect(30_000)

    in_virtual_time(scenario)


def test_another_server_is_tried_when_one_does_not_answer() -> None:
    async def scenario(host: Host) -> None:
        async with scripted_server() as silent, scripted_server() as server:
            connect = f"{silent.address},{server.address}"
            client = Client(host, ClientSettings(connect, connect_timeout_ms=50, backoff_ms_min=1, backoff_ms_max=2))
            connecting = asyncio.create_task(client.connect(30_000))
            connection = await server.connection()
            await connection.accept()
            await connecting
            connection.close()
            await client.close()

    in_virtual_time(scenario)


def test_connect_gives_up_waiting_and_says_for_whom() -> None:
    async def scenario(host: Host) -> None:
        async with scripted_server() as server:
            address = server.address
        client = Client(host, ClientSettings(address, session_timeout_ms=90, backoff_ms_min=1, backoff_ms_max=5))
        with pytest.raises(OperationTimeoutError, match=f"no server of {address} .* within 30 ms"):
            await client.connect(30)
        assert client.state is SessionState.CONNECTING
        with pytest.raises(NotSentError, match="/a: not sent"):
            await client.get_data("/a")
        await client.close()
        assert await client.session_over() is SessionState.CLOSED

    in_virtual_time(scenario)
