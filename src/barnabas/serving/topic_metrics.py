"""What is counted by topic: `kafka.server:type=BrokerTopicMetrics`, under Kafka's names.

Whoever counts holds the figures of a topic and adds to plain integers; those of all topics together are summed up when
they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from barnabas.kernel.metrics import Meter, MetricName, MetricsRegistry, Rates

_GROUP: Final = "kafka.server"
_TYPE: Final = "BrokerTopicMetrics"
_NAMES: Final = {
    "bytes_in": "BytesInPerSec",
    "bytes_out": "BytesOutPerSec",
    "bytes_rejected": "BytesRejectedPerSec",
    "messages_in": "MessagesInPerSec",
    "produce_requests": "TotalProduceRequestsPerSec",
    "produce_failures": "FailedProduceRequestsPerSec",
    "fetch_requests": "TotalFetchRequestsPerSec",
    "fetch_failures": "FailedFetchRequestsPerSec",
    "fetch_conversions": "FetchMessageConversionsPerSec",
    "produce_conversions": "ProduceMessageConversionsPerSec",
}
_ALL_TOPICS_ONLY: Final = {"replication_bytes_out": "ReplicationBytesOutPerSec"}


class TopicMetrics:
    """The meters of one topic; one is added to by its `count`."""

    __slots__ = (*_NAMES, "topic")

    bytes_in: Meter
    bytes_out: Meter
    bytes_rejected: Meter
    messages_in: Meter
    produce_requests: Meter
    produce_failures: Meter
    fetch_requests: Meter
    fetch_failures: Meter
    fetch_conversions: Meter
    produce_conversions: Meter

    def __init__(self, topic: str, now: Callable[[], float]) -> None:
        self.topic = topic
        for name in _NAMES:
            setattr(self, name, Meter(now))


class _SummedMeter(Meter):
    """All topics together, those that are gone included."""

    __slots__ = ("_add_up",)

    def __init__(self, now: Callable[[], float], add_up: Callable[[], int]) -> None:
        super().__init__(now)
        self._add_up = add_up

    def rates(self) -> Rates:
        self.count = self._add_up()
        return super().rates()


class BrokerTopicMetrics:
    """The meters of all topics of a broker, made when a topic is first counted and removed with its last partition."""

    def __init__(self, metrics: MetricsRegistry) -> None:
        self._metrics = metrics
        self._topics: dict[str, TopicMetrics] = {}
        self._of_removed = dict.fromkeys(_NAMES, 0)
        for name, metric in _NAMES.items():
            metrics.add(MetricName(_GROUP, _TYPE, metric), _SummedMeter(metrics.now, self._sum_of(name)))
        self.replication_bytes_out = metrics.meter(MetricName(_GROUP, _TYPE, _ALL_TOPICS_ONLY["replication_bytes_out"]))
        """Bytes that followers were given."""

    def of(self, topic: str) -> TopicMetrics:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = TopicMetrics(topic, self._metrics.now)
            for name, metric in _NAMES.items():
                self._metrics.add(MetricName(_GROUP, _TYPE, metric, (("topic", topic),)), getattr(found, name))
        return found

    def remove(self, topics: Iterable[str]) -> None:
        """Forgets topics, but not what was counted of them in all."""
        for topic in topics:
            found = self._topics.pop(topic, None)
            if found is None:
                continue
            for name, metric in _NAMES.items():
                self._of_removed[name] += getattr(found, name).count
                self._metrics.remove(MetricName(_GROUP, _TYPE, metric, (("topic", topic),)))

    def _sum_of(self, name: str) -> Callable[[], int]:
        def add_up() -> int:
            total = self._of_removed[name]
            for topic in self._topics.values():
                total += getattr(topic, name).count
            return total

        return add_up
