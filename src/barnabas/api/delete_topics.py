"""DeleteTopics, 0 to 6: has the controller delete topics, named by name or, from version 6 on, by id.

Answered when the topics are gone from this broker's metadata, or at the time-out, with REQUEST_TIMED_OUT; the deletion
goes on then. Left out: the controller mutation quota, which holds nothing back yet.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from barnabas.api.administration.ports import ControllerStatus
from barnabas.api.administration.topic_deletion import TopicDeleter
from barnabas.api.administration.topic_waits import TopicWaits
from barnabas.api.context import RequestContext
from barnabas.cluster.image import MetadataImage
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.kernel.ids import ZERO_UUID
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import DeleteTopicsRequest, DeleteTopicsResponse

_BY_ID_SINCE: Final = 6
_DISABLED_SINCE: Final = 3

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
        *,
        is_enabled: bool,
    ) -> None:
        self._controller = controller
        self._deleter = deleter
        self._waits = waits
        self._metadata = metadata
        self._is_enabled = is_enabled

    def handle(
        self, context: RequestContext, request: DeleteTopicsRequest
    ) -> Coroutine[Any, Any, DeleteTopicsResponse] | DeleteTopicsResponse:
        if not self._controller.is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        if not self._is_enabled:
            is_known = context.api_version >= _DISABLED_SINCE
            raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED if is_known else ErrorCode.INVALID_REQUEST)
        asked = _asked(context, request)
        if any(topic.name is not None and topic.topic_id != ZERO_UUID for topic in asked):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Topic name and topic ID can not both be specified.")
        for topic in asked:
            _look_up(topic, self._metadata.image)
        if all(topic.error for topic in asked):
            return _response(asked)
        context.park()  # it waits for other brokers, which is not this broker's work
        return self._delete(asked, request.timeout_ms)

    def error_response(
        self, context: RequestContext, request: DeleteTopicsRequest, error: KafkaError
    ) -> DeleteTopicsResponse:
        asked = _asked(context, request)
        for topic in asked:
            topic.error = error.code
        return _response(asked, error.detail)

    async def _delete(self, asked: Sequence[_Asked], timeout_ms: int) -> DeleteTopicsResponse:
        names = list(dict.fromkeys(topic.name for topic in asked if topic.name is not None and not topic.error))
        outcomes = await self._deleter.request(names)
        wanted = [name for name, outcome in outcomes.items() if outcome is None]
        late = await self._waits.until_gone(wanted, timeout_ms) if timeout_ms > 0 else wanted
        for topic in asked:
            if topic.name is None or topic.error:
                continue
            outcome = outcomes[topic.name]
            if outcome is not None:
                topic.error = outcome.code
            elif topic.name in late:
                topic.error = ErrorCode.REQUEST_TIMED_OUT
        return _response(asked)


def _asked(context: RequestContext, request: DeleteTopicsRequest) -> list[_Asked]:
    if context.api_version >= _BY_ID_SINCE:
        return [_Asked(topic.name, topic.topic_id) for topic in request.topics]
    return [_Asked(name, ZERO_UUID) for name in request.topic_names]


def _look_up(topic: _Asked, image: MetadataImage) -> None:
    if topic.topic_id != ZERO_UUID:
        topic.name = image.names_by_id.get(topic.topic_id)
        if topic.name is None:
            topic.error = ErrorCode.UNKNOWN_TOPIC_ID
    elif topic.name not in image.topics:
        topic.error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _response(asked: Sequence[_Asked], message: str | None = None) -> DeleteTopicsResponse:
    results = [
        Result(name=topic.name, topic_id=topic.topic_id, error_code=topic.error, error_message=message)
        for topic in asked
    ]
    return DeleteTopicsResponse(responses=results)
