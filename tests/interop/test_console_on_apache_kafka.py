"""The console of an unmodified Apache Kafka 3.9.1."""

from __future__ import annotations

from collections.abc import Iterator

import confluent_kafka
import pytest

from tests.support.apache_kafka import ApacheKafkaBroker
from tests.support.command_suite import new_topic
from tests.support.running_console import RunningConsole

RECORDS = 30
SECONDS = 30


@pytest.fixture(scope="module")
def topic(kafka_broker: ApacheKafkaBroker) -> Iterator[str]:
    """A topic with records, of which group console-readers has read all but five, and an open transaction."""
    servers = {"bootstrap.servers": kafka_broker.address}
    with new_topic(kafka_broker.address, "--partitions", "2", "--replication-factor", "1") as name:
        producer = confluent_kafka.Producer(servers)
        for number in range(RECORDS):
            producer.produce(name, f"value {number}", partition=0)
        assert producer.flush(SECONDS) == 0
        consumer = confluent_kafka.Consumer({**servers, "group.id": "console-readers", "enable.auto.commit": False})
        consumer.commit(offsets=[confluent_kafka.TopicPartition(name, 0, RECORDS - 5)], asynchronous=False)
        consumer.close()
        spender = confluent_kafka.Producer({**servers, "transactional.id": "console-spender"})
        spender.init_transactions(SECONDS)
        spender.begin_transaction()
        spender.produce(name, b"spent", partition=1)
        assert spender.flush(SECONDS) == 0
        yield name
        spender.abort_transaction(SECONDS)


@pytest.fixture(scope="module")
def console(kafka_broker: ApacheKafkaBroker, topic: str) -> Iterator[RunningConsole]:
    """Its console."""
    with RunningConsole(kafka_broker.address) as running:
        running.wait_for("/topics", topic)
        yield running


def test_every_page_of_apache_kafka(console: RunningConsole, topic: str) -> None:
    console.wait_for("/", "Brokers 1", "Controller broker")
    console.wait_for("/brokers", "Apache Kafka or other", "controller", "ok")
    console.wait_for(f"/topics/{topic}", "2 partitions", str(RECORDS))
    console.wait_for(f"/topics/{topic}/0", "Who led, and who was in sync", "None.")
    console.wait_for("/controller", "It is Apache Kafka or another broker, not Barnabas")
    console.wait_for("/groups", "console-readers")
    console.wait_for("/groups/console-readers", "Lag 5 records", "Empty")
    console.wait_for("/reassignments", "Nothing is being moved.")
    console.wait_for("/transactions", "console-spender", "Ongoing", f"{topic}-1")
    found = console.get(f"/messages?topic={topic}&q=value+2")
    assert "11 records" in found.words
    assert "stale" not in console.get("/").words
