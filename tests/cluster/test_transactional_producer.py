"""The transactional producer of our own client against three broker processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import broker_cluster
from tests.unit.client.transaction_suite import TransactionSuite

OVERRIDES = {
    "default.replication.factor": 3,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
}


@pytest.fixture(scope="module")
def cluster_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory: Path = tmp_path_factory.mktemp("transactions-cluster")
    with broker_cluster(directory, 3, overrides=OVERRIDES) as cluster:
        yield cluster.bootstrap_servers.split(",")[0]


class TestOnBarnabas(TransactionSuite):
    @pytest.fixture
    def bootstrap(self, cluster_address: str) -> str:
        return cluster_address
