"""The harness itself: the oracles start, answer, die and come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.apache_kafka import TOPIC_COMMAND, ApacheKafkaBroker, run_tool
from tests.support.zookeeper import ZooKeeperEnsemble, ZooKeeperServer, four_letter_word, zookeeper


@pytest.mark.night("10 s for what servers of the tests do, which many tests would show")
def test_zookeeper_keeps_its_data_and_port_when_it_is_killed_and_restarted(oracle_jars: Path, tmp_path: Path) -> None:
    with zookeeper(tmp_path) as server:
        first_process_id = server.process.process_id
        server.kill()
        assert server.process.exit_status == -9
        assert server.mode() is None
        server.start()
        assert server.mode() == "standalone"
        assert server.process.process_id != first_process_id
        assert four_letter_word(server.port, "ruok") == "imok"
    assert not server.process.is_running


@pytest.mark.night("15 s for what servers of the tests do, which the client's test of an ensemble shows")
def test_ensemble_elects_another_leader_when_its_leader_is_killed(ensemble: ZooKeeperEnsemble) -> None:
    first_leader = ensemble.leader()
    assert len(ensemble.followers()) == 2
    first_leader.kill()
    assert ensemble.leader() is not first_leader
    first_leader.start()
    assert first_leader.mode() == "follower"


def test_broker_creates_a_topic_by_its_own_tool(
    kafka_broker: ApacheKafkaBroker, zookeeper_server: ZooKeeperServer
) -> None:
    where = ("--bootstrap-server", kafka_broker.address, "--topic", "harness")
    run_tool(TOPIC_COMMAND, [*where, "--create", "--partitions", "2"])
    assert "PartitionCount: 2" in run_tool(TOPIC_COMMAND, [*where, "--describe"])
    assert (kafka_broker.log_directory / "harness-0").is_dir()
    assert "/brokers/ids/0" in four_letter_word(zookeeper_server.port, "dump")
