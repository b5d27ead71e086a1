"""Transactions of librdkafka: all or nothing over partitions and offsets; who had an id before is fenced."""

from __future__ import annotations

import time
import uuid
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

SECONDS: Final = 60.0
PARTITIONS: Final = 4


@pytest.fixture
def topic(bootstrap_servers: str) -> str:
    name = f"transactions-{uuid.uuid4()}"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for created in admin.create_topics([NewTopic(name, PARTITIONS, 3)]).values():
        created.result(SECONDS)
    return name


def producer(servers: str, transactional_id: str, **configs: Any) -> Producer:
    made = Producer({"bootstrap.servers": servers, "transactional.id": transactional_id, **configs})
    made.init_transactions(SECONDS)
    return made


def consumer(servers: str, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )


def committed_values(servers: str, topic: str) -> list[bytes]:
    """All that a consumer of committed records finds, up to the last stable offset of each partition."""
    reader = consumer(servers, f"reader-{uuid.uuid4()}")
    found: list[bytes] = []
    ended: set[int] = set()
    try:
        reader.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        deadline = time.monotonic() + SECONDS
        while len(ended) < PARTITIONS:
            assert time.monotonic() < deadline, f"{len(ended)} partitions came to an end"
            message = reader.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
    finally:
        reader.close()
    return found


def test_what_is_committed_is_seen_and_nothing_else(bootstrap_servers: str, topic: str) -> None:
    writer = producer(bootstrap_servers, f"id-{uuid.uuid4()}")
    group = f"group-{uuid.uuid4()}"
    member = consumer(bootstrap_servers, group)
    try:
        for number in range(12):
            writer.begin_transaction()
            for place in range(20):
                writer.produce(topic, f"{number}-{place}".encode(), partition=place % PARTITIONS)
            writer.send_offsets_to_transaction(
                [TopicPartition(topic, 0, number)], member.consumer_group_metadata(), SECONDS
            )
            if number % 3 == 2:
                writer.abort_transaction(SECONDS)
            else:
                writer.commit_transaction(SECONDS)
        (committed,) = member.committed([TopicPartition(topic, 0)], timeout=SECONDS)
    finally:
        member.close()
    assert committed.offset == 10, "the last one was aborted"
    expected = [f"{number}-{place}".encode() for number in range(12) if number % 3 != 2 for place in range(20)]
    assert sorted(committed_values(bootstrap_servers, topic)) == sorted(expected)


def test_the_former_producer_of_an_id_is_fenced_and_its_transaction_aborted(bootstrap_servers: str, topic: str) -> None:
    transactional_id = f"id-{uuid.uuid4()}"
    former = producer(bootstrap_servers, transactional_id)
    former.begin_transaction()
    former.produce(topic, b"of the former", partition=0)
    assert former.flush(SECONDS) == 0
    latter = producer(bootstrap_servers, transactional_id)
    with pytest.raises(KafkaException) as raised:
        former.commit_transaction(SECONDS)
    error = raised.value.args[0]
    assert (error.code(), error.fatal()) == (KafkaError._FENCED, True)
    latter.begin_transaction()
    latter.produce(topic, b"of the latter", partition=0)
    latter.commit_transaction(SECONDS)
    assert committed_values(bootstrap_servers, topic) == [b"of the latter"]


def test_a_transaction_that_is_open_for_too_long_is_aborted(bootstrap_servers: str, topic: str) -> None:
    late = producer(bootstrap_servers, f"id-{uuid.uuid4()}", **{"transaction.timeout.ms": 2_000})
    late.begin_transaction()
    late.produce(topic, b"late", partition=0)
    assert late.flush(SECONDS) == 0
    # Nobody else's records are held back for longer than the time-out and the round of the coordinator.
    other = producer(bootstrap_servers, f"id-{uuid.uuid4()}")
    other.begin_transaction()
    other.produce(topic, b"in time", partition=0)
    other.commit_transaction(SECONDS)
    deadline = time.monotonic() + SECONDS
    while (found := committed_values(bootstrap_servers, topic)) != [b"in time"]:
        assert found == []
        assert time.monotonic() < deadline
    with pytest.raises(KafkaException):
        late.commit_transaction(SECONDS)
