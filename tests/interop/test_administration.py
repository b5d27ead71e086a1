"""The same admin requests to a broker of ours and to Apache Kafka 3.9.1: the same answers, znodes and configs."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

from barnabas.config.describing import Described, Synonym
from barnabas.config.sources import ConfigSource
from barnabas.coordination.client import Client
from barnabas.coordination.paths import child_of
from barnabas.coordination.session_settings import ClientSettings
from barnabas.kernel.real_host import real_host
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
)
from tests.support.apache_kafka import apache_kafka_broker
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_until
from tests.support.wire_calls import call
from tests.support.zookeeper import ZooKeeperServer

BROKER_ID: Final = 5
STATIC: Final = {
    "num.partitions": 3,
    "log.retention.minutes": 90,
    "log.roll.hours": 5,
    "log.cleaner.min.cleanable.ratio": "0.0005",
    "log.cleanup.policy": "compact , delete",
    "log.message.timestamp.difference.max.ms": 7_000_000,
    "log.index.size.max.bytes": 1_048_576,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 3,
    "offsets.topic.replication.factor": 1,
    "ssl.keystore.password": "secret",
    "listener.name.plaintext.max.connections": 700,
    "nobody.knows.this": "x",
    "super.users": "User:admin",
    "zookeeper.session.timeout.ms": 6_000,
    "controlled.shutdown.retry.backoff.ms": 200,
}
NOT_ALIKE: Final = {
    "listeners": "the two brokers have different ports",
    "log.dirs": "the two brokers have different directories",
    "zookeeper.connect": "the two brokers have different chroots",
    "num.network.threads": "set for Apache Kafka by tests/support",
    "num.io.threads": "set for Apache Kafka by tests/support",
    "background.threads": "set for Apache Kafka by tests/support",
    "transaction.state.log.num.partitions": "set for Apache Kafka by tests/support",
    "transaction.state.log.replication.factor": "set for Apache Kafka by tests/support",
    "transaction.state.log.min.isr": "set for Apache Kafka by tests/support",
    "log.cleaner.dedupe.buffer.size": "set for Apache Kafka by tests/support",
}
"""Configs of the broker whose values differ here, with the reason. All others must be alike."""
OUR_OWN: Final = ("barnabas.", "rlmm.config.")
TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8
SET, DELETE, APPEND, SUBTRACT = range(4)


class Broker(Protocol):
    """Either of the two."""

    @property
    def port(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Both:
    """One broker of each kind with the same configuration, each in a chroot of its own."""

    ours: BrokerProcess
    theirs: Any
    zookeeper: str

    def call(self, key: ApiKey, version: int, message: Any) -> tuple[Any, Any]:
        """What we answer and what they answer."""
        return call(self.ours.port, key, version, message), call(self.theirs.port, key, version, message)


@pytest.fixture(scope="module")
def both(
    oracle_jars: Path, zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Both]:
    address = zookeeper_server.address
    directory = tmp_path_factory.mktemp("administration")
    ours = BrokerProcess(directory / "ours", BROKER_ID, f"{address}/admin-ours", overrides=STATIC)
    with apache_kafka_broker(directory / "theirs", f"{address}/admin-theirs", BROKER_ID, overrides=STATIC) as theirs:
        ours.start()
        try:
            yield Both(ours, theirs, address)
        finally:
            ours.stop()


# The requests.


def topic(name: str, partitions: int = -1, factor: int = -1, **configs: str | None) -> Any:
    return CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )


def by_hand(name: str, assignments: Sequence[tuple[int, list[int]]], partitions: int = -1) -> Any:
    made = topic(name, partitions)
    made.assignments = [
        CreateTopicsRequest.CreatableReplicaAssignment(partition_index=number, broker_ids=replicas)
        for number, replicas in assignments
    ]
    return made


def create(*topics: Any, validate_only: bool = False) -> tuple[ApiKey, Any]:
    request = CreateTopicsRequest(topics=list(topics), timeout_ms=20_000, validate_only=validate_only)
    return ApiKey.CREATE_TOPICS, request


def grow(*topics: tuple[str, int, list[list[int]] | None], validate_only: bool = False) -> tuple[ApiKey, Any]:
    items = [
        CreatePartitionsRequest.CreatePartitionsTopic(
            name=name,
            count=count,
            assignments=None
            if assignments is None
            else [CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=each) for each in assignments],
        )
        for name, count, assignments in topics
    ]
    return ApiKey.CREATE_PARTITIONS, CreatePartitionsRequest(
        topics=items, timeout_ms=20_000, validate_only=validate_only
    )


def replace_all(resource_type: int, name: str, **configs: str | None) -> tuple[ApiKey, Any]:
    resource = AlterConfigsRequest.AlterConfigsResource(
        resource_type=resource_type,
        resource_name=name,
        configs=[
            AlterConfigsRequest.AlterableConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )
    return ApiKey.ALTER_CONFIGS, AlterConfigsRequest(resources=[resource])


def change(resource_type: int, name: str, *changes: tuple[str, int, str | None]) -> tuple[ApiKey, Any]:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=resource_type,
        resource_name=name,
        configs=[
            IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in changes
        ],
    )
    return ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest(resources=[resource])


def delete(*names: str) -> tuple[ApiKey, Any]:
    topics = [DeleteTopicsRequest.DeleteTopicState(name=name) for name in names]
    return ApiKey.DELETE_TOPICS, DeleteTopicsRequest(topics=topics, timeout_ms=20_000)


SCALA: Final = re.compile(r"(Set|Map|Buffer)\(")
"""Where Kafka's message shows a collection of Scala we say it in words of our own."""
VERSIONS: Final = {
    ApiKey.CREATE_TOPICS: 7,
    ApiKey.DELETE_TOPICS: 6,
    ApiKey.CREATE_PARTITIONS: 3,
    ApiKey.ALTER_CONFIGS: 2,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
}
SCRIPT: Final = (
    create(topic("plain"), topic("two", 2, 1, retention_ms="5000", cleanup_policy="compact")),
    create(by_hand("hand", [(0, [5]), (1, [5])])),
    create(topic("plain", 1, 1), topic("bad name", 1, 1), topic("", 1, 1), topic("..", 1, 1), topic("x" * 250, 1, 1)),
    create(topic("t", 0, 1), topic("u", 1, 0), topic("v", 1, 2), topic("w", -2, 1), topic("y", 1, -3)),
    create(topic("t", 1, 1, retention_ms="soon"), topic("u", 1, 1, nobody_knows="1"), topic("v", 1, 1, flush_ms=None)),
    create(topic("twice", 1, 1), topic("twice", 1, 1), topic("__cluster_metadata", 1, 1)),
    create(by_hand("t", [(0, [5])], 1), by_hand("u", [(1, [5])]), by_hand("v", [(0, [5, 5])])),
    create(by_hand("w", [(0, [5]), (1, [5, 6])])),
    create(topic("dot.ted", 1, 1)),
    create(topic("dot_ted", 1, 1), topic("dotted", 1, 1)),
    create(topic("only-checked", 2, 1, retention_ms="1"), topic("v", 1, 2), validate_only=True),
    grow(("plain", 5, None), ("hand", 4, [[5], [5]])),
    grow(("plain", 5, None), ("hand", 1, None), ("nobody", 3, None)),
    grow(("plain", 6, [[7]]), ("hand", 6, [[5]]), ("two", 3, [[5, 5]])),
    grow(("two", 3, [[]])),
    grow(("two", 9, None), validate_only=True),
    replace_all(TOPIC, "plain", segment_ms="7000", max_message_bytes="1000"),
    replace_all(TOPIC, "nobody", segment_ms="7000"),
    replace_all(TOPIC, "plain", segment_ms="soon"),
    replace_all(TOPIC, "plain", segment_ms=None),
    replace_all(TOPIC, "bad name"),
    replace_all(TOPIC, ""),
    replace_all(BROKER, "7"),
    replace_all(BROKER, "five"),
    replace_all(BROKER_LOGGER, "5"),
    replace_all(3, "what"),
    change(TOPIC, "plain", ("retention.ms", SET, "9000"), ("segment.ms", DELETE, None)),
    change(TOPIC, "plain", ("cleanup.policy", APPEND, "delete"), ("cleanup.policy", SET, "compact")),
    change(TOPIC, "two", ("cleanup.policy", APPEND, "delete,compact")),
    change(TOPIC, "two", ("cleanup.policy", SUBTRACT, "compact")),
    change(TOPIC, "plain", ("retention.ms", APPEND, "1")),
    change(TOPIC, "plain", ("retention.ms", SET, None)),
    change(TOPIC, "plain", ("leader.replication.throttled.replicas", APPEND, "0:5,1:5")),
    change(BROKER, "", ("log.retention.ms", SET, "5000000"), ("log.segment.bytes", SET, "100000000")),
    change(BROKER, "", ("min.insync.replicas", SET, "2")),
    change(BROKER, "5", ("log.segment.bytes", SET, "200000000"), ("log.flush.interval.ms", SET, "60000")),
    change(BROKER, "5", ("listener.name.plaintext.max.connections", SET, "800")),
    change(BROKER, "5", ("leader.replication.throttled.rate", SET, "1000")),
    change(BROKER, "5", ("log.dirs", SET, "/x")),
    change(BROKER, "5", ("log.retention.ms", SET, "soon")),
    change(BROKER, "", ("advertised.listeners", SET, "PLAINTEXT://x:1")),
    change(BROKER, "5", ("ssl.keystore.password", SET, "x")),
    change(BROKER, "6", ("log.retention.ms", SET, "1")),
    change(BROKER_LOGGER, "5", ("kafka.controller.KafkaController", SET, "WARN")),
    change(BROKER_LOGGER, "5", ("kafka.controller.KafkaController", SET, "LOUD")),
    change(BROKER_LOGGER, "5", ("nobody", SET, "WARN")),
    change(BROKER_LOGGER, "5", ("root", DELETE, None)),
    change(BROKER_LOGGER, "5", ("kafka.controller.KafkaController", APPEND, "WARN")),
    change(16, "metrics", ("interval.ms", SET, "1000")),
    change(3, "what", ("x", SET, "1")),
    delete("two", "nobody"),
)


def items_of(response: Any) -> list[Any]:
    return list(next(getattr(response, name) for name in ("topics", "results", "responses") if hasattr(response, name)))


def outcome(item: Any) -> dict[str, Any]:
    """What an item of a response says, but for ids of topics and documentation."""
    told = {field.name: getattr(item, field.name) for field in item.FIELDS if field.name not in {"topic_id", "configs"}}
    if hasattr(item, "configs") and item.configs is not None:
        told["configs"] = {
            config.name: (config.value, config.config_source, config.read_only, config.is_sensitive)
            for config in item.configs
        }
    return told


def by_name(response: Any) -> list[dict[str, Any]]:
    """Kafka answers in the order of a hash table where it does not say that it keeps the request's."""

    def place(told: dict[str, Any]) -> str:
        return json.dumps({key: value for key, value in told.items() if key != "error_message"}, sort_keys=True)

    return sorted((outcome(item) for item in items_of(response)), key=place)


@pytest.fixture(scope="module")
def after_the_script(both: Both) -> Both:
    """Sends all requests to both, and holds the answers against each other."""
    differing: list[str] = []
    in_own_words = 0
    for number, (key, request) in enumerate(SCRIPT):
        ours, theirs = (by_name(answer) for answer in both.call(key, VERSIONS[key], request))
        if ours != theirs:
            differing += [
                f"request {number}, {key.api_name}: {field}: ours {one.get(field)!r}, theirs {other.get(field)!r}"
                for one, other in zip(ours, theirs, strict=True)
                for field in {**one, **other}
                if one.get(field) != other.get(field)
                and not (field == "error_message" and SCALA.search(other[field] or ""))
            ]
            in_own_words += sum(bool(SCALA.search(each.get("error_message") or "")) for each in theirs)
    assert in_own_words == 4
    assert not differing, "\n".join(differing)
    return both


def test_the_answers_are_alike(after_the_script: Both) -> None:
    ours, theirs = after_the_script.call(
        ApiKey.DELETE_TOPICS, 6, DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="two")])
    )
    assert [item.error_code for item in ours.responses] == [item.error_code for item in theirs.responses]


def test_an_operation_that_nobody_knows_is_refused_where_kafka_fails(after_the_script: Both) -> None:
    key, request = change(TOPIC, "plain", ("retention.ms", 9, "1"))
    ours, theirs = after_the_script.call(key, VERSIONS[key], request)
    assert ours.responses[0].error_code == ErrorCode.INVALID_REQUEST
    assert theirs.responses[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR


ELECTED: Final = {"plain": [0, 4, 5, -1, 0], "hand": [1], "nobody": [0], "": [0]}


@pytest.mark.parametrize("is_all", [False, True])
@pytest.mark.parametrize(
    ("version", "election_type"), [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2), (2, -1)]
)
def test_elections_are_answered_alike(after_the_script: Both, version: int, election_type: int, is_all: bool) -> None:
    """Every partition has its only replica as leader: none is elected."""
    named = [ElectLeadersRequest.TopicPartitions(topic=name, partitions=numbers) for name, numbers in ELECTED.items()]
    request = ElectLeadersRequest(
        election_type=election_type, topic_partitions=None if is_all else named, timeout_ms=20_000
    )
    ours, theirs = after_the_script.call(ApiKey.ELECT_LEADERS, version, request)
    assert elections(ours) == elections(theirs)


def elections(response: Any) -> tuple[int, list[tuple[str, int, int, str | None]]]:
    """Kafka answers in the order of a hash table."""
    return response.error_code, sorted(
        (topic.topic, result.partition_id, result.error_code, result.error_message)
        for topic in response.replica_election_results
        for result in topic.partition_result
    )


TOPIC_ID: Final = re.compile(rb'"topic_id":"[A-Za-z0-9_-]{22}"')


def test_the_znodes_are_alike(after_the_script: Both) -> None:
    def seen() -> tuple[dict[str, bytes | None], dict[str, bytes | None]]:
        return (
            znodes(f"{after_the_script.zookeeper}/admin-ours"),
            znodes(f"{after_the_script.zookeeper}/admin-theirs"),
        )

    def no_deletion_is_left() -> bool:
        return not any(path.startswith("/admin/delete_topics/") for tree in seen() for path in tree)

    wait_until(no_deletion_is_left, "the topics are deleted", 60.0, str)
    ours, theirs = seen()
    assert ours.keys() == theirs.keys()
    assert {path: (ours[path], theirs[path]) for path in ours if not same(path, ours[path], theirs[path])} == {}
    assert len(ours) > 30


def same(path: str, ours: bytes | None, theirs: bytes | None) -> bool:
    """Byte for byte, but for the order of configs, which in Kafka is that of a hash table."""
    if path.startswith("/config/") and ours and theirs:
        return bool(json.loads(ours) == json.loads(theirs) and len(ours) == len(theirs))
    return ours == theirs


def znodes(address: str) -> dict[str, bytes | None]:
    """What admin requests write: configs, announcements, topics without their partitions' states; ids masked."""

    async def read() -> dict[str, bytes | None]:
        async with real_host("reader", asyncio.get_running_loop()) as host:
            client = Client(host, ClientSettings(address))
            await client.connect()
            try:
                found: dict[str, bytes | None] = {}
                level = ["/config", "/brokers/topics", "/admin"]
                while level:
                    for path, each in zip(level, await client.get_many(level), strict=True):
                        if not isinstance(each, Exception):
                            found[path] = TOPIC_ID.sub(b'"topic_id":"*"', each.data) if each.data else each.data
                    children = await client.get_children_names_of_many(level)
                    level = [
                        child_of(path, name)
                        for path, names in zip(level, children, strict=True)
                        if isinstance(names, list)
                        for name in names
                        if name != "state"
                    ]
                return found
            finally:
                await client.close()

    return asyncio.run(read())


def described(port: int, resource_type: int, name: str) -> dict[str, Described]:
    """What a broker tells of a resource, without documentation, which is in our own words."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=False)
    (result,) = call(port, ApiKey.DESCRIBE_CONFIGS, 4, request).results
    assert result.error_code == 0, result.error_message
    return {
        config.name: Described(
            config.name,
            config.value,
            ConfigSource(config.config_source),
            config.read_only,
            config.is_sensitive,
            config.config_type,
            "",
            tuple(Synonym(each.name, each.value, ConfigSource(each.source)) for each in config.synonyms),
        )
        for config in result.configs
    }


def test_the_configs_are_described_alike(after_the_script: Both) -> None:
    ours, theirs = after_the_script.ours.port, after_the_script.theirs.port
    for port in (ours, theirs):
        # Brokers take dynamic configs when ZooKeeper tells them, which is after the answer.
        wait_until(
            lambda port=port: described(port, BROKER, "5")["listener.name.plaintext.max.connections"].value == "800",  # type: ignore[misc]
            "the broker takes the dynamic configs",
        )
    for resource_type, name in ((TOPIC, "plain"), (TOPIC, "hand"), (BROKER, "")):
        assert described(ours, resource_type, name) == described(theirs, resource_type, name), name
    of_ours, of_theirs = described(ours, BROKER, "5"), described(theirs, BROKER, "5")
    own = {name for name in of_ours if name.startswith(OUR_OWN)}
    assert of_ours.keys() - own == of_theirs.keys()
    differing = {
        name: (of_ours[name], of_theirs[name])
        for name in of_theirs
        if of_ours[name] != of_theirs[name] and name not in NOT_ALIKE
    }
    assert not differing, "\n".join(f"{name}: {pair}" for name, pair in differing.items())
    # Beside their values, the named ones are alike too, and each is really another.
    for name in NOT_ALIKE:
        assert replace(of_ours[name], value="", synonyms=(), source=ConfigSource.DEFAULT) == replace(
            of_theirs[name], value="", synonyms=(), source=ConfigSource.DEFAULT
        )
        assert of_ours[name] != of_theirs[name]


def test_what_cannot_be_described_is_refused_alike(after_the_script: Both) -> None:
    for resource_type, name in (
        (TOPIC, "nobody"),
        (TOPIC, "bad name"),
        (BROKER, "7"),
        (BROKER, "x"),
        (8, ""),
        (16, "m"),
    ):
        resource = DescribeConfigsRequest.DescribeConfigsResource(resource_type=resource_type, resource_name=name)
        ours, theirs = after_the_script.call(ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=[resource]))
        assert ours.results[0].error_code == theirs.results[0].error_code, (resource_type, name)
