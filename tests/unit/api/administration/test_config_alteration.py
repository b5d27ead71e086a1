"""Dynamic configs as znodes: written, announced, refused, beside a real coordinator in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from barnabas.api.administration.config_alteration import ConfigEdit, ConfigOperation, Edit, Keys, edited
from barnabas.api.administration.topic_creation import NewTopic
from barnabas.config.broker_config import BrokerConfig
from barnabas.config.key_table import broker_keys, topic_keys
from barnabas.coordination.errors import ConnectionLossError
from barnabas.coordination.layout.configs import CONFIG_CHANGES_PATH
from barnabas.coordination.layout.controller import CONTROLLER_PATH
from barnabas.coordination.operations import Multi
from barnabas.wire.errors import KafkaError
from tests.unit.api.administration.admin_world import AdminWorld, in_world


def replace(**configs: str) -> Edit:
    return lambda _existing, _keys: {name.replace("_", "."): value for name, value in configs.items()}


def change(name: str, operation: ConfigOperation, value: str | None) -> Edit:
    def edit(existing: Mapping[str, str], keys: Keys) -> dict[str, str]:
        return edited([ConfigEdit(name, operation, value)], existing, keys)

    return edit


async def world_with_topic(world: AdminWorld) -> None:
    await world.creator.create([NewTopic("t", configs={"retention.ms": "1"})])
    world.show({"t": [1]})


async def configs_of(world: AdminWorld, entity: str) -> Any:
    return json.loads(await world.data(f"/config/{entity}") or b"")["config"]


def test_a_topics_configs_are_written_and_announced_together() -> None:
    async def main(world: AdminWorld) -> None:
        await world_with_topic(world)
        await world.alterer.alter_topic("t", replace(segment_ms="7"), validate_only=False)
        assert await configs_of(world, "topics/t") == {"segment.ms": "7"}
        assert await world.children(CONFIG_CHANGES_PATH) == ["config_change_0000000000"]
        announcement, stat = await world.client.get_data(f"{CONFIG_CHANGES_PATH}/config_change_0000000000")
        assert json.loads(announcement or b"") == {"version": 2, "entity_path": "topics/t"}
        assert stat.czxid == (await world.client.get_data("/config/topics/t")).stat.mzxid

    in_world(main)


def test_configs_of_brokers_go_to_znodes_of_their_own() -> None:
    async def main(world: AdminWorld) -> None:
        await world.alterer.alter_broker("1", replace(log_retention_ms="5"), validate_only=False)
        await world.alterer.alter_broker("", replace(log_segment_bytes="1000"), validate_only=False)
        assert await configs_of(world, "brokers/1") == {"log.retention.ms": "5"}
        assert await configs_of(world, "brokers/<default>") == {"log.segment.bytes": "1000"}
        announced = [
            json.loads(await world.data(f"{CONFIG_CHANGES_PATH}/{name}") or b"")["entity_path"]
            for name in await world.children(CONFIG_CHANGES_PATH)
        ]
        assert announced == ["brokers/1", "brokers/<default>"]

    in_world(main)


TOPIC_REFUSALS: list[tuple[str, Edit, str]] = [
    ("", replace(), "INVALID_REQUEST"),
    ("bad name", replace(), "UNKNOWN_TOPIC_OR_PARTITION"),
    ("nobody", replace(), "UNKNOWN_TOPIC_OR_PARTITION"),
    ("only-in-metadata", replace(), "UNKNOWN_TOPIC_OR_PARTITION"),
    ("t", replace(retention_ms="soon"), "INVALID_CONFIG"),
    ("t", replace(retention_msec="1"), "INVALID_CONFIG"),
    ("t", replace(min_compaction_lag_ms="9", max_compaction_lag_ms="8"), "INVALID_CONFIG"),
    ("t", change("retention.ms", ConfigOperation.APPEND, "1"), "INVALID_CONFIG"),
    ("t", change("nobody.knows", ConfigOperation.SUBTRACT, "1"), "INVALID_CONFIG"),
]
BROKER_REFUSALS: list[tuple[str, Edit, str]] = [
    ("2", replace(), "INVALID_REQUEST"),
    ("one", replace(), "INVALID_REQUEST"),
    ("1", replace(log_dirs="/x"), "INVALID_REQUEST"),
    ("1", replace(log_retention_ms="soon"), "INVALID_REQUEST"),
    ("", replace(listeners="PLAINTEXT://:1"), "INVALID_REQUEST"),
    ("1", replace(leader_replication_throttled_rate="-1"), "INVALID_REQUEST"),
    ("1", lambda _existing, _keys: {"listener.name.external.ssl.key.password": "x"}, "INVALID_CONFIG"),
]


def test_what_cannot_be_is_refused_and_nothing_is_written() -> None:
    async def main(world: AdminWorld) -> None:
        await world_with_topic(world)
        world.show({"only-in-metadata": [1]})
        for name, edit, code in TOPIC_REFUSALS:
            with pytest.raises(KafkaError) as refusal:
                await world.alterer.alter_topic(name, edit, validate_only=False)
            assert refusal.value.code.name == code, name
        for name, edit, code in BROKER_REFUSALS:
            with pytest.raises(KafkaError) as refusal:
                await world.alterer.alter_broker(name, edit, validate_only=False)
            assert refusal.value.code.name == code, name
        assert await configs_of(world, "topics/t") == {"retention.ms": "1"}
        assert await world.children("/config/brokers") == []
        assert await world.children(CONFIG_CHANGES_PATH) == []

    in_world(main)


def test_validate_only_writes_nothing() -> None:
    async def main(world: AdminWorld) -> None:
        await world_with_topic(world)
        await world.alterer.alter_topic("t", replace(segment_ms="7"), validate_only=True)
        await world.alterer.alter_broker("1", replace(log_retention_ms="7"), validate_only=True)
        with pytest.raises(KafkaError):
            await world.alterer.alter_topic("t", replace(segment_ms="x"), validate_only=True)
        assert await configs_of(world, "topics/t") == {"retention.ms": "1"}
        assert await world.children(CONFIG_CHANGES_PATH) == []

    in_world(main)


def test_two_changes_at_once_are_both_kept() -> None:
    async def main(world: AdminWorld) -> None:
        await world_with_topic(world)
        await asyncio.gather(
            *(
                world.alterer.alter_topic("t", change(name, ConfigOperation.SET, value), validate_only=False)
                for name, value in (("segment.ms", "7"), ("flush.ms", "8"), ("index.interval.bytes", "9"))
            )
        )
        assert await configs_of(world, "topics/t") == {
            "retention.ms": "1",
            "segment.ms": "7",
            "flush.ms": "8",
            "index.interval.bytes": "9",
        }
        assert len(await world.children(CONFIG_CHANGES_PATH)) == 3

    in_world(main)


class SlowFollower:
    """Looks at one configuration at a time, for half a second, as at trust stores of many authorities."""

    def __init__(self, world: AdminWorld) -> None:
        self._world = world
        self._one_at_a_time = asyncio.Lock()
        self.checked = 0

    async def check(self, config: BrokerConfig) -> None:
        async with self._one_at_a_time:
            self.checked += 1
            await self._world.timers.sleep(500)
            if config.values["log.retention.ms"] == 13:
                raise ValueError("such a store there is not")

    def take(self, config: BrokerConfig) -> None: ...


def test_many_changes_at_once_are_all_kept_though_each_is_looked_at_for_long() -> None:
    async def main(world: AdminWorld) -> None:
        follower = SlowFollower(world)
        world.broker_configs.follow_whole(follower)
        names: tuple[str, ...] = (
            "retention.ms",
            "segment.bytes",
            "flush.interval.ms",
            "roll.ms",
            "index.interval.bytes",
        )
        names += ("index.size.max.bytes", "segment.delete.delay.ms", "message.timestamp.before.max.ms")
        wanted = {f"log.{name}": str(10_000_000 + number) for number, name in enumerate(names)}
        edits = [change(name, ConfigOperation.SET, value) for name, value in wanted.items()]
        await asyncio.gather(*(world.alterer.alter_broker("1", edit, validate_only=False) for edit in edits))
        assert await configs_of(world, "brokers/1") == wanted
        assert follower.checked == len(edits), "who is behind another is not looked at again and again"

    in_world(main)


def test_what_is_looked_at_for_long_holds_no_topics_configs_up_and_whoever_is_refused_nobody_else() -> None:
    async def main(world: AdminWorld) -> None:
        await world_with_topic(world)
        world.broker_configs.follow_whole(SlowFollower(world))
        refused = asyncio.ensure_future(
            world.alterer.alter_broker("1", replace(log_retention_ms="13"), validate_only=False)
        )
        given_up = asyncio.ensure_future(
            world.alterer.alter_broker("", replace(log_retention_ms="7"), validate_only=False)
        )
        last = asyncio.ensure_future(world.alterer.alter_broker("1", replace(log_roll_ms="9"), validate_only=False))
        await world.alterer.alter_topic("t", replace(segment_ms="7"), validate_only=False)
        assert not refused.done()
        given_up.cancel()
        with pytest.raises(KafkaError, match="such a store there is not"):
            await refused
        await last
        assert await configs_of(world, "brokers/1") == {"log.roll.ms": "9"}

    in_world(main)


def test_a_lost_answer_is_tried_again() -> None:
    async def main(world: AdminWorld) -> None:
        await world_with_topic(world)
        submit = world.client.submit
        lost: list[object] = []

        async def losing(operations: Any) -> list[Any]:
            outcomes = await submit(operations)
            if not lost and any(isinstance(operation, Multi) for operation in operations):
                lost.append(True)
                return [ConnectionLossError("/config/topics/t")]
            return outcomes

        world.client.submit = losing  # type: ignore[method-assign]
        edit = change("cleanup.policy", ConfigOperation.APPEND, "compact")
        await world.alterer.alter_topic("t", edit, validate_only=False)
        assert lost
        assert (await configs_of(world, "topics/t"))["cleanup.policy"] == "delete,compact"

    in_world(main)


def test_without_a_controller_nothing_is_written() -> None:
    async def main(world: AdminWorld) -> None:
        await world_with_topic(world)
        await world.client.delete(CONTROLLER_PATH)
        with pytest.raises(KafkaError) as refusal:
            await world.alterer.alter_topic("t", replace(segment_ms="7"), validate_only=False)
        assert refusal.value.code.name == "NOT_CONTROLLER"
        assert await configs_of(world, "topics/t") == {"retention.ms": "1"}

    in_world(main)


def test_any_broker_may_change_configs() -> None:
    async def main(world: AdminWorld) -> None:
        await world_with_topic(world)
        await world.become_controller(2)
        await world.alterer.alter_topic("t", replace(segment_ms="7"), validate_only=False)
        assert await configs_of(world, "topics/t") == {"segment.ms": "7"}

    in_world(main)


def test_secrets_are_not_logged() -> None:
    async def main(world: AdminWorld) -> None:
        await world.alterer.alter_broker(
            "1", lambda _existing, _keys: {"nobody.knows": "hunter2", "log.retention.ms": "5"}, validate_only=False
        )
        assert not any("hunter2" in line for line in world.lines.lines)
        assert any("log.retention.ms=5" in line for line in world.lines.lines)

    in_world(main)


@pytest.mark.parametrize(
    ("operation", "value", "before", "after"),
    [
        (ConfigOperation.SET, "a", {}, {"cleanup.policy": "a"}),
        (ConfigOperation.DELETE, None, {"cleanup.policy": "compact", "x": "y"}, {"x": "y"}),
        (ConfigOperation.DELETE, None, {}, {}),
        (ConfigOperation.APPEND, "compact", {}, {"cleanup.policy": "delete,compact"}),
        (ConfigOperation.APPEND, "compact", {"cleanup.policy": "compact"}, {"cleanup.policy": "compact"}),
        (ConfigOperation.APPEND, "compact,delete", {"cleanup.policy": ""}, {"cleanup.policy": "compact,delete"}),
        (ConfigOperation.SUBTRACT, "delete", {"cleanup.policy": "compact,delete"}, {"cleanup.policy": "compact"}),
        (ConfigOperation.SUBTRACT, "compact", {}, {"cleanup.policy": "delete"}),
    ],
)
def test_single_changes(
    operation: ConfigOperation, value: str | None, before: dict[str, str], after: dict[str, str]
) -> None:
    assert edited([ConfigEdit("cleanup.policy", operation, value)], before, topic_keys()) == after


def test_only_lists_can_be_appended_to() -> None:
    for name in ("num.partitions", "nobody.knows"):
        with pytest.raises(KafkaError, match="INVALID_CONFIG"):
            edited([ConfigEdit(name, ConfigOperation.APPEND, "1")], {}, broker_keys())
