"""The transactional producer of our own client against Apache Kafka."""

from __future__ import annotations

import pytest

from tests.support.apache_kafka import ApacheKafkaBroker
from tests.unit.client.transaction_suite import TransactionSuite


class TestOnApacheKafka(TransactionSuite):
    @pytest.fixture
    def bootstrap(self, kafka_broker: ApacheKafkaBroker) -> str:
        return kafka_broker.address
