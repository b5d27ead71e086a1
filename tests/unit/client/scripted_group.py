"""A leader and group coordinator that does what a test says, for a consumer that is a member of a group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from barnabas.client.connections import Lane
from barnabas.client.consumer import Consumer
from barnabas.client.offset_lookup import EpochEnd
from barnabas.client.settings import ConsumerSettings, OffsetReset
from barnabas.client.subscription_bytes import write_assignment
from barnabas.kernel.host import Host
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    FetchRequest,
    FetchResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from barnabas.wire.record_batch import assign_offset_and_epoch, read_batch_header
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.topics import TopicPartition
from tests.unit.client.scripted_client import TOPIC_ID, ScriptedClient, simulated

PARTITION = TopicPartition("events", 0)
SETTINGS = ConsumerSettings(
    group_id="readers", offset_reset=OffsetReset.EARLIEST, auto_commit=False, heartbeat_interval_ms=100
)


def records(base_offset: int, count: int = 1) -> bytes:
    """A batch whose values are the offsets."""
    builder = RecordBatchBuilder(base_offset=base_offset)
    for offset in range(base_offset, base_offset + count):
        builder.append(1_000, None, b"%d" % offset)
    data = builder.build()
    assign_offset_and_epoch(data, 0, base_offset, read_batch_header(data).length_bytes, 0)
    return bytes(data)


class Broker:
    """Leads the topic, in which every fetch finds records, and coordinates a group of one member."""

    def __init__(self) -> None:
        self.member_id = ""
        self.generation = 0
        self.errors: dict[type, ErrorCode] = {}
        """What requests of a kind are answered instead, once each."""
        self.failures: dict[type, Exception] = {}
        """As `errors`, for what is raised."""
        self.silent: set[type] = set()
        """Requests that are never answered."""
        self.seen: list[tuple[Any, Lane]] = []
        self.records_per_fetch = 1
        self.held: asyncio.Event | None = None
        """Where given, fetches are answered only when it is set."""
        self.fetch_errors: list[ErrorCode] = []
        """What the next partitions that are fetched are answered instead."""
        self.epoch_end = EpochEnd(0, 1_000_000)
        """Where the epoch ends that the position has, as the leader knows."""

    def of(self, kind: type) -> list[Any]:
        return [request for request, _ in self.seen if type(request) is kind]

    def lanes_of(self, *kinds: type) -> set[Lane]:
        return {lane for request, lane in self.seen if type(request) in kinds}

    async def answer(self, request: Any, lane: Lane) -> Any:
        kind = type(request)
        self.seen.append((request, lane))
        if kind in self.silent:
            await asyncio.get_running_loop().create_future()
        if kind in self.failures:
            raise self.failures.pop(kind)
        if kind is FetchRequest and self.held is not None:
            await self.held.wait()
        handlers: dict[type, Callable[[Any, ErrorCode], Any]] = {
            FindCoordinatorRequest: self._find,
            JoinGroupRequest: self._join,
            SyncGroupRequest: self._sync,
            HeartbeatRequest: lambda _, error: HeartbeatResponse(error_code=error),
            LeaveGroupRequest: lambda _, error: LeaveGroupResponse(error_code=error),
            OffsetFetchRequest: lambda _, __: OffsetFetchResponse(
                groups=[OffsetFetchResponse.OffsetFetchResponseGroup(group_id="readers", topics=[])]
            ),
            OffsetCommitRequest: self._commit,
            ListOffsetsRequest: self._list_offsets,
            FetchRequest: self._fetch,
            OffsetForLeaderEpochRequest: self._end_epoch,
        }
        return handlers[kind](request, self.errors.pop(kind, ErrorCode.NONE))

    def _find(self, _request: Any, _error: ErrorCode) -> FindCoordinatorResponse:
        coordinator = FindCoordinatorResponse.Coordinator(key="readers", node_id=1, host="broker", port=9092)
        return FindCoordinatorResponse(coordinators=[coordinator])

    def _join(self, request: JoinGroupRequest, error: ErrorCode) -> JoinGroupResponse:
        if error is ErrorCode.NONE and request.member_id not in ("", self.member_id):
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if error is not ErrorCode.NONE:
            return JoinGroupResponse(error_code=error, protocol_name=None)
        self.generation += 1
        self.member_id = request.member_id or f"member-{self.generation}"
        return JoinGroupResponse(
            generation_id=self.generation, protocol_name="range", leader="another", member_id=self.member_id
        )

    def _sync(self, request: SyncGroupRequest, error: ErrorCode) -> SyncGroupResponse:
        if error is ErrorCode.NONE and request.generation_id != self.generation:
            error = ErrorCode.ILLEGAL_GENERATION
        return SyncGroupResponse(error_code=error, assignment=write_assignment([PARTITION]))

    def _commit(self, request: OffsetCommitRequest, error: ErrorCode) -> OffsetCommitResponse:
        answers = [
            OffsetCommitResponse.OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error)
            for topic in request.topics
            for each in topic.partitions
        ]
        return OffsetCommitResponse(
            topics=[OffsetCommitResponse.OffsetCommitResponseTopic(name="events", partitions=answers)]
        )

    def _list_offsets(self, _request: Any, _error: ErrorCode) -> ListOffsetsResponse:
        answer = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=0, offset=0, timestamp=-1)
        return ListOffsetsResponse(
            topics=[ListOffsetsResponse.ListOffsetsTopicResponse(name="events", partitions=[answer])]
        )

    def _end_epoch(self, _request: Any, _error: ErrorCode) -> OffsetForLeaderEpochResponse:
        answer = OffsetForLeaderEpochResponse.EpochEndOffset(
            partition=0, leader_epoch=self.epoch_end.leader_epoch, end_offset=self.epoch_end.offset
        )
        return OffsetForLeaderEpochResponse(
            topics=[OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic="events", partitions=[answer])]
        )

    @property
    def commits(self) -> list[int]:
        """The offsets that were committed, in order."""
        return [request.topics[0].partitions[0].committed_offset for request in self.of(OffsetCommitRequest)]

    def _fetch(self, request: FetchRequest, _error: ErrorCode) -> FetchResponse:
        partitions = [
            FetchResponse.PartitionData(partition_index=0, error_code=self.fetch_errors.pop(0))
            if self.fetch_errors
            else FetchResponse.PartitionData(
                partition_index=0, records=records(asked.fetch_offset, self.records_per_fetch)
            )
            for topic in request.topics
            for asked in topic.partitions
        ]
        topics = [FetchResponse.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=partitions)]
        return FetchResponse(session_id=0, responses=topics)


def with_member(
    body: Callable[[Consumer, Broker, ScriptedClient], Awaitable[None]], settings: ConsumerSettings = SETTINGS
) -> None:
    """Runs `body` with a consumer that has joined and read something."""

    async def main(host: Host) -> None:
        broker = Broker()
        client = ScriptedClient(host, broker.answer, {"events": 1})
        consumer = Consumer(client, settings)
        consumer.subscribe(["events"])
        assert await consumer.poll(1_000)
        assert consumer.is_stable
        await body(consumer, broker, client)
        broker.silent.clear()
        await consumer.close(timeout_ms=1_000)
        await client.close()

    simulated(main)


async def lose_membership(consumer: Consumer, broker: Broker, client: ScriptedClient) -> None:
    """The session ends, and the member hears of it by a heartbeat."""
    broker.member_id = ""
    broker.errors[HeartbeatRequest] = ErrorCode.UNKNOWN_MEMBER_ID
    await unsettled(consumer, client)


async def unsettled(consumer: Consumer, client: ScriptedClient) -> None:
    """Waits until the member has heard that it must join again."""
    while consumer.is_stable:
        await client.timers.sleep(10)


async def settled(consumer: Consumer) -> None:
    while not consumer.is_stable:
        await consumer.poll(100)
