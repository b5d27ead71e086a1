"""Requests from this broker to the other brokers, and to itself, that neither controller nor fetchers send."""

from __future__ import annotations

from typing import Any, Final

from barnabas.cluster.image import Node
from barnabas.cluster.metadata_cache import MetadataCache, MetadataChange
from barnabas.coordinators.transaction.coordinator import TransactionCoordinator
from barnabas.link.connector import Connector
from barnabas.link.errors import ConnectionLostError, UnsupportedVersionError
from barnabas.link.outgoing import Outgoing
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import KafkaError
from barnabas.wire.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from barnabas.wire.topics import TRANSACTION_TOPIC, TopicPartition

_VERIFYING_VERSIONS: Final = (4, 5)
"""Of AddPartitionsToTxn, which may only ask."""


class BrokerChannels:
    """A connection to each broker that was ever asked and is alive, at the endpoint that the metadata have."""

    def __init__(
        self,
        connector: Connector,
        *,
        metadata: MetadataCache,
        listener_name: str,
        request_timeout_ms: float,
    ) -> None:
        """`listener_name` is where brokers are reached (inter.broker.listener.name)."""
        self._connector = connector
        self._metadata = metadata
        self._listener_name = listener_name
        self._request_timeout_ms = request_timeout_ms
        self._outgoing: dict[int, tuple[Node, Outgoing]] = {}
        self._is_closed = False
        metadata.add_listener(self._note_change)

    async def send(self, broker_id: int, message: Any, version: int) -> Any:
        """The broker's response. Raises ConnectionLostError also for a broker that is not alive, and
        RequestTimeoutError after `request.timeout.ms`.
        """
        return await self._to(broker_id).send(message, version, self._request_timeout_ms)

    async def send_in_version(self, broker_id: int, api_key: ApiKey, lowest: int, highest: int, message: Any) -> Any:
        """Like `send`, in the highest version within these bounds that the broker speaks. Raises
        UnsupportedVersionError where it speaks none of them.
        """
        outgoing = self._to(broker_id)
        await outgoing.ready(self._request_timeout_ms)
        version = outgoing.version_of(api_key, lowest, highest)
        return await outgoing.send(message, version, self._request_timeout_ms)

    async def api_keys(self, broker_id: int) -> frozenset[int]:
        """Which APIs the broker answers, by what it said when the present connection was made. Raises as `send`."""
        outgoing = self._to(broker_id)
        await outgoing.ready(self._request_timeout_ms)
        return frozenset(outgoing.api_versions)

    def _to(self, broker_id: int) -> Outgoing:
        node = self._metadata.image.node(broker_id, self._listener_name)
        if node is None or self._is_closed:
            raise ConnectionLostError(f"broker {broker_id} is not known to be alive")
        known = self._outgoing.get(broker_id)
        if known is None or known[0] != node:
            if known is not None:
                known[1].close()
            outgoing = self._connector.connect(node.host, node.port, learns_versions=True)
            known = self._outgoing[broker_id] = (node, outgoing)
        return known[1]

    def close(self) -> None:
        """Closes at once; waiting callers get ConnectionLostError."""
        self._is_closed = True
        for _, outgoing in self._outgoing.values():
            outgoing.close()
        self._outgoing.clear()

    def _note_change(self, change: MetadataChange) -> None:
        for broker_id, (node, outgoing) in list(self._outgoing.items()):
            if change.image.node(broker_id, self._listener_name) != node:
                outgoing.close()
                del self._outgoing[broker_id]


class MarkersToBrokers:
    """The way of markers. It is `coordinators.ports.MarkerChannel`."""

    def __init__(self, channels: BrokerChannels, version: int) -> None:
        """`version` is the one that `inter.broker.protocol.version` has."""
        self._channels = channels
        self._version = version

    async def send(self, broker_id: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        """One request."""
        response: WriteTxnMarkersResponse = await self._channels.send(broker_id, request, self._version)
        return response


class VerificationToBrokers:
    """The way to the coordinators of transactions. It is `serving.transaction_verification.VerificationChannel`."""

    def __init__(
        self, channels: BrokerChannels, leaders: MetadataLeaders, transactions: TransactionCoordinator
    ) -> None:
        self._channels = channels
        self._leaders = leaders
        self._transactions = transactions

    def coordinator(self, transactional_id: str) -> int | None:
        """The broker that has the id, if it is alive."""
        try:
            number = self._transactions.partition_for(transactional_id)
        except KafkaError:
            return None
        leader = self._leaders.leader(TopicPartition(TRANSACTION_TOPIC, number))
        return None if leader is None or leader < 0 else leader

    async def send(self, broker_id: int, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse | None:
        """One request; None where the broker is too old for such a question."""
        try:
            response: AddPartitionsToTxnResponse = await self._channels.send_in_version(
                broker_id, ApiKey.ADD_PARTITIONS_TO_TXN, *_VERIFYING_VERSIONS, request
            )
        except UnsupportedVersionError:
            return None
        return response


class MetadataLeaders:
    """Who leads, by the metadata of this broker. It is `coordinators.ports.PartitionLeaders`."""

    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata

    def leader(self, partition: TopicPartition) -> int | None:
        """Below 0 where none that lives leads, None where there is no such partition."""
        image = self._metadata.image
        known = image.partition(partition)
        if known is None:
            return None
        return known.leader if known.leader in image.brokers else -1
