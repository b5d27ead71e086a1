"""aiokafka: an asyncio client with its own record code in C."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, ClassVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import InvalidProducerEpoch, ProducerFenced

from tests.clients.drivers.model import Capability, Fenced, Place, Record

TIMEOUT_SECONDS = 30.0
POLL_MS = 100


class AiokafkaMember:
    """A group member on a loop and a thread of its own."""

    def __init__(self, bootstrap_servers: str, topic: str, group: str) -> None:
        self._bootstrap_servers, self._topic, self._group = bootstrap_servers, topic, group
        self._assigned: frozenset[int] = frozenset()
        self._received: list[tuple[Place, bytes | None]] = []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._poll(),), daemon=True)
        self._thread.start()

    def assigned(self) -> frozenset[int]:
        return self._assigned

    def received(self) -> list[tuple[Place, bytes | None]]:
        return list(self._received)

    def close(self) -> None:
        self._closing.set()
        self._thread.join(TIMEOUT_SECONDS)

    async def _poll(self) -> None:
        consumer: Any = AIOKafkaConsumer(
            self._topic,
            bootstrap_servers=self._bootstrap_servers,
            group_id=self._group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=10_000,
            heartbeat_interval_ms=500,
            metadata_max_age_ms=2_000,
        )
        await consumer.start()
        try:
            while not self._closing.is_set():
                polled = await consumer.getmany(timeout_ms=POLL_MS)
                self._assigned = frozenset(each.partition for each in consumer.assignment())
                for records in polled.values():
                    self._received += [(Place(record.partition, record.offset), record.value) for record in records]
                if polled:
                    await consumer.commit()
        finally:
            await consumer.stop()


class AiokafkaTransactions:
    """A producer with a transactional id, on a loop that runs during the calls only."""

    def __init__(self, bootstrap_servers: str, transactional_id: str, timeout_ms: int) -> None:
        self._bootstrap_servers, self._transactional_id, self._timeout_ms = (
            bootstrap_servers,
            transactional_id,
            timeout_ms,
        )
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._start())

    def begin(self) -> None:
        self._loop.run_until_complete(self._producer.begin_transaction())

    def send(self, topic: str, values: Sequence[bytes], *, partition: int = 0) -> None:
        self._loop.run_until_complete(_send(self._producer, topic, values, partition))

    def commit(self) -> None:
        try:
            self._loop.run_until_complete(self._producer.commit_transaction())
        except (ProducerFenced, InvalidProducerEpoch) as raised:
            raise Fenced from raised

    def abort(self) -> None:
        self._loop.run_until_complete(self._producer.abort_transaction())

    def close(self) -> None:
        self._loop.run_until_complete(self._producer.stop())
        self._loop.close()

    async def _start(self) -> None:
        self._producer: Any = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap_servers,
            transactional_id=self._transactional_id,
            transaction_timeout_ms=self._timeout_ms,
        )
        await self._producer.start()


class AiokafkaClient:
    """aiokafka's producer, consumer and admin client, each call on a loop of its own."""

    name: ClassVar[str] = "aiokafka"
    missing: ClassVar[Mapping[Capability, str]] = {}

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers

    def produce(self, topic: str, records: Sequence[Record], compression: str = "none") -> None:
        _run(self._produce(topic, records, compression))

    def read(self, topic: str, count: int, *, partition: int = 0) -> list[Record]:
        found: list[Record] = _run(self._read(topic, count, partition))
        return found

    def offset_at(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        found: int | None = _run(self._offset_at(topic, timestamp_ms, partition))
        return found

    def join(self, topic: str, group: str) -> AiokafkaMember:
        return AiokafkaMember(self._bootstrap_servers, topic, group)

    def transactional(self, transactional_id: str, timeout_ms: int = 60_000) -> AiokafkaTransactions:
        return AiokafkaTransactions(self._bootstrap_servers, transactional_id, timeout_ms)

    def read_committed(self, topic: str, *, partition: int = 0) -> list[bytes]:
        read: list[Record] = _run(self._read(topic, sys.maxsize, partition, isolation_level="read_committed"))
        return [record.value or b"" for record in read]

    def copy(self, source: str, target: str, group: str, transactional_id: str, count: int) -> None:
        _run(self._copy(source, target, group, transactional_id, count))

    def administer(self, topic: str) -> None:
        _run(self._administer(topic))

    async def _produce(self, topic: str, records: Sequence[Record], compression: str) -> None:
        producer: Any = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap_servers,
            enable_idempotence=True,
            compression_type=None if compression == "none" else compression,
            max_request_size=2_000_000,
            linger_ms=5,
        )
        await producer.start()
        try:
            sent = [
                await producer.send(
                    topic,
                    record.value,
                    record.key,
                    record.partition,
                    timestamp_ms=record.timestamp_ms,
                    headers=list(record.headers),
                )
                for record in records
            ]
            await asyncio.gather(*sent)
        finally:
            await producer.stop()

    async def _copy(self, source: str, target: str, group: str, transactional_id: str, count: int) -> None:
        producer: Any = AIOKafkaProducer(bootstrap_servers=self._bootstrap_servers, transactional_id=transactional_id)
        consumer = self._reader(group_id=group, max_poll_records=5)
        place, committed, number = TopicPartition(source, 0), 0, 0
        consumer.subscribe([source])
        await producer.start()
        await consumer.start()
        try:
            while committed < count:
                records = (await consumer.getmany(timeout_ms=POLL_MS)).get(place)
                if not records:
                    continue
                await producer.begin_transaction()
                await _send(producer, target, [record.value for record in records], 0)
                after = records[-1].offset + 1
                await producer.send_offsets_to_transaction({place: after}, group)
                number += 1
                if number % 3:
                    await producer.commit_transaction()
                    committed = after
                else:
                    await producer.abort_transaction()
                    consumer.seek(place, committed)
        finally:
            await consumer.stop()
            await producer.stop()

    async def _read(self, topic: str, count: int, partition: int, **configs: Any) -> list[Record]:
        consumer, place = self._reader(**configs), TopicPartition(topic, partition)
        records: list[Record] = []
        await consumer.start()
        try:
            consumer.assign([place])
            await consumer.seek_to_beginning(place)
            end = (await consumer.end_offsets([place]))[place]
            while len(records) < count and await consumer.position(place) < end:
                for record in (await consumer.getmany(place, timeout_ms=1_000)).get(place, ()):
                    headers = tuple((key, value) for key, value in record.headers)
                    records.append(Record(record.value, record.key, headers, record.timestamp, partition))
        finally:
            await consumer.stop()
        return records[:count]

    async def _offset_at(self, topic: str, timestamp_ms: int, partition: int) -> int | None:
        consumer, place = self._reader(), TopicPartition(topic, partition)
        await consumer.start()
        try:
            found = (await consumer.offsets_for_times({place: timestamp_ms}))[place]
            return None if found is None else int(found.offset)
        finally:
            await consumer.stop()

    async def _administer(self, topic: str) -> None:
        admin: Any = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap_servers)
        await admin.start()
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        try:
            await admin.create_topics([NewTopic(topic, 2, 3)], timeout_ms=30_000)
            await self._wait_for_partitions(admin, topic, 2)
            await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "86400000"})])
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while "86400000" not in str(await admin.describe_configs([resource])):
                    await asyncio.sleep(0.05)
            await admin.create_partitions({topic: NewPartitions(3)})
            await self._wait_for_partitions(admin, topic, 3)
            assert await admin.list_consumer_groups() is not None
            await admin.delete_topics([topic], timeout_ms=30_000)
            await self._wait_for_partitions(admin, topic, 0)
        finally:
            await admin.close()

    @staticmethod
    async def _wait_for_partitions(admin: Any, topic: str, count: int) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while True:
                found = [each for each in await admin.describe_topics() if each["topic"] == topic]
                partitions = len(found[0]["partitions"]) if found and not found[0]["error_code"] else 0
                if partitions == count:
                    return
                await asyncio.sleep(0.05)

    def _reader(self, **configs: Any) -> Any:
        return AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap_servers,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=2_000_000,
            **configs,
        )


async def _send(producer: Any, topic: str, values: Sequence[bytes], partition: int) -> None:
    for sent in [await producer.send(topic, value, partition=partition) for value in values]:
        await sent


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(2 * TIMEOUT_SECONDS):
            return await coroutine

    return asyncio.run(bounded())
