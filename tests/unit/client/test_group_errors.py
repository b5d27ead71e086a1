"""`barnabas.client.group_member`: which errors of the coordinator end a member, which the user decides on, and which
pass; as Kafka's consumer has it, but for FENCED_INSTANCE_ID, which Kafka's tells only once.
"""

from __future__ import annotations

import dataclasses

import pytest

from barnabas.client.consumer import Consumer
from barnabas.client.errors import CommitFailedError
from barnabas.client.records import OffsetAndMetadata
from barnabas.kernel.host import Host
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import HeartbeatRequest, JoinGroupRequest, OffsetCommitRequest, SyncGroupRequest
from barnabas.wire.topics import TopicPartition
from tests.unit.client.scripted_client import ScriptedClient, simulated
from tests.unit.client.scripted_group import PARTITION, SETTINGS, Broker, settled, unsettled, with_member

STATIC = dataclasses.replace(SETTINGS, group_instance_id="reader-1")
USERS_DECISION = (
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.INVALID_GROUP_ID,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
    ErrorCode.INVALID_SESSION_TIMEOUT,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)


class Listener:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def on_assigned(self, _partitions: tuple[TopicPartition, ...]) -> None:
        self.told.append("assigned")

    async def on_revoked(self, _partitions: tuple[TopicPartition, ...]) -> None:
        self.told.append("revoked")

    async def on_lost(self, _partitions: tuple[TopicPartition, ...]) -> None:
        self.told.append("lost")


async def refusal(consumer: Consumer) -> ErrorCode:
    """What polling comes to, some polls later at most."""
    for _ in range(10):
        try:
            await consumer.poll(50)
        except KafkaError as error:
            return error.code
    pytest.fail("nothing was raised")


@pytest.mark.parametrize("request_kind", [HeartbeatRequest, OffsetCommitRequest], ids=lambda kind: kind.__name__)
def test_a_member_that_is_fenced_never_joins_again(request_kind: type) -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient) -> None:
        listener = Listener()
        consumer.subscribe(["events"], listener)
        await settled(consumer)
        joins = len(broker.of(JoinGroupRequest))
        broker.errors[request_kind] = ErrorCode.FENCED_INSTANCE_ID
        if request_kind is OffsetCommitRequest:
            with pytest.raises(KafkaError) as raised:
                await consumer.commit({PARTITION: OffsetAndMetadata(1)})
            assert raised.value.code is ErrorCode.FENCED_INSTANCE_ID
            assert not consumer.is_stable
        else:
            await unsettled(consumer, client)
        for _ in range(3):
            assert await refusal(consumer) is ErrorCode.FENCED_INSTANCE_ID
        await client.timers.sleep(10_000)
        assert await refusal(consumer) is ErrorCode.FENCED_INSTANCE_ID
        with pytest.raises(KafkaError, match="reader-1"):
            await consumer.commit({PARTITION: OffsetAndMetadata(1)})
        assert consumer.assignment == ()
        assert listener.told[-1] == "lost"
        assert len(broker.of(JoinGroupRequest)) == joins
        assert len(broker.of(OffsetCommitRequest)) == (request_kind is OffsetCommitRequest)

    with_member(body, STATIC)


@pytest.mark.parametrize("request_kind", [JoinGroupRequest, SyncGroupRequest], ids=lambda kind: kind.__name__)
def test_a_member_that_is_fenced_while_it_joins_never_joins_again(request_kind: type) -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient) -> None:
        broker.errors[HeartbeatRequest] = ErrorCode.REBALANCE_IN_PROGRESS
        broker.errors[request_kind] = ErrorCode.FENCED_INSTANCE_ID
        await unsettled(consumer, client)
        for _ in range(3):
            assert await refusal(consumer) is ErrorCode.FENCED_INSTANCE_ID
        assert len(broker.of(JoinGroupRequest)) == 2

    with_member(body, STATIC)


@pytest.mark.parametrize("code", USERS_DECISION, ids=lambda code: code.name)
@pytest.mark.parametrize("request_kind", [JoinGroupRequest, SyncGroupRequest], ids=lambda kind: kind.__name__)
def test_what_cannot_pass_is_raised_and_polling_on_tries_again(request_kind: type, code: ErrorCode) -> None:
    async def main(host: Host) -> None:
        broker = Broker()
        client = ScriptedClient(host, broker.answer, {"events": 1})
        consumer = Consumer(client, SETTINGS)
        consumer.subscribe(["events"])
        broker.errors[request_kind] = code
        assert await refusal(consumer) is code
        await client.timers.sleep(10_000)
        assert len(broker.of(request_kind)) == 1, "nothing is asked again before the user polls"
        await settled(consumer)
        assert await consumer.poll(1_000)
        await consumer.close(1_000)
        await client.close()

    simulated(main)


def test_a_commit_without_leave_is_raised_and_costs_no_membership() -> None:
    async def body(consumer: Consumer, broker: Broker, _client: ScriptedClient) -> None:
        broker.errors[OffsetCommitRequest] = ErrorCode.GROUP_AUTHORIZATION_FAILED
        with pytest.raises(KafkaError, match="GROUP_AUTHORIZATION_FAILED"):
            await consumer.commit()
        assert consumer.is_stable

    with_member(body)


@pytest.mark.parametrize(
    "code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION], ids=lambda code: code.name
)
def test_who_is_refused_a_commit_as_a_stranger_reads_nothing_more_before_joining(code: ErrorCode) -> None:
    async def body(consumer: Consumer, broker: Broker, _client: ScriptedClient) -> None:
        listener = Listener()
        consumer.subscribe(["events"], listener)
        await settled(consumer)
        listener.told.clear()
        broker.errors[OffsetCommitRequest] = code
        with pytest.raises(CommitFailedError) as raised:
            await consumer.commit({PARTITION: OffsetAndMetadata(1)})
        assert raised.value.code is code
        broker.silent.add(JoinGroupRequest)
        assert await consumer.poll(200) == []
        assert listener.told == ["lost"]

    with_member(body)


def test_who_is_refused_a_commit_for_a_rebalance_joins_at_the_next_poll() -> None:
    async def body(consumer: Consumer, broker: Broker, _client: ScriptedClient) -> None:
        broker.errors[OffsetCommitRequest] = ErrorCode.REBALANCE_IN_PROGRESS
        with pytest.raises(KafkaError, match="REBALANCE_IN_PROGRESS"):
            await consumer.commit()
        assert not consumer.is_stable
        await settled(consumer)
        assert len(broker.of(JoinGroupRequest)) == 2

    with_member(body)
