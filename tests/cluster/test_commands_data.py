"""`barnabas produce`, `consume` and `log dump` against brokers of ours."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerCluster, broker_cluster
from tests.support.command_suite import fresh, new_topic
from tests.support.data_command_suite import DataCommandSuite, produce, run
from tests.support.retention import RETENTION_DOES_NOT_RUN

OVERRIDES = {
    "zookeeper.session.timeout.ms": 18_000,
    "offsets.topic.num.partitions": 4,
    "offsets.topic.replication.factor": 1,
    **RETENTION_DOES_NOT_RUN,
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


def test_a_command_whose_output_is_closed_says_so(cluster: BrokerCluster) -> None:
    """What it was to do is done all the same, as with other tools."""
    command = f"{sys.executable} -m barnabas.cli"
    where = f"--bootstrap-server {cluster.bootstrap_servers}"

    def closed(line: str) -> tuple[int, str]:
        done = subprocess.run(
            ["/bin/sh", "-c", f"{command} {line} {where} >&-"], capture_output=True, text=True, timeout=60, check=False
        )
        return done.returncode, done.stderr

    topic = fresh("topic")
    for line in (f"topic create {topic} --replication-factor 1", "topic list", f"topic describe {topic}"):
        status, errors = closed(line)
        assert (status, errors.splitlines()[-1].split(": ", 1)[1]) == (
            1,
            "the output cannot be written: standard output is closed",
        )
    produce(cluster.bootstrap_servers, topic, b"a\n")
    status, errors = closed(f"consume {topic} --from earliest --until-end")
    assert status == 1
    assert "standard output is closed" in errors
