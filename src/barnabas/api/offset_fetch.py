"""OffsetFetch, 0 to 9: how far groups have read; from version 8 of several groups at once.

From version 2 null topics ask for all partitions of a group, from 7 a client may refuse offsets that are changing
(UNSTABLE_OFFSET_COMMIT). Version 0 reads ZooKeeper, where version 0 of OffsetCommit writes. Member id and epoch of
version 9 belong to groups of the consumer protocol, which are none here. In versions 0 and 1 an error of the group is
that of every partition asked for.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Final

from barnabas.api.context import RequestContext
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.coordination.layout.topics import NO_LEADER_EPOCH, TopicPartition
from barnabas.coordinators.group.coordinator import FetchedOffset, GroupCoordinator
from barnabas.coordinators.group.records import CommittedOffset
from barnabas.coordinators.group.zookeeper_offsets import ZookeeperOffsets
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import OffsetFetchRequest, OffsetFetchResponse
from barnabas.wire.records import NO_TIMESTAMP

_COORDINATOR_SINCE: Final = 1
_GROUP_ERROR_SINCE: Final = 2
_BATCHED_SINCE: Final = 8
_NO_OFFSET: Final = -1

_RequestTopics = Sequence[OffsetFetchRequest.OffsetFetchRequestTopic | OffsetFetchRequest.OffsetFetchRequestTopics]


class OffsetFetchHandler:
    """Asks the coordinator, group by group."""

    api_key = ApiKey.OFFSET_FETCH
    versions = (0, 9)

    def __init__(
        self, group_coordinator: GroupCoordinator, metadata: MetadataCache, zookeeper_offsets: ZookeeperOffsets
    ) -> None:
        self._group_coordinator = group_coordinator
        self._metadata = metadata
        self._zookeeper_offsets = zookeeper_offsets

    def handle(
        self, context: RequestContext, request: OffsetFetchRequest
    ) -> OffsetFetchResponse | Coroutine[None, None, OffsetFetchResponse]:
        if context.api_version >= _BATCHED_SINCE:
            return OffsetFetchResponse(groups=[self._group(request, group) for group in request.groups])
        if context.api_version < _COORDINATOR_SINCE:
            return self._fetch_from_zookeeper(request)
        fetched = self._group_coordinator.fetch_offsets(
            request.group_id, _partitions(request.topics), require_stable=request.require_stable
        )
        return _single(fetched)

    def error_response(
        self, context: RequestContext, request: OffsetFetchRequest, error: KafkaError
    ) -> OffsetFetchResponse:
        if context.api_version >= _BATCHED_SINCE:
            return OffsetFetchResponse(
                groups=[
                    OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
                    for group in request.groups
                ]
            )
        if context.api_version >= _GROUP_ERROR_SINCE:
            return OffsetFetchResponse(error_code=error.code)
        return _single([FetchedOffset(partition, None, error.code) for partition in _partitions(request.topics) or ()])

    def _group(
        self, request: OffsetFetchRequest, group: OffsetFetchRequest.OffsetFetchRequestGroup
    ) -> OffsetFetchResponse.OffsetFetchResponseGroup:
        try:
            fetched = self._group_coordinator.fetch_offsets(
                group.group_id, _partitions(group.topics), require_stable=request.require_stable
            )
        except KafkaError as error:
            return OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
        return OffsetFetchResponse.OffsetFetchResponseGroup(
            group_id=group.group_id,
            topics=[
                OffsetFetchResponse.OffsetFetchResponseTopics(
                    name=name,
                    partitions=[OffsetFetchResponse.OffsetFetchResponsePartitions(**_fields(each)) for each in offsets],
                )
                for name, offsets in _by_topic(fetched).items()
            ],
        )

    async def _fetch_from_zookeeper(self, request: OffsetFetchRequest) -> OffsetFetchResponse:
        """Partitions that do not exist, or have no offset there, are answered UNKNOWN_TOPIC_OR_PARTITION."""
        image = self._metadata.image
        partitions = _partitions(request.topics) or []
        known = [partition for partition in partitions if image.partition(partition) is not None]
        found = await self._zookeeper_offsets.fetch(request.group_id, known)
        return _single(
            [_from_zookeeper(each, found.get(each, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)) for each in partitions]
        )


def _from_zookeeper(partition: TopicPartition, found: int | ErrorCode) -> FetchedOffset:
    if isinstance(found, ErrorCode):
        return FetchedOffset(partition, None, found)
    return FetchedOffset(partition, CommittedOffset(found, NO_LEADER_EPOCH, "", NO_TIMESTAMP))


def _partitions(topics: _RequestTopics | None) -> list[TopicPartition] | None:
    if topics is None:
        return None
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partition_indexes]


def _by_topic(fetched: Iterable[FetchedOffset]) -> dict[str, list[FetchedOffset]]:
    topics: dict[str, list[FetchedOffset]] = {}
    for each in fetched:
        topics.setdefault(each.partition.topic, []).append(each)
    return topics


def _fields(fetched: FetchedOffset) -> dict[str, Any]:
    """The fields that both forms of the response have for a partition."""
    committed = fetched.committed
    return {
        "partition_index": fetched.partition.partition,
        "committed_offset": _NO_OFFSET if committed is None else committed.offset,
        "committed_leader_epoch": NO_LEADER_EPOCH if committed is None else committed.leader_epoch,
        "metadata": "" if committed is None else committed.metadata,
        "error_code": fetched.error,
    }


def _single(fetched: Iterable[FetchedOffset]) -> OffsetFetchResponse:
    """The answer about one group, before version 8."""
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponse.OffsetFetchResponseTopic(
                name=name,
                partitions=[OffsetFetchResponse.OffsetFetchResponsePartition(**_fields(each)) for each in offsets],
            )
            for name, offsets in _by_topic(fetched).items()
        ]
    )
