"""Requests that wait until this broker's metadata shows what they changed (Kafka's purgatory "topic")."""

from __future__ import annotations

import abc
import asyncio
import logging
from collections.abc import Mapping, Sequence

from barnabas.cluster.metadata_cache import MetadataCache, MetadataChange
from barnabas.kernel.purgatory import DelayedOperation, Purgatory
from barnabas.kernel.timers import Timers


class TopicOperation(DelayedOperation):
    """Ends when no topic is missing any more; `missing` and the names are those of Kafka's DelayedCreatePartitions and
    DelayedDeleteTopics.
    """

    def __init__(self, metadata: MetadataCache, timeout_ms: float, ended: asyncio.Future[None]) -> None:
        super().__init__(timeout_ms)
        self._metadata = metadata
        self.ended = ended
        """Done when the operation has ended, by whatever."""

    @abc.abstractmethod
    def missing(self) -> list[str]:
        """The topics that are not yet as they shall be."""

    def try_complete(self) -> bool:
        return not self.missing() and self.force_complete()

    def on_complete(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class _UntilLed(TopicOperation):
    """Waits until so many partitions of each topic have leaders."""

    def __init__(
        self,
        metadata: MetadataCache,
        timeout_ms: float,
        ended: asyncio.Future[None],
        partition_counts: Mapping[str, int],
    ) -> None:
        super().__init__(metadata, timeout_ms, ended)
        self._partition_counts = partition_counts

    def missing(self) -> list[str]:
        return [topic for topic, count in self._partition_counts.items() if not self._is_led(topic, count)]

    def _is_led(self, topic: str, partition_count: int) -> bool:
        known = self._metadata.image.topics.get(topic)
        if known is None or len(known.partitions) < partition_count:
            return False
        return all(partition.leader >= 0 for partition in known.partitions.values())


class _UntilGone(TopicOperation):
    """Waits until the topics are no longer there."""

    def __init__(
        self, metadata: MetadataCache, timeout_ms: float, ended: asyncio.Future[None], topics: Sequence[str]
    ) -> None:
        super().__init__(metadata, timeout_ms, ended)
        self._topics = topics

    def missing(self) -> list[str]:
        topics = self._metadata.image.topics
        return [topic for topic in self._topics if topic in topics]


class TopicWaits:
    """The requests that wait for topics, woken by the metadata cache."""

    def __init__(
        self, metadata: MetadataCache, loop: asyncio.AbstractEventLoop, timers: Timers, logger: logging.Logger
    ) -> None:
        self._metadata = metadata
        self._loop = loop
        self.purgatory: Purgatory[TopicOperation] = Purgatory("topic", timers, logger)
        metadata.add_listener(self._metadata_changed)

    async def until_led(self, partition_counts: Mapping[str, int], timeout_ms: float) -> list[str]:
        """Waits until that many partitions of each topic have leaders; returns the topics of which some have not."""
        operation = _UntilLed(self._metadata, timeout_ms, self._loop.create_future(), partition_counts)
        return await self._wait(operation, list(partition_counts))

    async def until_gone(self, topics: Sequence[str], timeout_ms: float) -> list[str]:
        """Waits until the topics are gone; returns those that are not."""
        return await self._wait(_UntilGone(self._metadata, timeout_ms, self._loop.create_future(), topics), topics)

    async def _wait(self, operation: TopicOperation, topics: Sequence[str]) -> list[str]:
        if topics and operation.delay_ms > 0 and not self.purgatory.try_complete_else_watch(operation, topics):
            try:
                await operation.ended
            finally:
                operation.force_complete()
        return operation.missing()

    def _metadata_changed(self, change: MetadataChange) -> None:
        if self.purgatory.delayed:
            for topic in dict.fromkeys(partition.topic for partition in (*change.changed, *change.deleted)):
                self.purgatory.check_and_complete(topic)
