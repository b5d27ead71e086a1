"""OffsetDelete, 0: deletes offsets of a group for partitions that it does not consume (KIP-496).

Answered when the tombstones are committed, where Apache Kafka answers when its leader has them. Nothing is left out.
"""

from __future__ import annotations

from barnabas.api.context import RequestContext
from barnabas.api.partition_codes import partition_codes
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.coordinators.group.commits import Codes
from barnabas.coordinators.group.coordinator import GroupCoordinator
from barnabas.kernel.steps import Steps, each_within
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import KafkaError
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
        image = self._metadata.image
        known: dict[TopicPartition, None] = {}

        def sort(topic: Topic, partition: Partition) -> None:
            topic_partition = TopicPartition(topic.name, partition.partition_index)
            if image.partition(topic_partition) is not None:
                known[topic_partition] = None

        yield from each_within(request.topics, lambda topic: topic.partitions, sort, lambda *_: None)
        responder = context.park()
        self._group_coordinator.delete_offsets(
            request.group_id, list(known), lambda codes: responder.respond(_response(request, codes))
        )

    def error_response(
        self, _context: RequestContext, _request: OffsetDeleteRequest, error: KafkaError
    ) -> OffsetDeleteResponse:
        return OffsetDeleteResponse(error_code=error.code)


def _response(request: OffsetDeleteRequest, codes: Codes) -> Steps[OffsetDeleteResponse]:
    topics = yield from partition_codes(
        request.topics,
        lambda topic: topic.partitions,
        codes,
        lambda number, code: OffsetDeleteResponse.OffsetDeleteResponsePartition(
            partition_index=number, error_code=code
        ),
        lambda name, partitions: OffsetDeleteResponse.OffsetDeleteResponseTopic(name=name, partitions=partitions),
    )
    return OffsetDeleteResponse(topics=topics)
