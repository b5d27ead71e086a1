"""Elections as the protocol asks for them and tells of them (KIP-183, KIP-460)."""

from __future__ import annotations

from collections.abc import Iterable

from barnabas.wire import messages
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import ElectionType, TopicPartition


def elect_request(
    partitions: Iterable[TopicPartition] | None, election_type: ElectionType, timeout_ms: int
) -> messages.ElectLeadersRequest:
    """Asks for leaders of these partitions, or of all."""
    topics: dict[str, messages.ElectLeadersRequest.TopicPartitions] = {}
    for topic, number in partitions or ():
        named = topics.setdefault(topic, messages.ElectLeadersRequest.TopicPartitions(topic=topic))
        named.partitions.append(number)
    return messages.ElectLeadersRequest(
        election_type=int(election_type),
        topic_partitions=None if partitions is None else list(topics.values()),
        timeout_ms=timeout_ms,
    )


def elect_codes(response: messages.ElectLeadersResponse) -> list[tuple[str, int, str | None]]:
    """What, the error code and the message, of the whole request, and of partitions where a broker was asked that is
    not the controller, which says so of each.
    """
    return [
        ("the election", response.error_code, None),
        *(
            (f"{topic.topic}-{result.partition_id}", result.error_code, result.error_message)
            for topic in response.replica_election_results
            for result in topic.partition_result
            if result.error_code == ErrorCode.NOT_CONTROLLER
        ),
    ]


def elected(response: messages.ElectLeadersResponse) -> dict[TopicPartition, KafkaError | None]:
    """None for a partition whose leader was elected, else why none was."""
    return {
        TopicPartition(topic.topic, result.partition_id): (
            KafkaError(result.error_code, result.error_message) if result.error_code else None
        )
        for topic in response.replica_election_results
        for result in topic.partition_result
    }
