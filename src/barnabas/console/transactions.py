"""Transactions that brokers coordinate (KIP-664), the open ones in full."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from barnabas.console.groups import BROKER_FAILURES
from barnabas.wire.errors import ErrorCode, raise_for_code
from barnabas.wire.messages import DescribeTransactionsRequest, ListTransactionsRequest
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.cluster import BrokerNode
    from barnabas.client.connections import Lane

LISTED_MAX: Final = 5_000
"""How many are kept of those that brokers list."""
DESCRIBED_MAX: Final = 200
"""How many of one broker's open ones are described."""
AT_REST: Final = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id; the last three are known of open ones only."""

    transactional_id: str
    state: str
    producer_id: int
    coordinator_id: int
    started_ms: int | None = None
    timeout_ms: int | None = None
    partitions: tuple[TopicPartition, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether it holds back readers of committed records."""
        return self.state not in AT_REST


@dataclass(frozen=True, slots=True)
class Transactions:
    """What was answered, the open ones first."""

    listed: Sequence[Transaction]
    failed: Mapping[int, str] = field(default_factory=dict)
    """Brokers that did not tell, and why."""
    took_seconds: float = 0.0
    """The longest that a broker which answered worked for it, at most."""
    not_kept: int = 0
    """Those beyond the bound."""


async def transactions(client: Client, lane: Lane) -> Transactions:
    """Asks every broker: one request, and another where it has open ones."""
    found: list[Transaction] = []
    failed: dict[int, str] = {}
    slowest = 0.0

    async def ask(node: BrokerNode) -> None:
        nonlocal slowest
        began = client.host.loop.time()
        try:
            found.extend(await _of_broker(client, lane, node))
            slowest = max(slowest, client.host.loop.time() - began)
        except BROKER_FAILURES as error:
            failed[node.node_id] = str(error) or type(error).__name__

    await asyncio.gather(*map(ask, list(client.cluster.brokers.values())))
    found.sort(key=lambda each: (not each.is_open, each.started_ms or 0, each.transactional_id))
    not_kept = max(0, len(found) - LISTED_MAX)
    return Transactions(found[:LISTED_MAX], dict(sorted(failed.items())), slowest, not_kept)


# Inside.


async def _of_broker(client: Client, lane: Lane, node: BrokerNode) -> list[Transaction]:
    response = await client.ask(node, lane, ListTransactionsRequest())
    raise_for_code(response.error_code, f"transactions of broker {node.node_id}")
    found = {
        each.transactional_id: Transaction(
            each.transactional_id, each.transaction_state, each.producer_id, node.node_id
        )
        for each in response.transaction_states
    }
    open_ids = [each.transactional_id for each in found.values() if each.is_open][:DESCRIBED_MAX]
    if open_ids:
        described = await client.ask(node, lane, DescribeTransactionsRequest(transactional_ids=open_ids))
        for each in described.transaction_states:
            if each.error_code == ErrorCode.NONE:
                found[each.transactional_id] = Transaction(
                    each.transactional_id,
                    each.transaction_state,
                    each.producer_id,
                    node.node_id,
                    each.transaction_start_time_ms if each.transaction_start_time_ms >= 0 else None,
                    each.transaction_timeout_ms,
                    tuple(TopicPartition(topic.topic, number) for topic in each.topics for number in topic.partitions),
                )
    return list(found.values())
