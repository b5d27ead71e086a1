"""The frames of a follower's Fetch requests as nearly all are: of an incremental session, naming few partitions and
forgetting none; and of their responses without errors.

Versions 15 to 17, which have the same bytes for these. Measured, the general codec's objects cost more than what the
request does. Whatever is not exactly of this form is left to it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from barnabas.replication.fetch_reads import PartitionRead
from barnabas.replication.fetch_sessions import FetchPartition, NamedPartition
from barnabas.wire import headers
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.primitives import Buffer, Uuid

VERSIONS: Final = range(15, 18)
COUNT_MAX: Final = 126
"""Of topics, or of the partitions of one: the counts are varints of one byte."""
_ONE_BYTE_MAX: Final = 0x7F
_JOINED_BYTES_MAX: Final = 1024
"""Records up to this size are copied between what is ahead of them and what is behind."""

_START_BYTES: Final = headers.SIZE_BYTES + 8
"""Size, key and version, correlation id: ahead of the client id in a request's frame."""
# Max wait, min bytes, max bytes, isolation level, session id, session epoch, count of topics.
_BODY: Final = "iiibiiB"
# Id, count of partitions.
_TOPIC: Final = struct.Struct(">16sB")
# Number, leader epoch, fetch offset, last fetched epoch, log start offset, bytes at most, tags.
_PARTITION: Final = struct.Struct(">iiqiqiB")
# No forgotten topics, no rack, one tagged field: tag 1 of 13 bytes, which are the follower's id and epoch, and no tags.
_END: Final = struct.Struct(">BBBBBiqB")
_FOLLOWER_BYTES: Final = 13

# Size, correlation id, tags of the header; throttle time, error, session id, count of topics.
_RESPONSE: Final = struct.Struct(">iiBihiB")
# Number, error, high watermark, last stable offset, log start offset, no aborted transactions, no other replica.
_RESPONSE_PARTITION: Final = struct.Struct(">ihqqqBi")


class FollowerRequest(NamedTuple):
    """What such a request says."""

    correlation_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    session_id: int
    session_epoch: int
    named: list[NamedPartition]


class RequestForm:
    """The requests of one follower, of one version and with one client id."""

    __slots__ = ("_end", "_key_and_version", "_prefix", "_size_bytes", "_unpack_from")

    def __init__(self, api_version: int, client_id: str | None, follower_id: int, follower_epoch: int) -> None:
        prefix = headers.request_header(ApiKey.FETCH, api_version, client_id)[_START_BYTES:]
        start = struct.Struct(f">ii{len(prefix)}s{_BODY}")
        self._key_and_version = int(ApiKey.FETCH) << 16 | api_version
        self._prefix = prefix
        self._size_bytes = start.size
        self._unpack_from = start.unpack_from
        self._end = _END.pack(1, 1, 1, 1, _FOLLOWER_BYTES, follower_id, follower_epoch, 0)

    def read(self, buffer: bytearray | memoryview, start: int, end: int) -> FollowerRequest | None:
        """Reads the frame in `buffer[start:end]`, header first; None if it is of another form, or broken."""
        position = start + self._size_bytes
        if position >= end:
            return None
        key_and_version, correlation_id, prefix, max_wait_ms, min_bytes, max_bytes, _, session_id, epoch, topics = (
            self._unpack_from(buffer, start)
        )
        if key_and_version != self._key_and_version or prefix != self._prefix or not 0 < topics <= _ONE_BYTE_MAX:
            return None
        named: list[NamedPartition] = []
        try:
            for _ in range(topics - 1):
                position = _read_topic(buffer, position, named)
        except (struct.error, IndexError, ValueError):
            return None
        # What was read beyond the end of the frame does not matter: it does not end with this then.
        if bytes(buffer[position:end]) != self._end:
            return None
        return FollowerRequest(correlation_id, max_wait_ms, min_bytes, max_bytes, session_id, epoch, named)


def _read_topic(buffer: bytearray | memoryview, position: int, named: list[NamedPartition]) -> int:
    """Adds a topic's partitions; returns the position behind it. Raises ValueError for what is of another form."""
    topic_id, count = _TOPIC.unpack_from(buffer, position)
    position += _TOPIC.size
    if not 0 < count <= _ONE_BYTE_MAX:
        raise ValueError(f"{count} is no count of one byte")
    for _ in range(count - 1):
        number, leader_epoch, fetch_offset, last_fetched_epoch, log_start_offset, max_bytes, tags = (
            _PARTITION.unpack_from(buffer, position)
        )
        if tags:
            raise ValueError("a partition has tagged fields")
        position += _PARTITION.size
        key = topic_id, number
        named.append(NamedPartition(key, fetch_offset, max_bytes, leader_epoch, last_fetched_epoch, log_start_offset))
    if buffer[position]:
        raise ValueError("a topic has tagged fields")
    return position + 1


def response_frame(
    correlation_id: int,
    session_id: int,
    chosen: Sequence[tuple[FetchPartition, PartitionRead, ErrorCode]],
    records: Sequence[Buffer],
) -> list[Buffer]:
    """The response that has no error, to a request of any of the versions: what was read of at most `COUNT_MAX`
    partitions, without divergence, and the records of each. They are among the buffers uncopied where they are large.
    """
    # Grown in place, and begun anew behind records that are not copied.
    part = bytearray(_RESPONSE.size)
    found: list[Buffer] = [part]
    topics = partitions = 0
    topic: str | None = None
    topic_id: Uuid = b""
    counted_in, count_at = part, 0  # where the count of the topic's partitions is
    for (item, read, _), data in zip(chosen, records, strict=True):
        if topic != item.topic_partition.topic or topic_id != item.topic_id:
            if topics:
                counted_in[count_at] = partitions + 1
                part.append(0)
            topic, topic_id = item.topic_partition.topic, item.topic_id
            topics += 1
            partitions = 0
            counted_in, count_at = part, len(part) + len(topic_id)
            part += topic_id
            part.append(0)
        partitions += 1
        part += _RESPONSE_PARTITION.pack(
            item.topic_partition.partition,
            0,
            read.high_watermark,
            read.last_stable_offset,
            read.log_start_offset,
            0,
            -1,
        )
        length = len(data) + 1
        while length > _ONE_BYTE_MAX:
            part.append(length & 0x7F | 0x80)
            length >>= 7
        part.append(length)
        if len(data) <= _JOINED_BYTES_MAX:
            part += data
            part.append(0)
        else:
            part = bytearray(1)
            found += (data, part)
    if topics:
        counted_in[count_at] = partitions + 1
        part.append(0)
    part.append(0)
    first = found[0]
    size = sum(map(len, found)) - headers.SIZE_BYTES
    _RESPONSE.pack_into(first, 0, size, correlation_id, 0, 0, 0, session_id, topics + 1)
    return found
