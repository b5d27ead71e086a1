"""Reassignments as the protocol asks for them and tells of them (KIP-455)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from barnabas.wire import messages
from barnabas.wire.topics import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionReassignment:
    """A partition that is being moved; `replicas` has those being added and removed, too."""

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]

    @property
    def target_replicas(self) -> tuple[int, ...]:
        """Those that it has in the end, the preferred leader first."""
        return tuple(replica for replica in self.replicas if replica not in self.removing_replicas)


def alter_request(
    targets: Mapping[TopicPartition, Sequence[int] | None], timeout_ms: int
) -> messages.AlterPartitionReassignmentsRequest:
    """Asks for these replicas of partitions; None cancels."""
    topics: dict[str, messages.AlterPartitionReassignmentsRequest.ReassignableTopic] = {}
    for partition, target in targets.items():
        topic = topics.setdefault(
            partition.topic, messages.AlterPartitionReassignmentsRequest.ReassignableTopic(name=partition.topic)
        )
        topic.partitions.append(
            messages.AlterPartitionReassignmentsRequest.ReassignablePartition(
                partition_index=partition.partition, replicas=None if target is None else list(target)
            )
        )
    return messages.AlterPartitionReassignmentsRequest(topics=list(topics.values()), timeout_ms=timeout_ms)


def alter_codes(response: messages.AlterPartitionReassignmentsResponse) -> list[tuple[str, int, str | None]]:
    """What, the error code and the message, of the whole request and of each partition."""
    return [
        ("the reassignment", response.error_code, response.error_message),
        *(
            (f"{topic.name}-{partition.partition_index}", partition.error_code, partition.error_message)
            for topic in response.responses
            for partition in topic.partitions
        ),
    ]


def list_request(
    partitions: Iterable[TopicPartition] | None, timeout_ms: int
) -> messages.ListPartitionReassignmentsRequest:
    """Asks for the reassignments of these partitions, or for all."""
    if partitions is None:
        return messages.ListPartitionReassignmentsRequest(topics=None, timeout_ms=timeout_ms)
    topics: dict[str, messages.ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics] = {}
    for partition in partitions:
        topic = topics.setdefault(
            partition.topic,
            messages.ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics(name=partition.topic),
        )
        topic.partition_indexes.append(partition.partition)
    return messages.ListPartitionReassignmentsRequest(topics=list(topics.values()), timeout_ms=timeout_ms)


def listed(response: messages.ListPartitionReassignmentsResponse) -> dict[TopicPartition, PartitionReassignment]:
    """The partitions that are being moved."""
    return {
        TopicPartition(topic.name, partition.partition_index): PartitionReassignment(
            tuple(partition.replicas), tuple(partition.adding_replicas), tuple(partition.removing_replicas)
        )
        for topic in response.topics
        for partition in topic.partitions
    }
