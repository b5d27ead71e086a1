"""`barnabas.client.fetcher`: what is given to the user, and what is told, of what brokers answered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from barnabas.client.connections import Lane
from barnabas.client.fetcher import Fetcher
from barnabas.client.positions import Position, Positions
from barnabas.client.settings import ConsumerSettings
from barnabas.kernel.host import Host
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import FetchRequest, FetchResponse
from barnabas.wire.record_batch import assign_offset_and_epoch, read_batch_header
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.topics import TopicPartition
from tests.unit.client.scripted_client import ScriptedClient, simulated, turns

PARTITIONS = [TopicPartition("events", number) for number in range(2)]


def batch(base_offset: int, *values: bytes, is_damaged: bool = False) -> bytearray:
    builder = RecordBatchBuilder(base_offset=base_offset)
    for value in values:
        builder.append(1_000, None, value)
    data = builder.build()
    assign_offset_and_epoch(data, 0, base_offset, read_batch_header(data).length_bytes, 0)
    if is_damaged:
        data[-1] ^= 1
    return data


def test_what_is_ahead_of_a_damaged_batch_is_given_before_that_is_told() -> None:
    logs = {
        PARTITIONS[0]: batch(0, b"a", b"b"),
        PARTITIONS[1]: batch(0, b"c") + batch(1, b"d", is_damaged=True) + batch(2, b"e"),
    }

    async def answer(request: FetchRequest, _lane: Lane) -> Any:
        partitions = [
            FetchResponse.PartitionData(
                partition_index=asked.partition, records=bytes(logs[PARTITIONS[asked.partition]])
            )
            for topic in request.topics
            for asked in topic.partitions
            if asked.fetch_offset == 0
        ]
        topics = [FetchResponse.FetchableTopicResponse(topic_id=b"t" * 16, partitions=partitions)]
        return FetchResponse(session_id=0, responses=topics)

    async def main(host: Host) -> None:
        client = ScriptedClient(host, answer, {"events": 2})
        positions = Positions()
        positions.assign(PARTITIONS)
        for state in positions:
            state.seek(Position(0))
        fetcher = Fetcher(client, Lane(1), ConsumerSettings(), positions, lambda: None)
        fetcher.fetch()
        await turns()
        assert [record.value for record in fetcher.take(100)] == [b"a", b"b", b"c"]
        assert {state.partition: state.position.offset for state in positions} == {PARTITIONS[0]: 2, PARTITIONS[1]: 1}
        with pytest.raises(KafkaError, match="events-1 cannot be read at offset 1") as told:
            fetcher.take(100)
        assert told.value.code is ErrorCode.CORRUPT_MESSAGE
        assert fetcher.take(100) == []
        await fetcher.close()
        await client.close()

    simulated(main)


def test_a_replica_named_by_the_leader_that_is_not_known_is_looked_for_and_not_asked_for_without_end() -> None:
    asked_count = 0

    async def answer(request: FetchRequest, _lane: Lane) -> Any:
        nonlocal asked_count
        asked_count += 1
        (asked,) = request.topics[0].partitions
        found = FetchResponse.PartitionData(partition_index=asked.partition, records=b"", preferred_read_replica=2)
        topics = [FetchResponse.FetchableTopicResponse(topic_id=b"t" * 16, partitions=[found])]
        return FetchResponse(session_id=0, responses=topics)

    async def main(host: Host) -> None:
        client = ScriptedClient(host, answer, {"events": 1})
        updates: list[None] = []
        client.metadata.request_update = lambda: updates.append(None)  # type: ignore[method-assign]
        positions = Positions()
        positions.assign(PARTITIONS[:1])
        for state in positions:
            state.seek(Position(0))
        fetcher = Fetcher(client, Lane(1), ConsumerSettings(rack_id="here"), positions, lambda: None)
        for _ in range(20):
            fetcher.fetch()
            await turns()
        assert (asked_count, len(updates)) == (1, 1), "nothing more is asked for before the pause is over"
        await client.timers.sleep(2 * client.settings.retry_backoff_ms)
        fetcher.fetch()
        await turns()
        assert (asked_count, len(updates)) == (2, 2)
        await fetcher.close()
        await client.close()

    simulated(main)


def test_nothing_is_asked_of_a_broker_that_reads_nothing_because_of_a_quota() -> None:
    asked_at: list[float] = []
    throttles = [40_000, 0]

    async def answer(_request: FetchRequest, _lane: Lane) -> Any:
        found = FetchResponse.PartitionData(partition_index=0, records=bytes(batch(len(asked_at), b"a")))
        asked_at.append(asyncio.get_running_loop().time())
        topics = [FetchResponse.FetchableTopicResponse(topic_id=b"t" * 16, partitions=[found])]
        return FetchResponse(session_id=0, responses=topics, throttle_time_ms=throttles.pop(0))

    async def main(host: Host) -> None:
        client = ScriptedClient(host, answer, {"events": 1})
        positions = Positions()
        positions.assign(PARTITIONS[:1])
        for state in positions:
            state.seek(Position(0))
        given: list[float] = []

        def on_news() -> None:
            given.extend(host.loop.time() for _ in fetcher.take(100))
            fetcher.fetch()

        fetcher = Fetcher(client, Lane(1), ConsumerSettings(), positions, on_news)
        began = host.loop.time()
        fetcher.fetch()
        await turns()
        assert len(given) == 1, "what came with the answer does not wait"
        await client.timers.sleep(39_900)
        fetcher.fetch()
        await turns()
        assert len(asked_at) == 1
        throttles.append(10**9)
        await client.timers.sleep(200)
        await turns()
        assert asked_at[1] - began == pytest.approx(40.0, abs=0.1)
        await fetcher.close()
        await client.close()

    simulated(main)
