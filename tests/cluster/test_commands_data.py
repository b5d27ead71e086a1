"""`barnabas produce`, `consume` and `log dump` against brokers of ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerCluster, broker_cluster
from tests.support.command_suite import new_topic
from tests.support.data_command_suite import DataCommandSuite, produce, run

OVERRIDES = {
    "zookeeper.session.timeout.ms": 4_000,
    "offsets.topic.num.partitions": 4,
    "offsets.topic.replication.factor": 1,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with broker_cluster(tmp_path_factory.mktemp("data-commands"), 2, overrides=OVERRIDES) as running:
        yield running
        running.check_that_none_exited_by_itself()


class TestOnBarnabas(DataCommandSuite):
    @pytest.fixture
    def bootstrap(self, cluster: BrokerCluster) -> str:
        return cluster.bootstrap_servers


def test_the_log_of_a_running_broker_can_be_looked_at(cluster: BrokerCluster) -> None:
    with new_topic(cluster.bootstrap_servers, "--partitions", "1", "--replication-factor", "2") as topic:
        lines = b"".join(b"%0200d\n" % number for number in range(3_000))
        produce(cluster.bootstrap_servers, topic, lines)
        for broker in cluster.brokers.values():
            (directory,) = Path(broker.directory).rglob(f"{topic}-0")
            output, _ = run(cluster.bootstrap_servers, "log", "dump", "--records", "--verify", "--json", str(directory))
            found = [json.loads(line) for line in output.splitlines()]
            records = [each for each in found if each["type"] == "record"]
            assert [int(each["value"]) for each in records] == list(range(3_000))
            (totals,) = [each for each in found if each["type"] == "totals"]
            assert (totals["records"], totals["faulty_position"]) == (3_000, None)
