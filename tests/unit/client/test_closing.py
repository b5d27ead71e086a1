"""`barnabas.client.consumer`: what has to be heard by a poll that finds nothing, and a close that is given up."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from barnabas.client.consumer import Consumer
from barnabas.link.errors import InFlightLimitError
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import (
    FetchRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
)
from tests.unit.client.scripted_client import ScriptedClient, turns
from tests.unit.client.scripted_group import PARTITION, SETTINGS, Broker, with_member

COMMITTING = dataclasses.replace(SETTINGS, auto_commit=True)


@pytest.mark.parametrize(
    "code", [ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_MEMBER_ID], ids=lambda code: code.name
)
def test_a_poll_that_finds_nothing_joins_when_a_heartbeat_says_so(code: ErrorCode) -> None:
    """A member may have no partition, or none that is not paused: then nothing else wakes its poll."""

    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient) -> None:
        consumer.pause(PARTITION)
        polling = asyncio.get_running_loop().create_task(consumer.poll(600_000))
        await client.timers.sleep(5_000)
        joins = len(broker.of(JoinGroupRequest))
        broker.errors[HeartbeatRequest] = code
        await client.timers.sleep(5_000)
        assert len(broker.of(JoinGroupRequest)) > joins
        assert consumer.is_stable
        polling.cancel()

    with_member(body)


def test_a_poll_that_finds_nothing_raises_what_a_heartbeat_is_refused_with() -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient) -> None:
        consumer.pause(PARTITION)
        polling = asyncio.get_running_loop().create_task(consumer.poll(600_000))
        await client.timers.sleep(5_000)
        broker.errors[HeartbeatRequest] = ErrorCode.FENCED_INSTANCE_ID
        await client.timers.sleep(5_000)
        assert polling.done()
        with pytest.raises(KafkaError, match="FENCED_INSTANCE_ID"):
            polling.result()

    with_member(body, dataclasses.replace(SETTINGS, group_instance_id="reader-1"))


def test_a_poll_that_finds_nothing_can_be_ended_and_the_next_is_not() -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient) -> None:
        consumer.pause(PARTITION)
        polling = asyncio.get_running_loop().create_task(consumer.poll(600_000))
        await client.timers.sleep(5_000)
        consumer.end_poll()
        assert await polling == []
        consumer.end_poll()
        polling = asyncio.get_running_loop().create_task(consumer.poll(600_000))
        await client.timers.sleep(5_000)
        assert not polling.done()
        polling.cancel()

    with_member(body)


def test_a_poll_may_take_longer_than_the_time_between_two() -> None:
    interval_ms = 5_000

    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient) -> None:
        consumer.pause(PARTITION)
        polling = asyncio.get_running_loop().create_task(consumer.poll(3 * interval_ms))
        await client.timers.sleep(2 * interval_ms)
        assert consumer.is_stable
        assert broker.of(LeaveGroupRequest) == []
        polling.cancel()
        await asyncio.wait([polling])
        # From its end on the time counts.
        await client.timers.sleep(interval_ms / 2)
        assert consumer.is_stable
        await client.timers.sleep(interval_ms)
        assert len(broker.of(LeaveGroupRequest)) == 1

    with_member(body, dataclasses.replace(SETTINGS, poll_interval_ms_max=interval_ms))


@pytest.mark.parametrize("silent", [OffsetCommitRequest, LeaveGroupRequest], ids=lambda kind: kind.__name__)
def test_a_close_that_was_given_up_can_be_made_again(silent: type) -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient) -> None:
        assert await consumer.poll(1_000)
        broker.silent.add(silent)
        closing = asyncio.get_running_loop().create_task(consumer.close())
        while not broker.of(silent):
            await client.timers.sleep(1)
        closing.cancel()
        await asyncio.wait([closing])
        broker.silent.clear()
        broker.held = asyncio.Event()
        await consumer.close()
        await consumer.close()
        assert broker.of(LeaveGroupRequest)
        heard = len(broker.of(HeartbeatRequest)), len(broker.of(FetchRequest))
        await client.timers.sleep(10_000)
        assert (len(broker.of(HeartbeatRequest)), len(broker.of(FetchRequest))) == heard
        await turns()
        left = {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}
        assert not {name for name in left if name.startswith(("group member", "consumer"))}

    with_member(body, COMMITTING)


def test_a_leave_that_cannot_be_sent_ends_the_consumer_all_the_same() -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient) -> None:
        broker.failures[LeaveGroupRequest] = InFlightLimitError("too much is on its way")
        await consumer.close()
        fetches = len(broker.of(FetchRequest))
        await client.timers.sleep(10_000)
        assert len(broker.of(FetchRequest)) == fetches

    with_member(body)
