"""Elections that were made, and wait until this broker's metadata shows them (Kafka's purgatory "ElectLeader")."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import islice
from operator import length_hint
from typing import Final

from barnabas.cluster.metadata_cache import MetadataCache, MetadataChange
from barnabas.kernel.purgatory import DelayedOperation, Purgatory
from barnabas.kernel.timers import Timers
from barnabas.wire.topics import TopicPartition

PARTITIONS_PER_OPERATION: Final = 500
"""So many are parked in one turn of the loop. (Kafka parks all partitions of a request as one operation.)"""
CHANGES_PER_TURN: Final = 5_000
"""So many changes of the metadata are looked at in one turn."""


class _UntilLed(DelayedOperation):
    """Waits until each partition has had the leader that was elected, if only for a moment (Kafka's
    DelayedElectLeader).
    """

    def __init__(
        self,
        metadata: MetadataCache,
        timeout_ms: float,
        ended: asyncio.Future[None],
        leaders: Mapping[TopicPartition, int],
    ) -> None:
        super().__init__(timeout_ms)
        self.ended = ended
        """Done when the operation has ended, by whatever."""
        self.missing = dict(leaders)
        """The partitions that have not been seen with their leaders."""
        self._metadata = metadata
        self._look()

    def look_at(self, partition: TopicPartition) -> None:
        """The partition may have the leader that was elected."""
        known = self._metadata.image.partition(partition)
        if known is not None and known.leader == self.missing.get(partition):
            del self.missing[partition]

    def try_complete(self) -> bool:
        return not self.missing and self.force_complete()

    def on_complete(self) -> None:
        self._look()
        if not self.ended.done():
            self.ended.set_result(None)

    def _look(self) -> None:
        for partition in tuple(self.missing):
            self.look_at(partition)


class LeaderWaits:
    """The requests that wait for leaders, woken by the metadata cache. Each change of the metadata costs what it
    changes.
    """

    def __init__(
        self, metadata: MetadataCache, loop: asyncio.AbstractEventLoop, timers: Timers, logger: logging.Logger
    ) -> None:
        self._metadata = metadata
        self._loop = loop
        self.purgatory: Purgatory[_UntilLed] = Purgatory("ElectLeader", timers, logger)
        metadata.add_listener(self._metadata_changed)

    async def until_led(
        self, leaders: Mapping[TopicPartition, int], deadline: float, turn: Callable[[], Awaitable[None]]
    ) -> set[TopicPartition]:
        """Waits until the metadata has shown the leader of each partition; returns those of which it has not until
        `deadline`, in seconds of the loop's clock. `turn` is awaited after each piece of long work.
        """
        operations: list[_UntilLed] = []
        remaining = iter(leaders.items())
        try:
            while piece := dict(islice(remaining, PARTITIONS_PER_OPERATION)):
                if operations:
                    await turn()
                timeout_ms = max(0.0, (deadline - self._loop.time()) * 1000)
                operation = _UntilLed(self._metadata, timeout_ms, self._loop.create_future(), piece)
                operations.append(operation)
                if timeout_ms:
                    self.purgatory.try_complete_else_watch(operation, piece)
                else:
                    operation.force_complete()
            for operation in operations:
                await operation.ended
        finally:
            for operation in operations:
                operation.force_complete()
        return {partition for operation in operations for partition in operation.missing}

    def _metadata_changed(self, change: MetadataChange) -> None:
        self._look(iter(change.changed))

    def _look(self, changed: Iterator[TopicPartition]) -> None:
        """Wakes those that wait for what has changed; of very many changes the rest in the next turn."""
        watched = self.purgatory.watched_keys
        if not watched:
            return
        for partition in islice(changed, CHANGES_PER_TURN):
            if partition in watched:
                for operation in self.purgatory.watchers(partition):
                    operation.look_at(partition)
                self.purgatory.check_and_complete(partition)
        if length_hint(changed):
            self._loop.call_soon(self._look, changed)
