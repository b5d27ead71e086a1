"""Produce, 0 to 11: appends batches to partitions that this broker leads, for producers.

Answered when the batches are written (acks 1) or replicated too (acks -1); acks 0 has no answer, and an error closes
the connection, so that the producer notices. Before the first batch of a transaction comes into a partition its
coordinator is asked whether the transaction has the partition (KIP-890), for which the connection's later requests
wait. A transactional batch without a transactional id is TRANSACTIONAL_ID_AUTHORIZATION_FAILED.

Requests of the usual shape are decoded by `produce_fast_path`, all others by the codec; from there on all go one way,
`produce_pipeline`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from barnabas.api.authorization import may
from barnabas.api.context import RequestContext, Responder
from barnabas.api.named_once import named_once
from barnabas.api.produce_fast_path import ProduceFastPath, ProduceFastPaths
from barnabas.api.produce_pipeline import OpenAccess, ProduceAccess, ProduceKind, ProducePipeline
from barnabas.api.produce_responses import ProduceResponses
from barnabas.api.request_metrics import RequestMetrics
from barnabas.api.request_time import charge
from barnabas.kernel.steps import STEP_ELEMENTS, Steps, at_once, each
from barnabas.log.partition.appending import AppendedBatch
from barnabas.network.connection import ServerConnection
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.serving.acknowledgements import Acknowledgements
from barnabas.serving.ports import MetadataSource, Replicas
from barnabas.serving.produce import Outcomes, ProduceOutcome, RecordAppends
from barnabas.serving.transaction_verification import BatchVerification, Question
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.byte_work import TakesLongError
from barnabas.wire.compiler_decode import STEP_ELEMENTS as DECODED_PER_STEP
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import ProduceRequest, ProduceResponse
from barnabas.wire.record_batch import ATTRIBUTE_TRANSACTIONAL, ATTRIBUTES_LOW_AT, MAGIC_AT, PRODUCER, PRODUCER_AT
from barnabas.wire.record_errors import RecordsError
from barnabas.wire.record_validation import check_produce_version
from barnabas.wire.records import MAGIC_V2
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.log.partition.write_queue import WriteQueue
    from barnabas.log.producers.producer_state import ProducerState, Verification

_SOME: Final = DECODED_PER_STEP
"""So many partitions, or four times as many topics, do not fit into a frame that is decoded in one step."""
_SHOWN_MAX: Final = 10
_Later = Awaitable[Steps["ProduceResponse | None"]]


class ProduceHandler:
    """Decodes nothing: the fast path and the codec do. It takes what the codec gives apart into its batches."""

    api_key = ApiKey.PRODUCE
    versions = (0, 11)

    def __init__(
        self,
        appends: RecordAppends,
        acknowledgements: Acknowledgements,
        replicas: Replicas,
        metadata: MetadataSource,
        write_queue: WriteQueue,
        now: Callable[[], float],
        verification: BatchVerification,
        access: ProduceAccess | None = None,
    ) -> None:
        """`now` is the loop's time; without `access` everybody may do everything."""
        self._verification = verification
        self._access = access or OpenAccess()
        self._pipeline = ProducePipeline(appends, acknowledgements, metadata, self._access)
        self._responses = ProduceResponses(replicas, metadata)
        self._fast_paths = ProduceFastPaths(self._pipeline, self._responses, replicas, write_queue, now)

    def handle(
        self, context: RequestContext, request: ProduceRequest
    ) -> ProduceResponse | Steps[ProduceResponse | _Later | None] | _Later | None:
        topics = request.topic_data
        if len(topics) >= 4 * _SOME or sum(len(topic.partition_data) for topic in topics) >= _SOME:
            return self._handle_in_steps(context, request)
        if request.transactional_id is None and _has_transactional(request.topic_data):
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if request.transactional_id is not None:
            producers = _transactional_producers(request.topic_data)
            _check_transaction(context, request.transactional_id, producers)
            _check_one_producer(producers)
        answer = _RequestAnswer(self, context, request)
        take_long = self._append(context, request, request.topic_data, answer)
        if take_long or answer.unverified:
            return self._append_in_steps(context, take_long, answer)
        return answer.response_now()

    def _handle_in_steps(
        self, context: RequestContext, request: ProduceRequest
    ) -> Steps[ProduceResponse | _Later | None]:
        """Appends to so many partitions at a time. The dispatcher keeps the frame of a request with so many, of which
        it has decoded only a part in its first step.
        """
        if request.transactional_id is None:
            for part in _parts(request):
                if _has_transactional(part):
                    raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
                yield
        else:
            producers: set[tuple[int, int]] = set()
            for part in _parts(request):
                known = bool(producers)
                producers |= _transactional_producers(part)
                if not known:
                    _check_transaction(context, request.transactional_id, producers)
                _check_one_producer(producers)
                yield
        named = yield from named_once(request.topic_data, lambda topic: topic.partition_data, lambda data: data.index)
        request.topic_data = yield from each(
            lambda topic: ProduceRequest.TopicProduceData(name=topic.name, partition_data=topic.partitions), named
        )
        answer = _RequestAnswer(self, context, request)
        take_long: list[tuple[_Batch, bytearray]] = []
        for part in _parts(request):
            take_long += self._append(context, request, part, answer)
            yield
        if take_long or answer.unverified:
            return self._append_in_steps(context, take_long, answer)
        return (yield from answer.response_in_steps())

    def _append_in_steps(
        self, context: RequestContext, batches: list[tuple[_Batch, bytearray]], answer: _RequestAnswer
    ) -> _Later:
        """Appends the batches that take long, and those that are to be verified first, in later turns, for which the
        connection's next requests wait.
        """
        answer.forget_records()
        context.connection.hold()
        unverified, answer.unverified = answer.unverified, []
        release = context.connection.claim_copy(
            sum(len(records) for _, records in batches) + sum(len(each.records) for each in unverified)
        )

        async def appended() -> Steps[ProduceResponse | None]:
            done = asyncio.Event()
            answer.when_done = done.set
            batches.reverse()
            try:
                while batches:
                    batch, records = batches.pop()
                    await self._pipeline.append_in_steps(batch.kind, batch, records, context.in_steps)
                    del records
                if unverified:
                    await self._append_verified(context, unverified)
            finally:
                for each in unverified:
                    each.end()
                release()
                context.connection.go_on()
            answer.handled()
            await done.wait()
            return answer.response()

        return appended()

    async def _append_verified(self, context: RequestContext, unverified: list[_Unverified]) -> None:
        """Appends those of which the coordinator says that their transactions have the partitions."""
        outcomes = await self._verification.verify([one.question for one in unverified], context.api_version)
        for one in unverified:
            batch = one.batch
            outcome = outcomes.get(batch.kind.topic_partition)
            if outcome is not None:
                batch.refuse(0, outcome)
                continue
            one.verification.is_verified = True
            batch.batches = (memoryview(one.records),)
            try:
                self._pipeline.append(batch.kind, batch, only_at_once=True)
            except TakesLongError:
                await self._pipeline.append_in_steps(batch.kind, batch, one.records, context.in_steps)
            batch.forget_records()
            one.end()
            await context.turn()

    def _append(
        self,
        context: RequestContext,
        request: ProduceRequest,
        topics: Sequence[ProduceRequest.TopicProduceData],
        answer: _RequestAnswer,
    ) -> list[tuple[_Batch, bytearray]]:
        """Returns the batches that take long, in memory of their own, for `_append_in_steps`."""
        principal, client_id, version = context.principal, context.client_id, context.api_version
        pipeline, place = self._pipeline, self._access.place_of(context.client_host)
        batches: dict[TopicPartition, tuple[ProduceKind, memoryview]] = {}  # of several the last, as in Kafka
        for topic in topics:
            denial: ProduceOutcome | None = None
            for data in topic.partition_data:
                topic_partition = TopicPartition(topic.name, data.index)
                records = memoryview(b"" if data.records is None else data.records)
                answer.size_bytes += len(records)
                kind = ProduceKind(
                    principal, place, client_id, version, request.acks, request.timeout_ms, topic_partition
                )
                outcome = denial or pipeline.refusal(kind) or _fault(records, version)
                if outcome is None:
                    batches[topic_partition] = (kind, records)
                else:
                    answer.outcomes[topic_partition] = outcome
                    if outcome.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                        denial = outcome
        take_long: list[tuple[_Batch, bytearray]] = []
        for kind, records in batches.values():
            batch = _Batch(answer, kind, records)
            if request.transactional_id is not None and _is_transactional(records):
                try:
                    unverified = self._unverified(request.transactional_id, batch, records)
                except KafkaError as error:
                    batch.refuse(0, ProduceOutcome(ErrorCode.for_code(error.code)))
                    continue
                if unverified is not None:
                    batch.forget_records()
                    answer.unverified.append(unverified)
                    continue
            try:
                pipeline.append(kind, batch, only_at_once=True)
            except TakesLongError:
                take_long.append((batch, bytearray(records)))
            batch.forget_records()
        return take_long

    def _unverified(self, transactional_id: str, batch: _Batch, records: memoryview) -> _Unverified | None:
        """None where the transaction is open in the partition. Raises KafkaError where this broker does not lead it."""
        producer_id, epoch, sequence = PRODUCER.unpack_from(records, PRODUCER_AT)
        producers = self._verification.producers(batch.kind.topic_partition)
        verification = producers.begin_verification(producer_id, epoch, sequence)
        if verification is None:
            return None
        question = Question(transactional_id, producer_id, epoch, (batch.kind.topic_partition,))
        return _Unverified(batch, bytearray(records), question, producers, verification)

    def error_response(
        self, context: RequestContext, request: ProduceRequest, error: KafkaError
    ) -> Steps[ProduceResponse] | None:
        if request.acks == 0:
            context.connection.fail(f"a produce request with acks 0 failed: {error}")
            return None
        outcome = ProduceOutcome(error.code)
        return self._responses.response(context.api_version, context.listener_name, request, {}, outcome)

    def response(
        self, context: RequestContext, request: ProduceRequest, outcomes: Outcomes, size_bytes: int
    ) -> Steps[ProduceResponse | None]:
        """For a request on its way: the response when all is done; None for acks 0. Its records had so many bytes.
        These are counted at once, since nobody takes the steps where the connection is over.
        """
        quota = self._access.quota(context.principal, context.client_id)
        throttle_time_ms = 0 if quota is None else quota.throttle_ms(size_bytes)
        if throttle_time_ms:
            context.connection.throttle(throttle_time_ms)
        return self._response(context, request, outcomes, throttle_time_ms)

    def _response(
        self, context: RequestContext, request: ProduceRequest, outcomes: Outcomes, throttle_time_ms: int
    ) -> Steps[ProduceResponse | None]:
        if request.acks == 0:
            if context.time is not None:
                charge(context.connection, context.time, None)
            failed = {topic_partition: outcome for topic_partition, outcome in outcomes.items() if outcome.code}
            if failed:
                some = islice(failed.items(), _SHOWN_MAX)
                reasons = ", ".join(f"{tp.topic}-{tp.partition}: {what.code.name}" for tp, what in some)
                context.connection.fail(f"a produce request with acks 0 failed ({reasons})")
            return None
        unknown = ProduceOutcome(ErrorCode.UNKNOWN_SERVER_ERROR)
        version, listener_name = context.api_version, context.listener_name
        return (
            yield from self._responses.response(version, listener_name, request, outcomes, unknown, throttle_time_ms)
        )

    # The fast path.

    def count_by(self, metrics: RequestMetrics) -> None:
        self._fast_paths.count_by(metrics)

    def fast_path(
        self,
        connection: ServerConnection,
        buffer: bytearray | memoryview,
        start: int,
        position: int,
        end: int,
        key_and_version: int,
    ) -> ProduceFastPath | None:
        return self._fast_paths.find(connection, buffer, start, position, end, key_and_version)


class _Batch:
    """One batch of a request that the codec has decoded; the pipeline's group of that one."""

    __slots__ = ("_answer", "_outcome", "batches", "kind")

    def __init__(self, answer: _RequestAnswer, kind: ProduceKind, records: memoryview) -> None:
        self.kind = kind
        self.batches: Sequence[memoryview] = (records,)
        self._answer = answer
        self._outcome = ProduceOutcome(ErrorCode.NONE)
        answer.pending += 1

    def refuse(self, number: int, outcome: ProduceOutcome) -> None:  # noqa: ARG002 - there is only one
        self._answer.done(self.kind.topic_partition, outcome)

    def forget_records(self) -> None:
        self.batches = ()

    def give(self, first: int, results: Sequence[AppendedBatch], code: ErrorCode, is_final: bool) -> None:  # noqa: ARG002 - as above
        self._outcome = ProduceOutcome.of(results[0], code)
        if is_final:
            self._answer.done(self.kind.topic_partition, self._outcome)

    def park(self, number: int, result: AppendedBatch, code: ErrorCode, *, is_queued: bool) -> _Batch:  # noqa: ARG002 - as above
        self._outcome = ProduceOutcome.of(result, code)
        self._answer.parks(is_queued=is_queued)
        return self

    def complete(self, code: ErrorCode, *, is_written: bool) -> None:
        outcome = self._outcome
        if code:
            outcome = outcome._replace(code=code) if is_written else ProduceOutcome(code)
        self._answer.done(self.kind.topic_partition, outcome)


class _Unverified:
    """A batch that would be the first of its transaction in the partition."""

    __slots__ = ("_is_over", "_producers", "batch", "question", "records", "verification")

    def __init__(
        self,
        batch: _Batch,
        records: bytearray,
        question: Question,
        producers: ProducerState,
        verification: Verification,
    ) -> None:
        self.batch = batch
        self.records = records
        self.question = question
        self.verification = verification
        self._producers = producers
        self._is_over = False

    def end(self) -> None:
        """It is in the log, or refused."""
        if not self._is_over:
            self._is_over = True
            self._producers.end_verification(self.verification)


class _RequestAnswer:
    """The answer to a request that the codec has decoded, whose outcomes may be there at once or later."""

    __slots__ = (
        *("_awaits_disk", "_awaits_others", "_context", "_handler", "_request", "_responder"),
        *("outcomes", "pending", "size_bytes", "unverified", "when_done"),
    )

    def __init__(self, handler: ProduceHandler, context: RequestContext, request: ProduceRequest) -> None:
        self._handler = handler
        self._context = context
        self._request = request
        self._responder: Responder | None = None
        self._awaits_disk = self._awaits_others = False
        self.outcomes: Outcomes = {}
        self.pending = 1
        """Batches without an outcome; and the request, until it is handled."""
        self.size_bytes = 0
        """Of the records."""
        self.unverified: list[_Unverified] = []
        self.when_done: Callable[[], object] | None = None
        """Called instead of answering, when there is an outcome of every part."""

    def done(self, topic_partition: TopicPartition, outcome: ProduceOutcome) -> None:
        """What became of a batch."""
        # Of a partition that was named twice, once in vain, the refusal is told, as in Kafka.
        self.outcomes.setdefault(topic_partition, outcome)
        self.handled()

    def parks(self, *, is_queued: bool) -> None:
        """A batch waits for a sync only (`is_queued`), or for replicas."""
        if is_queued:
            self._awaits_disk = True
        else:
            self._awaits_others = True

    def handled(self) -> None:
        """A batch has its outcome, or the request is handled, so that there come no more of them."""
        self.pending -= 1
        if self.pending:
            return
        if self.when_done is not None:
            self.when_done()
        elif self._responder is not None:
            self._responder.respond(self.response())

    def response_now(self) -> ProduceResponse | None:
        """The response if it is there already; else None, and it is given later.

        The request is kept until then, for its topics in their order, but not its records.
        """
        self.forget_records()
        self.handled()
        if not self.pending:
            return at_once(self.response())
        self._park()
        return None

    def _park(self) -> None:
        """`queued.max.requests` bounds what waits for the disk; nobody is held up by followers, so one whose batches
        wait for either does not count."""
        self._responder = self._context.park(is_queued=self._awaits_disk and not self._awaits_others)

    def forget_records(self) -> None:
        """The memory that they were received in is used again."""
        for topic in self._request.topic_data:
            for data in topic.partition_data:
                data.records = None

    def response_in_steps(self) -> Steps[ProduceResponse | None]:
        """As `response_now`, of very many partitions."""
        for position, topic in enumerate(self._request.topic_data):
            for start in range(0, len(topic.partition_data), _SOME):
                for data in topic.partition_data[start : start + _SOME]:
                    data.records = None
                yield
            if position % _SOME == _SOME - 1:
                yield
        self.handled()
        if not self.pending:
            return (yield from self.response())
        self._park()
        return None

    def response(self) -> Steps[ProduceResponse | None]:
        """What there is to answer when all is done."""
        return self._handler.response(self._context, self._request, self.outcomes, self.size_bytes)


def _parts(request: ProduceRequest) -> Iterator[list[ProduceRequest.TopicProduceData]]:
    """The topics of a request in parts of some hundred partitions."""
    part: list[ProduceRequest.TopicProduceData] = []
    left = STEP_ELEMENTS
    for topic in request.topic_data:
        for start in range(0, len(topic.partition_data), STEP_ELEMENTS):
            some = topic.partition_data[start : start + STEP_ELEMENTS]
            part.append(ProduceRequest.TopicProduceData(name=topic.name, partition_data=some))
            left -= 1 + len(some)
            if left <= 0:
                yield part
                part, left = [], STEP_ELEMENTS
    yield part


def _has_transactional(topics: Sequence[ProduceRequest.TopicProduceData]) -> bool:
    return any(
        data.records is not None and _is_transactional(memoryview(data.records))
        for topic in topics
        for data in topic.partition_data
    )


def _transactional_producers(topics: Sequence[ProduceRequest.TopicProduceData]) -> set[tuple[int, int]]:
    """Ids and epochs."""
    return {
        PRODUCER.unpack_from(data.records, PRODUCER_AT)[:2]
        for topic in topics
        for data in topic.partition_data
        if data.records is not None and _is_transactional(memoryview(data.records))
    }


def _check_transaction(context: RequestContext, transactional_id: str, producers: set[tuple[int, int]]) -> None:
    """Raises `KafkaError` where there are transactional batches that may not be of this transactional id."""
    if producers and not may(context, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def _check_one_producer(producers: set[tuple[int, int]]) -> None:
    if len(producers) > 1:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING, "Transactional records contained more than one producer ID"
        )


def _is_transactional(records: memoryview) -> bool:
    """Looks at the first batch; a request that may have transactional batches has only one per partition."""
    return (
        len(records) >= PRODUCER_AT + PRODUCER.size
        and records[MAGIC_AT] == MAGIC_V2
        and bool(records[ATTRIBUTES_LOW_AT] & ATTRIBUTE_TRANSACTIONAL)
    )


def _fault(records: memoryview, api_version: int) -> ProduceOutcome | None:
    """What is wrong with records at first sight; nothing with those that the fast path takes."""
    try:
        check_produce_version(records, api_version)
    except RecordsError as error:
        return ProduceOutcome(error.error)
    return None
