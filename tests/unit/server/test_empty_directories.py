"""What a broker with empty log directories is to have, in turns of the loop that do little each."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.coordination.errors import NoNodeError, SessionExpiredError
from barnabas.server.empty_directories import replicas_of
from barnabas.wire.topics import TopicPartition

TOPICS = [f"t{number:03}" for number in range(150)]
ASSIGNED = b'{"version":3,"partitions":{"0":[1,2],"1":[2,3]},"adding_replicas":{},"removing_replicas":{}}'


class Session:
    """It is `CoordinationSession`, of which one topic goes while it is read, and another holds garbage."""

    async def perform(self, _operation: Any) -> list[str]:
        return [*TOPICS, "gone", "spoiled"]

    async def get_many(self, paths: list[str]) -> list[Any]:
        found: dict[str, Any] = {"gone": NoNodeError("gone"), "spoiled": SimpleNamespace(data=b"garbage")}
        return [found.get(path.rpartition("/")[2], SimpleNamespace(data=ASSIGNED)) for path in paths]


def test_a_session_that_ends_while_topics_are_read_is_an_error_and_nothing_is_taken_for_all() -> None:
    class Ending(Session):
        async def get_many(self, paths: list[str]) -> list[Any]:
            return [*(await super().get_many(paths))[:-1], SessionExpiredError()]

    with pytest.raises(SessionExpiredError):
        asyncio.run(replicas_of(cast("Any", Ending()), 3))


def test_each_topic_has_a_turn_of_the_loop() -> None:
    async def main() -> None:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count())
        found = await replicas_of(cast("Any", Session()), 3)
        counting.cancel()
        assert found == [TopicPartition(topic, 1) for topic in TOPICS]
        assert turns >= len(TOPICS)

    asyncio.run(main())
