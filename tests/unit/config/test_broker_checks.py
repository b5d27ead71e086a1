"""What keys of a broker forbid each other, each told with the keys and the rule."""

from __future__ import annotations

import re

import pytest

from barnabas.config.broker_config import BrokerConfig, BrokerConfigError, read_broker_config

AUTHORIZER = "authorizer.class.name=kafka.security.authorizer.AclAuthorizer"


def read(text: str) -> BrokerConfig:
    return read_broker_config(f"zookeeper.connect=localhost:2181\n{text}\n", "test.properties")


def only_problem(text: str) -> str:
    with pytest.raises(BrokerConfigError) as caught:
        read(text)
    (problem,) = caught.value.problems
    return problem


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("zookeeper.connect=", "must name the ZooKeeper servers"),
        ("process.roles=broker", "ZooKeeper mode"),
        ("zookeeper.metadata.migration.enable=true", "stays with ZooKeeper"),
        ("remote.log.storage.system.enable=true", "set barnabas.remote.storage.url"),
        ("controller.listener.names=C", "KRaft mode"),
        ("broker.id=1001", "reserved.broker.max.id"),
        ("broker.id=-2", "broker.id=-2"),
        ("broker.id.generation.enable=false", "without generation"),
        ("log.roll.ms=0", "at least 1"),
        ("log.roll.jitter.ms=-1", "at least 0"),
        ("log.retention.hours=0", "-1 for no limit"),
        ("log.dirs=,", "at least one log directory"),
        ("log.dirs=/a,/a", "named once"),
        ("log.cleaner.threads=128", "1 MiB"),
        ("log.cleaner.threads=0", "1 MiB"),
        ("log.cleaner.min.compaction.lag.ms=2\nlog.cleaner.max.compaction.lag.ms=1", "not be above"),
        ("replica.fetch.wait.max.ms=30001\nreplica.lag.time.max.ms=40000", "replica.socket.timeout.ms=30000"),
        ("replica.fetch.wait.max.ms=501\nreplica.lag.time.max.ms=500", "leave the ISR"),
        ("inter.broker.protocol.version=0.10.2\nlog.message.format.version=0.11.0", "is ignored"),
        ("inter.broker.protocol.version=4.5", "a version of Kafka"),
        ("offsets.topic.compression.codec=5", "4 \\(zstd\\)"),
        (
            "offsets.topic.compression.codec=4\ninter.broker.protocol.version=0.10.2\nlog.message.format.version=0.9.0",
            "0.11 or newer",
        ),
        ("offsets.commit.required.acks=4", "acks must be"),
        ("queued.max.request.bytes=1", "at least the second"),
        ("connection.failed.authentication.delay.ms=600000", "below the second"),
        ("authorizer.class.name=org.example.Authorizer", "only kafka.security.authorizer.AclAuthorizer is known"),
        (f"{AUTHORIZER}\nauthorizer.zookeeper.url=elsewhere:2181", "leave authorizer.zookeeper.url out"),
        (f"{AUTHORIZER}\nsuper.users=alice", "super.users: 'alice' must be TYPE:NAME"),
        ("principal.builder.class=org.example.Builder", "Java classes cannot be loaded"),
        ("replica.selector.class=org.example.Selector", "Java classes cannot be loaded here; only org.apache.kafka"),
        ("group.coordinator.rebalance.protocols=consumer", "classic must be among them"),
        ("group.consumer.heartbeat.interval.ms=4999", "each must be at most the next"),
        ("group.consumer.session.timeout.ms=60001", "each must be at most the next"),
        ("group.share.session.timeout.ms=1", "each must be at most the next"),
        ("max.connections.per.ip=0", "needs max.connections.per.ip.overrides"),
        ("max.connections.per.ip.overrides=a", "host:count"),
        ("max.connections.per.ip.overrides=a b:1", "host:count"),
        ("listener.security.protocol.map=A", "NAME:PROTOCOL"),
        ("security.inter.broker.protocol=SSL", "one of the advertised listeners PLAINTEXT"),
        ("inter.broker.listener.name=INSIDE", "listener.security.protocol.map"),
        ("inter.broker.listener.name=PLAINTEXT\nsecurity.inter.broker.protocol=PLAINTEXT", "is given too"),
        ("control.plane.listener.name=SSL", "one of the advertised listeners PLAINTEXT"),
        ("control.plane.listener.name=PLAINTEXT", "the brokers' listener is another"),
        ("advertised.listeners=PLAINTEXT://a:1,SSL://b:2", "only listeners can be advertised"),
        ("advertised.listeners=PLAINTEXT://0.0.0.0:1", "means all interfaces"),
        ("listeners=PLAINTEXT://0.0.0.0:1", "set advertised.listeners"),
        ("early.start.listeners=SSL", "must be among PLAINTEXT"),
        (
            "listeners=SASL_SSL://:1\nsecurity.inter.broker.protocol=SASL_SSL\nsasl.enabled.mechanisms=PLAIN",
            "must be among sasl.enabled.mechanisms, which are PLAIN",
        ),
    ],
)
def test_what_keys_forbid_each_other_is_told(text: str, says: str) -> None:
    problem = only_problem(text)
    assert re.search(says, problem), problem


@pytest.mark.parametrize(
    "text",
    [
        "log.retention.ms=-1",
        "super.users=alice",
        "authorizer.zookeeper.url=elsewhere:2181",
        f"{AUTHORIZER}\nsuper.users=User:alice;User:bob\nallow.everyone.if.no.acl.found=true",
        f"{AUTHORIZER}\nauthorizer.zookeeper.url=localhost:2181",
        "log.retention.ms=-5",
        "inter.broker.protocol.version=2.8\nlog.message.format.version=0.9.0",
        "inter.broker.protocol.version=3.9\nlog.message.format.version=0.9.0",
        "queued.max.request.bytes=104857600",
        "connections.max.idle.ms=-1",
        "max.connections.per.ip=0\nmax.connections.per.ip.overrides=127.0.0.1:5",
        "group.min.session.timeout.ms=5\ngroup.max.session.timeout.ms=4",
        "listeners=PLAINTEXT://0.0.0.0:1\nadvertised.listeners=PLAINTEXT://a:1",
        (
            "listeners=SASL_SSL://:1\nsecurity.inter.broker.protocol=SASL_SSL\n"
            "sasl.mechanism.inter.broker.protocol=PLAIN\nlistener.name.sasl_ssl.sasl.enabled.mechanisms=PLAIN"
        ),
    ],
)
def test_what_kafka_starts_with_is_taken(text: str) -> None:
    assert read(text).values["zookeeper.connect"] == "localhost:2181"
