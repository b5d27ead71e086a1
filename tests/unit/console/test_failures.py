"""What pages say while the cluster, or a part of it, is not there."""

from __future__ import annotations

import pytest

from barnabas.console import question
from barnabas.testing import KafkaCluster
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
