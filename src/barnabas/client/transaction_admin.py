"""What an administrator asks for about transactions and the producers of partitions (KIP-664)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from barnabas.client.admin_calls import AdminCalls
from barnabas.client.subscription_bytes import by_topic
from barnabas.kernel.facts import fact
from barnabas.link.errors import UnsupportedVersionError
from barnabas.wire import messages
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError, raise_for_code
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.cluster import BrokerNode

_TRANSACTION: Final = 1
_AT_A_TIME: Final = 500
"""Partitions or transactional ids in one request."""
_NO_TRANSACTION: Final = -1


@fact
class TransactionListing:
    """A transactional id, the state of its transaction as Kafka spells it, and the broker that coordinates it."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator_id: int


@fact
class TransactionDescription:
    """A transactional id; `started_at_ms` is None where no transaction is open. `partitions` are those in which its end
    has not been written yet.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_at_ms: int | None
    partitions: tuple[TopicPartition, ...]
    coordinator_id: int


@fact
class PartitionProducer:
    """A producer that a partition's log remembers. `coordinator_epoch` is -1 before the first transaction ended;
    `transaction_offset` is where the open transaction begins, None without one.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_offset: int | None


class TransactionAdmin(AdminCalls):
    """Calls about transactions; use it as a context, or `close` it."""

    async def list_transactions(
        self,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        began_ms_ago: int | None = None,
        timeout_ms: float | None = None,
    ) -> list[TransactionListing]:
        """The transactional ids that brokers know, by name: all, or those in these states, of these producers, with
        a transaction that began longer ago. Raises ValueError for a state that no broker knows, and
        UnsupportedVersionError where a broker does not know times (before 3.8).
        """

        def build(version: int) -> messages.ListTransactionsRequest:
            request = messages.ListTransactionsRequest(
                state_filters=list(states), producer_id_filters=list(producer_ids)
            )
            if began_ms_ago is not None:
                if version < 1:
                    raise UnsupportedVersionError("a broker does not say when transactions began")
                request.duration_filter = began_ms_ago
            return request

        async def ask(node: BrokerNode, attempt_ms: float) -> list[TransactionListing]:
            response = await self._client.ask_by_version(node, self._lane, ApiKey.LIST_TRANSACTIONS, build, attempt_ms)
            raise_for_code(response.error_code, f"transactions of broker {node.node_id}")
            if response.unknown_state_filters:
                raise ValueError(f"there is no state {', '.join(response.unknown_state_filters)}")
            return [
                TransactionListing(each.transactional_id, each.producer_id, each.transaction_state, node.node_id)
                for each in response.transaction_states
            ]

        async def attempt(attempt_ms: float) -> list[TransactionListing]:
            nodes = list(self._client.cluster.brokers.values())
            found = await asyncio.gather(*(ask(node, attempt_ms) for node in nodes))
            return sorted((each for part in found for each in part), key=lambda each: each.transactional_id)

        return await self._client.repeat("listing transactions", attempt, timeout_ms)

    async def describe_transactions(
        self, transactional_ids: Iterable[str], timeout_ms: float | None = None
    ) -> dict[str, TransactionDescription]:
        """What the coordinators know of these ids; those that they do not know are left out."""
        wanted = list(dict.fromkeys(transactional_ids))
        found: dict[str, TransactionDescription] = {}
        for first in range(0, len(wanted), _AT_A_TIME):
            part = wanted[first : first + _AT_A_TIME]

            async def attempt(attempt_ms: float, part: list[str] = part) -> dict[str, TransactionDescription]:
                coordinators = await self._coordinators(part, attempt_ms)
                described: dict[str, TransactionDescription] = {}
                for node, ids in coordinators.items():
                    described |= await self._described_by(node, ids, attempt_ms)
                return described

            found |= await self._client.repeat("describing transactions", attempt, timeout_ms)
        return found

    async def describe_producers(
        self, partitions: Collection[TopicPartition], node_id: int | None = None, timeout_ms: float | None = None
    ) -> dict[TopicPartition, list[PartitionProducer]]:
        """The producers that the leaders of partitions remember, or the replicas on one broker, by id."""
        found: dict[TopicPartition, list[PartitionProducer]] = {}

        async def attempt(attempt_ms: float) -> dict[TopicPartition, list[PartitionProducer]]:
            asked: dict[BrokerNode, list[TopicPartition]] = {}
            for partition in partitions:
                if partition not in found:
                    node = self._leader(partition) if node_id is None else self._client.node(node_id)
                    asked.setdefault(node, []).append(partition)
            for node, some in asked.items():
                for first in range(0, len(some), _AT_A_TIME):
                    await self._producers_at(node, some[first : first + _AT_A_TIME], found, attempt_ms)
            return found

        topics = {partition.topic for partition in partitions}
        return await self._at_leaders("describing producers", topics, attempt, timeout_ms)

    async def abort_in_partition(
        self, partition: TopicPartition, producer: PartitionProducer, timeout_ms: float | None = None
    ) -> None:
        """Writes into one partition that a producer's transaction is aborted, whatever its coordinator knows of it: for
        a transaction that hangs.
        """
        marker = messages.WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transaction_result=False,
            topics=[
                messages.WriteTxnMarkersRequest.WritableTxnMarkerTopic(
                    name=partition.topic, partition_indexes=[partition.partition]
                )
            ],
            # Before its first marker a log knows no epoch of the coordinator; no later one is refused for 0.
            coordinator_epoch=max(0, producer.coordinator_epoch),
        )
        request = messages.WriteTxnMarkersRequest(markers=[marker])

        async def attempt(attempt_ms: float) -> None:
            response = await self._client.ask(self._leader(partition), self._lane, request, attempt_ms)
            for of_marker in response.markers:
                for topic in of_marker.topics:
                    for answer in topic.partitions:
                        raise_for_code(answer.error_code, f"aborting in {partition}")

        await self._at_leaders("aborting a transaction", {partition.topic}, attempt, timeout_ms)

    # Inside.

    def _leader(self, partition: TopicPartition) -> BrokerNode:
        leader = self._client.cluster.leader(partition)
        if leader is None:
            self._client.metadata.request_update()
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"the leader of {partition} is not known now")
        return leader[0]

    async def _coordinators(self, ids: list[str], attempt_ms: float) -> Mapping[BrokerNode, list[str]]:
        from barnabas.client.cluster import BrokerNode

        request = messages.FindCoordinatorRequest(key_type=_TRANSACTION, coordinator_keys=ids)
        response = await self._client.ask_any(lambda node: self._client.ask(node, self._lane, request, attempt_ms))
        found: dict[BrokerNode, list[str]] = {}
        for answer in response.coordinators:
            raise_for_code(answer.error_code, f"coordinator of transactional id {answer.key}")
            found.setdefault(BrokerNode(answer.node_id, answer.host, answer.port), []).append(answer.key)
        return found

    async def _described_by(
        self, node: BrokerNode, ids: list[str], attempt_ms: float
    ) -> dict[str, TransactionDescription]:
        request = messages.DescribeTransactionsRequest(transactional_ids=ids)
        response = await self._client.ask(node, self._lane, request, attempt_ms)
        found: dict[str, TransactionDescription] = {}
        for state in response.transaction_states:
            if state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                continue
            raise_for_code(state.error_code, f"transactional id {state.transactional_id}")
            found[state.transactional_id] = TransactionDescription(
                state.transactional_id,
                state.producer_id,
                state.producer_epoch,
                state.transaction_state,
                state.transaction_timeout_ms,
                state.transaction_start_time_ms if state.transaction_start_time_ms >= 0 else None,
                tuple(
                    sorted(TopicPartition(topic.topic, number) for topic in state.topics for number in topic.partitions)
                ),
                node.node_id,
            )
        return found

    async def _producers_at(
        self,
        node: BrokerNode,
        partitions: list[TopicPartition],
        found: dict[TopicPartition, list[PartitionProducer]],
        attempt_ms: float,
    ) -> None:
        topic_of = messages.DescribeProducersRequest.TopicRequest
        request = messages.DescribeProducersRequest(
            topics=[topic_of(name=name, partition_indexes=numbers) for name, numbers in by_topic(partitions).items()]
        )
        response = await self._client.ask(node, self._lane, request, attempt_ms)
        for topic in response.topics:
            for answer in topic.partitions:
                partition = TopicPartition(topic.name, answer.partition_index)
                raise_for_code(answer.error_code, f"producers of {partition} at broker {node.node_id}")
                producers = [
                    PartitionProducer(
                        each.producer_id,
                        each.producer_epoch,
                        each.last_sequence,
                        each.last_timestamp,
                        each.coordinator_epoch,
                        each.current_txn_start_offset if each.current_txn_start_offset > _NO_TRANSACTION else None,
                    )
                    for each in answer.active_producers
                ]
                found[partition] = sorted(producers, key=lambda each: each.producer_id)
