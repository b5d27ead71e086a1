"""Asks transaction coordinators whether transactions have partitions that this broker leads (KIP-890), before the first
batch of a transaction comes into one.

Each coordinator has one request under way; what comes meanwhile goes with the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from barnabas.kernel.metrics import MetricName, MetricsRegistry
from barnabas.kernel.steps import STEP_ELEMENTS, StepRunner, Steps
from barnabas.log.producers.producer_state import ProducerState
from barnabas.serving.ports import Replicas
from barnabas.serving.produce import ProduceOutcome
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from barnabas.wire.topics import TopicPartition

QUESTIONS_MAX: Final = 10_000
"""Of all coordinators, that wait at a time: more are answered NETWORK_EXCEPTION, after which producers try again."""
_QUESTIONS_PER_REQUEST: Final = 200
_ABORTABLE_SINCE: Final = 11
"""The version of Produce whose producers know TRANSACTION_ABORTABLE."""
_MBEAN: Final = ("kafka.server", "AddPartitionsToTxnManager")
_TRIED_AGAIN: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)

Asked = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
Codes = dict[TopicPartition, ErrorCode]


class VerificationChannel(Protocol):
    """The way to the coordinators."""

    def coordinator(self, transactional_id: str) -> int | None:
        """The broker that has the id, if it is alive."""
        ...

    async def send(self, broker_id: int, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse | None:
        """One request; None where the broker is too old for such a question. Raises OSError where no answer came."""
        ...


class Question(NamedTuple):
    """Whether the transaction of a producer has these partitions."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Sequence[TopicPartition]


class TransactionVerifier:
    """Asks for the leaders of this broker."""

    def __init__(
        self,
        channel: VerificationChannel,
        is_enabled: Callable[[], bool],
        loop: asyncio.AbstractEventLoop,
        steps: StepRunner,
        metrics: MetricsRegistry,
        logger: logging.Logger,
    ) -> None:
        """`is_enabled` is `transaction.partition.verification.enable`: without it all is verified unasked."""
        self._channel = channel
        self.is_enabled = is_enabled
        self._loop = loop
        self._steps = steps
        self._logger = logger
        self._failures = metrics.meter(MetricName(*_MBEAN, "VerificationFailureRate"))
        self._duration_ms = metrics.histogram(MetricName(*_MBEAN, "VerificationTimeMs"))
        self._waiting: dict[int, deque[tuple[Question, asyncio.Future[Codes]]]] = {}
        self._count = 0
        self._sending: dict[int, asyncio.Task[None]] = {}

    async def verify(self, question: Question) -> Codes:
        """The error of each partition that is not in the transaction, or of which that is not known; PRODUCER_FENCED
        as INVALID_PRODUCER_EPOCH, for which producers are made.
        """
        if not self.is_enabled():
            return {}
        coordinator = self._channel.coordinator(question.transactional_id)
        if coordinator is None:
            return dict.fromkeys(question.partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if self._count >= QUESTIONS_MAX:
            self._failures.count += len(question.partitions)
            return dict.fromkeys(question.partitions, ErrorCode.NETWORK_EXCEPTION)
        answer: asyncio.Future[Codes] = self._loop.create_future()
        self._waiting.setdefault(coordinator, deque()).append((question, answer))
        self._count += 1
        if coordinator not in self._sending:
            self._sending[coordinator] = self._loop.create_task(
                self._send_all(coordinator), name=f"verify-transactions-{coordinator}"
            )
        asked_at = self._loop.time()
        try:
            codes = await answer
        finally:
            self._count -= 1
        self._failures.count += len(codes)
        self._duration_ms.update(round((self._loop.time() - asked_at) * 1_000))
        return codes

    async def stop(self) -> None:
        """Asks nothing more; what waits is answered NETWORK_EXCEPTION."""
        for task in self._sending.values():
            task.cancel()
        await asyncio.gather(*self._sending.values(), return_exceptions=True)

    async def _send_all(self, coordinator: int) -> None:
        waiting = self._waiting[coordinator]
        asked: list[tuple[Question, asyncio.Future[Codes]]] = []
        try:
            while waiting:
                asked = _next_questions(waiting)
                codes = await self._ask(coordinator, [question for question, _ in asked])
                for (_, answer), found in zip(asked, codes, strict=True):
                    if not answer.done():
                        answer.set_result(found)
        finally:
            del self._sending[coordinator], self._waiting[coordinator]
            for question, answer in (*asked, *waiting):
                if not answer.done():
                    answer.set_result(dict.fromkeys(question.partitions, ErrorCode.NETWORK_EXCEPTION))

    async def _ask(self, coordinator: int, questions: Sequence[Question]) -> list[Codes]:
        request = await self._steps.run(_request(questions))
        code = ErrorCode.NETWORK_EXCEPTION
        try:
            response = await self._channel.send(coordinator, request)
            if response is None:
                self._logger.warning("Broker %d is too old to verify transactions: they are not", coordinator)
                return [{} for _ in questions]
            code = ErrorCode.for_code(response.error_code)
            if code is ErrorCode.NONE:
                return await self._steps.run(_codes(questions, response))
            if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:  # ours, and none of the producer's
                code = ErrorCode.INVALID_TXN_STATE
            self._logger.error("Broker %d does not verify transactions: %s", coordinator, code.name)
        except (OSError, KafkaError) as error:
            self._logger.warning("Broker %d did not verify transactions: %s", coordinator, error)
        except Exception:
            self._logger.exception("Broker %d cannot be asked to verify transactions", coordinator)
        return [dict.fromkeys(question.partitions, code) for question in questions]


def _next_questions(
    waiting: deque[tuple[Question, asyncio.Future[Codes]]],
) -> list[tuple[Question, asyncio.Future[Codes]]]:
    """Each transactional id once: an answer names no other."""
    asked: dict[str, tuple[Question, asyncio.Future[Codes]]] = {}
    for _ in range(min(len(waiting), _QUESTIONS_PER_REQUEST)):
        each = waiting.popleft()
        if each[0].transactional_id in asked:
            waiting.append(each)
        else:
            asked[each[0].transactional_id] = each
    return list(asked.values())


def _request(questions: Sequence[Question]) -> Steps[AddPartitionsToTxnRequest]:
    transactions: list[Asked] = []
    left = STEP_ELEMENTS
    for question in questions:
        by_topic: dict[str, list[int]] = {}
        for topic, number in question.partitions:
            by_topic.setdefault(topic, []).append(number)
            left -= 1
            if not left:
                yield
                left = STEP_ELEMENTS
        transactions.append(
            Asked(
                transactional_id=question.transactional_id,
                producer_id=question.producer_id,
                producer_epoch=question.producer_epoch,
                verify_only=True,
                topics=[Topic(name=name, partitions=numbers) for name, numbers in by_topic.items()],
            )
        )
    return AddPartitionsToTxnRequest(transactions=transactions)


def _codes(questions: Sequence[Question], response: AddPartitionsToTxnResponse) -> Steps[list[Codes]]:
    """What was not answered is not verified."""
    answered: dict[str, Codes] = {}
    left = STEP_ELEMENTS
    for transaction in response.results_by_transaction:
        codes = answered.setdefault(transaction.transactional_id, {})
        for topic in transaction.topic_results:
            for told in topic.results_by_partition:
                code = ErrorCode.for_code(told.partition_error_code)
                fenced = code is ErrorCode.PRODUCER_FENCED
                codes[TopicPartition(topic.name, told.partition_index)] = (
                    ErrorCode.INVALID_PRODUCER_EPOCH if fenced else code
                )
                left -= 1
                if not left:
                    yield
                    left = STEP_ELEMENTS
    found: list[Codes] = []
    for question in questions:
        codes = answered.get(question.transactional_id, {})
        unanswered = ErrorCode.NETWORK_EXCEPTION
        each = {partition: codes.get(partition, unanswered) for partition in question.partitions}
        found.append({partition: code for partition, code in each.items() if code is not ErrorCode.NONE})
    return found


class BatchVerification:
    """What Produce asks, and what producers are told of it."""

    def __init__(self, replicas: Replicas, verifier: TransactionVerifier) -> None:
        self._replicas = replicas
        self._verifier = verifier

    def producers(self, topic_partition: TopicPartition) -> ProducerState:
        """Raises KafkaError where this broker does not lead the partition."""
        return self._replicas.get_partition(topic_partition).leader_log().producers

    async def verify_one(self, question: Question) -> ErrorCode:
        """Of one partition: NONE, or why it is not verified."""
        (partition,) = question.partitions
        return (await self._verifier.verify(question)).get(partition, ErrorCode.NONE)

    async def verify(self, questions: Sequence[Question], api_version: int) -> dict[TopicPartition, ProduceOutcome]:
        """The questions of one request, about one transaction; the outcomes of the partitions that are not verified."""
        first = questions[0]
        partitions = [partition for question in questions for partition in question.partitions]
        codes = await self._verifier.verify(first._replace(partitions=partitions))
        return {partition: _outcome(code, api_version) for partition, code in codes.items()}


def _outcome(code: ErrorCode, api_version: int) -> ProduceOutcome:
    if code is ErrorCode.TRANSACTION_ABORTABLE and api_version < _ABORTABLE_SINCE:
        code = ErrorCode.INVALID_TXN_STATE
    if code is ErrorCode.INVALID_TXN_STATE:
        return ProduceOutcome(code, message="Partition was not added to the transaction")
    if code in _TRIED_AGAIN:
        # Older producers may take them for final; this one has them send the batch again, without new metadata.
        return ProduceOutcome(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            message="Unable to verify the partition has been added to the transaction. Underlying error: " + code.name,
        )
    return ProduceOutcome(code)
