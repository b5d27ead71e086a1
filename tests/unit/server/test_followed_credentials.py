"""SCRAM credentials follow `/config/users`, beside a real coordinator in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from barnabas.cluster.topic_configs import TopicConfigs
from barnabas.coordination.layout.configs import CONFIG_CHANGES_PATH
from barnabas.coordination.protocol import CreateMode
from barnabas.sasl.scram_mechanisms import ScramCredential, ScramMechanism
from barnabas.security.scram_credentials import ScramCredentials
from barnabas.server.credential_configs import CredentialConfigs
from barnabas.server.dynamic_configs import DynamicConfigs
from barnabas.server.quota_configs import QuotaConfigs
from tests.unit.api.administration.admin_world import AdminWorld, in_world

SHA_256 = ScramMechanism.SHA_256
USERS = "/config/users"


def credential(number: int = 0) -> ScramCredential:
    return ScramCredential(b"salt", bytes(32), bytes(32), 4096 + number)


class Following:
    """A broker that follows credentials, or does not ask for any."""

    def __init__(self, world: AdminWorld, *, asks: bool = True) -> None:
        self.world = world
        self.credentials = ScramCredentials(world.logger)
        self.dynamic = DynamicConfigs(
            world.host,
            world.client,
            world.broker_configs,
            TopicConfigs(world.broker_configs, world.logger),
            timers=world.timers,
            logger=world.logger,
            on_unclean_election_enabled=lambda _topic: None,
            passwords=world.passwords,
            quota_configs=QuotaConfigs(world.client, {}, world.logger),
            credential_configs=CredentialConfigs(world.client, self.credentials, world.logger) if asks else None,
        )

    async def put(self, user: str, data: bytes | ScramCredential, *, announced: bool = True) -> None:
        """As another broker writes a user's (sanitized)."""
        path = f"{USERS}/{user}"
        if isinstance(data, ScramCredential):
            data = json.dumps({"version": 1, "config": {"SCRAM-SHA-256": data.encode()}}).encode()
        if await self.world.client.exists(path) is None:
            await self.world.client.create(path, data)
        else:
            await self.world.client.set_data(path, data)
        if announced:
            await self.announce(f"users/{user}")

    async def announce(self, entity: str) -> None:
        data = json.dumps({"version": 2, "entity_path": entity}).encode()
        path = f"{CONFIG_CHANGES_PATH}/config_change_"
        await self.world.client.create(path, data, mode=CreateMode.PERSISTENT_SEQUENTIAL)

    def find(self, user: str) -> ScramCredential | None:
        return self.credentials.find(SHA_256, user)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.01)


def following(test: Callable[[Following], Awaitable[None]], *, asks: bool = True) -> None:
    async def main(world: AdminWorld) -> None:
        broker = Following(world, asks=asks)
        try:
            await test(broker)
        finally:
            await broker.dynamic.stop()

    in_world(main)


def test_all_users_are_known_at_the_start() -> None:
    async def main(broker: Following) -> None:
        for number in range(300):
            await broker.put(f"u{number}", credential(number), announced=False)
        await broker.put("b%C3%B6b+%3D", credential(1), announced=False)
        await broker.put("<default>", credential(), announced=False)
        await broker.dynamic.start()
        assert [broker.find(f"u{number}") for number in range(300)] == [credential(number) for number in range(300)]
        assert broker.find("böb =") == credential(1)
        assert broker.find("<default>") is None

    following(main)


def test_changes_are_heard_of() -> None:
    async def main(broker: Following) -> None:
        await broker.dynamic.start()
        assert broker.find("alice") is None
        for number in (1, 2):
            await broker.put("alice", credential(number))
            await broker.until(lambda number=number: broker.find("alice") == credential(number))  # type: ignore[misc]
        await broker.put("alice", b'{"version": 1, "config": {}}')
        await broker.until(lambda: broker.find("alice") is None)

    following(main)


def test_quotas_of_a_users_clients_are_none_of_its_credentials() -> None:
    async def main(broker: Following) -> None:
        await broker.put("alice", credential())
        await broker.dynamic.start()
        await broker.announce("users/alice/clients/c")
        await broker.put("bob", credential())
        await broker.until(lambda: broker.find("bob") == credential())
        assert broker.find("alice") == credential()

    following(main)


def test_who_was_deleted_while_nobody_listened_cannot_log_in_any_more() -> None:
    async def main(broker: Following) -> None:
        for user in ("alice", "bob"):
            await broker.put(user, credential())
        await broker.dynamic.start()
        await broker.dynamic.before_new_session()
        await broker.world.client.delete(f"{USERS}/alice")
        await broker.dynamic.after_new_session()
        await broker.until(lambda: broker.find("alice") is None)
        assert broker.find("bob") == credential()

    following(main)


@pytest.mark.parametrize("data", [b"hush", b'{"version": 1, "config": {"SCRAM-SHA-256": "salt=hush"}}'])
def test_who_has_a_znode_that_cannot_be_read_cannot_log_in_and_it_is_not_shown(data: bytes) -> None:
    async def main(broker: Following) -> None:
        await broker.put("alice", credential())
        await broker.dynamic.start()
        await broker.put("alice", data)
        await broker.until(lambda: broker.find("alice") is None)
        logged = "\n".join(broker.world.lines.lines)
        assert "cannot log in" in logged
        assert "hush" not in logged

    following(main)


def test_nobody_is_read_where_no_listener_asks() -> None:
    async def main(broker: Following) -> None:
        await broker.put("alice", credential())
        await broker.dynamic.start()
        await broker.put("bob", credential())
        await broker.world.client.create("/config/brokers/1", b'{"version": 1, "config": {"log.retention.ms": "9"}}')
        await broker.announce("brokers/1")
        await broker.until(lambda: broker.world.broker_configs.values["log.retention.ms"] == 9)
        assert broker.find("alice") is None
        assert broker.find("bob") is None

    following(main, asks=False)
