"""What tests written for testcontainers call."""

from __future__ import annotations

import confluent_kafka
import confluent_kafka.admin
import pytest

from barnabas.testing import KafkaContainer, NodeError
from tests.unit.testing.user_clients import consume, produce


def test_records_through_a_container_that_is_none() -> None:
    container = KafkaContainer("confluentinc/cp-kafka:7.6.0").with_kraft().with_env("KAFKA_NUM_PARTITIONS", "3")
    container.with_env("KAFKA_LISTENERS", "PLAINTEXT://0.0.0.0:9093").with_env("TZ", "UTC")
    with pytest.raises(NodeError, match="start it"):
        container.get_bootstrap_server()
    with container as kafka:
        servers = kafka.get_bootstrap_server()
        assert servers == f"{kafka.get_container_host_ip()}:{kafka.get_exposed_port(9093)}"
        with pytest.raises(ValueError, match="has 9093"):
            kafka.get_exposed_port(9092)
        assert produce(servers, "made-by-itself", b"one")[0][0] is None
        assert consume(servers, "made-by-itself", 1) == [b"one"]
        topics = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers}).list_topics(timeout=30).topics
        assert len(topics["made-by-itself"].partitions) == 3
    container.stop()
    assert container.start().get_bootstrap_server()
    container.stop()
