"""A throttle of replication (KIP-73): for which replicas of this broker it holds, and how much they may take.

A broker has two of them, as a leader and as a follower. Bytes are recorded also of replicas that the throttle does not
hold back since they are in sync.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING, Final

from barnabas.quotas.byte_quota import ByteQuota

if TYPE_CHECKING:
    from barnabas.quotas.settings import ReplicationQuotaSettings
    from barnabas.wire.topics import TopicPartition

_EVERY_REPLICA: Final = "*"
_PARTITIONS: Final = range(2**31)


class ReplicationQuota(ByteQuota):
    """One throttle. `now` is the loop's time in seconds."""

    def __init__(self, settings: ReplicationQuotaSettings, now: Callable[[], float]) -> None:
        super().__init__(settings.window_count, settings.window_seconds, now)
        self.topics: dict[str, Container[int]] = {}
        """Throttled partitions by topic; empty where nothing is throttled, which is all that a hot path looks at."""
        self.on_change: Callable[[], object] = lambda: None
        """Called when more may pass than before, perhaps."""

    def throttle(self, topic: str, replicas: Iterable[str], broker_id: int) -> None:
        """Throttles these replicas of a topic and no others, `partition:broker` each or one `*` for all; takes what is
        not of this broker for nothing."""
        entries = [entry for entry in replicas if entry]
        if entries == [_EVERY_REPLICA]:
            chosen: range | frozenset[int] = _PARTITIONS
        else:
            of_broker = re.compile(rf"(?<![^,])([0-9]+):0*{broker_id}(?![^,])")
            chosen = frozenset(map(int, of_broker.findall(",".join(entries))))
        if chosen:
            self.topics[topic] = chosen
        else:
            self.topics.pop(topic, None)
        self.on_change()

    def forget(self, topics: Iterable[str]) -> None:
        """Drops topics that were deleted."""
        for topic in topics:
            self.topics.pop(topic, None)

    def limit(self, bytes_per_second: int) -> None:
        """Takes another bound."""
        super().limit(bytes_per_second)
        self.on_change()

    def is_throttled(self, partition: TopicPartition) -> bool:
        """Whether the throttle holds for this broker's replica of the partition."""
        return partition.partition in self.topics.get(partition.topic, ())
