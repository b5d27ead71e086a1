"""One session after another."""

from __future__ import annotations

import dataclasses

import pytest

from barnabas.coordination.client import Client
from barnabas.coordination.errors import SessionExpiredError
from barnabas.coordination.operations import Create, Exists
from barnabas.coordination.protocol import READ_ACL, Acl, CreateMode, Permission
from barnabas.coordination.session_settings import ClientSettings
from barnabas.coordination.session_state import SessionState
from barnabas.kernel.host import Host
from barnabas.server.coordination_session import CoordinationSession
from barnabas.testing.simulation import Simulation, simulation_seeds
from tests.unit.server.coordinated import (
    COORDINATOR,
    PORT,
    TIMEOUT_MS,
    Lines,
    pause,
    run_on_broker,
    session_on,
    start_coordinator,
    until,
)

SEEDS = simulation_seeds(3)


class Recorder:
    """Notes what it is told, and whether the old session was over and no new one there while it was told so."""

    def __init__(self, session: CoordinationSession) -> None:
        self._session = session
        self.told: list[tuple[str, SessionState]] = []
        self.refused = False

    async def before_new_session(self) -> None:
        self.told.append(("before", self._session.state))
        try:
            await self._session.perform(Exists("/"))
        except SessionExpiredError:
            self.refused = True

    async def after_new_session(self) -> None:
        self.told.append(("after", self._session.state))


@pytest.mark.parametrize("seed", SEEDS)
def test_waits_for_a_coordinator_that_comes_late_and_says_so(seed: int) -> None:
    lines = Lines()

    async def connect(host: Host) -> SessionState:
        session = session_on(host, lines)
        await session.connect()
        state = session.state
        await session.close()
        return state

    with Simulation(seed) as simulation:
        simulation.machine("coordinator")
        simulation.after(25.0, lambda: start_coordinator(simulation))
        assert simulation.run_on(simulation.machine("broker"), connect) is SessionState.CONNECTED
        assert simulation.now > 25.0
    assert "No ZooKeeper server at coordinator:2181 has answered yet" in lines


def test_the_root_of_a_cluster_is_the_brokers_own_where_that_is_wanted() -> None:
    async def make(host: Host) -> list[tuple[Acl, ...]]:
        settings = ClientSettings(f"{COORDINATOR}:{PORT}/a/b", TIMEOUT_MS, credentials=(("digest", b"kafka:secret"),))
        session = session_on(host, Lines())
        session.secure(settings, makes_secure=True)
        await session.connect()
        await session.make_root()
        await session.perform(Create("/topic"))
        above = Client(host, dataclasses.replace(settings, connect=f"{COORDINATOR}:{PORT}"))
        await above.connect()
        found = [(await above.get_acl(path)).acl for path in ("/a", "/a/b", "/a/b/topic")]
        await above.close()
        await session.close()
        return found

    for acl in run_on_broker(1, make):
        own, others = acl
        assert (own.id.scheme, own.permissions) == ("digest", Permission.ALL)
        assert (others,) == READ_ACL


@pytest.mark.parametrize("seed", SEEDS)
def test_an_expired_session_is_followed_by_another_and_everybody_is_told_in_order(seed: int) -> None:
    lines = Lines()

    async def expire(host: Host) -> None:
        session = session_on(host, lines)
        states: list[SessionState] = []
        session.add_state_listener(states.append)
        await session.connect()
        recorder = Recorder(session)
        session.add_session_listener(recorder)
        first = session.session_id
        await session.perform(Create("/mine", b"", mode=CreateMode.EPHEMERAL))
        await until(lambda: len(recorder.told) == 2)
        assert recorder.told == [("before", SessionState.EXPIRED), ("after", SessionState.CONNECTED)]
        assert recorder.refused
        assert session.session_id != first
        assert session.was_ours(first)
        assert not session.was_ours(session.session_id)
        assert await session.perform(Exists("/mine")) is None
        assert states[-3:] == [SessionState.EXPIRED, SessionState.CONNECTING, SessionState.CONNECTED]
        await session.close()

    with Simulation(seed) as simulation:
        start_coordinator(simulation)
        machine = simulation.machine("broker")
        process = machine.start(expire)
        simulation.run_for(2.0)
        machine.pause()
        simulation.run_for(2 * TIMEOUT_MS / 1000)
        machine.resume()
        simulation.run_until(lambda: process.ended)
        process.result()
    assert "is over (expired); making a new one" in lines


@pytest.mark.parametrize("seed", SEEDS)
def test_a_first_session_that_expires_before_anybody_has_seen_it_is_followed_by_another(seed: int) -> None:
    async def connect(host: Host) -> None:
        session = session_on(host, Lines())

        async def expired(_timeout_ms: int) -> None:
            raise SessionExpiredError

        session._client.connect = expired  # type: ignore[method-assign,assignment]
        await session.connect()
        assert session.state is SessionState.CONNECTED
        assert await session.perform(Exists("/")) is not None
        await session.close()

    run_on_broker(seed, connect)


@pytest.mark.parametrize("seed", SEEDS)
def test_work_is_repeated_until_the_connection_is_back(seed: int) -> None:
    lines = Lines()

    async def count(host: Host) -> int:
        session = session_on(host, lines)
        await session.connect()
        calls = 0

        async def work() -> bool:
            nonlocal calls
            calls += 1
            return await session.perform(Exists("/")) is not None

        for _ in range(40):
            assert await session.until_connected(work)
            await pause(0.1)
        await session.close()
        return calls

    with Simulation(seed) as simulation:
        coordinator = start_coordinator(simulation)
        for second in (1, 2, 3):
            simulation.at(second, coordinator.crash)
            simulation.at(second + 0.5, coordinator.restart)
        assert simulation.run_on(simulation.machine("broker"), count) >= 40


@pytest.mark.parametrize("seed", SEEDS)
def test_a_listener_that_fails_does_not_keep_the_others_from_hearing(seed: int) -> None:
    lines = Lines()

    class Failing:
        async def before_new_session(self) -> None:
            raise LookupError("before")

        async def after_new_session(self) -> None:
            raise LookupError("after")

    async def expire(host: Host) -> None:
        session = session_on(host, lines)
        await session.connect()
        recorder = Recorder(session)
        session.add_session_listener(Failing())
        session.add_session_listener(recorder)
        await until(lambda: len(recorder.told) == 2)
        await session.close()

    with Simulation(seed) as simulation:
        start_coordinator(simulation)
        machine = simulation.machine("broker")
        process = machine.start(expire)
        simulation.run_for(2.0)
        machine.pause()
        simulation.run_for(2 * TIMEOUT_MS / 1000)
        machine.resume()
        simulation.run_until(lambda: process.ended)
        process.result()
    assert "LookupError: before" in lines
    assert "LookupError: after" in lines


@pytest.mark.parametrize("seed", SEEDS)
def test_closing_ends_also_a_session_that_never_began(seed: int) -> None:
    async def close(host: Host) -> SessionState:
        session = session_on(host, Lines())
        connecting = host.loop.create_task(session.connect())
        await pause(1.0)
        connecting.cancel()
        await session.close()
        return session.state

    with Simulation(seed) as simulation:
        simulation.machine("coordinator")
        assert simulation.run_on(simulation.machine("broker"), close) is SessionState.CLOSED


@pytest.mark.parametrize("seed", SEEDS)
def test_is_out_of_reach_after_a_whole_time_out_without_a_server_and_not_before(seed: int) -> None:
    async def look(host: Host) -> float:
        session = session_on(host, Lines())
        await session.connect()
        out_of_reach = host.loop.create_task(session.out_of_reach())
        coordinator.crash()
        await pause(0.5 * TIMEOUT_MS / 1000)
        coordinator.restart()
        await session.perform(Exists("/"))
        await pause(TIMEOUT_MS / 1000)
        assert not out_of_reach.done()
        coordinator.crash()
        began = host.loop.time()
        await out_of_reach
        await session.close()
        return host.loop.time() - began

    with Simulation(seed) as simulation:
        coordinator = start_coordinator(simulation)
        took = simulation.run_on(simulation.machine("broker"), look)
        assert TIMEOUT_MS / 1000 <= took < 1.1 * TIMEOUT_MS / 1000
