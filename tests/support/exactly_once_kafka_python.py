"""As `exactly_once_member`, by kafka-python.

It knows no error after which a transaction may go on, so each is followed by an abort; where that fails, too, or where
anything takes longer than a minute, the member ends, and whoever looks after it starts another.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from tests.support.exactly_once_member import TRANSACTION_TIMEOUT_MS, say

_SECONDS: Final = 60.0
_POLL_MS: Final = 3_000
"""See `tests.clients.drivers.kafka_python`."""


def main(bootstrap: str, source: str, target: str, group: str, transactional_id: str) -> None:
    with _in_time():
        consumer: Any = KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            max_poll_records=50,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=1_000,
            metadata_max_age_ms=2_000,
        )
        producer: Any = KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        )
        producer.init_transactions()
        consumer.subscribe([source])
    while True:
        with _in_time():
            polled = consumer.poll(timeout_ms=_POLL_MS)
            if not polled:
                continue
            try:
                _copy(consumer, producer, target, polled)
            except KafkaError as raised:
                say(f"aborts after {raised!r}")
                producer.abort_transaction()
                _rewind(consumer, polled)


def _copy(consumer: Any, producer: Any, target: str, polled: dict[TopicPartition, list[Any]]) -> None:
    producer.begin_transaction()
    sent = [
        producer.send(target, record.value, partition=place.partition)
        for place, records in polled.items()
        for record in records
    ]
    producer.send_offsets_to_transaction(
        {place: OffsetAndMetadata(records[-1].offset + 1, "", -1) for place, records in polled.items()},
        consumer.group_metadata(),
    )
    for each in sent:
        each.get(_SECONDS)
    producer.commit_transaction()


def _rewind(consumer: Any, polled: dict[TopicPartition, list[Any]]) -> None:
    for place in polled.keys() & consumer.assignment():
        consumer.seek(place, consumer.committed(place) or 0)


@contextmanager
def _in_time() -> Iterator[None]:
    """Some calls of kafka-python wait for ever."""

    def end() -> None:
        say("has waited for a minute")
        os._exit(1)

    timer = threading.Timer(_SECONDS, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


if __name__ == "__main__":
    main(*sys.argv[1:])
