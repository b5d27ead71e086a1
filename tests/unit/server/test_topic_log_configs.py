"""Configs of topics on their way to logs."""

from __future__ import annotations

import logging
from typing import cast

from barnabas.cluster.broker_configs import BrokerConfigs
from barnabas.cluster.topic_configs import TopicConfigs
from barnabas.log.manager.log_manager import LogManager
from barnabas.log.partition.log_config import LogConfig
from barnabas.server.config import OWN_KEYS, read_server_config
from barnabas.server.topic_log_configs import TopicLogConfigs

LOGGER = logging.getLogger("test")


class Manager:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.default_config = LogConfig()
        self.told: dict[str, LogConfig] = {}

    def reconfigure(self, topic: str, config: LogConfig) -> None:
        self.told[topic] = config


def made() -> tuple[BrokerConfigs, TopicConfigs, TopicLogConfigs, Manager]:
    config = read_server_config("zookeeper.connect=z:2181\nlog.retention.ms=5000", "test")
    broker_configs = BrokerConfigs(config, broker_id=1, own_keys=OWN_KEYS, logger=LOGGER)
    topic_configs = TopicConfigs(broker_configs, LOGGER)
    manager = Manager()
    return broker_configs, topic_configs, TopicLogConfigs(topic_configs, cast("LogManager", manager)), manager


def test_topics_without_configs_share_the_brokers_defaults() -> None:
    _, topic_configs, log_configs, _ = made()
    topic_configs.set_missing("known")
    assert log_configs.log_config("known") is log_configs.log_config("unknown") is log_configs.default()
    assert log_configs.default().retention_ms == 5000


def test_a_topics_own_configs_go_before_and_reach_its_logs() -> None:
    _, topic_configs, log_configs, manager = made()
    topic_configs.set("own", {"retention.ms": "7"}, 1)
    assert manager.told["own"].retention_ms == log_configs.log_config("own").retention_ms == 7
    assert log_configs.log_config("own") is log_configs.log_config("own")
    topic_configs.set("own", {}, 2)
    assert manager.told["own"].retention_ms == 5000


def test_a_change_of_the_brokers_defaults_reaches_all_logs_but_what_topics_say() -> None:
    broker_configs, topic_configs, log_configs, manager = made()
    topic_configs.set("own", {"retention.ms": "7"}, 1)
    topic_configs.set_missing("other")
    broker_configs.set_cluster_default({"log.retention.ms": "9", "log.segment.bytes": "2000000"})
    assert manager.default_config.retention_ms == log_configs.default().retention_ms == 9
    assert (manager.told["own"].retention_ms, manager.told["own"].segment_bytes) == (7, 2_000_000)
    assert manager.told["other"].retention_ms == 9


def test_a_deleted_topic_is_forgotten() -> None:
    _, topic_configs, log_configs, _ = made()
    topic_configs.set("own", {"retention.ms": "7"}, 1)
    log_configs.forget(["own"])
    assert not topic_configs.knows("own")
    assert log_configs.log_config("own").retention_ms == 5000
