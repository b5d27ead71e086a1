"""Dynamic configs follow `/config`, beside a real coordinator in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from barnabas.api.client_throttles import ClientThrottles
from barnabas.cluster.topic_configs import TopicConfigs
from barnabas.coordination.announcements import ANNOUNCEMENT_KEPT_MS
from barnabas.coordination.client import Client
from barnabas.coordination.errors import ConnectionLossError
from barnabas.coordination.layout.access import PERSISTENT_PATHS
from barnabas.coordination.layout.configs import CONFIG_CHANGES_PATH
from barnabas.coordination.operations import Create
from barnabas.coordination.protocol import CreateMode
from barnabas.coordination.session_settings import ClientSettings
from barnabas.kernel.host import Host
from barnabas.quotas.connection_rates import ConnectionRates
from barnabas.quotas.settings import ClientQuotaSettings, ControllerQuotaSettings
from barnabas.server.dynamic_configs import DynamicConfigs
from barnabas.server.ip_configs import IpConfigs
from barnabas.server.quota_configs import QuotaConfigs
from barnabas.testing.simulation import Simulation, simulation_seeds
from tests.unit.api.administration.admin_world import AdminWorld, in_world
from tests.unit.server.coordinated import (
    COORDINATOR,
    PORT,
    TIMEOUT_MS,
    Lines,
    pause,
    session_on,
    start_coordinator,
    until,
)


class Following:
    """A broker that follows; `unclean` are the topics of which unclean elections were allowed."""

    def __init__(self, world: AdminWorld) -> None:
        self.world = world
        self.topics = TopicConfigs(world.broker_configs, world.logger)
        self.unclean: list[str] = []
        self.told: list[str] = []
        self.topics.add_listener(lambda topic, _values: self.told.append(topic))
        self.throttles = ClientThrottles(
            ClientQuotaSettings(), ControllerQuotaSettings(), world.host.loop.time, lambda: 0.0
        )
        self.rates = ConnectionRates(ClientQuotaSettings())
        self.dynamic = DynamicConfigs(
            world.host,
            world.client,
            world.broker_configs,
            self.topics,
            timers=world.timers,
            logger=world.logger,
            on_unclean_election_enabled=self.unclean.append,
            passwords=world.passwords,
            ip_configs=IpConfigs(world.client, self.rates, self.address_of, world.logger),
            quota_configs=QuotaConfigs(world.client, self.throttles.by_config, world.logger),
        )

    async def address_of(self, name: str) -> str | None:
        """Every name that begins with a digit is an address, and there is one host."""
        return "10.1.1.1" if name == "host" else name if name[0].isdigit() or ":" in name else None

    async def put(self, entity: str, **configs: str) -> None:
        """As another broker writes an entity's configs."""
        path = f"/config/{entity}"
        texts = {name.replace("_", "."): value for name, value in configs.items()}
        data = json.dumps({"version": 1, "config": texts}).encode()
        if await self.world.client.exists(path) is None:
            await self.world.client.create(path, data)
        else:
            await self.world.client.set_data(path, data)

    async def announce(self, entity: str) -> str:
        data = json.dumps({"version": 2, "entity_path": entity}).encode()
        return await self.announce_data(data)

    async def announce_data(self, data: bytes) -> str:
        path = f"{CONFIG_CHANGES_PATH}/config_change_"
        return await self.world.client.create(path, data, mode=CreateMode.PERSISTENT_SEQUENTIAL)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.01)

    def retention(self, topic: str) -> Any:
        return self.topics.values(topic)["retention.ms"]


def following(test: Callable[[Following], Awaitable[None]]) -> None:
    async def main(world: AdminWorld) -> None:
        broker = Following(world)
        try:
            await test(broker)
        finally:
            await broker.dynamic.stop()

    in_world(main)


def test_reads_everything_at_the_start() -> None:
    async def main(broker: Following) -> None:
        await broker.put("topics/a", retention_ms="5")
        await broker.put("topics/b")
        await broker.put("brokers/<default>", log_segment_bytes="100", log_retention_ms="6")
        await broker.put("brokers/1", log_retention_ms="7")
        await broker.put("brokers/2", log_retention_ms="8")
        await broker.announce("topics/a")
        await broker.dynamic.start()
        assert broker.topics.knows("b")
        assert (broker.retention("a"), broker.retention("b")) == (5, 7)
        assert broker.topics.values("a")["segment.bytes"] == 100

    following(main)


def test_hears_of_changes_one_after_another() -> None:
    async def main(broker: Following) -> None:
        await broker.dynamic.start()
        for value in ("5", "6", "7"):
            await broker.put("topics/t", retention_ms=value)
            await broker.announce("topics/t")
            await broker.until(lambda value=value: broker.retention("t") == int(value))  # type: ignore[misc]
        await broker.put("brokers/1", log_retention_ms="9")
        await broker.announce("brokers/1")
        await broker.until(lambda: broker.world.broker_configs.values["log.retention.ms"] == 9)
        await broker.put("brokers/<default>", log_segment_bytes="100")
        await broker.announce("brokers/<default>")
        await broker.until(lambda: broker.world.broker_configs.values["log.segment.bytes"] == 100)

    following(main)


def test_a_start_that_does_not_hear_which_topics_have_configs_fails_instead_of_taking_defaults() -> None:
    async def main(broker: Following) -> None:
        await broker.put("topics/t", retention_ms="5")
        names_of_many = broker.world.client.get_children_names_of_many

        async def broken(paths: Any) -> list[Any]:
            broker.world.client.get_children_names_of_many = names_of_many  # type: ignore[method-assign]
            return [ConnectionLossError(path) for path in paths]

        broker.world.client.get_children_names_of_many = broken  # type: ignore[method-assign]
        with pytest.raises(ConnectionLossError):
            await broker.dynamic.start()
        await broker.dynamic.start()
        assert broker.retention("t") == 5

    following(main)


def test_what_is_announced_is_heard_once() -> None:
    async def main(broker: Following) -> None:
        await broker.dynamic.start()
        await broker.put("topics/t", unclean_leader_election_enable="true")
        await broker.announce("topics/t")
        await broker.until(lambda: broker.unclean == ["t"])
        await broker.put("topics/u", retention_ms="5")
        await broker.announce("topics/u")
        await broker.until(lambda: broker.retention("u") == 5)
        await broker.put("topics/v", unclean_leader_election_enable="false")
        await broker.announce("topics/v")
        await broker.until(lambda: broker.topics.knows("v"))
        assert broker.unclean == ["t"]
        assert broker.told == ["t", "u", "v"]

    following(main)


def test_a_change_without_an_announcement_is_not_heard() -> None:
    async def main(broker: Following) -> None:
        await broker.dynamic.start()
        await broker.put("topics/t", retention_ms="5")
        await asyncio.sleep(30)
        assert not broker.topics.knows("t")

    following(main)


def test_announcements_that_nobody_understands_do_no_harm() -> None:
    async def main(broker: Following) -> None:
        await broker.dynamic.start()
        for data in (b"", b"nonsense", b"[]", b'{"version":9}', b'{"version":2,"entity_path":"topics"}'):
            await broker.announce_data(data)
        await broker.announce_data(b'{"version":2,"entity_path":"users/alice"}')
        await broker.world.client.create(f"{CONFIG_CHANGES_PATH}/something_else", b"")
        await broker.world.client.create(f"{CONFIG_CHANGES_PATH}/config_change_--5", b"")
        await broker.world.client.create("/config/topics/broken", b"{")
        await broker.announce("topics/broken")
        await broker.put("topics/t", retention_ms="5")
        # The form of brokers before 0.10.1.
        await broker.announce_data(b'{"version":1,"entity_type":"topics","entity_name":"t"}')
        await broker.until(lambda: broker.retention("t") == 5)

    following(main)


def test_old_announcements_are_deleted_by_who_sees_them() -> None:
    async def main(broker: Following) -> None:
        old = await broker.announce("topics/t")
        await asyncio.sleep(ANNOUNCEMENT_KEPT_MS / 1000 - 5)
        await broker.dynamic.start()
        middle = await broker.announce("topics/t")
        await asyncio.sleep(1)
        assert await broker.world.client.exists(old) is not None
        await asyncio.sleep(10)
        await broker.announce("topics/t")
        await asyncio.sleep(1)
        assert await broker.world.client.exists(old) is None
        assert await broker.world.client.exists(middle) is not None

    following(main)


def test_a_topic_that_is_new_is_read_ahead() -> None:
    async def main(broker: Following) -> None:
        await broker.dynamic.start()
        await broker.put("topics/t", retention_ms="5")
        await broker.dynamic.prefetch(["t", "nobody"])
        assert broker.retention("t") == 5
        assert broker.topics.knows("nobody")
        # The topic was deleted and made again, without configs of its own.
        await broker.world.client.delete("/config/topics/t")
        await broker.dynamic.prefetch(["t"])
        assert broker.topics.overrides("t") == {}

    following(main)


def test_what_cannot_be_read_ahead_is_read_later() -> None:
    async def main(broker: Following) -> None:
        await broker.dynamic.start()
        await broker.put("topics/t", retention_ms="5")
        get_many = broker.world.client.get_many

        async def broken(paths: Any) -> list[Any]:
            broker.world.client.get_many = get_many  # type: ignore[method-assign]
            raise ConnectionLossError(paths[0])

        broker.world.client.get_many = broken  # type: ignore[method-assign]
        await broker.dynamic.prefetch(["t"])
        assert not broker.topics.knows("t")
        await broker.until(lambda: broker.retention("t") == 5)

    following(main)


def test_a_new_session_reads_everything_again() -> None:
    async def main(broker: Following) -> None:
        await broker.dynamic.start()
        await broker.dynamic.before_new_session()
        # Changed and announced while there was no session, and the announcement is gone already.
        await broker.put("topics/t", retention_ms="5")
        await broker.dynamic.after_new_session()
        await broker.until(lambda: broker.retention("t") == 5)
        await broker.put("topics/t", retention_ms="6")
        await broker.announce("topics/t")
        await broker.until(lambda: broker.retention("t") == 6)

    following(main)


def test_a_connection_that_breaks_while_hearing_is_made_up_for() -> None:
    async def main(broker: Following) -> None:
        await broker.dynamic.start()
        get_many = broker.world.client.get_many
        failures: list[object] = []

        async def broken(paths: Any) -> list[Any]:
            if len(failures) < 3:
                failures.append(paths)
                raise ConnectionLossError(CONFIG_CHANGES_PATH)
            return await get_many(paths)

        broker.world.client.get_many = broken  # type: ignore[method-assign]
        await broker.put("topics/t", retention_ms="5")
        await broker.announce("topics/t")
        await broker.until(lambda: broker.retention("t") == 5)
        assert len(failures) == 3

    following(main)


def test_nothing_is_heard_after_the_end() -> None:
    async def main(broker: Following) -> None:
        await broker.dynamic.start()
        await broker.dynamic.stop()
        await broker.put("topics/t", retention_ms="5")
        await broker.announce("topics/t")
        await asyncio.sleep(30)
        assert not broker.topics.knows("t")

    following(main)


@pytest.mark.parametrize("seed", simulation_seeds(5))
def test_an_expired_session_loses_no_change(seed: int) -> None:
    """A broker sleeps past its session; meanwhile a topic is changed, and the announcement is gone again."""
    lines = Lines()

    async def follow(host: Host) -> None:
        session = session_on(host, lines)
        await session.connect()
        world = AdminWorld(host, cast("Client", session), {1: None}, {})
        broker = Following(world)
        session.add_session_listener(broker.dynamic)
        await broker.dynamic.start()
        first = session.session_id
        await until(lambda: broker.retention("t") == 5)
        await until(lambda: broker.retention("t") == 6)
        assert session.session_id != first
        await until(lambda: broker.retention("t") == 7)
        await broker.dynamic.stop()
        world.timers.close()
        await session.close()

    async def write(host: Host) -> None:
        client = Client(host, ClientSettings(f"{COORDINATOR}:{PORT}"))
        await client.connect()
        for path in PERSISTENT_PATHS:
            await client.ensure_path(path)
        writer = Following(AdminWorld(host, client, {1: None}, {}))
        await pause(2.0)
        await writer.put("topics/t", retention_ms="5")
        await writer.announce("topics/t")
        await pause(4.0)  # the broker sleeps now
        await writer.put("topics/t", retention_ms="6")
        await client.delete(await writer.announce("topics/t"))
        await pause(2.5 * TIMEOUT_MS / 1000)
        await writer.put("topics/t", retention_ms="7")
        await writer.announce("topics/t")
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
    assert "is over (expired); making a new one" in lines


def test_very_many_topics_and_announcements_are_read_some_at_a_time() -> None:
    """In one turn 10,000 topics took 0.2 s, and so did 30,000 announcements, when the session was over."""

    async def main(broker: Following) -> None:
        topics = [f"t{number}" for number in range(1500)]
        creations = [Create(f"/config/topics/{topic}", b'{"config":{"retention.ms":"5"}}') for topic in topics]
        announcement = b'{"version":2,"entity_path":"topics/t0"}'
        path = f"{CONFIG_CHANGES_PATH}/config_change_"
        creations += [Create(path, announcement, mode=CreateMode.PERSISTENT_SEQUENTIAL)] * 1500
        await broker.world.client.submit(creations)
        asked: list[int] = []
        read = broker.world.client.get_many

        async def get_many(paths: Any) -> Any:
            asked.append(len(paths))
            return await read(paths)

        broker.world.client.get_many = get_many  # type: ignore[method-assign]
        await broker.dynamic.start()
        assert all(broker.retention(topic) == 5 for topic in topics)
        assert sum(asked) > 3000
        assert max(asked) <= 1024
        await broker.put("topics/t7", retention_ms="6")
        asked.clear()
        await broker.announce("topics/t7")
        await broker.until(lambda: bool(broker.retention("t7") == 6))
        assert sum(asked) < 10

    following(main)
