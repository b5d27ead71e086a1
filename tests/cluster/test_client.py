"""Our own client against three broker processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import broker_cluster
from tests.support.retention import RETENTION_DOES_NOT_RUN
from tests.unit.client.client_suite import ClientSuite

OVERRIDES = {"default.replication.factor": 3} | RETENTION_DOES_NOT_RUN


@pytest.fixture(scope="module")
def cluster_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory: Path = tmp_path_factory.mktemp("client-cluster")
    with broker_cluster(directory, 3, overrides=OVERRIDES) as cluster:
        yield cluster.bootstrap_servers.split(",")[0]


class TestOnBarnabas(ClientSuite):
    @pytest.fixture
    def bootstrap(self, cluster_address: str) -> str:
        return cluster_address
