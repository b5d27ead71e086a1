"""The cluster for users' tests on real processes: the same calls, by signals and by orders."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest

from barnabas.testing import KafkaCluster, NodeError
from tests.support.barnabas_up import is_running
from tests.support.waiting import wait_until
from tests.unit.testing.test_kafka_cluster_faults import (  # noqa: F401 - what holds of faults in this process
    cluster,
    test_a_broker_that_no_other_reaches_leaves_the_isr_while_clients_reach_it,
    test_a_broker_whose_session_expires_registers_again,
    test_a_broker_without_the_coordinator_loses_its_session_and_its_leaders,
    test_a_delayed_answer_comes_late_and_the_next_in_time,
    test_a_disk_that_is_fast_again_is_so_for_what_waits_for_it_too,
    test_a_killed_leader_is_replaced_and_no_acknowledged_record_is_lost,
    test_a_leader_moves_also_to_a_broker_without_a_replica,
    test_a_paused_broker_answers_nobody_and_goes_on_where_it_was,
    test_a_paused_broker_stays_so_while_partitions_of_others_come_and_go,
    test_a_producer_that_repeats_gets_over_an_error,
    test_a_slow_disk_holds_acknowledgements_up,
    test_a_stopped_broker_hands_its_leaders_over_and_comes_back_on_its_port,
    test_an_answer_that_is_lost_makes_a_plain_producer_write_twice_and_an_idempotent_one_once,
    test_faults_follow_each_other_and_spare_other_clients,
    test_faults_of_requests_spare_what_the_cluster_itself_asks,
    test_the_next_produce_requests_fail_with_the_error_and_no_more,
    test_what_there_is_not_is_said,
    test_who_was_mended_is_known_to_the_controller,
)
from tests.unit.testing.user_clients import consume, produce

_SESSION_TIMEOUT_MS = 4_000
_ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture(scope="module")
def made() -> Callable[..., KafkaCluster]:
    """What makes a cluster of processes."""
    return functools.partial(KafkaCluster, processes=True, session_timeout_ms=_SESSION_TIMEOUT_MS)


@pytest.fixture(scope="module")
def three(made: Callable[..., KafkaCluster]) -> Iterator[KafkaCluster]:
    with made(brokers=3) as running:
        yield running


def test_kill_pause_and_stop_are_signals_and_nothing_is_left() -> None:
    with KafkaCluster(brokers=2, processes=True, session_timeout_ms=4_000) as two:
        processes = two.process_ids
        assert sorted(processes) == ["broker-1", "broker-2", "coordinator"]
        topic = two.create_topic()
        leader = two.leader(topic)
        assert produce(two.bootstrap_servers, topic, b"before", acks="all")[0][0] is None

        two.pause(leader)
        state = Path(f"/proc/{processes[f'broker-{leader}']}/stat")
        if state.exists():
            assert state.read_text().rpartition(")")[2].split()[0] == "T"
        producer = confluent_kafka.Producer({"bootstrap.servers": two.address(leader)})
        producer.produce(topic, b"meanwhile")
        assert producer.flush(0.3) == 1
        two.resume(leader)
        assert producer.flush(30) == 0

        two.kill(leader)
        assert not two.is_running(leader)
        with pytest.raises(ProcessLookupError):
            os.kill(processes[f"broker-{leader}"], 0)
        assert two.wait_for_leader(topic, other_than=leader) != leader
        servers = two.bootstrap_servers
        two.mend()
        assert (two.is_running(leader), two.bootstrap_servers) == (True, servers)
        assert consume(servers, topic, 2) == [b"before", b"meanwhile"]
        directory, processes = Path(two.directory), two.process_ids
        two.pause(2)
    assert not directory.exists()
    for process_id in processes.values():
        with pytest.raises(ProcessLookupError):
            os.kill(process_id, 0)
    host, _, port = servers.partition(",")[0].rpartition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), 5)


def test_a_broker_that_comes_back_is_still_cut_off_and_has_no_faults_of_its_former_life(
    three: KafkaCluster,
) -> None:
    topic = three.create_topic()
    # The controller is a third: a broker that it cannot reach does not get ready.
    leader, follower = (each for each in three.broker_ids if each != three.controller())
    three.move_leader(topic, to=leader)
    three.fail_requests("Produce", "NOT_LEADER_OR_FOLLOWER", count=5, broker=follower)
    three.partition(leader, follower)
    three.kill(follower)
    assert three.requests_to_fail("Produce") == 0, "they went with its process"
    three.expire_session(follower)
    three.start_broker(follower)
    assert three.requests_to_fail("Produce") == 0
    assert produce(three.bootstrap_servers, topic, b"one", acks="all")[0][0] is None
    ends_at = time.monotonic() + 2
    while time.monotonic() < ends_at:
        assert follower not in three.in_sync_replicas(topic)
        time.sleep(0.1)
    three.heal()
    ends_at = time.monotonic() + 60
    while follower not in three.in_sync_replicas(topic):
        assert time.monotonic() < ends_at
        time.sleep(0.05)


def test_a_process_that_ends_by_itself_is_told_of_and_may_be_started_again(made: Callable[..., KafkaCluster]) -> None:
    running = made(brokers=1).start()
    for ends in (True, False):
        os.kill(running.process_ids["broker-1"], signal.SIGKILL)
        ends_at = time.monotonic() + 30
        while running.is_running(1):
            assert time.monotonic() < ends_at
            time.sleep(0.01)
        with pytest.raises(NodeError, match="broker-1 does not run"):
            running.slow_disk(1, 0.1)
        if ends:
            running.mend()
            running.slow_disk(1, 0.1)
    with pytest.raises(NodeError, match="broker-1 ended by itself"):
        running.stop()


def test_an_end_of_the_orders_ends_no_process(made: Callable[..., KafkaCluster]) -> None:
    """Who gives them may be gone for a moment, or have forked: only the end of standard input says so."""
    with made(brokers=1) as running:
        topic = running.create_topic()
        nodes = running._running()
        for control in nodes._controls.values():  # type: ignore[union-attr]
            control._own.shutdown(socket.SHUT_RDWR)
        with pytest.raises(NodeError, match="has ended"):
            running.slow_disk(1, 0.1)
        assert produce(running.bootstrap_servers, topic, b"one")[0][0] is None


_KILLED = """
from barnabas.testing import KafkaCluster
cluster = KafkaCluster(processes=True, session_timeout_ms=4_000, directory={directory!r}).start()
cluster.pause(1)
print(*cluster.process_ids.values(), flush=True)
input()
"""


def test_a_test_that_is_killed_leaves_no_process_though_one_is_paused(tmp_path: Path) -> None:
    program = _KILLED.format(directory=str(tmp_path / "data"))
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_ENVIRONMENT
    ) as test:
        assert test.stdout is not None
        processes = [int(word) for word in test.stdout.readline().split()]
        test.kill()
    try:
        assert len(processes) == 2
        wait_until(lambda: not any(map(is_running, processes)), "the processes have ended", 120.0)
    finally:
        for process_id in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)


@pytest.mark.parametrize("arguments", [["broker", "server.properties"], ["coordinator", "--data", "data"]])
def test_orders_from_nobody_are_refused_in_a_line(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text("broker.id=1\nzookeeper.connect=127.0.0.1:1\nlog.dirs=logs\n")
    done = subprocess.run(
        [sys.executable, "-m", "barnabas.cli", *arguments, "--faults", "99"],
        cwd=tmp_path,
        env=_ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in {1, 2}
    assert "nothing is to be had by 99" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_directory_that_cannot_be_is_said(made: Callable[..., KafkaCluster], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NodeError, match=r"file/data cannot be used: .*not a directory"):
        made(directory=str(tmp_path / "file" / "data")).start()
