"""ListOffsets, 0 to 9: offsets by timestamp, and the ends of logs, for clients, followers (all of the log) and tools.

Of a tiered partition a time is looked up in remote storage first.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from barnabas.api.authorization import Decisions
from barnabas.api.context import RequestContext
from barnabas.api.fetch_frames import ISOLATION_LEVELS
from barnabas.kernel.host import Clock
from barnabas.kernel.steps import STEP_ELEMENTS, Steps, each_within
from barnabas.log.partition.read_plans import ReadIsolation
from barnabas.log.partition.timestamp_lookup import ListedOffset
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.serving.list_offsets import find_offset, latest_offset, offsets_before
from barnabas.serving.ports import Replicas
from barnabas.serving.remote_fetch import RemoteReader
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import ListOffsetsRequest, ListOffsetsResponse
from barnabas.wire.sentinels import (
    CONSUMER_ID,
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
)
from barnabas.wire.topics import TopicPartition

_TOOL: Final = -2
"""Reads from followers too."""
_READ_COMMITTED: Final = 1
_LEADER_EPOCH_SINCE: Final = 4
_OFFSET_NOT_AVAILABLE_SINCE: Final = 5
_SINCE: Final = {
    EARLIEST_TIMESTAMP: 1,
    LATEST_TIMESTAMP: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
}
"""The version that brought each special timestamp."""

_NAMED_PER_STEP: Final = 2048

_Topic = ListOffsetsRequest.ListOffsetsTopic
_TopicListed = ListOffsetsResponse.ListOffsetsTopicResponse
_Asked = ListOffsetsRequest.ListOffsetsPartition
_Listed = ListOffsetsResponse.ListOffsetsPartitionResponse


class ListOffsetsHandler:
    """Answers at once if only ends of logs are asked for; looks up anything else in a coroutine."""

    api_key = ApiKey.LIST_OFFSETS
    versions = (0, 9)

    def __init__(
        self,
        replicas: Replicas,
        clock: Clock,
        logger: logging.Logger,
        remote: RemoteReader | None = None,
    ) -> None:
        """`remote` is there where the broker has remote storage."""
        self._remote = remote
        self._replicas = replicas
        self._clock = clock
        self._logger = logger

    def handle(
        self, context: RequestContext, request: ListOffsetsRequest
    ) -> Steps[ListOffsetsResponse | Awaitable[ListOffsetsResponse]]:
        if request.isolation_level not in ISOLATION_LEVELS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"There is no isolation level {request.isolation_level}.")
        may_describe = Decisions(context, AclOperation.DESCRIBE, ResourceType.TOPIC)
        if context.api_version == 0:

            def listed_old(topic: _Topic, asked: _Asked) -> _Listed:
                if not may_describe.allow(topic.name):
                    return _failed(asked, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                return self._list_old(topic.name, asked, request)

            return (yield from _response(request, listed_old))
        repeated, are_latest = yield from _named(request)
        if not are_latest:
            return self._look_up(context, request, repeated, may_describe)

        def latest(topic: _Topic, asked: _Asked) -> _Listed:
            if not may_describe.allow(topic.name):
                return _failed(asked, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            topic_partition = TopicPartition(topic.name, asked.partition_index)
            return self._latest(context, request, topic_partition, asked, repeated)

        return (yield from _response(request, latest))

    def error_response(
        self, _context: RequestContext, request: ListOffsetsRequest, error: KafkaError
    ) -> Steps[ListOffsetsResponse]:
        return _response(request, lambda _, asked: _failed(asked, error.code))

    async def _look_up(
        self,
        context: RequestContext,
        request: ListOffsetsRequest,
        repeated: frozenset[TopicPartition],
        may_describe: Decisions,
    ) -> ListOffsetsResponse:
        response = ListOffsetsResponse()
        left = STEP_ELEMENTS
        for topic in request.topics:
            listed = []
            for asked in topic.partitions:
                if may_describe.allow(topic.name):
                    topic_partition = TopicPartition(topic.name, asked.partition_index)
                    listed.append(await self._find(context, request, topic_partition, asked, repeated))
                else:
                    listed.append(_failed(asked, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
                left -= 1
                if not left:
                    await context.turn()
                    left = STEP_ELEMENTS
            response.topics.append(_TopicListed(name=topic.name, partitions=listed))
        return response

    def _latest(
        self,
        context: RequestContext,
        request: ListOffsetsRequest,
        topic_partition: TopicPartition,
        asked: _Asked,
        repeated: frozenset[TopicPartition],
    ) -> _Listed:
        if topic_partition in repeated:
            return _failed(asked, ErrorCode.INVALID_REQUEST)
        try:
            found = latest_offset(
                self._replicas.get_partition(topic_partition),
                _isolation(request),
                asked.current_leader_epoch,
                leader_only=request.replica_id != _TOOL,
            )
        except Exception as error:  # noqa: BLE001 - sorted there
            return self._refused(context.api_version, topic_partition, asked, error)
        return _listed(context.api_version, asked, found)

    async def _find(
        self,
        context: RequestContext,
        request: ListOffsetsRequest,
        topic_partition: TopicPartition,
        asked: _Asked,
        repeated: frozenset[TopicPartition],
    ) -> _Listed:
        version = context.api_version
        if topic_partition in repeated:
            return _failed(asked, ErrorCode.INVALID_REQUEST)
        if asked.timestamp < 0 and version < _SINCE.get(asked.timestamp, version + 1):
            return _failed(asked, ErrorCode.UNSUPPORTED_VERSION)
        try:
            found = await find_offset(
                self._replicas.get_partition(topic_partition),
                asked.timestamp,
                _isolation(request),
                asked.current_leader_epoch,
                leader_only=request.replica_id != _TOOL,
                remote=self._remote,
            )
        except Exception as error:  # noqa: BLE001 - sorted there
            return self._refused(version, topic_partition, asked, error)
        return _failed(asked, ErrorCode.NONE) if found is None else _listed(version, asked, found)

    def _list_old(self, topic: str, asked: _Asked, request: ListOffsetsRequest) -> _Listed:
        if asked.timestamp < EARLIEST_TIMESTAMP:
            return _failed(asked, ErrorCode.UNSUPPORTED_VERSION)
        topic_partition = TopicPartition(topic, asked.partition_index)
        try:
            offsets = offsets_before(
                self._replicas.get_partition(topic_partition),
                self._clock.time_ms(),
                asked.timestamp,
                asked.max_num_offsets,
                is_client=request.replica_id == CONSUMER_ID,
                leader_only=request.replica_id != _TOOL,
            )
        except Exception as error:  # noqa: BLE001 - sorted there
            return self._refused(0, topic_partition, asked, error)
        return _Listed(partition_index=asked.partition_index, error_code=ErrorCode.NONE, old_style_offsets=offsets)

    def _refused(self, version: int, topic_partition: TopicPartition, asked: _Asked, error: Exception) -> _Listed:
        if not isinstance(error, KafkaError):
            self._logger.error("Listing offsets of %s failed", topic_partition, exc_info=error)
            return _failed(asked, ErrorCode.UNKNOWN_SERVER_ERROR)
        if error.code == ErrorCode.OFFSET_NOT_AVAILABLE and version < _OFFSET_NOT_AVAILABLE_SINCE:
            return _failed(asked, ErrorCode.LEADER_NOT_AVAILABLE)
        return _failed(asked, error.code)


def _isolation(request: ListOffsetsRequest) -> ReadIsolation:
    if request.replica_id != CONSUMER_ID:
        return ReadIsolation.LOG_END
    return ReadIsolation.COMMITTED if request.isolation_level == _READ_COMMITTED else ReadIsolation.HIGH_WATERMARK


def _named(request: ListOffsetsRequest) -> Steps[tuple[frozenset[TopicPartition], bool]]:
    """The partitions that the request names more than once, and whether it asks for ends of logs alone."""
    named: dict[str, set[int]] = {}
    repeated: set[TopicPartition] = set()
    are_latest = True
    left = _NAMED_PER_STEP
    for topic in request.topics:
        numbers = named.setdefault(topic.name, set())
        for asked in topic.partitions:
            number = asked.partition_index
            are_latest = are_latest and asked.timestamp == LATEST_TIMESTAMP
            if number in numbers:
                repeated.add(TopicPartition(topic.name, number))
            numbers.add(number)
            left -= 1
            if not left:
                yield
                left = _NAMED_PER_STEP
    return frozenset(repeated), are_latest


def _listed(version: int, asked: _Asked, found: ListedOffset) -> _Listed:
    listed = _Listed(
        partition_index=asked.partition_index,
        error_code=ErrorCode.NONE,
        timestamp=found.timestamp_ms,
        offset=found.offset,
    )
    if version >= _LEADER_EPOCH_SINCE:
        listed.leader_epoch = found.leader_epoch
    return listed


def _failed(asked: _Asked, code: ErrorCode) -> _Listed:
    return _Listed(partition_index=asked.partition_index, error_code=code)


def _response(request: ListOffsetsRequest, list_one: Callable[[_Topic, _Asked], _Listed]) -> Steps[ListOffsetsResponse]:
    topics = yield from each_within(
        request.topics,
        lambda topic: topic.partitions,
        list_one,
        lambda topic, listed: _TopicListed(name=topic.name, partitions=listed),
    )
    return ListOffsetsResponse(topics=topics)
