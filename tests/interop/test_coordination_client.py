"""The client against real ZooKeeper servers, one alone and an ensemble whose leader dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.coordination.client import Client
from barnabas.coordination.errors import ConnectionLossError, CoordinationError, NodeExistsError
from barnabas.coordination.operations import Create
from barnabas.coordination.protocol import CreateMode, EventType
from barnabas.coordination.session_state import SessionState
from tests.support.zookeeper import ZooKeeperEnsemble, ZooKeeperServer, zookeeper_ensemble
from tests.unit.coordination.client_suite import ClientSuite, Events, client_of, fresh_chroot

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(scope="module")
def ensemble(oracle_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    with zookeeper_ensemble(tmp_path_factory.mktemp("client-ensemble")) as servers:
        yield servers


class TestOnOneServer(ClientSuite):
    @pytest.fixture
    def addresses(self, zookeeper_server: ZooKeeperServer) -> str:
        return zookeeper_server.address


class TestOnAnEnsemble(ClientSuite):
    @pytest.fixture
    def addresses(self, ensemble: ZooKeeperEnsemble) -> str:
        return ensemble.addresses


def test_session_that_nobody_keeps_alive_expires(run: Run, zookeeper_server: ZooKeeperServer) -> None:
    async def scenario() -> None:
        connect = await fresh_chroot(zookeeper_server.address)
        async with client_of(connect) as watching, client_of(connect, session_timeout_ms=4_000) as client:
            gone, own = Events(), Events()
            await client.create("/mine", mode=CreateMode.EPHEMERAL)
            await client.get_data("/mine", own)
            await watching.exists("/mine", gone)
            zookeeper_server.process.suspend()
            try:
                # The server stands still, so that the client must leave it; then only the server knows who is dead.
                async with asyncio.timeout(60):
                    while client.state is SessionState.CONNECTED:
                        await asyncio.sleep(0.01)
                ticket = client.ticket
                await client.close()  # without a connection it cannot tell the server
            finally:
                zookeeper_server.process.resume()
            assert await gone.next() == (EventType.NODE_DELETED, "/mine")
            with pytest.raises(CoordinationError, match="the session has expired"):
                async with client_of(connect, ticket=ticket):
                    pass

    run(scenario())


def test_nothing_acknowledged_is_lost_and_sessions_go_on_when_the_leader_dies(
    run: Run, oracle_jars: Path, tmp_path: Path
) -> None:
    async def write(client: Client, number: int, acknowledged: list[str], stop: asyncio.Event) -> None:
        """Writes batches until told to stop, and repeats what may have been lost."""
        batch = 0
        while not stop.is_set():
            paths = [f"/{number}-{batch}-{index}" for index in range(20)]
            batch += 1
            while paths:
                outcomes = await client.submit([Create(path, path.encode()) for path in paths])
                left = []
                for path, outcome in zip(paths, outcomes, strict=True):
                    if isinstance(outcome, ConnectionLossError):
                        left.append(path)
                    elif isinstance(outcome, CoordinationError) and not isinstance(outcome, NodeExistsError):
                        raise outcome
                    else:
                        acknowledged.append(path)
                paths = left

    async def scenario(servers: ZooKeeperEnsemble) -> None:
        connect = await fresh_chroot(servers.addresses)
        async with (
            client_of(connect, session_timeout_ms=20_000) as first,
            client_of(connect, session_timeout_ms=20_000) as second,
            client_of(connect, session_timeout_ms=20_000) as third,
        ):
            clients = (first, second, third)
            tickets = [client.ticket.id for client in clients]
            events = Events()
            for number, client in enumerate(clients):
                await client.create(f"/owner-{number}", mode=CreateMode.EPHEMERAL)
                await client.exists("/signal", events)
            acknowledged: list[str] = []
            stop = asyncio.Event()
            writers = [
                asyncio.create_task(write(client, number, acknowledged, stop)) for number, client in enumerate(clients)
            ]
            await _grown(acknowledged, 200)
            leader = await asyncio.to_thread(servers.leader)
            leader.kill()
            await _grown(acknowledged, len(acknowledged) + 400)
            stop.set()
            await asyncio.gather(*writers)
            await first.create("/signal")
            for _ in clients:
                assert await events.next() == (EventType.NODE_CREATED, "/signal")
            assert [client.ticket.id for client in clients] == tickets
            await third.sync()
            found = await third.get_many(acknowledged)
            assert [getattr(each, "data", None) for each in found] == [path.encode() for path in acknowledged]
            names = (await third.get_children("/")).names
            assert {f"owner-{number}" for number in range(3)} <= set(names)

    with zookeeper_ensemble(tmp_path) as servers:
        run(scenario(servers))


async def _grown(acknowledged: list[str], count: int) -> None:
    async with asyncio.timeout(120):
        while len(acknowledged) < count:
            await asyncio.sleep(0.01)
