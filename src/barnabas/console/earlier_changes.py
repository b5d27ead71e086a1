"""How partitions were before the console began to look, as a broker of Barnabas remembers it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from barnabas.console.history import EarlierChange, EarlierChanges, PartitionState
from barnabas.link.errors import RequestTimeoutError, UnsupportedVersionError
from barnabas.wire.errors import KafkaError
from barnabas.wire.primitives import ProtocolError
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.broker_views import BrokerViews
    from barnabas.client.cluster import BrokerNode
    from barnabas.kernel.host import Clock
    from barnabas.wire.messages import DescribeLeadershipChangesResponse

_CHANGES_PER_REQUEST: Final = 500
_REQUESTS_MAX: Final = 40
"""A broker keeps 10,000 changes, and may be told of more meanwhile."""


async def earlier_changes(views: BrokerViews, nodes: Iterable[BrokerNode], clock: Clock) -> EarlierChanges | None:
    """Of the broker that remembers most. None where no broker tells, as those of Apache Kafka do not.

    Brokers' clocks may be wrong: times are told by how long ago they were. Raises ConnectionError, KafkaError,
    ProtocolError and RequestTimeoutError where the one that began ends, and so where it has begun anew.
    """
    found: list[tuple[int, BrokerNode]] = []

    async def ask(node: BrokerNode) -> None:
        try:
            answer, ahead_ms = await _ask(views, node, clock, -1, 0)
        except (ConnectionError, KafkaError, ProtocolError, RequestTimeoutError, UnsupportedVersionError):
            return
        if answer.since_ms >= 0:
            found.append((answer.since_ms - ahead_ms, node))

    await asyncio.gather(*map(ask, nodes))
    if not found:
        return None
    since_ms, node = min(found, key=lambda each: (each[0], each[1].node_id))
    changes: list[EarlierChange] = []
    after = -1
    for _ in range(_REQUESTS_MAX):
        answer, ahead_ms = await _ask(views, node, clock, after, _CHANGES_PER_REQUEST)
        if answer.last < after:
            raise ConnectionResetError(f"broker {node.node_id} was started anew while it told of earlier changes")
        if answer.changes and answer.changes[0].number != after + 1:
            changes.clear()  # so much has changed meanwhile that some was let go of in between
        since_ms = max(since_ms, answer.since_ms - ahead_ms)
        changes.extend(_told(answer, since_ms, ahead_ms))
        if not answer.changes or answer.changes[-1].number >= answer.last:
            break
        after = answer.changes[-1].number
    return EarlierChanges(node.node_id, since_ms, tuple(changes))


# Inside.


async def _ask(
    views: BrokerViews, node: BrokerNode, clock: Clock, after: int, changes_max: int
) -> tuple[DescribeLeadershipChangesResponse, int]:
    """The answer, and by how much the broker's clock is ahead of ours."""
    asked_ms = clock.time_ms()
    answer = await views.leadership_changes(node, after, changes_max)
    return answer, answer.now_ms - (asked_ms + clock.time_ms()) // 2


def _told(answer: DescribeLeadershipChangesResponse, since_ms: int, ahead_ms: int) -> Iterator[EarlierChange]:
    for each in answer.changes:
        before = None
        if each.leader_epoch_before >= 0:
            before = PartitionState(
                since_ms,
                each.leader_before,
                each.leader_epoch_before,
                tuple(each.isr_before),
                tuple(each.replicas_before),
            )
        yield EarlierChange(
            TopicPartition(each.topic, each.partition),
            bytes(each.topic_id),
            before,
            PartitionState(
                each.time_ms - ahead_ms, each.leader, each.leader_epoch, tuple(each.isr), tuple(each.replicas)
            ),
        )
