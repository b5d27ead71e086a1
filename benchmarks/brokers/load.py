"""Load on one partition by `load.c`, which costs next to nothing itself: prebuilt requests, again and again."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.codec import request_encoder
from barnabas.wire.messages import FetchRequest, ProduceRequest
from barnabas.wire.primitives import Buffer
from barnabas.wire.record_builder import RecordBatchBuilder

CLIENT_ID = "benchmark"
_PRODUCE_VERSION = 7
_FETCH_VERSION = 11
_FETCH_OFFSET_MARK = 0x1122334455667788
# In a response beside the topic's name: correlation id, count of topics, name's length, count of partitions, index.
_PRODUCE_ERROR_AT = 4 + 4 + 2 + 4 + 4
# Correlation id, throttle time, error, session, count of topics, name's length, count of partitions, index.
_FETCH_ERROR_AT = 4 + 4 + 2 + 4 + 4 + 2 + 4 + 4
_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Load:
    """What one run measured: of all requests, and of the middle and the slowest hundredth of them."""

    requests: int
    requests_per_second: float
    megabytes_out_per_second: float
    megabytes_in_per_second: float
    median_us: float
    p99_us: float


@dataclass(frozen=True, slots=True)
class Sides:
    """Two that have turns: two clients, or one with a process that is sent a signal before each turn."""

    process_id: int
    """Whose processor time is taken."""
    client_ids: Sequence[str] = (CLIENT_ID,)
    """Of as many bytes each."""
    signals: tuple[int, int] = (0, 0)
    """What the process is sent before a turn of each side; 0 for nothing."""


class LoadGenerator:
    """The compiled generator. Needs gcc or another C compiler under the name `cc`; OSError without."""

    def __init__(self, directory: Path, *, is_secured: bool = False) -> None:
        """`is_secured`: by TLS, for which OpenSSL's header files have to be there."""
        self._program = directory / ("load-tls" if is_secured else "load")
        source = Path(__file__).parent / "load.c"
        of_tls = ["-DTLS", "-lssl", "-lcrypto"] if is_secured else []
        subprocess.run(["cc", "-O2", "-o", str(self._program), str(source), *of_tls], check=True)

    def produce(
        self,
        port: int,
        topic: str,
        *,
        connections: int,
        depth: int,
        records_per_batch: int,
        value_bytes: Sequence[int],
        requests: int,
        acks: int,
        is_idempotent: bool = False,
    ) -> Load:
        """Sends batches to partition 0 of the topic, with `depth` requests unanswered on each connection; the values of
        each batch have one of the sizes `value_bytes`.

        With `is_idempotent` each connection is a producer with an id and sequences, as librdkafka and Java have them
        by default, and batches have one record. The topic must be new then.
        """
        if is_idempotent and records_per_batch > 1:
            raise ValueError("the load generator gives sequences to batches of one record only")
        frames = [_produce_frame(topic, acks, records_per_batch, size_bytes) for size_bytes in value_bytes]
        error_at = _PRODUCE_ERROR_AT + len(topic)
        changes = [str(frames[0][1])] if is_idempotent else []
        return self._run(b"".join(frame for frame, _ in frames), port, connections, depth, requests, error_at, *changes)

    def fetch(
        self,
        port: int,
        topic: str,
        *,
        connections: int,
        depth: int,
        bytes_max: int,
        requests: int,
        records_per_batch: int,
        batches: int,
    ) -> Load:
        """Walks the first `batches` batches of partition 0 of the topic, again and again, without fetch sessions."""
        frame, offset_at = _fetch_frame(topic, bytes_max)
        error_at = _FETCH_ERROR_AT + len(topic)
        return self._run(
            frame, port, connections, depth, requests, error_at, str(offset_at), str(records_per_batch), str(batches)
        )

    def produce_in_turns(
        self, port: int, topic: str, sides: Sides, *, connections: int, value_bytes: int, turns: int, requests: int
    ) -> list[float]:
        """So many turns of so many requests, of one record each, by the sides 0, 1, 1, 0, 0, 1, 1, 0 and so on; what
        processor time each request of a turn cost, in seconds. Each side has so many connections.
        """
        frames = [_produce_frame(topic, 1, 1, value_bytes, each)[0] for each in sides.client_ids]
        return self._run_in_turns(
            b"".join(frames), port, sides, connections, turns, requests, _PRODUCE_ERROR_AT + len(topic)
        )

    def fetch_in_turns(
        self, port: int, topic: str, sides: Sides, *, turns: int, requests: int, batches: int
    ) -> list[float]:
        """As `produce_in_turns`, from one connection for each side; a request walks to the next one of so many batches
        of one record."""
        frames = [_fetch_frame(topic, 1, each) for each in sides.client_ids]
        changes = (str(frames[0][1]), "1", str(batches))
        joined = b"".join(frame for frame, _ in frames)
        return self._run_in_turns(joined, port, sides, 1, turns, requests, _FETCH_ERROR_AT + len(topic), *changes)

    def _run_in_turns(
        self,
        frames: bytes,
        port: int,
        sides: Sides,
        connections: int,
        turns: int,
        requests: int,
        error_at: int,
        *changes: str,
    ) -> list[float]:
        before = ["--turns", str(sides.process_id), str(requests), *map(str, sides.signals)]
        numbers = (port, connections * len(sides.client_ids), 1, turns * requests, error_at)
        found = self._call(before, frames, numbers, changes)
        return [nanoseconds / requests / 1e9 for nanoseconds in found["processor_ns"]]

    def _run(
        self, frame: bytes, port: int, connections: int, depth: int, requests: int, error_at: int, *changes: str
    ) -> Load:
        found = self._call([], frame, (port, connections, depth, requests, error_at), changes)
        return Load(
            requests=found["requests"],
            requests_per_second=found["requests"] / found["seconds"],
            megabytes_out_per_second=found["bytes_out"] / found["seconds"] / 1e6,
            megabytes_in_per_second=found["bytes_in"] / found["seconds"] / 1e6,
            median_us=found["p50_us"],
            p99_us=found["p99_us"],
        )

    def _call(
        self, before: Sequence[str], frames: bytes, numbers: Sequence[int], changes: Sequence[str]
    ) -> dict[str, Any]:
        with tempfile.NamedTemporaryFile(prefix="frame-") as file:
            file.write(frames)
            file.flush()
            command = [str(self._program), *before, file.name, *map(str, numbers), *changes]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
        if done.returncode:
            raise RuntimeError(f"the load failed with {done.returncode}: {done.stderr} {done.stdout}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def _produce_frame(
    topic: str, acks: int, records: int, value_bytes: int, client_id: str = CLIENT_ID
) -> tuple[bytes, int]:
    """The frame, and where its batch begins."""
    builder = RecordBatchBuilder()
    now_ms = int(time.time() * 1000)
    for number in range(records):
        builder.append(now_ms, None, bytes(97 + (number * 7 + index) % 26 for index in range(value_bytes)))
    batch = builder.build()
    partition = ProduceRequest.PartitionProduceData(index=0, records=memoryview(batch))
    request = ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[partition])],
    )
    frame = _joined(request_encoder(ApiKey.PRODUCE, _PRODUCE_VERSION, client_id)(1, request))
    return frame, len(frame) - len(batch)


def _fetch_frame(topic: str, bytes_max: int, client_id: str = CLIENT_ID) -> tuple[bytes, int]:
    """The frame, and where its offset stands."""
    partition = FetchRequest.FetchPartition(
        partition=0, current_leader_epoch=-1, fetch_offset=_FETCH_OFFSET_MARK, partition_max_bytes=bytes_max
    )
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=50 * 1024 * 1024,
        session_id=0,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])],
    )
    frame = _joined(request_encoder(ApiKey.FETCH, _FETCH_VERSION, client_id)(1, request))
    return frame, frame.index(_FETCH_OFFSET_MARK.to_bytes(8, "big"))


def _joined(buffers: list[Buffer]) -> bytes:
    return b"".join(bytes(buffer) for buffer in buffers)
