"""CreateTopics, 0 to 7: makes topics, on the controller.

Answered when every partition has a leader in this broker's metadata, or at the time-out, with REQUEST_TIMED_OUT for
topics that are there but not led yet; so Kafka does in ZooKeeper mode, and a time-out of 0 is always answered so. From
version 5 on the configs, counts and, from 7, the id are told of what was made, to whoever may describe its configs.
Left out: policies (`create.topic.policy.class.name`). From version 6 on a quota refuses changes (KIP-599), before that
it holds the client back; topics that are made by themselves count for no quota.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from barnabas.api.administration.ports import ControllerStatus
from barnabas.api.administration.topic_creation import NewTopic, Outcome, PlannedTopic, TopicCreator
from barnabas.api.administration.topic_waits import TopicWaits
from barnabas.api.authorization import Decisions, may_with_cluster
from barnabas.api.client_throttles import MutationQuotas
from barnabas.api.context import RequestContext
from barnabas.cluster.broker_configs import BrokerConfigs
from barnabas.config.topic_config import describe_topic
from barnabas.kernel.ids import ZERO_UUID
from barnabas.kernel.steps import Steps, each
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import CreateTopicsRequest, CreateTopicsResponse

CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
_TOLD_SINCE: Final = 5
_STRICT_SINCE: Final = 6
_NAMED_PER_STEP: Final = 2048
_RESULTS_PER_STEP: Final = 64
"""Each may have configs of its own to be told of."""

Result = CreateTopicsResponse.CreatableTopicResult
Config = CreateTopicsResponse.CreatableTopicConfigs


class CreateTopicsHandler:
    """Makes topics and waits for their leaders."""

    api_key = ApiKey.CREATE_TOPICS
    versions = (0, 7)

    def __init__(
        self,
        controller: ControllerStatus,
        creator: TopicCreator,
        waits: TopicWaits,
        broker_configs: BrokerConfigs,
        quotas: MutationQuotas,
    ) -> None:
        self._quotas = quotas
        self._controller = controller
        self._creator = creator
        self._waits = waits
        self._broker_configs = broker_configs

    def handle(
        self, context: RequestContext, request: CreateTopicsRequest
    ) -> Coroutine[Any, Any, CreateTopicsResponse]:
        if not self._controller.is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        context.park()  # it waits for other brokers, which is not this broker's work
        return self._create(context, request)

    def error_response(
        self, _context: RequestContext, request: CreateTopicsRequest, error: KafkaError
    ) -> Steps[CreateTopicsResponse]:
        def failed(topic: CreateTopicsRequest.CreatableTopic) -> Result:
            return Result(name=topic.name, error_code=error.code, error_message=error.detail, configs=[])

        return CreateTopicsResponse(topics=(yield from each(failed, request.topics)))

    async def _create(self, context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
        refused = await context.in_steps(_refused(context, request.topics))
        may_be_told = Decisions(context, AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, quietly=True)
        asked = await context.in_steps(
            each(lambda topic: None if topic.name in refused else _new_topic(topic), request.topics)
        )
        wanted = [topic for topic in asked if topic is not None]
        quota = self._quotas.of(context, _STRICT_SINCE)
        outcomes = await self._creator.create(wanted, validate_only=request.validate_only, admit=quota.admit)
        late: AbstractSet[str] = frozenset()
        if not request.validate_only:
            counts = {name: len(made.assignment) for name, made in outcomes.items() if isinstance(made, PlannedTopic)}
            is_waited_for = request.timeout_ms > 0
            late = set(await self._waits.until_led(counts, request.timeout_ms)) if is_waited_for else counts.keys()
        are_told = context.api_version >= _TOLD_SINCE
        told: dict[tuple[tuple[str, str], ...], list[Config]] = {}

        def result_of(topic: CreateTopicsRequest.CreatableTopic) -> Result:
            is_told = topic.name == CLUSTER_METADATA_TOPIC or may_be_told.allow(topic.name)
            outcome = refused.get(topic.name) or outcomes[topic.name]
            is_made = is_told and not request.validate_only
            result = _result(topic.name, outcome, is_late=topic.name in late, is_made=is_made)
            if not is_told and (topic.name in refused or not result.error_code):
                result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if are_told and is_told and isinstance(outcome, PlannedTopic) and not result.error_code:
                result.num_partitions = len(outcome.assignment)
                result.replication_factor = outcome.replication_factor
                same = tuple(sorted(outcome.configs.items()))
                if same not in told:
                    told[same] = self._configs(outcome.configs)
                result.configs = told[same]
            return result

        results = each(result_of, request.topics, _RESULTS_PER_STEP)
        response = CreateTopicsResponse(topics=await context.in_steps(results))
        quota.throttle(context, response)
        return response

    def _configs(self, overrides: Mapping[str, str]) -> list[Config]:
        described = describe_topic(overrides, self._broker_configs.values, self._broker_configs.layers)
        return [
            Config(
                name=each.name,
                value=each.value,
                read_only=each.read_only,
                config_source=each.source,
                is_sensitive=each.sensitive,
            )
            for each in described
        ]


def _result(name: str, outcome: Outcome, *, is_late: bool, is_made: bool) -> Result:
    """Without what is told only of topics that were made."""
    if isinstance(outcome, KafkaError):
        return Result(name=name, error_code=outcome.code, error_message=outcome.detail, configs=[])
    topic_id = outcome.topic_id if is_made and outcome.topic_id is not None else ZERO_UUID
    code = ErrorCode.REQUEST_TIMED_OUT if is_late else ErrorCode.NONE
    return Result(name=name, topic_id=topic_id, error_code=code, error_message=None, configs=[])


def _refused(
    context: RequestContext, topics: Sequence[CreateTopicsRequest.CreatableTopic]
) -> Steps[dict[str, KafkaError]]:
    """What is refused because of the request itself, or since its sender may not make it, by name."""
    refused: dict[str, KafkaError] = {}
    named: set[str] = set()
    for position, topic in enumerate(topics):
        if position % _NAMED_PER_STEP == _NAMED_PER_STEP - 1:
            yield
        name = topic.name
        if name == CLUSTER_METADATA_TOPIC:
            refused[name] = KafkaError(
                ErrorCode.INVALID_REQUEST, f"Creation of internal topic {CLUSTER_METADATA_TOPIC} is prohibited."
            )
        elif name in named and name not in refused:
            refused[name] = KafkaError(ErrorCode.INVALID_REQUEST, "Found multiple entries for this topic.")
        named.add(name)
    if context.authorizer is not None and not may_with_cluster(context, AclOperation.CREATE, quietly=True):
        may_create = Decisions(context, AclOperation.CREATE, ResourceType.TOPIC)

        def check(topic: CreateTopicsRequest.CreatableTopic) -> None:
            if topic.name not in refused and not may_create.allow(topic.name):
                refused[topic.name] = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")

        yield from each(check, topics)
    return refused


def _new_topic(topic: CreateTopicsRequest.CreatableTopic) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        [(partition.partition_index, tuple(partition.broker_ids)) for partition in topic.assignments],
        {config.name: config.value for config in topic.configs},
    )
