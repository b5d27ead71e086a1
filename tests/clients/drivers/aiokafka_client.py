"""aiokafka: an asyncio client with its own record code in C."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, ClassVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.clients.drivers.model import Capability, Place, Record

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

    async def _read(self, topic: str, count: int, partition: int) -> list[Record]:
        consumer, place = self._reader(), TopicPartition(topic, partition)
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

    def _reader(self) -> Any:
        return AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap_servers,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=2_000_000,
        )


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(2 * TIMEOUT_SECONDS):
            return await coroutine

    return asyncio.run(bounded())
