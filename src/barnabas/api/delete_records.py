"""DeleteRecords, 0 to 2: moves the start of logs, and answers when all replicas that are alive have followed."""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.api.authorization import Decisions
from barnabas.api.context import RequestContext
from barnabas.api.named_once import NamedTopic, named_once
from barnabas.kernel.steps import Steps, each_within
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.serving.delete_records import DeleteOutcome, Outcomes, RecordDeletions
from barnabas.serving.ports import MetadataSource
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import DeleteRecordsRequest, DeleteRecordsResponse
from barnabas.wire.topics import TopicPartition

Asked = DeleteRecordsRequest.DeleteRecordsPartition


class DeleteRecordsHandler:
    """Hands the offsets to the partitions."""

    api_key = ApiKey.DELETE_RECORDS
    versions = (0, 2)

    def __init__(self, deletions: RecordDeletions, metadata: MetadataSource) -> None:
        self._deletions = deletions
        self._metadata = metadata

    def handle(self, context: RequestContext, request: DeleteRecordsRequest) -> Steps[None]:
        image = self._metadata.image
        offsets: dict[TopicPartition, int] = {}
        denied: dict[TopicPartition, DeleteOutcome] = {}
        failed = DeleteOutcome(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        may_delete = Decisions(context, AclOperation.DELETE, ResourceType.TOPIC)

        def sort(topic: DeleteRecordsRequest.DeleteRecordsTopic, partition: Asked) -> None:
            topic_partition = TopicPartition(topic.name, partition.partition_index)
            if not may_delete.allow(topic.name):
                denied[topic_partition] = failed
            elif image.partition(topic_partition) is not None:
                offsets[topic_partition] = partition.offset

        yield from each_within(request.topics, _partitions_of, sort, lambda *_: None)
        responder = context.park()
        refused = DeleteOutcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self._deletions.delete(
            offsets,
            request.timeout_ms,
            lambda outcomes: responder.respond(
                _response(request, {**outcomes, **denied} if denied else outcomes, refused)
            ),
        )

    def error_response(
        self, _context: RequestContext, request: DeleteRecordsRequest, error: KafkaError
    ) -> Steps[DeleteRecordsResponse]:
        return _response(request, {}, DeleteOutcome(error.code))


def _partitions_of(topic: DeleteRecordsRequest.DeleteRecordsTopic) -> Sequence[Asked]:
    return topic.partitions


def _response(
    request: DeleteRecordsRequest, outcomes: Outcomes, default: DeleteOutcome
) -> Steps[DeleteRecordsResponse]:
    """The outcomes in the order of the request, one for each partition; what has none is answered `default`."""

    def result(topic: NamedTopic[Asked], partition: Asked) -> DeleteRecordsResponse.DeleteRecordsPartitionResult:
        outcome = outcomes.get(TopicPartition(topic.name, partition.partition_index), default)
        return DeleteRecordsResponse.DeleteRecordsPartitionResult(
            partition_index=partition.partition_index, low_watermark=outcome.low_watermark, error_code=outcome.code
        )

    named = yield from named_once(request.topics, _partitions_of, lambda each: each.partition_index)
    topics = yield from each_within(
        named,
        lambda topic: topic.partitions,
        result,
        lambda topic, found: DeleteRecordsResponse.DeleteRecordsTopicResult(name=topic.name, partitions=found),
    )
    return DeleteRecordsResponse(topics=topics)
