"""Where a broker's config comes from, and what of it can change at run time. Against Apache Kafka: tests/interop."""

from __future__ import annotations

import pytest

from barnabas.config.broker_config import check_broker_config
from barnabas.config.describing import (
    BrokerLayers,
    Described,
    Synonym,
    check_dynamic_configs,
    describe_broker,
    describe_cluster_default,
    synonym_chain,
)
from barnabas.config.key_table import broker_keys
from barnabas.config.sources import ConfigSource

STATIC = {
    "zookeeper.connect": "localhost:2181",
    "log.retention.hours": "1",
    "log.retention.minutes": "2",
    "ssl.key.password": "hunter2",
    "nobody.knows": "x",
    "listener.name.plaintext.max.connections": "7",
}


def layers(cluster_default: dict[str, str] | None = None, broker: dict[str, str] | None = None) -> BrokerLayers:
    return BrokerLayers(STATIC, cluster_default or {}, broker or {})


def describe(name: str, of: BrokerLayers) -> Described:
    (found,) = [each for each in describe_broker(check_broker_config(of.merged(), "test"), of) if each.name == name]
    return found


def test_a_default_is_told_as_such() -> None:
    assert describe("num.partitions", layers()) == Described(
        "num.partitions",
        "1",
        ConfigSource.DEFAULT,
        read_only=True,
        sensitive=False,
        type=3,
        documentation=broker_keys()["num.partitions"].documentation,
        synonyms=(Synonym("num.partitions", "1", ConfigSource.DEFAULT),),
    )


def test_nearer_places_and_finer_units_go_first() -> None:
    found = describe("log.retention.minutes", layers({"log.retention.ms": "5"}, {"log.retention.ms": "6"}))
    assert found.synonyms == (
        Synonym("log.retention.minutes", "2", ConfigSource.STATIC_BROKER),
        Synonym("log.retention.hours", "1", ConfigSource.STATIC_BROKER),
        Synonym("log.retention.hours", "168", ConfigSource.DEFAULT),
    )
    finest = describe("log.retention.ms", layers({"log.retention.ms": "5"}, {"log.retention.ms": "6"}))
    assert finest.value == "6"
    assert finest.source is ConfigSource.DYNAMIC_BROKER
    assert [each.source for each in finest.synonyms[:3]] == [
        ConfigSource.DYNAMIC_BROKER,
        ConfigSource.DYNAMIC_DEFAULT_BROKER,
        ConfigSource.STATIC_BROKER,
    ]


def test_a_dynamic_value_takes_the_place_of_its_synonyms() -> None:
    merged = layers({"log.retention.ms": "5"}).merged()
    assert merged["log.retention.ms"] == "5"
    assert "log.retention.hours" not in merged
    assert "log.retention.minutes" not in merged
    assert merged["nobody.knows"] == "x"
    of_listener = {"listener.name.plaintext.max.connections": "1"}
    assert BrokerLayers({"max.connections": "9"}, {}, of_listener).merged() == {"max.connections": "9", **of_listener}


def test_secrets_and_unknown_names_are_hidden() -> None:
    secret = describe("ssl.key.password", layers())
    assert (secret.value, secret.sensitive, secret.source) == (None, True, ConfigSource.STATIC_BROKER)
    assert {each.value for each in secret.synonyms} == {None}
    unknown = describe("nobody.knows", layers())
    assert (unknown.value, unknown.sensitive, unknown.type, unknown.documentation) == (None, True, 0, "")
    assert "hunter2" not in repr(describe_broker(check_broker_config(STATIC, "test"), layers()))


def test_throttles_are_told_though_no_file_can_set_them() -> None:
    of_broker = layers(broker={"leader.replication.throttled.rate": "1000"})
    found = describe("leader.replication.throttled.rate", of_broker)
    assert (found.value, found.sensitive, found.type, found.read_only) == ("1000", False, 5, True)
    assert found.source is ConfigSource.DYNAMIC_BROKER


def test_keys_for_developers_are_told_where_they_are_given() -> None:
    names = {each.name for each in describe_broker(check_broker_config(STATIC, "test"), layers())}
    assert "log.initial.task.delay.ms" not in names
    given = {**STATIC, "log.initial.task.delay.ms": "5"}
    names = {each.name for each in describe_broker(check_broker_config(given, "test"), BrokerLayers(given))}
    assert "log.initial.task.delay.ms" in names


def test_a_key_of_a_listener_falls_back_to_the_key() -> None:
    name = "listener.name.plaintext.max.connections"
    assert synonym_chain(name, broker_keys()) == (name, "max.connections")
    assert [each.source for each in describe(name, layers({"max.connections": "3"})).synonyms] == [
        ConfigSource.STATIC_BROKER,
        ConfigSource.DEFAULT,
    ]


def test_the_cluster_default_is_told_alone() -> None:
    (found,) = describe_cluster_default(layers({"log.retention.ms": "5"}, {"log.retention.ms": "6"}))
    assert (found.value, found.source) == ("5", ConfigSource.DYNAMIC_DEFAULT_BROKER)
    assert found.synonyms == (Synonym("log.retention.ms", "5", ConfigSource.DYNAMIC_DEFAULT_BROKER),)


@pytest.mark.parametrize(
    ("name", "of_one_broker", "says"),
    [
        ("log.retention.ms", True, None),
        ("log.retention.ms", False, None),
        ("nobody.knows", False, None),
        ("log.retention.hours", True, "cannot be changed at run time"),
        ("listeners", True, None),
        ("listeners", False, "for one broker only"),
        ("ssl.keystore.location", True, "only for one listener: listener.name.NAME.ssl.keystore.location"),
        ("ssl.truststore.certificates", True, "only for one listener"),
        ("listener.name.inside.ssl.keystore.location", True, None),
        ("listener.name.inside.ssl.keystore.location", False, "for one broker only"),
        ("listener.name.inside.max.connections", False, None),
        ("ssl.client.auth", True, None),
    ],
)
def test_what_cannot_change_at_run_time_is_told(name: str, of_one_broker: bool, says: str | None) -> None:
    problems = check_dynamic_configs({name: "x"}, of_one_broker=of_one_broker)
    assert len(problems) == (says is not None)
    assert all(says in problem and name in problem for problem in problems if says)
