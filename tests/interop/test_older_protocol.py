"""Our controller over a broker of Apache Kafka, in a cluster whose inter.broker.protocol.version is older."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.messages import CreateTopicsRequest, DeleteTopicsRequest
from tests.support import raw_zookeeper as raw
from tests.support.apache_kafka import ApacheKafkaBroker
from tests.support.broker_process import BrokerProcess
from tests.support.by_night import by_night
from tests.support.embedded_coordinator import EmbeddedCoordinator
from tests.support.waiting import wait_until
from tests.support.wire_calls import brokers_known_at, call

OURS, KAFKA = 1, 11
BETWEEN = "15 s for each, and no commit says that one has found anything: other tests have the newest"
TOPIC = "flights"
WAIT_SECONDS = 90.0


@pytest.fixture
def coordinator(oracle_jars: Path, tmp_path: Path) -> Iterator[EmbeddedCoordinator]:
    del oracle_jars
    server = EmbeddedCoordinator(tmp_path / "coordinator", options=("--tick-time", "500"))
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.mark.parametrize("protocol", ["2.4-IV0", *by_night(BETWEEN, "2.5", "2.7", "3.1")])
def test_kafka_obeys_our_controller_of_an_older_protocol(
    coordinator: EmbeddedCoordinator, tmp_path: Path, protocol: str
) -> None:
    overrides = {
        "inter.broker.protocol.version": protocol,
        "zookeeper.session.timeout.ms": 4_000,
        "log.segment.delete.delay.ms": 100,
    }
    ours = BrokerProcess(tmp_path / "ours", OURS, coordinator.address, overrides=overrides)
    kafka = ApacheKafkaBroker(tmp_path / "kafka", coordinator.address, KAFKA, overrides=overrides)
    try:
        ours.start()
        wait_until(lambda: brokers_known_at(ours.port) == [OURS], "ours is alone", WAIT_SECONDS, ours.log_tail)
        kafka.start()
        ports = [ours.port, kafka.port]
        wait_until(lambda: all(len(brokers_known_at(port)) == 2 for port in ports), "both know both", WAIT_SECONDS)
        assert raw.read_json(coordinator.address, "/controller")["brokerid"] == OURS
        replicas = [CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=[KAFKA, OURS])]
        topic = CreateTopicsRequest.CreatableTopic(
            name=TOPIC, num_partitions=-1, replication_factor=-1, assignments=replicas
        )
        made = call(ours.port, ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
        assert made.topics[0].error_code == 0, made.topics[0].error_message
        has_id = raw.read_json(coordinator.address, f"/brokers/topics/{TOPIC}").get("topic_id") is not None
        assert has_id == (protocol == "3.1")

        def isr() -> set[int]:
            state = raw.read_json(coordinator.address, f"/brokers/topics/{TOPIC}/partitions/0/state")
            return set() if state is None else {*state["isr"]}

        wait_until(lambda: isr() == {OURS, KAFKA}, "both are in sync", WAIT_SECONDS, ours.log_tail)
        kept = tmp_path / "kafka" / "logs" / f"{TOPIC}-0"
        wait_until(kept.is_dir, "Kafka's broker has made its log", WAIT_SECONDS, ours.log_tail)
        kafka.kill()
        wait_until(lambda: isr() == {OURS}, "Kafka's broker has left the ISR", WAIT_SECONDS, ours.log_tail)
        kafka.start()
        wait_until(lambda: isr() == {OURS, KAFKA}, "it is in sync again", WAIT_SECONDS, ours.log_tail)
        gone = DeleteTopicsRequest(topic_names=[TOPIC], timeout_ms=60_000)
        assert call(ours.port, ApiKey.DELETE_TOPICS, 5, gone).responses[0].error_code == 0
        wait_until(
            lambda: raw.read_json(coordinator.address, f"/brokers/topics/{TOPIC}") is None,
            "its znode has gone",
            WAIT_SECONDS,
        )
        wait_until(lambda: not kept.exists(), "its log has gone from Kafka", WAIT_SECONDS)
    finally:
        ours.kill()
        kafka.kill()
