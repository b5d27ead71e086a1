"""`barnabas.client.consumer` and `group_member`: a member through what befalls it; the coordinator is scripted."""

from __future__ import annotations

import dataclasses
import re

import pytest

from barnabas.client.consumer import Consumer
from barnabas.client.errors import ClientError, CommitFailedError
from barnabas.client.subscription_bytes import read_subscription
from barnabas.kernel.host import Host
from barnabas.link.errors import InFlightLimitError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    FetchRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from tests.unit.client.scripted_client import ScriptedClient, cluster_of, simulated
from tests.unit.client.scripted_group import SETTINGS, Broker, lose_membership, settled, unsettled, with_member


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
        with pytest.raises(CommitFailedError, match="not a member of group readers now"):
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
