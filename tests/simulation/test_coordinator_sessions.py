"""Sessions of the embedded coordinator in virtual time: expiry on time, under load, over stalls and cuts."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.coordination.embedded.config import CoordinatorConfig
from barnabas.coordination.embedded.server import EmbeddedCoordinator
from barnabas.kernel.host import Host
from barnabas.testing.simulated_host import Main
from barnabas.testing.simulation import Simulation, simulation_seeds
from tests.support.raw_zookeeper import Operation, WatchEvent, create, read, set_data
from tests.unit.coordination.embedded.caller import Caller, CallerDisconnectedError

PORT = 2181
EPHEMERAL = 1
DELETED = 2
TIMEOUT_MS = 4000


async def coordinator_main(host: Host) -> None:
    coordinator = EmbeddedCoordinator(host, CoordinatorConfig("/data", host="0.0.0.0", port=PORT))
    await coordinator.start()
    await coordinator.failure


async def wait(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    wake = loop.create_future()
    loop.call_later(seconds, wake.set_result, None)
    await wake


async def connect(address: str, session: tuple[int, bytes] = (0, bytes(16))) -> Caller:
    while True:
        try:
            return await Caller.open(address, PORT, timeout_ms=TIMEOUT_MS, session_id=session[0], password=session[1])
        except CallerDisconnectedError as error:
            if str(error) == "expired":
                raise
            await wait(0.05)


def holder(address: str, sessions: list[tuple[int, bytes]], path: str, ping_seconds: float | None) -> Main:
    """Owns an ephemeral znode, and pings so often, or never."""

    async def main(_host: Host) -> None:
        caller = await connect(address)
        sessions.append((caller.session_id, caller.password))
        await caller.body(create(path, b"", EPHEMERAL))
        while not caller.closed.done():
            if ping_seconds is None:
                await caller.closed
            else:
                await wait(ping_seconds)
                caller.send(read(Operation.EXISTS, path))

    return main


def load(address: str) -> Main:
    """Writes all the time."""

    async def main(_host: Host) -> None:
        caller = await connect(address)
        await caller.body(create("/load", b""))
        while not caller.closed.done():
            await asyncio.gather(*(caller.send(set_data("/load", b"x" * 500)) for _ in range(50)))
            await wait(0.03)

    return main


@pytest.mark.parametrize("seed", simulation_seeds(3))
def test_the_silent_expire_on_time_under_load_and_the_others_stay(seed: int) -> None:
    with Simulation(seed) as simulation:
        server = simulation.machine("server")
        server.start(coordinator_main)
        silent: list[tuple[int, bytes]] = []
        lively: list[tuple[int, bytes]] = []
        simulation.machine("load").start(load(server.address))
        simulation.machine("silent").start(holder(server.address, silent, "/silent", None))
        simulation.machine("lively").start(holder(server.address, lively, "/lively", 1.0))

        async def observe(_host: Host) -> float:
            caller = await connect(server.address)
            loop = asyncio.get_running_loop()
            while (await caller.call(read(Operation.EXISTS, "/silent", True))).error:
                await wait(0.01)
            began = loop.time()
            while not any(isinstance(each, WatchEvent) and each.type == DELETED for each in caller.take()):
                await wait(0.01)
                await caller.ping()
            lasted = loop.time() - began
            for _ in range(2 * TIMEOUT_MS // 1000):
                await wait(1.0)
                await caller.ping()
            assert (await caller.call(read(Operation.EXISTS, "/lively"))).error == 0
            return lasted

        lasted = simulation.run_on(simulation.machine("observer"), observe)
        assert TIMEOUT_MS / 1000 - 0.3 <= lasted <= TIMEOUT_MS / 1000 + 0.3


@pytest.mark.parametrize("seed", simulation_seeds(3))
def test_a_stall_of_the_coordinator_expires_nobody_who_has_spoken(seed: int) -> None:
    with Simulation(seed) as simulation:
        server = simulation.machine("server")
        server.start(coordinator_main)
        sessions: list[tuple[int, bytes]] = []
        for number in range(5):
            simulation.machine(f"client{number}").start(holder(server.address, sessions, f"/e{number}", 0.5))
        simulation.run_for(2.0)
        server.pause()
        simulation.run_for(3 * TIMEOUT_MS / 1000)
        server.resume()
        simulation.run_for(1.0)

        async def count(_host: Host) -> int:
            caller = await connect(server.address)
            return sum([(await caller.call(read(Operation.EXISTS, f"/e{number}"))).error == 0 for number in range(5)])

        assert simulation.run_on(simulation.machine("observer"), count) == 5


@pytest.mark.parametrize("seed", simulation_seeds(3))
def test_a_restarted_coordinator_gives_every_session_its_full_timeout(seed: int) -> None:
    with Simulation(seed) as simulation:
        server = simulation.machine("server")
        server.start(coordinator_main)
        sessions: list[tuple[int, bytes]] = []
        client = simulation.machine("client")
        client.start(holder(server.address, sessions, "/e", 0.5))
        simulation.run_for(2.0)
        client.crash()
        simulation.run_for(TIMEOUT_MS / 1000 - 0.5)
        server.power_fail()
        simulation.run_for(2.0)
        server.restart()
        simulation.run_for(TIMEOUT_MS / 1000 - 0.5)

        async def attach(_host: Host) -> int:
            caller = await connect(server.address, sessions[0])
            assert (await caller.call(read(Operation.EXISTS, "/e"))).error == 0
            return caller.session_id

        assert simulation.run_on(simulation.machine("client"), attach) == sessions[0][0]
        simulation.run_for(TIMEOUT_MS / 1000 + 0.5)

        async def expired(_host: Host) -> None:
            with pytest.raises(CallerDisconnectedError, match="expired"):
                await connect(server.address, sessions[0])
            caller = await connect(server.address)
            assert (await caller.call(read(Operation.EXISTS, "/e"))).error == -101

        simulation.run_on(simulation.machine("client"), expired)
