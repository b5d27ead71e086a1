"""DeleteRecords, 0 to 2: moves the start of logs, and answers when all replicas that are alive have followed."""

from __future__ import annotations

from typing import Final

from barnabas.api.context import RequestContext
from barnabas.coordination.layout.topics import TopicPartition
from barnabas.replication.delete_records import DeleteOutcome, Outcomes, RecordDeletions
from barnabas.replication.ports import MetadataSource
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import DeleteRecordsRequest, DeleteRecordsResponse

_UNKNOWN: Final = DeleteOutcome(ErrorCode.UNKNOWN_SERVER_ERROR)


class DeleteRecordsHandler:
    """Hands the offsets to the partitions."""

    api_key = ApiKey.DELETE_RECORDS
    versions = (0, 2)

    def __init__(self, deletions: RecordDeletions, metadata: MetadataSource) -> None:
        self._deletions = deletions
        self._metadata = metadata

    def handle(self, context: RequestContext, request: DeleteRecordsRequest) -> None:
        image = self._metadata.image
        refused: Outcomes = {}
        offsets: dict[TopicPartition, int] = {}
        for topic in request.topics:
            for partition in topic.partitions:
                topic_partition = TopicPartition(topic.name, partition.partition_index)
                if image.partition(topic_partition) is None:
                    refused[topic_partition] = DeleteOutcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                else:
                    offsets[topic_partition] = partition.offset
        responder = context.park()
        self._deletions.delete(
            offsets,
            request.timeout_ms,
            lambda outcomes: responder.respond(_response(request, outcomes | refused)),
        )

    def error_response(
        self, _context: RequestContext, request: DeleteRecordsRequest, error: KafkaError
    ) -> DeleteRecordsResponse:
        return _response(request, {}, DeleteOutcome(error.code))


def _response(
    request: DeleteRecordsRequest,
    outcomes: Outcomes,
    default: DeleteOutcome = _UNKNOWN,
) -> DeleteRecordsResponse:
    """The outcomes in the order of the request."""
    response = DeleteRecordsResponse()
    for topic in request.topics:
        result = DeleteRecordsResponse.DeleteRecordsTopicResult(name=topic.name, partitions=[])
        for partition in topic.partitions:
            outcome = outcomes.get(TopicPartition(topic.name, partition.partition_index), default)
            result.partitions.append(
                DeleteRecordsResponse.DeleteRecordsPartitionResult(
                    partition_index=partition.partition_index,
                    low_watermark=outcome.low_watermark,
                    error_code=outcome.code,
                )
            )
        response.topics.append(result)
    return response
