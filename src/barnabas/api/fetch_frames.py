"""The frames of Fetch requests as nearly all are, naming few partitions and forgetting none; and of their responses
without errors.

Versions 15 to 17, which have the same bytes for these, and version 11, which many clients have stayed with. Measured,
the general codec's objects cost more than what the request does. Whatever is not exactly of these forms is left to it.
What reads the requests follows from the schema file (`wire/compiler_frames`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from barnabas.serving.fetch_partition import FetchPartition, NamedPartition, PartitionRead
from barnabas.wire import headers
from barnabas.wire.compiler_frames import (
    CORRELATION_ID,
    FrameShape,
    Made,
    Read,
    RepeatedReader,
    frame_reader,
    repeated_reader,
)
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import FetchRequest
from barnabas.wire.primitives import Buffer, Uuid

ID_VERSIONS: Final = range(15, 18)
"""They name topics by id."""
NAME_VERSION: Final = 11
"""It names topics by name."""
_ONE_BYTE_MAX: Final = 0x7F
ISOLATION_LEVELS: Final[tuple[int, ...]] = (0, 1)
"""Read uncommitted and read committed; a request with another one is refused, on the general path."""
_JOINED_BYTES_MAX: Final = 1024
"""Records up to this size are copied between what is ahead of them and what is behind."""

# Size, correlation id, tags of the header; throttle time, error, session id, count of topics.
_RESPONSE: Final = struct.Struct(">iiBihiB")
# Size, correlation id, tags of the header; throttle time, error, session id. What follows of one partition: count of
# topics, id, count of partitions, and as below.
_RESPONSE_START: Final = struct.Struct(">iiBihi")
_RESPONSE_OF_ONE: Final = struct.Struct(">B16sBihqqqBi")
_RESPONSE_END: Final = bytes(3)
# Number, error, high watermark, last stable offset, log start offset, no aborted transactions, no other replica.
_RESPONSE_PARTITION: Final = struct.Struct(">ihqqqBi")

# Of version 11.
_LENGTH: Final = struct.Struct(">h")
_COUNT: Final = struct.Struct(">i")
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

    @property
    def read(self) -> Read[UsualRequest]:
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


_PARTITION_PARTS: Final = (
    *("fetch_offset", "partition_max_bytes", "current_leader_epoch"),
    *("last_fetched_epoch", "log_start_offset"),
)
_REQUEST: Final = Made(
    UsualRequest,
    (
        *(CORRELATION_ID, "max_wait_ms", "min_bytes", "max_bytes", "isolation_level", "session_id", "session_epoch"),
        "topics",
    ),
)
_ALLOWED: Final = (("isolation_level", ISOLATION_LEVELS),)


def _shape(topic: str) -> FrameShape:
    """Of the requests that name topics by that field."""
    partition = Made(NamedPartition, ((topic, "partition"), *_PARTITION_PARTS))
    return FrameShape("FetchRequest", "topics", frozenset({"replica_id"}), _ALLOWED, partition, _REQUEST)


_BY_ID: Final = _shape("topic_id")
_BY_NAME: Final = _shape("topic")
_REPEATED_HOLES: Final = frozenset({"session_epoch", "fetch_offset", "last_fetched_epoch", "log_start_offset"})
"""What may be new in a follower's request that is like the one before. Its correlation id is, always."""


class _Form:
    """What both forms have in common: their requests are read as the schema file says."""

    __slots__ = ("_api_version", "_client_id", "_shape", "read")

    def __init__(
        self, shape: FrameShape, api_version: int, client_id: str | None, follower: tuple[int, int] | None
    ) -> None:
        self._shape, self._api_version, self._client_id = shape, api_version, client_id
        sample = FetchRequest()
        if follower is not None:
            sample.replica_state = FetchRequest.ReplicaState(replica_id=follower[0], replica_epoch=follower[1])
        self.read: Read[UsualRequest] = frame_reader(shape, api_version, client_id, sample)


class IdForm(_Form):
    """Versions 15 to 17."""

    __slots__ = ()

    uses_topic_ids = True

    def __init__(self, api_version: int, client_id: str | None, follower: tuple[int, int] | None) -> None:
        super().__init__(_BY_ID, api_version, client_id, follower)

    def repeated(self, frame: bytes) -> RepeatedReader:
        """The reader of requests that are like this one, which names one partition: all bytes but a few fields equal
        its own. Correlation id, session epoch, fetch offset, last fetched epoch and log start offset is what it gives.
        """
        return repeated_reader(self._shape, self._api_version, self._client_id, frame, _REPEATED_HOLES)

    def response(self, correlation_id: int, session_id: int, given: Given, records: Sequence[Buffer]) -> list[Buffer]:
        return _id_response(correlation_id, session_id, given, records)


class NameForm(_Form):
    """Version 11."""

    __slots__ = ()

    uses_topic_ids = False

    def __init__(self, client_id: str | None) -> None:
        super().__init__(_BY_NAME, NAME_VERSION, client_id, None)

    def response(self, correlation_id: int, session_id: int, given: Given, records: Sequence[Buffer]) -> list[Buffer]:
        return _name_response(correlation_id, session_id, given, records)


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
