"""Produce and Fetch requests written by hand, so that bytes of records reach a broker and come back as they are."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

TIMEOUT_SECONDS = 90.0
PRODUCE_KEY = 0
FETCH_KEY = 1


@dataclass(frozen=True, slots=True)
class Produced:
    """What a broker says of one partition's records."""

    error_code: int
    base_offset: int


def produce(port: int, topic: str, records: bytes | bytearray, version: int = 3) -> Produced:
    """Sends `records` as they are, to partition 0 of the topic, with acks=all. Versions 2 to 7."""
    transactional_id = struct.pack(">h", -1) if version >= 3 else b""
    body = transactional_id + struct.pack(">hii", -1, 10_000, 1) + text(topic) + struct.pack(">iii", 1, 0, len(records))
    answer = exchange(port, PRODUCE_KEY, version, body + bytes(records))
    position = 4 + len(text(topic)) + 4 + 4  # topics, name, partitions, index
    error_code, base_offset = struct.unpack_from(">hq", answer, position)
    return Produced(error_code, base_offset)


def fetch(port: int, topic: str, offset: int, version: int) -> bytes:
    """The records of partition 0 from `offset` on, in the format that a consumer of `version` (0 to 2) understands."""
    body = struct.pack(">iiii", -1, 1_000, 1, 1) + text(topic) + struct.pack(">iiqi", 1, 0, offset, 10_000_000)
    answer = exchange(port, FETCH_KEY, version, body)
    position = (4 if version else 0) + 4 + len(text(topic)) + 4 + 4
    error_code, _, size_bytes = struct.unpack_from(">hqi", answer, position)
    if error_code:
        raise RuntimeError(f"the broker answered Fetch with error {error_code}")
    return answer[position + 14 : position + 14 + size_bytes]


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">h", len(encoded)) + encoded


def exchange(port: int, api_key: int, version: int, body: bytes) -> bytes:
    """One request and the body of its response."""
    request = struct.pack(">hhi", api_key, version, 7) + text("interop") + body
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as stream:
            (size_bytes,) = struct.unpack(">i", stream.read(4))
            return stream.read(size_bytes)[4:]
