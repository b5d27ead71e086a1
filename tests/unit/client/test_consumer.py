"""`barnabas.client.consumer` and `group_member`: a member through what befalls it; the coordinator is scripted."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from barnabas.client.connections import Lane
from barnabas.client.consumer import Consumer
from barnabas.client.errors import ClientError, CommitFailedError
from barnabas.client.records import TopicPartition
from barnabas.client.settings import ConsumerSettings, OffsetReset
from barnabas.client.subscription_bytes import read_subscription, write_assignment
from barnabas.kernel.host import Host
from barnabas.link.errors import InFlightLimitError
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
    SyncGroupRequest,
    SyncGroupResponse,
)
from barnabas.wire.record_batch import assign_offset_and_epoch, read_batch_header
from barnabas.wire.record_builder import RecordBatchBuilder
from tests.unit.client.scripted_client import TOPIC_ID, ScriptedClient, cluster_of, simulated

PARTITION = TopicPartition("events", 0)
SETTINGS = ConsumerSettings(
    group_id="readers", offset_reset=OffsetReset.EARLIEST, auto_commit=False, heartbeat_interval_ms=100
)


def records(base_offset: int) -> bytes:
    builder = RecordBatchBuilder(base_offset=base_offset)
    builder.append(1_000, None, b"%d" % base_offset)
    data = builder.build()
    assign_offset_and_epoch(data, 0, base_offset, read_batch_header(data).length_bytes, 0)
    return bytes(data)


class Broker:
    """Leads the topic, in which every fetch finds one record more, and coordinates a group of one member."""

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

    def _fetch(self, request: FetchRequest, _error: ErrorCode) -> FetchResponse:
        partitions = [
            FetchResponse.PartitionData(partition_index=0, records=records(asked.fetch_offset))
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


@pytest.mark.parametrize("instance_id", [None, "static"])
def test_joins_as_a_new_member_when_its_session_has_ended(instance_id: str | None) -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient) -> None:
        await lose_membership(consumer, broker, client)
        await settled(consumer)
        assert [request.member_id for request in broker.of(JoinGroupRequest)] == ["", ""]

    with_member(body, dataclasses.replace(SETTINGS, group_instance_id=instance_id))


def test_keeps_its_id_when_only_its_generation_is_over() -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient) -> None:
        broker.errors[HeartbeatRequest] = ErrorCode.ILLEGAL_GENERATION
        await unsettled(consumer, client)
        await settled(consumer)
        assert [request.member_id for request in broker.of(JoinGroupRequest)] == ["", "member-1"]

    with_member(body)


@pytest.mark.parametrize(("instance_id", "leaves"), [(None, True), ("static", False)])
def test_a_static_member_that_is_not_polled_stays_until_its_session_ends(instance_id: str | None, leaves: bool) -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient) -> None:
        await client.timers.sleep(1_000)
        assert not consumer.is_stable
        assert bool(broker.of(LeaveGroupRequest)) is leaves
        beaten = len(broker.of(HeartbeatRequest))
        await client.timers.sleep(1_000)
        assert len(broker.of(HeartbeatRequest)) == beaten

    with_member(body, dataclasses.replace(SETTINGS, group_instance_id=instance_id, poll_interval_ms_max=500))


def test_goes_on_beating_after_a_heartbeat_that_could_not_be_sent() -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient) -> None:
        broker.failures[HeartbeatRequest] = InFlightLimitError("too many wait")
        beaten = len(broker.of(HeartbeatRequest))
        await client.timers.sleep(1_000)
        assert len(broker.of(HeartbeatRequest)) > beaten + 5
        assert consumer.is_stable

    with_member(body)


def test_what_waits_for_other_members_keeps_nothing_else_waiting() -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient) -> None:
        await consumer.commit()
        await client.timers.sleep(300)
        patient = broker.lanes_of(JoinGroupRequest, SyncGroupRequest)
        others = broker.lanes_of(HeartbeatRequest, OffsetCommitRequest, OffsetFetchRequest, ListOffsetsRequest)
        assert len(patient) == len(others) == 1
        assert not patient & others
        assert not patient & broker.lanes_of(FetchRequest)

    with_member(body)


def test_commits_nothing_while_it_is_no_member() -> None:
    """The group may be empty by now, and would take offsets from anybody: also those that others have gone beyond."""

    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient) -> None:
        await consumer.commit()
        await lose_membership(consumer, broker, client)
        with pytest.raises(CommitFailedError, match="no member of group readers now"):
            await consumer.commit()
        assert len(broker.of(OffsetCommitRequest)) == 1

    with_member(body)


def test_polling_does_not_wait_for_an_automatic_commit() -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient) -> None:
        broker.silent.add(OffsetCommitRequest)
        began = client.host.loop.time()
        while not broker.of(OffsetCommitRequest):
            assert await consumer.poll(100)
            await client.timers.sleep(50)
        assert await consumer.poll(100)
        assert client.host.loop.time() - began < 0.5
        broker.silent.clear()
        await consumer.commit()  # instead of the one that is under way
        first, last = broker.of(OffsetCommitRequest)
        assert first.topics[0].partitions[0].committed_offset < last.topics[0].partitions[0].committed_offset

    with_member(body, dataclasses.replace(SETTINGS, auto_commit=True, auto_commit_interval_ms=200))


def test_gives_no_more_records_of_what_it_is_giving_up() -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient) -> None:
        broker.silent.add(OffsetCommitRequest)
        broker.errors[HeartbeatRequest] = ErrorCode.REBALANCE_IN_PROGRESS
        await unsettled(consumer, client)
        last: int | None = None
        while not broker.of(OffsetCommitRequest):
            for record in await consumer.poll(10):
                last = record.offset
        assert await consumer.poll(500) == []
        (commit,) = broker.of(OffsetCommitRequest)
        assert last is None or commit.topics[0].partitions[0].committed_offset > last

    with_member(body, dataclasses.replace(SETTINGS, auto_commit=True, auto_commit_interval_ms=1_000_000))


def test_a_member_whose_topics_are_gone_still_comes_to_rebalances() -> None:
    """Otherwise the group would wait for it until its time for polling is over."""

    async def main(host: Host) -> None:
        broker = Broker()
        client = ScriptedClient(host, broker.answer, {"events": 1, "other": 1})
        consumer = Consumer(client, SETTINGS)
        consumer.subscribe(re.compile("ev.*"))
        assert await consumer.poll(1_000)
        client.metadata._replace(cluster_of({"other": 1}))
        broker.errors[HeartbeatRequest] = ErrorCode.REBALANCE_IN_PROGRESS
        while len(broker.of(JoinGroupRequest)) < 2:
            await consumer.poll(100)
        metadata = broker.of(JoinGroupRequest)[1].protocols[0].metadata
        assert read_subscription(metadata, None).topics == ()
        await consumer.close()
        await client.close()

    simulated(main)


def test_a_subscription_replaces_the_one_before() -> None:
    async def main(host: Host) -> None:
        client = ScriptedClient(host, Broker().answer, {"events": 1, "other": 1})
        consumer = Consumer(client, SETTINGS)
        consumer.subscribe(re.compile("ev.*"))
        assert client.metadata._everything_wanted == 1
        assert consumer.topics == ("events",)
        consumer.subscribe(["other"])
        assert client.metadata._everything_wanted == 0
        assert consumer.topics == ("other",)
        with pytest.raises(ClientError, match="needs a topic"):
            consumer.subscribe([])
        assert consumer.topics == ("other",)
        await consumer.close()
        await client.close()

    simulated(main)
