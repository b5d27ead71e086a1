"""ListPartitionReassignments (key 46, version 0): what the active controller is moving (KIP-455).

Partitions that are not being moved, or do not exist, are left out of the answer. As in Kafka `timeout_ms` is not looked
at.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any

from barnabas.api.authorization import check_cluster
from barnabas.api.context import RequestContext
from barnabas.controller.controller import Controller
from barnabas.coordination.layout.topics import ReplicaAssignment
from barnabas.kernel.steps import Steps, each, each_within
from barnabas.security.acls import AclOperation
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import KafkaError
from barnabas.wire.messages import ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse
from barnabas.wire.topics import TopicPartition

Asked = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
Listed = ListPartitionReassignmentsResponse.OngoingTopicReassignment
Ongoing = ListPartitionReassignmentsResponse.OngoingPartitionReassignment


class ListPartitionReassignmentsHandler:
    """Asks the controller of this broker, if it is the active one."""

    api_key = ApiKey.LIST_PARTITION_REASSIGNMENTS
    versions = (0, 0)

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def handle(
        self, context: RequestContext, request: ListPartitionReassignmentsRequest
    ) -> Coroutine[Any, Any, ListPartitionReassignmentsResponse]:
        check_cluster(context, AclOperation.DESCRIBE)
        context.park()  # it waits for the controller's queue, which is not this request's work
        return self._list(context, request)

    def error_response(
        self, _context: RequestContext, _request: ListPartitionReassignmentsRequest, error: KafkaError
    ) -> ListPartitionReassignmentsResponse:
        return ListPartitionReassignmentsResponse(error_code=error.code, error_message=error.message)

    async def _list(
        self, context: RequestContext, request: ListPartitionReassignmentsRequest
    ) -> ListPartitionReassignmentsResponse:
        wanted = None if request.topics is None else await context.in_steps(_partitions(request.topics))
        found = await self._controller.list_reassignments(wanted)
        return ListPartitionReassignmentsResponse(topics=await context.in_steps(_listed(found)))


def _partitions(topics: list[Asked]) -> Steps[list[TopicPartition]]:
    wanted: dict[TopicPartition, None] = {}

    def add(topic: Asked, partition: int) -> None:
        wanted[TopicPartition(topic.name, partition)] = None

    yield from each_within(topics, lambda topic: topic.partition_indexes, add, lambda *_: None)
    return list(wanted)


def _listed(found: Mapping[TopicPartition, ReplicaAssignment]) -> Steps[list[Listed]]:
    by_topic: dict[str, Listed] = {}

    def add(item: tuple[TopicPartition, ReplicaAssignment]) -> None:
        partition, assignment = item
        topic = by_topic.setdefault(partition.topic, Listed(name=partition.topic))
        topic.partitions.append(
            Ongoing(
                partition_index=partition.partition,
                replicas=list(assignment.replicas),
                adding_replicas=list(assignment.adding_replicas),
                removing_replicas=list(assignment.removing_replicas),
            )
        )

    yield from each(add, found.items())
    return list(by_topic.values())
