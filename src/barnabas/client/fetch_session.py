"""The client's half of an incremental fetch session (KIP-227): what to say to a broker that remembers the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import FetchRequest
from barnabas.wire.primitives import ZERO_UUID
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.wire.messages import FetchResponse

TOPIC_IDS_SINCE_VERSION: Final = 13
_NO_SESSION: Final = 0
_OPENING_EPOCH: Final = 0
_EPOCH_MAX: Final = 2**31 - 1
SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
"""After these the session is opened anew."""


@dataclass(frozen=True, slots=True)
class FetchTarget:
    """What is wanted of one partition."""

    topic_id: bytes
    offset: int
    leader_epoch: int
    bytes_max: int


class FetchSession:
    """A session with one broker, one request at a time."""

    __slots__ = ("_epoch", "_id", "_known", "_uses_ids")

    def __init__(self) -> None:
        self._uses_ids = False
        self.reset()

    def reset(self) -> None:
        """Forgets the session: the next request opens one."""
        self._id = _NO_SESSION
        self._epoch = _OPENING_EPOCH
        self._known: dict[TopicPartition, FetchTarget] = {}

    def highest_version(self, wanted: Mapping[TopicPartition, FetchTarget], highest: int) -> int:
        """The highest version to use: topics without ids need names, which went out with version 13."""
        if any(target.topic_id == ZERO_UUID for target in wanted.values()):
            return min(highest, TOPIC_IDS_SINCE_VERSION - 1)
        return highest

    def fill(self, request: FetchRequest, wanted: Mapping[TopicPartition, FetchTarget], version: int) -> None:
        """Puts session and partitions into a request for all that is wanted now."""
        uses_ids = version >= TOPIC_IDS_SINCE_VERSION
        if uses_ids is not self._uses_ids:
            self.reset()
            self._uses_ids = uses_ids
        changed = {partition: target for partition, target in wanted.items() if self._known.get(partition) != target}
        forgotten = [
            (partition, before.topic_id)
            for partition, before in self._known.items()
            if partition not in wanted or wanted[partition].topic_id != before.topic_id
        ]
        # Those that were served last go to the end, so that no partition starves.
        self._known = {partition: target for partition, target in self._known.items() if partition in wanted} | changed
        request.session_id = self._id
        request.session_epoch = self._epoch
        request.topics = _targets(changed)
        request.forgotten_topics_data = _forgotten(forgotten)

    def accept(self, response: FetchResponse) -> bool:
        """Takes note of an answer. False when the session is over; whatever partitions it has, are not to be used."""
        if response.error_code:
            self.reset()
            return False
        if response.session_id != self._id and self._epoch != _OPENING_EPOCH:
            self.reset()
            return False
        self._id = response.session_id
        if self._id == _NO_SESSION:
            # The broker has no room for a session: each request names everything.
            self._known = {}
            self._epoch = _OPENING_EPOCH
        else:
            self._epoch = 1 if self._epoch == _EPOCH_MAX else self._epoch + 1
        return True


def _targets(wanted: Mapping[TopicPartition, FetchTarget]) -> list[FetchRequest.FetchTopic]:
    topics: dict[tuple[str, bytes], list[FetchRequest.FetchPartition]] = {}
    for partition, target in wanted.items():
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


def _forgotten(forgotten: list[tuple[TopicPartition, bytes]]) -> list[FetchRequest.ForgottenTopic]:
    topics: dict[tuple[str, bytes], list[int]] = {}
    for partition, topic_id in forgotten:
        topics.setdefault((partition.topic, topic_id), []).append(partition.partition)
    return [
        FetchRequest.ForgottenTopic(topic=topic, topic_id=topic_id, partitions=numbers)
        for (topic, topic_id), numbers in topics.items()
    ]
