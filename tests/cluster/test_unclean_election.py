"""kill -9 of every process of a cluster whose topics allow unclean elections: what the ISR has acknowledged is there
afterwards, although a replica that lacks it comes back first.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.support.broker_process import BrokerCluster, broker_cluster
from tests.support.by_night import by_night
from tests.support.raw_zookeeper import Operation, RawSession, read
from tests.support.waiting import wait_until
from tests.support.wire_calls import create_topic, leaders, metadata

AT_ONCE = "half a minute, and no commit says that it has found anything"
TOPIC = "payments"
RECORDS = 1_000
PARTITIONS = 3
WAIT_SECONDS = 60.0
SESSION_TIMEOUT_MS = 15_000
"""So long, too, a replica that is not in sync waits for one that is: a process starts within that."""
OVERRIDES = {"zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS, "replica.lag.time.max.ms": 3_000}
STALE = 3


def produce(cluster: BrokerCluster) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "linger.ms": 5})
    failures: list[object] = []
    for number in range(RECORDS):
        producer.produce(
            TOPIC,
            b"%d" % number,
            partition=number % PARTITIONS,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(WAIT_SECONDS) == 0
    assert failures == []


def end(consumer: Consumer, number: int) -> int | None:
    """The high watermark; None while a new leader does not know it, or has nothing."""
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(TOPIC, number), timeout=WAIT_SECONDS)[1]) or None
    except KafkaException:
        return None


def consume(cluster: BrokerCluster) -> set[int]:
    """Whatever there is."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "none", "enable.auto.commit": False}
    )
    try:
        consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
        left = 0
        for number in range(PARTITIONS):
            left += wait_until(lambda: end(consumer, number), "there are records", WAIT_SECONDS)  # noqa: B023
        found: set[int] = set()
        while len(found) < left:
            messages = consumer.consume(RECORDS, timeout=WAIT_SECONDS)
            assert messages, f"{len(found)} of {left} records came"
            found |= {int(message.value()) for message in messages}
        return found
    finally:
        consumer.close()


def has_left_the_isrs(cluster: BrokerCluster, broker_id: int) -> bool:
    (topic,) = metadata(cluster.brokers[1].port, [TOPIC]).topics
    return all(broker_id not in partition.isr_nodes for partition in topic.partitions)


def registered(cluster: BrokerCluster) -> set[int]:
    """The brokers whose sessions live."""
    session = RawSession(int(cluster.coordinator.address.rpartition(":")[2]))
    session.connect()
    try:
        return {int(name) for name in session.call(read(Operation.GET_CHILDREN, "/brokers/ids")).body}
    finally:
        session.close()


@pytest.mark.parametrize("sessions_end", [True, *by_night(AT_ONCE, False)], ids=["after their sessions", "at once"])
def test_no_acknowledged_record_is_lost_when_everything_is_killed(tmp_path: Path, sessions_end: bool) -> None:
    with broker_cluster(tmp_path, 3, overrides=OVERRIDES) as cluster:
        configs = {"unclean.leader.election.enable": "true", "min.insync.replicas": "2"}
        create_topic(cluster.brokers[1].port, TOPIC, PARTITIONS, 3, **configs)
        wait_until(lambda: len(leaders(cluster.brokers[1].port, TOPIC)) == PARTITIONS, "leaders", WAIT_SECONDS)
        cluster.brokers[STALE].kill()
        wait_until(lambda: has_left_the_isrs(cluster, STALE), "broker 3 is out of sync", WAIT_SECONDS)
        produce(cluster)
        for broker_id in (1, 2):
            cluster.brokers[broker_id].kill()
        if sessions_end:
            wait_until(lambda: registered(cluster) == set(), "all sessions are over", WAIT_SECONDS)
            # The others follow while it takes over.
            cluster.brokers[STALE].start(wait=False)
            wait_until(lambda: registered(cluster) == {STALE}, "broker 3 is registered", WAIT_SECONDS)
        else:
            cluster.coordinator.kill()
            cluster.coordinator.start()
            cluster.brokers[STALE].start(wait=False)
        for broker_id in (1, 2):
            cluster.brokers[broker_id].start(wait=False)
        for broker in cluster.brokers.values():
            broker.wait_until_ready()
            wait_until(
                lambda: len(leaders(broker.port, TOPIC)) == PARTITIONS,  # noqa: B023 - called in this turn
                f"broker {broker.broker_id} knows the leaders",
                WAIT_SECONDS,
                cluster.log_tails,
            )
        assert consume(cluster) == set(range(RECORDS))
        cluster.check_that_none_exited_by_itself()
