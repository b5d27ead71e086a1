"""OffsetFetch, 0 to 9: how far groups have read; from version 8 of several groups at once.

From version 2 null topics ask for all partitions of a group, from 7 a client may refuse offsets that are changing
(UNSTABLE_OFFSET_COMMIT). Version 0 reads ZooKeeper, where version 0 of OffsetCommit writes. From 9 members of groups of
the consumer protocol say who they are, and in which epoch (STALE_MEMBER_EPOCH). In versions 0 and 1 an error of the
group is that of every partition asked for.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from itertools import islice
from typing import Any, Final

from barnabas.api.authorization import Decisions, may
from barnabas.api.context import RequestContext
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.coordinators.group.coordinator import FetchedOffset, GroupCoordinator
from barnabas.coordinators.group.records import CommittedOffset
from barnabas.coordinators.group.zookeeper_offsets import ZookeeperOffsets
from barnabas.kernel.steps import STEP_ELEMENTS, Steps, each, each_within
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import OffsetFetchRequest, OffsetFetchResponse
from barnabas.wire.sentinels import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP
from barnabas.wire.topics import TopicPartition

_COORDINATOR_SINCE: Final = 1
_GROUP_ERROR_SINCE: Final = 2
_BATCHED_SINCE: Final = 8
_NAMED_PER_STEP: Final = 4096

Group = OffsetFetchResponse.OffsetFetchResponseGroup

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
    ) -> Steps[OffsetFetchResponse | Coroutine[None, None, OffsetFetchResponse]]:
        if context.api_version >= _BATCHED_SINCE:
            groups = []
            for group in request.groups:
                groups.append((yield from self._group(context, request, group)))
                if len(groups) % STEP_ELEMENTS == 0:
                    yield
            return OffsetFetchResponse(groups=groups)
        if context.api_version < _COORDINATOR_SINCE:
            return self._fetch_from_zookeeper(context, request)
        stable = request.require_stable
        _check_group(context, request.group_id)
        fetched = yield from self._fetch(context, request.group_id, request.topics, require_stable=stable)
        return (yield from _single(fetched))

    def error_response(
        self, context: RequestContext, request: OffsetFetchRequest, error: KafkaError
    ) -> Steps[OffsetFetchResponse]:
        if context.api_version >= _BATCHED_SINCE:

            def failed(group: OffsetFetchRequest.OffsetFetchRequestGroup) -> Group:
                return Group(group_id=group.group_id, error_code=error.code)

            return OffsetFetchResponse(groups=(yield from each(failed, request.groups)))
        if context.api_version >= _GROUP_ERROR_SINCE:
            return OffsetFetchResponse(error_code=error.code)
        partitions = yield from _partitions(request.topics)
        return (yield from _single([FetchedOffset(partition, None, error.code) for partition in partitions or ()]))

    def _group(
        self, context: RequestContext, request: OffsetFetchRequest, group: OffsetFetchRequest.OffsetFetchRequestGroup
    ) -> Steps[OffsetFetchResponse.OffsetFetchResponseGroup]:
        try:
            stable = request.require_stable
            _check_group(context, group.group_id)
            self._group_coordinator.check_fetch(group.group_id, group.member_id, group.member_epoch)
            fetched = yield from self._fetch(context, group.group_id, group.topics, require_stable=stable)
        except KafkaError as error:
            return Group(group_id=group.group_id, error_code=error.code)
        topics = yield from each_within(
            (yield from _by_topic(fetched)).items(),
            lambda topic: topic[1],
            lambda _, offset: OffsetFetchResponse.OffsetFetchResponsePartitions(**_fields(offset)),
            lambda topic, found: OffsetFetchResponse.OffsetFetchResponseTopics(name=topic[0], partitions=found),
        )
        return Group(group_id=group.group_id, topics=topics)

    def _fetch(
        self, context: RequestContext, group_id: str, topics: _RequestTopics | None, *, require_stable: bool
    ) -> Steps[list[FetchedOffset]]:
        """Raises `KafkaError` for the group. The offsets are those of one moment, unless they are very many."""
        partitions = yield from _partitions(topics)
        fetch = self._group_coordinator.fetch_offsets
        asks_for_all = partitions is None
        if partitions is None:
            partitions = self._group_coordinator.committed_partitions(group_id)
        partitions, denied = yield from _divided(context, partitions, quietly=asks_for_all)
        found: list[FetchedOffset] = []
        for start in range(0, max(len(partitions), 1), STEP_ELEMENTS):
            if start:
                yield
            found += fetch(group_id, partitions[start : start + STEP_ELEMENTS], require_stable=require_stable)
        if asks_for_all:  # what may not be described is left out
            return [offset for offset in found if offset.committed is not None or offset.error]
        return found + denied

    async def _fetch_from_zookeeper(self, context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
        """Partitions that do not exist, or have no offset there, are answered UNKNOWN_TOPIC_OR_PARTITION."""
        _check_group(context, request.group_id)
        image = self._metadata.image
        named = await context.in_steps(_partitions(request.topics)) or []
        partitions, denied = await context.in_steps(_divided(context, named))
        found: dict[TopicPartition, int | ErrorCode] = {}
        for start in range(0, len(partitions), STEP_ELEMENTS):
            some = partitions[start : start + STEP_ELEMENTS]
            known = [partition for partition in some if image.partition(partition) is not None]
            if known:
                found |= await self._zookeeper_offsets.fetch(request.group_id, known)
            await context.turn()
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        offsets = each(lambda partition: _from_zookeeper(partition, found.get(partition, unknown)), partitions)
        return await context.in_steps(_single(await context.in_steps(offsets) + denied))


def _check_group(context: RequestContext, group_id: str) -> None:
    """Raises `KafkaError` where the group may not be described."""
    if not may(context, AclOperation.DESCRIBE, ResourceType.GROUP, group_id):
        raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)


def _divided(
    context: RequestContext, partitions: list[TopicPartition], *, quietly: bool = False
) -> Steps[tuple[list[TopicPartition], list[FetchedOffset]]]:
    """Those of topics that may be described, and what is answered for the others."""
    may_describe = Decisions(context, AclOperation.DESCRIBE, ResourceType.TOPIC, quietly=quietly)
    if may_describe.allow_all:
        return partitions, []
    allowed: list[TopicPartition] = []
    denied: list[FetchedOffset] = []

    def divide(partition: TopicPartition) -> None:
        if may_describe.allow(partition.topic):
            allowed.append(partition)
        else:
            denied.append(FetchedOffset(partition, None, ErrorCode.TOPIC_AUTHORIZATION_FAILED))

    yield from each(divide, partitions)
    return allowed, denied


def _from_zookeeper(partition: TopicPartition, found: int | ErrorCode) -> FetchedOffset:
    if isinstance(found, ErrorCode):
        return FetchedOffset(partition, None, found)
    return FetchedOffset(partition, CommittedOffset(found, NO_EPOCH, "", NO_TIMESTAMP))


def _partitions(topics: _RequestTopics | None) -> Steps[list[TopicPartition] | None]:
    """Each once, however often it is named; None for all."""
    if topics is None:
        return None
    named = (TopicPartition(topic.name, index) for topic in topics for index in topic.partition_indexes)
    partitions: dict[TopicPartition, None] = {}
    while some := list(islice(named, _NAMED_PER_STEP)):
        partitions.update(dict.fromkeys(some))
        if len(some) == _NAMED_PER_STEP:
            yield
    return list(partitions)


def _by_topic(fetched: Sequence[FetchedOffset]) -> Steps[dict[str, list[FetchedOffset]]]:
    topics: dict[str, list[FetchedOffset]] = {}
    for position, offset in enumerate(fetched):
        topics.setdefault(offset.partition.topic, []).append(offset)
        if position % _NAMED_PER_STEP == _NAMED_PER_STEP - 1:
            yield
    return topics


def _fields(fetched: FetchedOffset) -> dict[str, Any]:
    """The fields that both forms of the response have for a partition."""
    committed = fetched.committed
    return {
        "partition_index": fetched.partition.partition,
        "committed_offset": NO_OFFSET if committed is None else committed.offset,
        "committed_leader_epoch": NO_EPOCH if committed is None else committed.leader_epoch,
        "metadata": "" if committed is None else committed.metadata,
        "error_code": fetched.error,
    }


def _single(fetched: Sequence[FetchedOffset]) -> Steps[OffsetFetchResponse]:
    """The answer about one group, before version 8."""
    topics = yield from each_within(
        (yield from _by_topic(fetched)).items(),
        lambda topic: topic[1],
        lambda _, offset: OffsetFetchResponse.OffsetFetchResponsePartition(**_fields(offset)),
        lambda topic, found: OffsetFetchResponse.OffsetFetchResponseTopic(name=topic[0], partitions=found),
    )
    return OffsetFetchResponse(topics=topics)
