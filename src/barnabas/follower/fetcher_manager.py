"""The fetchers of one broker: which of them fetches what."""

from __future__ import annotations

import asyncio
import functools
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from barnabas.follower.hand_over import HandOver
from barnabas.follower.replica_fetcher import ReplicaFetcher
from barnabas.kernel.metrics import Gauge, MetricName, MetricsRegistry

if TYPE_CHECKING:
    from barnabas.cluster.image import Node
    from barnabas.follower.fetcher_context import FetcherContext
    from barnabas.follower.fetcher_partitions import FetchedPartition
    from barnabas.kernel.ids import Uuid
    from barnabas.wire.topics import TopicPartition

_CLIENT: Final = (("clientId", "Replica"),)
_KEPT_EMPTY_MS: Final = 10_000
"""So long a fetcher of what is behind stays when all has caught up: some of it may fall behind again."""


class FetcherManager:
    """`num.replica.fetchers` fetchers for each leader that this broker follows; a partition is always with the same
    one of them, but for what this broker is behind with: for that each of them has another one beside it (see
    `hand_over`), as long as there is any. It is the one whose number is higher by `num.replica.fetchers`.
    """

    def __init__(self, context: FetcherContext, fetchers_per_leader: int, metrics: MetricsRegistry) -> None:
        self.failed: set[TopicPartition] = set()
        """Partitions that are fetched no more because of an error."""
        self._context = context
        self._fetchers_per_leader = fetchers_per_leader
        self._metrics = metrics
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._fetcher_of: dict[TopicPartition, ReplicaFetcher] = {}
        self._closing: dict[asyncio.Task[None], None] = {}
        for name, read in (
            ("MaxLag", lambda: max((fetcher.lag_max for fetcher in self._fetchers.values()), default=0)),
            ("MinFetchRate", self._min_fetch_rate),
            ("FailedPartitionsCount", lambda: len(self.failed)),
            ("DeadThreadCount", lambda: sum(fetcher.is_dead for fetcher in self._fetchers.values())),
        ):
            metrics.gauge(MetricName("kafka.server", "ReplicaFetcherManager", name, _CLIENT), read)
        metrics.add_source(self._lags)

    @property
    def truncates_on_fetch(self) -> bool:
        """Leaders tell in their answers to Fetch where logs part."""
        return self._context.protocol.truncates_on_fetch

    @property
    def fetchers(self) -> tuple[ReplicaFetcher, ...]:
        return tuple(self._fetchers.values())

    @property
    def fetchers_per_leader(self) -> int:
        """How many there are at most for each leader."""
        return self._fetchers_per_leader

    def fetcher_id(self, topic_partition: TopicPartition) -> int:
        """Which of a leader's fetchers has the partition."""
        # Consecutive partitions of a topic are with different fetchers, and topics do not all begin with the same one.
        return (zlib.crc32(topic_partition.topic.encode()) + topic_partition.partition) % self._fetchers_per_leader

    def add(self, wanted: Mapping[Node, Iterable[FetchedPartition]]) -> None:
        """Fetches partitions from these leaders, and from nowhere else."""
        for leader, partitions in wanted.items():
            by_fetcher: dict[int, list[FetchedPartition]] = {}
            for fetched in partitions:
                by_fetcher.setdefault(self.fetcher_id(fetched.topic_partition), []).append(fetched)
            for fetcher_id, chosen in by_fetcher.items():
                fetcher = self._fetcher(leader, fetcher_id)
                self.failed.difference_update(fetched.topic_partition for fetched in chosen)
                self._give(fetcher, chosen)
                self._context.logger.info(
                    "Added fetcher %s to broker %d for %d partitions", fetcher.name, leader.broker_id, len(chosen)
                )

    def resize(self, fetchers_per_leader: int) -> None:
        """Spreads all partitions over so many fetchers for each leader; each goes on at the offset where it is."""
        if fetchers_per_leader == self._fetchers_per_leader:
            return
        moved: dict[Node, list[FetchedPartition]] = {}
        for key, fetcher in list(self._fetchers.items()):
            moved.setdefault(fetcher.leader, []).extend(self._taken_over(key))
        self._fetchers_per_leader = fetchers_per_leader
        self.add(moved)

    def remove(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Fetches these no more."""
        for topic_partition in topic_partitions:
            self.failed.discard(topic_partition)
            fetcher = self._fetcher_of.pop(topic_partition, None)
            if fetcher is not None:
                fetcher.remove((topic_partition,))
                self._has_less(fetcher)

    def take_topic_id(self, topic_partition: TopicPartition, topic_id: Uuid) -> None:
        """A topic without id has got one in the present leader epoch."""
        fetcher = self._fetcher_of.get(topic_partition)
        if fetcher is not None:
            fetcher.take_topic_id(topic_partition, topic_id)

    def add_failed(self, topic_partition: TopicPartition) -> None:
        """A fetcher has given the partition up."""
        self.failed.add(topic_partition)
        fetcher = self._fetcher_of.pop(topic_partition, None)
        if fetcher is not None:
            self._has_less(fetcher)

    def close_idle(self) -> None:
        """Ends the fetchers that have no partition left."""
        for key, fetcher in list(self._fetchers.items()):
            if not len(fetcher):
                self._end(key)

    async def close(self) -> None:
        """Ends all fetchers, and returns when they have ended."""
        for key in list(self._fetchers):
            self._end(key)
        self._fetcher_of.clear()
        while self._closing:
            await asyncio.gather(*self._closing)

    def _fetcher(self, leader: Node, fetcher_id: int) -> ReplicaFetcher:
        """The one of that number for what this broker is not behind with."""
        key = leader.broker_id, fetcher_id
        moved: list[FetchedPartition] = []
        for each in (key, self._beside(key)):
            known = self._fetchers.get(each)
            if known is not None and (known.leader.host, known.leader.port) != (leader.host, leader.port):
                # The leader has moved: its other partitions are told anew with the next epoch, or fetched from here
                # too.
                moved += self._taken_over(each)
        fetcher = self._fetchers.get(key)
        if fetcher is None:
            fetcher = self._make(leader, fetcher_id)
        if moved:
            self._give(fetcher, moved)
        return fetcher

    def _beside(self, key: tuple[int, int]) -> tuple[int, int]:
        """The other one of what is behind and what is not."""
        broker_id, fetcher_id = key
        count = self._fetchers_per_leader
        return broker_id, fetcher_id + (count if fetcher_id < count else -count)

    def _give(self, fetcher: ReplicaFetcher, partitions: list[FetchedPartition]) -> None:
        for fetched in partitions:
            self._fetcher_of[fetched.topic_partition] = fetcher
        fetcher.add(partitions)

    def _is_for_behind(self, key: tuple[int, int]) -> bool:
        return key[1] >= self._fetchers_per_leader

    def _handed_over(self, key: tuple[int, int], partitions: list[FetchedPartition]) -> None:
        """A fetcher has found what belongs to the one beside it."""
        fetcher, beside = self._fetchers[key], self._beside(key)
        other = self._fetchers.get(beside)
        if other is None:
            other = self._make(fetcher.leader, beside[1])
        self._give(other, partitions)
        if not self._is_for_behind(key):
            fetcher.wait_shortly(True)
        else:
            self._has_less(fetcher)

    def _has_less(self, fetcher: ReplicaFetcher) -> None:
        """Some of its partitions have left a fetcher: if it is one of what is behind, and has no more, nothing comes
        back from it."""
        if len(fetcher):
            return
        for key, each in self._fetchers.items():
            if each is fetcher and self._is_for_behind(key):
                beside = self._fetchers.get(self._beside(key))
                if beside is not None:
                    beside.wait_shortly(False)
                self._context.timers.call_after(_KEPT_EMPTY_MS, functools.partial(self._end_empty, key, fetcher))

    def _end_empty(self, key: tuple[int, int], fetcher: ReplicaFetcher) -> None:
        if self._fetchers.get(key) is fetcher and not len(fetcher):
            self._end(key)

    def _taken_over(self, key: tuple[int, int]) -> list[FetchedPartition]:
        """Ends a fetcher; its partitions, for another one. What it does with them still must find them gone."""
        fetcher = self._fetchers[key]
        found = [fetched.taken_over() for fetched in fetcher.partitions]
        fetcher.remove([fetched.topic_partition for fetched in found])
        self._end(key)
        return found

    def _make(self, leader: Node, fetcher_id: int) -> ReplicaFetcher:
        key = leader.broker_id, fetcher_id
        is_for_behind = self._is_for_behind(key)
        hand_over = HandOver(functools.partial(self._handed_over, key), is_for_behind=is_for_behind)
        fetcher = self._fetchers[key] = ReplicaFetcher(self._context, leader, fetcher_id, self.add_failed, hand_over)
        fetcher.wait_shortly(not is_for_behind and self._beside(key) in self._fetchers)
        for name, meter in zip(_stats(fetcher), (fetcher.requests, fetcher.bytes_fetched), strict=True):
            self._metrics.add(name, meter)
        return fetcher

    def _end(self, key: tuple[int, int]) -> None:
        fetcher = self._fetchers.pop(key)
        beside = self._fetchers.get(self._beside(key))
        if beside is not None:
            beside.wait_shortly(False)
        for name in _stats(fetcher):
            self._metrics.remove(name)
        fetcher.close()
        task = self._context.loop.create_task(fetcher.wait_closed(), name=f"{fetcher.name} ends")
        self._closing[task] = None
        task.add_done_callback(lambda done: self._closing.pop(done, None))

    def _lags(self) -> Iterator[tuple[MetricName, Gauge]]:
        """Records by which each partition is behind; -1 before the leader's first answer, as in Kafka."""
        for fetcher in self.fetchers:
            for fetched in fetcher.partitions:
                topic, partition = fetched.topic_partition
                tags = (("clientId", fetcher.name), ("topic", topic), ("partition", str(partition)))
                lag = -1 if fetched.lag is None else fetched.lag
                yield (
                    MetricName("kafka.server", "FetcherLagMetrics", "ConsumerLag", tags),
                    Gauge(functools.partial(int, lag)),
                )

    def _min_fetch_rate(self) -> float:
        return min((fetcher.requests.rates().one_minute for fetcher in self._fetchers.values()), default=0.0)


def _stats(fetcher: ReplicaFetcher) -> tuple[MetricName, MetricName]:
    """The names of a fetcher's meters: requests and bytes."""
    leader = fetcher.leader
    tags = (("clientId", fetcher.name), ("brokerHost", leader.host), ("brokerPort", str(leader.port)))
    return (
        MetricName("kafka.server", "FetcherStats", "RequestsPerSec", tags),
        MetricName("kafka.server", "FetcherStats", "BytesPerSec", tags),
    )
