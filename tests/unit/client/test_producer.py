"""`barnabas.client.producer`: its buffer, its time limits and its end; what brokers answer is scripted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from barnabas.client.connections import Lane
from barnabas.client.errors import BufferFullError, ClientClosedError, DeliveryTimeoutError
from barnabas.client.partitioners import partition_of_key
from barnabas.client.producer import Producer
from barnabas.client.records import ProducerRecord
from barnabas.client.settings import ProducerSettings
from barnabas.kernel.host import Host
from barnabas.link.errors import RequestTimeoutError
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import ProduceResponse
from barnabas.wire.record_columns import RecordShape, ValueColumn
from barnabas.wire.records import Header
from barnabas.wire.topics import TopicPartition
from tests.unit.client.scripted_client import ScriptedClient, Sent, cluster_of, simulated, turns


async def nobody_answers(request: Any, _lane: Lane) -> Any:
    raise ConnectionError(f"{type(request).__name__} is not expected")


def record(value_bytes: int = 100, partition: int = 0) -> ProducerRecord:
    return ProducerRecord("events", b"x" * value_bytes, partition=partition)


def taken(sent: Sent) -> ProduceResponse:
    """The answer to a request all of whose batches were written."""
    return ProduceResponse(
        responses=[
            ProduceResponse.TopicProduceResponse(
                name=topic.name,
                partition_responses=[
                    ProduceResponse.PartitionProduceResponse(index=data.index, base_offset=0)
                    for data in topic.partition_data
                ],
            )
            for topic in sent.message.topic_data
        ]
    )


def test_room_that_is_free_again_is_given_once() -> None:
    """Many batches end in one turn of the loop, before those who waited for room have taken what they were given."""

    async def main(host: Host) -> None:
        settings = ProducerSettings(idempotent=False, buffer_bytes_max=8_000, request_bytes_max=8_000, batch_bytes=500)
        client = ScriptedClient(host, nobody_answers, {"events": 8})
        producer = Producer(client, settings)
        for partition in range(8):
            await producer.send(record(900, partition))
        waiting = [asyncio.create_task(producer.send(record(900, number % 8))) for number in range(24)]
        await turns()
        assert not any(task.done() for task in waiting)
        while not all(task.done() for task in waiting):
            sent = client.scripted.outgoing.sent.pop(0)
            sent.on_response(taken(sent))
            assert producer.buffered_bytes <= settings.buffer_bytes_max
            await turns()
            assert producer.buffered_bytes <= settings.buffer_bytes_max
        await producer.close(timeout_ms=0)
        assert producer.buffered_bytes == 0
        await client.close()

    simulated(main)


def test_whoever_gives_up_waiting_for_room_leaves_it_to_others() -> None:
    async def main(host: Host) -> None:
        settings = ProducerSettings(
            idempotent=False, buffer_bytes_max=1_000, request_bytes_max=1_000, max_block_ms=1_000
        )
        client = ScriptedClient(host, nobody_answers, {"events": 1})
        producer = Producer(client, settings)
        await producer.send(record(800))
        waiting = [asyncio.create_task(producer.send(record(800))) for _ in range(3)]
        await turns()
        sent = client.scripted.outgoing.sent.pop(0)
        sent.on_response(taken(sent))
        waiting[0].cancel()  # it has just been given the room
        await turns()
        assert waiting[0].cancelled()
        assert waiting[1].done()
        with pytest.raises(BufferFullError):
            await waiting[2]
        await producer.close(timeout_ms=0)
        await client.close()

    simulated(main)


@pytest.mark.parametrize("is_flushing", [False, True])
def test_nothing_is_sent_to_a_broker_that_reads_nothing_because_of_a_quota(is_flushing: bool) -> None:
    async def main(host: Host) -> None:
        client = ScriptedClient(host, nobody_answers, {"events": 2})
        producer = Producer(client, ProducerSettings(idempotent=False))
        requests = client.scripted.outgoing.sent
        await producer.send(record())
        await turns()
        sent = requests.pop()
        response = taken(sent)
        response.throttle_time_ms = 40_000
        sent.on_response(response)
        later = await producer.send(record(partition=1))
        flushing = asyncio.create_task(producer.flush()) if is_flushing else None
        await asyncio.sleep(39.9)
        assert requests == []
        await asyncio.sleep(0.2)
        sent = requests.pop()
        sent.on_response(taken(sent))
        await later
        if flushing is not None:
            await flushing
        await producer.send(record())
        await turns()
        assert len(requests) == 1
        await producer.close(timeout_ms=0)
        await client.close()

    simulated(main)


@pytest.mark.parametrize("headers", [(), ((b"key" * 8, b"v" * 40), (b"k", None))])
@pytest.mark.parametrize("size", [0, 70, 9_000, 300_000])
def test_a_record_counts_for_no_less_than_it_takes(size: int, headers: tuple[Header, ...]) -> None:
    async def main(host: Host) -> None:
        client = ScriptedClient(host, nobody_answers, {"events": 1})
        producer = Producer(
            client, ProducerSettings(idempotent=False, linger_ms=5, batch_bytes=9_000_000, request_bytes_max=9_000_000)
        )
        for timestamp_ms in (0, *[2**62] * 9):
            await producer.send(
                ProducerRecord("events", b"v" * size, b"k" * size, headers, partition=0, timestamp_ms=timestamp_ms)
            )
        counted = producer.buffered_bytes
        flushed = asyncio.create_task(producer.flush())
        await turns()
        (sent,) = client.scripted.outgoing.sent
        assert len(sent.message.topic_data[0].partition_data[0].records) - 61 <= counted
        sent.on_response(taken(sent))
        await flushed
        await producer.close()
        await client.close()

    simulated(main)


def test_what_was_in_flight_when_its_time_was_up_fails_as_soon_as_it_comes_back() -> None:
    """A request may outlast a batch in it, when another one of its batches has more time."""

    async def main(host: Host) -> None:
        settings = ProducerSettings(idempotent=False, delivery_timeout_ms=1_000, linger_ms=600)
        client = ScriptedClient(host, nobody_answers, {"events": 2})
        producer = Producer(client, settings)
        older = await producer.send(record(partition=0))
        await client.timers.sleep(550)
        await producer.send(record(partition=1))
        await client.timers.sleep(60)
        first = client.scripted.outgoing.sent.pop(0)
        assert len(client.scripted.outgoing.sent) == 0
        await client.timers.sleep(500)  # the first is too old now, and still in flight
        first.on_failure(RequestTimeoutError("no answer"))
        await turns()
        assert isinstance(older.exception(), DeliveryTimeoutError)
        await producer.close(timeout_ms=0)
        await client.close()

    simulated(main)


def test_what_comes_back_in_time_fails_when_its_time_is_up() -> None:
    """The look for what is too old comes when something is, also what was in flight at the look before."""

    async def main(host: Host) -> None:
        settings = ProducerSettings(idempotent=False, delivery_timeout_ms=1_000)
        client = ScriptedClient(host, nobody_answers, {"events": 2})
        producer = Producer(client, settings)
        began = host.loop.time()
        oldest = await producer.send(record(partition=0))
        await turns()
        await client.timers.sleep(100)
        future = await producer.send(record(partition=1))
        await turns()
        first, second = client.scripted.outgoing.sent
        await client.timers.sleep(950)  # the first has expired, in flight
        second.on_failure(ConnectionError("lost"))
        client.metadata.cluster = cluster_of({"events": 1})  # it has no leader now
        with pytest.raises(DeliveryTimeoutError):
            await future
        assert host.loop.time() - began < 1.2, "100 ms after the first, and what timers take"
        first.on_failure(ConnectionError("lost"))
        with pytest.raises(DeliveryTimeoutError):
            await oldest
        await producer.close(timeout_ms=0)
        await client.close()

    simulated(main)


class Heard:
    """What became of a column."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, int, object]] = []

    def written(self, first: int, count: int, _partition: TopicPartition, base_offset: int) -> None:
        self.parts.append((first, count, base_offset))

    def failed(self, first: int, count: int, error: Exception) -> None:
        self.parts.append((first, count, type(error)))


def test_a_column_waits_for_room_and_gives_back_what_it_took() -> None:
    async def main(host: Host) -> None:
        settings = ProducerSettings(
            idempotent=False, buffer_bytes_max=3_000, request_bytes_max=3_000, batch_bytes=3_000
        )
        client = ScriptedClient(host, nobody_answers, {"events": 3})
        producer = Producer(client, settings)
        shape = RecordShape(b"key")
        heard = Heard()
        column = ValueColumn(shape, [b"x" * 50] * 30)
        await producer.send_column("events", column, heard)
        assert producer.buffered_bytes == column.size_bytes
        waiting = asyncio.create_task(producer.send_column("events", column, heard))
        await turns()
        assert not waiting.done()
        sent = client.scripted.outgoing.sent.pop(0)
        (data,) = sent.message.topic_data[0].partition_data
        assert data.index == partition_of_key(b"key", 3)
        assert len(data.records) <= column.size_bytes + 61
        sent.on_response(taken(sent))
        assert heard.parts == [(0, 30, 0)]
        await turns()
        assert waiting.done()
        assert producer.buffered_bytes == column.size_bytes
        await producer.close(timeout_ms=0)
        assert heard.parts[1:] == [(0, 30, ClientClosedError)]
        assert producer.buffered_bytes == 0
        with pytest.raises(ClientClosedError):
            await producer.send_column("events", column, heard)
        await client.close()

    simulated(main)


def test_a_column_that_cannot_be_taken_is_refused_whole() -> None:
    async def main(host: Host) -> None:
        settings = ProducerSettings(idempotent=False, buffer_bytes_max=4_000, request_bytes_max=1_000)
        client = ScriptedClient(host, nobody_answers, {"events": 1})
        producer = Producer(client, settings)
        heard = Heard()

        async def refusal(values: list[bytes], partition: int | None = None) -> BaseException:
            column = ValueColumn(RecordShape(), values)
            with pytest.raises((KafkaError, ValueError)) as raised:
                await producer.send_column("events", column, heard, partition)
            return raised.value

        assert "request_bytes_max=1000" in str(await refusal([b"a", b"x" * 1_000]))
        assert "partitions 0 to 0, not 1" in str(await refusal([b"a"], 1))
        assert "send some at a time" in str(await refusal([b"x" * 500] * 20))
        assert "0 records" in str(await refusal([]))
        keyed = ValueColumn(RecordShape(), [b"a"], [b"key"])
        with pytest.raises(ValueError, match="see partitions_of"):
            await producer.send_column("events", keyed, heard)
        assert await producer.partitions_of("events", [b"key", b""]) == [0, 0]
        assert heard.parts == []
        assert producer.buffered_bytes == 0
        await producer.close(timeout_ms=0)
        await client.close()

    simulated(main)


def test_closing_ends_a_flush_and_the_waiting_for_room() -> None:
    async def main(host: Host) -> None:
        settings = ProducerSettings(idempotent=False, buffer_bytes_max=1_000, request_bytes_max=1_000)
        client = ScriptedClient(host, nobody_answers, {"events": 1})
        producer = Producer(client, settings)
        future = await producer.send(record(800))
        flushing = asyncio.create_task(producer.flush())
        waiting = asyncio.create_task(producer.send(record(800)))
        await turns()
        await producer.close(timeout_ms=0)
        await flushing
        assert isinstance(future.exception(), ClientClosedError)
        with pytest.raises(ClientClosedError):
            await waiting
        await client.close()

    simulated(main)


def test_what_need_not_wait_is_taken_at_once() -> None:
    async def main(host: Host) -> None:
        settings = ProducerSettings(idempotent=False, buffer_bytes_max=2_000, request_bytes_max=2_000)
        client = ScriptedClient(host, nobody_answers, {"events": 2})
        producer = Producer(client, settings)
        first = producer.send_now(record(800))
        second = producer.send_now(record(800))
        assert first is not None
        assert second is not None
        assert producer.send_now(record(800)) is None  # no room
        assert producer.send_now(record()._replace(topic="unknown")) is None
        buffered_bytes = producer.buffered_bytes
        with pytest.raises(KafkaError, match="not 2") as refused:
            producer.send_now(record(1, partition=2))
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(KafkaError, match="request_bytes_max"):
            producer.send_now(record(2_000))
        assert producer.buffered_bytes == buffered_bytes
        await turns()
        (sent,) = client.scripted.outgoing.sent
        sent.on_response(taken(sent))
        assert (await first).offset == 0
        assert (await second).offset == 1
        assert producer.buffered_bytes == 0
        await producer.close(timeout_ms=0)
        with pytest.raises(ClientClosedError):
            producer.send_now(record())
        await client.close()

    simulated(main)


def test_a_batch_is_sent_when_it_begins_and_the_next_when_that_is_full() -> None:
    """A sender is woken by the record that begins or completes a batch; those between need nobody to tell of them."""

    async def main(host: Host) -> None:
        settings = ProducerSettings(idempotent=False, batch_bytes=1_000, linger_ms=60_000)
        client = ScriptedClient(host, nobody_answers, {"events": 1})
        producer = Producer(client, settings)
        futures = [producer.send_now(record(100)) for _ in range(40)]
        await turns()
        assert len(client.scripted.outgoing.sent) >= 1
        while client.scripted.outgoing.sent:
            sent = client.scripted.outgoing.sent.pop(0)
            sent.on_response(taken(sent))
            await turns()
        ended = [future.done() for future in futures if future is not None]
        # The last batch is not full, and lingers.
        assert 25 < sum(ended) < 40
        assert ended == sorted(ended, reverse=True)
        await producer.close(timeout_ms=0)
        await client.close()

    simulated(main)


def test_looks_for_another_leader_while_one_says_nothing() -> None:
    async def main(host: Host) -> None:
        client = ScriptedClient(host, nobody_answers, {"events": 1})
        producer = Producer(client, ProducerSettings(idempotent=False))
        await producer.send(record())
        await turns()
        client.metadata._wanted.clear()
        await client.timers.sleep(1_900)
        assert not client.metadata._wanted.is_set()
        await client.timers.sleep(200)
        assert client.metadata._wanted.is_set(), "who leads may be another by now"
        client.metadata._wanted.clear()
        await client.timers.sleep(2_000)
        assert client.metadata._wanted.is_set(), "or only later"
        sent = client.scripted.outgoing.sent.pop(0)
        sent.on_response(taken(sent))
        await turns()
        client.metadata._wanted.clear()
        await client.timers.sleep(10_000)
        assert not client.metadata._wanted.is_set()
        await producer.close(timeout_ms=0)
        await client.close()

    simulated(main)


def test_what_does_not_fit_into_a_request_beside_others_goes_in_the_next() -> None:
    """A broker ends the connection for a request that is too large, however often it is repeated."""

    async def main(host: Host) -> None:
        settings = ProducerSettings(idempotent=False, request_bytes_max=300_000)
        client = ScriptedClient(host, nobody_answers, {"events": 3})
        producer = Producer(client, settings)
        for number in range(3):
            await producer.send(record(200_000, partition=number))
        for _ in range(3):
            await turns()
            sent = client.scripted.outgoing.sent.pop(0)
            sizes = [len(data.records) for topic in sent.message.topic_data for data in topic.partition_data]
            assert sum(sizes) <= 300_000
            sent.on_response(taken(sent))
        await turns()
        assert producer.buffered_bytes == 0
        await producer.close(timeout_ms=0)
        await client.close()

    simulated(main)
