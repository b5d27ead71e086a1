"""A follower's Fetch request that is like its last one, as they are while one partition is written to: the frame is the
last one's, with a few fields put in anew; and of the answer only these that there is then are read.

Template and reader follow from the schema file (`wire/compiler_templates`, `wire/compiler_usual`). Whatever is not of
this form is composed, and read, by the codec.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.follower.fetch_protocol import FETCH_WITH_REPLICA_STATE
from barnabas.wire import codec, headers
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.compiler_templates import request_template
from barnabas.wire.compiler_usual import usual_reader

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.follower.follower_session import Position
    from barnabas.wire.messages import FetchRequest, FetchResponse
    from barnabas.wire.primitives import Buffer
    from barnabas.wire.topics import TopicPartition

_HOLES: Final = ("session_epoch", "fetch_offset", "last_fetched_epoch", "log_start_offset")
_NO_ELEMENTS: Final = frozenset({"aborted_transactions"})
_HEADER_BYTES: Final = len(headers.response_header(ApiKey.FETCH, FETCH_WITH_REPLICA_STATE)) - headers.SIZE_BYTES
"""Of the response: a correlation id, and the byte that says that there are no tagged fields."""


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
        "_number",
        "_read",
        "_template",
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
        self._template = request_template(ApiKey.FETCH, version, client_id, request, _HOLES)
        self._read = usual_reader("FetchResponse", version, _NO_ELEMENTS).read
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
        template = self._template
        fetch_offset, last_fetched_epoch = position.fetch_offset, position.last_fetched_epoch
        log_start_offset = position.log_start_offset
        return lambda correlation_id: [
            template(correlation_id, session_epoch, fetch_offset, last_fetched_epoch, log_start_offset)
        ]

    def decode(self, buffer: Buffer, start: int, end: int) -> FetchedAgain | FetchResponse:
        """Reads the response in `buffer[start:end]`, header first. Raises ProtocolError as the codec does."""
        body = start + _HEADER_BYTES
        found = self._read(buffer, body, end)
        if found is not None and not buffer[body - 1]:
            (
                throttle_time_ms,
                error,
                session_id,
                topic_id,
                number,
                partition_error,
                high_watermark,
                _,
                log_start_offset,
                _,
                _,
                records_start,
                records_end,
            ) = found
            if (
                not (throttle_time_ms or error or partition_error)
                and session_id == self.session_id
                and number == self._number
                and topic_id == self.topic_id
            ):
                return FetchedAgain(high_watermark, log_start_offset, memoryview(buffer)[records_start:records_end])
        response: FetchResponse
        response, _ = self._decode(buffer, start, end)
        return response
