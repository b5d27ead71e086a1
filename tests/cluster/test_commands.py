"""The commands for people against brokers of ours, as processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import DescribeControllerRequest
from tests.support.broker_process import BrokerCluster, broker_cluster
from tests.support.command_suite import CommandSuite, barnabas, fresh, new_topic
from tests.support.waiting import wait_until
from tests.support.wire_calls import call

SOURCE = Path(__file__).resolve().parents[2] / "src"
OVERRIDES = {
    "offsets.topic.num.partitions": 4,
    "offsets.topic.replication.factor": 1,
    "default.replication.factor": 1,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with broker_cluster(tmp_path_factory.mktemp("commands"), 2, overrides=OVERRIDES) as running:
        yield running
        running.check_that_none_exited_by_itself()


def other_broker_of(cluster: BrokerCluster, found: Any) -> int:
    """The broker that is not the controller."""
    (other,) = {*cluster.brokers} - {found["id"]}
    return other


class TestOnBarnabas(CommandSuite):
    software = "barnabas"

    @pytest.fixture
    def bootstrap(self, cluster: BrokerCluster) -> str:
        return cluster.brokers[1].address

    def test_our_controller_tells_its_term_and_what_it_moved(self, bootstrap: str) -> None:
        before_ms = time.time_ns() // 1_000_000
        with new_topic(bootstrap, "--partitions", "2", "--replication-factor", "2") as topic:
            found = barnabas(bootstrap, "controller", "show", "--transitions", "50", "--json").document
            assert found["epoch"] >= 1
            assert 0 < found["elected_at_ms"] < before_ms
            assert found["gauges"]["ActiveControllerCount"] == 1
            assert found["gauges"]["ActiveBrokerCount"] == 2
            assert found["gauges"]["OfflinePartitionsCount"] == 0
            assert found["gauges"]["GlobalPartitionCount"] >= 2
            assert sorted(found["queued_requests"]) == ["1", "2"]
            assert "TopicChangeRateAndTimeMs" in {timing["name"] for timing in found["timings"]}
            moves = [move for move in found["transitions"] if move["topic"] == topic]
            partitions = [(move["partition"], move["from"], move["to"]) for move in moves if move["replica"] is None]
            assert partitions == [
                (0, "non_existent", "new"),
                (1, "non_existent", "new"),
                (0, "new", "online"),
                (1, "new", "online"),
            ]
            replicas = {(move["partition"], move["replica"]) for move in moves if move["replica"] is not None}
            assert replicas == {(0, 1), (0, 2), (1, 1), (1, 2)}
            online = next(move for move in moves if move["to"] == "online")
            assert (online["leader"] in {1, 2}, online["leader_epoch"], online["fault"]) == (True, 0, None)
            assert all(before_ms <= move["time_ms"] <= time.time_ns() // 1_000_000 for move in moves)
            rows = barnabas(bootstrap, "controller", "show").rows
            assert "ActiveBrokerCount 2" in rows
            assert any(f"{topic}-1 - new online" in row for row in rows)

    def test_every_other_broker_says_that_it_is_not_the_controller(
        self, cluster: BrokerCluster, bootstrap: str
    ) -> None:
        shown = barnabas(bootstrap, "controller", "show", "--transitions", "0", "--json").document
        assert shown["transitions"] == []
        other = cluster.brokers[other_broker_of(cluster, shown)]
        answer = call(other.port, ApiKey.DESCRIBE_CONTROLLER, 0, DescribeControllerRequest())
        assert (answer.error_code, answer.controller_id, answer.counts) == (ErrorCode.NOT_CONTROLLER, -1, [])

    def test_a_dead_broker_is_seen_in_every_command(self, cluster: BrokerCluster) -> None:
        shown = barnabas(cluster.bootstrap_servers, "controller", "show", "--json").document
        dead = other_broker_of(cluster, shown)
        alive = cluster.brokers[shown["id"]].address
        with new_topic(alive, "--partitions", "1", "--replication-factor", "2") as pair:
            single = fresh("single")
            made = barnabas(alive, "topic", "create", single, "--partitions", "2", "--replication-factor", "1")
            assert made.status == 0, made.errors
            cluster.brokers[dead].kill()
            try:

                def states() -> list[str]:
                    topics = barnabas(alive, "topic", "describe", pair, single, "--json").document["topics"]
                    return sorted(partition["state"] for topic in topics for partition in topic["partitions"])

                wait_until(lambda: states() == ["ok", "under_replicated", "without_leader"], "the topics show it")
                listed = barnabas(alive, "topic", "list").rows
                assert {f"{pair} 1 2 1 0", f"{single} 2 1 1 1"} <= {*listed}
                described = barnabas(alive, "cluster", "describe", "--json").document
                assert [broker["id"] for broker in described["brokers"]] == [shown["id"]]
                moves = barnabas(alive, "controller", "show", "--transitions", "100", "--json").document["transitions"]
                offline = [move for move in moves if (move["topic"], move["to"]) == (single, "offline")]
                assert [move["replica"] for move in offline if move["replica"] is not None] == [dead]
                health = barnabas(alive, "cluster", "health", "--json")
                assert health.status == 1
                kinds = {problem["kind"]: problem for problem in json.loads(health.output)["problems"]}
                assert {*kinds} >= {"without_leader", "under_replicated", "broker_gone"}
                assert kinds["broker_gone"]["brokers"] == [dead]
                assert {each["topic"] for each in kinds["without_leader"]["partitions"]} >= {single}
                gauges = barnabas(alive, "controller", "show", "--json").document["gauges"]
                assert gauges["OfflinePartitionsCount"] >= 1
            finally:
                cluster.brokers[dead].start()
            wait_until(lambda: states() == ["ok", "ok", "ok"], "all is well again")
            assert barnabas(alive, "topic", "delete", single).status == 0

    def test_an_unreachable_broker_among_the_addresses_does_no_harm(self, bootstrap: str) -> None:
        assert barnabas(f"127.0.0.1:1,{bootstrap}", "topic", "list").status == 0


def test_the_addresses_come_from_the_environment_and_a_reader_may_have_enough(cluster: BrokerCluster) -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "BARNABAS_BOOTSTRAP_SERVERS": cluster.bootstrap_servers}
    command = f"{sys.executable} -m barnabas.cli cluster describe --json | head -c 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "{", "")


def test_an_interruption_ends_a_command_that_waits() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(30)
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "barnabas.cli", "topic", "list"),
                *("--bootstrap-server", f"127.0.0.1:{silent.getsockname()[1]}"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )
        connection, _ = silent.accept()
        with connection:
            assert connection.recv(1)
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=30)
    assert (process.returncode, output, errors) == (130, "", "barnabas topic list: interrupted\n")
