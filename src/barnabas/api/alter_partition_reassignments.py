"""AlterPartitionReassignments (key 45, version 0): moves partitions to other replicas, or cancels that (KIP-455).

Answered by the active controller when the assignments are written and the new replicas have been told; the moves go on
by themselves. Of a partition that is named twice counts what is said last. As in Kafka `timeout_ms` is not looked at.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any

from barnabas.api.authorization import check_cluster
from barnabas.api.context import RequestContext
from barnabas.controller.controller import Controller
from barnabas.kernel.steps import Steps, each, each_within
from barnabas.security.acls import AclOperation
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse
from barnabas.wire.topics import TopicPartition

Asked = AlterPartitionReassignmentsRequest.ReassignableTopic
Answered = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
Result = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse
Target = tuple[int, ...] | None


class AlterPartitionReassignmentsHandler:
    """Hands the targets to the controller of this broker, if it is the active one."""

    api_key = ApiKey.ALTER_PARTITION_REASSIGNMENTS
    versions = (0, 0)

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def handle(
        self, context: RequestContext, request: AlterPartitionReassignmentsRequest
    ) -> Coroutine[Any, Any, AlterPartitionReassignmentsResponse]:
        check_cluster(context, AclOperation.ALTER)
        context.park()  # it waits for the controller's queue, which is not this request's work
        return self._alter(context, request)

    def error_response(
        self, _context: RequestContext, _request: AlterPartitionReassignmentsRequest, error: KafkaError
    ) -> AlterPartitionReassignmentsResponse:
        return AlterPartitionReassignmentsResponse(error_code=error.code, error_message=error.message)

    async def _alter(
        self, context: RequestContext, request: AlterPartitionReassignmentsRequest
    ) -> AlterPartitionReassignmentsResponse:
        targets = await context.in_steps(_targets(request))
        outcomes = await self._controller.alter_reassignments(targets)
        return AlterPartitionReassignmentsResponse(responses=await context.in_steps(_results(outcomes)))


def _targets(request: AlterPartitionReassignmentsRequest) -> Steps[dict[TopicPartition, Target]]:
    targets: dict[TopicPartition, Target] = {}

    def add(topic: Asked, partition: AlterPartitionReassignmentsRequest.ReassignablePartition) -> None:
        target = None if partition.replicas is None else tuple(partition.replicas)
        targets[TopicPartition(topic.name, partition.partition_index)] = target

    yield from each_within(request.topics, lambda topic: topic.partitions, add, lambda *_: None)
    return targets


def _results(outcomes: Mapping[TopicPartition, KafkaError | None]) -> Steps[list[Answered]]:
    by_topic: dict[str, Answered] = {}

    def add(outcome: tuple[TopicPartition, KafkaError | None]) -> None:
        partition, error = outcome
        topic = by_topic.setdefault(partition.topic, Answered(name=partition.topic))
        topic.partitions.append(
            Result(
                partition_index=partition.partition,
                error_code=ErrorCode.NONE if error is None else error.code,
                error_message=None if error is None else error.message,
            )
        )

    yield from each(add, outcomes.items())
    return list(by_topic.values())
