"""ElectLeaders (key 43, versions 0 to 2): has leaders elected, preferred ones or uncleanly (KIP-183, KIP-460).

Answered by the active controller, when this broker's metadata shows the leaders that were elected, or at the time-out,
with REQUEST_TIMED_OUT; elected they are all the same. Asked for all partitions, it leaves those out of the answer that
had their leader before. As in Kafka a broker that is not the controller says so of each partition, and not at the top.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Final

from barnabas.api.administration.leader_waits import LeaderWaits
from barnabas.api.authorization import may_with_cluster
from barnabas.api.context import RequestContext
from barnabas.cluster.image import MetadataImage
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.controller.controller import Controller
from barnabas.controller.replica_elections import ElectionOutcomes
from barnabas.kernel.steps import Steps, each, each_within
from barnabas.security.acls import AclOperation
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import ElectLeadersRequest, ElectLeadersResponse
from barnabas.wire.topics import ElectionType, TopicPartition

_TYPE_SINCE: Final = 1

Asked = ElectLeadersRequest.TopicPartitions
Answered = ElectLeadersResponse.ReplicaElectionResult
Result = ElectLeadersResponse.PartitionResult
Outcome = tuple[ErrorCode, str | None]
"""The error and what it says."""


class ElectLeadersHandler:
    """Has the controller of this broker elect, if it is the active one, and waits for what it elected."""

    api_key = ApiKey.ELECT_LEADERS
    versions = (0, 2)

    def __init__(self, controller: Controller, waits: LeaderWaits, metadata: MetadataCache) -> None:
        self._controller = controller
        self._waits = waits
        self._metadata = metadata

    def handle(
        self, context: RequestContext, request: ElectLeadersRequest
    ) -> Coroutine[Any, Any, ElectLeadersResponse]:
        if not may_with_cluster(context, AclOperation.ALTER):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)  # of each partition without a word, as in Kafka
        election_type = _election_type(context, request)
        context.park()  # it waits for the controller's queue and for other brokers, which is not this broker's work
        return self._elect(context, request, election_type)

    def error_response(
        self, _context: RequestContext, request: ElectLeadersRequest, error: KafkaError
    ) -> Steps[ElectLeadersResponse]:
        """The error at the top and of each partition that was named."""

        def result(_: Asked, number: int) -> Result:
            return Result(partition_id=number, error_code=error.code, error_message=error.detail)

        def answered(topic: Asked, results: list[Result]) -> Answered:
            return Answered(topic=topic.topic, partition_result=results)

        topics = yield from each_within(
            request.topic_partitions or (), lambda topic: topic.partitions, result, answered
        )
        return ElectLeadersResponse(error_code=error.code, replica_election_results=topics)

    async def _elect(
        self, context: RequestContext, request: ElectLeadersRequest, election_type: ElectionType
    ) -> ElectLeadersResponse:
        named = request.topic_partitions
        found = _all(self._metadata.image) if named is None else _named(named)
        partitions = await context.in_steps(found)
        outcomes: dict[TopicPartition, Outcome]
        try:
            elected = await self._controller.elect_leaders(partitions, election_type)
        except KafkaError as error:
            if error.code is not ErrorCode.NOT_CONTROLLER:
                raise
            outcomes = dict.fromkeys(partitions, (ErrorCode.NOT_CONTROLLER, None))
        else:
            outcomes, expected = await context.in_steps(_divided(elected))
            deadline = context.received + request.timeout_ms / 1000
            for partition in await self._waits.until_led(expected, deadline, context.turn):
                outcomes[partition] = (ErrorCode.REQUEST_TIMED_OUT, None)
        omitted = ErrorCode.ELECTION_NOT_NEEDED if named is None else None
        return ElectLeadersResponse(
            replica_election_results=await context.in_steps(_results(partitions, outcomes, omitted))
        )


def _election_type(context: RequestContext, request: ElectLeadersRequest) -> ElectionType:
    """Raises `KafkaError`, UNKNOWN_SERVER_ERROR without a word as in Kafka, for a type that there is not."""
    if context.api_version < _TYPE_SINCE:
        return ElectionType.PREFERRED
    try:
        return ElectionType(request.election_type)
    except ValueError:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR) from None


def _all(image: MetadataImage) -> Steps[list[TopicPartition]]:
    partitions: list[TopicPartition] = []
    yield from each_within(
        image.topics.values(),
        lambda topic: topic.partitions,
        lambda topic, number: partitions.append(TopicPartition(topic.name, number)),
        lambda *_: None,
    )
    return partitions


def _named(topics: Iterable[Asked]) -> Steps[list[TopicPartition]]:
    """Each once."""
    partitions: dict[TopicPartition, None] = {}

    def add(topic: Asked, number: int) -> None:
        partitions[TopicPartition(topic.topic, number)] = None

    yield from each_within(topics, lambda topic: topic.partitions, add, lambda *_: None)
    return list(partitions)


def _divided(elected: ElectionOutcomes) -> Steps[tuple[dict[TopicPartition, Outcome], dict[TopicPartition, int]]]:
    """What is to be said of each partition unless the time-out comes first, and the leaders to wait for."""
    outcomes: dict[TopicPartition, Outcome] = {}
    expected: dict[TopicPartition, int] = {}

    def add(item: tuple[TopicPartition, int | KafkaError]) -> None:
        partition, result = item
        if isinstance(result, KafkaError):
            outcomes[partition] = (result.code, result.detail)
        else:
            outcomes[partition] = (ErrorCode.NONE, None)
            expected[partition] = result

    yield from each(add, elected.items())
    return outcomes, expected


def _results(
    partitions: Iterable[TopicPartition], outcomes: Mapping[TopicPartition, Outcome], omitted: ErrorCode | None
) -> Steps[list[Answered]]:
    by_topic: dict[str, Answered] = {}

    def add(partition: TopicPartition) -> None:
        code, message = outcomes[partition]
        if code is omitted:
            return
        topic = by_topic.setdefault(partition.topic, Answered(topic=partition.topic))
        topic.partition_result.append(Result(partition_id=partition.partition, error_code=code, error_message=message))

    yield from each(add, partitions)
    return list(by_topic.values())
