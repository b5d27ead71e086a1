"""CreatePartitions, 0 to 3: gives topics more partitions, on the controller.

Answered when every partition of the topics has a leader in this broker's metadata, or at the time-out, with
REQUEST_TIMED_OUT. From version 3 on a quota refuses changes (KIP-599), before that it holds the client back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Any, Final

from barnabas.api.administration.partition_creation import MorePartitions, PartitionCreator
from barnabas.api.administration.ports import ControllerStatus
from barnabas.api.administration.topic_waits import TopicWaits
from barnabas.api.authorization import Decisions
from barnabas.api.client_throttles import MutationQuotas
from barnabas.api.context import RequestContext
from barnabas.kernel.steps import Steps, each
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import CreatePartitionsRequest, CreatePartitionsResponse

_COUNTED_PER_TURN: Final = 8192
_STRICT_SINCE: Final = 3

Result = CreatePartitionsResponse.CreatePartitionsTopicResult


class CreatePartitionsHandler:
    """Adds partitions and waits for their leaders."""

    api_key = ApiKey.CREATE_PARTITIONS
    versions = (0, 3)

    def __init__(
        self, controller: ControllerStatus, creator: PartitionCreator, waits: TopicWaits, quotas: MutationQuotas
    ) -> None:
        self._quotas = quotas
        self._controller = controller
        self._creator = creator
        self._waits = waits

    def handle(
        self, context: RequestContext, request: CreatePartitionsRequest
    ) -> Coroutine[Any, Any, CreatePartitionsResponse]:
        if not self._controller.is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        context.park()  # it waits for other brokers, which is not this broker's work
        return self._create(context, request)

    def error_response(
        self, _context: RequestContext, request: CreatePartitionsRequest, error: KafkaError
    ) -> Steps[CreatePartitionsResponse]:
        results = yield from each(lambda topic: _failed(topic.name, error), request.topics)
        return CreatePartitionsResponse(results=results)

    async def _create(self, context: RequestContext, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
        counts: Counter[str] = Counter()
        names = await context.in_steps(each(lambda topic: topic.name, request.topics))
        for start in range(0, len(names), _COUNTED_PER_TURN):
            counts.update(names[start : start + _COUNTED_PER_TURN])
            await context.turn()
        may_alter = Decisions(context, AclOperation.ALTER, ResourceType.TOPIC)

        twice = KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic in request.")
        failed = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "The topic authorization is failed.")
        wanted: list[MorePartitions] = []
        repeated: dict[str, int | KafkaError] = {}
        denied: dict[str, int | KafkaError] = {}

        def sort(topic: CreatePartitionsRequest.CreatePartitionsTopic) -> None:
            if counts[topic.name] > 1:
                repeated[topic.name] = twice
            elif may_alter.allow(topic.name):
                wanted.append(_wanted(topic))
            else:
                denied[topic.name] = failed

        await context.in_steps(each(sort, request.topics))
        quota = self._quotas.of(context, _STRICT_SINCE)
        outcomes = await self._creator.create(wanted, validate_only=request.validate_only, admit=quota.admit)
        late: AbstractSet[str] = frozenset()
        if not request.validate_only:
            grown = {topic: count for topic, count in outcomes.items() if isinstance(count, int)}
            is_waited_for = request.timeout_ms > 0
            late = frozenset(await self._waits.until_led(grown, request.timeout_ms)) if is_waited_for else grown.keys()

        def result(named: tuple[str, int | KafkaError]) -> Result:
            name, outcome = named
            if isinstance(outcome, KafkaError):
                return _failed(name, outcome)
            return Result(name=name, error_code=ErrorCode.REQUEST_TIMED_OUT if name in late else ErrorCode.NONE)

        found = chain(outcomes.items(), repeated.items(), denied.items())
        response = CreatePartitionsResponse(results=await context.in_steps(each(result, found)))
        quota.throttle(context, response)
        return response


def _failed(name: str, error: KafkaError) -> Result:
    return Result(name=name, error_code=error.code, error_message=error.detail)


def _wanted(topic: CreatePartitionsRequest.CreatePartitionsTopic) -> MorePartitions:
    assignments = topic.assignments
    return MorePartitions(
        topic.name,
        topic.count,
        None if assignments is None else [tuple(assignment.broker_ids) for assignment in assignments],
    )
