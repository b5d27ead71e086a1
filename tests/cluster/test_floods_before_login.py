"""Floods of clients that have not logged in: whoever is in goes on, and what they took is given back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Producer

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.codec import request_encoder
from barnabas.wire.messages import ApiVersionsRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from tests.support.processes import resident_memory_bytes
from tests.support.sasl_cluster import confluent, sasl_cluster
from tests.support.tls_cluster import tls_cluster
from tests.support.waiting import wait_until
from tests.support.wire_calls import create_topic, leaders

pytestmark = pytest.mark.night("10 s for each flood; by hand it found four faults, each of which has a test of its own")
CONNECTIONS, SECONDS = 500, 5.0
GROWTH_BYTES_MAX = 100 * 1024 * 1024
PATIENCE_SECONDS = 60.0
LARGEST_BEFORE_LOGIN = 524_288
HELLO = bytes.fromhex("160301020001")
"""The beginning of a ClientHello."""


def frame_of(key: ApiKey, version: int, message: Any) -> bytes:
    return b"".join(bytes(part) for part in request_encoder(key, version, "flood")(1, message))


def _handshake(mechanism: str) -> bytes:
    return frame_of(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism=mechanism))


def _guess() -> bytes:
    token = b"\0alice\0%d" % random.randrange(10**9)
    return _handshake("PLAIN") + frame_of(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(auth_bytes=token))


FLOODS: dict[str, Callable[[], bytes]] = {
    "silence": lambda: b"",
    "garbage": lambda: os.urandom(random.randrange(8, 20_000)),
    "a size of 2 GiB": lambda: struct.pack(">i", 2**31 - 1) + bytes(100),
    "large frames without an end": lambda: struct.pack(">i", LARGEST_BEFORE_LOGIN) + bytes(LARGEST_BEFORE_LOGIN - 10),
    "versions": lambda: frame_of(ApiKey.API_VERSIONS, 0, ApiVersionsRequest()) * 100,
    "handshakes": lambda: _handshake("PLAIN") * 100,
    "unknown mechanisms": lambda: _handshake("NOPE") * 100,
    "wrong passwords": _guess,
}
OF_TLS: dict[str, Callable[[], bytes]] = {
    "silence": lambda: b"",
    "garbage": lambda: os.urandom(random.randrange(8, 20_000)),
    "half a handshake": lambda: HELLO,
}


async def flood(port: int, sent: Callable[[], bytes], memory: Callable[[], int]) -> tuple[int, int]:
    """Connects, sends, waits for the end, and comes again, `CONNECTIONS` at a time; how many came, and the most memory
    that was taken meanwhile.
    """
    count = most = 0
    ends_at = time.monotonic() + SECONDS

    async def one() -> None:
        nonlocal count
        while (left := ends_at - time.monotonic()) > 0:
            with contextlib.suppress(OSError, TimeoutError):
                reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), left)
                count += 1
                try:
                    writer.write(sent())
                    while await asyncio.wait_for(reader.read(65_536), max(0.1, ends_at - time.monotonic())):
                        pass
                finally:
                    writer.transport.abort()

    async def look() -> None:
        nonlocal most
        while time.monotonic() < ends_at:
            most = max(most, memory())
            await asyncio.sleep(0.1)

    await asyncio.gather(look(), *(one() for _ in range(CONNECTIONS)))
    return count, most


class Known:
    """A producer that has logged in and goes on, in a thread."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.errors: list[Any] = []
        self.sent = 0
        self._stop = threading.Event()
        self._producer = Producer({**config, "acks": "all", "error_cb": self.errors.append})
        self._thread = threading.Thread(target=self._go_on)

    def _go_on(self) -> None:
        while not self._stop.is_set():
            self._producer.produce("t", b"x" * 100_000, on_delivery=self._delivered)
            self.sent += 1
            self._producer.flush(PATIENCE_SECONDS)
            time.sleep(0.02)

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self.errors.append(error)

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(lambda: self.sent > 3, "it sends", PATIENCE_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        del self._producer


def endure(process_id: int, port: int, sent: Callable[[], bytes], config: dict[str, Any]) -> None:
    with Known(config) as known:
        files = Path(f"/proc/{process_id}/fd")
        memory, open_files, before = resident_memory_bytes(process_id), len(list(files.iterdir())), known.sent
        count, most = asyncio.run(flood(port, sent, lambda: resident_memory_bytes(process_id)))
        assert count >= CONNECTIONS
        assert most - memory < GROWTH_BYTES_MAX
        wait_until(lambda: len(list(files.iterdir())) < open_files + 10, "files are closed", PATIENCE_SECONDS)
        assert known.sent > before + 5
    assert known.errors == []


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with sasl_cluster(tmp_path_factory.mktemp("plain"), 1) as cluster:
        create_topic(cluster.brokers[1].port, "t", 1, 1)
        wait_until(lambda: leaders(cluster.brokers[1].port, "t"), "it is led", PATIENCE_SECONDS)
        yield cluster


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with tls_cluster(tmp_path_factory.mktemp("tls"), 1) as cluster:
        create_topic(cluster.brokers[1].port, "t", 1, 1)
        wait_until(lambda: leaders(cluster.brokers[1].port, "t"), "it is led", PATIENCE_SECONDS)
        yield cluster


@pytest.mark.parametrize("what", FLOODS)
def test_a_flood_before_the_login_harms_nobody(plain: Any, what: str) -> None:
    process_id = plain.brokers[1].process.process_id
    endure(process_id, plain.sasl_ports[1], FLOODS[what], confluent(plain.sasl_servers, "PLAIN"))


@pytest.mark.parametrize("what", OF_TLS)
def test_a_flood_before_or_amid_the_handshake_harms_nobody(secured: Any, what: str) -> None:
    process_id = secured.brokers[1].process.process_id
    endure(process_id, secured.ports[1]["LOGIN"], OF_TLS[what], secured.logging_in())
