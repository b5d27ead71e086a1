"""What holds for a broker, above server.properties; what cannot hold is left out, and said."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from barnabas.cluster.broker_configs import BrokerConfigs
from barnabas.config.broker_config import check_broker_config
from barnabas.config.sources import ConfigSource
from barnabas.wire.errors import KafkaError
from tests.unit.network.serving import Lines

STATIC = {"zookeeper.connect": "localhost:2181", "broker.id": "1", "log.retention.hours": "2"}


def configs() -> tuple[BrokerConfigs, list[str]]:
    lines = Lines()
    logger = logging.getLogger(f"kafka.server.DynamicBrokerConfig of {id(lines)}")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(lines)
    return BrokerConfigs(check_broker_config(STATIC, "test"), broker_id=1, logger=logger), lines.lines


def test_the_broker_goes_before_the_cluster_and_both_before_the_file() -> None:
    made, _ = configs()
    made.set_cluster_default({"log.retention.ms": "5", "log.segment.bytes": "100"})
    made.set_broker({"log.retention.ms": "6"})
    assert (made.values["log.retention.ms"], made.values["log.segment.bytes"]) == (6, 100)
    assert made.layers.synonyms("log.retention.ms")[0].source is ConfigSource.DYNAMIC_BROKER
    made.set_broker({})
    assert made.values["log.retention.ms"] == 5
    made.set_cluster_default({})
    assert made.values["log.retention.ms"] is None
    assert made.values["log.retention.hours"] == 2


@pytest.mark.parametrize("is_start", [False, True])
def test_what_holds_only_together_holds_in_whatever_order_it_is_read(is_start: bool) -> None:
    made, _ = configs()
    of_all = {"max.connections.per.ip": "0", "log.retention.ms": "-1"}
    of_one = {"max.connections.per.ip.overrides": "127.0.0.1:5"}
    if is_start:
        made.set_cluster_default(of_all)
        made.set_broker(of_one)
    else:
        made.check(of_one, of_one_broker=True)
        made.set_broker(of_one)
        made.check(of_all, of_one_broker=False)
        made.set_cluster_default(of_all)
    assert (made.values["max.connections.per.ip"], made.values["log.retention.ms"]) == (0, -1)


def test_what_cannot_hold_keeps_back_nothing_that_can() -> None:
    made, lines = configs()
    made.set_cluster_default({"max.connections.per.ip": "0", "log.retention.ms": "-1"})
    assert any("are ignored" in line for line in lines)
    made.set_broker({"log.segment.bytes": "100"})
    assert (made.values["log.segment.bytes"], made.values["log.retention.ms"]) == (100, None)
    assert dict(made.layers.cluster_default) == {}


def test_listeners_hear_of_their_keys_alone() -> None:
    made, _ = configs()
    heard: list[Mapping[str, Any]] = []
    made.add_listener(["log.segment.bytes"], heard.append)
    made.set_broker({"log.retention.ms": "6"})
    made.set_broker({"log.retention.ms": "6", "log.segment.bytes": "100"})
    made.set_broker({"log.segment.bytes": "100"})
    made.set_broker({})
    assert [values["log.segment.bytes"] for values in heard] == [100, 1073741824]


def test_who_follows_has_what_was_set_before_and_what_is_set_after() -> None:
    made, _ = configs()
    heard: list[Mapping[str, Any]] = []
    made.set_broker({"log.segment.bytes": "100"})
    made.follow(["log.segment.bytes"], heard.append)
    made.set_broker({"log.segment.bytes": "101"})
    assert [values["log.segment.bytes"] for values in heard] == [100, 101]


def test_what_nobody_follows_waits_for_the_next_start_once_the_rooms_are_made() -> None:
    made, lines = configs()
    made.set_cluster_default({"compression.gzip.level": "5"})
    assert made.for_rooms().values["compression.gzip.level"] == 5
    assert not any("next start" in line for line in lines)
    made.set_cluster_default({"compression.gzip.level": "5", "compression.zstd.level": "5"})
    (said,) = [line for line in lines if "next start" in line]
    assert "zstd" in said
    assert "gzip" not in said


def test_what_cannot_hold_is_left_out_and_the_rest_holds() -> None:
    made, lines = configs()
    made.set_broker(
        {
            "log.retention.ms": "soon",
            "log.dirs": "/x",
            "ssl.key.password": "hunter2",
            "leader.replication.throttled.rate": "-5",
            "log.segment.bytes": "100",
        }
    )
    assert dict(made.layers.broker) == {"log.segment.bytes": "100"}
    errors = [line for line in lines if line.startswith("ERROR")]
    for name in ("log.retention.ms", "log.dirs", "ssl.key.password", "leader.replication.throttled.rate"):
        assert any(name in line for line in errors), name
    assert not any("hunter2" in line for line in lines)


def test_configs_of_one_broker_are_refused_for_all() -> None:
    made, lines = configs()
    made.set_cluster_default({"advertised.listeners": "PLAINTEXT://x:1"})
    assert dict(made.layers.cluster_default) == {}
    assert any("advertised.listeners" in line for line in lines)


def test_a_conflict_leaves_what_held_before() -> None:
    made, lines = configs()
    made.set_broker({"log.segment.bytes": "100"})
    # Each of them could be; together with the listeners of server.properties, they cannot.
    made.set_broker({"advertised.listeners": "NOBODY://x:1"})
    assert dict(made.layers.broker) == {"log.segment.bytes": "100"}
    assert any("ignored" in line for line in lines)


def test_says_once_what_has_no_effect_and_what_waits_for_the_next_start() -> None:
    made, lines = configs()
    made.add_listener(["log.segment.bytes"], lambda _values: None)
    for count in ("4", "5"):
        made.set_broker({"num.io.threads": count, "log.segment.bytes": f"10{count}"})
    said = [line for line in lines if line.startswith("WARNING")]
    assert len(said) == 1
    assert "num.io.threads" in said[0]
    assert "log.segment.bytes" not in said[0]


REFUSED: list[tuple[dict[str, str], bool, str]] = [
    ({"log.dirs": "/x"}, True, "INVALID_REQUEST"),
    ({"log.retention.ms": "soon"}, True, "INVALID_REQUEST"),
    ({"advertised.listeners": "PLAINTEXT://x:1"}, False, "INVALID_REQUEST"),
    ({"follower.replication.throttled.rate": "x"}, False, "INVALID_REQUEST"),
    ({"log.cleaner.threads": "3"}, False, "INVALID_REQUEST"),
    ({"log.cleaner.threads": "0"}, True, "INVALID_REQUEST"),
    ({"ssl.key.password": "x"}, True, "INVALID_REQUEST"),
    ({"sasl.jaas.config": "x"}, False, "INVALID_REQUEST"),
    ({"listener.name.plaintext.plain.sasl.jaas.config": "x"}, True, "INVALID_REQUEST"),
]


@pytest.mark.parametrize(("texts", "of_one_broker", "code"), REFUSED)
def test_what_a_client_asks_for_is_checked_first(texts: dict[str, str], of_one_broker: bool, code: str) -> None:
    made, _ = configs()
    with pytest.raises(KafkaError) as refusal:
        made.check(texts, of_one_broker=of_one_broker)
    assert refusal.value.code.name == code


def test_of_a_listener_that_is_there_only_bounds_and_stores_change() -> None:
    """As in Kafka: what else it says is settled when the listener is made, and a new one may have it."""
    made, _ = configs()
    made.check({"listener.name.plaintext.max.connections": "5"}, of_one_broker=True)
    made.check({"listener.name.plaintext.ssl.keystore.location": "/a"}, of_one_broker=True)
    for fixed in ("ssl.client.auth", "connections.max.reauth.ms", "sasl.enabled.mechanisms"):
        value = {"ssl.client.auth": "required", "connections.max.reauth.ms": "5"}.get(fixed, "PLAIN")
        name = f"listener.name.plaintext.{fixed}"
        with pytest.raises(KafkaError, match=f"{name} cannot be changed at run time for a listener that is there"):
            made.check({name: value}, of_one_broker=True)
        made.check({f"listener.name.new.{fixed}": value}, of_one_broker=True)
    made.set_broker({"listener.name.plaintext.ssl.client.auth": "required"})  # from an earlier time: it may stay
    made.check({"listener.name.plaintext.ssl.client.auth": "required", "log.retention.ms": "5"}, of_one_broker=True)


def test_threads_of_the_cleaner_are_halved_or_doubled_at_a_time() -> None:
    made, _ = configs()
    made.check({"log.cleaner.threads": "2"}, of_one_broker=False)
    made.set_cluster_default({"log.cleaner.threads": "4"})
    made.check({"log.cleaner.threads": "8"}, of_one_broker=True)
    made.check({"log.cleaner.threads": "2"}, of_one_broker=True)
    for threads in ("9", "1"):
        with pytest.raises(KafkaError):
            made.check({"log.cleaner.threads": threads}, of_one_broker=True)


def test_a_check_changes_nothing() -> None:
    made, _ = configs()
    made.check({"log.segment.bytes": "100", "follower.replication.throttled.rate": "5"}, of_one_broker=True)
    made.check({"nobody.knows": "1"}, of_one_broker=False)
    assert made.values["log.segment.bytes"] == 1073741824


def test_a_throttle_that_is_set_at_run_time_only_is_followed() -> None:
    name = "replica.alter.log.dirs.io.max.bytes.per.second"
    made, lines = configs()
    made.set_cluster_default({name: "5"})
    heard: list[int] = []
    made.follow_throttle(name, heard.append)
    made.set_broker({name: "7"})
    made.set_broker({name: "7", "log.retention.ms": "6"})
    made.set_broker({name: "fast"})
    made.set_cluster_default({})
    assert heard == [5, 7, 5, 2**63 - 1]
    assert any("fast" in line for line in lines)
