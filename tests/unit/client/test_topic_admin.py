"""What an administrator asks again of changes of topics, of which some were refused for a while."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from barnabas.client.admin import Admin, NewTopic
from barnabas.client.connections import Lane
from barnabas.kernel.host import Host
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from tests.unit.client.scripted_client import ScriptedClient, simulated

AGAIN = {
    CreateTopicsRequest: ErrorCode.TOPIC_ALREADY_EXISTS,
    DeleteTopicsRequest: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    CreatePartitionsRequest: ErrorCode.INVALID_PARTITIONS,
}
"""What a change is answered that was made before."""


class Controller:
    """Makes one change of each request, as a quota lets it, and refuses the others for a while."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.made: set[str] = set()

    async def answer(self, request: Any, _lane: Lane) -> Any:
        names = [each.name for each in request.topics]
        self.asked.append(names)
        codes = {name: AGAIN[type(request)] if name in self.made else ErrorCode.NONE for name in names}
        fresh = [name for name, code in codes.items() if code is ErrorCode.NONE]
        self.made.update(fresh[:1])
        codes |= dict.fromkeys(fresh[1:], ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        if isinstance(request, CreateTopicsRequest):
            created = CreateTopicsResponse.CreatableTopicResult
            topics = [created(name=name, error_code=code, topic_id=name.encode() * 16) for name, code in codes.items()]
            return CreateTopicsResponse(topics=topics)
        if isinstance(request, DeleteTopicsRequest):
            deleted = DeleteTopicsResponse.DeletableTopicResult
            return DeleteTopicsResponse(responses=[deleted(name=name, error_code=code) for name, code in codes.items()])
        grown = CreatePartitionsResponse.CreatePartitionsTopicResult
        return CreatePartitionsResponse(results=[grown(name=name, error_code=code) for name, code in codes.items()])


async def create(admin: Admin) -> None:
    found = await admin.create_topics([NewTopic("a"), NewTopic("b"), NewTopic("c")])
    assert found == {name: name.encode() * 16 for name in "abc"}


async def delete(admin: Admin) -> None:
    await admin.delete_topics(["a", "b", "c"])


async def grow(admin: Admin) -> None:
    await admin.create_partitions({"a": 2, "b": 3, "c": 4})


@pytest.mark.parametrize("change", [create, delete, grow])
def test_what_was_made_is_not_asked_for_again(change: Callable[[Admin], Awaitable[None]]) -> None:
    controller = Controller()

    async def main(host: Host) -> None:
        client = ScriptedClient(host, controller.answer, {})
        async with Admin(client) as admin:
            await change(admin)
            assert controller.asked == [["a", "b", "c"], ["b", "c"], ["c"]]
            with pytest.raises(KafkaError):
                await change(admin)  # another call: it was made before
        await client.close()

    simulated(main)
