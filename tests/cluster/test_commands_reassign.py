"""`barnabas reassign` against brokers of ours, as processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.broker_process import BrokerCluster, broker_cluster
from tests.support.reassign_command_suite import DIRECTORIES, PIECES, ReassignCommandSuite

OVERRIDES = {
    "offsets.topic.num.partitions": 4,
    "offsets.topic.replication.factor": 1,
    "default.replication.factor": 1,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    options: Any = {"overrides": {**OVERRIDES, **PIECES}, "log_directories": DIRECTORIES}
    with broker_cluster(tmp_path_factory.mktemp("reassign"), 3, **options) as running:
        yield running
        running.check_that_none_exited_by_itself()


class TestOnBarnabas(ReassignCommandSuite):
    @pytest.fixture
    def bootstrap(self, cluster: BrokerCluster) -> str:
        return cluster.brokers[1].address
