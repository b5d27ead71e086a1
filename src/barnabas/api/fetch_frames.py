"""The frames of Fetch requests as nearly all are, naming few partitions and forgetting none; and of their responses
without errors.

Versions 15 to 17, which have the same bytes for these, and version 11, which many clients have stayed with. Measured,
the general codec's objects cost more than what the request does. Whatever is not exactly of these forms is left to it.
What reads and writes them follows from the schema file (`wire/compiler_frames`, `wire/compiler_frame_responses`, and
`wire/compiler_templates` for followers).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from barnabas.serving.fetch_partition import FetchPartition, NamedPartition, PartitionRead
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.compiler_frame_responses import ResponseShape, ResponseWriter, response_writer
from barnabas.wire.compiler_frames import (
    CORRELATION_ID,
    FrameShape,
    Made,
    Read,
    frame_reader,
)
from barnabas.wire.compiler_templates import RepeatedReader, repeated_reader
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import FetchRequest
from barnabas.wire.primitives import Buffer, Uuid

ID_VERSIONS: Final = range(15, 18)
"""They name topics by id."""
NAME_VERSION: Final = 11
"""It names topics by name."""
ISOLATION_LEVELS: Final[tuple[int, ...]] = (0, 1)
"""Read uncommitted and read committed; a request with another one is refused, on the general path."""


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


def form_of(
    api_version: int, client_id: str | None, follower: tuple[int, int] | None, rack_id: str = ""
) -> Form | None:
    """The form for such requests, if there is one. `follower` is the id and the epoch of a broker, `rack_id` where a
    client is."""
    if api_version in ID_VERSIONS:
        return IdForm(api_version, client_id, follower, rack_id)
    return NameForm(client_id, rack_id) if api_version == NAME_VERSION and follower is None else None


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

    __slots__ = ("_api_version", "_client_id", "_write", "read")

    def __init__(
        self,
        shape: FrameShape,
        api_version: int,
        client_id: str | None,
        follower: tuple[int, int] | None,
        rack_id: str,
    ) -> None:
        self._api_version, self._client_id = api_version, client_id
        sample = FetchRequest(rack_id=rack_id)
        if follower is not None:
            sample.replica_state = FetchRequest.ReplicaState(replica_id=follower[0], replica_epoch=follower[1])
        self.read: Read[UsualRequest] = frame_reader(shape, api_version, client_id, sample)


class IdForm(_Form):
    """Versions 15 to 17."""

    __slots__ = ()

    uses_topic_ids = True

    def __init__(
        self, api_version: int, client_id: str | None, follower: tuple[int, int] | None, rack_id: str = ""
    ) -> None:
        super().__init__(_BY_ID, api_version, client_id, follower, rack_id)
        self._write = response_writer(_RESPONSE_BY_ID, ApiKey.FETCH, api_version).write

    def repeated(self, frame: bytes) -> RepeatedReader:
        """The reader of requests that are like this one, which names one partition: all bytes but a few fields equal
        its own. Correlation id, session epoch, fetch offset, last fetched epoch and log start offset is what it gives.
        """
        return repeated_reader(ApiKey.FETCH, self._api_version, self._client_id, frame, _REPEATED_HOLES)

    def response(self, correlation_id: int, session_id: int, given: Given, records: Sequence[Buffer]) -> list[Buffer]:
        elements = [
            (
                item.topic_id,
                item.topic_partition.partition,
                read.high_watermark,
                read.last_stable_offset,
                read.log_start_offset,
                read.aborted,
                data,
            )
            for (item, read, _), data in zip(given, records, strict=True)
        ]
        return self._write(correlation_id, session_id, elements)


class NameForm(_Form):
    """Version 11."""

    __slots__ = ()

    uses_topic_ids = False

    def __init__(self, client_id: str | None, rack_id: str = "") -> None:
        super().__init__(_BY_NAME, NAME_VERSION, client_id, None, rack_id)
        self._write = response_writer(_RESPONSE_BY_NAME, ApiKey.FETCH, NAME_VERSION).write

    def response(self, correlation_id: int, session_id: int, given: Given, records: Sequence[Buffer]) -> list[Buffer]:
        elements = [
            (
                item.topic_partition.topic,
                item.topic_partition.partition,
                read.high_watermark,
                read.last_stable_offset,
                read.log_start_offset,
                read.aborted,
                data,
            )
            for (item, read, _), data in zip(given, records, strict=True)
        ]
        return self._write(correlation_id, session_id, elements)


def _shape_of_response(topic: str) -> ResponseShape:
    """Of the responses that name topics by that field."""
    watermarks = ("high_watermark", "last_stable_offset", "log_start_offset")
    element = ("partition_index", *watermarks, "aborted_transactions", "records")
    return ResponseShape("responses", "session_id", topic, element)


_RESPONSE_BY_ID: Final = _shape_of_response("topic_id")
_RESPONSE_BY_NAME: Final = _shape_of_response("topic")


class SharedResponse(NamedTuple):
    """The response of one partition to all followers that fetch the same of it (`IdForm`)."""

    parts: list[Buffer]
    """All that follows the session's id."""
    parts_bytes: int
    start: Callable[[int, int, int], bytes]
    """As of `ResponseWriter`."""

    def frame(self, correlation_id: int, session_id: int) -> list[Buffer]:
        """The response to one follower. The parts stay as they are."""
        parts, parts_bytes, start = self
        return [start(parts_bytes, correlation_id, session_id) + parts[0], *parts[1:]]


def shared_response(
    topic_id: Uuid,
    number: int,
    high_watermark: int,
    last_stable_offset: int,
    log_start_offset: int,
    records: Buffer,
) -> SharedResponse:
    """`IdForm.response` of one partition, from behind the session's id on."""
    writer = _writer_by_id()
    parts = writer.write_rest(topic_id, number, high_watermark, last_stable_offset, log_start_offset, None, records)
    return SharedResponse(parts, sum(map(len, parts)), writer.start)


@functools.cache
def _writer_by_id() -> ResponseWriter:
    return response_writer(_RESPONSE_BY_ID, ApiKey.FETCH, ID_VERSIONS[-1])
