"""A topic's configs: its own, and the broker's below them. Against Apache Kafka: tests/interop."""

from __future__ import annotations

import pytest

from barnabas.config.broker_config import check_broker_config
from barnabas.config.describing import BrokerLayers, Described, Synonym
from barnabas.config.key_table import topic_keys
from barnabas.config.sources import ConfigSource
from barnabas.config.topic_config import (
    TopicConfigError,
    check_topic_configs,
    describe_topic,
    topic_config,
    topic_defaults,
)

STATIC = {"zookeeper.connect": "localhost:2181"}


def broker_values(**given: str) -> dict[str, object]:
    texts = STATIC | {name.replace("_", "."): text for name, text in given.items()}
    return dict(check_broker_config(texts, "test").values)


def test_a_plain_topic_has_kafkas_defaults() -> None:
    assert topic_defaults(broker_values()) == {name: key.default for name, key in topic_keys().items()}


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"log_retention_hours": "2"}, "retention.ms", 7_200_000),
        ({"log_retention_minutes": "2", "log_retention_hours": "9"}, "retention.ms", 120_000),
        ({"log_roll_hours": "3"}, "segment.ms", 10_800_000),
        ({"log_roll_jitter_hours": "1"}, "segment.jitter.ms", 3_600_000),
        ({"log_flush_scheduler_interval_ms": "5"}, "flush.ms", 5),
        ({"log_flush_scheduler_interval_ms": "5", "log_flush_interval_ms": "6"}, "flush.ms", 6),
        ({"message_max_bytes": "7"}, "max.message.bytes", 7),
        ({"log_cleanup_policy": "compact"}, "cleanup.policy", ("compact",)),
        ({"log_message_timestamp_difference_max_ms": "8"}, "message.timestamp.before.max.ms", 8),
        ({"log_message_format_version": "0.10.0"}, "message.format.version", "3.0-IV1"),
        (
            {"log_message_format_version": "0.10.0", "inter_broker_protocol_version": "2.8"},
            "message.format.version",
            "0.10.0",
        ),
    ],
)
def test_the_broker_says_what_a_topic_does_not(given: dict[str, str], name: str, value: object) -> None:
    assert topic_defaults(broker_values(**given))[name] == value


def test_its_own_configs_go_first_and_unknown_ones_are_passed_over() -> None:
    config = topic_config({"retention.ms": "5", "from.the.future": "x"}, broker_values(log_retention_ms="6"))
    assert config["retention.ms"] == 5
    assert config["segment.bytes"] == 1 << 30
    assert "from.the.future" not in config


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(TopicConfigError) as caught:
        check_topic_configs(
            {
                "retension.ms": "5",
                "segment.bytes": "13",
                "min.compaction.lag.ms": "2",
                "max.compaction.lag.ms": "1",
                "remote.storage.enable": "true",
                "remote.log.copy.disable": "true",
            },
            broker_values(),
        )
    assert caught.value.problems == (
        "Unknown topic config name: retension.ms; did you mean retention.ms?",
        "Invalid value 13 for configuration segment.bytes: Value must be at least 14",
        "min.compaction.lag.ms (2) must not be above max.compaction.lag.ms (1)",
        "remote.log.copy.disable is not possible in ZooKeeper mode",
        "remote.storage.enable needs remote.log.storage.system.enable on the broker",
    )


def test_good_configs_come_back_as_values() -> None:
    assert check_topic_configs({"retention.ms": "5"}, broker_values())["retention.ms"] == 5


def describe(name: str, overrides: dict[str, str], layers: BrokerLayers) -> Described:
    values = check_broker_config(layers.merged(), "test").values
    (found,) = [each for each in describe_topic(overrides, values, layers) if each.name == name]
    return found


def test_a_value_is_told_with_every_place_that_sets_it() -> None:
    layers = BrokerLayers({**STATIC, "log.roll.hours": "3"}, {"log.roll.ms": "4"}, {"log.roll.ms": "5"})
    found = describe("segment.ms", {"segment.ms": "6"}, layers)
    assert (found.value, found.source, found.read_only) == ("6", ConfigSource.DYNAMIC_TOPIC, False)
    assert found.synonyms == (
        Synonym("segment.ms", "6", ConfigSource.DYNAMIC_TOPIC),
        Synonym("log.roll.ms", "5", ConfigSource.DYNAMIC_BROKER),
        Synonym("log.roll.ms", "4", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        Synonym("log.roll.hours", "3", ConfigSource.STATIC_BROKER),
        Synonym("log.roll.hours", "168", ConfigSource.DEFAULT),
    )


def test_what_no_broker_key_sets_is_a_default_without_synonyms() -> None:
    found = describe("remote.storage.enable", {}, BrokerLayers(STATIC))
    assert (found.value, found.source, found.synonyms) == ("false", ConfigSource.DEFAULT, ())


def test_an_unknown_config_of_a_topic_is_hidden() -> None:
    found = describe("from.the.future", {"from.the.future": "x"}, BrokerLayers(STATIC))
    assert (found.value, found.sensitive, found.type) == (None, True, 0)


TIERED_BROKER = {**broker_values(), "remote.log.storage.system.enable": True}
TIERED = {"remote.storage.enable": "true"}


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"cleanup.policy": "compact,delete"}, "not possible for compacted topics"),
        ({"retention.ms": "100", "local.retention.ms": "101"}, r"local.retention.ms \(101\) must not be above"),
        ({"retention.ms": "100", "local.retention.ms": "-1"}, "nor -1 where that is set"),
        (
            {"retention.bytes": "100", "local.retention.bytes": "101"},
            r"local.retention.bytes \(101\) must not be above",
        ),
        ({"retention.bytes": "100", "local.retention.bytes": "-1"}, "nor -1 where that is set"),
    ],
)
def test_what_a_tiered_topic_cannot_have(overrides: dict[str, str], says: str) -> None:
    with pytest.raises(TopicConfigError, match=says):
        check_topic_configs(TIERED | overrides, TIERED_BROKER)
    if "compact" not in overrides.get("cleanup.policy", ""):
        check_topic_configs(overrides, TIERED_BROKER)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"retention.ms": "100", "local.retention.ms": "-2"},
        {"retention.ms": "-1", "local.retention.ms": "-1"},
        {"retention.bytes": "100", "local.retention.bytes": "100"},
    ],
)
def test_what_a_tiered_topic_can_have(overrides: dict[str, str]) -> None:
    check_topic_configs(TIERED | overrides, TIERED_BROKER)


def test_tiered_storage_cannot_be_switched_off() -> None:
    for changed in ({}, {"remote.storage.enable": "false"}):
        with pytest.raises(TopicConfigError, match="cannot be switched off: what is in remote storage would be lost"):
            check_topic_configs(changed, TIERED_BROKER, TIERED)
    check_topic_configs(TIERED, TIERED_BROKER, TIERED)
    check_topic_configs({}, TIERED_BROKER, {"remote.storage.enable": "false"})
