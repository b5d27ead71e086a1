"""Produce, 0 to 11: appends batches to partitions that this broker leads, for producers.

Answered when the batches are written (acks 1) or replicated too (acks -1); acks 0 has no answer, and an error closes
the connection, so that the producer notices. Idempotent producers are served. Left out: transactions; a transactional
batch is INVALID_TXN_STATE, because no transaction has its partition, and TRANSACTIONAL_ID_AUTHORIZATION_FAILED without
a transactional id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, Protocol

from barnabas.api.context import RequestContext, Responder
from barnabas.api.current_leader import CurrentLeader, LocalPartitions, current_leader
from barnabas.api.produce_frames import OLDEST_VERSION, ResponseForm, read_frame, read_key
from barnabas.api.request_metrics import RequestMetrics
from barnabas.cluster.image import MetadataImage
from barnabas.cluster.metadata_responses import is_internal
from barnabas.coordination.layout.topics import TopicPartition
from barnabas.network.connection import ServerConnection, Slot
from barnabas.replication.acknowledgements import Acknowledgements
from barnabas.replication.produce import ACKS_ALL, VALID_ACKS, Outcomes, ProduceOutcome, RecordAppends
from barnabas.replication.topic_metrics import BrokerTopicMetrics, TopicMetrics
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import ProduceRequest, ProduceResponse
from barnabas.wire.primitives import Buffer
from barnabas.wire.record_errors import RecordsError
from barnabas.wire.record_validation import check_produce_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.log.partition_log import PartitionLog
    from barnabas.log.write_queue import WriteQueue
    from barnabas.replication.partition import Partition

ADMIN_CLIENT_ID: Final = "__admin_client"
"""Whoever calls itself so may write to internal topics, as in Kafka."""
_LEADER_SINCE: Final = 10
_TRANSACTIONAL: Final = 0x10
_ATTRIBUTES_AT: Final = 22
_LONG_MAX: Final = (1 << 63) - 1
_TARGETS_MAX: Final = 20_000


class ReplicaLookup(LocalPartitions, Protocol):
    """The partitions of this broker; the replica manager."""

    def get_partition(self, topic_partition: TopicPartition) -> Partition:
        """Raises KafkaError for a partition that is not here."""
        ...


class MetadataSource(Protocol):
    """What is known of the cluster; the metadata cache."""

    @property
    def image(self) -> MetadataImage: ...


class ProduceHandler:
    """Requests of one batch for one partition take a short way (`take_frame`), all others the general one."""

    api_key = ApiKey.PRODUCE
    versions = (0, 11)

    def __init__(
        self,
        appends: RecordAppends,
        acknowledgements: Acknowledgements,
        replicas: ReplicaLookup,
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
        self._targets: dict[bytes, _Target] = {}
        self._request_metrics: RequestMetrics | None = None

    # The general way.

    def handle(self, context: RequestContext, request: ProduceRequest) -> ProduceResponse | None:
        version = context.api_version
        refused: Outcomes = {}
        batches: list[tuple[TopicPartition, memoryview]] = []
        image = self._metadata.image
        if request.transactional_id is None and _has_transactional(request):
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        for topic in request.topic_data:
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
                batches.append((topic_partition, records))
        answer = _RequestAnswer(self, context, request, refused)
        self._appends.append(
            batches,
            required_acks=request.acks,
            timeout_ms=request.timeout_ms,
            produce_version=version,
            internal_topics_allowed=context.client_id == ADMIN_CLIENT_ID,
            on_done=answer.done,
        )
        return answer.response_now()

    def error_response(
        self, context: RequestContext, request: ProduceRequest, error: KafkaError
    ) -> ProduceResponse | None:
        if request.acks == 0:
            context.connection.fail(f"a produce request with acks 0 failed: {error}")
            return None
        outcome = ProduceOutcome(error.code, message=error.message)
        return _response(request, {}, outcome)

    def response(self, context: RequestContext, request: ProduceRequest, outcomes: Outcomes) -> ProduceResponse | None:
        """For a request on its way: the response when all is done; None for acks 0."""
        if request.acks == 0:
            failed = {topic_partition: outcome for topic_partition, outcome in outcomes.items() if outcome.code}
            if failed:
                reasons = ", ".join(f"{tp.topic}-{tp.partition}: {what.code.name}" for tp, what in failed.items())
                context.connection.fail(f"a produce request with acks 0 failed ({reasons})")
            return None
        response = _response(request, outcomes, ProduceOutcome(ErrorCode.UNKNOWN_SERVER_ERROR))
        if context.api_version >= _LEADER_SINCE:
            self._add_leaders(context, response)
        return response

    def _add_leaders(self, context: RequestContext, response: ProduceResponse) -> None:
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
                    context.listener_name,
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

    # The short way.

    def count_by(self, metrics: RequestMetrics) -> None:
        self._request_metrics = metrics

    def take_frame(
        self,
        connection: ServerConnection,
        buffer: bytearray | memoryview,
        position: int,
        end: int,
        api_version: int,
        correlation_id: int,
    ) -> list[Buffer] | Literal[False] | None:
        if api_version < OLDEST_VERSION:
            return False
        frame = read_frame(buffer, position, end, api_version)
        if frame is None:
            return False
        key, acks, timeout_ms, start, records_end = frame
        target = self._targets.get(key)
        if target is None:
            target = self._new_target(key, api_version)
            if target is None:
                return False
        partition = target.partition
        log = partition.log
        if log is None or acks not in VALID_ACKS or log.config.flush_messages != _LONG_MAX:
            # Where a sync comes before the answer, that is not within this tick.
            return False
        try:
            result = partition.append(
                memoryview(buffer)[start:records_end], required_acks=acks, produce_version=api_version
            )
        except KafkaError:
            # Nothing was appended. The general way comes to the same refusal, and says it with all that belongs to it.
            self._targets.pop(key, None)
            return False
        metrics = target.metrics
        metrics.produce_requests.count += 1
        metrics.bytes_in.count += records_end - start
        metrics.messages_in.count += result.record_count
        if result.converted_count:
            metrics.produce_conversions.count += result.converted_count
        if acks == 0:
            if self._write_queue.needs_wait(log):
                self._acknowledgements.when_written(partition, log, _Silence(connection))
            return None
        form = target.form(api_version)
        response = form.frame(correlation_id, result.first_offset, result.log_append_time_ms, result.log_start_offset)
        return self._answer(connection, target, log, form, response, acks, timeout_ms, result.last_offset + 1)

    def _answer(
        self,
        connection: ServerConnection,
        target: _Target,
        log: PartitionLog,
        form: ResponseForm,
        response: bytearray,
        acks: int,
        timeout_ms: int,
        required_offset: int,
    ) -> list[Buffer] | None:
        """Gives the response in this tick where it can be true by its end, or when the replicas have the records.

        The tick writes before it sends. So the response may take its place now, and says otherwise if that write fails.
        """
        partition = target.partition
        if acks == ACKS_ALL:
            code = partition.is_replicated(required_offset)
            if code is None:
                parked = _Parked(self, connection.park(), form, response)
                self._acknowledgements.when_replicated(partition, log, required_offset, timeout_ms, parked)
                return None
            if code:
                form.set_error(response, code)
                self.count(None, code)
        if self._write_queue.needs_wait(log):
            self._acknowledgements.when_written(partition, log, _Given(self, form, response))
        if self._request_metrics is not None:
            self._request_metrics.answered_at_once += 1
        return [response]

    def count(self, received: float | None, code: ErrorCode) -> None:
        """For answers: counts the error of one, and its time if it was given later."""
        metrics = self._request_metrics
        if metrics is None:
            return
        if received is not None:
            metrics.answered_later(int((self._now() - received) * 1000), is_queued=False)
        metrics.count_error(code)

    def now(self) -> float:
        return self._now()

    def _new_target(self, key: bytes, api_version: int) -> _Target | None:
        """Looks the partition up; None if there is something to say about it that only the general way can."""
        topic_partition = read_key(key, api_version)
        if topic_partition is None or is_internal(topic_partition.topic):
            return None
        partition = self._replicas.find_partition(topic_partition)
        if partition is None or self._metadata.image.partition(topic_partition) is None:
            return None
        if len(self._targets) >= _TARGETS_MAX:
            self._targets.clear()
        target = self._targets[key] = _Target(topic_partition, partition, self._topic_metrics.of(topic_partition.topic))
        return target


class _Target:
    """A partition that is produced to, found by the bytes that name it in a frame."""

    __slots__ = ("_forms", "metrics", "partition", "topic_partition")

    def __init__(self, topic_partition: TopicPartition, partition: Partition, metrics: TopicMetrics) -> None:
        self.topic_partition = topic_partition
        self.partition = partition
        self.metrics = metrics
        self._forms: dict[int, ResponseForm] = {}

    def form(self, api_version: int) -> ResponseForm:
        found = self._forms.get(api_version)
        if found is None:
            found = self._forms[api_version] = ResponseForm.of(self.topic_partition, api_version)
        return found


class _Given:
    """A response that has taken its place before the write that makes it true."""

    __slots__ = ("_form", "_handler", "_response")

    def __init__(self, handler: ProduceHandler, form: ResponseForm, response: bytearray) -> None:
        self._handler = handler
        self._form = form
        self._response = response

    def give(self, code: ErrorCode) -> None:
        if code:
            self._form.set_error(self._response, code)
            self._handler.count(None, code)


class _Parked:
    """A response that waits for the replicas."""

    __slots__ = ("_form", "_handler", "_received", "_response", "_slot")

    def __init__(self, handler: ProduceHandler, slot: Slot, form: ResponseForm, response: bytearray) -> None:
        self._handler = handler
        self._slot = slot
        self._form = form
        self._response = response
        self._received = handler.now()

    def give(self, code: ErrorCode) -> None:
        if code:
            self._form.set_error(self._response, code)
        self._handler.count(self._received, code)
        self._slot.complete([self._response])


class _Silence:
    """A producer that wants no answer."""

    __slots__ = ("_connection",)

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    def give(self, code: ErrorCode) -> None:
        if code:
            self._connection.fail(f"a produce request with acks 0 failed ({code.name})")


class _RequestAnswer:
    """A request on the general way, whose outcomes may be there at once or later."""

    __slots__ = ("_context", "_handler", "_outcomes", "_refused", "_request", "_responder")

    def __init__(
        self, handler: ProduceHandler, context: RequestContext, request: ProduceRequest, refused: Outcomes
    ) -> None:
        self._handler = handler
        self._context = context
        self._request = request
        self._refused = refused
        self._outcomes: Outcomes | None = None
        self._responder: Responder | None = None

    def done(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes | self._refused
        if self._responder is not None:
            self._responder.respond(self._response(self._outcomes))

    def response_now(self) -> ProduceResponse | None:
        """The response if it is there already; else None, and it is given later.

        The request is kept until then, for its topics in their order, but not its records.
        """
        for topic in self._request.topic_data:
            for data in topic.partition_data:
                data.records = None
        if self._outcomes is not None:
            return self._response(self._outcomes)
        self._responder = self._context.park()
        return None

    def _response(self, outcomes: Outcomes) -> ProduceResponse | None:
        return self._handler.response(self._context, self._request, outcomes)


def _response(request: ProduceRequest, outcomes: Outcomes, default: ProduceOutcome) -> ProduceResponse:
    """The outcomes in the order of the request."""
    return ProduceResponse(
        responses=[
            ProduceResponse.TopicProduceResponse(
                name=topic.name,
                partition_responses=[
                    _partition_response(data.index, outcomes.get(TopicPartition(topic.name, data.index), default))
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


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


def _has_transactional(request: ProduceRequest) -> bool:
    return any(
        data.records is not None and _is_transactional(memoryview(data.records))
        for topic in request.topic_data
        for data in topic.partition_data
    )


def _is_transactional(records: memoryview) -> bool:
    """Looks at the first batch; a request that may have transactional batches has only one per partition."""
    return len(records) > _ATTRIBUTES_AT and records[16] == 2 and bool(records[_ATTRIBUTES_AT] & _TRANSACTIONAL)
