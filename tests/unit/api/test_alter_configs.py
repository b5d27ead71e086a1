"""AlterConfigs and IncrementalAlterConfigs through the dispatcher, in every version."""

from __future__ import annotations

import json
from typing import Any

import pytest

from barnabas.api.administration.config_alteration import ConfigOperation
from barnabas.api.administration.logger_levels import LoggerLevels
from barnabas.api.administration.topic_creation import NewTopic
from barnabas.api.alter_configs import AlterConfigsHandler
from barnabas.api.config_resources import ResourceType
from barnabas.api.incremental_alter_configs import IncrementalAlterConfigsHandler
from barnabas.kernel.logs import Logs
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import AlterConfigsRequest, IncrementalAlterConfigsRequest
from tests.unit.api.administration.admin_world import BROKER_ID, AdminWorld, in_world
from tests.unit.api.calling import Caller, Calls
from tests.unit.network.serving import Lines

LOGGER = "kafka.controller.KafkaController"


def caller_of(world: AdminWorld) -> Caller:
    logs = Logs("broker-1", world.host.clock, Lines())
    logs.logger(LOGGER)
    levels = LoggerLevels(logs, BROKER_ID, world.logger)
    return Calls(
        world.host, AlterConfigsHandler(world.alterer), IncrementalAlterConfigsHandler(world.alterer, levels)
    ).connect()


async def with_topic(world: AdminWorld) -> None:
    await world.creator.create([NewTopic("t", configs={"retention.ms": "1", "segment.ms": "2"})])
    world.show({"t": [1]})


def replacing(resource_type: int, name: str, **configs: str | None) -> AlterConfigsRequest.AlterConfigsResource:
    return AlterConfigsRequest.AlterConfigsResource(
        resource_type=resource_type,
        resource_name=name,
        configs=[
            AlterConfigsRequest.AlterableConfig(name=config.replace("_", "."), value=value)
            for config, value in configs.items()
        ],
    )


def changing(
    resource_type: int, name: str, *changes: tuple[str, int, str | None]
) -> IncrementalAlterConfigsRequest.AlterConfigsResource:
    return IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=resource_type,
        resource_name=name,
        configs=[
            IncrementalAlterConfigsRequest.AlterableConfig(name=config, config_operation=operation, value=value)
            for config, operation, value in changes
        ],
    )


def errors(response: Any) -> list[tuple[str, str]]:
    return [(each.resource_name, ErrorCode.for_code(each.error_code).name) for each in response.responses]


async def configs_of(world: AdminWorld, entity: str) -> Any:
    return json.loads(await world.data(f"/config/{entity}") or b"")["config"]


@pytest.mark.parametrize("version", range(3))
def test_all_of_a_topics_configs_are_replaced(version: int) -> None:
    async def main(world: AdminWorld) -> None:
        await with_topic(world)
        request = AlterConfigsRequest(resources=[replacing(ResourceType.TOPIC, "t", flush_ms="3")])
        assert errors(await caller_of(world).call(request, version)) == [("t", "NONE")]
        assert await configs_of(world, "topics/t") == {"flush.ms": "3"}

    in_world(main)


@pytest.mark.parametrize("version", range(2))
def test_single_configs_are_changed(version: int) -> None:
    async def main(world: AdminWorld) -> None:
        await with_topic(world)
        topic = changing(
            ResourceType.TOPIC,
            "t",
            ("retention.ms", ConfigOperation.DELETE, None),
            ("flush.ms", ConfigOperation.SET, "3"),
            ("cleanup.policy", ConfigOperation.APPEND, "compact"),
        )
        everywhere = changing(ResourceType.BROKER, "", ("log.retention.ms", ConfigOperation.SET, "9"))
        here = changing(ResourceType.BROKER, "1", ("log.retention.ms", ConfigOperation.SET, "8"))
        logger = changing(ResourceType.BROKER_LOGGER, "1", (LOGGER, ConfigOperation.SET, "DEBUG"))
        request = IncrementalAlterConfigsRequest(resources=[topic, everywhere, here, logger])
        response = await caller_of(world).call(request, version)
        assert errors(response) == [("t", "NONE"), ("", "NONE"), ("1", "NONE"), ("1", "NONE")]
        assert await configs_of(world, "topics/t") == {
            "segment.ms": "2",
            "flush.ms": "3",
            "cleanup.policy": "delete,compact",
        }
        assert await configs_of(world, "brokers/<default>") == {"log.retention.ms": "9"}
        assert await configs_of(world, "brokers/1") == {"log.retention.ms": "8"}

    in_world(main)


def test_each_resource_has_its_own_outcome() -> None:
    async def main(world: AdminWorld) -> None:
        await with_topic(world)
        request = AlterConfigsRequest(
            resources=[
                replacing(ResourceType.TOPIC, "nobody"),
                replacing(ResourceType.BROKER, "7"),
                replacing(ResourceType.BROKER, "1", log_dirs="/x"),
                replacing(ResourceType.BROKER, ""),
                replacing(ResourceType.BROKER, ""),
                replacing(ResourceType.BROKER_LOGGER, "1"),
                replacing(77, "what"),
                replacing(ResourceType.TOPIC, "t", flush_ms="3"),
            ]
        )
        response = await caller_of(world).call(request, 2)
        assert errors(response) == [
            ("nobody", "UNKNOWN_TOPIC_OR_PARTITION"),
            ("7", "INVALID_REQUEST"),
            ("1", "INVALID_REQUEST"),
            ("", "INVALID_REQUEST"),
            ("", "INVALID_REQUEST"),
            ("1", "INVALID_REQUEST"),
            ("what", "INVALID_REQUEST"),
            ("t", "NONE"),
        ]
        assert response.responses[3].error_message == "Each resource must appear at most once."
        assert await world.children("/config/brokers") == []

    in_world(main)


@pytest.mark.parametrize(
    "changes",
    [
        [("flush.ms", ConfigOperation.SET, "1"), ("flush.ms", ConfigOperation.DELETE, None)],
        [("flush.ms", ConfigOperation.SET, None)],
        [("flush.ms", 4, "1")],
        [("flush.ms", -1, "1")],
    ],
)
def test_changes_that_make_no_sense_are_refused(changes: list[tuple[str, int, str | None]]) -> None:
    async def main(world: AdminWorld) -> None:
        await with_topic(world)
        request = IncrementalAlterConfigsRequest(resources=[changing(ResourceType.TOPIC, "t", *changes)])
        assert errors(await caller_of(world).call(request, 1)) == [("t", "INVALID_REQUEST")]
        assert await configs_of(world, "topics/t") == {"retention.ms": "1", "segment.ms": "2"}

    in_world(main)


def test_an_edit_that_no_topic_could_have_is_told_before_the_topic_is_missed() -> None:
    async def main(world: AdminWorld) -> None:
        request = IncrementalAlterConfigsRequest(
            resources=[
                changing(ResourceType.TOPIC, "nobody", ("flush.ms", ConfigOperation.APPEND, "1")),
                changing(ResourceType.TOPIC, "nobody2", ("flush.ms", ConfigOperation.SET, "soon")),
            ]
        )
        response = await caller_of(world).call(request, 1)
        assert errors(response) == [("nobody", "INVALID_CONFIG"), ("nobody2", "UNKNOWN_TOPIC_OR_PARTITION")]

    in_world(main)


def test_null_is_no_value_and_no_config_comes_twice() -> None:
    async def main(world: AdminWorld) -> None:
        await with_topic(world)
        twice = replacing(ResourceType.TOPIC, "t", flush_ms="3")
        twice.configs *= 2
        for resource in (replacing(ResourceType.TOPIC, "t", flush_ms=None), twice):
            request = AlterConfigsRequest(resources=[resource])
            assert errors(await caller_of(world).call(request, 2)) == [("t", "INVALID_REQUEST")]

    in_world(main)


def test_client_metrics_are_not_there_in_zookeeper_mode() -> None:
    async def main(world: AdminWorld) -> None:
        resource = changing(ResourceType.CLIENT_METRICS, "m", ("interval.ms", ConfigOperation.SET, "1"))
        request = IncrementalAlterConfigsRequest(resources=[resource, changing(99, "x")])
        assert errors(await caller_of(world).call(request, 1)) == [("m", "INVALID_REQUEST"), ("x", "INVALID_REQUEST")]

    in_world(main)


def test_validate_only_changes_nothing() -> None:
    async def main(world: AdminWorld) -> None:
        await with_topic(world)
        request = AlterConfigsRequest(
            resources=[replacing(ResourceType.TOPIC, "t", flush_ms="3"), replacing(ResourceType.BROKER, "")],
            validate_only=True,
        )
        assert errors(await caller_of(world).call(request, 2)) == [("t", "NONE"), ("", "NONE")]
        assert await configs_of(world, "topics/t") == {"retention.ms": "1", "segment.ms": "2"}

    in_world(main)
