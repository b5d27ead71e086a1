"""`barnabas reassign` against an unmodified Apache Kafka 3.9.1."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.apache_kafka_cluster import apache_kafka_cluster
from tests.support.reassign_command_suite import DIRECTORIES, PIECES, ReassignCommandSuite

pytestmark = pytest.mark.night(
    "a minute and three brokers of Apache Kafka, and no commit says that it has found what a mixed cluster has not"
)


@pytest.fixture(scope="module")
def address(oracle_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    options: Any = {"overrides": PIECES, "log_directories": DIRECTORIES}
    with apache_kafka_cluster(tmp_path_factory.mktemp("reassign"), 3, **options) as cluster:
        yield cluster.bootstrap_servers.split(",")[0]


class TestOnApacheKafka(ReassignCommandSuite):
    @pytest.fixture
    def bootstrap(self, address: str) -> str:
        return address
