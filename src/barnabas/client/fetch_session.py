"""The client's half of an incremental fetch session (KIP-227): what to say to a broker that remembers the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from barnabas.kernel.facts import fact
from barnabas.wire.errors import ErrorCode
from barnabas.wire.fetch_session import FetchSessionHandler
from barnabas.wire.messages import FetchRequest
from barnabas.wire.primitives import ZERO_UUID
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.wire.messages import FetchResponse

TOPIC_IDS_SINCE_VERSION: Final = 13
SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
"""The errors after which the fetch session is reopened."""


@fact
class FetchTarget:
    """What is wanted of one partition."""

    topic_id: bytes
    offset: int
    leader_epoch: int
    bytes_max: int


class FetchSession:
    """A session with one broker, one request at a time."""

    __slots__ = ("_handler", "_uses_ids")

    def __init__(self) -> None:
        self._uses_ids = False
        self._handler = FetchSessionHandler[FetchTarget]()

    def failed(self) -> None:
        """A request was not answered: the next one ends the session and opens another."""
        self._handler.failed()

    def highest_version(self, wanted: Mapping[TopicPartition, FetchTarget], highest: int) -> int:
        """The highest version to use: topics without ids need names, which went out with version 13."""
        if any(target.topic_id == ZERO_UUID for target in wanted.values()):
            return min(highest, TOPIC_IDS_SINCE_VERSION - 1)
        return highest

    def fill(self, request: FetchRequest, wanted: Mapping[TopicPartition, FetchTarget], version: int) -> None:
        """Puts session and partitions into a request for all that is wanted now."""
        handler = self._handler
        uses_ids = version >= TOPIC_IDS_SINCE_VERSION
        if uses_ids is not self._uses_ids:
            handler.failed()
            self._uses_ids = uses_ids
        unwanted = [(partition, None) for partition in handler.positions if partition not in wanted]
        composition = handler.compose((*unwanted, *wanted.items()), wanted.items)
        request.session_id = handler.session_id
        request.session_epoch = handler.epoch
        if composition is not None:
            request.topics = _targets(composition.fetched)
            request.forgotten_topics_data = _forgotten(composition.forgotten)

    def accept(self, response: FetchResponse) -> bool:
        """Takes note of an answer. False when the session is over: do not use the answer's partitions then."""
        handler = self._handler
        error = ErrorCode.for_code(response.error_code)
        if error is ErrorCode.NONE and response.session_id != handler.session_id and not handler.is_full:
            handler.lost()
            return False
        return handler.answered(response.session_id, error)


def _targets(wanted: list[tuple[TopicPartition, FetchTarget]]) -> list[FetchRequest.FetchTopic]:
    topics: dict[tuple[str, bytes], list[FetchRequest.FetchPartition]] = {}
    for partition, target in wanted:
        topics.setdefault((partition.topic, target.topic_id), []).append(
            FetchRequest.FetchPartition(
                partition=partition.partition,
                current_leader_epoch=target.leader_epoch,
                fetch_offset=target.offset,
                partition_max_bytes=target.bytes_max,
            )
        )
    return [
        FetchRequest.FetchTopic(topic=topic, topic_id=topic_id, partitions=partitions)
        for (topic, topic_id), partitions in topics.items()
    ]


def _forgotten(forgotten: list[tuple[TopicPartition, FetchTarget]]) -> list[FetchRequest.ForgottenTopic]:
    topics: dict[tuple[str, bytes], list[int]] = {}
    for partition, target in forgotten:
        topics.setdefault((partition.topic, target.topic_id), []).append(partition.partition)
    return [
        FetchRequest.ForgottenTopic(topic=topic, topic_id=topic_id, partitions=numbers)
        for (topic, topic_id), numbers in topics.items()
    ]
