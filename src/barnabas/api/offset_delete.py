"""OffsetDelete, 0: deletes offsets of a group for partitions that it does not consume (KIP-496).

Answered when the tombstones are committed, where Apache Kafka answers when its leader has them. Nothing is left out.
"""

from __future__ import annotations

from barnabas.api.context import RequestContext
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.coordination.layout.topics import TopicPartition
from barnabas.coordinators.group.coordinator import Codes, GroupCoordinator
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import OffsetDeleteRequest, OffsetDeleteResponse


class OffsetDeleteHandler:
    """Sorts the partitions that exist from those that do not, and hands the former to the coordinator."""

    api_key = ApiKey.OFFSET_DELETE
    versions = (0, 0)

    def __init__(self, group_coordinator: GroupCoordinator, metadata: MetadataCache) -> None:
        self._group_coordinator = group_coordinator
        self._metadata = metadata

    def handle(self, context: RequestContext, request: OffsetDeleteRequest) -> None:
        image = self._metadata.image
        named = [
            TopicPartition(topic.name, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
        ]
        known = [partition for partition in named if image.partition(partition) is not None]
        responder = context.park()
        self._group_coordinator.delete_offsets(
            request.group_id, known, lambda codes: responder.respond(_response(request, codes))
        )

    def error_response(
        self, _context: RequestContext, _request: OffsetDeleteRequest, error: KafkaError
    ) -> OffsetDeleteResponse:
        return OffsetDeleteResponse(error_code=error.code)


def _response(request: OffsetDeleteRequest, codes: Codes) -> OffsetDeleteResponse:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponse.OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponse.OffsetDeleteResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=codes.get(TopicPartition(topic.name, partition.partition_index), unknown),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
