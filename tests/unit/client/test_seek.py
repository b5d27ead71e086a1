"""`barnabas.client.consumer`: positions that change while records wait or are on their way, and with their leaders."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from barnabas.client.cluster import Cluster
from barnabas.client.connections import Lane
from barnabas.client.consumer import Consumer
from barnabas.client.errors import LogTruncationError
from barnabas.client.fetched import FetchedRecords
from barnabas.client.offset_lookup import EpochEnd
from barnabas.client.settings import ConsumerSettings, OffsetReset
from barnabas.kernel.host import Host
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import FetchRequest, FetchResponse, OffsetForLeaderEpochRequest
from barnabas.wire.topics import TopicPartition
from tests.unit.client.scripted_client import TOPIC_ID, ScriptedClient, simulated, turns
from tests.unit.client.scripted_group import PARTITION, SETTINGS, Broker, records, with_member


async def offsets(consumer: Consumer, count: int = 500, timeout_ms: float = 100) -> list[int]:
    return [record.offset for record in await consumer.poll(timeout_ms, count)]


def with_ten_of_a_hundred(
    body: Callable[[Consumer, Broker, ScriptedClient], Awaitable[None]], settings: ConsumerSettings = SETTINGS
) -> None:
    """Runs `body` with a consumer that was given 10 of the 100 records that its fetch has brought."""

    async def begin(consumer: Consumer, broker: Broker, client: ScriptedClient) -> None:
        broker.records_per_fetch = 100
        consumer.seek(PARTITION, 0)
        assert await offsets(consumer, 10) == list(range(10))
        await body(consumer, broker, client)

    with_member(begin, settings)


@pytest.mark.parametrize("offset", [0, 5, 50, 99, 100, 5_000])
def test_seeking_gives_nothing_of_what_was_buffered(offset: int) -> None:
    async def body(consumer: Consumer, _broker: Broker, _client: ScriptedClient) -> None:
        consumer.seek(PARTITION, offset)
        assert await offsets(consumer, 3) == [offset, offset + 1, offset + 2]
        assert await consumer.position(PARTITION) == offset + 3

    with_ten_of_a_hundred(body)


@pytest.mark.parametrize("offset", [0, 50, 5_000])
def test_seeking_gives_nothing_of_what_was_on_its_way(offset: int) -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient) -> None:
        broker.held = client_event = asyncio.Event()
        assert (await offsets(consumer))[-1] == 99
        asked = len(broker.of(FetchRequest))
        await consumer.poll(10)
        assert len(broker.of(FetchRequest)) == asked + 1
        consumer.seek(PARTITION, offset)
        broker.records_per_fetch = 2
        await consumer.poll(10)
        assert len(broker.of(FetchRequest)) == asked + 1, "the one for offset 100 has no answer yet"
        client_event.set()
        assert await offsets(consumer) == [offset, offset + 1]

    with_ten_of_a_hundred(body)


def test_what_was_on_its_way_is_void_when_the_partition_came_back_meanwhile() -> None:
    """The position may be the same, but what was read for it belongs to a membership that is over."""

    async def main(host: Host) -> None:
        broker = Broker()
        client = ScriptedClient(host, broker.answer, {"events": 1})
        consumer = Consumer(client, ConsumerSettings(offset_reset=OffsetReset.EARLIEST))
        broker.held = held = asyncio.Event()
        consumer.assign([PARTITION])
        await consumer.poll(100)
        consumer.assign([])
        consumer.assign([PARTITION])
        await consumer.poll(100)
        held.set()
        broker.held = None
        await turns()
        assert not consumer._fetcher._fetched
        assert await offsets(consumer) == [0]
        await consumer.close()
        await client.close()

    simulated(main)


def lead_anew(client: ScriptedClient, leader_epoch: int) -> None:
    """The partition has a leader of that epoch, as fresh metadata tell."""
    before = client.cluster
    topic = before.topics["events"]
    info = dataclasses.replace(topic.partitions[0], leader_epoch=leader_epoch)
    changed: Cluster = dataclasses.replace(before, topics={"events": dataclasses.replace(topic, partitions={0: info})})
    client.metadata._replace(changed)


def test_a_position_that_is_being_validated_is_committed() -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient) -> None:
        broker.silent.add(OffsetForLeaderEpochRequest)
        lead_anew(client, 3)
        assert await offsets(consumer) == [], "not before it is held against the new leader's log"
        await consumer.commit()
        assert broker.commits == [10]

    with_ten_of_a_hundred(body)


def test_a_position_that_is_being_validated_is_committed_by_itself() -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient) -> None:
        broker.silent.add(OffsetForLeaderEpochRequest)
        lead_anew(client, 3)
        await client.timers.sleep(300)
        assert await offsets(consumer) == []
        assert broker.commits[-1] == 10

    with_ten_of_a_hundred(body, dataclasses.replace(SETTINGS, auto_commit=True, auto_commit_interval_ms=200))


def test_reads_on_with_a_new_leader_that_has_all_that_was_read() -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient) -> None:
        lead_anew(client, 3)
        assert await offsets(consumer, 5) == list(range(10, 15))
        (asked,) = broker.of(OffsetForLeaderEpochRequest)
        asked = asked.topics[0].partitions[0]
        assert (asked.leader_epoch, asked.current_leader_epoch) == (0, 3)
        await consumer.commit()
        assert broker.commits == [15]

    with_ten_of_a_hundred(body)


@pytest.mark.parametrize("reset", [OffsetReset.EARLIEST, OffsetReset.NONE])
def test_goes_back_to_where_a_new_leaders_log_parts_and_commits_that(reset: OffsetReset) -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient) -> None:
        broker.epoch_end = EpochEnd(0, 4)
        lead_anew(client, 3)
        if reset is OffsetReset.NONE:
            with pytest.raises(LogTruncationError, match="events-0 from offset 4"):
                await consumer.poll(100)
        assert await offsets(consumer, 3) == [4, 5, 6]
        await consumer.close(has_processed=False)
        assert broker.commits == [4]

    settings = dataclasses.replace(SETTINGS, auto_commit=True, auto_commit_interval_ms=1_000_000)

    async def main(host: Host) -> None:
        broker = Broker()
        client = ScriptedClient(host, broker.answer, {"events": 1})
        consumer = Consumer(client, dataclasses.replace(settings, offset_reset=reset))
        broker.records_per_fetch = 100
        consumer.assign([PARTITION])
        consumer.seek(PARTITION, 0)
        assert len(await offsets(consumer, 10)) == 10
        await body(consumer, broker, client)
        await client.close()

    simulated(main)


def test_a_fetch_that_a_leader_refuses_for_its_epoch_gives_nothing_before_validation() -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient) -> None:
        consumer.seek(PARTITION, 200, leader_epoch=0)
        broker.fetch_errors.append(ErrorCode.FENCED_LEADER_EPOCH)
        assert await offsets(consumer, 1, 1_000) == [200]
        assert len(broker.of(OffsetForLeaderEpochRequest)) == 2, "once for what was sought, once for the refusal"
        assert client.cluster.leader_epoch(PARTITION) == 0

    with_ten_of_a_hundred(body)


def test_a_paused_partition_keeps_no_more_than_its_own_bytes() -> None:
    """Answers hold many partitions: one that waits would keep all of them in memory."""
    parts = [TopicPartition("events", number) for number in range(2)]

    class Answer(bytearray):
        """Bytes to which a weak reference may point."""

    answers: list[weakref.ref[Answer]] = []

    async def answer(request: FetchRequest, _lane: Lane) -> Any:
        whole = Answer(records(0, 50) + bytes(100_000))
        answers.append(weakref.ref(whole))
        size = len(whole) - 100_000
        partitions = [
            FetchResponse.PartitionData(partition_index=asked.partition, records=memoryview(whole)[:size])
            for topic in request.topics
            for asked in topic.partitions
            if asked.fetch_offset == 0
        ]
        topics = [FetchResponse.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=partitions)]
        return FetchResponse(session_id=0, responses=topics)

    async def main(host: Host) -> None:
        client = ScriptedClient(host, answer, {"events": 2})
        consumer = Consumer(client, ConsumerSettings(fetch_wait_ms=1))
        consumer.assign(parts)
        for partition in parts:
            consumer.seek(partition, 0)
        first = await consumer.poll(100, 60)
        assert len(first) == 60
        (waiting,) = (part for part in parts if part in consumer._fetcher._fetched)
        assert isinstance(consumer._fetcher._fetched[waiting], FetchedRecords)
        gc.collect()
        assert answers[0]() is not None
        consumer.pause(waiting)
        gc.collect()
        assert answers[0]() is None
        consumer.resume(waiting)
        rest = await consumer.poll(100, 100)
        assert [record.offset for record in rest if record.partition == waiting] == list(range(10, 50))
        await consumer.close()
        await client.close()

    simulated(main)


def test_what_comes_of_a_partition_that_was_paused_meanwhile_keeps_its_own_bytes_only() -> None:
    async def body(consumer: Consumer, broker: Broker, _client: ScriptedClient) -> None:
        broker.held = held = asyncio.Event()
        await consumer.poll(100)
        await consumer.poll(10)
        consumer.pause(PARTITION)
        held.set()
        await turns()
        assert consumer._fetcher._fetched[PARTITION]._is_detached
        assert await offsets(consumer) == []
        consumer.resume(PARTITION)
        assert (await offsets(consumer))[0] == 100

    with_ten_of_a_hundred(body)


def test_an_assignment_of_very_many_partitions_takes_moments() -> None:
    """Each against each would be 400 million comparisons, in one turn."""
    many = [TopicPartition("events", number) for number in range(20_000)]

    async def main(host: Host) -> None:
        client = ScriptedClient(host, Broker().answer, {"events": len(many)})
        consumer = Consumer(client, dataclasses.replace(SETTINGS, group_id=None))
        consumer.assign(many)
        began = time.thread_time()
        consumer.assign(many[1:])
        await consumer.lost(tuple(many[2:]))
        took = time.thread_time() - began
        assert consumer.assignment == (many[1],)
        assert took < 1.0
        await consumer.close()
        await client.close()

    simulated(main)
