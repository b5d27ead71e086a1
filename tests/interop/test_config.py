"""Config keys, values, places and synonyms, name by name, as Apache Kafka 3.9.1 answers DescribeConfigs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from barnabas.config.broker_config import (
    BrokerConfig,
    BrokerConfigError,
    check_broker_config,
    read_broker_config,
)
from barnabas.config.describing import (
    BrokerLayers,
    Described,
    Synonym,
    check_dynamic_configs,
    describe_broker,
    describe_cluster_default,
)
from barnabas.config.key_table import broker_keys
from barnabas.config.keys import UpdateMode
from barnabas.config.sources import ConfigSource
from barnabas.config.topic_config import TopicConfigError, check_topic_configs, describe_topic
from barnabas.wire.codec import decode, encode
from barnabas.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tests.interop.record_requests import exchange
from tests.support.apache_kafka import ApacheKafkaBroker, apache_kafka_broker
from tests.support.waiting import wait_until
from tests.support.zookeeper import ZooKeeperServer

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
BROKER_ID: Final = "5"

STATIC: Final = {
    "broker.rack": " rack 1 ",
    "log.retention.minutes": 90,
    "log.retention.bytes": 10_000_000_000,
    "log.roll.hours": 5,
    "log.flush.scheduler.interval.ms": 70_000,
    "log.cleaner.io.max.bytes.per.second": 12_500_000,
    "log.cleaner.min.cleanable.ratio": "0.0005",
    "log.message.timestamp.difference.max.ms": 7_000_000,
    "log.cleanup.policy": "compact , delete",
    "ssl.keystore.password": "secret",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.plaintext.max.connections": 700,
    "listener.name.plaintext.plain.sasl.jaas.config": "module required;",
    "log.initial.task.delay.ms": 20_000,
    "super.users": "User:admin",
    "nobody.knows.this": "x",
    "zookeeper.connection.timeout.ms": 20_000,
}
CLUSTER_DEFAULT: Final = {"log.retention.ms": "5000000", "log.segment.bytes": "100000000", "min.insync.replicas": "2"}
OF_BROKER: Final = {
    "log.segment.bytes": "200000000",
    "log.cleaner.backoff.ms": "14000",
    "log.cleaner.io.max.bytes.per.second": "25000000",
    "log.flush.interval.ms": "60000",
    "listener.name.plaintext.max.connections": "800",
}
OF_TOPIC: Final = {
    "retention.ms": "1000000",
    "segment.ms": "2000000",
    "min.cleanable.dirty.ratio": "0.25",
    "cleanup.policy": "compact",
    "leader.replication.throttled.replicas": "0:5",
}


@dataclass(frozen=True, slots=True)
class Oracle:
    """A broker of Apache Kafka, and our reading of its server.properties."""

    broker: ApacheKafkaBroker
    static: BrokerConfig

    def describe(self, resource_type: int, name: str) -> dict[str, Described]:
        """What the broker answers, by name."""
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=resource_type, resource_name=name, configuration_keys=None
        )
        request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=False)
        answer = exchange(self.broker.port, 32, 3, b"".join(encode(request, 3)))
        (result,) = decode(DescribeConfigsResponse, 3, answer).results
        assert result.error_code == 0, result.error_message
        return {config.name: described(config) for config in result.configs}

    def alter(self, resource_type: int, name: str, texts: Mapping[str, str]) -> None:
        """Sets these dynamic configs."""
        (result,) = self._alter(resource_type, name, texts, validate_only=False)
        assert result.error_code == 0, result.error_message

    def refuses(self, resource_type: int, name: str, key: str, text: str) -> str | None:
        """Why the broker would not take a change of one config; None when it would."""
        (result,) = self._alter(resource_type, name, {key: text}, validate_only=True)
        return None if result.error_code == 0 else str(result.error_message)

    def create_topic(self, name: str, configs: Mapping[str, str]) -> None:
        topic = CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=1,
            replication_factor=1,
            assignments=[],
            configs=[CreateTopicsRequest.CreatableTopicConfig(name=key, value=text) for key, text in configs.items()],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000, validate_only=False)
        answer = exchange(self.broker.port, 19, 3, b"".join(encode(request, 3)))
        (result,) = decode(CreateTopicsResponse, 3, answer).topics
        assert result.error_code == 0, result.error_message

    def _alter(self, resource_type: int, name: str, texts: Mapping[str, str], *, validate_only: bool) -> list[Any]:
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=resource_type,
            resource_name=name,
            configs=[
                IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=0, value=text)
                for key, text in texts.items()
            ],
        )
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
        answer = exchange(self.broker.port, 44, 0, b"".join(encode(request, 0)))
        return list(decode(IncrementalAlterConfigsResponse, 0, answer).responses)


def described(config: Any) -> Described:
    synonyms = tuple(Synonym(each.name, each.value, ConfigSource(each.source)) for each in config.synonyms)
    return Described(
        config.name,
        config.value,
        ConfigSource(config.config_source),
        config.read_only,
        config.is_sensitive,
        config.config_type,
        "",
        synonyms,
    )


def ours(configs: tuple[Described, ...]) -> dict[str, Described]:
    """By name, without documentation: that is in our own words."""
    return {config.name: replace(config, documentation="") for config in configs}


@pytest.fixture(scope="module")
def oracle(zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    address = f"{zookeeper_server.address}/configured"
    directory = tmp_path_factory.mktemp("kafka")
    with apache_kafka_broker(directory, address, int(BROKER_ID), overrides=STATIC) as broker:
        properties = broker.directory / "server.properties"
        yield Oracle(broker, read_broker_config(properties.read_bytes(), properties.name))


def test_configs_are_described_alike_before_and_after_changes(oracle: Oracle) -> None:
    static_configs_are_described_alike(oracle)
    dynamic_configs_are_described_alike(oracle)


def static_configs_are_described_alike(oracle: Oracle) -> None:
    theirs = oracle.describe(BROKER_RESOURCE, BROKER_ID)
    assert ours(describe_broker(oracle.static, BrokerLayers(oracle.static.given))) == theirs
    assert len(theirs) > 300
    oracle.create_topic("without-configs", {})
    topic = ours(describe_topic({}, oracle.static.values, BrokerLayers(oracle.static.given)))
    assert topic == oracle.describe(TOPIC_RESOURCE, "without-configs")


def dynamic_configs_are_described_alike(oracle: Oracle) -> None:
    oracle.alter(BROKER_RESOURCE, "", CLUSTER_DEFAULT)
    oracle.alter(BROKER_RESOURCE, BROKER_ID, OF_BROKER)
    oracle.create_topic("with-configs", OF_TOPIC)
    layers = BrokerLayers(oracle.static.given, CLUSTER_DEFAULT, OF_BROKER)
    config = check_broker_config(layers.merged(), "server.properties with dynamic configs")
    expected = ours(describe_broker(config, layers))

    def seen() -> dict[str, Described]:
        return oracle.describe(BROKER_RESOURCE, BROKER_ID)

    # The broker takes dynamic configs when ZooKeeper tells it of them, which is after the answer.
    wait_until(lambda: seen()["max.connections"] == expected["max.connections"], "the broker takes them", 60.0, str)
    wait_until(lambda: seen()["min.insync.replicas"].value == "2", "the broker takes them", 60.0, str)
    wait_until(lambda: seen()["log.flush.interval.ms"].value == "60000", "the broker takes them", 60.0, str)
    assert seen() == expected
    assert oracle.describe(BROKER_RESOURCE, "") == ours(describe_cluster_default(layers))
    topic = ours(describe_topic(OF_TOPIC, config.values, layers))
    assert topic == oracle.describe(TOPIC_RESOURCE, "with-configs")
    assert {each.source for each in topic.values()} >= {ConfigSource.DYNAMIC_TOPIC, ConfigSource.DYNAMIC_BROKER}


VALUES: Final = (
    *("", " ", "x", "-3", "-2", "-1", "0", "1", "2", "4", "13", "14", "17", "18", "22", "23", "1.5", ".5", "1e3", "5L"),
    *("true", "FALSE", "yes", "2147483647", "2147483648", "9223372036854775807", "9223372036854775808", "-131073"),
    *("delete", "compact,delete", "compact , delete", "compact,,delete", "zstd", "producer", "none", "LZ4", "inf"),
    *("CreateTime", "createtime", "2.8", "3.9.1", "3.9-IV0", "0.10", "0:1,1:2", "*", "0:1,", "*,0:1", "+7", "\u00a01"),
)
"""Texts of every kind, at and beyond the limits of Kafka's keys."""

ONLY_KAFKA_REFUSES: Final = {
    "background.threads": "Kafka refuses to change a pool to less than half or more than double its size",
    "log.cleaner.threads": "as background.threads",
    "num.io.threads": "as background.threads",
    "num.network.threads": "as background.threads",
    "num.recovery.threads.per.data.dir": "as background.threads",
    "num.replica.fetchers": "as background.threads",
    "max.connection.creation.rate": "Kafka refuses a change to 0, and takes 0 from server.properties",
    "metric.reporters": "Kafka looks for the Java class",
    "ssl.engine.factory.class": "Kafka looks for the Java class",
    "log.local.retention.ms": "Kafka compares it with log.retention.ms, though tiered storage is off",
    "log.local.retention.bytes": "Kafka compares it with log.retention.bytes, though tiered storage is off",
}
"""Keys of which Kafka refuses some changes at run time that we take, with the reason; there are no others."""


def test_the_same_texts_are_allowed_for_topics(oracle: Oracle) -> None:
    oracle.create_topic("changing", {})
    differing = []
    for name in oracle.describe(TOPIC_RESOURCE, "changing"):
        for text in VALUES:
            refused = oracle.refuses(TOPIC_RESOURCE, "changing", name, text)
            try:
                check_topic_configs({name: text}, oracle.static.values)
            except TopicConfigError as error:
                if refused is None:
                    differing.append(f"only we refuse {name}={text!r}: {error}")
            else:
                if refused is not None:
                    differing.append(f"only Kafka refuses {name}={text!r}: {refused}")
    assert differing == []


def test_the_same_changes_of_brokers_are_allowed(oracle: Oracle) -> None:
    differing: dict[str, str] = {}
    for name, key in broker_keys().items():
        changes = [(BROKER_ID, "1"), ("", "1")]
        if key.update_mode is not UpdateMode.READ_ONLY:
            changes += [(BROKER_ID, text) for text in VALUES]
        for broker, text in changes:
            refused = oracle.refuses(BROKER_RESOURCE, broker, name, text)
            problems = problems_of_change(oracle.static, name, text, of_one_broker=bool(broker))
            if (refused is None) != (not problems):
                side = "only we refuse" if problems else "only Kafka refuses"
                differing[name] = f"{side} {text!r} for broker {broker!r}: {problems or refused}"
    assert {name: said for name, said in differing.items() if name not in ONLY_KAFKA_REFUSES} == {}
    assert differing.keys() == ONLY_KAFKA_REFUSES.keys()
    assert all(said.startswith("only Kafka refuses") for said in differing.values())


def problems_of_change(static: BrokerConfig, name: str, text: str, *, of_one_broker: bool) -> Sequence[str]:
    problems = check_dynamic_configs({name: text}, of_one_broker=of_one_broker)
    if problems:
        return problems
    change = {name: text}
    layers = BrokerLayers(static.given, {}, change) if of_one_broker else BrokerLayers(static.given, change)
    try:
        check_broker_config(layers.merged(), "server.properties with the change")
    except BrokerConfigError as error:
        return error.problems
    return ()
