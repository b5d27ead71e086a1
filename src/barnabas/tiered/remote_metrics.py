"""What is counted of remote storage: `kafka.server:type=BrokerTopicMetrics`, under Kafka's names (KIP-405)."""

from __future__ import annotations

from functools import partial
from typing import Final

from barnabas.kernel.metrics import Meter, MetricName, MetricsRegistry
from barnabas.tiered.remote_quotas import RemoteQuota, RemoteQuotas
from barnabas.wire.topics import TopicPartition

_NAMES: Final = {
    "copy_bytes": "RemoteCopyBytesPerSec",
    "copy_requests": "RemoteCopyRequestsPerSec",
    "copy_errors": "RemoteCopyErrorsPerSec",
    "fetch_bytes": "RemoteFetchBytesPerSec",
    "fetch_requests": "RemoteFetchRequestsPerSec",
    "delete_requests": "RemoteDeleteRequestsPerSec",
    "delete_errors": "RemoteDeleteErrorsPerSec",
}

_MANAGER: Final = "RemoteLogManager"


class RemoteTopicMetrics:
    """The meters of one topic."""

    __slots__ = tuple(_NAMES)

    copy_bytes: Meter
    copy_requests: Meter
    copy_errors: Meter
    fetch_bytes: Meter
    fetch_requests: Meter
    delete_requests: Meter
    delete_errors: Meter

    def __init__(self, metrics: MetricsRegistry, topic: str) -> None:
        tags = (("topic", topic),)
        for attribute, name in _NAMES.items():
            setattr(self, attribute, metrics.meter(MetricName("kafka.server", "BrokerTopicMetrics", name, tags)))


class RemoteMetrics:
    """Those of one broker."""

    def __init__(self, metrics: MetricsRegistry) -> None:
        self._metrics = metrics
        self._topics: dict[str, RemoteTopicMetrics] = {}
        self.sizes: dict[TopicPartition, int] = {}
        """Bytes in remote storage of the partitions that this broker leads."""
        metrics.gauge(
            MetricName("kafka.server", "BrokerTopicMetrics", "RemoteLogSizeBytes"), lambda: sum(self.sizes.values())
        )

    def show(self, quotas: RemoteQuotas) -> None:
        """What passes of each quota, and how long it holds back."""
        for group, name, quota in (("RLMCopy", "copy", quotas.copy), ("RLMFetch", "fetch", quotas.fetch)):
            self._metrics.gauge(MetricName("kafka.server", group, "byte-rate"), partial(_byte_rate, quota))
            throttled = f"remote-{name}-throttle-time"
            self._metrics.gauge(MetricName("kafka.server", _MANAGER, f"{throttled}-avg"), quota.times.mean_ms)
            self._metrics.gauge(MetricName("kafka.server", _MANAGER, f"{throttled}-max"), quota.times.largest_ms)

    def of(self, topic: str) -> RemoteTopicMetrics:
        """The meters of a topic."""
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = RemoteTopicMetrics(self._metrics, topic)
        return found

    def fetched(self, topic: str, size_bytes: int) -> None:
        """Counts what a consumer was given."""
        meters = self.of(topic)
        meters.fetch_requests.count += 1
        meters.fetch_bytes.count += size_bytes


def _byte_rate(quota: RemoteQuota) -> float:
    return quota.byte_rate
