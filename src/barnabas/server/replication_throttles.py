"""The throttles of replication, as dynamic configs of brokers and topics set them (KIP-73)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from barnabas.config.settings import take
from barnabas.kernel.metrics import MetricName, MetricsRegistry
from barnabas.quotas.replication_quota import ReplicationQuota
from barnabas.quotas.settings import ReplicationQuotaSettings

if TYPE_CHECKING:
    from barnabas.cluster.broker_configs import BrokerConfigs
    from barnabas.cluster.topic_configs import TopicConfigs
    from barnabas.config.derived import Values


class ReplicationThrottles:
    """Both throttles of a broker, which follow the configs from the start on."""

    def __init__(
        self,
        broker_configs: BrokerConfigs,
        topic_configs: TopicConfigs,
        metrics: MetricsRegistry,
        now: Callable[[], float],
    ) -> None:
        """`now` is the loop's time in seconds."""
        settings = take(ReplicationQuotaSettings, broker_configs.values)
        self._broker_id = broker_configs.broker_id
        self.leader = ReplicationQuota(settings, now)
        self.follower = ReplicationQuota(settings, now)
        broker_configs.follow_throttle("leader.replication.throttled.rate", self.leader.limit)
        broker_configs.follow_throttle("follower.replication.throttled.rate", self.follower.limit)
        topic_configs.add_listener(self._topic_changed)
        metrics.gauge(MetricName("kafka.server", "LeaderReplication", "byte-rate"), self._rate_of(self.leader))
        metrics.gauge(MetricName("kafka.server", "FollowerReplication", "byte-rate"), self._rate_of(self.follower))

    def forget(self, topics: Iterable[str]) -> None:
        """Drops topics that were deleted: others of their names are not throttled."""
        names = list(topics)
        self.leader.forget(names)
        self.follower.forget(names)

    def _topic_changed(self, topic: str, values: Values) -> None:
        self.leader.throttle(topic, values["leader.replication.throttled.replicas"], self._broker_id)
        self.follower.throttle(topic, values["follower.replication.throttled.replicas"], self._broker_id)

    @staticmethod
    def _rate_of(quota: ReplicationQuota) -> Callable[[], float]:
        return lambda: quota.byte_rate
