"""OffsetForLeaderEpoch, 0 to 4: where leader epochs end in the logs that this broker leads, for followers and for
clients that want to know whether their records were truncated (KIP-320).
"""

from __future__ import annotations

from barnabas.api.context import RequestContext
from barnabas.coordination.layout.topics import TopicPartition
from barnabas.replication.ports import Replicas
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import KafkaError
from barnabas.wire.messages import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse


class OffsetForLeaderEpochHandler:
    """Asks each partition."""

    api_key = ApiKey.OFFSET_FOR_LEADER_EPOCH
    versions = (0, 4)

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def handle(self, _context: RequestContext, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
                    topic=topic.topic, partitions=[self._end_offset(topic.topic, asked) for asked in topic.partitions]
                )
                for topic in request.topics
            ]
        )

    def error_response(
        self, _context: RequestContext, request: OffsetForLeaderEpochRequest, error: KafkaError
    ) -> OffsetForLeaderEpochResponse:
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[
                        OffsetForLeaderEpochResponse.EpochEndOffset(partition=asked.partition, error_code=error.code)
                        for asked in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _end_offset(
        self, topic: str, asked: OffsetForLeaderEpochRequest.OffsetForLeaderPartition
    ) -> OffsetForLeaderEpochResponse.EpochEndOffset:
        found = OffsetForLeaderEpochResponse.EpochEndOffset(error_code=0, partition=asked.partition)
        try:
            partition = self._replicas.get_partition(TopicPartition(topic, asked.partition))
            end = partition.end_offset_for_epoch(asked.leader_epoch, asked.current_leader_epoch, leader_only=True)
        except KafkaError as error:
            found.error_code = error.code
        else:
            found.leader_epoch, found.end_offset = end.epoch, end.end_offset
        return found
