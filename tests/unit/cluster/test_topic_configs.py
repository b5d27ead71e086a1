"""Topics' configs in memory: looked up at once, told when they change, never older than what is known."""

from __future__ import annotations

import logging

from barnabas.cluster.topic_configs import TOPICS_TOLD_AT_ONCE, TopicConfigs
from tests.unit.cluster.test_broker_configs import configs as broker_configs
from tests.unit.network.serving import Lines


def made() -> tuple[TopicConfigs, list[tuple[str, int]]]:
    """Configs, and the retention that each topic was told to have."""
    brokers, _ = broker_configs()
    topics = TopicConfigs(brokers, logging.getLogger("kafka.server.DynamicConfigManager"))
    heard: list[tuple[str, int]] = []
    topics.add_listener(lambda topic, values: heard.append((topic, values["retention.ms"])))
    return topics, heard


HOUR_MS = 60 * 60 * 1000


def test_a_topic_has_its_own_configs_above_the_brokers() -> None:
    topics, heard = made()
    assert topics.values("t")["retention.ms"] == 2 * HOUR_MS
    assert not topics.knows("t")
    topics.set("t", {"retention.ms": "5"}, 10)
    assert topics.knows("t")
    assert topics.values("t")["retention.ms"] == 5
    assert topics.values("t")["segment.bytes"] == 1073741824
    assert topics.values("other")["retention.ms"] == 2 * HOUR_MS
    assert heard == [("t", 5)]


def test_what_is_older_is_not_taken() -> None:
    topics, heard = made()
    assert topics.set("t", {"retention.ms": "5"}, 10)
    assert not topics.set("t", {"retention.ms": "4"}, 9)
    assert topics.set("t", {"retention.ms": "5"}, 10)
    assert topics.overrides("t") == {"retention.ms": "5"}
    assert heard == [("t", 5)]


def test_a_topic_without_znode_has_none_of_its_own() -> None:
    topics, heard = made()
    topics.set_missing("t")
    assert topics.knows("t")
    topics.set("t", {"retention.ms": "5"}, 10)
    topics.set_missing("t")
    assert topics.values("t")["retention.ms"] == 2 * HOUR_MS
    assert heard == [("t", 5), ("t", 2 * HOUR_MS)]


def test_a_forgotten_topic_is_unknown() -> None:
    topics, heard = made()
    topics.set("t", {"retention.ms": "5"}, 10)
    topics.forget(["t", "nobody"])
    assert not topics.knows("t")
    assert topics.values("t")["retention.ms"] == 2 * HOUR_MS
    assert topics.set("t", {"retention.ms": "7"}, 3)
    assert heard == [("t", 5), ("t", 7)]


def test_a_new_default_of_the_broker_reaches_every_topic() -> None:
    brokers, _ = broker_configs()
    topics = TopicConfigs(brokers, logging.getLogger("kafka.server.DynamicConfigManager"))
    topics.set("own", {"retention.ms": "5"}, 1)
    topics.set("plain", {}, 1)
    heard: dict[str, tuple[int, int]] = {}
    topics.add_listener(lambda topic, values: heard.update({topic: (values["retention.ms"], values["segment.bytes"])}))
    brokers.set_cluster_default({"log.retention.ms": "9", "log.segment.bytes": "100"})
    assert heard == {"own": (5, 100), "plain": (9, 100)}
    assert topics.values("new")["retention.ms"] == 9


def test_a_new_default_reaches_many_topics_in_pieces() -> None:
    brokers, _ = broker_configs()
    topics = TopicConfigs(brokers, logging.getLogger("kafka.server.DynamicConfigManager"), tells_in_pieces=True)
    heard: dict[str, int] = {}
    topics.add_listener(lambda topic, values: heard.update({topic: values["retention.ms"]}))
    names = [f"t{number}" for number in range(2 * TOPICS_TOLD_AT_ONCE + 1)]
    for name in names:
        topics.set_missing(name)
    brokers.set_cluster_default({"log.retention.ms": "7000"})
    assert not heard
    assert topics.values("t0")["retention.ms"] == 7000
    assert topics.tell_some()
    assert len(heard) == TOPICS_TOLD_AT_ONCE
    # Another change while some have not heard of the first: they hear of both at once.
    brokers.set_cluster_default({"log.retention.ms": "8000"})
    while topics.tell_some():
        pass
    assert heard == dict.fromkeys(names, 8000)


def test_what_cannot_be_read_is_left_out() -> None:
    topics, _ = made()
    topics.set("t", {"retention.ms": "soon", "segment.bytes": "100", "nobody.knows": "x"}, 1)
    assert topics.values("t")["retention.ms"] == 2 * HOUR_MS
    assert topics.values("t")["segment.bytes"] == 100
    assert topics.overrides("t") == {"segment.bytes": "100", "nobody.knows": "x"}


def test_says_once_what_is_not_supported_yet() -> None:
    brokers, _ = broker_configs()
    lines = Lines()
    logger = logging.getLogger(f"kafka.server.DynamicConfigManager of {id(lines)}")
    logger.addHandler(lines)
    topics = TopicConfigs(brokers, logger)
    for topic in ("t", "u"):
        topics.set(topic, {"preallocate": "true", "retention.ms": "5", "nobody.knows": "x"}, 1)
    assert [line for line in lines.lines if "not supported yet" in line] == [
        "WARNING Configs of topics that are known but not supported yet: preallocate"
    ]


def test_topics_are_found_by_what_they_set_however_that_is_written() -> None:
    topics, _ = made()
    topics.set("small", {"remote.storage.enable": "true"}, 1)
    topics.set("large", {"remote.storage.enable": " TRUE "}, 1)
    topics.set("off", {"remote.storage.enable": "false"}, 1)
    topics.set("other", {"retention.ms": "5"}, 1)
    assert topics.topics_with("remote.storage.enable", "true") == ["small", "large"]
