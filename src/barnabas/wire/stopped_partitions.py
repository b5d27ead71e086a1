"""What a StopReplica request says of each partition, in any version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import StopReplicaRequest, StopReplicaResponse
from barnabas.wire.sentinels import EPOCH_DURING_DELETE, NO_EPOCH
from barnabas.wire.topics import TopicPartition


class StoppedPartition(NamedTuple):
    """One partition of a request."""

    topic_partition: TopicPartition
    leader_epoch: int
    delete: bool

    def is_fenced_by(self, leader_epoch: int) -> bool:
        """Whether the request is older than what is known."""
        return self.leader_epoch not in (NO_EPOCH, EPOCH_DURING_DELETE) and self.leader_epoch < leader_epoch


def stopped_partitions(request: StopReplicaRequest) -> Iterator[StoppedPartition]:
    """The partitions of a request, in its order."""
    for partition in request.ungrouped_partitions:
        topic_partition = TopicPartition(partition.topic_name, partition.partition_index)
        yield StoppedPartition(topic_partition, NO_EPOCH, request.delete_partitions)
    for topic in request.topics:
        for index in topic.partition_indexes:
            yield StoppedPartition(TopicPartition(topic.name, index), NO_EPOCH, request.delete_partitions)
    for states in request.topic_states:
        for state in states.partition_states:
            topic_partition = TopicPartition(states.topic_name, state.partition_index)
            yield StoppedPartition(topic_partition, state.leader_epoch, state.delete_partition)


def partition_errors(
    errors: Mapping[TopicPartition, ErrorCode],
) -> list[StopReplicaResponse.StopReplicaPartitionError]:
    """The outcomes as a response tells them."""
    return [
        StopReplicaResponse.StopReplicaPartitionError(
            topic_name=topic_partition.topic, partition_index=topic_partition.partition, error_code=error
        )
        for topic_partition, error in errors.items()
    ]
