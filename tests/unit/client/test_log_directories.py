"""What an administrator asks and is told of moves between log directories."""

from __future__ import annotations

from typing import Any

from barnabas.client.admin import Admin
from barnabas.client.connections import Lane
from barnabas.kernel.host import Host
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse
from barnabas.wire.topics import TopicPartition
from tests.unit.client.scripted_client import ScriptedClient, simulated

E0, E1, F0 = TopicPartition("events", 0), TopicPartition("events", 1), TopicPartition("flights", 0)


def test_each_replica_has_its_outcome() -> None:
    asked: list[AlterReplicaLogDirsRequest] = []

    async def answer(request: Any, _lane: Lane) -> Any:
        asked.append(request)
        codes = {E0: 0, E1: ErrorCode.LOG_DIR_NOT_FOUND, F0: ErrorCode.REPLICA_NOT_AVAILABLE}
        return AlterReplicaLogDirsResponse(
            results=[
                AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult(
                    topic_name=partition.topic,
                    partitions=[
                        AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult(
                            partition_index=partition.partition, error_code=code
                        )
                    ],
                )
                for partition, code in codes.items()
            ]
        )

    async def main(host: Host) -> None:
        client = ScriptedClient(host, answer, {"events": 2})
        async with Admin(client) as admin:
            found = await admin.alter_replica_log_dirs(1, {E0: "/one", E1: "/two", F0: "/one"})
        await client.close()
        assert {partition: error and error.code for partition, error in found.items()} == {
            E0: None,
            E1: ErrorCode.LOG_DIR_NOT_FOUND,
            F0: ErrorCode.REPLICA_NOT_AVAILABLE,
        }
        assert str(found[E1]).startswith("LOG_DIR_NOT_FOUND (57): events-1 to /two on broker 1: ")

    simulated(main)
    assert [
        (directory.path, [(topic.name, topic.partitions) for topic in directory.topics]) for directory in asked[0].dirs
    ] == [("/one", [("events", [0]), ("flights", [0])]), ("/two", [("events", [1])])]
