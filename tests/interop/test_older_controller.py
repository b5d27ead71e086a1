"""Barnabas under a controller of Apache Kafka 3.4.1, which speaks older versions of what leaders ask it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.messages import CreateTopicsRequest
from tests.support import raw_zookeeper as raw
from tests.support.apache_kafka import ApacheKafkaBroker
from tests.support.apache_kafka_jars import OLD_KAFKA_VERSION, apache_kafka_jars
from tests.support.broker_process import BrokerProcess
from tests.support.embedded_coordinator import EmbeddedCoordinator
from tests.support.waiting import wait_until
from tests.support.wire_calls import brokers_known_at, call

CONTROLLER = 11
TOPIC = "flights"
WAIT_SECONDS = 90.0
OVERRIDES = {
    "inter.broker.protocol.version": "3.4",
    # A follower lags, and shows it, before its session is over.
    "zookeeper.session.timeout.ms": 20_000,
    "replica.lag.time.max.ms": 2_000,
}


@pytest.fixture
def coordinator(oracle_jars: Path, tmp_path: Path) -> Iterator[EmbeddedCoordinator]:
    apache_kafka_jars(OLD_KAFKA_VERSION)
    server = EmbeddedCoordinator(tmp_path / "coordinator", options=("--tick-time", "500"))
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.mark.night("half a minute and 60 MB to fetch, and it has found nothing since it was written (20b4ebe3)")
def test_a_leader_changes_its_isr_at_a_controller_of_kafka_3_4(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    old = ApacheKafkaBroker(
        tmp_path / "old", coordinator.address, CONTROLLER, overrides=OVERRIDES, version=OLD_KAFKA_VERSION
    )
    ours = [
        BrokerProcess(tmp_path / str(broker_id), broker_id, coordinator.address, overrides=OVERRIDES)
        for broker_id in (1, 2)
    ]
    leader, follower = ours
    try:
        old.start()
        for broker in ours:
            broker.start()
        ports = [old.port, leader.port, follower.port]
        wait_until(lambda: all(len(brokers_known_at(port)) == 3 for port in ports), "all know all", WAIT_SECONDS)
        assert raw.read_json(coordinator.address, "/controller")["brokerid"] == CONTROLLER
        assignment = CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2, CONTROLLER])
        topic = CreateTopicsRequest.CreatableTopic(
            name=TOPIC, num_partitions=-1, replication_factor=-1, assignments=[assignment]
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000)
        (result,) = call(old.port, ApiKey.CREATE_TOPICS, 5, request).topics
        assert result.error_code == 0, result.error_message

        def isr() -> set[int]:
            state = raw.read_json(coordinator.address, f"/brokers/topics/{TOPIC}/partitions/0/state")
            return set() if state is None else {*state["isr"]}

        wait_until(lambda: isr() == {1, 2, CONTROLLER}, "all are in sync", WAIT_SECONDS, leader.log_tail)
        follower.suspend()
        try:
            wait_until(lambda: isr() == {1, CONTROLLER}, "the follower has left the ISR", WAIT_SECONDS, leader.log_tail)
        finally:
            follower.resume()
        wait_until(lambda: isr() == {1, 2, CONTROLLER}, "it is in sync again", WAIT_SECONDS, leader.log_tail)
    finally:
        for broker in ours:
            broker.kill()
        old.kill()
