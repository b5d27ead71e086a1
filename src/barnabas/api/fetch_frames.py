"""The frames of Fetch requests as nearly all are, naming few partitions and forgetting none; and of their responses
without errors.

Versions 15 to 17, which have the same bytes for these, and version 11, which many clients have stayed with. Measured,
the general codec's objects cost more than what the request does. Whatever is not exactly of these forms is left to it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from barnabas.serving.fetch_partition import FetchPartition, NamedPartition, PartitionRead
from barnabas.wire import headers
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.primitives import Buffer, Uuid
from barnabas.wire.sentinels import CONSUMER_ID

ID_VERSIONS: Final = range(15, 18)
"""They name topics by id."""
NAME_VERSION: Final = 11
"""It names topics by name."""
COUNT_MAX: Final = 126
"""Of topics, or of the partitions of one: the counts are varints of one byte, where they are varints."""
_ONE_BYTE_MAX: Final = 0x7F
ISOLATION_LEVELS: Final = (0, 1)
"""Read uncommitted and read committed; a request with another one is refused."""
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
# The session epoch, just ahead of the count of topics; number and leader epoch, ahead of the fetch offset; and what a
# follower says of its log: fetch offset, last fetched epoch, log start offset.
_HEADER_BYTES: Final = 8
_EPOCH_BYTES: Final = 4
_AHEAD_OF_OFFSET_BYTES: Final = 8
_POSITION_BYTES: Final = 20
# No forgotten topics, no rack, and, of a follower, one tagged field: tag 1 of 13 bytes, its id and epoch, and no tags.
_CLIENT_END: Final = bytes((1, 1, 0))
_FOLLOWER_END: Final = struct.Struct(">BBBBBiqB")
_FOLLOWER_BYTES: Final = 13

# Size, correlation id, tags of the header; throttle time, error, session id, count of topics.
_RESPONSE: Final = struct.Struct(">iiBihiB")
# Size, correlation id, tags of the header; throttle time, error, session id. What follows of one partition: count of
# topics, id, count of partitions, and as below.
_RESPONSE_START: Final = struct.Struct(">iiBihi")
_RESPONSE_OF_ONE: Final = struct.Struct(">B16sBihqqqBi")
_RESPONSE_END: Final = bytes(3)
# Number, error, high watermark, last stable offset, log start offset, no aborted transactions, no other replica.
_RESPONSE_PARTITION: Final = struct.Struct(">ihqqqBi")

# Of version 11. Replica id, and as above, with int32 for counts.
_NAME_KEY_AND_VERSION: Final = int(ApiKey.FETCH) << 16 | NAME_VERSION
_NAME_BODY: Final = "iiiibiii"
_LENGTH: Final = struct.Struct(">h")
_COUNT: Final = struct.Struct(">i")
# Number, leader epoch, fetch offset, log start offset, bytes at most.
_NAME_PARTITION: Final = struct.Struct(">iiqqi")
# No forgotten topics, no rack.
_NAME_END: Final = bytes(6)
# Size, correlation id; throttle time, error, session id, count of topics.
_NAME_RESPONSE: Final = struct.Struct(">iiihii")
# Number, error, high watermark, last stable offset, log start offset, aborted transactions, no other replica, records.
_NAME_RESPONSE_PARTITION: Final = struct.Struct(">ihqqqiii")


class UsualRequest(NamedTuple):
    """What such a request says."""

    correlation_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    named: list[NamedPartition]


Given = Sequence[tuple[FetchPartition, PartitionRead, ErrorCode]]
"""What was read of at most `COUNT_MAX` partitions, without divergence or aborted transactions."""


class Form(Protocol):
    """The form of the requests of one client, of one version and with one client id; and of their responses."""

    uses_topic_ids: bool

    def read(self, buffer: bytearray | memoryview, start: int, end: int) -> UsualRequest | None:
        """Reads the frame in `buffer[start:end]`, header first; None if it is of another form, or broken."""
        ...

    def response(self, correlation_id: int, session_id: int, given: Given, records: Sequence[Buffer]) -> list[Buffer]:
        """The response that has no error, with the records of each of the partitions. They are among the buffers
        uncopied where they are large.
        """
        ...


def form_of(api_version: int, client_id: str | None, follower: tuple[int, int] | None) -> Form | None:
    """The form for such requests, if there is one. `follower` is the id and the epoch of a broker."""
    if api_version in ID_VERSIONS:
        return IdForm(api_version, client_id, follower)
    return NameForm(client_id) if api_version == NAME_VERSION and follower is None else None


class IdForm:
    """Versions 15 to 17."""

    __slots__ = ("_end", "_key_and_version", "_prefix", "_size_bytes", "_unpack_from")

    uses_topic_ids = True

    def __init__(self, api_version: int, client_id: str | None, follower: tuple[int, int] | None) -> None:
        prefix = headers.request_header(ApiKey.FETCH, api_version, client_id)[_START_BYTES:]
        start = struct.Struct(f">ii{len(prefix)}s{_BODY}")
        self._key_and_version = int(ApiKey.FETCH) << 16 | api_version
        self._prefix = prefix
        self._size_bytes = start.size
        self._unpack_from = start.unpack_from
        self._end = _CLIENT_END if follower is None else _FOLLOWER_END.pack(1, 1, 1, 1, _FOLLOWER_BYTES, *follower, 0)

    def read(self, buffer: bytearray | memoryview, start: int, end: int) -> UsualRequest | None:
        position = start + self._size_bytes
        if position >= end:
            return None
        (
            key_and_version,
            correlation_id,
            prefix,
            max_wait_ms,
            min_bytes,
            max_bytes,
            isolation,
            session_id,
            epoch,
            topics,
        ) = self._unpack_from(buffer, start)
        if key_and_version != self._key_and_version or prefix != self._prefix or not 0 < topics <= _ONE_BYTE_MAX:
            return None
        if isolation not in ISOLATION_LEVELS:
            return None  # the general path says so
        named: list[NamedPartition] = []
        try:
            for _ in range(topics - 1):
                position = _read_topic(buffer, position, named)
        except (struct.error, IndexError, ValueError):
            return None
        # What was read beyond the end of the frame does not matter: it does not end with this then.
        if bytes(buffer[position:end]) != self._end:
            return None
        return UsualRequest(correlation_id, max_wait_ms, min_bytes, max_bytes, isolation, session_id, epoch, named)

    def repeated(self, frame: bytes) -> RepeatedForm:
        """The form of requests that are like this one, which names one partition."""
        return RepeatedForm(frame, self._size_bytes - 1)

    def response(self, correlation_id: int, session_id: int, given: Given, records: Sequence[Buffer]) -> list[Buffer]:
        return _id_response(correlation_id, session_id, given, records)


class RepeatedRequest(NamedTuple):
    """What may be new in a request that is like the one before."""

    correlation_id: int
    session_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int


class RepeatedForm:
    """The form of a follower's requests (`IdForm`) that name one partition, the same again and again: all bytes but a
    few fields equal those of the one from which it is learnt.
    """

    __slots__ = ("_before", "_behind", "_between", "_key_and_version", "_unpack_from", "size_bytes")

    def __init__(self, frame: bytes, names_at: int) -> None:
        """`frame` names one partition, and its count of topics is at `names_at`."""
        epoch_at = names_at - _EPOCH_BYTES
        offset_at = names_at + 1 + _TOPIC.size + _AHEAD_OF_OFFSET_BYTES
        layout = struct.Struct(
            f">ii{epoch_at - _HEADER_BYTES}si{offset_at - names_at}sqiq{len(frame) - offset_at - _POSITION_BYTES}s"
        )
        self._unpack_from = layout.unpack_from
        self.size_bytes = layout.size
        """Of the frame."""
        self._key_and_version, _, self._before, _, self._between, _, _, _, self._behind = layout.unpack(frame)

    def read(self, buffer: bytearray | memoryview, start: int) -> RepeatedRequest | None:
        """Reads a frame of `size_bytes` at `start`, header first; None if another field differs."""
        (
            key_and_version,
            correlation_id,
            before,
            epoch,
            between,
            fetch_offset,
            last_fetched_epoch,
            log_start_offset,
            behind,
        ) = self._unpack_from(buffer, start)
        if (
            between != self._between
            or before != self._before
            or behind != self._behind
            or key_and_version != self._key_and_version
        ):
            return None
        return RepeatedRequest(correlation_id, epoch, fetch_offset, last_fetched_epoch, log_start_offset)


class NameForm:
    """Version 11."""

    __slots__ = ("_prefix", "_size_bytes", "_unpack_from")

    uses_topic_ids = False

    def __init__(self, client_id: str | None) -> None:
        prefix = headers.request_header(ApiKey.FETCH, NAME_VERSION, client_id)[_START_BYTES:]
        start = struct.Struct(f">ii{len(prefix)}s{_NAME_BODY}")
        self._prefix = prefix
        self._size_bytes = start.size
        self._unpack_from = start.unpack_from

    def read(self, buffer: bytearray | memoryview, start: int, end: int) -> UsualRequest | None:
        position = start + self._size_bytes
        if position >= end:
            return None
        key_and_version, correlation_id, prefix, replica_id, max_wait_ms, min_bytes, max_bytes, isolation, *rest = (
            self._unpack_from(buffer, start)
        )
        if key_and_version != _NAME_KEY_AND_VERSION or prefix != self._prefix or replica_id != CONSUMER_ID:
            return None
        if isolation not in ISOLATION_LEVELS:
            return None
        session_id, epoch, count = rest
        named: list[NamedPartition] = []
        try:
            for _ in range(_checked(count)):
                position = _read_named_topic(buffer, position, named)
        except (struct.error, ValueError):
            return None
        if bytes(buffer[position:end]) != _NAME_END:
            return None
        return UsualRequest(correlation_id, max_wait_ms, min_bytes, max_bytes, isolation, session_id, epoch, named)

    def response(self, correlation_id: int, session_id: int, given: Given, records: Sequence[Buffer]) -> list[Buffer]:
        return _name_response(correlation_id, session_id, given, records)


def _checked(count: int) -> int:
    """Raises ValueError for a count that is not allowed here."""
    if not 0 <= count <= COUNT_MAX:
        raise ValueError(f"{count} is not between 0 and {COUNT_MAX}")
    return count


def _read_named_topic(buffer: bytearray | memoryview, position: int, named: list[NamedPartition]) -> int:
    """As `_read_topic`, of version 11. Raises UnicodeDecodeError, which is a ValueError."""
    (length,) = _LENGTH.unpack_from(buffer, position)
    position += _LENGTH.size
    if length < 0:
        raise ValueError("a topic has no name")
    topic = str(buffer[position : position + length], "utf-8")
    position += length
    (count,) = _COUNT.unpack_from(buffer, position)
    position += _COUNT.size
    for _ in range(_checked(count)):
        number, leader_epoch, fetch_offset, log_start_offset, max_bytes = _NAME_PARTITION.unpack_from(buffer, position)
        position += _NAME_PARTITION.size
        named.append(NamedPartition((topic, number), fetch_offset, max_bytes, leader_epoch, -1, log_start_offset))
    return position


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


def _id_response(correlation_id: int, session_id: int, given: Given, records: Sequence[Buffer]) -> list[Buffer]:
    # Grown in place, and begun anew behind records that are not copied.
    part = bytearray(_RESPONSE.size)
    found: list[Buffer] = [part]
    topics = partitions = 0
    topic: str | None = None
    topic_id: Uuid = b""
    counted_in, count_at = part, 0  # where the count of the topic's partitions is
    for (item, read, _), data in zip(given, records, strict=True):
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
            0 if read.aborted is None else 1,
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


def response_of_one(
    topic_id: Uuid,
    number: int,
    high_watermark: int,
    last_stable_offset: int,
    log_start_offset: int,
    records: Buffer,
) -> list[Buffer]:
    """`IdForm.response` of one partition, from behind the session's id on: the same for all who fetch the same."""
    part = bytearray(
        _RESPONSE_OF_ONE.pack(2, topic_id, 2, number, 0, high_watermark, last_stable_offset, log_start_offset, 0, -1)
    )
    length = len(records) + 1
    while length > _ONE_BYTE_MAX:
        part.append(length & 0x7F | 0x80)
        length >>= 7
    part.append(length)
    if len(records) > _JOINED_BYTES_MAX:
        return [part, records, _RESPONSE_END]
    part += records
    part += _RESPONSE_END
    return [part]


def with_start(correlation_id: int, session_id: int, parts: list[Buffer], parts_bytes: int) -> list[Buffer]:
    """The response with these parts, of so many bytes, behind the session's id. The parts stay as they are."""
    size = _RESPONSE_START.size - headers.SIZE_BYTES + parts_bytes
    start = _RESPONSE_START.pack(size, correlation_id, 0, 0, 0, session_id)
    return [start + parts[0], *parts[1:]]


def _name_response(correlation_id: int, session_id: int, given: Given, records: Sequence[Buffer]) -> list[Buffer]:
    part = bytearray(_NAME_RESPONSE.size)
    found: list[Buffer] = [part]
    topics = partitions = 0
    topic: str | None = None
    counted_in, count_at = part, 0  # as above
    for (item, read, _), data in zip(given, records, strict=True):
        if topic != item.topic_partition.topic:
            if topics:
                _COUNT.pack_into(counted_in, count_at, partitions)
            topic = item.topic_partition.topic
            name = topic.encode()
            topics += 1
            partitions = 0
            part += _LENGTH.pack(len(name))
            part += name
            counted_in, count_at = part, len(part)
            part += bytes(_COUNT.size)
        partitions += 1
        part += _NAME_RESPONSE_PARTITION.pack(
            item.topic_partition.partition,
            0,
            read.high_watermark,
            read.last_stable_offset,
            read.log_start_offset,
            -1 if read.aborted is None else 0,
            -1,
            len(data),
        )
        if len(data) <= _JOINED_BYTES_MAX:
            part += data
        else:
            part = bytearray()
            found += (data, part)
    if topics:
        _COUNT.pack_into(counted_in, count_at, partitions)
    if not part:
        found.pop()
    size = sum(map(len, found)) - headers.SIZE_BYTES
    _NAME_RESPONSE.pack_into(found[0], 0, size, correlation_id, 0, 0, session_id, topics)
    return found
