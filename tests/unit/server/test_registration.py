"""The broker's own znode."""

from __future__ import annotations

import pytest

from barnabas.coordination.layout.brokers import BrokerRegistration, broker_id_path
from barnabas.coordination.operations import Delete, GetData
from barnabas.kernel.host import Host
from barnabas.server.cluster_identity import join_cluster
from barnabas.server.coordination_session import CoordinationSession
from barnabas.server.errors import DuplicateBrokerError
from barnabas.server.registration import Registration
from barnabas.testing.simulation import Simulation, simulation_seeds
from barnabas.wire.endpoints import BrokerEndpoint
from tests.unit.server.coordinated import (
    TIMEOUT_MS,
    Lines,
    logger_of,
    pause,
    run_on_broker,
    session_on,
    start_coordinator,
    until,
)

SEEDS = simulation_seeds(3)
BROKER_ID = 7


def payload_at(host: str) -> BrokerRegistration:
    return BrokerRegistration((BrokerEndpoint("PLAINTEXT", host, 9092, "PLAINTEXT"),), timestamp_ms=1, rack="r")


async def prepared(host: Host, lines: Lines) -> tuple[CoordinationSession, Registration]:
    session = session_on(host, lines)
    await session.connect()
    await join_cluster(session, host.entropy)
    logger = logger_of(host, lines)
    return session, Registration(session, BROKER_ID, lambda: payload_at(host.name), host.loop, logger)


async def hold(host: Host) -> None:
    """Registers and stays."""
    _, registration = await prepared(host, Lines())
    await registration.register()
    await host.loop.create_future()


@pytest.mark.parametrize("seed", SEEDS)
def test_registers_with_payload_and_epoch(seed: int) -> None:
    async def register(host: Host) -> None:
        session, registration = await prepared(host, Lines())
        assert registration.broker_epoch == -1
        epoch = await registration.register()
        found = await session.perform(GetData(broker_id_path(BROKER_ID)))
        assert BrokerRegistration.decode(found.data, "") == payload_at(host.name)
        assert found.stat.czxid == epoch == registration.broker_epoch
        assert found.stat.ephemeral_owner == session.session_id
        # Again, as after an answer that was lost: the znode is ours and stays.
        assert await registration.register() == epoch
        await session.close()

    run_on_broker(seed, register)


@pytest.mark.parametrize("seed", SEEDS)
def test_waits_until_the_session_of_a_killed_predecessor_is_over(seed: int) -> None:
    lines = Lines()

    async def register(host: Host) -> float:
        session, registration = await prepared(host, lines)
        began = host.loop.time()
        await registration.register()
        took = host.loop.time() - began
        await session.close()
        return took

    with Simulation(seed) as simulation:
        start_coordinator(simulation)
        machine = simulation.machine("broker")
        machine.start(hold)
        simulation.run_for(3.0)
        machine.crash()
        took = simulation.run_on(machine, register)
        assert 0.5 * TIMEOUT_MS / 1000 < took < 1.1 * TIMEOUT_MS / 1000
    assert "Broker 7 is registered already, by session 0x" in lines
    assert "Registered broker 7" in lines


@pytest.mark.parametrize("seed", SEEDS)
def test_a_true_duplicate_is_refused_after_the_wait_with_what_to_do(seed: int) -> None:
    async def register(host: Host) -> float:
        session, registration = await prepared(host, Lines())
        began = host.loop.time()
        with pytest.raises(DuplicateBrokerError, match="another broker") as caught:
            await registration.register()
        assert "Another broker with the id 7 is alive" in str(caught.value)
        took = host.loop.time() - began
        await session.close()
        return took

    with Simulation(seed) as simulation:
        start_coordinator(simulation)
        simulation.machine("first").start(hold)
        simulation.run_for(3.0)
        took = simulation.run_on(simulation.machine("second"), register)
        assert 1.5 * TIMEOUT_MS / 1000 <= took < 2 * TIMEOUT_MS / 1000


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("is_vacancy_asked", [True, False])
def test_a_predecessor_is_waited_for_although_restarts_of_the_coordinator_prolong_its_session(
    seed: int, is_vacancy_asked: bool
) -> None:
    """Each restart gives every session its whole time-out again."""

    async def register(host: Host) -> None:
        session, registration = await prepared(host, Lines())
        if is_vacancy_asked:
            await registration.vacant()
        await registration.register()
        await session.close()

    timeout_seconds = TIMEOUT_MS / 1000
    with Simulation(seed) as simulation:
        coordinator = start_coordinator(simulation)
        machine = simulation.machine("broker")
        machine.start(hold)
        simulation.run_for(3.0)
        machine.crash()
        for times in (0.7, 1.4, 2.1):
            simulation.after(times * timeout_seconds, coordinator.crash)
            simulation.after(times * timeout_seconds + 0.1, coordinator.restart)
        simulation.run_on(machine, register, 6 * timeout_seconds)
        assert 2.5 * timeout_seconds < simulation.now - 3.0 < 4 * timeout_seconds


@pytest.mark.parametrize("seed", SEEDS)
def test_a_znode_that_goes_away_meanwhile_is_made_at_once(seed: int) -> None:
    async def delete(host: Host) -> None:
        session = session_on(host, Lines())
        await session.connect()
        await session.perform(Delete(broker_id_path(BROKER_ID)))
        await session.close()

    async def register(host: Host) -> float:
        session, registration = await prepared(host, Lines())
        await registration.register()
        await session.close()
        return host.loop.time()

    with Simulation(seed) as simulation:
        start_coordinator(simulation)
        simulation.machine("first").start(hold)
        simulation.run_for(3.0)
        began = simulation.now
        process = simulation.machine("second").start(register)
        simulation.run_for(1.0)
        simulation.run_on(simulation.machine("somebody"), delete)
        simulation.run_until(lambda: process.ended)
        assert simulation.now - began < 2.0


@pytest.mark.parametrize("seed", SEEDS)
def test_the_znode_of_the_own_former_session_is_replaced_without_a_wait(seed: int) -> None:
    """A server that comes back with an older state may show a znode whose session was told that it is over."""
    lines = Lines()

    async def register(host: Host) -> None:
        session, registration = await prepared(host, lines)
        first = await registration.register()
        former = session.session_id
        other = session_on(host, lines)
        await other.connect()
        # As after an expiry of which the znode knows nothing yet.
        other._former_id = former
        again = Registration(other, BROKER_ID, lambda: payload_at("again"), host.loop, logger_of(host, lines))
        began = host.loop.time()
        epoch = await again.register()
        assert epoch > first
        assert host.loop.time() - began < 1.0
        found = await other.perform(GetData(broker_id_path(BROKER_ID)))
        assert found.stat.ephemeral_owner == other.session_id
        await other.close()
        await session.close()

    run_on_broker(seed, register)
    assert "Replacing /brokers/ids/7 of this broker's former session" in lines


@pytest.mark.parametrize("seed", SEEDS)
def test_an_expired_session_is_followed_by_a_registration_with_a_larger_epoch(seed: int) -> None:
    async def stay(host: Host) -> tuple[int, int]:
        session, registration = await prepared(host, Lines())
        first = await registration.register()

        class Registering:
            async def before_new_session(self) -> None:
                return

            async def after_new_session(self) -> None:
                await registration.register()

        session.add_session_listener(Registering())
        await until(lambda: registration.broker_epoch != first)
        await pause(0.1)
        await session.close()
        return first, registration.broker_epoch

    with Simulation(seed) as simulation:
        start_coordinator(simulation)
        machine = simulation.machine("broker")
        process = machine.start(stay)
        simulation.run_for(2.0)
        machine.pause()
        simulation.run_for(2 * TIMEOUT_MS / 1000)
        machine.resume()
        simulation.run_until(lambda: process.ended)
        first, second = process.result()
        assert second > first
