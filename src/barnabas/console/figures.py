"""What pages count over all partitions: once for each image of the cluster, off the loop, whoever looks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one image."""

    cluster: Cluster
    partitions: int
    leaderless: int
    behind: int
    """Partitions with replicas that are not in sync."""
    leads: Mapping[int, int]
    """By the id of a broker, as the others."""
    behind_on: Mapping[int, int]
    replicas: Mapping[int, Sequence[TopicPartition]]
    """Those that are not in sync there come first."""

    @classmethod
    def of(cls, cluster: Cluster) -> Figures:
        """Counts; for a thread, as it may take a while."""
        leads: Counter[int] = Counter()
        late: dict[int, list[TopicPartition]] = {}
        in_sync: dict[int, list[TopicPartition]] = {}
        leaderless = behind = count = 0
        for name in sorted(cluster.topics):
            for number, info in cluster.topics[name].partitions.items():
                count += 1
                leads[info.leader_id] += 1
                leaderless += info.leader_id < 0
                behind += len(info.isr) < len(info.replicas)
                partition = TopicPartition(name, number)
                for node_id in info.replicas:
                    (in_sync if node_id in info.isr else late).setdefault(node_id, []).append(partition)
        replicas = {each: [*late.get(each, ()), *in_sync.get(each, ())] for each in {*late, *in_sync}}
        return cls(cluster, count, leaderless, behind, leads, {each: len(late[each]) for each in late}, replicas)
