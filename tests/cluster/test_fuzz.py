"""A broker under random and mutated frames of every API, seeded, with clients that never read: others are served on.

The broker counts what holds its loop (`kernel.long_turns`). A turn fails the test when it had more than 250 ms of the
processor's time, whatever else the machine does. How long a client waited depends on that, and so does its bound.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import struct
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final, Self

import pytest

from barnabas.wire import catalogue
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.codec import request_encoder, response_decoder
from barnabas.wire.headers import request_header
from barnabas.wire.messages import FetchRequest, MetadataRequest
from tests.clients.drivers.confluent import ConfluentClient
from tests.clients.drivers.model import Record
from tests.support.broker_process import BrokerProcess, broker_cluster
from tests.support.long_turns import PROCESSOR_MS_MAX
from tests.support.ports import free_port
from tests.support.processes import resident_memory_bytes
from tests.support.waiting import wait_until, where_others_work
from tests.support.wire_calls import create_topic, leaders
from tests.support.wire_reference import encode_tree, encode_with_lies
from tests.support.wire_values import Shape, make_tree

SEEDS: Final = int(os.environ.get("BARNABAS_FUZZ_SEEDS", "3"))
"""`make nightly` plays more of them."""
FRAMES: Final = 2_000
FUZZERS_MAX: Final = 8
DEAF_CLIENTS: Final = 30
ANSWERS_MIN: Final = 50
# Times the processes that share a processor: a round of all that the clients which never read have asked for.
WAIT_SECONDS_MAX: Final = 5.0
MEGABYTE: Final = 1024 * 1024
GROWTH_BYTES_MAX: Final = 200 * MEGABYTE
METADATA_VERSION: Final = 8
# Whoever may speak these commands the broker, so a random one that is well formed does what it says; their decoders are
# fuzzed in tests/unit/wire.
OF_CONTROLLERS: Final = frozenset(
    {ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA, ApiKey.CONTROLLED_SHUTDOWN}
)
_SAMPLE = re.compile(r'barnabas_kernel_eventloop_(longestturn\w*)\{what="([^"]*)"\} (\S+)')


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, metrics_port: int) -> Iterator[BrokerProcess]:
    overrides = {
        "offsets.topic.replication.factor": 1,
        "barnabas.metrics.port": metrics_port,
        "auto.create.topics.enable": "false",
    }
    directory: Path = tmp_path_factory.mktemp("fuzz")
    with broker_cluster(directory, 1, overrides=overrides) as cluster:
        (only,) = cluster.brokers.values()
        yield only
        assert only.process.is_running, only.log_tail()


class Frames:
    """Frames of one seed: of every API, random, mutated, with counts that lie, cut off, or as they should be."""

    def __init__(self, seed: object) -> None:
        self._random = random.Random(f"fuzz {seed}")
        self._keys = [key for key in ApiKey if key not in OF_CONTROLLERS]

    def next(self) -> bytes:
        source = self._random
        if source.random() < 0.05:
            return source.randbytes(source.randrange(4, 2_000))
        key = source.choice(self._keys)
        schema = catalogue.request(key)
        version = source.choice(list(schema.versions))
        shape = source.choices([Shape.EMPTY, Shape.FULL, Shape.MIXED, Shape.LONG], [4, 4, 4, 1])[0]
        tree = make_tree(schema, version, shape, source.randrange(1_000))
        kind = source.random()
        if kind < 0.3:
            lies = encode_with_lies(schema, version, tree, source.choice([20_000, 2**31 - 1, 2**32 - 2]))
            body = next(islice(lies, source.randrange(8), None), b"")
        else:
            body = encode_tree(schema, version, tree)
        data = bytearray(request_header(key, version, "fuzz")[4:] + body)
        # As a client numbers its requests.
        struct.pack_into(">i", data, 4, source.randrange(2**31))
        if kind > 0.5:
            for _ in range(source.randrange(1, 6)):
                data[source.randrange(len(data))] = source.choice((0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)))
        if kind > 0.9:
            del data[source.randrange(len(data)) :]
        return bytes(data)


def fuzzers_of(seed: int) -> int:
    """How many connections send at a time: what comes in which order has found more than what comes."""
    return 2 if seed < 3 else random.Random(f"fuzzers {seed}").randint(1, FUZZERS_MAX)


def fuzz(port: int, frames: list[bytes]) -> None:
    """Sends the frames, reading what comes; each connection until the broker ends it."""
    while frames:
        with socket.create_connection(("127.0.0.1", port), timeout=10.0) as connection:
            connection.settimeout(0.002)
            with contextlib.suppress(ConnectionError):
                while frames:
                    frame = frames.pop()
                    connection.settimeout(10.0)
                    connection.sendall(struct.pack(">i", len(frame)) + frame)
                    connection.settimeout(0.002)
                    with contextlib.suppress(TimeoutError):
                        while True:
                            if not connection.recv(65_536):
                                raise ConnectionResetError


class GoodClient:
    """Asks for metadata, one request after the other on one connection, and keeps its longest wait."""

    def __init__(self, port: int, topic: str) -> None:
        self.longest_seconds = 0.0
        self.answered = 0
        self.error: Exception | None = None
        self._is_over = threading.Event()
        self._port = port
        self._topic = topic
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_over.set()
        self._thread.join(30.0)

    def _run(self) -> None:
        try:
            self._ask()
        except Exception as error:  # noqa: BLE001 - the test tells it
            self.error = error

    def _ask(self) -> None:
        message = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=self._topic)])
        encode = request_encoder(ApiKey.METADATA, METADATA_VERSION, "good")
        decode = response_decoder(ApiKey.METADATA, METADATA_VERSION)
        with socket.create_connection(("127.0.0.1", self._port), timeout=30.0) as connection:
            stream = connection.makefile("rb")
            while not self._is_over.wait(0.005):
                began = time.monotonic()
                connection.sendall(b"".join(encode(self.answered, message)))
                (size,) = struct.unpack(">i", stream.read(4))
                answer = stream.read(size)
                self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)
                (topic,) = decode(answer, 0, len(answer))[0].topics
                assert (topic.name, topic.error_code) == (self._topic, 0)
                self.answered += 1


@contextlib.contextmanager
def deaf_clients(port: int, topic: str) -> Iterator[None]:
    """Clients that ask for as much as they may, and never read."""
    partition = FetchRequest.FetchPartition(
        partition=0, current_leader_epoch=-1, fetch_offset=0, partition_max_bytes=10 * MEGABYTE
    )
    fetch = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=10 * MEGABYTE,
        session_id=0,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])],
    )
    requests = [
        b"".join(bytes(part) for part in request_encoder(ApiKey.FETCH, 11, "deaf")(1, fetch)),
        b"".join(request_encoder(ApiKey.METADATA, 1, "deaf")(1, MetadataRequest(topics=None))),
    ]
    with contextlib.ExitStack() as stack:
        for number in range(DEAF_CLIENTS):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10.0))
            connection.setblocking(False)
            # Until nothing more is taken, of which a little may be taken later.
            with contextlib.suppress(BlockingIOError):
                for _ in range(200):
                    connection.send(requests[number % 2] * 20)
        yield


def longest_turns(metrics_port: int) -> dict[str, tuple[float, float]]:
    """Duration and processor time of the longest turns, in ms, by what ran."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=30.0) as answer:
        text = answer.read().decode()
    found: dict[str, dict[str, float]] = {}
    for gauge, what, value in _SAMPLE.findall(text):
        found.setdefault(what, {})[gauge] = float(value)
    return {what: (each["longestturnms"], each["longestturnprocessorms"]) for what, each in found.items()}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_frames_of_every_kind_hold_nobody_up(broker: BrokerProcess, metrics_port: int, seed: int) -> None:
    topic = f"good-{uuid.uuid4()}"
    create_topic(broker.port, topic, 1, 1)
    wait_until(lambda: leaders(broker.port, topic), f"{topic} is led")
    client = ConfluentClient(f"127.0.0.1:{broker.port}")
    client.produce(topic, [Record(bytes([number])) for number in range(100)])
    memory_bytes = resident_memory_bytes(broker.process.process_id)
    # Made before, so that making them holds up nobody who is measured.
    fuzzers_count = fuzzers_of(seed)
    frames = [
        [source.next() for _ in range(FRAMES // fuzzers_count)]
        for source in map(Frames, range(seed * 10, seed * 10 + fuzzers_count))
    ]
    with deaf_clients(broker.port, topic), GoodClient(broker.port, topic) as good:
        fuzzers = [threading.Thread(target=fuzz, args=(broker.port, some), daemon=True) for some in frames]
        for thread in fuzzers:
            thread.start()
        for thread in fuzzers:
            thread.join(240.0)
        wait_until(lambda: good.answered >= ANSWERS_MIN or good.error is not None, "the good client is answered", 60.0)
        assert good.error is None
    assert not any(frames), "not all was sent"
    turns = longest_turns(metrics_port)
    print(
        f"{good.answered} answers for the good client, the longest after {good.longest_seconds * 1000:.0f} ms; "
        f"longest turns: {turns}"
    )
    too_long = {what: processor_ms for what, (_, processor_ms) in turns.items() if processor_ms > PROCESSOR_MS_MAX}
    assert not too_long, f"turns with more than {PROCESSOR_MS_MAX} ms of processor time: {too_long}"
    assert good.longest_seconds < where_others_work(WAIT_SECONDS_MAX)
    assert len(client.read(topic, 100)) == 100
    assert resident_memory_bytes(broker.process.process_id) - memory_bytes < GROWTH_BYTES_MAX
    log = broker.log_path.read_text("utf-8")
    assert "Traceback" not in log
    assert " ERROR " not in log
