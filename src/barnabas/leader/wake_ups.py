"""Wakes those who wait for something in a partition, once per tick.

Appends and fetches of one tick move a partition many times; whoever waits is told once, when the frames of the tick are
handled and before anything is sent: a follower's parked fetch then takes all of the tick's appends, and the responses
it brings about still leave in this tick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import logging

    from barnabas.kernel.purgatory import Purgatory
    from barnabas.kernel.tick import Tick
    from barnabas.wire.topics import TopicPartition


class PartitionWatcher(Protocol):
    """Who wants to know when there may be something new in a partition, as fetch sessions do."""

    def partition_changed(self, partition: Any) -> None:
        """Called with the partition that is watched, once per tick, before anything is sent: when the log's end or
        start, the high watermark, the last stable offset or the leader has changed, or the partition is not here any
        more."""
        ...


class WatchedPartition(Protocol):
    """A partition, as far as it is watched."""

    @property
    def topic_partition(self) -> TopicPartition: ...

    @property
    def watchers(self) -> dict[PartitionWatcher, None]: ...


class WakeUps:
    """The partitions that changed in this tick.

    Invariant: a partition that was added is woken before the tick sends anything; no change goes without a wake-up
    after it.
    """

    __slots__ = ("_changed", "_logger", "_parked", "_tick")

    def __init__(self, tick: Tick, purgatories: tuple[Purgatory[Any], ...], logger: logging.Logger) -> None:
        """The purgatories are keyed by topic partition, and checked in their order."""
        self._tick = tick
        self._logger = logger
        self._parked = tuple((purgatory, purgatory.watched_keys) for purgatory in purgatories)
        self._changed: dict[WatchedPartition, None] = {}

    def add(self, partition: WatchedPartition) -> None:
        """Something moved in the partition. Whoever begins to wait later in this tick looks for himself first."""
        if not partition.watchers:
            key = partition.topic_partition
            for _, parked in self._parked:
                if parked and key in parked:
                    break
            else:
                return
        if not self._changed:
            self._tick.before_send(self.run)
        self._changed[partition] = None

    def run(self) -> None:
        """Tells all who wait; what changes meanwhile is told in the next tick, which comes at once."""
        changed, self._changed = self._changed, {}
        for partition in changed:
            for watcher in tuple(partition.watchers):
                try:
                    watcher.partition_changed(partition)
                except Exception:
                    self._logger.exception("Telling %r of a change of %s failed", watcher, partition)
            key = partition.topic_partition
            for purgatory, parked in self._parked:
                if key in parked:
                    purgatory.check_and_complete(key)
