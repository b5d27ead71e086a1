"""Producers and consumers that go on while a cluster breaks under them, and the account of what was acknowledged."""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter
from types import TracebackType
from typing import Any, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer, TopicPartition

from tests.support.waiting import wait_until

_RECORDS_PER_SECOND = 400
_READ_TIMEOUT_SECONDS = 60.0


class Traffic:
    """One idempotent producer with acks=all and a group of two consumers, each in a thread of its own.

    Every record's value is its number. `acknowledged` holds the numbers of the records whose delivery was reported.
    """

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._next_number = 0
        self.acknowledged: set[int] = set()
        self.failures: list[str] = []
        self._consumed: set[int] = set()
        self._threads = [
            threading.Thread(target=self._produce, name="producer"),
            *(threading.Thread(target=self._consume, name=f"consumer-{number}") for number in range(2)),
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stops producing, waits for the last delivery reports (bounded), and leaves the group."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(90.0)
            if thread.is_alive():
                raise TimeoutError(f"the {thread.name} thread does not end")

    def wait_until_it_flows(self, what: str, timeout_seconds: float = 60.0) -> None:
        """Waits until records that are sent from now on were acknowledged and came through the group."""
        first_new = self._next_number

        def flows() -> bool:
            if self.failures:
                raise RuntimeError(f"{what}: {self.failures[0]}")
            with self._lock:
                return any(number >= first_new for number in self._consumed & self.acknowledged)

        wait_until(flows, f"{what}: records are acknowledged and consumed", timeout_seconds)

    def _produce(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "delivery.timeout.ms": 120_000,
                "request.timeout.ms": 10_000,
                "reconnect.backoff.max.ms": 1_000,
            }
        )
        started = time.monotonic()
        while not self._stopping.is_set():
            due = int((time.monotonic() - started) * _RECORDS_PER_SECOND)
            while self._next_number < due:
                number = self._next_number
                try:
                    producer.produce(self._topic, value=str(number).encode(), on_delivery=self._delivered)
                except BufferError:
                    break
                self._next_number += 1
            producer.poll(0.02)
        if producer.flush(60.0):
            self.failures.append("records were neither acknowledged nor refused within 60 s")

    def _delivered(self, error: Any, message: Message) -> None:
        value = message.value()
        if error is not None or value is None:
            self.failures.append(f"a record was not delivered: {error}")
            return
        with self._lock:
            self.acknowledged.add(int(value))

    def _consume(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "group.id": "traffic",
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 1_000,
                "auto.commit.interval.ms": 1_000,
                "reconnect.backoff.max.ms": 1_000,
                "topic.metadata.refresh.interval.ms": 5_000,
            }
        )
        consumer.subscribe([self._topic])
        try:
            while not self._stopping.is_set():
                messages = [message for message in consumer.consume(500, 0.1) if message.error() is None]
                with self._lock:
                    self._consumed.update(int(value) for message in messages if (value := message.value()) is not None)
        finally:
            consumer.close()


def read_whole_topic(bootstrap_servers: str, topic: str, partitions: int) -> Counter[int]:
    """How often each number is in the log, over all partitions from their beginning to their end of now."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "whole", "enable.auto.commit": False})
    try:
        ends: dict[int, int] = {}
        for partition in range(partitions):
            watermarks = functools.partial(_watermarks, consumer, TopicPartition(topic, partition))
            _low, ends[partition] = wait_until(watermarks, f"{topic}-{partition} has a leader")
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)])
        found: Counter[int] = Counter()
        left = {partition for partition, end in ends.items() if end > 0}
        deadline = time.monotonic() + _READ_TIMEOUT_SECONDS
        while left:
            if time.monotonic() > deadline:
                raise TimeoutError(f"partitions {sorted(left)} of {topic} cannot be read to their end")
            for message in consumer.consume(1_000, 0.2):
                partition, offset, value = message.partition(), message.offset(), message.value()
                if message.error() is not None or partition is None or offset is None or value is None:
                    continue
                found[int(value)] += 1
                if offset + 1 >= ends[partition]:
                    left.discard(partition)
        return found
    finally:
        consumer.close()


def _watermarks(consumer: Consumer, partition: TopicPartition) -> tuple[int, int] | None:
    try:
        low, high = consumer.get_watermark_offsets(partition, timeout=60.0)
    except KafkaException:
        return None
    return low, high
