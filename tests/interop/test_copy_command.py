"""`barnabas topic copy` between an unmodified Apache Kafka 3.9.1 and a broker of ours, both ways."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.apache_kafka import ApacheKafkaBroker
from tests.support.broker_process import BrokerProcess
from tests.support.copy_command_suite import CopyCommandSuite
from tests.support.retention import RETENTION_DOES_NOT_RUN
from tests.support.zookeeper import ZooKeeperServer

OVERRIDES = {
    **RETENTION_DOES_NOT_RUN,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
}


@pytest.fixture(scope="module")
def our_broker(zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    connect = f"{zookeeper_server.address}/copy"
    broker = BrokerProcess(tmp_path_factory.mktemp("copy"), 1, connect, overrides=OVERRIDES)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


@pytest.mark.night(
    "a minute; what is written to Apache Kafka is by day, and no commit says that this has found anything"
)
class TestFromApacheKafka(CopyCommandSuite):
    @pytest.fixture
    def bootstrap(self, kafka_broker: ApacheKafkaBroker) -> str:
        return kafka_broker.address

    @pytest.fixture
    def target_bootstrap(self, our_broker: BrokerProcess) -> str:
        return our_broker.address


class TestToApacheKafka(CopyCommandSuite):
    @pytest.fixture
    def bootstrap(self, our_broker: BrokerProcess) -> str:
        return our_broker.address

    @pytest.fixture
    def target_bootstrap(self, kafka_broker: ApacheKafkaBroker) -> str:
        return kafka_broker.address
