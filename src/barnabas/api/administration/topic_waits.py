"""Requests that wait until this broker's metadata shows what they changed (Kafka's purgatory "topic")."""

from __future__ import annotations

import abc
import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence

from barnabas.cluster.image import TopicMetadata
from barnabas.cluster.metadata_cache import MetadataCache, MetadataChange
from barnabas.kernel.purgatory import DelayedOperation, Purgatory
from barnabas.kernel.timers import Timers
from barnabas.wire.sentinels import NO_LEADER


class TopicOperation(DelayedOperation):
    """Ends when all topics are as they shall be.

    A topic that was so once is not looked at again until the end: of a thousand topics in one request, each change of
    the metadata costs what it changes.
    """

    def __init__(
        self, metadata: MetadataCache, timeout_ms: float, ended: asyncio.Future[None], topics: Iterable[str]
    ) -> None:
        super().__init__(timeout_ms)
        self.ended = ended
        """Done when the operation has ended, by whatever."""
        self._metadata = metadata
        self._topics = tuple(topics)
        self._pending = dict.fromkeys(self._topics)

    @abc.abstractmethod
    def is_as_it_shall_be(self, topic: str, known: TopicMetadata | None) -> bool:
        """Whether nothing is to be waited for; `known` is what the metadata says of the topic."""

    def missing(self) -> list[str]:
        """The topics that are not as they shall be now."""
        known = self._metadata.image.topics
        return [topic for topic in self._topics if not self.is_as_it_shall_be(topic, known.get(topic))]

    def try_complete(self) -> bool:
        known = self._metadata.image.topics
        while self._pending:
            topic = next(iter(self._pending))
            if not self.is_as_it_shall_be(topic, known.get(topic)):
                return False
            del self._pending[topic]
        return self.force_complete()

    def on_complete(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class _UntilLed(TopicOperation):
    """Waits until so many partitions of each topic have leaders (Kafka's DelayedCreatePartitions)."""

    def __init__(
        self,
        metadata: MetadataCache,
        timeout_ms: float,
        ended: asyncio.Future[None],
        partition_counts: Mapping[str, int],
    ) -> None:
        super().__init__(metadata, timeout_ms, ended, partition_counts)
        self._partition_counts = partition_counts

    def is_as_it_shall_be(self, topic: str, known: TopicMetadata | None) -> bool:
        if known is None or len(known.partitions) < self._partition_counts[topic]:
            return False
        return all(partition.leader != NO_LEADER for partition in known.partitions.values())


class _UntilGone(TopicOperation):
    """Waits until the topics are no longer there (Kafka's DelayedDeleteTopics)."""

    def is_as_it_shall_be(self, _topic: str, known: TopicMetadata | None) -> bool:
        return known is None


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
            for topic in dict.fromkeys(
                partition.topic for partition in (*change.changed, *change.deleted, *change.forgotten)
            ):
                self.purgatory.check_and_complete(topic)
