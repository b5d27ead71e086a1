"""DeleteTopics, 0 to 6: has the controller delete topics, named by name or, from version 6 on, by id.

Answered when the topics are gone from this broker's metadata, or at the time-out, with REQUEST_TIMED_OUT; the deletion
goes on then. Named by an id, only the topic that has it is deleted, never a namesake that was made since (Kafka looks
the name up once). From version 5 on a quota refuses
changes (KIP-599), before that it holds the client back.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from barnabas.api.administration.ports import ControllerStatus
from barnabas.api.administration.topic_deletion import NO_IDS, TopicDeleter
from barnabas.api.administration.topic_waits import TopicWaits
from barnabas.api.authorization import Decisions
from barnabas.api.client_throttles import MutationQuotas
from barnabas.api.context import RequestContext
from barnabas.cluster.image import MetadataImage
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.kernel.ids import ZERO_UUID, Uuid
from barnabas.kernel.steps import STEP_ELEMENTS, Steps, each
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import DeleteTopicsRequest, DeleteTopicsResponse

_BY_ID_SINCE: Final = 6
_DISABLED_SINCE: Final = 3
_STRICT_SINCE: Final = 5

Result = DeleteTopicsResponse.DeletableTopicResult


@dataclass(slots=True)
class _Asked:
    """One topic of the request: what it was named by, its name if it is known, and what came of it."""

    name: str | None
    topic_id: bytes
    error: ErrorCode = ErrorCode.NONE


class DeleteTopicsHandler:
    """Asks for deletions and waits for them. `is_enabled` is `delete.topic.enable`."""

    api_key = ApiKey.DELETE_TOPICS
    versions = (0, 6)

    def __init__(
        self,
        controller: ControllerStatus,
        deleter: TopicDeleter,
        waits: TopicWaits,
        metadata: MetadataCache,
        quotas: MutationQuotas,
        *,
        is_enabled: bool,
    ) -> None:
        self._controller = controller
        self._deleter = deleter
        self._waits = waits
        self._metadata = metadata
        self._is_enabled = is_enabled
        self._quotas = quotas

    def handle(
        self, context: RequestContext, request: DeleteTopicsRequest
    ) -> Steps[Coroutine[Any, Any, DeleteTopicsResponse] | DeleteTopicsResponse]:
        if not self._controller.is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        if not self._is_enabled:
            is_known = context.api_version >= _DISABLED_SINCE
            raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED if is_known else ErrorCode.INVALID_REQUEST)
        asked = yield from _asked(context, request)
        is_confused = yield from each(lambda topic: topic.name is not None and topic.topic_id != ZERO_UUID, asked)
        if any(is_confused):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Topic name and topic ID can not both be specified.")
        image = self._metadata.image
        may_describe = Decisions(context, AclOperation.DESCRIBE, ResourceType.TOPIC)
        may_delete = Decisions(context, AclOperation.DELETE, ResourceType.TOPIC)
        yield from each(lambda topic: _look_up(topic, image, may_describe, may_delete), asked)
        if all(topic.error for topic in asked):
            return (yield from _response(asked))
        context.park()  # it waits for other brokers, which is not this broker's work
        return self._delete(context, asked, request.timeout_ms)

    def error_response(
        self, context: RequestContext, request: DeleteTopicsRequest, error: KafkaError
    ) -> Steps[DeleteTopicsResponse]:
        asked = yield from _asked(context, request)
        return (yield from _response(asked, error))

    async def _delete(self, context: RequestContext, asked: Sequence[_Asked], timeout_ms: int) -> DeleteTopicsResponse:
        # No more than the broker knows topics.
        named = dict.fromkeys(
            (topic.name, topic.topic_id) for topic in asked if topic.name is not None and not topic.error
        )
        outcomes: dict[tuple[str, bytes], KafkaError | None] = {}
        quota, image = self._quotas.of(context, _STRICT_SINCE), self._metadata.image
        for is_by_id in (False, True):
            topics = [topic for topic in named if (topic[1] != ZERO_UUID) is is_by_id]
            for start in range(0, len(topics), STEP_ELEMENTS):
                if start:
                    await context.turn()
                piece: dict[str, bytes] = {}
                for name, topic_id in topics[start : start + STEP_ELEMENTS]:
                    refusal = quota.admit(name, image.partition_count(name) or 0)
                    if refusal is None:
                        piece[name] = topic_id
                    else:
                        outcomes[name, topic_id] = refusal
                ids = {name: Uuid(topic_id) for name, topic_id in piece.items()} if is_by_id else NO_IDS
                for name, outcome in (await self._deleter.request(list(piece), ids)).items():
                    outcomes[name, piece[name]] = outcome
        wanted = list(dict.fromkeys(name for (name, _), outcome in outcomes.items() if outcome is None))
        late = frozenset(await self._waits.until_gone(wanted, timeout_ms) if timeout_ms > 0 else wanted)

        def settle(topic: _Asked) -> None:
            if topic.name is None or topic.error:
                return
            outcome = outcomes[topic.name, topic.topic_id]
            if outcome is not None:
                topic.error = outcome.code
            elif topic.name in late:
                topic.error = ErrorCode.REQUEST_TIMED_OUT

        await context.in_steps(each(settle, asked))
        response = await context.in_steps(_response(asked))
        quota.throttle(context, response)
        return response


def _asked(context: RequestContext, request: DeleteTopicsRequest) -> Steps[list[_Asked]]:
    if context.api_version >= _BY_ID_SINCE:
        return (yield from each(lambda topic: _Asked(topic.name, topic.topic_id), request.topics))
    return (yield from each(lambda name: _Asked(name, ZERO_UUID), request.topic_names))


def _look_up(topic: _Asked, image: MetadataImage, may_describe: Decisions, may_delete: Decisions) -> None:
    if topic.topic_id != ZERO_UUID:
        topic.name = image.names_by_id.get(topic.topic_id)
        if topic.name is None:
            topic.error = ErrorCode.UNKNOWN_TOPIC_ID
        elif not may_describe.allow(topic.name):
            # An id is no secret, but the name of the topic may be.
            topic.name, topic.error = None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif not may_delete.allow(topic.name):
            topic.error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    elif topic.name is None:
        topic.error = ErrorCode.TOPIC_AUTHORIZATION_FAILED  # Kafka's word for a topic that nobody named
    elif not may_delete.allow(topic.name):
        topic.error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    elif topic.name not in image.topics:
        topic.error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _response(asked: Sequence[_Asked], error: KafkaError | None = None) -> Steps[DeleteTopicsResponse]:
    """The outcome of each, or the error of all."""

    def result(topic: _Asked) -> Result:
        code = topic.error if error is None else error.code
        message = None if error is None else error.detail
        return Result(name=topic.name, topic_id=topic.topic_id, error_code=code, error_message=message)

    return DeleteTopicsResponse(responses=(yield from each(result, asked)))
