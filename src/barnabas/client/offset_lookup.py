"""Asks leaders for offsets: those of timestamps (ListOffsets), and those at which leader epochs end (KIP-320)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from barnabas.client.errors import ClientTimeoutError
from barnabas.client.isolation import IsolationLevel
from barnabas.client.records import OffsetAndTimestamp
from barnabas.client.retrying import is_retriable
from barnabas.kernel.facts import fact
from barnabas.wire import messages
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.sentinels import CONSUMER_ID
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.client.client import Client
    from barnabas.client.cluster import BrokerNode
    from barnabas.client.connections import Lane


@fact
class EpochEnd:
    """Where the largest leader epoch up to the one asked for ends; -1 twice where the log has none."""

    leader_epoch: int
    offset: int


@dataclass(slots=True)
class Answers:
    """What leaders answered, and for which partitions something was in the way."""

    found: dict[TopicPartition, Any] = field(default_factory=dict)
    failed: dict[TopicPartition, Exception] = field(default_factory=dict)


class OffsetLookup:
    """Look-ups for a client that is no follower."""

    def __init__(self, client: Client, lane: Lane, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED) -> None:
        self._client = client
        self._lane = lane
        self._isolation = isolation

    async def offsets(self, timestamps_ms: Mapping[TopicPartition, int], timeout_ms: float | None = None) -> Answers:
        """For each partition an OffsetAndTimestamp: the first record that is not older, offset -1 where there is none.

        Timestamps -1 and -2 mean the end and the beginning of the log. One attempt, of `request_timeout_ms` where no
        time is given; failures are in the answers.
        """

        async def ask(node: BrokerNode, partitions: list[TopicPartition], answers: Answers) -> None:
            request = messages.ListOffsetsRequest(
                replica_id=CONSUMER_ID,
                isolation_level=int(self._isolation),
                topics=[
                    messages.ListOffsetsRequest.ListOffsetsTopic(
                        name=topic,
                        partitions=[
                            messages.ListOffsetsRequest.ListOffsetsPartition(
                                partition_index=partition.partition,
                                current_leader_epoch=self._client.cluster.leader_epoch(partition),
                                timestamp=timestamps_ms[partition],
                            )
                            for partition in of_topic
                        ],
                    )
                    for topic, of_topic in _by_topic(partitions).items()
                ],
            )
            response = await self._client.ask(node, self._lane, request, timeout_ms)
            for topic in response.topics:
                for answer in topic.partitions:
                    partition = TopicPartition(topic.name, answer.partition_index)
                    if answer.error_code:
                        answers.failed[partition] = KafkaError(answer.error_code, f"ListOffsets of {partition}")
                    else:
                        answers.found[partition] = OffsetAndTimestamp(
                            answer.offset, answer.timestamp, answer.leader_epoch
                        )

        return await self._ask_leaders(timestamps_ms, ask)

    async def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Answers:
        """For each partition the EpochEnd of an epoch. One attempt; failures are in the answers."""

        async def ask(node: BrokerNode, partitions: list[TopicPartition], answers: Answers) -> None:
            request = messages.OffsetForLeaderEpochRequest(
                replica_id=CONSUMER_ID,
                topics=[
                    messages.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
                        topic=topic,
                        partitions=[
                            messages.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
                                partition=partition.partition,
                                current_leader_epoch=self._client.cluster.leader_epoch(partition),
                                leader_epoch=epochs[partition],
                            )
                            for partition in of_topic
                        ],
                    )
                    for topic, of_topic in _by_topic(partitions).items()
                ],
            )
            response = await self._client.ask(node, self._lane, request)
            for topic in response.topics:
                for answer in topic.partitions:
                    partition = TopicPartition(topic.topic, answer.partition)
                    if answer.error_code:
                        answers.failed[partition] = KafkaError(answer.error_code, f"epochs of {partition}")
                    else:
                        answers.found[partition] = EpochEnd(answer.leader_epoch, answer.end_offset)

        return await self._ask_leaders(epochs, ask)

    async def offsets_with_retry(
        self, timestamps_ms: Mapping[TopicPartition, int], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Like `offsets`, repeated until all are known. Raises ClientTimeoutError, KafkaError for what stays wrong."""
        answers = await self.offsets_in_time(timestamps_ms, timeout_ms, needs_all=True)
        if answers.failed:
            raise next(iter(answers.failed.values()))
        return answers.found

    async def offsets_in_time(
        self, timestamps_ms: Mapping[TopicPartition, int], timeout_ms: float | None = None, *, needs_all: bool = False
    ) -> Answers:
        """Like `offsets`, repeated while that may help and there is time; what stays wrong is in the answers. With
        `needs_all` one that will not be known ends it."""
        retry = self._client.retry("looking up offsets", timeout_ms)
        await self._client.metadata.asked_for({partition.topic for partition in timestamps_ms}, retry)
        found = Answers()
        missing = dict(timestamps_ms)
        while missing:
            answers = await self.offsets(missing, retry.attempt_ms)
            found.found |= answers.found
            failed = {
                partition: answers.failed.get(partition)
                or KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "an answer is missing")
                for partition in missing
                if partition not in answers.found
            }
            final = {partition: error for partition, error in failed.items() if not is_retriable(error)}
            found.failed |= final
            missing = {partition: missing[partition] for partition in failed if partition not in final}
            if not missing or (needs_all and final):
                break
            try:
                await retry.again(failed[next(iter(missing))])
            except ClientTimeoutError as error:
                found.failed |= dict.fromkeys(missing, error)
                break
        return found

    # Inside.

    async def _ask_leaders(
        self, partitions: Iterable[TopicPartition], ask: Callable[[BrokerNode, list[TopicPartition], Answers], Any]
    ) -> Answers:
        answers = Answers()
        by_node: dict[int, tuple[BrokerNode, list[TopicPartition]]] = {}
        for partition in partitions:
            leader = self._client.cluster.leader(partition)
            if leader is None:
                topic = self._client.cluster.topics.get(partition.topic)
                is_missing = (
                    topic is not None and bool(topic.partitions) and partition.partition not in topic.partitions
                )
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_missing else ErrorCode.LEADER_NOT_AVAILABLE
                answers.failed[partition] = KafkaError(code, f"the leader of {partition} is not known now")
            else:
                by_node.setdefault(leader[0].node_id, (leader[0], []))[1].append(partition)

        async def ask_one(node: BrokerNode, asked: list[TopicPartition]) -> None:
            try:
                await ask(node, asked, answers)
            except Exception as error:  # noqa: BLE001 - told for each partition
                answers.failed |= dict.fromkeys(asked, error)

        await asyncio.gather(*(ask_one(node, asked) for node, asked in by_node.values()))
        if any(is_retriable(error) for error in answers.failed.values()):
            self._client.metadata.request_update()
        return answers


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    found: dict[str, list[TopicPartition]] = {}
    for partition in partitions:
        found.setdefault(partition.topic, []).append(partition)
    return found
