"""What pages say while the cluster, or a part of it, is not there."""

from __future__ import annotations

import json
from pathlib import Path

import confluent_kafka
import pytest

from barnabas.console import question
from barnabas.testing import KafkaCluster
from tests.support.command_runs import run_barnabas
from tests.support.ports import free_port
from tests.support.running_console import RunningConsole
from tests.unit.console.test_pages import PAGES


def test_a_cluster_that_is_not_there() -> None:
    with RunningConsole(f"127.0.0.1:{free_port()}") as console:
        for path in PAGES[:1] + PAGES[1:13:2]:
            said = console.wait_for(path, "No broker answers at 127.0.0.1", "goes on asking").words
            assert "All is well" not in said


def test_a_broker_dies_and_comes_back() -> None:
    with KafkaCluster(brokers=3, session_timeout_ms=4_000) as cluster:
        topic = cluster.create_topic("flights", partitions=1, replication_factor=3)
        leader = cluster.leader(topic)
        with RunningConsole(cluster.bootstrap_servers) as console:
            console.wait_for("/", "All is well.")
            cluster.kill(leader)
            cluster.expire_session(leader)
            console.wait_for("/", f"broker {leader} has", "is not in the cluster", f"broker {leader} left the cluster")
            console.wait_for("/brokers", "gone")
            said = console.wait_for(f"/topics/{topic}/0", "not in sync", f"{leader} → ").words
            assert "▲" in said
            console.wait_for(f"/brokers/{leader}", "gone", "flights")
            assert console.get("/groups").status == 200
            cluster.start_broker(leader)
            console.wait_for("/", "Under-replicated 0 partitions", f"broker {leader} joined the cluster")
            found = console.get(f"/topics/{topic}/0").text
            assert 'class="behind"' in found.partition("</svg>")[0]


def test_what_a_login_may_not_see_is_not_called_well() -> None:
    with KafkaCluster(brokers=1) as cluster:
        for api in ("DescribeLogDirs", "ListGroups"):
            error = "CLUSTER_AUTHORIZATION_FAILED"
            cluster.fail_requests(api, error, count=100_000, client_id="barnabas-console")
        with RunningConsole(cluster.bootstrap_servers) as console:
            said = console.wait_for("/", "not all is told: log directories of 1 broker; groups of 1 broker.").words
            assert "All is well" not in said
            assert "Groups - Lag of groups - records" in said
            cluster.clear_faults()
            console.wait_for("/", "All is well.", "Groups 0")


def test_stale_data_say_that_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question, "STALE_FACTOR", 0.2)
    with KafkaCluster(brokers=1) as cluster:
        cluster.create_topic("flights")
        with RunningConsole(cluster.bootstrap_servers) as console:
            console.wait_for("/topics", "flights")
            cluster.kill(1)
            said = console.wait_for("/topics", "Cluster: stale, as of", "No newer answer", "flights").words
            assert "ago" in said
            console.wait_for("/messages?topic=flights", "cannot be read")


def test_a_reassignment_with_its_progress(tmp_path: Path) -> None:
    with KafkaCluster(brokers=2) as cluster:
        topic = cluster.create_topic(partitions=1, replication_factor=1)
        source = cluster.leader(topic)
        target = 3 - source
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        for _ in range(40):
            producer.produce(topic, bytes(50_000))
        producer.flush()
        plan = tmp_path / "plan.json"
        moved = {"topic": topic, "partition": 0, "replicas": [target]}
        plan.write_text(json.dumps({"version": 1, "partitions": [moved]}))
        servers = ("-b", cluster.bootstrap_servers)
        with RunningConsole(cluster.bootstrap_servers) as console:
            console.wait_for("/reassignments", "Nothing is being moved.")
            cluster.partition(source, target)
            assert run_barnabas("reassign", "execute", str(plan), "--no-wait", *servers).status == 0
            moving = ("1 partition being moved", f"{topic}-0 {source} {target} {source} 0%", "0 B of 1.9 MiB")
            found = console.wait_for("/reassignments", *moving)
            assert '<progress value="0" max="100"' in found.text
            # What is being copied is no reason to look at disks.
            for path in ("/", "/topics", f"/topics/{topic}", f"/topics/{topic}/0", "/brokers", f"/brokers/{target}"):
                assert "\u25b2" not in console.get(path).words, path
            assert "Under-replicated 0 partitions" in console.get("/").words
            cluster.heal()
            console.wait_for("/reassignments", "Nothing is being moved.")
            console.wait_for(f"/topics/{topic}/0", f"Leader {target}", f"{source} → ")
