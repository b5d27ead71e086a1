"""`barnabas topic copy` within one cluster of ours, as processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.broker_process import BrokerCluster, broker_cluster
from tests.support.copy_command_suite import CopyCommandSuite

OVERRIDES = {
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 1,
    "default.replication.factor": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with broker_cluster(tmp_path_factory.mktemp("copy"), 2, overrides=OVERRIDES) as running:
        yield running
        running.check_that_none_exited_by_itself()


class TestOnBarnabas(CopyCommandSuite):
    @pytest.fixture
    def bootstrap(self, cluster: BrokerCluster) -> str:
        return cluster.brokers[1].address

    @pytest.fixture
    def target_bootstrap(self, cluster: BrokerCluster) -> str:
        return cluster.brokers[2].address
