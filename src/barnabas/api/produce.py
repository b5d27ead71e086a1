"""Produce, 0 to 11: appends batches to partitions that this broker leads, for producers.

Answered when the batches are written (acks 1) or replicated too (acks -1); acks 0 has no answer, and an error closes
the connection, so that the producer notices. Idempotent producers are served. Left out: transactions; a transactional
batch is INVALID_TXN_STATE, because no transaction has its partition, and TRANSACTIONAL_ID_AUTHORIZATION_FAILED without
a transactional id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from barnabas.api.context import RequestContext, Responder
from barnabas.api.current_leader import CurrentLeader, current_leader
from barnabas.api.named_once import named_once
from barnabas.api.produce_fast_path import AppendTarget, Collection, ProduceWay
from barnabas.api.produce_frames import OLDEST_VERSION, read_frame
from barnabas.api.request_metrics import RequestMetrics
from barnabas.cluster.metadata_responses import is_internal
from barnabas.kernel.steps import STEP_ELEMENTS, Steps, at_once, each, each_within
from barnabas.network.connection import ServerConnection
from barnabas.serving.acknowledgements import Acknowledgements
from barnabas.serving.ports import MetadataSource, Replicas
from barnabas.serving.produce import VALID_ACKS, Outcomes, ProduceOutcome, RecordAppends
from barnabas.serving.topic_metrics import BrokerTopicMetrics
from barnabas.wire import codec
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.compiler_decode import STEP_ELEMENTS as DECODED_PER_STEP
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import ProduceRequest, ProduceResponse
from barnabas.wire.primitives import Buffer
from barnabas.wire.record_errors import RecordsError
from barnabas.wire.record_validation import check_produce_version
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.leader.partition import Partition
    from barnabas.log.partition.write_queue import WriteQueue

ADMIN_CLIENT_ID: Final = "__admin_client"
"""Whoever calls itself so may write to internal topics, as in Kafka."""
_LEADER_SINCE: Final = 10
_TRANSACTIONAL: Final = 0x10
_ATTRIBUTES_AT: Final = 22
_HEADER_BYTES: Final = 8
_SOME: Final = DECODED_PER_STEP
"""So many partitions, or four times as many topics, do not fit into a frame that is decoded in one step."""
_SHOWN_MAX: Final = 10
_WAYS_MAX: Final = 20_000
_Later = Awaitable[Steps["ProduceResponse | None"]]


class ProduceHandler:
    """Requests of one batch for one partition take a fast path, all others the general one."""

    api_key = ApiKey.PRODUCE
    versions = (0, 11)

    def __init__(
        self,
        appends: RecordAppends,
        acknowledgements: Acknowledgements,
        replicas: Replicas,
        metadata: MetadataSource,
        write_queue: WriteQueue,
        topic_metrics: BrokerTopicMetrics,
        now: Callable[[], float],
    ) -> None:
        """`now` is the loop's time."""
        self._appends = appends
        self._acknowledgements = acknowledgements
        self._replicas = replicas
        self._metadata = metadata
        self._write_queue = write_queue
        self._topic_metrics = topic_metrics
        self._now = now
        self._ways: dict[tuple[int, bytes], ProduceWay] = {}
        self._collection = Collection(write_queue)
        self._request_metrics: RequestMetrics | None = None

    # The general path.

    def handle(
        self, context: RequestContext, request: ProduceRequest
    ) -> ProduceResponse | Steps[ProduceResponse | _Later | None] | _Later | None:
        topics = request.topic_data
        if len(topics) >= 4 * _SOME or sum(len(topic.partition_data) for topic in topics) >= _SOME:
            return self._handle_in_steps(context, request)
        if request.transactional_id is None and _has_transactional(request.topic_data):
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        answer = _RequestAnswer(self, context, request)
        take_long = self._append(context, request, request.topic_data, answer)
        if take_long:
            return self._append_in_steps(context, request, take_long, answer)
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
        named = yield from named_once(request.topic_data, lambda topic: topic.partition_data, lambda data: data.index)
        request.topic_data = yield from each(
            lambda topic: ProduceRequest.TopicProduceData(name=topic.name, partition_data=topic.partitions), named
        )
        answer = _RequestAnswer(self, context, request)
        take_long: list[tuple[TopicPartition, bytearray]] = []
        for part in _parts(request):
            take_long += self._append(context, request, part, answer)
            yield
        if take_long:
            return self._append_in_steps(context, request, take_long, answer)
        return (yield from answer.response_in_steps())

    def _append_in_steps(
        self,
        context: RequestContext,
        request: ProduceRequest,
        batches: list[tuple[TopicPartition, bytearray]],
        answer: _RequestAnswer,
    ) -> _Later:
        """Appends the batches that take long, in later turns, for which the connection's next requests wait."""
        answer.begin({})
        answer.forget_records()
        context.connection.hold()
        release = context.connection.claim_copy(sum(len(records) for _, records in batches))

        async def appended() -> Steps[ProduceResponse | None]:
            done = asyncio.Event()
            answer.when_done = done.set
            try:
                await self._appends.append_in_steps(
                    batches,
                    required_acks=request.acks,
                    timeout_ms=request.timeout_ms,
                    produce_version=context.api_version,
                    in_steps=context.in_steps,
                    on_done=answer.done,
                )
            finally:
                release()
                context.connection.go_on()
            await done.wait()
            return answer.response()

        return appended()

    def _append(
        self,
        context: RequestContext,
        request: ProduceRequest,
        topics: Sequence[ProduceRequest.TopicProduceData],
        answer: _RequestAnswer,
    ) -> list[tuple[TopicPartition, bytearray]]:
        """Returns the batches that take long, in memory of their own, for `_append_in_steps`."""
        version = context.api_version
        refused: Outcomes = {}
        batches: dict[TopicPartition, memoryview] = {}  # of several for one partition the last, as in Kafka
        image = self._metadata.image
        for topic in topics:
            for data in topic.partition_data:
                topic_partition = TopicPartition(topic.name, data.index)
                records = memoryview(b"" if data.records is None else data.records)
                if image.partition(topic_partition) is None:
                    refused[topic_partition] = ProduceOutcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                    continue
                try:
                    check_produce_version(records, version)
                except RecordsError as error:
                    refused[topic_partition] = ProduceOutcome(error.error)
                    continue
                if _is_transactional(records):
                    refused[topic_partition] = ProduceOutcome(ErrorCode.INVALID_TXN_STATE)
                    continue
                batches[topic_partition] = records
        answer.begin(refused)
        take_long = self._appends.append(
            list(batches.items()),
            required_acks=request.acks,
            timeout_ms=request.timeout_ms,
            produce_version=version,
            internal_topics_allowed=context.client_id == ADMIN_CLIENT_ID,
            on_done=answer.done,
        )
        return [(topic_partition, bytearray(records)) for topic_partition, records in take_long]

    def error_response(
        self, context: RequestContext, request: ProduceRequest, error: KafkaError
    ) -> Steps[ProduceResponse] | None:
        if request.acks == 0:
            context.connection.fail(f"a produce request with acks 0 failed: {error}")
            return None
        outcome = ProduceOutcome(error.code)
        return _response(request, {}, outcome)

    def response(
        self, context: RequestContext, request: ProduceRequest, outcomes: Outcomes
    ) -> Steps[ProduceResponse | None]:
        """For a request on its way: the response when all is done; None for acks 0."""
        if request.acks == 0:
            failed = {topic_partition: outcome for topic_partition, outcome in outcomes.items() if outcome.code}
            if failed:
                some = islice(failed.items(), _SHOWN_MAX)
                reasons = ", ".join(f"{tp.topic}-{tp.partition}: {what.code.name}" for tp, what in some)
                context.connection.fail(f"a produce request with acks 0 failed ({reasons})")
            return None
        response = yield from _response(request, outcomes, ProduceOutcome(ErrorCode.UNKNOWN_SERVER_ERROR))
        if context.api_version >= _LEADER_SINCE:
            self._add_leaders(context.listener_name, response)
        return response

    def _add_leaders(self, listener_name: str, response: ProduceResponse) -> None:
        """Names the leaders to a client that has come to the wrong broker."""
        nodes: dict[int, CurrentLeader] = {}
        for topic in response.responses:
            for partition in topic.partition_responses:
                if partition.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    continue
                leader = current_leader(
                    TopicPartition(topic.name, partition.index),
                    self._replicas,
                    self._metadata.image,
                    listener_name,
                )
                partition.current_leader = ProduceResponse.LeaderIdAndEpoch(
                    leader_id=leader.leader_id, leader_epoch=leader.leader_epoch
                )
                if leader.node is not None:
                    nodes[leader.leader_id] = leader
        response.node_endpoints = [
            ProduceResponse.NodeEndpoint(
                node_id=leader.node.broker_id, host=leader.node.host, port=leader.node.port, rack=leader.node.rack
            )
            for leader in nodes.values()
            if leader.node is not None
        ]

    # The fast path.

    def count_by(self, metrics: RequestMetrics) -> None:
        self._request_metrics = metrics

    def fast_path(
        self,
        buffer: bytearray | memoryview,
        start: int,
        position: int,
        end: int,
        key_and_version: int,
    ) -> ProduceWay | None:
        version = key_and_version & 0xFFFF
        frame = read_frame(buffer, position, version) if version >= OLDEST_VERSION else None
        if frame is None or frame.size_at >= end or frame.acks not in VALID_ACKS:
            return None
        partition = self._replicas.find_partition(frame.topic_partition)
        if partition is None:
            return None
        prefix = bytes(buffer[start + _HEADER_BYTES : frame.size_at])
        way = self._ways.get((key_and_version, prefix))
        if way is None or way.partition is not partition:
            target = self._target(partition, version)
            if target is None:
                return None
            if len(self._ways) >= _WAYS_MAX:
                self._ways.clear()
            way = ProduceWay(target, self._collection, key_and_version, prefix, frame.acks, frame.timeout_ms)
            self._ways[key_and_version, prefix] = way
        return way

    def _target(self, partition: Partition, api_version: int) -> AppendTarget | None:
        """The partition, if there is nothing to say about it that only the general path can."""
        topic_partition = partition.topic_partition
        if (
            self._request_metrics is None
            or is_internal(topic_partition.topic)
            or self._metadata.image.partition(topic_partition) is None
        ):
            return None
        return AppendTarget(
            partition,
            api_version,
            self._acknowledgements,
            self._write_queue,
            self._topic_metrics.of(topic_partition.topic),
            self._request_metrics,
            self._metadata,
            self._refusal,
            self._failure,
            self._now,
        )

    def _refusal(
        self,
        connection: ServerConnection,
        partition: Partition,
        api_version: int,
        correlation_id: int,
        error: Exception,
    ) -> tuple[ErrorCode, list[Buffer]]:
        """The code, and the response of the general path, for a request that was collected and not appended."""
        outcome = self._appends.refused(partition.topic_partition, error)
        return outcome.code, self._failure(connection, partition, api_version, correlation_id, outcome)

    def _failure(
        self,
        connection: ServerConnection,
        partition: Partition,
        api_version: int,
        correlation_id: int,
        outcome: ProduceOutcome,
    ) -> list[Buffer]:
        """The response of the general path to a request whose records do not count, as they could not be written or as
        their leader was deposed.
        """
        topic_partition = partition.topic_partition
        response = ProduceResponse(
            responses=[
                ProduceResponse.TopicProduceResponse(
                    name=topic_partition.topic,
                    partition_responses=[_partition_response(topic_partition.partition, outcome)],
                )
            ]
        )
        if api_version >= _LEADER_SINCE:
            self._add_leaders(connection.listener.name, response)
        return codec.response_encoder(ApiKey.PRODUCE, api_version)(correlation_id, response)


class _RequestAnswer:
    """A request on the general path, whose outcomes may be there at once or later."""

    __slots__ = ("_context", "_handler", "_outcomes", "_pending", "_request", "_responder", "when_done")

    def __init__(self, handler: ProduceHandler, context: RequestContext, request: ProduceRequest) -> None:
        self._handler = handler
        self._context = context
        self._request = request
        self._outcomes: Outcomes = {}
        self._pending = 0
        self._responder: Responder | None = None
        self.when_done: Callable[[], object] | None = None
        """Called instead of answering, when there is an outcome of every part."""

    def begin(self, refused: Outcomes) -> None:
        """A part of the request is appended, but for what was refused before."""
        self._outcomes.update(refused)
        self._pending += 1

    def done(self, outcomes: Outcomes) -> None:
        """What became of a part."""
        for topic_partition, outcome in outcomes.items():
            # Of a partition that was named twice, once in vain, the refusal is told, as in Kafka.
            self._outcomes.setdefault(topic_partition, outcome)
        self._pending -= 1
        if self._pending:
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
        if not self._pending:
            return at_once(self.response())
        self._responder = self._context.park()
        return None

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
        if not self._pending:
            return (yield from self.response())
        self._responder = self._context.park()
        return None

    def response(self) -> Steps[ProduceResponse | None]:
        """What there is to answer when all is done."""
        return self._handler.response(self._context, self._request, self._outcomes)


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


def _response(request: ProduceRequest, outcomes: Outcomes, default: ProduceOutcome) -> Steps[ProduceResponse]:
    """The outcomes in the order of the request, one for each partition; a topic without partitions is left out."""
    named = yield from named_once(request.topic_data, lambda topic: topic.partition_data, lambda data: data.index)
    topics = yield from each_within(
        named,
        lambda topic: topic.partitions,
        lambda topic, data: _partition_response(
            data.index, outcomes.get(TopicPartition(topic.name, data.index), default)
        ),
        lambda topic, found: ProduceResponse.TopicProduceResponse(name=topic.name, partition_responses=found),
    )
    return ProduceResponse(responses=topics)


def _partition_response(index: int, outcome: ProduceOutcome) -> ProduceResponse.PartitionProduceResponse:
    return ProduceResponse.PartitionProduceResponse(
        index=index,
        error_code=outcome.code,
        base_offset=outcome.first_offset,
        log_append_time_ms=outcome.log_append_time_ms,
        log_start_offset=outcome.log_start_offset,
        record_errors=[
            ProduceResponse.BatchIndexAndErrorMessage(
                batch_index=error.batch_index, batch_index_error_message=error.message
            )
            for error in outcome.record_errors
        ],
        error_message=outcome.message,
    )


def _has_transactional(topics: Sequence[ProduceRequest.TopicProduceData]) -> bool:
    return any(
        data.records is not None and _is_transactional(memoryview(data.records))
        for topic in topics
        for data in topic.partition_data
    )


def _is_transactional(records: memoryview) -> bool:
    """Looks at the first batch; a request that may have transactional batches has only one per partition."""
    return len(records) > _ATTRIBUTES_AT and records[16] == 2 and bool(records[_ATTRIBUTES_AT] & _TRANSACTIONAL)
