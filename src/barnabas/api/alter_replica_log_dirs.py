"""AlterReplicaLogDirs, 0 to 2: replicas of this broker go to other log directories of it (KIP-113).

Answered when each move has begun; DescribeLogDirs tells how far it is. A partition that is named for two directories
goes to the last. A partition that is not here yet is remembered until the broker stops (REPLICA_NOT_AVAILABLE).
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any

from barnabas.api.authorization import check_cluster
from barnabas.api.context import RequestContext
from barnabas.kernel.steps import Steps, each, each_within
from barnabas.replicas.replica_manager import ReplicaManager
from barnabas.security.acls import AclOperation
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse
from barnabas.wire.topics import TopicPartition

Asked = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic
Answered = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult
Result = AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult


class AlterReplicaLogDirsHandler:
    """Hands the request to the replica manager."""

    api_key = ApiKey.ALTER_REPLICA_LOG_DIRS
    versions = (0, 2)

    def __init__(self, replica_manager: ReplicaManager) -> None:
        self._replica_manager = replica_manager

    def handle(
        self, context: RequestContext, request: AlterReplicaLogDirsRequest
    ) -> Coroutine[Any, Any, AlterReplicaLogDirsResponse]:
        check_cluster(context, AclOperation.ALTER)
        context.park()  # it may wait for the disk of a move that it ends
        return self._alter(context, request)

    def error_response(
        self, _context: RequestContext, request: AlterReplicaLogDirsRequest, error: KafkaError
    ) -> Steps[AlterReplicaLogDirsResponse]:
        wanted = yield from _wanted(request)
        code = ErrorCode.for_code(error.code)
        return AlterReplicaLogDirsResponse(results=(yield from _results((partition, code) for partition in wanted)))

    async def _alter(self, context: RequestContext, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
        wanted = await context.in_steps(_wanted(request))
        outcomes = await self._replica_manager.alter_log_directories(wanted)
        return AlterReplicaLogDirsResponse(results=await context.in_steps(_results(outcomes.items())))


def _wanted(request: AlterReplicaLogDirsRequest) -> Steps[dict[TopicPartition, str]]:
    """The log directory of each partition."""
    wanted: dict[TopicPartition, str] = {}

    def add(topic: tuple[str, Asked], partition: int) -> None:
        wanted[TopicPartition(topic[1].name, partition)] = topic[0]

    topics = ((directory.path, topic) for directory in request.dirs for topic in directory.topics)
    yield from each_within(topics, lambda topic: topic[1].partitions, add, lambda *_: None)
    return wanted


def _results(outcomes: Iterable[tuple[TopicPartition, ErrorCode]]) -> Steps[list[Answered]]:
    by_topic: dict[str, Answered] = {}

    def add(outcome: tuple[TopicPartition, ErrorCode]) -> None:
        topic_partition, error = outcome
        topic = by_topic.setdefault(topic_partition.topic, Answered(topic_name=topic_partition.topic))
        topic.partitions.append(Result(partition_index=topic_partition.partition, error_code=error))

    yield from each(add, outcomes)
    return list(by_topic.values())
