"""Creating topics, producing and reading as a user of confluent-kafka would, with progress for whoever shows it.

All of it blocks and runs in threads; a `threading.Event` stops it, so that Ctrl-C need not wait for a broker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from demo.source import SourceRecord

REPLICAS: Final = 3
MIN_IN_SYNC_REPLICAS: Final = 2
ANSWER_SECONDS_MAX: Final = 30.0
DELIVERY_SECONDS_MAX: Final = 60.0
_CONSUMED_AT_ONCE: Final = 5_000
_RECORDS_BETWEEN_REPORTS: Final = 2_000

Progress = Callable[[int], None]
# Brokers that cannot be reached are what the run is about: only what the client cannot get over is worth a line.
_QUIET: Final = {"log_level": 2}


class StoppedError(RuntimeError):
    """The run has ended elsewhere."""


class TrafficError(RuntimeError):
    """The cluster did not do what it was asked to in time; the message says what."""


def create_topics(bootstrap_servers: str, partitions_by_topic: dict[str, int]) -> None:
    """Creates all topics, replicated. Raises KafkaException when the cluster refuses one."""
    config = {"min.insync.replicas": str(MIN_IN_SYNC_REPLICAS)}
    topics = [NewTopic(name, count, REPLICAS, config=config) for name, count in partitions_by_topic.items()]
    admin = _admin(bootstrap_servers)  # which ends its answers when it goes itself
    for created in admin.create_topics(topics, request_timeout=ANSWER_SECONDS_MAX).values():
        created.result(timeout=ANSWER_SECONDS_MAX)


def produce(
    bootstrap_servers: str, records: Iterable[SourceRecord], progress: Progress, stopping: threading.Event
) -> int:
    """Produces all records, each once (idempotence, acks=all), and returns how many were acknowledged.

    A key goes to the partition to which Kafka's Java clients send it. `progress` hears of acknowledged records. Raises
    TrafficError when one was not, StoppedError once `stopping` is set.
    """
    acknowledged, failures = 0, []

    def delivered(error: KafkaError | None, _message: object) -> None:
        nonlocal acknowledged
        if error is not None:
            failures.append(str(error))
            return
        acknowledged += 1
        if acknowledged % _RECORDS_BETWEEN_REPORTS == 0:
            progress(acknowledged)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": "murmur2_random",
            "linger.ms": 20,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 20_000,
            "delivery.timeout.ms": int(DELIVERY_SECONDS_MAX * 1000),
            **_QUIET,
        }
    )
    for record in records:
        while not (stopping.is_set() or failures):
            try:
                producer.produce(record.topic, record.value, record.key, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        else:
            break
        producer.poll(0)
    waiting = 1
    while waiting and not (stopping.is_set() or failures):
        # Bounded: what is not acknowledged within the delivery timeout is a failure.
        waiting = producer.flush(0.5)
    if stopping.is_set() or failures:
        producer.purge()
        if failures:
            raise TrafficError(f"a record was not acknowledged: {failures[0]}")
        raise StoppedError
    progress(acknowledged)
    return acknowledged


def end_offsets(bootstrap_servers: str, topic: str) -> dict[int, int]:
    """The end of every partition. Raises KafkaException."""
    from confluent_kafka.admin import OffsetSpec

    admin = _admin(bootstrap_servers)
    metadata = admin.list_topics(topic, timeout=ANSWER_SECONDS_MAX).topics[topic]
    asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in metadata.partitions}
    answers = admin.list_offsets(asked, request_timeout=ANSWER_SECONDS_MAX)
    return {key.partition: answer.result(ANSWER_SECONDS_MAX).offset for key, answer in answers.items()}


def committed_offsets(bootstrap_servers: str, group: str, topic: str) -> dict[int, int]:
    """What the group committed for the topic, by partition. Raises KafkaException."""
    admin, asked = _admin(bootstrap_servers), [ConsumerGroupTopicPartitions(group)]
    (answer,) = admin.list_consumer_group_offsets(asked, request_timeout=ANSWER_SECONDS_MAX).values()
    found = answer.result(ANSWER_SECONDS_MAX).topic_partitions
    return {entry.partition: entry.offset for entry in found if entry.topic == topic and entry.offset >= 0}


def leaders(bootstrap_servers: str, topic: str) -> dict[int, int]:
    """The broker that leads each partition, -1 where there is none. Raises KafkaException."""
    metadata = _admin(bootstrap_servers).list_topics(topic, timeout=ANSWER_SECONDS_MAX).topics[topic]
    return {number: partition.leader for number, partition in metadata.partitions.items()}


def replicas_behind(bootstrap_servers: str, topics: Iterable[str]) -> int:
    """How many replicas of the topics are not in sync. Raises KafkaException."""
    metadata = _admin(bootstrap_servers).list_topics(timeout=ANSWER_SECONDS_MAX)
    partitions = [partition for topic in topics for partition in metadata.topics[topic].partitions.values()]
    return sum(len(partition.replicas) - len(partition.isrs) for partition in partitions)


def committed_records(
    bootstrap_servers: str, topic: str, progress: Progress, stopping: threading.Event
) -> list[tuple[bytes, bytes]]:
    """Reads the topic to its end; key and value of each record that is committed, in the order of each partition.

    Raises TrafficError when nothing comes for DELIVERY_SECONDS_MAX, StoppedError once `stopping` is set.
    """
    ends = {partition: end for partition, end in end_offsets(bootstrap_servers, topic).items() if end}
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            # Unused: partitions are assigned by hand and nothing is committed; the client wants a name.
            "group.id": "make-run",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            # The last offsets are those of markers, which are no records.
            "enable.partition.eof": True,
            **_QUIET,
        }
    )
    found: list[tuple[bytes, bytes]] = []
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
        quiet_since = time.monotonic()
        while ends:
            if stopping.is_set():
                raise StoppedError
            messages = consumer.consume(_CONSUMED_AT_ONCE, timeout=0.5)
            if messages:
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since > DELIVERY_SECONDS_MAX:
                raise TrafficError(f"only {len(found):,} records of topic {topic} came, and nothing more for a minute")
            for message in messages:
                _raise_unless_passing(message.error())
                if message.error() is None:
                    found.append((message.key(), message.value()))
                elif _is_end(message.error()) and message.offset() >= ends.get(message.partition(), 0):
                    ends.pop(message.partition(), None)
            progress(len(found))
    finally:
        consumer.close()
    return found


def _raise_unless_passing(error: KafkaError | None) -> None:
    if error is not None and not error.retriable() and not _is_end(error):
        raise KafkaException(error)


def _is_end(error: KafkaError) -> bool:
    return bool(error.code() == KafkaError._PARTITION_EOF)  # noqa: SLF001  (public)


def _admin(bootstrap_servers: str) -> Any:
    return AdminClient({"bootstrap.servers": bootstrap_servers, **_QUIET})
