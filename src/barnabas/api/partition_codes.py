"""The outcomes of a request that names partitions, one error code for each, in the order of the request."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Protocol, TypeVar

from barnabas.api.named_once import NamedTopic, Topic, named_once
from barnabas.kernel.steps import Steps, each_within
from barnabas.wire.errors import ErrorCode
from barnabas.wire.topics import TopicPartition


class _Indexed(Protocol):
    partition_index: int


Partition = TypeVar("Partition", bound=_Indexed)
PartitionAnswer = TypeVar("PartitionAnswer")
TopicAnswer = TypeVar("TopicAnswer")


def partition_codes(
    topics: Iterable[Topic],
    partitions: Callable[[Topic], Iterable[Partition]],
    codes: Mapping[TopicPartition, ErrorCode],
    partition_answer: Callable[[int, ErrorCode], PartitionAnswer],
    topic_answer: Callable[[str, list[PartitionAnswer]], TopicAnswer],
    *,
    denied: Container[str] = (),
    otherwise: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
) -> Steps[list[TopicAnswer]]:
    """The topics of a response, each partition once. What has no code does not exist, or has that of `otherwise`; of
    topics that are `denied` nothing else is told.
    """

    def answer(topic: NamedTopic[Partition], partition: Partition) -> PartitionAnswer:
        number = partition.partition_index
        if topic.name in denied:
            return partition_answer(number, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return partition_answer(number, codes.get(TopicPartition(topic.name, number), otherwise))

    return (
        yield from each_within(
            (yield from named_once(topics, partitions, lambda partition: partition.partition_index)),
            lambda topic: topic.partitions,
            answer,
            lambda topic, found: topic_answer(topic.name, found),
        )
    )
