"""A transactional producer on the wire, for simulated clusters: it asks what Apache Kafka's producer asks, step by
step, and repeats what that repeats (KIP-98, KIP-360, KIP-447). Whoever uses it may do what no library lets a user do:
vanish at any step, or go on with what somebody else has ended.

Batches of one partition go one after another, so that sequences are in order; partitions do not wait for each other.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from barnabas.client.cluster import BrokerNode
from barnabas.client.errors import ClientTimeoutError
from barnabas.link.errors import RequestTimeoutError
from barnabas.wire.errors import ErrorCode, KafkaError, raise_for_code
from barnabas.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.sentinels import NO_EPOCH, NO_PRODUCER_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from barnabas.client.client import Client
    from barnabas.testing.cluster_history import RecordId
    from barnabas.wire.topics import TopicPartition

COORDINATOR_MS: Final = 20_000.0
"""How long one call of the coordinator is repeated; more than a time-out that the coordinator ends by itself."""
DELIVERY_MS: Final = 4_000.0
PRODUCE_TIMEOUT_MS: Final = 3_000
_OF_GROUP, _OF_TRANSACTIONS = 0, 1
_VERSION: Final = {
    InitProducerIdRequest: 4,
    AddPartitionsToTxnRequest: 3,
    AddOffsetsToTxnRequest: 3,
    TxnOffsetCommitRequest: 3,
    EndTxnRequest: 3,
    ProduceRequest: 11,
    FindCoordinatorRequest: 4,
}
_MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_FENCED: Final = frozenset(
    {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
)
_ABORTABLE: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
"""Of a Produce or TxnOffsetCommit. That the producer is fenced the coordinator says when it is to abort."""


class FencedError(Exception):
    """Another instance has the transactional id, or the coordinator has ended the transaction."""


class AbortableError(Exception):
    """The transaction cannot be committed; the producer may abort it, and go on in another epoch."""


class TransactionalProducer:
    """One instance of a transactional id. Calls raise FencedError, AbortableError where the records are concerned, and
    ClientTimeoutError when nobody answers in time: whoever gets that gives the instance up.
    """

    def __init__(self, client: Client, transactional_id: str, timeout_ms: int, counts: Counter[str]) -> None:
        """`counts` is told what was met."""
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.producer_id = NO_PRODUCER_ID
        self.epoch = NO_EPOCH
        self.is_in_doubt = False
        """Whether the last call of the coordinator may have had an effect before the answer that counts."""
        self._client = client
        self._counts = counts
        self._lane = client.connections.new_lane()
        self._nodes: dict[tuple[int, str], BrokerNode] = {}
        """Coordinators, by the type of the key and the key."""
        self._sequences: dict[TopicPartition, int] = {}

    @property
    def identity(self) -> tuple[int, int]:
        """The producer's id and epoch."""
        return self.producer_id, self.epoch

    def turn_to(self, coordinator: BrokerNode) -> None:
        """Takes a broker for the coordinator of its transactions, until that one says otherwise or does not answer."""
        self._nodes[_OF_TRANSACTIONS, self.transactional_id] = coordinator

    async def close(self) -> None:
        """Ends its connections, and tells nobody."""
        await self._client.connections.close_lane(self._lane)

    async def init(self) -> None:
        """Asks for the id and epoch, which fences every other instance; later for the next epoch (KIP-360)."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
        )
        response = await self._ask_coordinator(request, lambda response: response.error_code)
        self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        self._sequences.clear()

    async def add_partitions(self, partitions: Sequence[TopicPartition]) -> None:
        """Takes partitions into the transaction, which opens it."""
        by_topic: dict[str, list[int]] = {}
        for topic, number in partitions:
            by_topic.setdefault(topic, []).append(number)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=numbers)
                for topic, numbers in by_topic.items()
            ],
        )
        await self._ask_coordinator(
            request,
            lambda response: _first_error(
                told.partition_error_code
                for topic in response.results_by_topic_v3_and_below
                for told in topic.results_by_partition
            ),
        )

    async def send(self, partition: TopicPartition, records: Sequence[RecordId]) -> None:
        """Sends one batch, again and again until it is acknowledged."""
        builder = RecordBatchBuilder(
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self._sequences.get(partition, 0),
            is_transactional=True,
        )
        for record in records:
            builder.append(self._client.host.clock.time_ms(), None, record.value())
        data = ProduceRequest.PartitionProduceData(index=partition.partition, records=builder.build())
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=PRODUCE_TIMEOUT_MS,
            topic_data=[ProduceRequest.TopicProduceData(name=partition.topic, partition_data=[data])],
        )

        async def once(attempt_ms: float) -> None:
            await self._client.metadata.topic(partition.topic, self._client.retry("sending a batch", attempt_ms))
            leader = self._client.cluster.leader(partition)
            if leader is None:
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
            response = await self._ask(leader[0], request, attempt_ms)
            code = response.responses[0].partition_responses[0].error_code
            if code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                raise_for_code(code, f"batch for {partition}")

        await self._repeat_for_records(once, f"sending a batch to {partition}")
        self._sequences[partition] = self._sequences.get(partition, 0) + len(records)

    async def send_offset(self, group: str, partition: TopicPartition, offset: int) -> None:
        """Commits an offset of a group as part of the transaction, which opens it."""
        await self._ask_coordinator(
            AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                group_id=group,
            ),
            lambda response: response.error_code,
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[
                TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    name=partition.topic,
                    partitions=[
                        TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                            partition_index=partition.partition, committed_offset=offset, committed_metadata=""
                        )
                    ],
                )
            ],
        )

        async def once(attempt_ms: float) -> None:
            key = (_OF_GROUP, group)
            node = await self._find(key, attempt_ms)
            try:
                response = await self._ask(node, request, attempt_ms)
                raise_for_code(response.topics[0].partitions[0].error_code, f"offsets of {group}")
            except (KafkaError, ConnectionError, RequestTimeoutError):
                self._nodes.pop(key, None)
                raise

        await self._repeat_for_records(once, f"committing an offset of {group}")

    async def end(self, *, is_commit: bool) -> None:
        """Ends the transaction, which is open."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=is_commit,
        )
        await self._ask_coordinator(request, lambda response: response.error_code)

    # Inside.

    async def _repeat_for_records(self, once: Callable[[float], Any], what: str) -> None:
        try:
            await self._client.repeat(what, once, DELIVERY_MS)
        except ClientTimeoutError as error:
            self._counts["transactions: batch given up"] += 1
            raise AbortableError(str(error)) from error
        except KafkaError as error:
            if error.code in _ABORTABLE:
                raise AbortableError(str(error)) from error
            raise

    async def _ask_coordinator(self, request: Any, code_of: Callable[[Any], int]) -> Any:
        key = (_OF_TRANSACTIONS, self.transactional_id)
        retry = self._client.retry(f"{type(request).__name__} of {self.transactional_id}", COORDINATOR_MS)
        self.is_in_doubt = False
        while True:
            try:
                node = await self._find(key, retry.attempt_ms)
                response = await self._ask(node, request, retry.attempt_ms)
                code = code_of(response)
                if code in _FENCED:
                    raise FencedError(ErrorCode.for_code(code).name)
                raise_for_code(code, f"{type(request).__name__} of {self.transactional_id}")
            except KafkaError as error:
                self._counts[f"transactions: told {ErrorCode.for_code(error.code).name}"] += 1
                if error.code in _MOVED:
                    self._nodes.pop(key, None)
                if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                    self.is_in_doubt = self.is_in_doubt or error.retriable
                await retry.again(error)
            except (ConnectionError, RequestTimeoutError) as error:
                self._nodes.pop(key, None)
                self.is_in_doubt = True
                await retry.again(error)
            else:
                return response

    async def _find(self, key: tuple[int, str], attempt_ms: float) -> BrokerNode:
        found = self._nodes.get(key)
        if found is not None:
            return found
        request = FindCoordinatorRequest(key_type=key[0], coordinator_keys=[key[1]])
        response = await self._client.ask_any(lambda node: self._ask(node, request, attempt_ms))
        answer = response.coordinators[0]
        raise_for_code(answer.error_code, f"coordinator of {key[1]}")
        node = self._nodes[key] = BrokerNode(answer.node_id, answer.host, answer.port)
        return node

    async def _ask(self, node: BrokerNode, request: Any, attempt_ms: float) -> Any:
        """In a version of its own: the client has no transactions."""
        limit_ms = max(1.0, min(attempt_ms, self._client.settings.request_timeout_ms))
        outgoing = self._client.connections.to_node(self._lane, node)
        await outgoing.ready(limit_ms)
        return await outgoing.send(request, _VERSION[type(request)], limit_ms)


def _first_error(codes: Any) -> int:
    """Of the partitions of one request; the one that says most, where several fail (the rest were not tried)."""
    found = [code for code in codes if code != ErrorCode.NONE]
    telling = [code for code in found if code != ErrorCode.OPERATION_NOT_ATTEMPTED]
    return next(iter(telling or found), int(ErrorCode.NONE))
