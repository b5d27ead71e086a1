"""The cluster for users' tests on real processes: the same calls, by signals."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import confluent_kafka
import pytest

from barnabas.testing import KafkaCluster, NodeError
from tests.unit.testing.user_clients import consume, produce


def test_kill_pause_and_stop_are_signals_and_nothing_is_left() -> None:
    with KafkaCluster(brokers=2, processes=True, session_timeout_ms=4_000) as cluster:
        processes = cluster.process_ids
        assert sorted(processes) == ["broker-1", "broker-2", "coordinator"]
        topic = cluster.create_topic()
        leader = cluster.leader(topic)
        assert produce(cluster.bootstrap_servers, topic, b"before", acks="all")[0][0] is None

        cluster.pause(leader)
        state = Path(f"/proc/{processes[f'broker-{leader}']}/stat")
        if state.exists():
            assert state.read_text().rpartition(")")[2].split()[0] == "T"
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.address(leader)})
        producer.produce(topic, b"meanwhile")
        assert producer.flush(0.3) == 1
        cluster.resume(leader)
        assert producer.flush(30) == 0

        cluster.kill(leader)
        assert not cluster.is_running(leader)
        with pytest.raises(ProcessLookupError):
            os.kill(processes[f"broker-{leader}"], 0)
        assert cluster.wait_for_leader(topic, other_than=leader) != leader
        servers = cluster.bootstrap_servers
        cluster.mend()
        assert (cluster.is_running(leader), cluster.bootstrap_servers) == (True, servers)
        assert consume(servers, topic, 2) == [b"before", b"meanwhile"]
        with pytest.raises(NodeError, match="in a cluster in this process only"):
            cluster.fail_requests("Produce", "NOT_LEADER_OR_FOLLOWER")
        directory, processes = Path(cluster.directory), cluster.process_ids
        cluster.pause(2)
    assert not directory.exists()
    for process_id in processes.values():
        with pytest.raises(ProcessLookupError):
            os.kill(process_id, 0)
    host, _, port = servers.partition(",")[0].rpartition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), 5)
