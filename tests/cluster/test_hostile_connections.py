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
from typing import Any

import pytest

from barnabas.wire import catalogue
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.codec import request_encoder
from barnabas.wire.messages import ApiVersionsRequest, FetchRequest, MetadataRequest
from tests.clients.drivers.confluent import ConfluentClient
from tests.clients.drivers.model import Record
from tests.support.broker_process import BrokerProcess, broker_cluster
from tests.support.by_night import by_night
from tests.support.processes import resident_memory_bytes
from tests.support.waiting import wait_until
from tests.support.wire_calls import create_topic, leaders, metadata

IDLE_CONNECTIONS = 10_000
UNUSED = "20 s, and what was used costs no less"
IDLE_BYTES_MAX = 4 * 1024
MEGABYTE = 1024 * 1024
CLOSED_SECONDS = 60.0
FRAME_BYTES_MAX = 100 * MEGABYTE
FETCH_VERSION = 11
FETCHES = 40_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    overrides = {
        "offsets.topic.replication.factor": 1,
        "socket.request.max.bytes": FRAME_BYTES_MAX,
        # Ten thousand connect in less than a second: with Kafka's default of 50, connections would be tried again.
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
        bystander.sendall(frame_of(ApiKey.METADATA, 1, MetadataRequest(topics=[])))
        assert len(bystander.recv(8)) == 8


def test_no_request_with_a_broken_body_does_more_than_end_its_connection(broker: BrokerProcess) -> None:
    source = random.Random(2)
    with connected(broker) as bystander:
        for key in ApiKey:
            for version in catalogue.request(key).versions:
                for body in (bytes(200), b"\xff" * 200, source.randbytes(200)):
                    # With the tagged fields of a flexible header and without.
                    for tail in (b"", b"\0"):
                        frame = struct.pack(">hhih1s", key, version, 1, 1, b"x") + tail + body
                        with connected(broker) as connection:
                            connection.sendall(struct.pack(">i", len(frame)) + frame)
                            connection.shutdown(socket.SHUT_WR)
                            # An answer is as good as the end.
                            assert is_closed_by_peer(connection)
        bystander.sendall(frame_of(ApiKey.METADATA, 1, MetadataRequest(topics=[])))
        assert len(bystander.recv(8)) == 8
    assert serves(broker)
    log = broker.log_path.read_text("utf-8")
    assert "Traceback" not in log
    assert " ERROR " not in log


def frame_of(key: ApiKey, version: int, message: Any) -> bytes:
    return b"".join(bytes(part) for part in request_encoder(key, version, "hostile")(1, message))


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


@pytest.mark.parametrize("is_used_first", [True, *by_night(UNUSED, False)])
def test_ten_thousand_idle_connections_cost_little(broker: BrokerProcess, is_used_first: bool) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < IDLE_CONNECTIONS + 500:
        pytest.skip(f"this machine allows {hard} open files: 10,000 connections need more (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    request = frame_of(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
    connections: list[socket.socket] = []
    try:
        before = resident_memory_bytes(broker.process.process_id)
        for _ in range(IDLE_CONNECTIONS):
            connection = connected(broker)
            connections.append(connection)
            if is_used_first:
                connection.sendall(request)
                assert len(connection.recv(4_096)) > 4
        assert serves(broker)
        each = (resident_memory_bytes(broker.process.process_id) - before) / IDLE_CONNECTIONS
        assert each <= IDLE_BYTES_MAX, f"{each:.0f} bytes for each idle connection"
    finally:
        for connection in connections:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert serves(broker)


@pytest.mark.parametrize("api", ["fetch", "metadata"])
def test_a_client_that_never_reads_harms_nobody(broker: BrokerProcess, topic: str, api: str) -> None:
    client = ConfluentClient(f"127.0.0.1:{broker.port}")
    client.produce(topic, [Record(os.urandom(100_000)) for _ in range(100)])
    before = resident_memory_bytes(broker.process.process_id)
    if api == "fetch":
        frames = [frame_of(ApiKey.FETCH, FETCH_VERSION, _fetch(topic))] * FETCHES
    else:
        frames = [frame_of(ApiKey.METADATA, 1, MetadataRequest(topics=None)) * 1_000] * 1_000
    with connected(broker) as deaf:
        deaf.settimeout(0.5)
        # The broker reads no more from a client that does not read: that is the bound.
        with pytest.raises(TimeoutError):
            for frame in frames:
                deaf.sendall(frame)
        deadline = time.monotonic() + 3.0
        while time.monotonic() < deadline:
            assert serves(broker)
        assert client.read(topic, 100)
        grown = resident_memory_bytes(broker.process.process_id) - before
        assert grown < 50 * MEGABYTE, f"answers that nobody reads cost {grown / MEGABYTE:.0f} MiB"
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
