"""DescribeProducers, 0: the producers that the logs of this broker remember, of leaders and followers alike."""

from __future__ import annotations

from collections.abc import Callable

from barnabas.api.authorization import Decisions
from barnabas.api.context import RequestContext
from barnabas.controller.topic_assignment import check_topic_name
from barnabas.kernel.steps import Steps, each_within
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.serving.ports import MetadataSource, Replicas
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import DescribeProducersRequest, DescribeProducersResponse
from barnabas.wire.topics import TopicPartition

Topic = DescribeProducersRequest.TopicRequest


class DescribeProducersHandler:
    """Asks each log."""

    api_key = ApiKey.DESCRIBE_PRODUCERS
    versions = (0, 0)

    def __init__(self, replicas: Replicas, metadata: MetadataSource) -> None:
        self._replicas = replicas
        self._metadata = metadata

    def handle(self, context: RequestContext, request: DescribeProducersRequest) -> Steps[DescribeProducersResponse]:
        may_read = Decisions(context, AclOperation.READ, ResourceType.TOPIC)

        def described(topic: Topic, index: int) -> DescribeProducersResponse.PartitionResponse:
            refusal = self._refusal(topic.name, may_read)
            return self._producers(TopicPartition(topic.name, index)) if refusal is None else _failed(index, refusal)

        return _response(request, described)

    def error_response(
        self, _context: RequestContext, request: DescribeProducersRequest, error: KafkaError
    ) -> Steps[DescribeProducersResponse]:
        return _response(request, lambda _, index: _failed(index, error))

    def _refusal(self, topic: str, may_read: Decisions) -> KafkaError | None:
        try:
            check_topic_name(topic)
        except KafkaError as error:
            return error
        if not may_read.allow(topic):
            return KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return None if topic in self._metadata.image.topics else KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _producers(self, topic_partition: TopicPartition) -> DescribeProducersResponse.PartitionResponse:
        index = topic_partition.partition
        try:
            log = self._replicas.get_partition(topic_partition).log
        except KafkaError as error:
            return DescribeProducersResponse.PartitionResponse(partition_index=index, error_code=error.code)
        if log is None:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return DescribeProducersResponse.PartitionResponse(partition_index=index, error_code=code)
        return DescribeProducersResponse.PartitionResponse(
            partition_index=index,
            error_code=ErrorCode.NONE,
            active_producers=[
                DescribeProducersResponse.ProducerState(
                    producer_id=producer.producer_id,
                    producer_epoch=producer.epoch,
                    last_sequence=producer.last_sequence,
                    last_timestamp=producer.timestamp_ms,
                    coordinator_epoch=producer.coordinator_epoch,
                    current_txn_start_offset=(
                        -1 if producer.transaction_first_offset is None else producer.transaction_first_offset
                    ),
                )
                for producer in log.active_producers()
            ],
        )


def _response(
    request: DescribeProducersRequest, described: Callable[[Topic, int], DescribeProducersResponse.PartitionResponse]
) -> Steps[DescribeProducersResponse]:
    topics = yield from each_within(
        request.topics,
        lambda topic: topic.partition_indexes,
        described,
        lambda topic, found: DescribeProducersResponse.TopicResponse(name=topic.name, partitions=found),
    )
    return DescribeProducersResponse(topics=topics)


def _failed(index: int, error: KafkaError) -> DescribeProducersResponse.PartitionResponse:
    return DescribeProducersResponse.PartitionResponse(
        partition_index=index, error_code=error.code, error_message=error.message
    )
