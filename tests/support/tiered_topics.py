"""Topics of tiered storage as librdkafka sees them: numbered records, written, and read back in order."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer, TopicPartition

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import ListOffsetsRequest
from tests.support.broker_process import BrokerCluster
from tests.support.waiting import wait_until
from tests.support.wire_calls import call, leader_port

CONFIGS = {
    "remote.storage.enable": "true",
    "segment.bytes": "20000",
    "local.retention.bytes": "40000",
    "retention.ms": "-1",
}
EARLIEST, EARLIEST_LOCAL, LATEST_TIERED = -2, -4, -5
FIRST_MS = 1_700_000_000_000


def any_port(cluster: BrokerCluster) -> int:
    return next(broker.port for broker in cluster.brokers.values() if broker.process.is_running)


def offset(port: int, topic: str, timestamp: int) -> int:
    asked = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    topics = [ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[asked])]
    answer = call(port, ApiKey.LIST_OFFSETS, 9, ListOffsetsRequest(replica_id=-1, topics=topics))
    (found,) = answer.topics[0].partitions
    assert found.error_code == ErrorCode.NONE, ErrorCode.for_code(found.error_code)
    return int(found.offset)


def produce(cluster: BrokerCluster, topic: str, start: int, end: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True, "linger.ms": 1})
    failures: list[object] = []
    for number in range(start, end):
        producer.produce(
            topic,
            value=f"{number}".encode().rjust(100),
            partition=0,
            timestamp=FIRST_MS + number,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        if not number % 20:
            producer.flush()
    producer.flush()
    assert not failures


def read(cluster: BrokerCluster, topic: str, start: int, end: int, isolation: str = "read_committed") -> None:
    """Every record from `start` up to `end` comes once, and in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "none",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition(topic, 0, start)])
    expected = start
    try:
        while expected < end:
            message = consumer.poll(90.0)
            assert message is not None, f"nothing came after {expected}"
            assert message.error() is None, message.error()
            assert (message.offset(), int(message.value())) == (expected, expected)
            expected += 1
    finally:
        consumer.close()


def wait_until_tiered(cluster: BrokerCluster, topic: str, least: int) -> int:
    """Until the leader's local log starts at `least` or later; returns where."""

    def local_start() -> int:
        found = offset(leader_port(any_port(cluster), topic), topic, EARLIEST_LOCAL)
        return found if found >= least else 0

    return wait_until(local_start, f"the local log of {topic} starts at {least}", 60.0, cluster.log_tails)
