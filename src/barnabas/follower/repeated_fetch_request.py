"""A follower's Fetch request that is like its last one, as they are while one partition is written to: the frame is the
last one's, with a few fields put in anew; and of the answer only these that there is then are read.

Whatever is not of this form is composed, and read, by the codec.
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.follower.fetch_protocol import FETCH_WITH_REPLICA_STATE
from barnabas.wire import codec, headers
from barnabas.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.follower.follower_session import Position
    from barnabas.wire.messages import FetchRequest, FetchResponse
    from barnabas.wire.primitives import Buffer
    from barnabas.wire.topics import TopicPartition

_CORRELATION_ID_AT: Final = headers.SIZE_BYTES + 4
_INT32: Final = struct.Struct(">i")
# Behind the header: max wait, min bytes, max bytes, isolation level, session id. Then the session epoch, and ahead of
# the position: count of topics, id, count of partitions, number, leader epoch.
_AHEAD_OF_EPOCH_BYTES: Final = 17
_FROM_EPOCH_TO_POSITION_BYTES: Final = 30
# Fetch offset, last fetched epoch, log start offset.
_POSITION: Final = struct.Struct(">qiq")
# Correlation id, tags; throttle time, error, session id, count of topics; id, count of partitions; number, error, high
# watermark, last stable offset, log start offset, no aborted transactions, no other replica.
_RESPONSE: Final = struct.Struct(">iBihiB16sBihqqqBi")
# Of the partition, the topic and the response: no tagged fields.
_RESPONSE_END: Final = bytes(3)
_LENGTH_SHIFT_MAX: Final = 28


class FetchedAgain(NamedTuple):
    """What an answer says of the one partition, without any error; under the names of `FetchResponse.PartitionData`."""

    high_watermark: int
    log_start_offset: int
    records: Buffer
    """Valid until whoever was given it returns."""
    error_code: int = 0
    diverging_epoch: None = None


class RepeatedFetchRequest:
    """The requests of one session that name one partition, by one topic id and leader epoch, and wait equally long."""

    __slots__ = (
        "_decode",
        "_epoch_at",
        "_frame",
        "_number",
        "_position_at",
        "broker_epoch",
        "leader_epoch",
        "max_wait_ms",
        "session_id",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self, request: FetchRequest, version: int, client_id: str, topic_partition: TopicPartition, broker_epoch: int
    ) -> None:
        """`request` names that partition only and forgets none; `version` has a replica state, 15 or above."""
        (topic,) = request.topics
        (partition,) = topic.partitions
        if version < FETCH_WITH_REPLICA_STATE or request.forgotten_topics_data:
            raise ValueError(f"a Fetch request of version {version} that is not of this form")
        self._frame = bytearray().join(codec.request_encoder(ApiKey.FETCH, version, client_id)(0, request))
        self._epoch_at = len(headers.request_header(ApiKey.FETCH, version, client_id)) + _AHEAD_OF_EPOCH_BYTES
        self._position_at = self._epoch_at + _FROM_EPOCH_TO_POSITION_BYTES
        self._decode = codec.response_decoder(ApiKey.FETCH, version)
        self._number = partition.partition
        self.topic_partition = topic_partition
        self.topic_id = bytes(topic.topic_id)
        """A topic of the same name that is made anew has another one, and the same leader epochs again."""
        self.leader_epoch = partition.current_leader_epoch
        self.max_wait_ms = request.max_wait_ms
        self.session_id = request.session_id
        self.broker_epoch = broker_epoch

    def encoding(self, session_epoch: int, position: Position) -> Callable[[int], list[Buffer]]:
        """What makes the frame of the next request, once its correlation id is known."""
        frame = bytearray(self._frame)
        _INT32.pack_into(frame, self._epoch_at, session_epoch)
        _POSITION.pack_into(
            frame, self._position_at, position.fetch_offset, position.last_fetched_epoch, position.log_start_offset
        )
        return functools.partial(_with_correlation_id, frame)

    def decode(self, buffer: Buffer, start: int, end: int) -> FetchedAgain | FetchResponse:
        """Reads the response in `buffer[start:end]`, header first. Raises ProtocolError as the codec does."""
        found = self._read(buffer, start, end)
        if found is not None:
            return found
        response: FetchResponse
        response, _ = self._decode(buffer, start, end)
        return response

    def _read(self, buffer: Buffer, start: int, end: int) -> FetchedAgain | None:
        position = start + _RESPONSE.size
        if position >= end:
            return None
        (
            _,
            tags,
            throttle_time_ms,
            error,
            session_id,
            topics,
            topic_id,
            partitions,
            number,
            partition_error,
            high_watermark,
            _,
            log_start_offset,
            aborted,
            _,
        ) = _RESPONSE.unpack_from(buffer, start)
        if (
            tags
            or throttle_time_ms
            or error
            or partition_error
            or aborted > 1
            or topics != 2
            or partitions != 2
            or session_id != self.session_id
            or number != self._number
            or topic_id != self.topic_id
        ):
            return None
        length = shift = 0
        while position < end and shift <= _LENGTH_SHIFT_MAX:
            byte = buffer[position]
            position += 1
            length |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        else:
            return None
        records_end = position + length - 1
        if not length or records_end > end or buffer[records_end:end] != _RESPONSE_END:
            return None
        return FetchedAgain(high_watermark, log_start_offset, memoryview(buffer)[position:records_end])


def _with_correlation_id(frame: bytearray, correlation_id: int) -> list[Buffer]:
    _INT32.pack_into(frame, _CORRELATION_ID_AT, correlation_id)
    return [frame]
