"""DeleteTopics through the dispatcher, in every version."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from barnabas.api.administration.topic_creation import NewTopic
from barnabas.api.delete_topics import DeleteTopicsHandler
from barnabas.coordination.layout.admin import DELETE_TOPICS_PATH
from barnabas.coordination.layout.topics import topic_path
from barnabas.kernel.ids import ZERO_UUID, Uuid
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import DeleteTopicsRequest, DeleteTopicsResponse
from tests.unit.api.administration.admin_world import AdminWorld, in_world
from tests.unit.api.calling import Caller, Calls

State = DeleteTopicsRequest.DeleteTopicState
LATEST = 6


def caller_of(world: AdminWorld, *, is_enabled: bool = True) -> Caller:
    handler = DeleteTopicsHandler(
        world.controller, world.deleter, world.waits, world.metadata, world.mutations, is_enabled=is_enabled
    )
    return Calls(world.host, handler).connect()


def asked(version: int, *names: str, timeout_ms: int = 10_000) -> DeleteTopicsRequest:
    if version >= 6:
        return DeleteTopicsRequest(topics=[State(name=name) for name in names], timeout_ms=timeout_ms)
    return DeleteTopicsRequest(topic_names=list(names), timeout_ms=timeout_ms)


async def with_topics(world: AdminWorld, *names: str) -> dict[str, bytes]:
    """Makes topics; returns their ids."""
    await world.creator.create([NewTopic(name) for name in names])
    ids: dict[str, bytes] = {name: (await world.assignment(name)).topic_id or ZERO_UUID for name in names}
    world.show({name: [1] for name in names}, ids)
    return ids


async def gone(world: AdminWorld, *names: str) -> None:
    """The controller's part."""
    while not set(names) <= set(await world.children(DELETE_TOPICS_PATH)):
        await asyncio.sleep(0.01)
    world.show({name: [-2] for name in names})


async def call(world: AdminWorld, request: DeleteTopicsRequest, version: int, *deleted: str) -> Any:
    response, _ = await asyncio.gather(caller_of(world).call(request, version), gone(world, *deleted))
    return response


def errors(response: DeleteTopicsResponse) -> list[tuple[str | None, str]]:
    return [(topic.name, ErrorCode.for_code(topic.error_code).name) for topic in response.responses]


@pytest.mark.parametrize("version", range(LATEST + 1))
def test_every_version_is_answered_when_the_topics_are_gone(version: int) -> None:
    async def main(world: AdminWorld) -> None:
        await with_topics(world, "a", "b")
        response = await call(world, asked(version, "a", "nobody", "b"), version, "a", "b")
        assert errors(response) == [("a", "NONE"), ("nobody", "UNKNOWN_TOPIC_OR_PARTITION"), ("b", "NONE")]

    in_world(main)


def test_topics_are_named_by_their_ids() -> None:
    async def main(world: AdminWorld) -> None:
        ids = await with_topics(world, "a")
        unknown = Uuid(bytes(range(16)))
        request = DeleteTopicsRequest(
            topics=[State(name=None, topic_id=ids["a"]), State(name=None, topic_id=unknown)], timeout_ms=10_000
        )
        response = await call(world, request, LATEST, "a")
        assert errors(response) == [("a", "NONE"), (None, "UNKNOWN_TOPIC_ID")]
        assert [topic.topic_id for topic in response.responses] == [ids["a"], unknown]

    in_world(main)


def test_a_namesake_that_was_made_since_is_not_deleted_for_an_id() -> None:
    """The metadata of this broker still has the former topic."""

    async def main(world: AdminWorld) -> None:
        ids = await with_topics(world, "a", "b", "c")
        namesake = dataclasses.replace(await world.assignment("a"), topic_id=Uuid(bytes(range(16))))
        for name in ("a", "b"):
            await world.client.delete(topic_path(name))
        await world.client.create(topic_path("a"), namesake.encode())
        request = DeleteTopicsRequest(
            topics=[State(name=None, topic_id=ids[name]) for name in ("a", "b", "c")], timeout_ms=10_000
        )
        response = await call(world, request, LATEST, "c")
        assert errors(response) == [("a", "UNKNOWN_TOPIC_ID"), ("b", "UNKNOWN_TOPIC_ID"), ("c", "NONE")]
        assert await world.children(DELETE_TOPICS_PATH) == ["c"]
        # By its name it is deleted.
        named = DeleteTopicsRequest(topics=[State(name="a"), State(name=None, topic_id=ids["a"])], timeout_ms=10_000)
        response = await call(world, named, LATEST, "a")
        assert errors(response) == [("a", "NONE"), ("a", "UNKNOWN_TOPIC_ID")]

    in_world(main)


def test_name_and_id_together_are_refused() -> None:
    async def main(world: AdminWorld) -> None:
        ids = await with_topics(world, "a", "b")
        request = DeleteTopicsRequest(topics=[State(name="a", topic_id=ids["a"]), State(name="b")], timeout_ms=10_000)
        response = await caller_of(world).call(request, LATEST)
        assert [error for _, error in errors(response)] == ["INVALID_REQUEST", "INVALID_REQUEST"]
        assert await world.children(DELETE_TOPICS_PATH) == []

    in_world(main)


def test_who_names_neither_name_nor_id_is_told_what_kafka_says() -> None:
    async def main(world: AdminWorld) -> None:
        response = await caller_of(world).call(DeleteTopicsRequest(topics=[State(name=None)], timeout_ms=0), LATEST)
        assert errors(response) == [(None, "TOPIC_AUTHORIZATION_FAILED")]

    in_world(main)


@pytest.mark.parametrize("timeout_ms", [0, 2000])
def test_a_deletion_goes_on_behind_the_time_out(timeout_ms: int) -> None:
    async def main(world: AdminWorld) -> None:
        await with_topics(world, "a")
        before = world.host.loop.time()
        response = await caller_of(world).call(asked(LATEST, "a", timeout_ms=timeout_ms), LATEST)
        assert errors(response) == [("a", "REQUEST_TIMED_OUT")]
        assert world.host.loop.time() - before == pytest.approx(timeout_ms / 1000, abs=0.1)
        assert await world.children(DELETE_TOPICS_PATH) == ["a"]
        # Who asks again waits for the same deletion.
        assert errors(await call(world, asked(LATEST, "a"), LATEST, "a")) == [("a", "NONE")]

    in_world(main)


@pytest.mark.parametrize("version", range(LATEST + 1))
def test_only_the_controller_deletes_and_only_where_it_may(version: int) -> None:
    async def main(world: AdminWorld) -> None:
        await with_topics(world, "a")
        disabled = "TOPIC_DELETION_DISABLED" if version >= 3 else "INVALID_REQUEST"
        response = await caller_of(world, is_enabled=False).call(asked(version, "a"), version)
        assert errors(response) == [("a", disabled)]
        world.controller.is_active = False
        assert errors(await caller_of(world).call(asked(version, "a"), version)) == [("a", "NOT_CONTROLLER")]
        assert await world.children(DELETE_TOPICS_PATH) == []

    in_world(main)
