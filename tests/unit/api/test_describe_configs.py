"""DescribeConfigs through the dispatcher, in every version."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.api.administration.logger_levels import LoggerLevels
from barnabas.api.administration.topic_creation import NewTopic
from barnabas.api.config_resources import ResourceType
from barnabas.api.describe_configs import DescribeConfigsHandler
from barnabas.config.key_table import broker_keys, topic_keys
from barnabas.config.sources import ConfigSource
from barnabas.kernel.logs import Logs
from barnabas.security.acl_rules import AclRules
from barnabas.security.authorizer import Authorizer
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import DescribeConfigsRequest
from tests.unit.api.administration.admin_world import BROKER_ID, AdminWorld, in_world
from tests.unit.api.calling import Caller, Calls
from tests.unit.network.serving import Lines

Resource = DescribeConfigsRequest.DescribeConfigsResource
LATEST = 4


def caller_of(world: AdminWorld) -> Caller:
    levels = LoggerLevels(Logs("broker-1", world.host.clock, Lines()), BROKER_ID, world.logger)
    handler = DescribeConfigsHandler(world.client, world.metadata, world.broker_configs, levels, world.logger)
    return Calls(world.host, handler).connect()


async def described(
    world: AdminWorld, resource: Resource, version: int = LATEST, *, with_everything: bool = False
) -> Any:
    request = DescribeConfigsRequest(
        resources=[resource],
        include_synonyms=with_everything and version >= 1,
        include_documentation=with_everything and version >= 3,
    )
    (result,) = (await caller_of(world).call(request, version)).results
    assert (result.resource_type, result.resource_name) == (resource.resource_type, resource.resource_name)
    return result


def of(resource_type: int, name: str, keys: list[str] | None = None) -> Resource:
    return Resource(resource_type=resource_type, resource_name=name, configuration_keys=keys)


async def with_topic(world: AdminWorld) -> None:
    await world.creator.create([NewTopic("t", configs={"retention.ms": "5"})])
    world.show({"t": [1]})


@pytest.mark.parametrize("version", range(LATEST + 1))
def test_all_configs_of_a_topic_are_told_in_every_version(version: int) -> None:
    async def main(world: AdminWorld) -> None:
        await with_topic(world)
        result = await described(world, of(ResourceType.TOPIC, "t"), version, with_everything=True)
        assert result.error_code == 0
        by_name = {entry.name: entry for entry in result.configs}
        assert set(by_name) == set(topic_keys())
        retention = by_name["retention.ms"]
        assert (retention.value, retention.read_only, retention.is_sensitive) == ("5", False, False)
        if version == 0:
            assert (retention.is_default, by_name["segment.bytes"].is_default) == (False, True)
        else:
            assert retention.config_source == ConfigSource.DYNAMIC_TOPIC
            assert [each.source for each in retention.synonyms] == [ConfigSource.DYNAMIC_TOPIC]
            assert [(each.name, each.value, each.source) for each in by_name["segment.bytes"].synonyms] == [
                ("log.segment.bytes", "1073741824", ConfigSource.DEFAULT)
            ]
        if version >= 3:
            assert (retention.config_type, bool(retention.documentation)) == (5, True)

    in_world(main)


def test_synonyms_and_documentation_come_when_they_are_asked_for() -> None:
    async def main(world: AdminWorld) -> None:
        await with_topic(world)
        result = await described(world, of(ResourceType.TOPIC, "t", ["retention.ms"]))
        (entry,) = result.configs
        assert (entry.synonyms, entry.documentation) == ([], None)

    in_world(main)


def test_a_topics_configs_are_read_where_they_are_written() -> None:
    """Another broker may have changed them a moment ago."""

    async def main(world: AdminWorld) -> None:
        await with_topic(world)
        await world.client.set_data("/config/topics/t", b'{"version":1,"config":{"retention.ms":"6"}}')
        result = await described(world, of(ResourceType.TOPIC, "t", ["retention.ms"]))
        assert [entry.value for entry in result.configs] == ["6"]
        await world.client.delete("/config/topics/t")
        result = await described(world, of(ResourceType.TOPIC, "t", ["retention.ms"]))
        assert [entry.value for entry in result.configs] == ["604800000"]

    in_world(main)


def test_nothing_is_read_for_who_may_not_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(world: AdminWorld) -> None:
        await with_topic(world)
        read: list[Any] = []
        monkeypatch.setattr(world.client, "get_many", read.append)
        levels = LoggerLevels(Logs("broker-1", world.host.clock, Lines()), BROKER_ID, world.logger)
        calls = Calls(
            world.host,
            DescribeConfigsHandler(world.client, world.metadata, world.broker_configs, levels, world.logger),
        )
        calls.dispatcher.authorizer = Authorizer(AclRules(), world.logger)
        request = DescribeConfigsRequest(resources=[of(ResourceType.TOPIC, "t")])
        (result,) = (await calls.connect().call(request, LATEST)).results
        assert result.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert not read

    in_world(main)


@pytest.mark.parametrize("version", range(LATEST + 1))
def test_all_configs_of_the_broker_are_told(version: int) -> None:
    async def main(world: AdminWorld) -> None:
        world.broker_configs.set_cluster_default({"log.retention.ms": "9"})
        world.broker_configs.set_broker({"log.segment.bytes": "100"})
        result = await described(world, of(ResourceType.BROKER, "1"), version)
        by_name = {entry.name: entry for entry in result.configs}
        assert set(by_name) >= {name for name, key in broker_keys().items() if not key.internal}
        assert (by_name["log.retention.ms"].value, by_name["log.segment.bytes"].value) == ("9", "100")
        assert by_name["broker.id"].read_only
        assert not by_name["log.segment.bytes"].read_only
        if version >= 1:
            assert by_name["log.retention.ms"].config_source == ConfigSource.DYNAMIC_DEFAULT_BROKER
            assert by_name["log.segment.bytes"].config_source == ConfigSource.DYNAMIC_BROKER
            assert by_name["broker.id"].config_source == ConfigSource.STATIC_BROKER

    in_world(main)


def test_the_broker_without_name_is_what_is_set_for_all() -> None:
    async def main(world: AdminWorld) -> None:
        assert (await described(world, of(ResourceType.BROKER, ""))).configs == []
        world.broker_configs.set_cluster_default({"log.retention.ms": "9"})
        world.broker_configs.set_broker({"log.retention.ms": "8"})
        (entry,) = (await described(world, of(ResourceType.BROKER, ""))).configs
        assert (entry.name, entry.value) == ("log.retention.ms", "9")

    in_world(main)


def test_levels_of_loggers_are_told() -> None:
    async def main(world: AdminWorld) -> None:
        (entry,) = (await described(world, of(ResourceType.BROKER_LOGGER, "1", ["root"]))).configs
        assert (entry.value, entry.config_source) == ("INFO", ConfigSource.DYNAMIC_BROKER_LOGGER)

    in_world(main)


@pytest.mark.parametrize(
    ("resource", "code"),
    [
        (of(ResourceType.TOPIC, "nobody"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (of(ResourceType.TOPIC, "bad name"), "INVALID_TOPIC_EXCEPTION"),
        (of(ResourceType.TOPIC, ""), "INVALID_TOPIC_EXCEPTION"),
        (of(ResourceType.BROKER, "2"), "INVALID_REQUEST"),
        (of(ResourceType.BROKER, "one"), "INVALID_REQUEST"),
        (of(ResourceType.BROKER_LOGGER, ""), "INVALID_REQUEST"),
        (of(ResourceType.BROKER_LOGGER, "2"), "INVALID_REQUEST"),
        (of(ResourceType.CLIENT_METRICS, "m"), "INVALID_REQUEST"),
        (of(77, "what"), "INVALID_REQUEST"),
    ],
)
def test_what_is_not_there_is_said(resource: Resource, code: str) -> None:
    async def main(world: AdminWorld) -> None:
        result = await described(world, resource)
        assert ErrorCode.for_code(result.error_code).name == code
        assert result.configs == []

    in_world(main)


def test_an_unreadable_znode_fails_its_topic_alone() -> None:
    async def main(world: AdminWorld) -> None:
        await with_topic(world)
        await world.creator.create([NewTopic("broken")])
        world.show({"broken": [1]})
        await world.client.set_data("/config/topics/broken", b"{")
        request = DescribeConfigsRequest(resources=[of(ResourceType.TOPIC, "broken"), of(ResourceType.TOPIC, "t")])
        response = await caller_of(world).call(request, LATEST)
        assert [result.error_code for result in response.results] == [ErrorCode.INVALID_CONFIG, 0]

    in_world(main)
