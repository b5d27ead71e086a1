"""librdkafka reads from the replica in its rack (KIP-392), and from the leader when that is gone."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.broker_process import BrokerCluster, broker_cluster
from tests.support.waiting import wait_until
from tests.support.wire_calls import create_topic, leaders

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
RACKS = {1: "rack-1", 2: "rack-2", 3: "rack-3"}
TOPIC = "near"
RECORDS = 300
TIMEOUT_SECONDS = 90.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BrokerCluster]:
    overrides = {"replica.selector.class": SELECTOR, "offsets.topic.replication.factor": 1}
    with broker_cluster(tmp_path, 3, overrides=overrides, racks=RACKS) as running:
        yield running


class Reader:
    """A consumer in a rack; `broker` is that from which it fetches, as it says itself."""

    def __init__(self, bootstrap_servers: str, rack: str) -> None:
        self.broker = -1
        self.received: list[bytes] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "nobody",
                "client.rack": rack,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "statistics.interval.ms": 100,
                "stats_cb": self._take_statistics,
            }
        )
        self._consumer.assign([TopicPartition(TOPIC, 0, 0)])

    def reads_from(self, broker: int) -> bool:
        self.poll()
        return self.broker == broker

    def has(self, count: int) -> bool:
        self.poll()
        return len(self.received) >= count

    def poll(self) -> None:
        for message in self._consumer.consume(100, 0.1):
            if message.error() is None:
                self.received.append(message.value() or b"")

    def close(self) -> None:
        self._consumer.close()

    def _take_statistics(self, text: str) -> None:
        partition: Any = json.loads(text).get("topics", {}).get(TOPIC, {}).get("partitions", {}).get("0", {})
        self.broker = partition.get("broker", -1)


def produce(bootstrap_servers: str, start: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "acks": "all"})
    outcomes: list[object] = []
    for number in range(start, start + count):
        producer.produce(TOPIC, b"%d" % number, partition=0, callback=lambda error, _: outcomes.append(error))
        producer.poll(0)
    assert producer.flush(TIMEOUT_SECONDS) == 0
    assert outcomes == [None] * count


def test_reads_from_its_rack_and_from_the_leader_when_nobody_is_there(cluster: BrokerCluster) -> None:
    port = cluster.brokers[1].port
    create_topic(port, TOPIC, 1, 3)
    leader = wait_until(lambda: leaders(port, TOPIC).get(0), "it has a leader")
    follower = next(broker for broker in RACKS if broker != leader)
    addresses = cluster.bootstrap_servers
    produce(addresses, 0, RECORDS)
    with contextlib.ExitStack() as readers:
        near, beside_leader, elsewhere = (
            readers.enter_context(contextlib.closing(Reader(addresses, rack)))
            for rack in (RACKS[follower], RACKS[leader], "rack-9")
        )
        wait_until(lambda: near.has(RECORDS), "it has all", TIMEOUT_SECONDS)
        wait_until(lambda: near.reads_from(follower), "it reads in its rack", TIMEOUT_SECONDS)
        for reader in (beside_leader, elsewhere):
            wait_until(lambda: reader.has(RECORDS), "it has all", TIMEOUT_SECONDS)  # noqa: B023 - called in this turn
            assert reader.reads_from(leader)
        produce(addresses, RECORDS, RECORDS)
        wait_until(lambda: near.has(2 * RECORDS), "what is new comes from there", TIMEOUT_SECONDS)
        assert near.reads_from(follower)
        cluster.brokers[follower].kill()
        produce(addresses, 2 * RECORDS, RECORDS)
        wait_until(lambda: near.has(3 * RECORDS), "the leader gives the rest", TIMEOUT_SECONDS)
        assert near.received == [b"%d" % number for number in range(3 * RECORDS)]
