"""What an administrator asks and is told of elections."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.client.admin import Admin
from barnabas.client.connections import Lane
from barnabas.kernel.host import Host
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import ElectLeadersRequest, ElectLeadersResponse
from barnabas.wire.topics import ElectionType, TopicPartition
from tests.unit.client.scripted_client import ScriptedClient, simulated

E0, E1, F0 = TopicPartition("events", 0), TopicPartition("events", 1), TopicPartition("flights", 0)


def answer_of(codes: dict[TopicPartition, int], error_code: int = 0) -> ElectLeadersResponse:
    results = [
        ElectLeadersResponse.ReplicaElectionResult(
            topic=partition.topic,
            partition_result=[
                ElectLeadersResponse.PartitionResult(
                    partition_id=partition.partition, error_code=code, error_message="why" if code else None
                )
            ],
        )
        for partition, code in codes.items()
    ]
    return ElectLeadersResponse(error_code=error_code, replica_election_results=results)


def test_each_partition_has_its_outcome_and_who_is_not_the_controller_is_asked_no_more() -> None:
    asked: list[ElectLeadersRequest] = []
    answers = [
        answer_of(dict.fromkeys((E0, E1, F0), ErrorCode.NOT_CONTROLLER)),
        answer_of({E0: 0, E1: ErrorCode.ELECTION_NOT_NEEDED, F0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}),
        answer_of({F0: 0}),
    ]

    async def answer(request: Any, _lane: Lane) -> Any:
        asked.append(request)
        return answers[len(asked) - 1]

    async def main(host: Host) -> None:
        client = ScriptedClient(host, answer, {"events": 2})
        async with Admin(client) as admin:
            found = await admin.elect_leaders(ElectionType.UNCLEAN, [E0, F0, E1, E0])
            assert found[E0] is None
            refusals = [found[partition] for partition in (E1, F0)]
            assert [str(each) for each in refusals] == [
                "ELECTION_NOT_NEEDED (84): why",
                "PREFERRED_LEADER_NOT_AVAILABLE (80): why",
            ]
            assert await admin.elect_leaders(ElectionType.PREFERRED) == {F0: None}
        await client.close()

    simulated(main)
    assert [request.election_type for request in asked] == [1, 1, 0]
    named = asked[1].topic_partitions
    assert named is not None
    assert [(topic.topic, topic.partitions) for topic in named] == [("events", [0, 1]), ("flights", [0])]
    assert asked[2].topic_partitions is None


def test_the_failure_of_the_whole_request_is_raised() -> None:
    async def answer(_request: Any, _lane: Lane) -> Any:
        return answer_of({E0: ErrorCode.UNKNOWN_SERVER_ERROR}, ErrorCode.UNKNOWN_SERVER_ERROR)

    async def main(host: Host) -> None:
        client = ScriptedClient(host, answer, {"events": 2})
        async with Admin(client) as admin:
            with pytest.raises(KafkaError, match="UNKNOWN_SERVER_ERROR"):
                await admin.elect_leaders(ElectionType.PREFERRED, [E0])
        await client.close()

    simulated(main)
