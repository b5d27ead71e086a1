"""Requests for deletion as znodes, beside a real coordinator in virtual time."""

from __future__ import annotations

from typing import Any

from barnabas.api.administration.topic_creation import NewTopic
from barnabas.coordination.errors import ConnectionLossError
from barnabas.coordination.layout.admin import DELETE_TOPICS_PATH
from barnabas.coordination.operations import Create
from tests.unit.api.administration.admin_world import AdminWorld, codes, in_world


def test_asks_for_the_deletion_of_topics_that_exist() -> None:
    async def main(world: AdminWorld) -> None:
        await world.creator.create([NewTopic("a"), NewTopic("b")])
        assert codes(await world.deleter.request(["a", "nobody", "b"])) == {
            "a": None,
            "nobody": "UNKNOWN_TOPIC_OR_PARTITION",
            "b": None,
        }
        assert await world.children(DELETE_TOPICS_PATH) == ["a", "b"]
        assert await world.data(f"{DELETE_TOPICS_PATH}/a") is None

    in_world(main)


def test_a_deletion_that_was_asked_for_already_counts() -> None:
    async def main(world: AdminWorld) -> None:
        await world.creator.create([NewTopic("a")])
        assert codes(await world.deleter.request(["a"])) == {"a": None}
        assert codes(await world.deleter.request(["a"])) == {"a": None}

    in_world(main)


def test_a_broken_connection_is_tried_again() -> None:
    async def main(world: AdminWorld) -> None:
        await world.creator.create([NewTopic("a"), NewTopic("b")])
        submit = world.client.submit
        lost: list[object] = []

        async def losing(operations: Any) -> list[Any]:
            outcomes = await submit(operations[:1] if not lost and isinstance(operations[0], Create) else operations)
            if not lost and isinstance(operations[0], Create):
                lost.append(True)
                return [ConnectionLossError(operation.path) for operation in operations]
            return outcomes

        world.client.submit = losing  # type: ignore[method-assign]
        assert codes(await world.deleter.request(["a", "b"])) == {"a": None, "b": None}
        assert lost
        assert await world.children(DELETE_TOPICS_PATH) == ["a", "b"]

    in_world(main)
