"""What of a cluster a reassignment depends on: where partitions are, how large they are, and how fast they grow."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from barnabas.cli.reassignment_planner import Placed
from barnabas.kernel.facts import fact
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.admin import Admin
    from barnabas.client.client import Client
    from barnabas.client.cluster import TopicInfo

_SIZES_TIMEOUT_MS: Final = 10_000

Sizes = Mapping[tuple[TopicPartition, int], int]
"""The bytes of each replica, by partition and broker."""


class State(enum.Enum):
    """Where a partition or a replica is with its move; the value is the word for programs."""

    MOVING = "moving"
    DONE = "done"
    NEITHER = "neither"
    """It is not where the file has it, and nobody is moving it there."""


@fact
class View:
    """What the brokers have told."""

    topics: Mapping[str, TopicInfo]
    placed: Mapping[TopicPartition, Placed]
    silent: Collection[int]
    """Brokers that told no sizes."""


async def look(client: Client, admin: Admin, measured_ms: int) -> View:
    """Where the partitions are, with their sizes, and what is written to them per second, measured for so long."""
    node_ids = sorted(client.cluster.brokers)
    topics, (first, silent) = await asyncio.gather(admin.describe_topics(), replica_sizes(admin, node_ids))
    second: Sizes = {}
    if measured_ms:
        began = client.host.loop.time()
        await client.timers.sleep(measured_ms)
        second, _ = await replica_sizes(admin, node_ids)
        measured_ms = max(1, int((client.host.loop.time() - began) * 1_000))
    placed = {}
    for name, topic in topics.items():
        for number, info in topic.partitions.items():
            partition = TopicPartition(name, number)
            size_bytes = size_of(first, partition, info.leader_id, info.replicas)
            grown = size_of(second, partition, info.leader_id, info.replicas) - size_bytes
            load = max(0, grown) * 1_000 / measured_ms if measured_ms else 0.0
            placed[partition] = Placed(info.replicas, size_bytes, load)
    return View(topics, placed, silent)


async def replica_sizes(
    admin: Admin, node_ids: Iterable[int], timeout_ms: float = _SIZES_TIMEOUT_MS
) -> tuple[Sizes, list[int]]:
    """The bytes of the brokers' replicas, and the brokers that did not tell."""
    from barnabas.client.errors import ClientTimeoutError
    from barnabas.wire.errors import KafkaError

    found: dict[tuple[TopicPartition, int], int] = {}
    silent: list[int] = []

    async def ask(node_id: int) -> None:
        try:
            results = await admin.describe_log_dirs(node_id, timeout_ms)
        except (ClientTimeoutError, KafkaError):
            silent.append(node_id)
            return
        for directory in results:
            for topic in directory.topics:
                for log in topic.partitions:
                    if not log.is_future_key:
                        found[TopicPartition(topic.name, log.partition_index), node_id] = log.partition_size

    await asyncio.gather(*map(ask, node_ids))
    return found, sorted(silent)


def size_of(sizes: Sizes, partition: TopicPartition, leader_id: int, replicas: Iterable[int]) -> int:
    """The bytes of a partition: those of its leader, or the most that a replica has where that does not tell."""
    of_leader = sizes.get((partition, leader_id))
    return max((sizes.get((partition, each), 0) for each in replicas), default=0) if of_leader is None else of_leader
