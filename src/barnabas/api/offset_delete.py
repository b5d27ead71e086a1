"""OffsetDelete, 0: deletes offsets of a group for partitions that it does not consume (KIP-496).

Answered when the tombstones are committed, where Apache Kafka answers when its leader has them. Nothing is left out.
"""

from __future__ import annotations

from collections.abc import Container

from barnabas.api.authorization import Decisions, may
from barnabas.api.context import RequestContext
from barnabas.api.partition_codes import partition_codes
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.coordinators.group.commits import Codes
from barnabas.coordinators.group.coordinator import GroupCoordinator
from barnabas.kernel.steps import Steps, each_within
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import OffsetDeleteRequest, OffsetDeleteResponse
from barnabas.wire.topics import TopicPartition

Topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
Partition = OffsetDeleteRequest.OffsetDeleteRequestPartition


class OffsetDeleteHandler:
    """Sorts the partitions that exist from those that do not, and hands the former to the coordinator."""

    api_key = ApiKey.OFFSET_DELETE
    versions = (0, 0)

    def __init__(self, group_coordinator: GroupCoordinator, metadata: MetadataCache) -> None:
        self._group_coordinator = group_coordinator
        self._metadata = metadata

    def handle(self, context: RequestContext, request: OffsetDeleteRequest) -> Steps[None]:
        if not may(context, AclOperation.DELETE, ResourceType.GROUP, request.group_id):
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        image = self._metadata.image
        known: dict[TopicPartition, None] = {}
        denied: set[str] = set()
        may_read = Decisions(context, AclOperation.READ, ResourceType.TOPIC)

        def sort(topic: Topic, partition: Partition) -> None:
            topic_partition = TopicPartition(topic.name, partition.partition_index)
            if not may_read.allow(topic.name):
                denied.add(topic.name)
            elif image.partition(topic_partition) is not None:
                known[topic_partition] = None

        yield from each_within(request.topics, lambda topic: topic.partitions, sort, lambda *_: None)
        responder = context.park()
        self._group_coordinator.delete_offsets(
            request.group_id, list(known), lambda codes: responder.respond(_response(request, codes, denied))
        )

    def error_response(
        self, _context: RequestContext, _request: OffsetDeleteRequest, error: KafkaError
    ) -> OffsetDeleteResponse:
        return OffsetDeleteResponse(error_code=error.code)


def _response(request: OffsetDeleteRequest, codes: Codes, denied: Container[str]) -> Steps[OffsetDeleteResponse]:
    topics = yield from partition_codes(
        request.topics,
        lambda topic: topic.partitions,
        codes,
        lambda number, code: OffsetDeleteResponse.OffsetDeleteResponsePartition(
            partition_index=number, error_code=code
        ),
        lambda name, partitions: OffsetDeleteResponse.OffsetDeleteResponseTopic(name=name, partitions=partitions),
        denied=denied,
    )
    return OffsetDeleteResponse(topics=topics)
