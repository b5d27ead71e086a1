"""Producing and consuming as a user of confluent-kafka would, with progress for whoever shows it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from demo.flights import FlightEvent, Recount

TOPIC = "flights"
PARTITIONS = 6
REPLICAS = 3
GROUP = "make-run"
QUIET_SECONDS_MAX = 60.0
FLUSH_SECONDS_MAX = 60.0
CONSUMED_AT_ONCE = 5_000
EVENTS_BETWEEN_REPORTS = 2_000

Progress = Callable[[int], None]
# Brokers that cannot be reached are what the run is about: only what the client cannot get over is worth a line.
_QUIET = {"log_level": 2}


class StoppedError(RuntimeError):
    """The run has ended elsewhere."""


def create_topic(bootstrap_servers: str) -> None:
    """Raises KafkaException when the cluster refuses."""
    topic = NewTopic(TOPIC, PARTITIONS, REPLICAS, config={"min.insync.replicas": "2"})
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    (created,) = admin.create_topics([topic]).values()
    created.result(timeout=30)


def produce(
    bootstrap_servers: str, events: Iterator[FlightEvent], progress: Progress, stopping: threading.Event
) -> int:
    """Produces all events, each once (idempotence, acks=all), and returns how many were acknowledged.

    `progress` hears of acknowledged events. Raises RuntimeError when one was not, StoppedError once `stopping` is set.
    """
    acknowledged, failures = 0, []

    def delivered(error: KafkaError | None, _message: object) -> None:
        nonlocal acknowledged
        if error is not None:
            failures.append(str(error))
            return
        acknowledged += 1
        if acknowledged % EVENTS_BETWEEN_REPORTS == 0:
            progress(acknowledged)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 5,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 20_000,
            **_QUIET,
        }
    )
    for event in events:
        while True:
            try:
                producer.produce(TOPIC, event.value, event.key, on_delivery=delivered)
                break
            except BufferError:
                if stopping.is_set():
                    producer.purge()
                    raise StoppedError("the producer was stopped") from None
                producer.poll(0.1)
        producer.poll(0)
    waiting = producer.flush(FLUSH_SECONDS_MAX)
    if waiting or failures:
        reason = failures[0] if failures else "no answer"
        raise RuntimeError(f"{waiting + len(failures):,} events were not acknowledged: {reason}")
    progress(acknowledged)
    return acknowledged


def consume(bootstrap_servers: str, count: int, progress: Progress) -> Recount:
    """Reads the topic in a group until `count` events were seen and every partition is at its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            **_QUIET,
        }
    )
    recount, seen = Recount(), 0
    ended: set[int] = set()
    try:
        consumer.subscribe([TOPIC])
        last_message = time.monotonic()
        while seen < count or len(ended) < PARTITIONS:
            messages = consumer.consume(CONSUMED_AT_ONCE, timeout=1.0)
            for message in messages:
                error = message.error()
                if error is None:
                    recount.add(message.value())
                    seen += 1
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  (its public name)
                    ended.add(message.partition())
                elif not error.retriable():
                    raise KafkaException(error)
            if messages:
                last_message = time.monotonic()
                progress(seen)
            elif time.monotonic() - last_message > QUIET_SECONDS_MAX:
                raise RuntimeError(f"only {seen:,} of {count:,} events came, and nothing more for a minute")
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return recount
