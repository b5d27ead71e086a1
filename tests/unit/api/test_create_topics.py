"""CreateTopics through the dispatcher, in every version."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from barnabas.api.create_topics import CreateTopicsHandler
from barnabas.coordination.layout.admin import delete_topic_path
from barnabas.coordination.layout.topics import TOPICS_PATH
from barnabas.kernel.ids import ZERO_UUID
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import CreateTopicsRequest, CreateTopicsResponse
from tests.unit.api.administration.admin_world import AdminWorld, in_world
from tests.unit.api.calling import Caller, Calls

Topic = CreateTopicsRequest.CreatableTopic
LATEST = 7


def caller_of(world: AdminWorld) -> Caller:
    handler = CreateTopicsHandler(world.controller, world.creator, world.waits, world.broker_configs, world.mutations)
    return Calls(world.host, handler).connect()


def asked(*names: str, timeout_ms: int = 10_000, validate_only: bool = False, **configs: str) -> CreateTopicsRequest:
    texts = [
        CreateTopicsRequest.CreatableTopicConfig(name=name.replace("_", "."), value=value)
        for name, value in configs.items()
    ]
    topics = [Topic(name=name, num_partitions=2, replication_factor=1, configs=texts) for name in names]
    return CreateTopicsRequest(topics=topics, timeout_ms=timeout_ms, validate_only=validate_only)


async def led(world: AdminWorld, *topics: str) -> None:
    """The controller's part: the topics have leaders once they are in ZooKeeper."""
    while not set(topics) <= set(await world.children(TOPICS_PATH)):
        await asyncio.sleep(0.01)
    ids = {topic: (await world.assignment(topic)).topic_id or ZERO_UUID for topic in topics}
    world.show({topic: [1, 2] for topic in topics}, ids)


async def call(world: AdminWorld, request: CreateTopicsRequest, version: int = LATEST) -> Any:
    caller = caller_of(world)
    response, _ = await asyncio.gather(caller.call(request, version), led(world, *(t.name for t in request.topics)))
    return response


def errors(response: CreateTopicsResponse) -> list[tuple[str, str]]:
    return [(topic.name, ErrorCode.for_code(topic.error_code).name) for topic in response.topics]


@pytest.mark.parametrize("version", range(LATEST + 1))
def test_every_version_is_answered_when_the_topic_is_led(version: int) -> None:
    async def main(world: AdminWorld) -> None:
        response = await call(world, asked("t", retention_ms="5"), version)
        (topic,) = response.topics
        assert (topic.name, topic.error_code, topic.error_message or None) == ("t", 0, None)
        assert topic.num_partitions == (2 if version >= 5 else -1)
        assert topic.replication_factor == (1 if version >= 5 else -1)
        assert topic.topic_id == ((await world.assignment("t")).topic_id if version >= 7 else ZERO_UUID)
        if version >= 5:
            by_name = {config.name: config for config in topic.configs}
            assert (by_name["retention.ms"].value, by_name["retention.ms"].config_source) == ("5", 1)
            assert by_name["segment.bytes"].config_source == 5
            assert not by_name["retention.ms"].read_only

    in_world(main)


@pytest.mark.parametrize("version", range(LATEST + 1))
def test_another_broker_is_not_the_controller(version: int) -> None:
    async def main(world: AdminWorld) -> None:
        world.controller.is_active = False
        response = await caller_of(world).call(asked("t", "u"), version)
        assert errors(response) == [("t", "NOT_CONTROLLER"), ("u", "NOT_CONTROLLER")]
        assert await world.children(TOPICS_PATH) == []

    in_world(main)


def test_topics_that_are_not_led_in_time_are_there_all_the_same() -> None:
    async def main(world: AdminWorld) -> None:
        before = world.host.loop.time()
        response = await caller_of(world).call(asked("t", "u", timeout_ms=2000), LATEST)
        assert errors(response) == [("t", "REQUEST_TIMED_OUT"), ("u", "REQUEST_TIMED_OUT")]
        assert response.topics[0].num_partitions == -1
        assert world.host.loop.time() - before == pytest.approx(2, abs=0.1)
        assert await world.children(TOPICS_PATH) == ["t", "u"]

    in_world(main)


def test_a_time_out_of_zero_is_over_at_once() -> None:
    async def main(world: AdminWorld) -> None:
        response = await caller_of(world).call(asked("t", timeout_ms=0), LATEST)
        assert errors(response) == [("t", "REQUEST_TIMED_OUT")]
        assert await world.children(TOPICS_PATH) == ["t"]

    in_world(main)


def test_each_topic_has_its_own_outcome() -> None:
    async def main(world: AdminWorld) -> None:
        request = asked("good", "twice", "twice", "bad name", "__cluster_metadata")
        caller = caller_of(world)
        response, _ = await asyncio.gather(caller.call(request, LATEST), led(world, "good"))
        assert errors(response) == [
            ("good", "NONE"),
            ("twice", "INVALID_REQUEST"),
            ("twice", "INVALID_REQUEST"),
            ("bad name", "INVALID_TOPIC_EXCEPTION"),
            ("__cluster_metadata", "INVALID_REQUEST"),
        ]
        assert [topic.error_message is not None for topic in response.topics] == [False, True, True, True, True]
        assert await world.children(TOPICS_PATH) == ["good"]

    in_world(main)


def test_validate_only_tells_what_would_be() -> None:
    async def main(world: AdminWorld) -> None:
        response = await caller_of(world).call(asked("t", validate_only=True), LATEST)
        (topic,) = response.topics
        assert (topic.error_code, topic.num_partitions, topic.topic_id) == (0, 2, ZERO_UUID)
        assert topic.configs
        assert await world.children(TOPICS_PATH) == []

    in_world(main)


def test_replicas_can_be_assigned_by_hand() -> None:
    async def main(world: AdminWorld) -> None:
        assignment = CreateTopicsRequest.CreatableReplicaAssignment
        by_hand = Topic(
            name="t",
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                assignment(partition_index=0, broker_ids=[3, 1]),
                assignment(partition_index=1, broker_ids=[2, 3]),
            ],
        )
        response = await call(world, CreateTopicsRequest(topics=[by_hand], timeout_ms=10_000))
        assert (response.topics[0].error_code, response.topics[0].replication_factor) == (0, 2)
        assert [each.replicas for each in (await world.assignment("t")).partitions.values()] == [(3, 1), (2, 3)]

    in_world(main)


def test_names_are_looked_at_before_assignments_and_configs() -> None:
    async def main(world: AdminWorld) -> None:
        assignment = CreateTopicsRequest.CreatableReplicaAssignment
        impossible = [
            assignment(partition_index=0, broker_ids=[1, 2]),
            assignment(partition_index=1, broker_ids=[1]),
        ]
        caller = caller_of(world)
        await asyncio.gather(caller.call(asked("taken.name"), LATEST), led(world, "taken.name"))
        await world.client.create(delete_topic_path("marked"), None)
        flawed = [
            Topic(name=name, num_partitions=-1, replication_factor=-1, assignments=impossible)
            for name in ("", "taken_name", "marked", "free")
        ]
        config = CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value="soon")
        flawed.append(Topic(name="taken_nam.", num_partitions=1, replication_factor=1, configs=[config]))
        response = await caller.call(CreateTopicsRequest(topics=flawed, timeout_ms=10_000), LATEST)
        assert [error for _, error in errors(response)] == [
            "INVALID_TOPIC_EXCEPTION",
            "INVALID_TOPIC_EXCEPTION",
            "TOPIC_ALREADY_EXISTS",
            "INVALID_REPLICA_ASSIGNMENT",
            "INVALID_CONFIG",
        ]

    in_world(main)


def test_waiting_counts_as_no_work_of_this_broker() -> None:
    """A hundred admins who wait for dead brokers must not keep data requests out."""

    async def main(world: AdminWorld) -> None:
        handler = CreateTopicsHandler(
            world.controller, world.creator, world.waits, world.broker_configs, world.mutations
        )
        calls = Calls(world.host, handler)
        caller = calls.connect()
        caller.send(asked("t"), LATEST)
        await asyncio.sleep(1)
        assert world.waits.purgatory.delayed == 1
        assert calls.queue.queued == 0
        await led(world, "t")
        await asyncio.sleep(1)
        assert errors(caller.received()[0]) == [("t", "NONE")]

    in_world(main)
