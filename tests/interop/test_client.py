"""The client against Apache Kafka."""

from __future__ import annotations

import pytest

from tests.support.apache_kafka import ApacheKafkaBroker
from tests.unit.client.client_suite import ClientSuite


class TestOnApacheKafka(ClientSuite):
    @pytest.fixture
    def bootstrap(self, kafka_broker: ApacheKafkaBroker) -> str:
        return kafka_broker.address
