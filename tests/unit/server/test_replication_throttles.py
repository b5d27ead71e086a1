"""Throttles of replication as configs set them."""

from __future__ import annotations

import logging

from barnabas.cluster.broker_configs import BrokerConfigs
from barnabas.cluster.topic_configs import TopicConfigs
from barnabas.kernel.metrics import Gauge, MetricsRegistry
from barnabas.quotas.byte_quota import UNLIMITED
from barnabas.server.config import OWN_KEYS, read_server_config
from barnabas.server.replication_throttles import ReplicationThrottles
from barnabas.wire.topics import TopicPartition

LOGGER = logging.getLogger("test")
LEADER_RATE, FOLLOWER_RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
LEADER_REPLICAS, FOLLOWER_REPLICAS = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)


def made() -> tuple[BrokerConfigs, TopicConfigs, ReplicationThrottles, MetricsRegistry]:
    config = read_server_config("zookeeper.connect=z:2181", "test")
    broker_configs = BrokerConfigs(config, broker_id=1, own_keys=OWN_KEYS, logger=LOGGER)
    topic_configs = TopicConfigs(broker_configs, LOGGER)
    metrics = MetricsRegistry(lambda: 0.0)
    return (
        broker_configs,
        topic_configs,
        ReplicationThrottles(broker_configs, topic_configs, metrics, lambda: 7.0),
        metrics,
    )


def test_rates_are_those_of_the_broker_above_those_of_all() -> None:
    broker_configs, _, throttles, _ = made()
    assert (throttles.leader.bytes_per_second, throttles.follower.bytes_per_second) == (UNLIMITED, UNLIMITED)
    broker_configs.set_cluster_default({LEADER_RATE: "5", FOLLOWER_RATE: "6"})
    broker_configs.set_broker({FOLLOWER_RATE: "7"})
    assert (throttles.leader.bytes_per_second, throttles.follower.bytes_per_second) == (5, 7)
    broker_configs.set_broker({})
    broker_configs.set_cluster_default({})
    assert (throttles.leader.bytes_per_second, throttles.follower.bytes_per_second) == (UNLIMITED, UNLIMITED)


def test_replicas_are_those_that_the_topic_names() -> None:
    _, topic_configs, throttles, _ = made()
    topic_configs.set("flights", {LEADER_REPLICAS: "0:1,1:2", FOLLOWER_REPLICAS: "*"}, 1)
    first, second = TopicPartition("flights", 0), TopicPartition("flights", 1)
    assert [throttles.leader.is_throttled(partition) for partition in (first, second)] == [True, False]
    assert [throttles.follower.is_throttled(partition) for partition in (first, second)] == [True, True]
    topic_configs.set("flights", {}, 2)
    assert not throttles.leader.topics
    assert not throttles.follower.topics


def test_a_topic_that_is_made_anew_is_not_throttled() -> None:
    _, topic_configs, throttles, _ = made()
    topic_configs.set("flights", {LEADER_REPLICAS: "*", FOLLOWER_REPLICAS: "*"}, 1)
    throttles.forget({"flights"})
    assert not throttles.leader.topics
    assert not throttles.follower.topics


def test_the_rates_that_pass_are_metrics() -> None:
    _, _, throttles, metrics = made()
    throttles.follower.record(100)
    found = {str(name): metric.read() for name, metric in metrics if isinstance(metric, Gauge)}
    assert found["kafka.server:type=FollowerReplication,name=byte-rate"] == 100
    assert found["kafka.server:type=LeaderReplication,name=byte-rate"] == 0
