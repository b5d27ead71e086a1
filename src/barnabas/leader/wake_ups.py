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

    __slots__ = ("_changed", "_grown", "_logger", "_parked", "_tick")

    def __init__(self, tick: Tick, purgatories: tuple[Purgatory[Any], ...], logger: logging.Logger) -> None:
        """The purgatories are keyed by topic partition, and checked in their order."""
        self._tick = tick
        self._logger = logger
        self._parked = tuple((purgatory, purgatory.watched_keys) for purgatory in purgatories)
        self._changed: dict[WatchedPartition, None] = {}
        # Those of them of which the log's end has moved, and nothing else.
        self._grown: set[WatchedPartition] = set()

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
        self._grown.discard(partition)

    def add_grown(self, partition: WatchedPartition) -> None:
        """As `add`, where nothing but the log's end has moved: news for watchers, and for nobody in a purgatory.

        Invariant: what the purgatories wait for (acknowledgements, deleted records) hangs on the high watermark, the
        log's start, the leader and the ISR, and whatever moves one of these calls `add`.
        """
        if not partition.watchers or partition in self._changed:
            return
        if not self._changed:
            self._tick.before_send(self.run)
        self._changed[partition] = None
        self._grown.add(partition)

    def run(self) -> None:
        """Tells all who wait; what changes meanwhile is told in the next tick, which comes at once."""
        changed, self._changed = self._changed, {}
        grown, self._grown = self._grown, set()
        for partition in changed:
            for watcher in tuple(partition.watchers):
                try:
                    watcher.partition_changed(partition)
                except Exception:
                    self._logger.exception("Telling %r of a change of %s failed", watcher, partition)
            if partition in grown:
                continue
            key = partition.topic_partition
            for purgatory, parked in self._parked:
                if key in parked:
                    purgatory.check_and_complete(key)
