"""What a session owes its users when several of them use it at once, give up, fail, or ask for the impossible."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from barnabas.coordination.client import Client
from barnabas.coordination.errors import ConnectionLossError, MalformedFrameError, OperationTimeoutError
from barnabas.coordination.jute import INT
from barnabas.coordination.operations import Delete, MultiGetData
from barnabas.coordination.protocol import MULTI_END, MULTI_HEADER, OpCode
from barnabas.coordination.session_settings import ClientSettings
from barnabas.coordination.session_state import SessionState
from barnabas.kernel.real_host import real_host
from tests.unit.coordination.scripted_server import scripted_server
from tests.unit.coordination.test_client import connected

Run = Callable[[Coroutine[Any, Any, Any]], Any]


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_large_operation_is_not_overtaken_for_ever_by_small_ones(run: Run) -> None:
    async def scenario() -> None:
        async with connected(in_flight_max=3) as (client, connection, _):
            small = [asyncio.create_task(client.delete(f"/{index}")) for index in range(3)]
            requests = [await connection.request() for _ in range(3)]
            large = asyncio.create_task(client.submit([MultiGetData(("/a", "/b", "/c"))]))
            await turns()
            for index in range(3, 6):
                # Each answer makes room for one that is small, and comes later.
                small.append(asyncio.create_task(client.delete(f"/{index}")))
                await turns()
                connection.reply(requests.pop(0))
                await small[index - 3]
            following = await connection.request()
            assert following.op_code == OpCode.MULTI_READ
            error = MULTI_HEADER.pack(OpCode.ERROR, False, -101) + INT.pack(-101)
            connection.reply(following, error * 3 + MULTI_END)
            await large
            for _ in range(3):
                connection.reply(await connection.request())
            await asyncio.gather(*small)

    run(scenario())


def test_a_large_operation_that_is_cancelled_lets_those_behind_it_go(run: Run) -> None:
    async def scenario() -> None:
        async with connected(in_flight_max=2) as (client, connection, _):
            first = asyncio.create_task(client.delete("/first"))
            request = await connection.request()
            large = asyncio.create_task(client.submit([MultiGetData(("/a", "/b"))]))
            await turns()
            second = asyncio.create_task(client.delete("/second"))
            await turns()
            large.cancel()
            following = await connection.request()
            assert following.body.string() == "/second"
            connection.reply(request)
            connection.reply(following)
            await asyncio.gather(first, second)
            assert (client._reserved, client._reserved_bytes) == (0, 0)

    run(scenario())


def test_closing_twice_waits_for_the_servers_answer_both_times(run: Run) -> None:
    async def scenario() -> None:
        async with connected() as (client, connection, _):
            closings = [asyncio.create_task(client.close()), asyncio.create_task(client.close())]
            request = await connection.request()
            assert request.op_code == OpCode.CLOSE_SESSION
            await turns()
            assert not any(closing.done() for closing in closings)
            connection.reply(request)
            await asyncio.gather(*closings)
            assert client.state is SessionState.CLOSED

    run(scenario())


def test_a_cancelled_close_ends_the_session_all_the_same(run: Run) -> None:
    async def scenario() -> None:
        async with connected() as (client, connection, _):
            closing = asyncio.create_task(client.close())
            assert (await connection.request()).op_code == OpCode.CLOSE_SESSION
            closing.cancel()
            assert await client.session_over() is SessionState.CLOSED
            await connection.closed()

    run(scenario())


def test_a_name_that_cannot_be_looked_up_does_not_keep_from_the_other_servers(run: Run) -> None:
    async def scenario() -> None:
        async with scripted_server() as server, real_host("test", asyncio.get_running_loop()) as host:
            connect = f"{'x' * 64}.invalid:1,a..b:1,{server.address}"
            client = Client(host, ClientSettings(connect, backoff_ms_min=1, backoff_ms_max=2))
            connecting = asyncio.create_task(client.connect(20_000))
            connection = await server.connection()
            await connection.accept()
            await connecting
            closing = asyncio.create_task(client.close())
            connection.reply(await connection.request())
            await closing

            lost = Client(host, ClientSettings("a..b:1", backoff_ms_min=1, backoff_ms_max=2))
            with pytest.raises(OperationTimeoutError):
                await lost.connect(50)
            assert lost._runner is not None
            assert not lost._runner.done()
            await lost.close()

    run(scenario())


def test_a_listener_that_fails_harms_nobody(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with connected() as (client, connection, server):
            states: list[SessionState] = []

            def fail(state: SessionState) -> None:
                if state is not SessionState.CONNECTED:
                    raise RuntimeError("a listener's fault")

            client.add_state_listener(fail)
            client.add_state_listener(states.append)
            lost = asyncio.create_task(client.delete("/a"))
            await connection.request()
            connection.close()
            with pytest.raises(ConnectionLossError):
                await lost
            again = await server.connection()
            await again.accept()
            found = asyncio.create_task(client.delete("/b"))
            again.reply(await again.request())
            await found
            assert states == [SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.CONNECTED]

    run(scenario())
    assert "a state listener failed" in caplog.text


def test_an_answer_that_makes_no_sense_is_told_to_who_waits(run: Run) -> None:
    async def scenario() -> None:
        async with connected() as (client, connection, _):
            reading = asyncio.create_task(client.submit([MultiGetData(("/a",)), Delete("/b")]))
            request = await connection.request()
            connection.reply(request, MULTI_HEADER.pack(OpCode.ERROR, False, 0) + INT.pack(0) + MULTI_END)
            first, second = await reading
            assert isinstance(first, MalformedFrameError)
            assert isinstance(second, ConnectionLossError)

    run(scenario())


@pytest.mark.parametrize(
    "settings",
    [
        {"session_timeout_ms": 0},
        {"session_timeout_ms": 1 << 31},
        {"connect_timeout_ms": 0},
        {"backoff_ms_min": 0},
        {"backoff_ms_min": 10, "backoff_ms_max": 9},
        {"in_flight_max": 0},
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        ClientSettings("localhost", **settings)  # type: ignore[arg-type]
