"""Transactions of every client that has them, and of librdkafka over several partitions and offsets at once."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.clients.conftest import make_topic
from tests.clients.drivers.model import (
    Capability,
    Client,
    Fenced,
    Record,
    TransactionalClient,
    TransactionalProducer,
)
from tests.support.waiting import wait_until

SECONDS: Final = 60.0
PARTITIONS: Final = 4
LATE_MS: Final = 3_000


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


def test_what_is_committed_is_seen_and_nothing_else(bootstrap_servers: str, wide_topic: str) -> None:
    writer = producer(bootstrap_servers, f"id-{uuid.uuid4()}")
    group = f"group-{uuid.uuid4()}"
    member = consumer(bootstrap_servers, group)
    try:
        for number in range(12):
            writer.begin_transaction()
            for place in range(20):
                writer.produce(wide_topic, f"{number}-{place}".encode(), partition=place % PARTITIONS)
            writer.send_offsets_to_transaction(
                [TopicPartition(wide_topic, 0, number)], member.consumer_group_metadata(), SECONDS
            )
            if number % 3 == 2:
                writer.abort_transaction(SECONDS)
            else:
                writer.commit_transaction(SECONDS)
        (committed,) = member.committed([TopicPartition(wide_topic, 0)], timeout=SECONDS)
    finally:
        member.close()
    assert committed.offset == 10, "the last one was aborted"
    expected = [f"{number}-{place}".encode() for number in range(12) if number % 3 != 2 for place in range(20)]
    assert sorted(committed_values(bootstrap_servers, wide_topic)) == sorted(expected)


@pytest.fixture
def transactional(client: Client) -> TransactionalClient:
    if reason := client.missing.get(Capability.TRANSACTIONS):
        pytest.skip(f"{client.name}: {reason}")
    assert isinstance(client, TransactionalClient)
    return client


@contextlib.contextmanager
def producing(*made: TransactionalProducer) -> Iterator[None]:
    try:
        yield
    finally:
        for each in made:
            each.close()


def values(word: str) -> list[bytes]:
    return [f"{word}-{number}".encode() for number in range(10)]


def wait_until_read(transactional: TransactionalClient, topic: str, expected: list[bytes], partition: int = 0) -> None:
    """Waits for markers: the end of a transaction is acknowledged before they are written."""
    found: list[bytes] = []

    def is_read() -> bool:
        found[:] = transactional.read_committed(topic, partition=partition)
        return len(found) >= len(expected)

    wait_until(is_read, f"{len(expected)} records of {topic}-{partition} are read", SECONDS, lambda: f"{found}")
    assert found == expected


def test_who_had_the_id_before_is_fenced_and_only_what_is_committed_is_read(
    transactional: TransactionalClient, wide_topic: str
) -> None:
    transactional_id = f"id-{uuid.uuid4()}"
    former = transactional.transactional(transactional_id)
    with producing(former):
        for word in ("first", "aborted", "second"):
            former.begin()
            for partition in (0, 1):
                former.send(wide_topic, values(word), partition=partition)
            if word == "aborted":
                former.abort()
            else:
                former.commit()
        former.begin()
        former.send(wide_topic, values("open"))
        assert transactional.read_committed(wide_topic) == values("first") + values("second")
        latter = transactional.transactional(transactional_id)
        with producing(latter):
            with pytest.raises(Fenced):
                former.commit()
            latter.begin()
            latter.send(wide_topic, values("latter"))
            latter.commit()
    expected = values("first") + values("second")
    wait_until_read(transactional, wide_topic, expected + values("latter"))
    wait_until_read(transactional, wide_topic, expected, partition=1)


def test_a_transaction_that_is_open_for_too_long_is_aborted(transactional: TransactionalClient, topic: str) -> None:
    late = transactional.transactional(f"id-{uuid.uuid4()}", LATE_MS)
    other = transactional.transactional(f"id-{uuid.uuid4()}")
    with producing(late, other):
        late.begin()
        late.send(topic, values("late"))
        other.begin()
        other.send(topic, values("other"))
        other.commit()
        wait_until(
            lambda: transactional.read_committed(topic) == values("other"), "the late transaction is aborted", SECONDS
        )
        with pytest.raises(Exception):  # noqa: B017  # each client has its own for it
            late.commit()


@pytest.mark.timeout(240)
def test_what_is_copied_with_its_offsets_is_there_once(
    transactional: TransactionalClient, topic: str, bootstrap_servers: str, python_client: Client
) -> None:
    source, target, group = topic, f"target-{uuid.uuid4()}", f"group-{uuid.uuid4()}"
    make_topic(bootstrap_servers, target, 1)
    copied = [b"%d" % number for number in range(40)]
    python_client.produce(source, [Record(value) for value in copied])
    transactional.copy(source, target, group, f"id-{uuid.uuid4()}", len(copied))
    wait_until_read(transactional, target, copied)
    # The offsets are committed too: who comes after copies only what has come since.
    added = [b"%d" % number for number in range(40, 50)]
    python_client.produce(source, [Record(value) for value in added])
    member = python_client.join(source, group)
    with contextlib.closing(member):
        wait_until(lambda: len(member.received()) >= len(added), "what has come since is there", SECONDS)
    assert [value for _, value in member.received()] == added
