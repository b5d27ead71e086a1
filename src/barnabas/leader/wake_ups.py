"""Wakes those who wait for something in a partition, once per tick.

Appends and fetches of one tick move a partition many times; whoever waits is told once, when the frames of the tick are
handled and before anything is sent: a follower's parked fetch then takes all of the tick's appends, and the responses
it brings about still leave in this tick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import logging

    from barnabas.kernel.purgatory import Purgatory
    from barnabas.kernel.tick import Tick
    from barnabas.leader.partition import Partition


class WakeUps:
    """The partitions that changed in this tick.

    Invariant: a partition that was added is woken before the tick sends anything; no change goes without a wake-up
    after it.
    """

    __slots__ = ("_changed", "_logger", "_parked", "_purgatories", "_tick")

    def __init__(self, tick: Tick, purgatories: tuple[Purgatory[Any], ...], logger: logging.Logger) -> None:
        """The purgatories are keyed by topic partition, and checked in their order."""
        self._tick = tick
        self._purgatories = purgatories
        self._logger = logger
        self._parked = tuple(purgatory.watched_keys for purgatory in purgatories)
        self._changed: dict[Partition, None] = {}

    def add(self, partition: Partition) -> None:
        """Something moved in the partition. Whoever begins to wait later in this tick looks for himself first."""
        if not partition.watchers:
            key = partition.topic_partition
            for parked in self._parked:
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
            for purgatory in self._purgatories:
                purgatory.check_and_complete(key)
