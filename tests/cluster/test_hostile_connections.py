"""Connections that mean harm: that connection suffers, no other does, and memory stays bounded."""

from __future__ import annotations

import os
import random
import resource
import socket
import struct
import time
import uuid
from collections.abc import Iterator

import pytest

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.codec import request_encoder
from barnabas.wire.messages import FetchRequest
from tests.clients.drivers.confluent import ConfluentClient
from tests.clients.drivers.model import Record
from tests.support.broker_process import BrokerProcess, broker_cluster
from tests.support.processes import resident_memory_bytes
from tests.support.waiting import wait_until
from tests.support.wire_calls import create_topic, leaders, metadata

IDLE_CONNECTIONS = 10_000
IDLE_BYTES_MAX = 4 * 1024
MEGABYTE = 1024 * 1024
CLOSED_SECONDS = 10.0
FRAME_BYTES_MAX = 100 * MEGABYTE
FETCH_VERSION = 11
FETCHES = 400


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    overrides = {
        "offsets.topic.replication.factor": 1,
        "socket.request.max.bytes": FRAME_BYTES_MAX,
        # Ten thousand connect in less than a second: with Kafka's default of 50, each 50 would wait for a TCP repetition.
        "socket.listen.backlog.size": 4_096,
    }
    with broker_cluster(tmp_path_factory.mktemp("hostile"), 1, overrides=overrides) as cluster:
        (only,) = cluster.brokers.values()
        yield only
        assert only.process.is_running, only.process.log_tail()


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    name = f"topic-{uuid.uuid4()}"
    create_topic(broker.port, name, 1, 1)
    wait_until(lambda: leaders(broker.port, name), f"{name} is led")
    return name


def connected(broker: BrokerProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.port), timeout=CLOSED_SECONDS)


def is_closed_by_peer(connection: socket.socket) -> bool:
    try:
        while connection.recv(65_536):
            pass
    except ConnectionError:
        return True
    return True


def serves(broker: BrokerProcess) -> bool:
    return bool(metadata(broker.port).brokers)


def test_garbage_ends_its_connection_only(broker: BrokerProcess) -> None:
    source = random.Random(1)
    with connected(broker) as bystander:
        for _ in range(50):
            with connected(broker) as connection:
                size = source.randrange(8, 2_000)
                connection.sendall(struct.pack(">i", size) + source.randbytes(size))
                assert is_closed_by_peer(connection)
        assert serves(broker)
        bystander.sendall(b"".join(request_encoder(ApiKey.METADATA, 1, "bystander")(7, _no_topics())))
        assert len(bystander.recv(8)) == 8


def _no_topics() -> object:
    from barnabas.wire.messages import MetadataRequest

    return MetadataRequest(topics=[])


@pytest.mark.parametrize("size", [2**31 - 1, 2_000_000_000, -1, -(2**31)])
def test_an_impossible_size_ends_its_connection_and_takes_no_memory(broker: BrokerProcess, size: int) -> None:
    before = resident_memory_bytes(broker.process.process_id)
    with connected(broker) as connection:
        connection.sendall(struct.pack(">i", size) + bytes(100))
        assert is_closed_by_peer(connection)
    assert serves(broker)
    assert resident_memory_bytes(broker.process.process_id) - before < 20 * MEGABYTE


def test_half_frames_hold_what_came_and_nothing_more(broker: BrokerProcess) -> None:
    before = resident_memory_bytes(broker.process.process_id)
    connections = [connected(broker) for _ in range(200)]
    try:
        for connection in connections:
            connection.sendall(struct.pack(">i", FRAME_BYTES_MAX - 1) + bytes(1_000))
        assert serves(broker)
        assert resident_memory_bytes(broker.process.process_id) - before < 30 * MEGABYTE
    finally:
        for connection in connections:
            connection.close()
    assert serves(broker)


def test_ten_thousand_idle_connections_cost_little(broker: BrokerProcess) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < IDLE_CONNECTIONS + 500:
        pytest.skip(f"this machine allows {hard} open files: 10,000 connections need more (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    connections: list[socket.socket] = []
    try:
        before = resident_memory_bytes(broker.process.process_id)
        connections += [connected(broker) for _ in range(IDLE_CONNECTIONS)]
        assert serves(broker)
        each = (resident_memory_bytes(broker.process.process_id) - before) / IDLE_CONNECTIONS
        assert each <= IDLE_BYTES_MAX, f"{each:.0f} bytes for each idle connection"
    finally:
        for connection in connections:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert serves(broker)


def test_a_client_that_never_reads_harms_nobody(broker: BrokerProcess, topic: str) -> None:
    client = ConfluentClient(f"127.0.0.1:{broker.port}")
    client.produce(topic, [Record(os.urandom(100_000)) for _ in range(100)])
    before = resident_memory_bytes(broker.process.process_id)
    frame = b"".join(bytes(part) for part in request_encoder(ApiKey.FETCH, FETCH_VERSION, "deaf")(1, _fetch(topic)))
    with connected(broker) as deaf:
        deaf.settimeout(0.5)
        try:
            for _ in range(FETCHES):
                deaf.sendall(frame)
        except TimeoutError:
            # The broker reads no more from a client that does not read: that is the bound.
            pass
        deadline = time.monotonic() + 3.0
        while time.monotonic() < deadline:
            assert serves(broker)
        assert client.read(topic, 100)
        grown = resident_memory_bytes(broker.process.process_id) - before
        assert grown < 150 * MEGABYTE, f"{FETCHES} fetches of 10 MB, unread, cost {grown / MEGABYTE:.0f} MiB"
    assert serves(broker)


def _fetch(topic: str) -> FetchRequest:
    partition = FetchRequest.FetchPartition(
        partition=0, current_leader_epoch=-1, fetch_offset=0, partition_max_bytes=10 * MEGABYTE
    )
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=10 * MEGABYTE,
        session_id=0,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])],
    )
