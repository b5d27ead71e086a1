"""CreatePartitions, 0 to 3: gives topics more partitions, on the controller.

Answered when every partition of the topics has a leader in this broker's metadata, or at the time-out, with
REQUEST_TIMED_OUT. Left out: the controller mutation quota, which holds nothing back yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any

from barnabas.api.administration.partition_creation import MorePartitions, PartitionCreator
from barnabas.api.administration.ports import ControllerStatus
from barnabas.api.administration.topic_waits import TopicWaits
from barnabas.api.context import RequestContext
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import CreatePartitionsRequest, CreatePartitionsResponse

Result = CreatePartitionsResponse.CreatePartitionsTopicResult


class CreatePartitionsHandler:
    """Adds partitions and waits for their leaders."""

    api_key = ApiKey.CREATE_PARTITIONS
    versions = (0, 3)

    def __init__(self, controller: ControllerStatus, creator: PartitionCreator, waits: TopicWaits) -> None:
        self._controller = controller
        self._creator = creator
        self._waits = waits

    def handle(
        self, context: RequestContext, request: CreatePartitionsRequest
    ) -> Coroutine[Any, Any, CreatePartitionsResponse]:
        if not self._controller.is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        context.park()  # it waits for other brokers, which is not this broker's work
        return self._create(request)

    def error_response(
        self, _context: RequestContext, request: CreatePartitionsRequest, error: KafkaError
    ) -> CreatePartitionsResponse:
        return CreatePartitionsResponse(results=[_failed(topic.name, error) for topic in request.topics])

    async def _create(self, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
        counts = Counter(topic.name for topic in request.topics)
        wanted = [_wanted(topic) for topic in request.topics if counts[topic.name] == 1]
        outcomes = await self._creator.create(wanted, validate_only=request.validate_only)
        late: Sequence[str] = ()
        if not request.validate_only:
            grown = {topic: count for topic, count in outcomes.items() if isinstance(count, int)}
            late = await self._waits.until_led(grown, request.timeout_ms) if request.timeout_ms > 0 else tuple(grown)
        results = []
        for name, outcome in outcomes.items():
            if isinstance(outcome, KafkaError):
                results.append(_failed(name, outcome))
            else:
                code = ErrorCode.REQUEST_TIMED_OUT if name in late else ErrorCode.NONE
                results.append(Result(name=name, error_code=code))
        twice = KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic in request.")
        results += [_failed(name, twice) for name, count in counts.items() if count > 1]
        return CreatePartitionsResponse(results=results)


def _failed(name: str, error: KafkaError) -> Result:
    return Result(name=name, error_code=error.code, error_message=error.detail)


def _wanted(topic: CreatePartitionsRequest.CreatePartitionsTopic) -> MorePartitions:
    assignments = topic.assignments
    return MorePartitions(
        topic.name,
        topic.count,
        None if assignments is None else [tuple(assignment.broker_ids) for assignment in assignments],
    )
