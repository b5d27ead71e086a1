"""Which changes of leaders, ISRs and replicas this broker was told of, for DescribeLeadershipChanges.

The latest ones of all partitions together, in memory: they go with the broker. What the first metadata say that come to
it is where the history begins, and no change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Final, NamedTuple

from barnabas.cluster.image import PartitionMetadata
from barnabas.cluster.metadata_cache import MetadataChange
from barnabas.kernel.host import Clock
from barnabas.kernel.ids import ZERO_UUID, Uuid
from barnabas.wire.topics import TopicPartition

CHANGES_KEPT: Final = 10_000
"""Some 3 MB, if there were so many."""
_SHOWN: Final = 4
"""Of a partition's metadata leader, epoch, ISR and replicas: not which are offline, and not the other epochs."""


class LeadershipChange(NamedTuple):
    """One partition is otherwise than before. A tuple, because there are many."""

    time_ms: int
    """When the broker was told, in ms since 1970."""
    partition: TopicPartition
    topic_id: Uuid
    before: PartitionMetadata | None
    """None where the partition was new to the broker."""
    after: PartitionMetadata


class LeadershipChanges:
    """The last `CHANGES_KEPT` changes, numbered from 0; a listener of the metadata cache."""

    def __init__(self, clock: Clock, kept: int = CHANGES_KEPT) -> None:
        self.since_ms: int | None = None
        """From then on none is missing; None before the broker knows a partition."""
        self.last = -1
        """The number of the latest."""
        self._clock = clock
        self._changes: deque[LeadershipChange] = deque(maxlen=kept)

    def see(self, change: MetadataChange) -> None:
        """Takes over what an UpdateMetadata request changed, at most as much as is kept: one that names every
        partition of a large cluster takes no longer.
        """
        now_ms, kept = self._clock.time_ms(), self._changes.maxlen or 0
        if self.since_ms is None:
            if change.image.topics:
                self.since_ms = now_ms
            return
        if len(change.changed) > kept:  # what was before has a gap behind it
            self.since_ms = now_ms
            self._changes.clear()
        changes, name, topic_id = self._changes, None, ZERO_UUID
        known: Mapping[int, PartitionMetadata] = {}
        known_before: Mapping[int, PartitionMetadata] = {}
        for partition in change.changed[-kept:]:
            if partition.topic != name:  # those of a topic stand together
                name = partition.topic
                now, was = change.image.topics.get(name), change.previous.topics.get(name)
                topic_id = ZERO_UUID if now is None else now.topic_id
                is_same = was is not None and was.topic_id in (ZERO_UUID, topic_id)
                known = {} if now is None else now.partitions
                known_before = was.partitions if was is not None and is_same else {}
            after, before = known.get(partition.partition), known_before.get(partition.partition)
            if after is None or (before is not None and before[:_SHOWN] == after[:_SHOWN]):
                continue
            if len(changes) == kept:
                self.since_ms = max(self.since_ms, changes[0].time_ms)
            changes.append(LeadershipChange(now_ms, partition, topic_id, before, after))
            self.last += 1

    def after(self, number: int, limit: int) -> list[tuple[int, LeadershipChange]]:
        """At most `limit` of those that are kept behind that number, the oldest first, with their numbers."""
        first = self.last + 1 - len(self._changes)
        start = min(max(0, number + 1 - first), len(self._changes))
        found = islice(self._changes, start, start + max(0, limit))
        return list(enumerate(found, first + start))
