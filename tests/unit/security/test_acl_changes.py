"""Following ACLs, beside a real coordinator in virtual time: two brokers, whose rules become the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from barnabas.coordination.announcements import ANNOUNCEMENT_KEPT_MS
from barnabas.coordination.client import Client
from barnabas.coordination.errors import ConnectionLossError
from barnabas.coordination.protocol import CreateMode
from barnabas.coordination.session_settings import ClientSettings
from barnabas.kernel.host import Host
from barnabas.security.acl_changes import AclChanges
from barnabas.security.acl_rules import AclRules
from barnabas.security.acl_store import AclStore
from barnabas.security.acls import (
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)
from barnabas.testing.simulation import Simulation, simulation_seeds
from tests.unit.api.administration.admin_world import AdminWorld, in_world
from tests.unit.server.coordinated import COORDINATOR, PORT, TIMEOUT_MS, Lines, pause, session_on, start_coordinator

ORDERS = ResourcePattern(ResourceType.TOPIC, "orders")
PREFIX = ResourcePattern(ResourceType.GROUP, "team-", PatternType.PREFIXED)
READ = AccessControlEntry("User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW)
WRITE = READ._replace(operation=AclOperation.WRITE)
LITERAL, EXTENDED = "/kafka-acl-changes", "/kafka-acl-extended-changes"


class Follower:
    """One broker's rules, and what keeps them."""

    def __init__(self, world: AdminWorld) -> None:
        self.world = world
        self.rules = AclRules()
        self.store = AclStore(world.host, world.client, self.rules, timers=world.timers, logger=world.logger)
        self.changes = AclChanges(world.host, world.client, self.store, timers=world.timers, logger=world.logger)

    async def until(self, pattern: ResourcePattern, *entries: AccessControlEntry) -> None:
        while self.rules.entries(pattern) != frozenset(entries):
            await asyncio.sleep(0.01)


def following(test: Callable[[Follower, AclStore], Awaitable[None]]) -> None:
    """`test` gets a broker that does not follow yet, and the store of another, which changes rules."""

    async def main(world: AdminWorld) -> None:
        broker = Follower(world)
        try:
            await test(broker, Follower(world).store)
        finally:
            await broker.changes.stop()

    in_world(main)


def picking(pattern: ResourcePattern) -> AclBindingFilter:
    return AclBindingFilter(ResourcePatternFilter(*pattern))


def test_makes_the_paths_and_reads_everything_at_the_start() -> None:
    async def main(broker: Follower, other: AclStore) -> None:
        await broker.changes.start()
        assert await broker.world.children("/kafka-acl-extended") == ["prefixed"]
        await other.create([AclBinding(ORDERS, READ), AclBinding(PREFIX, WRITE)])
        second = Follower(broker.world)
        await second.changes.start()
        assert set(second.rules.patterns()) == {ORDERS, PREFIX}
        await second.changes.stop()

    following(main)


def test_hears_of_literal_and_prefixed_changes_and_the_epoch_grows_with_each() -> None:
    async def main(broker: Follower, other: AclStore) -> None:
        await broker.changes.start()
        epochs = [broker.rules.epoch]
        for pattern in (ORDERS, PREFIX):
            await other.create([AclBinding(pattern, READ)])
            await broker.until(pattern, READ)
            epochs.append(broker.rules.epoch)
            await other.create([AclBinding(pattern, WRITE)])
            await broker.until(pattern, READ, WRITE)
            epochs.append(broker.rules.epoch)
            await other.delete([picking(pattern)])
            await broker.until(pattern)
            epochs.append(broker.rules.epoch)
        assert epochs == sorted(set(epochs))
        assert broker.rules.patterns() == ()

    following(main)


def test_a_change_without_an_announcement_is_not_heard() -> None:
    async def main(broker: Follower, other: AclStore) -> None:
        await broker.changes.start()
        await other.create([AclBinding(ORDERS, READ)])
        await broker.until(ORDERS, READ)
        await broker.world.client.delete("/kafka-acl/Topic/orders")
        await asyncio.sleep(30)
        assert broker.rules.entries(ORDERS) == {READ}

    following(main)


def test_announcements_that_nobody_understands_do_no_harm() -> None:
    async def main(broker: Follower, other: AclStore) -> None:
        await broker.changes.start()
        for path in (LITERAL, EXTENDED):
            for data in (b"", b"\xff", b"Spaceship:x", b"{}", b'{"version":2}', b"Topic:a/../b", b"Topic:"):
                await broker.world.client.create(f"{path}/acl_changes_", data, mode=CreateMode.PERSISTENT_SEQUENTIAL)
            await broker.world.client.create(f"{path}/something_else", b"")
        await other.create([AclBinding(ORDERS, READ), AclBinding(PREFIX, READ)])
        await broker.until(ORDERS, READ)
        await broker.until(PREFIX, READ)

    following(main)


@pytest.mark.parametrize(("path", "pattern"), [(LITERAL, ORDERS), (EXTENDED, PREFIX)])
def test_old_announcements_are_deleted_by_who_sees_them(path: str, pattern: ResourcePattern) -> None:
    async def main(broker: Follower, other: AclStore) -> None:
        await other.create_paths()
        await other.create([AclBinding(pattern, READ)])
        (old,) = await broker.world.children(path)
        await asyncio.sleep(ANNOUNCEMENT_KEPT_MS / 1000 - 5)
        await broker.changes.start()
        assert await broker.world.children(path) == [old]
        await asyncio.sleep(10)
        await other.create([AclBinding(pattern, WRITE)])
        await broker.until(pattern, READ, WRITE)
        await asyncio.sleep(1)
        (new,) = await broker.world.children(path)
        assert new != old

    following(main)


def test_a_connection_that_breaks_while_hearing_is_made_up_for() -> None:
    async def main(broker: Follower, other: AclStore) -> None:
        await broker.changes.start()
        get_many = broker.world.client.get_many
        failures: list[object] = []

        async def broken(paths: Any) -> list[Any]:
            if len(failures) < 3:
                failures.append(paths)
                raise ConnectionLossError(LITERAL)
            return await get_many(paths)

        broker.world.client.get_many = broken  # type: ignore[method-assign]
        await other.create([AclBinding(ORDERS, READ)])
        await broker.until(ORDERS, READ)
        assert len(failures) == 3

    following(main)


def test_paths_that_somebody_removed_are_made_again() -> None:
    async def main(broker: Follower, other: AclStore) -> None:
        await broker.changes.start()
        await broker.world.client.delete(LITERAL)
        while await broker.world.client.exists(LITERAL) is None:
            await asyncio.sleep(0.1)
        await other.create([AclBinding(ORDERS, READ)])
        await broker.until(ORDERS, READ)

    following(main)


def test_nothing_is_heard_after_the_end() -> None:
    async def main(broker: Follower, other: AclStore) -> None:
        await broker.changes.start()
        await broker.changes.stop()
        await other.create([AclBinding(ORDERS, READ)])
        await asyncio.sleep(30)
        assert broker.rules.patterns() == ()

    following(main)


@pytest.mark.parametrize("seed", simulation_seeds(3))
def test_an_expired_session_misses_no_revocation(seed: int) -> None:
    """A broker sleeps past its session; meanwhile a rule is taken away, and the announcement is gone again."""
    lines = Lines()

    async def follow(host: Host) -> None:
        session = session_on(host, lines)
        await session.connect()
        world = AdminWorld(host, cast("Client", session), {1: None}, {})
        broker = Follower(world)
        session.add_session_listener(broker.changes)
        await broker.changes.start()
        first = session.session_id
        await broker.until(ORDERS, READ)
        await broker.until(ORDERS)
        assert session.session_id != first
        await broker.until(PREFIX, WRITE)
        await broker.changes.stop()
        world.timers.close()
        await session.close()

    async def write(host: Host) -> None:
        client = Client(host, ClientSettings(f"{COORDINATOR}:{PORT}"))
        await client.connect()
        world = AdminWorld(host, client, {1: None}, {})
        store = Follower(world).store
        await store.create_paths()
        await pause(2.0)
        assert await store.create([AclBinding(ORDERS, READ)]) == [None]
        await pause(4.0)  # the broker sleeps now
        await store.delete([picking(ORDERS)])
        for name in await world.children(LITERAL):
            await client.delete(f"{LITERAL}/{name}")
        await pause(2.5 * TIMEOUT_MS / 1000)
        assert await store.create([AclBinding(PREFIX, WRITE)]) == [None]
        world.timers.close()
        await client.close()

    with Simulation(seed) as simulation:
        start_coordinator(simulation)
        writer = simulation.machine("writer").start(write)
        simulation.run_for(1.0)
        machine = simulation.machine("broker")
        process = machine.start(follow)
        simulation.run_for(3.0)
        machine.pause()
        simulation.run_for(2 * TIMEOUT_MS / 1000)
        machine.resume()
        simulation.run_until(lambda: process.ended and writer.ended)
        process.result()
        writer.result()
