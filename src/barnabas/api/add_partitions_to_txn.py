"""AddPartitionsToTxn, 0 to 5: a producer is about to write to partitions in its transaction.

From version 4 brokers ask for several transactions at once, and may ask only whether the partitions are in them
(KIP-890). Where one partition of a transaction does not exist, or may not be written to, none is added, and the others
are OPERATION_NOT_ATTEMPTED.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from barnabas.api.authorization import Decisions, check_cluster, may
from barnabas.api.context import RequestContext, Responder
from barnabas.api.transaction_codes import fenced_code
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.cluster.metadata_responses import is_internal
from barnabas.coordinators.transaction.coordinator import TransactionCoordinator
from barnabas.coordinators.transaction.transactions import Producer
from barnabas.kernel.steps import STEP_ELEMENTS, Steps, each, each_within
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from barnabas.wire.topics import TopicPartition

_FENCED_SINCE: Final = 2
_BATCHED_SINCE: Final = 4

Asked = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
Result = AddPartitionsToTxnResponse.AddPartitionsToTxnResult
TopicResult = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
PartitionResult = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
Code = Callable[[TopicPartition], ErrorCode]


class AddPartitionsToTxnHandler:
    """Asks the coordinator, one transaction after the other."""

    api_key = ApiKey.ADD_PARTITIONS_TO_TXN
    versions = (0, 5)

    def __init__(self, transactions: TransactionCoordinator, metadata: MetadataCache) -> None:
        self._transactions = transactions
        self._metadata = metadata

    def handle(
        self, context: RequestContext, request: AddPartitionsToTxnRequest
    ) -> Steps[AddPartitionsToTxnResponse | None]:
        is_from_broker = context.api_version >= _BATCHED_SINCE
        if is_from_broker:
            check_cluster(context, AclOperation.CLUSTER_ACTION)
        asked = _transactions(context, request)
        answer = _Answer(context, asked)
        for number, transaction in enumerate(asked):
            denied: set[str] = set()
            if not is_from_broker:
                if not may(context, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transaction.transactional_id):
                    answer.complete(number, lambda _: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
                    continue
                denied = yield from _denied(context, transaction.topics)
            yield from self._ask(number, transaction, answer, denied)
        return (yield from answer.response_now())

    def _ask(self, number: int, asked: Asked, answer: _Answer, denied: set[str]) -> Steps[None]:
        image = self._metadata.image
        partitions: set[TopicPartition] = set()
        missing: set[TopicPartition] = set()
        left = STEP_ELEMENTS
        for topic in asked.topics:
            for index in topic.partitions:
                partition = TopicPartition(topic.name, index)
                partitions.add(partition)
                if topic.name not in denied and image.partition(partition) is None:
                    missing.add(partition)
                left -= 1
                if not left:
                    yield
                    left = STEP_ELEMENTS
        if missing or denied:

            def code_of(partition: TopicPartition) -> ErrorCode:
                if partition.topic in denied:
                    return ErrorCode.TOPIC_AUTHORIZATION_FAILED
                unknown = partition in missing
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if unknown else ErrorCode.OPERATION_NOT_ATTEMPTED

            answer.complete(number, code_of)
            return
        producer = Producer(asked.producer_id, asked.producer_epoch)
        if not asked.verify_only:
            self._transactions.add_partitions(
                asked.transactional_id, producer, partitions, lambda code: answer.complete(number, lambda _: code)
            )
            return
        try:
            verified = self._transactions.verification(asked.transactional_id, producer)
        except KafkaError as error:
            code = ErrorCode.for_code(error.code)
            answer.complete(number, lambda _: code)
        else:
            answer.complete(number, verified)

    def error_response(
        self, context: RequestContext, request: AddPartitionsToTxnRequest, error: KafkaError
    ) -> Steps[AddPartitionsToTxnResponse]:
        code = ErrorCode.for_code(error.code)
        if context.api_version >= _BATCHED_SINCE:
            yield from ()
            return AddPartitionsToTxnResponse(error_code=code)
        topics = yield from _topic_results(context, request.v3_and_below_topics, lambda _: code)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)


class _Answer:
    """The answer to a request whose transactions are being asked for."""

    def __init__(self, context: RequestContext, asked: Sequence[Asked]) -> None:
        self._context = context
        self._asked = asked
        self._codes: dict[int, Code] = {}
        self._responder: Responder | None = None

    def complete(self, number: int, code: Code) -> None:
        """The outcome of that transaction, by partition."""
        self._codes[number] = code
        if self._responder is not None and len(self._codes) == len(self._asked):
            self._responder.respond(self._response())

    def response_now(self) -> Steps[AddPartitionsToTxnResponse | None]:
        """The response if it is there already; else None, and it is given later."""
        if len(self._codes) == len(self._asked):
            return (yield from self._response())
        self._responder = self._context.park()
        return None

    def _response(self) -> Steps[AddPartitionsToTxnResponse]:
        results: list[Result] = []
        for number, asked in enumerate(self._asked):
            topics = yield from _topic_results(self._context, asked.topics, self._codes[number])
            results.append(Result(transactional_id=asked.transactional_id, topic_results=topics))
        if self._context.api_version >= _BATCHED_SINCE:
            return AddPartitionsToTxnResponse(results_by_transaction=results)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results[0].topic_results)


def _denied(context: RequestContext, topics: Sequence[Topic]) -> Steps[set[str]]:
    """The topics that a client may not write to; internal ones no client may."""
    may_write = Decisions(context, AclOperation.WRITE, ResourceType.TOPIC)

    def named(topic: Topic) -> str | None:
        is_denied = topic.partitions and (is_internal(topic.name) or not may_write.allow(topic.name))
        return topic.name if is_denied else None

    found = yield from each(named, topics)
    return {name for name in found if name is not None}


def _transactions(context: RequestContext, request: AddPartitionsToTxnRequest) -> Sequence[Asked]:
    if context.api_version >= _BATCHED_SINCE:
        return request.transactions
    return [
        Asked(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
    ]


def _topic_results(context: RequestContext, topics: Sequence[Topic], code: Code) -> Steps[list[TopicResult]]:
    def result(topic: Topic, index: int) -> PartitionResult:
        found = fenced_code(code(TopicPartition(topic.name, index)), context.api_version, known_since=_FENCED_SINCE)
        return PartitionResult(partition_index=index, partition_error_code=found)

    return (
        yield from each_within(
            topics,
            lambda topic: topic.partitions,
            result,
            lambda topic, found: TopicResult(name=topic.name, results_by_partition=found),
        )
    )
