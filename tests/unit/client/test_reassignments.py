"""What an administrator asks and is told of partitions that are moved."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from barnabas.client.admin import Admin
from barnabas.client.connections import Lane
from barnabas.client.reassignments import PartitionReassignment
from barnabas.kernel.host import Host
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from barnabas.wire.topics import TopicPartition
from tests.unit.client.scripted_client import ScriptedClient, simulated

E0, E1, F0 = TopicPartition("events", 0), TopicPartition("events", 1), TopicPartition("flights", 0)


def test_targets_and_cancels_are_asked_for_by_topic_and_the_first_refusal_is_raised() -> None:
    asked: list[Any] = []
    refused: list[ErrorCode] = []
    result = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse
    topic_of = AlterPartitionReassignmentsResponse.ReassignableTopicResponse

    async def answer(request: Any, _lane: Lane) -> Any:
        asked.append(request)
        codes = [refused.pop() if refused else ErrorCode.NONE, ErrorCode.NONE]
        partitions = [result(partition_index=number, error_code=code) for number, code in enumerate(codes)]
        return AlterPartitionReassignmentsResponse(responses=[topic_of(name="events", partitions=partitions)])

    async def main(host: Host) -> None:
        client = ScriptedClient(host, answer, {"events": 2})
        async with Admin(client) as admin:
            await admin.alter_partition_reassignments({E0: (2, 3), F0: None, E1: [4]})
            refused.append(ErrorCode.INVALID_REPLICA_ASSIGNMENT)
            with pytest.raises(KafkaError, match=r"INVALID_REPLICA_ASSIGNMENT.*events-0"):
                await admin.alter_partition_reassignments({E0: (99,), E1: (1,)})
        await client.close()

    simulated(main)
    first = asked[0]
    assert isinstance(first, AlterPartitionReassignmentsRequest)
    assert [
        (topic.name, [(partition.partition_index, partition.replicas) for partition in topic.partitions])
        for topic in first.topics
    ] == [("events", [(0, [2, 3]), (1, [4])]), ("flights", [(0, None)])]
    assert len(asked) == 2


def test_what_is_moved_is_asked_of_the_controller_of_today() -> None:
    asked: list[Any] = []

    async def answer(request: Any, _lane: Lane) -> Any:
        asked.append(request)
        await asyncio.sleep(0)
        if len(asked) == 1:
            return ListPartitionReassignmentsResponse(error_code=ErrorCode.NOT_CONTROLLER)
        ongoing = ListPartitionReassignmentsResponse.OngoingPartitionReassignment(
            partition_index=1, replicas=[4, 1, 2], adding_replicas=[4], removing_replicas=[1]
        )
        topic = ListPartitionReassignmentsResponse.OngoingTopicReassignment(name="events", partitions=[ongoing])
        return ListPartitionReassignmentsResponse(topics=[topic])

    async def main(host: Host) -> None:
        client = ScriptedClient(host, answer, {"events": 2})
        async with Admin(client) as admin:
            expected = {E1: PartitionReassignment((4, 1, 2), (4,), (1,))}
            assert await admin.list_partition_reassignments() == expected
            found = await admin.list_partition_reassignments([E1, E0])
            assert found == expected
            assert found[E1].target_replicas == (4, 2)
        await client.close()

    simulated(main)
    lists = [request for request in asked if isinstance(request, ListPartitionReassignmentsRequest)]
    assert lists[0].topics is lists[1].topics is None
    assert lists[2].topics is not None
    assert [(topic.name, topic.partition_indexes) for topic in lists[2].topics] == [("events", [1, 0])]
