"""Copies a topic into another one, each record exactly once, until it is killed:
`python -m tests.support.exactly_once_member BOOTSTRAP SOURCE TARGET GROUP TRANSACTIONAL_ID`.

What each transaction reads, writes and commits belongs together. An error of which the client says that the transaction
has to be aborted is followed by that; after a fatal one the member ends, and whoever looks after it starts another.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

TRANSACTION_TIMEOUT_MS: Final = 10_000
_SECONDS: Final = 60.0
_BATCH: Final = 50


def main(bootstrap: str, source: str, target: str, group: str, transactional_id: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 1_000,
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        }
    )
    _until_done(producer.init_transactions)
    consumer.subscribe([source])
    while True:
        polled = [each for each in consumer.consume(_BATCH, 0.5) if each.error() is None]
        if polled:
            try:
                _copy(consumer, producer, target, polled)
            except KafkaException as raised:
                say(f"aborts after {raised}")
                if raised.args[0].fatal():
                    raise
                _until_done(producer.abort_transaction)
                _rewind(consumer, polled)


def _copy(consumer: Consumer, producer: Producer, target: str, polled: list[Message]) -> None:
    producer.begin_transaction()
    next_offsets: dict[int, int] = {}
    for message in polled:
        partition = message.partition()
        assert partition is not None
        producer.produce(target, message.value(), partition=partition)
        next_offsets[partition] = (message.offset() or 0) + 1
    places = [TopicPartition(polled[0].topic() or "", *each) for each in next_offsets.items()]
    metadata = consumer.consumer_group_metadata()
    _until_done(lambda seconds: producer.send_offsets_to_transaction(places, metadata, seconds))
    _until_done(producer.commit_transaction)


def _rewind(consumer: Consumer, polled: list[Message]) -> None:
    """To what is committed: what was read in the aborted transaction is read again."""
    polled_partitions = {each.partition() for each in polled}
    mine = [each for each in consumer.assignment() if each.partition in polled_partitions]
    if not mine:
        return
    for place in consumer.committed(mine, timeout=_SECONDS):
        consumer.seek(TopicPartition(place.topic, place.partition, max(0, place.offset)))


def _until_done(ask: Callable[[float], object]) -> None:
    """Asks again what may be asked again, for a minute."""
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            ask(_SECONDS)
        except KafkaException as raised:
            if not raised.args[0].retriable() or time.monotonic() > deadline:
                raise
            say(f"again after {raised}")
        else:
            return


def say(text: str) -> None:
    """For whoever looks at why the test has failed."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
