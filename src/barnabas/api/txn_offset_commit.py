"""TxnOffsetCommit, 0 to 4: a producer stores how far a group has read, as part of its transaction (KIP-98, KIP-447).

Answered when the offsets are replicated; they are seen when the transaction is committed. Before the first ones of a
transaction come into the group's partition its coordinator is asked whether the transaction has it (KIP-890). From
version 3 the member that commits is named, so that one of a former generation is refused. Partitions that do not exist
have an error of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Coroutine
from typing import Final

from barnabas.api.authorization import Decisions, may
from barnabas.api.context import RequestContext
from barnabas.api.partition_codes import partition_codes
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.coordinators.group.commits import Codes, PreparedCommit, commit_code
from barnabas.coordinators.group.coordinator import GroupCoordinator
from barnabas.coordinators.group.records import NO_EXPIRATION, CommittedOffset
from barnabas.kernel.host import Clock
from barnabas.kernel.steps import Steps, each_within
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.serving.transaction_verification import BatchVerification, Question
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from barnabas.wire.sentinels import NO_SEQUENCE
from barnabas.wire.topics import OFFSETS_TOPIC, TopicPartition

_ABORTABLE_SINCE: Final = 4
_LOADING_SINCE: Final = 2
"""Older producers may fail when they are told COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296)."""

Topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
Partition = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition


class TxnOffsetCommitHandler:
    """Sorts the partitions that exist from those that do not, and hands the former to the coordinator."""

    api_key = ApiKey.TXN_OFFSET_COMMIT
    versions = (0, 4)

    def __init__(
        self,
        group_coordinator: GroupCoordinator,
        metadata: MetadataCache,
        verification: BatchVerification,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._group_coordinator = group_coordinator
        self._metadata = metadata
        self._verification = verification
        self._clock = clock
        self._loop = loop

    def handle(
        self, context: RequestContext, request: TxnOffsetCommitRequest
    ) -> Steps[TxnOffsetCommitResponse | Coroutine[None, None, TxnOffsetCommitResponse]]:
        if not may(context, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id):
            failed = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return (yield from _response(context, request, {}, otherwise=failed))
        if not may(context, AclOperation.READ, ResourceType.GROUP, request.group_id):
            failed = ErrorCode.GROUP_AUTHORIZATION_FAILED
            return (yield from _response(context, request, {}, otherwise=failed))
        offsets, denied = yield from self._known(context, request)
        if not offsets:
            return (yield from _response(context, request, {}, denied))
        if not request.group_id:  # before the transaction is verified, as in Kafka
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        prepared = yield from self._group_coordinator.prepare_commit(
            request.group_id, offsets, (request.producer_id, request.producer_epoch)
        )
        return self._commit(context, request, prepared, denied)

    async def _commit(
        self, context: RequestContext, request: TxnOffsetCommitRequest, prepared: PreparedCommit, denied: set[str]
    ) -> TxnOffsetCommitResponse:
        producer = (request.producer_id, request.producer_epoch)
        partition = TopicPartition(OFFSETS_TOPIC, self._group_coordinator.partition_for(request.group_id))
        try:
            producers = self._verification.producers(partition)
        except KafkaError:  # the group has another coordinator, which the commit says
            codes = await self._committed(request, prepared)
            return await context.in_steps(_response(context, request, codes, denied))
        verification = producers.begin_verification(*producer, NO_SEQUENCE)
        try:
            if verification is not None:
                question = Question(request.transactional_id, *producer, (partition,))
                code = await self._verification.verify_one(question)
                if code is ErrorCode.TRANSACTION_ABORTABLE and context.api_version < _ABORTABLE_SINCE:
                    code = ErrorCode.INVALID_TXN_STATE
                if code is not ErrorCode.NONE:
                    codes = dict.fromkeys(prepared.offsets, commit_code(code))
                    return await context.in_steps(_response(context, request, codes, denied))
                verification.is_verified = True
            committed = self._committed(request, prepared)
        finally:
            if verification is not None:
                producers.end_verification(verification)
        return await context.in_steps(_response(context, request, await committed, denied))

    def _committed(self, request: TxnOffsetCommitRequest, prepared: PreparedCommit) -> asyncio.Future[Codes]:
        """Appends now, and is done when the outcomes are known. Raises KafkaError for the group."""
        done: asyncio.Future[Codes] = self._loop.create_future()

        def on_done(codes: Codes) -> None:
            if not done.done():
                done.set_result(codes)

        self._group_coordinator.commit_prepared(
            group_id=request.group_id,
            generation=request.generation_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            prepared=prepared,
            producer_id=request.producer_id,
            on_done=on_done,
        )
        return done

    def error_response(
        self, context: RequestContext, request: TxnOffsetCommitRequest, error: KafkaError
    ) -> Steps[TxnOffsetCommitResponse]:
        """Of the whole group; partitions that do not exist keep their own error."""
        known, denied = yield from self._known(context, request)
        codes = dict.fromkeys(known, ErrorCode.for_code(error.code))
        return (yield from _response(context, request, codes, denied))

    def _known(
        self, context: RequestContext, request: TxnOffsetCommitRequest
    ) -> Steps[tuple[dict[TopicPartition, CommittedOffset], set[str]]]:
        """The offsets of partitions that exist, and the topics that may not be read, of which nothing is told."""
        topics = self._metadata.image.topics
        now_ms = self._clock.time_ms()
        offsets: dict[TopicPartition, CommittedOffset] = {}
        denied: set[str] = set()
        may_read = Decisions(context, AclOperation.READ, ResourceType.TOPIC)

        def sort(topic: Topic, partition: Partition) -> None:
            if not may_read.allow(topic.name):
                denied.add(topic.name)
                return
            known = topics.get(topic.name)
            if known is not None and partition.partition_index in known.partitions:
                offsets[TopicPartition(topic.name, partition.partition_index)] = CommittedOffset(
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    partition.committed_metadata or "",
                    now_ms,
                    NO_EXPIRATION,
                )

        yield from each_within(request.topics, lambda topic: topic.partitions, sort, lambda *_: None)
        return offsets, denied


def _response(
    context: RequestContext,
    request: TxnOffsetCommitRequest,
    codes: Codes,
    denied: Container[str] = (),
    otherwise: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
) -> Steps[TxnOffsetCommitResponse]:
    may_be_loading = context.api_version >= _LOADING_SINCE

    def answer(number: int, code: ErrorCode) -> TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition:
        if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and not may_be_loading:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(partition_index=number, error_code=code)

    topics = yield from partition_codes(
        request.topics,
        lambda topic: topic.partitions,
        codes,
        answer,
        lambda name, found: TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(name=name, partitions=found),
        denied=denied,
        otherwise=otherwise,
    )
    return TxnOffsetCommitResponse(topics=topics)
