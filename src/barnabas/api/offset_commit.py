"""OffsetCommit, 0 to 9: a group stores how far it has read.

Answered when the offsets are committed to `__consumer_offsets`. Version 0 keeps them in ZooKeeper, as it always has.
Version 1 may bring a time of the commit, versions 2 to 4 a retention. Partitions that do not exist have an error of
their own. Members of groups of the consumer protocol commit by version 9, with their epoch (STALE_MEMBER_EPOCH).
Nothing is left out.
"""

from __future__ import annotations

from collections.abc import Container, Coroutine
from typing import Final

from barnabas.api.authorization import Decisions, may
from barnabas.api.context import RequestContext
from barnabas.api.partition_codes import partition_codes
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.coordinators.group.commits import Codes
from barnabas.coordinators.group.coordinator import GroupCoordinator
from barnabas.coordinators.group.records import NO_EXPIRATION, CommittedOffset, utf16_length
from barnabas.coordinators.group.zookeeper_offsets import ZookeeperOffsets
from barnabas.kernel.host import Clock
from barnabas.kernel.steps import Steps, each_within
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import OffsetCommitRequest, OffsetCommitResponse
from barnabas.wire.sentinels import NO_TIMESTAMP
from barnabas.wire.topics import TopicPartition

_NO_RETENTION: Final = -1
_COORDINATOR_SINCE: Final = 1


Topic = OffsetCommitRequest.OffsetCommitRequestTopic
Partition = OffsetCommitRequest.OffsetCommitRequestPartition


class OffsetCommitHandler:
    """Sorts the partitions that exist from those that do not, and hands the former to the coordinator."""

    api_key = ApiKey.OFFSET_COMMIT
    versions = (0, 9)

    def __init__(
        self,
        group_coordinator: GroupCoordinator,
        metadata: MetadataCache,
        zookeeper_offsets: ZookeeperOffsets,
        clock: Clock,
    ) -> None:
        self._group_coordinator = group_coordinator
        self._metadata = metadata
        self._zookeeper_offsets = zookeeper_offsets
        self._clock = clock

    def handle(
        self, context: RequestContext, request: OffsetCommitRequest
    ) -> Steps[OffsetCommitResponse | Coroutine[None, None, OffsetCommitResponse] | None]:
        if not may(context, AclOperation.READ, ResourceType.GROUP, request.group_id):
            return (yield from _response(request, {}, otherwise=ErrorCode.GROUP_AUTHORIZATION_FAILED))
        self._group_coordinator.check_static_name(request.group_instance_id)
        offsets, denied = yield from self._known(context, request)
        if not offsets:
            return (yield from _response(request, {}, denied))
        if context.api_version < _COORDINATOR_SINCE:
            return self._commit_to_zookeeper(context, request, offsets, denied)
        prepared = yield from self._group_coordinator.prepare_commit(request.group_id, offsets)
        responder = context.park()
        self._group_coordinator.commit_prepared(
            group_id=request.group_id,
            generation=request.generation_id_or_member_epoch,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            prepared=prepared,
            version=context.api_version,
            on_done=lambda codes: responder.respond(_response(request, codes, denied)),
        )
        return None

    def error_response(
        self, context: RequestContext, request: OffsetCommitRequest, error: KafkaError
    ) -> Steps[OffsetCommitResponse]:
        """Of the whole group; partitions that do not exist keep their own error."""
        known, denied = yield from self._known(context, request)
        return (yield from _response(request, dict.fromkeys(known, error.code), denied))

    def _known(
        self, context: RequestContext, request: OffsetCommitRequest
    ) -> Steps[tuple[dict[TopicPartition, CommittedOffset], set[str]]]:
        """The offsets of partitions that exist, and the topics that may not be read, of which nothing is told."""
        topics = self._metadata.image.topics
        now_ms = self._clock.time_ms()
        retention_ms = request.retention_time_ms
        expire_timestamp_ms = NO_EXPIRATION if retention_ms == _NO_RETENTION else now_ms + retention_ms
        offsets: dict[TopicPartition, CommittedOffset] = {}
        denied: set[str] = set()
        may_read = Decisions(context, AclOperation.READ, ResourceType.TOPIC)

        def sort(topic: Topic, partition: Partition) -> None:
            if not may_read.allow(topic.name):
                denied.add(topic.name)
                return
            known = topics.get(topic.name)
            if known is not None and partition.partition_index in known.partitions:
                timestamp_ms = partition.commit_timestamp
                offsets[TopicPartition(topic.name, partition.partition_index)] = CommittedOffset(
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    partition.committed_metadata or "",
                    now_ms if timestamp_ms == NO_TIMESTAMP else timestamp_ms,
                    expire_timestamp_ms,
                )

        yield from each_within(request.topics, lambda topic: topic.partitions, sort, lambda *_: None)
        return offsets, denied

    async def _commit_to_zookeeper(
        self,
        context: RequestContext,
        request: OffsetCommitRequest,
        offsets: dict[TopicPartition, CommittedOffset],
        denied: set[str],
    ) -> OffsetCommitResponse:
        length_max = self._group_coordinator.offset_metadata_max
        too_large = {each for each, committed in offsets.items() if utf16_length(committed.metadata) > length_max}
        codes = await self._zookeeper_offsets.commit(
            request.group_id, {each: offset.offset for each, offset in offsets.items() if each not in too_large}
        )
        codes |= dict.fromkeys(too_large, ErrorCode.OFFSET_METADATA_TOO_LARGE)
        return await context.in_steps(_response(request, codes, denied))


def _response(
    request: OffsetCommitRequest,
    codes: Codes,
    denied: Container[str] = (),
    otherwise: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
) -> Steps[OffsetCommitResponse]:
    topics = yield from partition_codes(
        request.topics,
        lambda topic: topic.partitions,
        codes,
        lambda number, code: OffsetCommitResponse.OffsetCommitResponsePartition(
            partition_index=number, error_code=code
        ),
        lambda name, partitions: OffsetCommitResponse.OffsetCommitResponseTopic(name=name, partitions=partitions),
        denied=denied,
        otherwise=otherwise,
    )
    return OffsetCommitResponse(topics=topics)
