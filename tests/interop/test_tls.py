"""A broker of ours and one of Apache Kafka 3.9.1 speak to each other by TLS, each with a certificate, whichever of them
is the controller; clients read from both what both have; and both name a client alike.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from tests.support.apache_kafka import ApacheKafkaBroker
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority
from tests.support.ports import free_port
from tests.support.tls_cluster import LISTENERS, listener_properties
from tests.support.waiting import wait_until
from tests.support.wire_calls import leaders, metadata
from tests.support.zookeeper import ZooKeeperServer

OURS, THEIRS = 1, 2
PATIENCE_SECONDS: Final = 90.0
RECORDS = 100
# What Kafka makes of it: a comma and a plus sign are escaped, and an e-mail address is a number and hexadecimal.
SUBJECT = "/C=DE/O=Castle, Inc./OU=a\\+b/emailAddress=k@castle/CN=Klamm \\#1"
NAME = "User:CN=Klamm \\#1,1.2.840.113549.1.9.1=#16086b40636173746c65,OU=a\\+b,O=Castle\\, Inc.,C=DE"


class Pair:
    """Both brokers, each with a port for each listener."""

    def __init__(self, directory: Path) -> None:
        self.zookeeper = ZooKeeperServer(directory / "zookeeper")
        self.authority = Authority(directory / "authority")
        self.ports = {broker_id: {name: free_port() for name in LISTENERS} for broker_id in (OURS, THEIRS)}
        self._directory = directory
        self.brokers: dict[int, BrokerProcess | ApacheKafkaBroker] = {}

    def servers(self, listener: str) -> str:
        return ",".join(f"localhost:{ports[listener]}" for ports in self.ports.values())

    def start(self) -> None:
        self.zookeeper.start()
        certified = self.authority.sign("/O=Castle/CN=broker", "DNS:localhost")
        for broker_id, ports in self.ports.items():
            overrides = listener_properties(
                ports,
                certified,
                self.authority,
                **{
                    "zookeeper.session.timeout.ms": 6_000,
                    "listener.name.ssl.ssl.principal.mapping.rules": "DEFAULT",
                    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
                    "super.users": "User:ANONYMOUS;User:CN=broker,O=Castle",
                },
            )
            directory, address = self._directory / str(broker_id), self.zookeeper.address
            if broker_id == OURS:
                self.brokers[broker_id] = BrokerProcess(
                    directory, broker_id, address, port=ports["PLAINTEXT"], overrides=overrides
                )
            else:
                self.brokers[broker_id] = ApacheKafkaBroker(
                    directory, address, broker_id, port=ports["PLAINTEXT"], overrides=overrides
                )
        for broker in self.brokers.values():
            broker.start(wait=False)
        for broker in self.brokers.values():
            broker.wait_until_ready()
        self.wait_until_whole()

    def wait_until_whole(self) -> None:
        for ports in self.ports.values():
            wait_until(
                lambda: len(metadata(ports["PLAINTEXT"]).brokers) == 2,  # noqa: B023 - called in this turn
                "both know both",
                PATIENCE_SECONDS,
            )

    def controller(self) -> int:
        return int(metadata(self.ports[OURS]["PLAINTEXT"]).controller_id)

    def stop(self) -> None:
        for broker in self.brokers.values():
            broker.kill()
        self.zookeeper.kill()


@pytest.fixture(scope="module")
def pair(oracle_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    brokers = Pair(tmp_path_factory.mktemp("tls"))
    try:
        brokers.start()
        yield brokers
    finally:
        brokers.stop()


def client(pair: Pair, **more: object) -> dict[str, Any]:
    klamm = pair.authority.sign(SUBJECT, "DNS:klamm")
    return {
        "bootstrap.servers": pair.servers("SSL"),
        "security.protocol": "SSL",
        "ssl.ca.location": str(pair.authority.certificate),
        "ssl.certificate.location": str(klamm.certificate),
        "ssl.key.location": str(klamm.key),
        **more,
    }


def made(pair: Pair, topic: str) -> AdminClient:
    """Makes a topic of which each broker leads a partition, and has the other's."""
    admin = AdminClient({"bootstrap.servers": pair.servers("PLAINTEXT")})
    new = NewTopic(topic, 2, 2, config={"min.insync.replicas": "2"})
    admin.create_topics([new])[topic].result(PATIENCE_SECONDS)
    for ports in pair.ports.values():
        wait_until(
            lambda: sorted(leaders(ports["PLAINTEXT"], topic).values()) == [OURS, THEIRS],  # noqa: B023
            "each leads a partition",
            PATIENCE_SECONDS,
        )
    return admin


def replicate(pair: Pair, topic: str) -> None:
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": pair.servers("PLAINTEXT"), "acks": "all"})
    for record in range(RECORDS):
        producer.produce(topic, b"%d" % record, on_delivery=lambda error, _: errors.append(error) if error else None)
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert errors == []


def controller_goes(pair: Pair) -> None:
    """The other broker is the controller then."""
    before = pair.controller()
    other = THEIRS if before == OURS else OURS
    pair.brokers[before].stop()
    wait_until(
        lambda: metadata(pair.ports[other]["PLAINTEXT"]).controller_id == other,
        "the other is the controller",
        PATIENCE_SECONDS,
    )
    pair.brokers[before].start()
    pair.wait_until_whole()


def test_brokers_replicate_by_tls_whoever_is_the_controller(pair: Pair) -> None:
    for number in range(2):
        made(pair, f"both-{number}")
        replicate(pair, f"both-{number}")
        controller_goes(pair)


def test_both_name_a_client_alike(pair: Pair) -> None:
    """An ACL for the name that Kafka gives lets it in at both: each leads a partition."""
    topic = "of-klamm"
    admin = made(pair, topic)
    settings = client(pair, acks="all")
    refused = AdminClient(settings)
    with pytest.raises(KafkaException, match=r"CLUSTER_AUTHORIZATION_FAILED|TOPIC_AUTHORIZATION_FAILED"):
        refused.create_topics([NewTopic("another", 1, 1)])["another"].result(PATIENCE_SECONDS)
    kinds = ((ResourceType.TOPIC, topic), (ResourceType.GROUP, "klamm"))
    acls = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, NAME, "*", AclOperation.ALL, AclPermissionType.ALLOW)
        for kind, name in kinds
    ]
    for future in admin.create_acls(acls).values():
        future.result(PATIENCE_SECONDS)
    errors: list[Any] = []
    delivered: list[int] = []

    def note(error: Any, message: Any) -> None:
        errors.append(error) if error else delivered.append(message.partition())

    producer = Producer(settings)

    def is_let_in() -> bool:
        for partition in range(2):
            with contextlib.suppress(KafkaException):  # it remembers that it was refused, before the ACL had come
                producer.produce(topic, b"x", partition=partition, on_delivery=note)
        producer.flush(PATIENCE_SECONDS)
        return set(delivered) == {0, 1}

    wait_until(is_let_in, "both let it write", PATIENCE_SECONDS)
    consumer = Consumer({**settings, "group.id": "klamm", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    read: set[int | None] = set()

    def has_both() -> bool:
        read.update(message.partition() for message in consumer.consume(10, 1.0) if not message.error())
        return read == {0, 1}

    try:
        wait_until(has_both, "both let it read", PATIENCE_SECONDS)
    finally:
        consumer.close()
