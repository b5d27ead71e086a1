"""Metadata, 0 to 12: brokers, topics, leaders, from this broker's cache of them; any broker answers.

Clients are told the addresses of the listener that they came in by. Missing topics are made, where the client and
`auto.create.topics.enable` allow it. A broker that no controller has told of the cluster yet has the client wait for
that a while, where Kafka denies that its topics exist. Of topics that may not be described nothing is told, and they
are not among all topics.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from barnabas.api.administration.ports import TopicCreation
from barnabas.api.authorization import Decisions, may_with_cluster
from barnabas.api.authorized_operations import authorized_operations, cluster_operations
from barnabas.api.context import RequestContext
from barnabas.cluster.image import MetadataImage
from barnabas.cluster.metadata_responses import TopicResponses, broker_responses, is_internal
from barnabas.controller.topic_assignment import check_topic_name
from barnabas.kernel.steps import STEP_ELEMENTS, Steps, each
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.serving.ports import MetadataSource
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import MetadataRequest, MetadataResponse
from barnabas.wire.primitives import ZERO_UUID
from barnabas.wire.sentinels import NO_BROKER

_NULL_TOPICS_SINCE: Final = 1
_LISTENER_NOT_FOUND_SINCE: Final = 6
_OPERATIONS_SINCE: Final = 8
_CLUSTER_OPERATIONS_UNTIL: Final = 10
_TOPIC_IDS_SINCE: Final = 12
"""The fields are there since version 10, and were of no use until then."""
_TOLD_PER_STEP: Final = 4096
_DECIDED_PER_STEP: Final = 128
"""Topics, of which it is asked of every operation."""
_DESCRIBE: Final = AclOperation.DESCRIBE
_TOPIC: Final = ResourceType.TOPIC
TOLD_SECONDS_MAX: Final = 10.0
"""How long a client waits for a broker that was not told of the cluster; then it is answered what there is."""


class MetadataHandler:
    """Answers from one image of the cluster, taken once per request."""

    api_key = ApiKey.METADATA
    versions = (0, 12)

    def __init__(
        self,
        metadata: MetadataSource,
        cluster_id: str,
        auto_creation: TopicCreation,
        auto_creation_enabled: Callable[[], bool],
        told: asyncio.Future[None],
    ) -> None:
        """`auto_creation_enabled` is asked for each request (`auto.create.topics.enable`); `told` is done when a
        controller has told this broker of the cluster.
        """
        self._metadata = metadata
        self._cluster_id = cluster_id
        self._auto_creation = auto_creation
        self._auto_creation_enabled = auto_creation_enabled
        self._told = told

    def handle(
        self, context: RequestContext, request: MetadataRequest
    ) -> Steps[MetadataResponse | Awaitable[MetadataResponse]] | Awaitable[MetadataResponse]:
        if self._told.done():
            return self._answer(context, request)
        # It waits for the controller, and not for work of this broker: that would hold the controller back, too.
        context.park()
        return self._answer_when_told(context, request)

    async def _answer_when_told(self, context: RequestContext, request: MetadataRequest) -> MetadataResponse:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TOLD_SECONDS_MAX):
                await asyncio.shield(self._told)
        answer = await context.in_steps(self._answer(context, request))
        return await answer if isinstance(answer, Awaitable) else answer

    def _answer(
        self, context: RequestContext, request: MetadataRequest
    ) -> Steps[MetadataResponse | Awaitable[MetadataResponse]]:
        version = context.api_version
        image = self._metadata.image
        all_topics = request.topics is None or (version < _NULL_TOPICS_SINCE and not request.topics)
        unknown_ids: list[bytes] = []
        by_id = False
        if all_topics:
            names: list[str] = list(image.topics)
        else:
            names, unknown_ids, by_id = yield from _asked(image, request, version)
        names, hidden = yield from _divided(names, Decisions(context, _DESCRIBE, _TOPIC, quietly=all_topics))
        denied: list[MetadataResponse.MetadataResponseTopic] = []
        if not all_topics:
            denied = yield from each(lambda name: _hidden_topic(image, name, by_id=by_id), hidden)
        topics: list[MetadataResponse.MetadataResponseTopic] = []
        if unknown_ids:
            topics = yield from each(lambda topic_id: _topic(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id), unknown_ids)
        missing: list[str] = []
        responses = TopicResponses(
            image,
            context.listener_name,
            is_version_0=version == 0,
            names_missing_listener=version >= _LISTENER_NOT_FOUND_SINCE,
        )
        left = STEP_ELEMENTS
        for name in names:
            known = image.topics.get(name)
            if known is None:
                missing.append(name)
                left -= 1
            else:
                topics.append((yield from responses.topic(name, known)))
                left -= 1 + len(known.partitions)
            if left <= 0:
                yield
                left = STEP_ELEMENTS
        if missing and not all_topics and request.allow_auto_topic_creation and self._auto_creation_enabled():
            if not may_with_cluster(context, AclOperation.CREATE, quietly=True):
                missing, refused = yield from _divided(missing, Decisions(context, AclOperation.CREATE, _TOPIC))
                failed = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                denied = (yield from each(lambda name: _topic(failed, name), refused)) + denied
            if missing:
                return self._create_and_respond(context, request, image, topics, missing, denied)
        if missing:
            topics += yield from each(_missing_topic, missing)
        return (yield from self._response(context, request, image, topics, denied))

    def error_response(
        self, context: RequestContext, request: MetadataRequest, error: KafkaError
    ) -> Steps[MetadataResponse]:
        has_null_names = context.api_version >= _TOPIC_IDS_SINCE

        def failed(topic: MetadataRequest.MetadataRequestTopic) -> MetadataResponse.MetadataResponseTopic:
            return _topic(error.code, topic.name if has_null_names else topic.name or "", topic.topic_id)

        return MetadataResponse(topics=(yield from each(failed, request.topics or ())))

    async def _create_and_respond(
        self,
        context: RequestContext,
        request: MetadataRequest,
        image: MetadataImage,
        topics: list[MetadataResponse.MetadataResponseTopic],
        missing: list[str],
        denied: list[MetadataResponse.MetadataResponseTopic],
    ) -> MetadataResponse:
        codes = await self._auto_creation.create_topics(missing)

        def answered() -> Steps[MetadataResponse]:
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            made = yield from each(lambda name: _topic(codes.get(name, unknown), name), missing)
            return (yield from self._response(context, request, image, topics + made, denied))

        return await context.in_steps(answered())

    def _response(
        self,
        context: RequestContext,
        request: MetadataRequest,
        image: MetadataImage,
        topics: list[MetadataResponse.MetadataResponseTopic],
        denied: list[MetadataResponse.MetadataResponseTopic],
    ) -> Steps[MetadataResponse]:
        """`denied` are topics that may not be described or made."""
        version = context.api_version
        controller_id = image.controller_id
        response = MetadataResponse(
            brokers=broker_responses(image, context.listener_name),
            cluster_id=self._cluster_id,
            controller_id=NO_BROKER if controller_id is None else controller_id,
            topics=topics,
        )
        if version >= _OPERATIONS_SINCE and request.include_topic_authorized_operations:
            per_step = _TOLD_PER_STEP if context.authorizer is None else _DECIDED_PER_STEP
            for position, topic in enumerate(topics):
                if topic.error_code != ErrorCode.UNKNOWN_TOPIC_ID:
                    topic.topic_authorized_operations = authorized_operations(context, _TOPIC, topic.name or "")
                if position % per_step == per_step - 1:
                    yield
        if _OPERATIONS_SINCE <= version <= _CLUSTER_OPERATIONS_UNTIL and request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = cluster_operations(context)
        response.topics += denied
        return response


def _divided(names: list[str], decisions: Decisions) -> Steps[tuple[list[str], list[str]]]:
    """Those that are allowed, and the others."""
    if decisions.allow_all:
        return names, []
    allowed: list[str] = []
    others: list[str] = []
    yield from each(lambda name: (allowed if decisions.allow(name) else others).append(name), names)
    return allowed, others


def _hidden_topic(image: MetadataImage, name: str, *, by_id: bool) -> MetadataResponse.MetadataResponseTopic:
    """What is told of a topic that may not be described: nothing but what was asked by, existing or not."""
    known = image.topics.get(name)
    topic_id = known.topic_id if by_id and known is not None else ZERO_UUID
    return MetadataResponse.MetadataResponseTopic(
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        name=None if by_id else name,
        topic_id=topic_id,
        is_internal=False,
        partitions=[],
    )


def _asked(image: MetadataImage, request: MetadataRequest, version: int) -> Steps[tuple[list[str], list[bytes], bool]]:
    """The topics that are asked for, each once, the ids that no topic has, and whether ids count.

    Where one topic is asked for by its id, names count no more, as in Kafka. Raises KafkaError with INVALID_REQUEST.
    """
    names: dict[str, None] = {}
    by_id: dict[str, None] = {}
    unknown_ids: dict[bytes, None] = {}
    for position, topic in enumerate(request.topics or ()):
        if position % _TOLD_PER_STEP == _TOLD_PER_STEP - 1:
            yield
        if version < _TOPIC_IDS_SINCE:
            if topic.name is None:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"a topic's name cannot be null in version {version}")
            if topic.topic_id != ZERO_UUID:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"topic ids cannot be asked for in version {version}")
        if topic.topic_id != ZERO_UUID:
            name = image.topic_name(topic.topic_id)
            if name is None:
                unknown_ids[topic.topic_id] = None
            else:
                by_id[name] = None
        elif topic.name is not None:
            names[topic.name] = None
    uses_ids = bool(by_id or unknown_ids)
    return list(by_id if uses_ids else names), list(unknown_ids), uses_ids


def _missing_topic(name: str) -> MetadataResponse.MetadataResponseTopic:
    try:
        check_topic_name(name)
    except KafkaError as error:
        return _topic(error.code, name)
    return _topic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)


def _topic(code: ErrorCode, name: str | None, topic_id: bytes = ZERO_UUID) -> MetadataResponse.MetadataResponseTopic:
    return MetadataResponse.MetadataResponseTopic(
        error_code=code,
        name=name,
        topic_id=topic_id,
        is_internal=name is not None and is_internal(name),
        partitions=[],
    )
