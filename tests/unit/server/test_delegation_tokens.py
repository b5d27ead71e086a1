"""Delegation tokens of whole brokers in virtual time: who deletes them, and what a restart or another secret leaves."""

from __future__ import annotations

import pytest

from barnabas.kernel.host import Host
from barnabas.sasl.scram_mechanisms import ScramMechanism
from barnabas.server.broker import Broker
from barnabas.server.delegation_tokens import BrokerTokens
from barnabas.testing.simulation import Simulation
from tests.unit.server.coordinated import Lines, pause, start_coordinator, until
from tests.unit.server.test_broker import running

ALICE = "User:alice"
SECRET = ("delegation.token.secret.key=secret",)
HOUR_MS = 3_600_000


def tokens_of(broker: Broker) -> BrokerTokens:
    tokens = broker.components.tokens
    assert tokens is not None
    return tokens


@pytest.mark.parametrize("key", ["secret", "master"])
def test_the_controller_deletes_what_has_expired_at_every_interval(key: str) -> None:
    async def work(broker: Broker, _host: Host) -> None:
        tokens = tokens_of(broker)
        short = await tokens.store.create(ALICE, ALICE, (), 10_000)
        long = await tokens.store.create(ALICE, ALICE, (), HOUR_MS)
        await pause(55.0)
        assert tokens.tokens.ids() == {short.token_id, long.token_id}
        await pause(10.0)
        assert tokens.tokens.ids() == {long.token_id}

    with Simulation(1) as simulation:
        start_coordinator(simulation)
        overrides = (f"delegation.token.{key}.key=secret", "delegation.token.expiry.check.interval.ms=60000")
        simulation.run_on(simulation.machine("broker"), running(work, Lines(), *overrides), 3600)


def test_a_new_controller_deletes_at_once_what_has_expired_while_there_was_none() -> None:
    """With the usual interval of an hour."""

    async def make(broker: Broker, _host: Host) -> str:
        return (await tokens_of(broker).store.create(ALICE, ALICE, (), 10_000)).token_id

    async def look(broker: Broker, _host: Host) -> None:
        await until(lambda: not tokens_of(broker).tokens.ids())

    with Simulation(1) as simulation:
        start_coordinator(simulation)
        machine = simulation.machine("broker")
        simulation.run_on(machine, running(make, Lines(), *SECRET), 3600)
        simulation.run_for(60.0)
        simulation.run_on(machine, running(look, Lines(), *SECRET), 600)


def test_who_is_not_the_controller_deletes_nothing() -> None:
    interval = "delegation.token.expiry.check.interval.ms=1000"

    async def idle(_broker: Broker, _host: Host) -> None:
        await pause(600.0)

    async def work(broker: Broker, _host: Host) -> None:
        tokens = tokens_of(broker)
        assert not broker.components.controller.is_active
        token = await tokens.store.create(ALICE, ALICE, (), 1000)
        await pause(30.0)
        assert tokens.tokens.ids() == {token.token_id}

    with Simulation(1) as simulation:
        start_coordinator(simulation)
        # The controller has no secret, and so no tokens.
        simulation.machine("one").start(running(idle, Lines()))
        simulation.run_for(30.0)
        simulation.run_on(simulation.machine("two"), running(work, Lines(), *SECRET, interval), 600)


def test_a_token_outlives_a_restart_and_its_secret_is_that_of_the_key() -> None:
    async def make(broker: Broker, _host: Host) -> tuple[str, bytes]:
        token = await tokens_of(broker).store.create(ALICE, ALICE, (), -1)
        return token.token_id, tokens_of(broker).tokens.hmac_of(token.token_id)

    async def look(broker: Broker, _host: Host) -> tuple[bytes, str]:
        (token_id,) = tokens_of(broker).tokens.ids()
        login = tokens_of(broker).tokens.login(ScramMechanism.SHA_256, token_id)
        assert login is not None
        return tokens_of(broker).tokens.hmac_of(token_id), login.owner

    with Simulation(1) as simulation:
        start_coordinator(simulation)
        machine = simulation.machine("broker")
        _, secret = simulation.run_on(machine, running(make, Lines(), *SECRET), 600)
        assert simulation.run_on(machine, running(look, Lines(), *SECRET), 600) == (secret, "alice")
        other, _ = simulation.run_on(machine, running(look, Lines(), "delegation.token.secret.key=other"), 600)
        assert other != secret


def test_without_a_secret_there_are_no_tokens() -> None:
    async def work(broker: Broker, _host: Host) -> None:
        assert broker.components.tokens is None

    with Simulation(1) as simulation:
        start_coordinator(simulation)
        for overrides in ((), ("delegation.token.secret.key=", "delegation.token.master.key=old")):
            simulation.run_on(simulation.machine("broker"), running(work, Lines(), *overrides), 600)


def test_two_brokers_come_to_hold_the_same_tokens_when_one_has_lost_its_session() -> None:
    made: list[str] = []

    async def follow(broker: Broker, _host: Host) -> None:
        tokens, first = tokens_of(broker).tokens, broker.components.session.session_id
        await until(lambda: len(tokens) == 1)
        await until(lambda: broker.components.session.session_id != first)
        await until(lambda: tokens.ids() == {made[-1]})

    async def write(broker: Broker, _host: Host) -> None:
        store = tokens_of(broker).store
        token = await store.create(ALICE, ALICE, (), -1)
        await pause(20.0)  # the other sleeps now
        await store.expire(store.tokens.hmac_of(token.token_id), ALICE, -1)
        made.append((await store.create(ALICE, ALICE, (), -1)).token_id)
        await pause(120.0)

    with Simulation(1) as simulation:
        start_coordinator(simulation)
        machine = simulation.machine("follower")
        process = machine.start(running(follow, Lines(), *SECRET))
        simulation.run_for(10.0)
        writer = simulation.machine("writer").start(running(write, Lines(), *SECRET))
        simulation.run_for(15.0)
        machine.pause()
        simulation.run_for(40.0)
        machine.resume()
        simulation.run_until(lambda: process.ended)
        process.result()
        del writer
