"""OffsetForLeaderEpoch, 0 to 4: where leader epochs end in the logs that this broker leads, for followers and for
clients that want to know whether their records were truncated (KIP-320).
"""

from __future__ import annotations

from collections.abc import Callable

from barnabas.api.authorization import Decisions, may_with_cluster
from barnabas.api.context import RequestContext
from barnabas.kernel.steps import Steps, each_within
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.serving.ports import Replicas
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from barnabas.wire.topics import TopicPartition

Topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
Partition = OffsetForLeaderEpochRequest.OffsetForLeaderPartition
EndOffset = OffsetForLeaderEpochResponse.EpochEndOffset
TopicResult = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult


class OffsetForLeaderEpochHandler:
    """Asks each partition."""

    api_key = ApiKey.OFFSET_FOR_LEADER_EPOCH
    versions = (0, 4)

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def handle(
        self, context: RequestContext, request: OffsetForLeaderEpochRequest
    ) -> Steps[OffsetForLeaderEpochResponse]:
        if may_with_cluster(context, AclOperation.CLUSTER_ACTION, quietly=True):
            return _response(request, self._end_offset)
        # Consumers ask, too (KIP-320).
        may_describe = Decisions(context, AclOperation.DESCRIBE, ResourceType.TOPIC)

        def end_offset(topic: Topic, asked: Partition) -> EndOffset:
            if may_describe.allow(topic.topic):
                return self._end_offset(topic, asked)
            return EndOffset(partition=asked.partition, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)

        return _response(request, end_offset)

    def error_response(
        self, _context: RequestContext, request: OffsetForLeaderEpochRequest, error: KafkaError
    ) -> Steps[OffsetForLeaderEpochResponse]:
        return _response(request, lambda _, asked: EndOffset(partition=asked.partition, error_code=error.code))

    def _end_offset(self, topic: Topic, asked: Partition) -> EndOffset:
        found = EndOffset(error_code=0, partition=asked.partition)
        try:
            partition = self._replicas.get_partition(TopicPartition(topic.topic, asked.partition))
            end = partition.end_offset_for_epoch(asked.leader_epoch, asked.current_leader_epoch, leader_only=True)
        except KafkaError as error:
            found.error_code = error.code
        else:
            found.leader_epoch, found.end_offset = end.epoch, end.end_offset
        return found


def _response(
    request: OffsetForLeaderEpochRequest, end_offset: Callable[[Topic, Partition], EndOffset]
) -> Steps[OffsetForLeaderEpochResponse]:
    topics = yield from each_within(
        request.topics,
        lambda topic: topic.partitions,
        end_offset,
        lambda topic, ends: TopicResult(topic=topic.topic, partitions=ends),
    )
    return OffsetForLeaderEpochResponse(topics=topics)
