"""WriteTxnMarkers, 0 to 1: a transaction coordinator ends transactions in partitions that this broker leads.

Answered when the markers are replicated, and where a partition is of `__consumer_offsets`, when the group coordinator
shows or forgets the transaction's offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from barnabas.api.authorization import check_cluster, may_with_cluster
from barnabas.api.context import RequestContext, Responder
from barnabas.kernel.steps import STEP_ELEMENTS, Steps
from barnabas.security.acls import AclOperation
from barnabas.serving.transaction_markers import Marker, MarkerAppends
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.control_records import ControlRecordType, EndTransactionMarker
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from barnabas.wire.topics import OFFSETS_TOPIC, TopicPartition

Outcomes = dict[int, dict[TopicPartition, ErrorCode]]
"""By producer; of a partition that was named twice the last, as in Kafka."""


class GroupTransactions(Protocol):
    """The offsets that transactions commit; the group coordinator."""

    def complete_transaction(
        self, partition_index: int, producer_id: int, on_done: Callable[[], object], *, is_commit: bool
    ) -> None:
        """The marker is committed in that partition of `__consumer_offsets`. Calls `on_done` once, when none of the
        producer's offsets there is pending any more; at once if this broker does not have the partition's groups.
        """
        ...


class WriteTxnMarkersHandler:
    """Appends each marker to its partitions."""

    api_key = ApiKey.WRITE_TXN_MARKERS
    versions = (0, 1)

    def __init__(self, appends: MarkerAppends, groups: GroupTransactions) -> None:
        self._appends = appends
        self._groups = groups

    def handle(self, context: RequestContext, request: WriteTxnMarkersRequest) -> Steps[WriteTxnMarkersResponse | None]:
        if not may_with_cluster(context, AclOperation.ALTER, quietly=True):
            check_cluster(context, AclOperation.CLUSTER_ACTION)
        answer = _Answer()
        left = STEP_ELEMENTS
        for asked in request.markers:
            is_commit = asked.transaction_result
            kind = ControlRecordType.COMMIT if is_commit else ControlRecordType.ABORT
            marker = Marker(
                asked.producer_id, asked.producer_epoch, EndTransactionMarker(kind, asked.coordinator_epoch)
            )
            outcomes = answer.outcomes.setdefault(asked.producer_id, {})
            for topic in asked.topics:
                for number in topic.partition_indexes:
                    self._append(TopicPartition(topic.name, number), marker, outcomes, answer, is_commit=is_commit)
                    left -= 1
                    if not left:
                        yield
                        left = STEP_ELEMENTS
            left -= 1
            if not left:
                yield
                left = STEP_ELEMENTS
        answer.one_done()
        if not answer.pending:
            return (yield from _response(answer.outcomes))
        answer.responder = context.park()
        return None

    def _append(
        self,
        topic_partition: TopicPartition,
        marker: Marker,
        outcomes: dict[TopicPartition, ErrorCode],
        answer: _Answer,
        *,
        is_commit: bool,
    ) -> None:
        def done(code: ErrorCode) -> None:
            outcomes[topic_partition] = code
            if code is ErrorCode.NONE and topic_partition.topic == OFFSETS_TOPIC:
                # Before the coordinator hears of it: the producer's next transaction may commit offsets of the group.
                self._groups.complete_transaction(
                    topic_partition.partition, marker.producer_id, answer.one_done, is_commit=is_commit
                )
            else:
                answer.one_done()

        answer.pending += 1
        self._appends.append(topic_partition, marker, done)

    def error_response(
        self, _context: RequestContext, request: WriteTxnMarkersRequest, error: KafkaError
    ) -> Steps[WriteTxnMarkersResponse]:
        code = ErrorCode.for_code(error.code)
        outcomes: Outcomes = {}
        left = STEP_ELEMENTS
        for marker in request.markers:
            codes = outcomes.setdefault(marker.producer_id, {})
            for topic in marker.topics:
                for number in topic.partition_indexes:
                    codes[TopicPartition(topic.name, number)] = code
                    left -= 1
                    if not left:
                        yield
                        left = STEP_ELEMENTS
            left -= 1
            if not left:
                yield
                left = STEP_ELEMENTS
        return (yield from _response(outcomes))


class _Answer:
    """The answer to a request whose markers are on their way."""

    __slots__ = ("outcomes", "pending", "responder")

    def __init__(self) -> None:
        self.outcomes: Outcomes = {}
        self.pending = 1
        """Markers without an outcome; and the request, until all are appended."""
        self.responder: Responder | None = None

    def one_done(self) -> None:
        self.pending -= 1
        if not self.pending and self.responder is not None:
            self.responder.respond(_response(self.outcomes))


def _response(outcomes: Outcomes) -> Steps[WriteTxnMarkersResponse]:
    results: list[WriteTxnMarkersResponse.WritableTxnMarkerResult] = []
    left = STEP_ELEMENTS
    for producer_id, codes in outcomes.items():
        topics: dict[str, WriteTxnMarkersResponse.WritableTxnMarkerTopicResult] = {}
        for (name, number), code in codes.items():
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(name=name, partitions=[])
            topic.partitions.append(
                WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult(partition_index=number, error_code=code)
            )
            left -= 1
            if not left:
                yield
                left = STEP_ELEMENTS
        results.append(
            WriteTxnMarkersResponse.WritableTxnMarkerResult(producer_id=producer_id, topics=list(topics.values()))
        )
        left -= 1
        if not left:
            yield
            left = STEP_ELEMENTS
    return WriteTxnMarkersResponse(markers=results)
