"""The requests of a follower, and what their answers say, without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from barnabas.follower.fetch_protocol import (
    FETCH_WITH_LAST_EPOCH,
    FETCH_WITH_REPLICA_STATE,
    FETCH_WITH_TOPIC_IDS,
    FETCH_WITHOUT_TOPIC_IDS,
)
from barnabas.follower.fetcher_partitions import FetchedPartition
from barnabas.follower.follower_session import FollowerSession, Position
from barnabas.follower.settings import ReplicaSettings
from barnabas.log.partition.leader_epochs import EpochEnd
from barnabas.wire.errors import ErrorCode
from barnabas.wire.fetch_session import Composition
from barnabas.wire.messages import (
    FetchRequest,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from barnabas.wire.sentinels import NO_EPOCH
from barnabas.wire.topics import TopicPartition


class LeaderOffset(NamedTuple):
    """One partition's answer to ListOffsets."""

    error: ErrorCode
    offset: int
    leader_epoch: int = NO_EPOCH


class LeaderEpochEnd(NamedTuple):
    """One partition's answer to OffsetForLeaderEpoch."""

    error: ErrorCode
    end: EpochEnd


def fetch_request(
    composition: Composition[Position],
    session: FollowerSession,
    settings: ReplicaSettings,
    *,
    version: int,
    max_wait_ms: int,
    broker_id: int,
    broker_epoch: int,
) -> tuple[FetchRequest, int]:
    """The request and its version, which is one without topic ids if a topic has none."""
    if version >= FETCH_WITH_TOPIC_IDS and not session.has_topic_ids:
        version = FETCH_WITHOUT_TOPIC_IDS
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=settings.fetch_bytes_min,
        max_bytes=settings.fetch_response_bytes_max,
        session_id=session.session_id,
        session_epoch=session.epoch,
        topics=_fetched_topics(composition.fetched, settings.fetch_bytes_max, version),
        forgotten_topics_data=_forgotten_topics(composition.forgotten),
    )
    if version >= FETCH_WITH_REPLICA_STATE:
        request.replica_state = FetchRequest.ReplicaState(replica_id=broker_id, replica_epoch=broker_epoch)
    else:
        request.replica_id = broker_id
    return request, version


def _fetched_topics(
    fetched: Iterable[tuple[TopicPartition, Position]], bytes_max: int, version: int
) -> list[FetchRequest.FetchTopic]:
    topics: dict[str, FetchRequest.FetchTopic] = {}
    for (name, number), position in fetched:
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = FetchRequest.FetchTopic(topic=name, topic_id=position.topic_id)
        topic.partitions.append(
            FetchRequest.FetchPartition(
                partition=number,
                current_leader_epoch=position.leader_epoch,
                fetch_offset=position.fetch_offset,
                last_fetched_epoch=position.last_fetched_epoch if version >= FETCH_WITH_LAST_EPOCH else NO_EPOCH,
                log_start_offset=position.log_start_offset,
                partition_max_bytes=bytes_max,
            )
        )
    return list(topics.values())


def _forgotten_topics(forgotten: Iterable[tuple[TopicPartition, Position]]) -> list[FetchRequest.ForgottenTopic]:
    topics: dict[tuple[str, bytes], FetchRequest.ForgottenTopic] = {}
    for (name, number), position in forgotten:
        key = name, bytes(position.topic_id)
        topic = topics.get(key)
        if topic is None:
            topic = topics[key] = FetchRequest.ForgottenTopic(topic=name, topic_id=position.topic_id)
        topic.partitions.append(number)
    return list(topics.values())


def epoch_request(
    epochs: Mapping[TopicPartition, tuple[FetchedPartition, int]], broker_id: int
) -> OffsetForLeaderEpochRequest:
    """Asks where the epoch of each partition ends in the leader's log."""
    topics: dict[str, OffsetForLeaderEpochRequest.OffsetForLeaderTopic] = {}
    for (name, number), (fetched, epoch) in epochs.items():
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=name)
        topic.partitions.append(
            OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
                partition=number, current_leader_epoch=fetched.leader_epoch, leader_epoch=epoch
            )
        )
    return OffsetForLeaderEpochRequest(replica_id=broker_id, topics=list(topics.values()))


def epoch_ends(response: OffsetForLeaderEpochResponse) -> dict[TopicPartition, LeaderEpochEnd]:
    return {
        TopicPartition(topic.topic, partition.partition): LeaderEpochEnd(
            ErrorCode.for_code(partition.error_code), EpochEnd(partition.leader_epoch, partition.end_offset)
        )
        for topic in response.topics
        for partition in topic.partitions
    }


def offsets_request(fetched: Iterable[FetchedPartition], timestamp: int, broker_id: int) -> ListOffsetsRequest:
    """Asks for the leader's log end (LATEST) or log start (EARLIEST) of partitions."""
    topics: dict[str, ListOffsetsRequest.ListOffsetsTopic] = {}
    for partition in fetched:
        name, number = partition.topic_partition
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = ListOffsetsRequest.ListOffsetsTopic(name=name)
        topic.partitions.append(
            ListOffsetsRequest.ListOffsetsPartition(
                partition_index=number, current_leader_epoch=partition.leader_epoch, timestamp=timestamp
            )
        )
    return ListOffsetsRequest(replica_id=broker_id, topics=list(topics.values()))


def leader_offsets(response: ListOffsetsResponse) -> dict[TopicPartition, LeaderOffset]:
    return {
        TopicPartition(topic.name, partition.partition_index): LeaderOffset(
            ErrorCode.for_code(partition.error_code), partition.offset, partition.leader_epoch
        )
        for topic in response.topics
        for partition in topic.partitions
    }
