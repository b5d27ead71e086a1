"""A cluster for users' tests: real clients use it, and its end leaves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.testing import KafkaCluster, NodeError
from tests.unit.testing.user_clients import consume, exchange_by_aiokafka, produce

READY_SECONDS_MAX = 0.3


def _open_files() -> list[str]:
    """What this process has open, of sockets and files."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if not target.startswith(("pipe:", "/proc", "/dev", "anon_inode:")):
            found.append(target)
    return sorted(found)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system does not tell what is open")
@pytest.mark.parametrize("ending", ["in order", "killed", "paused"])
def test_a_stop_leaves_no_thread_no_socket_and_no_file(ending: str) -> None:
    threads, files = set(threading.enumerate()), _open_files()
    cluster = KafkaCluster(brokers=2).start()
    directory = Path(cluster.directory)
    assert directory.is_dir()
    servers, topic = cluster.bootstrap_servers, cluster.create_topic(partitions=4)
    assert [error for error, _ in produce(servers, topic, b"1", b"2", b"3")] == [None] * 3
    assert _open_files() != files
    if ending == "killed":
        cluster.kill(1)
    elif ending == "paused":
        cluster.pause(2)
    cluster.stop()
    assert set(threading.enumerate()) - threads == set()
    assert _open_files() == files
    assert not directory.exists()
    for address in servers.split(","):
        host, _, port = address.rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), 5)


@contextlib.contextmanager
def _forked_child() -> Iterator[None]:
    """A child that has a copy of everything that this process has open, and does nothing."""
    read_end, write_end = os.pipe()
    process_id = os.fork()
    if process_id == 0:
        os.close(write_end)
        os.read(read_end, 1)
        os._exit(0)
    os.close(read_end)
    try:
        yield
    finally:
        os.close(write_end)
        os.waitpid(process_id, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_child_that_a_test_has_forked_keeps_no_port_no_connection_and_no_lock() -> None:
    with KafkaCluster(brokers=2) as cluster:
        topic = cluster.create_topic()
        host, _, port = cluster.address(1).rpartition(":")
        produce(cluster.bootstrap_servers, topic, b"one")
        with socket.create_connection((host, int(port)), 30) as connection:
            connection.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))  # ApiVersions: the broker has the connection
            connection.recv(1 << 16)
            with _forked_child():
                cluster.kill(1)
                with pytest.raises(ConnectionResetError):
                    connection.recv(1)
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection((host, int(port)), 30)
                cluster.expire_session(1)
                cluster.start_broker(1)
                cluster.restart(1)
        assert consume(cluster.bootstrap_servers, topic, 1) == [b"one"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_directory_goes_with_the_process_that_has_made_it_and_not_with_a_child(tmp_path: Path) -> None:
    program = """
import os, sys
from barnabas.testing.real_ports import OwnDirectory
directory = OwnDirectory()
print(directory.path, flush=True)
for ends in (True, False):
    if os.fork() == 0:
        if ends:
            directory.remove()
        sys.exit()
    os.wait()
    print(os.path.isdir(directory.path), flush=True)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    path, *there = done.stdout.splitlines()
    assert Path(path).parent == tmp_path
    assert there == ["True", "True"]
    assert not Path(path).exists()


def test_records_and_groups_through_confluent_kafka() -> None:
    with KafkaCluster() as cluster:
        topic = cluster.create_topic()
        reports = produce(cluster.bootstrap_servers, topic, b"one", b"two")
        assert [(error, message.offset()) for error, message in reports] == [(None, 0), (None, 1)]
        assert consume(cluster.bootstrap_servers, topic, 2) == [b"one", b"two"]


def test_records_through_kafka_python() -> None:
    import kafka

    with KafkaCluster() as cluster:
        topic = cluster.create_topic()
        producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
        assert producer.send(topic, b"one").get(30).offset == 0
        producer.close()
        consumer = kafka.KafkaConsumer(
            topic, bootstrap_servers=cluster.bootstrap_servers, group_id="readers", auto_offset_reset="earliest"
        )
        assert next(iter(consumer)).value == b"one"
        consumer.close()


def test_a_cluster_in_asyncio_code_lets_others_of_its_loop_go_on() -> None:
    async def use() -> tuple[list[bytes], int]:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        async with KafkaCluster() as cluster:
            topic = await asyncio.to_thread(cluster.create_topic)
            before = turns
            values = await exchange_by_aiokafka(cluster.bootstrap_servers, topic, b"one", b"two")
        counting.cancel()
        return values, before

    values, turns_at_start = asyncio.run(use())
    assert values == [b"one", b"two"]
    assert turns_at_start > 1


def test_configs_topics_and_two_clusters_in_one_process() -> None:
    with KafkaCluster(brokers=3, config={"auto.create.topics.enable": False}) as three, KafkaCluster() as one:
        assert three.broker_ids == (1, 2, 3)
        assert len(three.bootstrap_servers.split(",")) == 3
        assert not set(three.bootstrap_servers.split(",")) & set(one.bootstrap_servers.split(","))
        topic = three.create_topic("flights", partitions=2, config={"max.message.bytes": 2000})
        assert sorted(three.replicas(topic, 1)) == [1, 2, 3]
        ((error, _),) = produce(three.bootstrap_servers, topic, b"x" * 5000, message_max_bytes=1_000_000)
        assert error.name() == "MSG_SIZE_TOO_LARGE"
        ((error, _),) = produce(three.bootstrap_servers, "missing", b"x", message_timeout_ms=3_000)
        assert error.name() in {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_MSG_TIMED_OUT"}
        assert one.create_topic() != one.create_topic()
        three.delete_topic(topic)
        assert three.create_topic(topic) == topic


def test_data_in_a_directory_of_ones_own_outlive_the_cluster(tmp_path: Path) -> None:
    with KafkaCluster(directory=str(tmp_path)) as cluster:
        topic = cluster.create_topic("kept")
        produce(cluster.bootstrap_servers, topic, b"one")
    with KafkaCluster(directory=str(tmp_path)) as cluster:
        assert consume(cluster.bootstrap_servers, "kept", 1) == [b"one"]
        new = cluster.create_topic()
    with KafkaCluster(directory=str(tmp_path)) as cluster:
        assert cluster.create_topic() != new


def test_what_cannot_be_is_said_at_once() -> None:
    with pytest.raises(ValueError, match="1 to 100 brokers"):
        KafkaCluster(brokers=0)
    for brokers in ("3", 1.0, True, None):
        with pytest.raises(ValueError, match=r"brokers=.* must be a whole number"):
            KafkaCluster(brokers=brokers)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"zookeeper\.connect cannot be overridden"):
        KafkaCluster(config={"zookeeper.connect": "elsewhere:2181"})
    with pytest.raises(ValueError, match=r"num\.partitions"):
        KafkaCluster(config={"num.partitions": "many"})
    with pytest.raises(NodeError, match="does not run"):
        _ = KafkaCluster().bootstrap_servers
    threads = {thread.name for thread in threading.enumerate()}
    assert not [name for name in threads if name.startswith("barnabas-")]


@pytest.mark.parametrize("brokers", [1, 3])
def test_a_cluster_is_ready_after_less_than_300_ms_of_work(brokers: int) -> None:
    """Of the processor, which is what a test waits for on a machine that is not busy; the first imports the brokers."""
    spent: list[float] = []
    for _ in range(4):
        began = time.process_time()
        with KafkaCluster(brokers=brokers) as cluster:
            spent.append(time.process_time() - began)
            assert cluster.controller() in cluster.broker_ids
        if spent[-1] < READY_SECONDS_MAX and len(spent) > 1:
            return
    pytest.fail(f"it took {spent} s")
