"""What users' tests do with a cluster, through real clients: produce, and read everything back."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiokafka
import confluent_kafka

LIMIT_SECONDS = 60.0
Outcome = tuple[Any, Any]


def produce(servers: str, topic: str, *values: bytes, **config: object) -> list[Outcome]:
    """By confluent-kafka; for each record, in the order of the reports, the error or None, and the message."""
    reports: list[Outcome] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": servers,
            "message.timeout.ms": 50_000,
            **{k.replace("_", "."): v for k, v in config.items()},
        }
    )
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, message: reports.append((error, message)))
    assert producer.flush(LIMIT_SECONDS) == 0
    return reports


def consume(servers: str, topic: str, count: int, group: str = "readers") -> list[bytes]:
    """By a group of confluent-kafka; the first values of a topic."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    values: list[bytes] = []
    ends_at = time.monotonic() + LIMIT_SECONDS
    try:
        while len(values) < count:
            assert time.monotonic() < ends_at, f"{len(values)} of {count} records came; {_place(consumer)}"
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                values.append(message.value())
    finally:
        consumer.close()
    return values


def _place(consumer: confluent_kafka.Consumer) -> str:
    """Where a consumer stands, for whoever has to find out why it got nothing."""
    assigned = consumer.assignment()
    ends = []
    for each in assigned:
        try:
            ends.append(consumer.get_watermark_offsets(each, timeout=10))
        except confluent_kafka.KafkaException as error:
            ends.append(error)
    brokers = consumer.list_topics(timeout=10).topics
    leaders = {(each.topic, each.partition): brokers[each.topic].partitions for each in assigned}
    return f"assigned {assigned}, at {consumer.position(assigned)}, of {ends}, led by {leaders}"


async def exchange_by_aiokafka(servers: str, topic: str, *values: bytes) -> list[bytes]:
    """Produces and consumes on this loop; the values as they were read."""
    async with asyncio.timeout(LIMIT_SECONDS):
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=servers)
        await producer.start()
        try:
            for value in values:
                await producer.send_and_wait(topic, value)
        finally:
            await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=servers, group_id="async", auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            return [(await consumer.getone()).value for _ in values]
        finally:
            await consumer.stop()
