"""A throttle of replication (KIP-73): for which replicas of this broker it holds, and how much they may take.

A broker has two of them, as a leader and as a follower. Bytes are recorded when they have passed, also of replicas that
the throttle does not hold back since they are in sync; so the bound may be exceeded by one response, for which the next
ones wait.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING, Final

from barnabas.quotas.simple_rate import SimpleRate

if TYPE_CHECKING:
    from barnabas.quotas.settings import ReplicationQuotaSettings
    from barnabas.wire.topics import TopicPartition

UNLIMITED: Final = 2**63 - 1
"""The bound of a broker for which none is set, in bytes per second."""
_EVERY_REPLICA: Final = "*"
_PARTITIONS: Final = range(2**31)


class ReplicationQuota:
    """One throttle. `now` is the loop's time in seconds."""

    def __init__(self, settings: ReplicationQuotaSettings, now: Callable[[], float]) -> None:
        self.topics: dict[str, Container[int]] = {}
        """Throttled partitions by topic; empty where nothing is throttled, which is all that a hot path looks at."""
        self.bytes_per_second = UNLIMITED
        self.on_change: Callable[[], object] = lambda: None
        """Called when more may pass than before, perhaps."""
        self._now = now
        self._rate = SimpleRate(settings.window_count, settings.window_seconds)

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
        self.bytes_per_second = bytes_per_second
        self.on_change()

    def is_throttled(self, partition: TopicPartition) -> bool:
        """Whether the throttle holds for this broker's replica of the partition."""
        return partition.partition in self.topics.get(partition.topic, ())

    def record(self, size_bytes: int) -> None:
        """Throttled replicas have taken so much."""
        self._rate.record(size_bytes, self._now())

    @property
    def is_exceeded(self) -> bool:
        """More has passed than may."""
        return self._rate.measure(self._now()) > self.bytes_per_second

    @property
    def seconds_exceeded(self) -> float:
        """How long nothing may pass; 0 where something may, infinite where that cannot be told."""
        return self._rate.seconds_above(self.bytes_per_second, self._now())

    @property
    def byte_rate(self) -> float:
        """Bytes per second that pass."""
        return self._rate.measure(self._now())
