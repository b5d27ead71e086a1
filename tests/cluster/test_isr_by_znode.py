"""Leaders of inter.broker.protocol.version 2.6 write ISRs themselves: a follower that stands still leaves, and returns.

The follower's session lives on, so that no controller takes it out of the ISR. With a real ZooKeeper ensemble too under
BARNABAS_LONG_FAILURES=1 (`make test-cluster`, but not in `.ci/run`).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.broker_process import BrokerCluster, broker_cluster
from tests.support.by_night import by_night
from tests.support.waiting import wait_until
from tests.support.wire_calls import create_topic, metadata

LONG = os.environ.get("BARNABAS_LONG_FAILURES") == "1"
REAL_ZOOKEEPER = by_night("half a minute, and no commit says that it has found anything", "zookeeper")
COORDINATORS = ("embedded", *REAL_ZOOKEEPER) if LONG else ("embedded",)
TOPIC = "flights"
PATIENCE_SECONDS = 90.0
OVERRIDES = {
    "inter.broker.protocol.version": "2.6",
    "zookeeper.session.timeout.ms": 90_000,
    "replica.lag.time.max.ms": 5_000,
    "auto.leader.rebalance.enable": "false",
    "controlled.shutdown.retry.backoff.ms": 200,
}


def isr(cluster: BrokerCluster, at: int) -> set[int]:
    """As the broker `at` has been told."""
    (topic,) = metadata(cluster.brokers[at].port, [TOPIC]).topics
    return set(topic.partitions[0].isr_nodes) if topic.partitions else set()


def produce(cluster: BrokerCluster, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "message.timeout.ms": 60_000})
    faults: list[object] = []

    def note(error: object, _: object) -> None:
        if error is not None:
            faults.append(error)

    for number in range(first, first + count):
        producer.produce(TOPIC, str(number).encode(), on_delivery=note)
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert not faults


def consumed(cluster: BrokerCluster, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[bytes] = []
    try:
        while len(found) < count and (messages := consumer.consume(count, timeout=30)):
            found += [message.value() or b"" for message in messages if not message.error()]
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("coordinator", COORDINATORS)
def test_a_follower_that_stands_still_leaves_the_isr_and_returns(tmp_path: Path, coordinator: str) -> None:
    with broker_cluster(tmp_path, 3, coordinator=coordinator, overrides=OVERRIDES) as cluster:
        create_topic(cluster.brokers[1].port, TOPIC, 1, 3, **{"min.insync.replicas": "2"})
        wait_until(lambda: len(isr(cluster, 1)) == 3, "all are in sync", PATIENCE_SECONDS)
        described = metadata(cluster.brokers[1].port, [TOPIC])
        leader = described.topics[0].partitions[0].leader_id
        follower = next(each for each in cluster.brokers if each not in (leader, described.controller_id))
        others = {1, 2, 3} - {follower}
        produce(cluster, 0, 100)
        cluster.brokers[follower].suspend()
        try:
            produce(cluster, 100, 100)  # acknowledged once the follower is out of the ISR
            # The controller reads the znode when the change is announced, and tells everybody.
            for at in others:
                wait_until(lambda: isr(cluster, at) == others, f"broker {at} knows", PATIENCE_SECONDS)  # noqa: B023
        finally:
            cluster.brokers[follower].resume()
        for at in (1, 2, 3):
            wait_until(lambda: isr(cluster, at) == {1, 2, 3}, f"broker {at} knows", PATIENCE_SECONDS)  # noqa: B023
        produce(cluster, 200, 100)
        assert consumed(cluster, 300) == [str(number).encode() for number in range(300)]
        cluster.check_that_none_exited_by_itself()
