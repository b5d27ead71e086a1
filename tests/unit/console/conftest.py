"""A cluster with something in it, and its console; shared by the tests that change nothing of it."""

from __future__ import annotations

from collections.abc import Iterator

import confluent_kafka
import pytest

from barnabas.testing import KafkaCluster
from tests.support.running_console import RunningConsole

EVIL = "<script>alert(1)</script>"
GROUP = f"a/b?c {EVIL}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    """Three brokers; topic flights has records of all kinds, a group has read a part, a transaction is open."""
    with KafkaCluster(brokers=3) as running:
        running.create_topic("flights", partitions=2, replication_factor=3)
        running.create_topic("spent", partitions=1, replication_factor=3)
        running.create_topic("money", partitions=1, replication_factor=3)
        servers = {"bootstrap.servers": running.bootstrap_servers, "log_level": 0}
        producer = confluent_kafka.Producer(servers)
        for number in range(120):
            producer.produce("flights", f"value {number}", key=f"UA{number}", partition=0)
        producer.produce("flights", f"{EVIL}\x1b[31m\u202e", key=b"\xff\x00\x01", partition=1, headers={EVIL: b"\xfe"})
        producer.produce("flights", None, key="tombstone", partition=1)
        producer.produce("flights", b"", partition=1)
        producer.produce("flights", "é" * 5_000, partition=1)
        producer.produce("flights", bytes(range(256)) * 4, partition=1)
        producer.flush()
        consumer = confluent_kafka.Consumer({**servers, "group.id": GROUP, "enable.auto.commit": False})
        consumer.commit(offsets=[confluent_kafka.TopicPartition("flights", 0, 100)], asynchronous=False)
        consumer.close()
        spender = confluent_kafka.Producer({**servers, "transactional.id": EVIL})
        spender.init_transactions()
        for _ in range(3):
            spender.begin_transaction()
            spender.produce("spent", b"1")
            spender.commit_transaction()
        spender.begin_transaction()
        spender.produce("money", b"1")
        spender.flush()
        yield running
        spender.abort_transaction()


@pytest.fixture(scope="module")
def console(cluster: KafkaCluster) -> Iterator[RunningConsole]:
    """Its console, which has been answered everything."""
    with RunningConsole(cluster.bootstrap_servers) as running:
        running.wait_for("/", "All is well.", "Written", without="not known")
        running.wait_for("/groups", "1 group", " 20 ")
        running.wait_for("/transactions", "1 with an open transaction")
        running.wait_for("/brokers", "Barnabas", "data")
        running.wait_for("/controller", "Epoch")
        yield running
