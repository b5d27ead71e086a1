"""Transactions that a coordinator of Apache Kafka ends in partitions that a broker of ours leads by then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import ElectLeadersRequest
from tests.interop.test_mixed_cluster import OFFSETS_TOPIC, PATIENCE_SECONDS, create_assigned_topic, wait_until_equal
from tests.support.by_night import by_night
from tests.support.mixed_cluster import MixedCluster, mixed_cluster
from tests.support.waiting import wait_until
from tests.support.wire_calls import call

AGAIN: Final = "20 s, and no commit says that it has found anything"
TRANSACTIONS_PARTITIONS: Final = 3
OVERRIDES: Final[Mapping[str, object]] = {
    "zookeeper.session.timeout.ms": 9_000,
    "transaction.state.log.num.partitions": TRANSACTIONS_PARTITIONS,
}
TRANSACTIONS_TOPIC: Final = "__transaction_state"
OFFSETS_PARTITIONS: Final = 4
COORDINATOR, LEADER, SUCCESSOR = 11, 12, 2


@pytest.fixture(scope="module")
def cluster(oracle_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    with mixed_cluster(tmp_path_factory.mktemp("mixed"), coordinator="embedded", overrides=OVERRIDES) as running:
        # The coordinator stays; the groups' coordinator and the partition's leader move from Apache Kafka to us.
        create_assigned_topic(
            running, OFFSETS_TOPIC, [(LEADER, SUCCESSOR)] * OFFSETS_PARTITIONS, **{"cleanup.policy": "compact"}
        )
        create_assigned_topic(
            running, TRANSACTIONS_TOPIC, [(COORDINATOR,)] * TRANSACTIONS_PARTITIONS, **{"cleanup.policy": "compact"}
        )
        yield running
        assert running.unexpected_complaints() == []


@pytest.mark.parametrize("outcome", ["commit", *by_night(AGAIN, "abort")])
def test_a_transaction_ends_where_we_have_become_the_leader(cluster: MixedCluster, outcome: str) -> None:
    topic, group = f"transactions-{outcome}", f"group-{outcome}"
    create_assigned_topic(cluster, topic, [(LEADER, SUCCESSOR)])
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "transactional.id": f"moving-{outcome}",
            "transaction.timeout.ms": 60_000,
        }
    )
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    for number in range(10):
        producer.produce(topic, f"value-{number}".encode(), partition=0)
    assert producer.flush(PATIENCE_SECONDS) == 0
    members = consumer(cluster, group)
    try:
        producer.send_offsets_to_transaction(
            [TopicPartition(topic, 0, 7, "within")], members.consumer_group_metadata(), PATIENCE_SECONDS
        )
        assert cluster.leader(topic) == cluster.leader(OFFSETS_TOPIC) == LEADER
        cluster.brokers[LEADER].stop()
        assert cluster.leader(topic) == cluster.leader(OFFSETS_TOPIC) == SUCCESSOR
        assert values(cluster, topic) == [], "the transaction is open"
        getattr(producer, f"{outcome}_transaction")(PATIENCE_SECONDS)
        committed = [f"value-{number}".encode() for number in range(10)]
        if outcome == "commit":  # which is acknowledged before its markers are written
            wait_until(lambda: values(cluster, topic), "the marker is written", PATIENCE_SECONDS)
        assert values(cluster, topic) == (committed if outcome == "commit" else [])
        (offset,) = members.committed([TopicPartition(topic, 0)], timeout=PATIENCE_SECONDS)
        assert (offset.offset, offset.metadata) == ((7, "within") if outcome == "commit" else (-1001, None))
    finally:
        members.close()
        if not cluster.brokers[LEADER].process.is_running:
            cluster.brokers[LEADER].start()
    cluster.wait_until_whole(topic)
    cluster.wait_until_whole(OFFSETS_TOPIC)
    wait_until_equal(cluster, topic, 0, (LEADER, SUCCESSOR))
    move_back(cluster, topic)


def move_back(cluster: MixedCluster, topic: str) -> None:
    """Has Apache Kafka's broker lead again."""
    for name, partitions in ((topic, 1), (OFFSETS_TOPIC, OFFSETS_PARTITIONS)):
        asked = ElectLeadersRequest.TopicPartitions(topic=name, partitions=list(range(partitions)))
        request = ElectLeadersRequest(election_type=0, topic_partitions=[asked], timeout_ms=30_000)
        answer = call(cluster.port(cluster.controller()), ApiKey.ELECT_LEADERS, 2, request)
        codes = {each.error_code for result in answer.replica_election_results for each in result.partition_result}
        assert codes <= {0, ErrorCode.ELECTION_NOT_NEEDED}
        for number in range(partitions):
            wait_until(lambda: cluster.leader(name, number) == LEADER, f"{LEADER} leads", PATIENCE_SECONDS)  # noqa: B023


def consumer(cluster: MixedCluster, group: str, **configs: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            **configs,
        }
    )


def values(cluster: MixedCluster, topic: str, partition: int = 0) -> list[bytes]:
    """What a consumer that reads committed records finds up to the last stable offset."""
    reader = consumer(cluster, "reader", **{"enable.partition.eof": True})
    found: list[bytes] = []
    try:
        reader.assign([TopicPartition(topic, partition, 0)])

        def at_end() -> bool:
            message = reader.poll(0.5)
            if message is not None and message.error() is None:
                found.append(message.value())
            return message is not None and message.error() is not None and message.error().name() == "_PARTITION_EOF"

        wait_until(at_end, "the end is reached", PATIENCE_SECONDS)
    finally:
        reader.close()
    return found
