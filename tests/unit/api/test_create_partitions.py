"""CreatePartitions through the dispatcher, in every version."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.api.administration.topic_creation import NewTopic
from barnabas.api.create_partitions import CreatePartitionsHandler
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import CreatePartitionsRequest, CreatePartitionsResponse
from tests.unit.api.administration.admin_world import AdminWorld, in_world
from tests.unit.api.calling import Caller, Calls

Topic = CreatePartitionsRequest.CreatePartitionsTopic
Assignment = CreatePartitionsRequest.CreatePartitionsAssignment
LATEST = 3


def caller_of(world: AdminWorld) -> Caller:
    return Calls(
        world.host, CreatePartitionsHandler(world.controller, world.partitions, world.waits, world.mutations)
    ).connect()


def asked(*topics: Topic, timeout_ms: int = 10_000, validate_only: bool = False) -> CreatePartitionsRequest:
    return CreatePartitionsRequest(topics=list(topics), timeout_ms=timeout_ms, validate_only=validate_only)


def errors(response: CreatePartitionsResponse) -> dict[str, str]:
    return {topic.name: ErrorCode.for_code(topic.error_code).name for topic in response.results}


async def count(world: AdminWorld, topic: str) -> int:
    return len((await world.assignment(topic)).partitions)


async def with_topics(world: AdminWorld) -> None:
    await world.creator.create([NewTopic("t", 1, 1), NewTopic("u", 1, 1)])
    world.show({"t": [1], "u": [1]})


@pytest.mark.parametrize("version", range(LATEST + 1))
def test_every_version_is_answered_when_all_partitions_are_led(version: int) -> None:
    async def main(world: AdminWorld) -> None:
        await with_topics(world)
        caller = caller_of(world)
        by_hand = Topic(name="u", count=3, assignments=[Assignment(broker_ids=[2]), Assignment(broker_ids=[3])])
        caller.send(asked(Topic(name="t", count=2, assignments=None), by_hand), version)
        while (await count(world, "t"), await count(world, "u")) != (2, 3):
            await asyncio.sleep(0.01)
        world.show({"t": [1, 2], "u": [1, 2, -1]})
        await asyncio.sleep(1)
        assert caller.received() == []
        world.show({"u": [1, 2, 3]})
        await asyncio.sleep(1)
        assert errors(caller.received()[0]) == {"t": "NONE", "u": "NONE"}
        assert [each.replicas for each in (await world.assignment("u")).partitions.values()][1:] == [(2,), (3,)]

    in_world(main)


def test_each_topic_has_its_own_outcome() -> None:
    async def main(world: AdminWorld) -> None:
        await with_topics(world)
        request = asked(
            Topic(name="t", count=2, assignments=None),
            Topic(name="u", count=3, assignments=None),
            Topic(name="u", count=4, assignments=None),
            Topic(name="nobody", count=3, assignments=None),
            timeout_ms=1000,
        )
        response = await caller_of(world).call(request, LATEST)
        assert errors(response) == {
            "t": "REQUEST_TIMED_OUT",
            "u": "INVALID_REQUEST",
            "nobody": "UNKNOWN_TOPIC_OR_PARTITION",
        }
        assert (await count(world, "t"), await count(world, "u")) == (2, 1)

    in_world(main)


def test_validate_only_changes_nothing() -> None:
    async def main(world: AdminWorld) -> None:
        await with_topics(world)
        request = asked(
            Topic(name="t", count=2, assignments=None), Topic(name="u", count=1, assignments=None), validate_only=True
        )
        response = await caller_of(world).call(request, LATEST)
        assert errors(response) == {"t": "NONE", "u": "INVALID_PARTITIONS"}
        assert await count(world, "t") == 1

    in_world(main)


@pytest.mark.parametrize("version", range(LATEST + 1))
def test_another_broker_is_not_the_controller(version: int) -> None:
    async def main(world: AdminWorld) -> None:
        await with_topics(world)
        world.controller.is_active = False
        response = await caller_of(world).call(asked(Topic(name="t", count=2, assignments=None)), version)
        assert errors(response) == {"t": "NOT_CONTROLLER"}
        assert await count(world, "t") == 1

    in_world(main)
