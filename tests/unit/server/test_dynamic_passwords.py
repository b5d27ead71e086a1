"""Passwords in a broker's dynamic configs: encrypted in ZooKeeper, beside a real coordinator in virtual time."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.api.administration.config_alteration import ConfigEdit, ConfigOperation, Edit, Keys, edited
from barnabas.api.alter_configs import AlterConfigsHandler
from barnabas.config.describing import describe_broker
from barnabas.coordination.errors import ConnectionLossError
from barnabas.coordination.layout.configs import CONFIG_CHANGES_PATH
from barnabas.coordination.operations import Multi
from barnabas.wire.errors import KafkaError
from barnabas.wire.messages import AlterConfigsRequest
from tests.unit.api.administration.admin_world import AdminWorld, in_world
from tests.unit.server.test_dynamic_configs import Following

KEY = "listener.name.external.ssl.key.password"
STORE = "listener.name.external.ssl.keystore.password"
SECRET = {"password.encoder.secret": "of the castle", "password.encoder.iterations": "1024"}
AFTER = {"password.encoder.secret": "second", "password.encoder.old.secret": "of the castle"}
PATH = "/config/brokers/1"


def setting(**values: str | None) -> Edit:
    """An incremental change; None deletes."""
    named = {"key": KEY, "store": STORE, "retention": "log.retention.ms"}
    edits = [
        ConfigEdit(named[name], ConfigOperation.SET if value is not None else ConfigOperation.DELETE, value)
        for name, value in values.items()
    ]

    def edit(existing: Mapping[str, str], keys: Keys) -> dict[str, str]:
        return edited(edits, existing, keys)

    return edit


async def written(world: AdminWorld) -> dict[str, str]:
    configs: dict[str, str] = json.loads(await world.data(PATH) or b"{}").get("config", {})
    return configs


async def put(world: AdminWorld, configs: Mapping[str, str], **more: Any) -> None:
    """As somebody else writes them."""
    data = json.dumps({"version": 1, "config": dict(configs), **more}).encode()
    await world.client.ensure_path(PATH)
    await world.client.set_data(PATH, data)


async def encoded(world: AdminWorld, **clear: str) -> dict[str, str]:
    """As they would stand in ZooKeeper, of a broker with `SECRET`."""
    other = AdminWorld(world.host, world.client, {}, SECRET)
    texts = setting(**clear)({}, {})
    return await other.passwords.encoded(texts, await other.passwords.opened({}))


def in_broker(test: Callable[[AdminWorld], Awaitable[None]], static: Mapping[str, str] = SECRET) -> None:
    in_world(test, static=static)


def values(world: AdminWorld) -> dict[str, str]:
    """What holds of passwords, in the clear."""
    found = world.broker_configs.config.listener_values
    return {name: found[name].reveal() for name in (KEY, STORE) if name in found}


def test_a_password_is_written_encrypted_taken_in_the_clear_and_shown_by_nothing() -> None:
    async def main(world: AdminWorld) -> None:
        await world.alterer.alter_broker("1", setting(key="hunter2", retention="5"), validate_only=False)
        stored = await written(world)
        assert stored["log.retention.ms"] == "5"
        assert stored[KEY].startswith("keyFactoryAlgorithm:PBKDF2WithHmacSHA512,")
        broker = Following(world)
        await broker.dynamic.start()
        assert values(world) == {KEY: "hunter2"}
        configs = world.broker_configs
        described = {each.name: each for each in describe_broker(configs.config, configs.layers)}
        assert (described[KEY].value, described[KEY].sensitive) == (None, True)
        assert [synonym.value for synonym in described[KEY].synonyms] == [None]
        everything = [*world.lines.lines, repr(configs.config), repr(configs.layers), *map(repr, described.values())]
        for secret in ("hunter2", "of the castle"):
            assert not any(secret in text for text in everything)
        await broker.dynamic.stop()

    in_broker(main)


def test_without_a_secret_a_password_is_refused_and_nothing_is_written() -> None:
    async def main(world: AdminWorld) -> None:
        for validate_only in (True, False):
            with pytest.raises(KafkaError) as refused:
                await world.alterer.alter_broker("1", setting(key="x"), validate_only=validate_only)
            assert refused.value.code.name == "INVALID_CONFIG"
            assert str(refused.value.message).startswith(
                "Invalid config value for resource ConfigResource(type=BROKER, name='1'):"
                " Password encoder secret not configured"
            )
        assert await world.client.exists(PATH) is None
        await world.alterer.alter_broker("1", setting(retention="5"), validate_only=False)

    in_broker(main, {})


def test_passwords_are_refused_for_all_brokers_at_once() -> None:
    async def main(world: AdminWorld) -> None:
        for name, code in ((KEY, "INVALID_REQUEST"), ("nobody.knows.ssl.key.password", "INVALID_CONFIG")):
            with pytest.raises(KafkaError) as refused:
                await world.alterer.alter_broker("", lambda *_, name=name: {name: "x"}, validate_only=False)
            assert refused.value.code.name == code
        assert await world.children("/config/brokers") == []

    in_broker(main)


def test_a_password_that_somebody_has_set_for_all_brokers_is_no_hindrance_to_other_changes() -> None:
    async def main(world: AdminWorld) -> None:
        theirs = {"nobody.knows.ssl.key.password": "x"}
        path = "/config/brokers/<default>"
        await world.client.ensure_path(path)
        await world.client.set_data(path, json.dumps({"version": 1, "config": theirs}).encode())
        await world.alterer.alter_broker("", setting(retention="5"), validate_only=False)
        found = json.loads(await world.data(path) or b"")
        assert found["config"] == {**theirs, "log.retention.ms": "5"}

    in_broker(main)


def test_what_is_only_validated_is_not_written() -> None:
    async def main(world: AdminWorld) -> None:
        await world.alterer.alter_broker("1", setting(key="x"), validate_only=True)
        assert await world.client.exists(PATH) is None

    in_broker(main)


def test_other_changes_leave_passwords_as_they_are_encoded() -> None:
    async def main(world: AdminWorld) -> None:
        await world.alterer.alter_broker("1", setting(key="hunter2", store="swordfish"), validate_only=False)
        before = await written(world)
        await world.alterer.alter_broker("1", setting(retention="5", store="other"), validate_only=False)
        after = await written(world)
        assert after[KEY] == before[KEY]
        assert after[STORE] != before[STORE]
        await world.alterer.alter_broker("1", setting(key=None), validate_only=False)
        assert await written(world) == {"log.retention.ms": "5", STORE: after[STORE]}

    in_broker(main)


@pytest.mark.parametrize("static", [{}, {"password.encoder.secret": "mistyped"}], ids=["without", "another"])
def test_with_the_wrong_secret_a_broker_says_so_and_loses_nothing(static: dict[str, str]) -> None:
    async def main(world: AdminWorld) -> None:
        theirs = await encoded(world, key="hunter2", store="swordfish")
        await put(world, {**theirs, "log.retention.ms": "5"})
        broker = Following(world)
        await broker.dynamic.start()
        assert world.broker_configs.values["log.retention.ms"] == 5
        assert values(world) == {}
        for name in (KEY, STORE):
            assert any(
                line.startswith(f"ERROR Dynamic password config {name} could not be decoded, ignoring:")
                for line in world.lines.lines
            )
        await world.alterer.alter_broker("1", setting(retention="6"), validate_only=False)
        assert await written(world) == {**theirs, "log.retention.ms": "6"}
        # Nor by the older request, which replaces what its sender can see.
        resource = AlterConfigsRequest.AlterConfigsResource(
            resource_type=4,
            resource_name="1",
            configs=[AlterConfigsRequest.AlterableConfig(name="log.retention.ms", value="7")],
        )
        access: Any = SimpleNamespace(check=lambda _resource: None)
        await AlterConfigsHandler(world.alterer)._alter(resource, access, validate_only=False)
        assert await written(world) == {**theirs, "log.retention.ms": "7"}
        await world.alterer.alter_broker("1", setting(key=None), validate_only=False)
        assert await written(world) == {STORE: theirs[STORE], "log.retention.ms": "7"}
        await broker.dynamic.stop()

    in_broker(main, static)


@pytest.mark.parametrize("garbage", ["hunter2", "", "a:b", "keyFactoryAlgorithm:PBKDF2WithHmacSHA512," * 20_000])
def test_garbage_in_the_znode_keeps_nothing_else_back(garbage: str) -> None:
    async def main(world: AdminWorld) -> None:
        theirs = await encoded(world, key="swordfish")
        await put(world, {STORE: garbage, **theirs, "log.retention.ms": "5"}, of_a_later_kafka=1)
        broker = Following(world)
        await broker.dynamic.start()
        assert values(world) == {KEY: "swordfish"}
        assert not any("hunter2" in line for line in world.lines.lines)
        await world.alterer.alter_broker("1", setting(retention="6"), validate_only=False)
        assert await written(world) == {STORE: garbage, **theirs, "log.retention.ms": "6"}
        assert json.loads(await world.data(PATH) or b"")["of_a_later_kafka"] == 1
        await broker.dynamic.stop()

    in_broker(main)


def test_a_znode_that_is_no_json_is_left_and_not_quoted() -> None:
    async def main(world: AdminWorld) -> None:
        for data in (b"hunter2", b'{"version":1,"config":{"x":["hunter2"]}}', b'{"config":"hunter2"}'):
            await world.client.ensure_path(PATH)
            await world.client.set_data(PATH, data)
            broker = Following(world)
            await broker.dynamic.start()
            with pytest.raises(KafkaError) as refused:
                await world.alterer.alter_broker("1", setting(key="x"), validate_only=False)
            assert "hunter2" not in str(refused.value)
            assert await world.data(PATH) == data
            await broker.dynamic.stop()
        assert not any("hunter2" in line for line in world.lines.lines)

    in_broker(main)


def test_the_old_secrets_passwords_are_encoded_anew_at_the_start_and_announced() -> None:
    async def main(world: AdminWorld) -> None:
        theirs = await encoded(world, key="hunter2")
        await put(world, {**theirs, "log.retention.ms": "5", STORE: "garbage"}, of_a_later_kafka=1)
        broker = Following(world)
        await broker.dynamic.start()
        assert values(world) == {KEY: "hunter2"}
        after = await written(world)
        assert after[KEY] != theirs[KEY]
        assert (after["log.retention.ms"], after[STORE]) == ("5", "garbage")
        assert json.loads(await world.data(PATH) or b"")["of_a_later_kafka"] == 1
        assert len(await world.children(CONFIG_CHANGES_PATH)) == 1
        await broker.dynamic.stop()
        # Another start, without the old one: nothing is left to do.
        second = AdminWorld(world.host, world.client, {}, {"password.encoder.secret": "second"})
        broker = Following(second)
        await broker.dynamic.start()
        assert values(second) == {KEY: "hunter2"}
        assert await written(world) == after
        await broker.dynamic.stop()

    in_broker(main, AFTER)


def test_a_start_goes_on_though_nothing_can_be_encoded_anew() -> None:
    async def main(world: AdminWorld) -> None:
        theirs = await encoded(world, key="hunter2")
        await put(world, theirs)
        submit = world.client.submit

        async def broken(operations: Any) -> Any:
            if any(isinstance(operation, Multi) for operation in operations):
                return [ConnectionLossError("gone")]
            return await submit(operations)

        world.client.submit = broken  # type: ignore[method-assign]
        broker = Following(world)
        await broker.dynamic.start()
        assert values(world) == {KEY: "hunter2"}
        assert await written(world) == theirs
        assert any("cannot be encoded anew now" in line for line in world.lines.lines)
        await broker.dynamic.stop()

    in_broker(main, AFTER)


def test_a_change_by_another_meanwhile_is_not_overwritten() -> None:
    async def main(world: AdminWorld) -> None:
        theirs = await encoded(world, key="hunter2")
        await put(world, theirs)
        opened = world.passwords.encoded

        async def overtaken(*arguments: Any) -> Any:
            await put(world, {"log.retention.ms": "5"})
            return await opened(*arguments)

        world.passwords.encoded = overtaken  # type: ignore[assignment, method-assign]
        broker = Following(world)
        await broker.dynamic.start()
        assert await written(world) == {"log.retention.ms": "5"}
        assert await world.children(CONFIG_CHANGES_PATH) == []
        await broker.dynamic.stop()

    in_broker(main, AFTER)


def test_many_changes_keep_the_last_value_alone_and_one_that_no_znode_has_room_for() -> None:
    async def main(world: AdminWorld) -> None:
        broker = Following(world)
        await broker.dynamic.start()
        for number in range(30):
            await world.alterer.alter_broker("1", setting(key=f"hunter{number}"), validate_only=False)
        with pytest.raises(KafkaError, match="do not fit into one znode") as refused:
            await world.alterer.alter_broker("1", setting(store="x" * 2**20), validate_only=False)
        assert refused.value.code.name == "INVALID_REQUEST"
        await world.alterer.alter_broker("1", setting(store="x" * 500_000), validate_only=False)
        await broker.until(lambda: values(world) == {KEY: "hunter29", STORE: "x" * 500_000})
        assert len(world.passwords._known) == 2
        await broker.dynamic.stop()

    in_broker(main)
