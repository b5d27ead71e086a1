"""Topics that nobody created: made here by the controller, asked for by every other broker."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from barnabas.api.auto_topic_creation import AutoCreationSettings, AutoTopicCreation
from barnabas.coordination.layout.topics import TOPICS_PATH
from barnabas.wire.classes import Message
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import CreateTopicsRequest, CreateTopicsResponse
from tests.unit.api.administration.admin_world import AdminWorld, in_world


class Channel:
    """Keeps requests to the controller until `answer` is set."""

    def __init__(self, answer: asyncio.Future[Message]) -> None:
        self.answer = answer
        self.requests: list[Any] = []

    async def send(self, message: Message, version: int, timeout_ms: float | None = None) -> Message:
        assert (version, timeout_ms) == (7, 30_000)
        self.requests.append(message)
        return await asyncio.shield(self.answer)


def made(world: AdminWorld, **settings: int) -> tuple[AutoTopicCreation, Channel]:
    channel = Channel(world.host.loop.create_future())
    chosen = AutoCreationSettings(**{"offsets_replication_factor": 3, **settings})
    return (
        AutoTopicCreation(world.host, world.controller, world.creator, channel, chosen, world.logger),
        channel,
    )


def test_the_controller_makes_them_with_the_brokers_defaults() -> None:
    async def main(world: AdminWorld) -> None:
        creation, channel = made(world, partition_count=4, replication_factor=2)
        assert await creation.create_topics(["t", "bad name", "t"]) == {
            "t": ErrorCode.LEADER_NOT_AVAILABLE,
            "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
        }
        partitions = (await world.assignment("t")).partitions
        assert [len(each.replicas) for each in partitions.values()] == [2] * 4
        assert channel.requests == []
        # It is there already, of which the metadata does not know yet.
        assert await creation.create_topics(["t"]) == {"t": ErrorCode.LEADER_NOT_AVAILABLE}

    in_world(main)


def test_the_topic_of_group_offsets_has_its_own_ways() -> None:
    async def main(world: AdminWorld) -> None:
        creation, _ = made(world, offsets_partition_count=5, offsets_segment_bytes=1000)
        await creation.create_topics(["__consumer_offsets"])
        partitions = (await world.assignment("__consumer_offsets")).partitions
        assert [len(each.replicas) for each in partitions.values()] == [3] * 5
        assert json.loads(await world.data("/config/topics/__consumer_offsets") or b"")["config"] == {
            "cleanup.policy": "compact",
            "segment.bytes": "1000",
            "compression.type": "producer",
        }

    in_world(main)


def test_too_few_brokers_are_said() -> None:
    async def main(world: AdminWorld) -> None:
        creation, _ = made(world, offsets_replication_factor=4)
        assert await creation.create_topics(["__consumer_offsets"]) == {
            "__consumer_offsets": ErrorCode.INVALID_REPLICATION_FACTOR
        }
        assert await world.children(TOPICS_PATH) == []

    in_world(main)


def test_another_broker_asks_the_controller_once() -> None:
    async def main(world: AdminWorld) -> None:
        world.controller.is_active = False
        creation, channel = made(world, partition_count=4)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await creation.create_topics(["t", "__consumer_offsets"]) == {
            "t": unknown,
            "__consumer_offsets": unknown,
        }
        assert await creation.create_topics(["t", "u"]) == {"t": unknown, "u": unknown}
        await asyncio.sleep(1)
        assert [[topic.name for topic in request.topics] for request in channel.requests] == [
            ["t", "__consumer_offsets"],
            ["u"],
        ]
        first: CreateTopicsRequest = channel.requests[0]
        assert (first.topics[0].num_partitions, first.timeout_ms, first.validate_only) == (4, 30_000, False)
        assert {config.name for config in first.topics[1].configs} == {
            "cleanup.policy",
            "segment.bytes",
            "compression.type",
        }
        # Once it has answered, whatever it said, the topic is asked for again.
        refused = CreateTopicsResponse.CreatableTopicResult(name="t", error_code=ErrorCode.POLICY_VIOLATION)
        channel.answer.set_result(CreateTopicsResponse(topics=[refused]))
        await asyncio.sleep(1)
        await creation.create_topics(["t"])
        await asyncio.sleep(1)
        assert len(channel.requests) == 3
        assert any("POLICY_VIOLATION" in line for line in world.lines.lines)
        await creation.stop()

    in_world(main)


@pytest.mark.parametrize("failure", [TimeoutError("nobody answers"), ValueError("a mistake")])
def test_a_controller_that_cannot_be_reached_is_asked_again(failure: Exception) -> None:
    async def main(world: AdminWorld) -> None:
        world.controller.is_active = False
        creation, channel = made(world)
        channel.answer.set_exception(failure)
        for _ in range(2):
            await creation.create_topics(["t"])
            await asyncio.sleep(1)
        assert len(channel.requests) == 2
        assert sum(str(failure) in line or "failed" in line for line in world.lines.lines) == 2

    in_world(main)


def test_what_is_under_way_ends_with_the_broker() -> None:
    async def main(world: AdminWorld) -> None:
        world.controller.is_active = False
        creation, channel = made(world)
        await creation.create_topics(["t"])
        await asyncio.sleep(1)
        await creation.stop()
        assert len(channel.requests) == 1

    in_world(main)
