"""Clients of several kinds, and our own, log in by PLAIN and SCRAM; brokers do among each other all the while.

Sessions are short, so that every client that lives long logs in again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import kafka
import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from barnabas.client.client import Client
from barnabas.client.consumer import Consumer as OwnConsumer
from barnabas.client.producer import Producer as OwnProducer
from barnabas.client.records import ProducerRecord
from barnabas.client.settings import ClientSettings, ConsumerSettings, OffsetReset, ProducerSettings
from barnabas.kernel.real_host import RealHost, run
from barnabas.link.errors import AuthenticationFailedError
from barnabas.sasl.mechanisms import Login
from tests.support.by_night import by_night
from tests.support.sasl_cluster import (
    MECHANISMS,
    PASSWORD,
    USER,
    SaslCluster,
    confluent,
    in_properties,
    login_module,
    sasl_cluster,
)
from tests.support.waiting import wait_until
from tests.support.wire_calls import leaders

TIMEOUT_SECONDS = 60.0
SESSION_MS = 1_500
# The two of SCRAM differ by their digest.
EACH = [
    *(mechanism for mechanism in MECHANISMS if mechanism != "SCRAM-SHA-256"),
    *by_night("four seconds for each client, and no commit says that it has found anything", "SCRAM-SHA-256"),
]
INVALID_PLAIN = "Authentication failed: Invalid username or password"
INVALID_SCRAM = "Authentication failed during authentication due to invalid credentials with SASL mechanism"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslCluster]:
    overrides = {"connections.max.reauth.ms": SESSION_MS, "auto.create.topics.enable": "false"}
    with sasl_cluster(tmp_path_factory.mktemp("sasl"), 2, **overrides) as running:
        set_password(running, USER, PASSWORD)
        yield running


def administrator(cluster: SaslCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.plain_servers})


def set_password(cluster: SaslCluster, user: str, password: str | None) -> None:
    """For both mechanisms of SCRAM; None takes it away. Returns once every broker knows of it."""
    client = administrator(cluster)  # its futures end with it
    for number, mechanism in enumerate((ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512), start=1):
        change = UserScramCredentialDeletion(user, mechanism)
        if password is not None:
            info = ScramCredentialInfo(mechanism, 4096 * number)
            change = UserScramCredentialUpsertion(user, info, password.encode())
        for future in client.alter_user_scram_credentials([change]).values():
            future.result(TIMEOUT_SECONDS)


def make_topic(cluster: SaslCluster, topic: str) -> str:
    client = administrator(cluster)
    for future in client.create_topics([NewTopic(topic, 2, 2)]).values():
        future.result(TIMEOUT_SECONDS)
    for broker in cluster.brokers.values():
        wait_until(
            lambda: -1 not in leaders(broker.port, topic).values() and len(leaders(broker.port, topic)) == 2,  # noqa: B023
            "the topic is led",
            TIMEOUT_SECONDS,
            cluster.log_tails,
        )
    return topic


@pytest.mark.parametrize("mechanism", EACH)
def test_librdkafka_logs_in(cluster: SaslCluster, mechanism: str) -> None:
    topic = make_topic(cluster, f"librdkafka-{mechanism}")
    # On a busy machine a session may be over before it logs in again: what was under way then is sent once more.
    producer = Producer(confluent(cluster.sasl_servers, mechanism) | {"enable.idempotence": True})
    failures: list[KafkaError] = []

    def note(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            failures.append(error)

    ends_at = time.monotonic() + 1.6 * SESSION_MS / 1000
    sent = 0
    while time.monotonic() < ends_at:
        producer.produce(topic, b"%d" % sent, on_delivery=note)
        producer.flush(TIMEOUT_SECONDS)
        sent += 1
    assert failures == []
    consumer = Consumer(
        confluent(cluster.sasl_servers, mechanism, **{"group.id": topic, "auto.offset.reset": "earliest"})
    )
    consumer.subscribe([topic])
    try:
        read: list[bytes | None] = []

        def has_all() -> bool:
            read.extend(message.value() for message in consumer.consume(sent, 1.0))
            return len(read) >= sent

        wait_until(
            has_all,
            "all records are read",
            TIMEOUT_SECONDS,
            cluster.log_tails,
        )
    finally:
        consumer.close()
    assert sorted(int(value or b"") for value in read) == list(range(sent))


@pytest.mark.parametrize("mechanism", EACH)
@pytest.mark.parametrize(("user", "password"), [(USER, "wrong"), ("nobody", PASSWORD)])
def test_librdkafka_is_told_that_its_login_is_refused(
    cluster: SaslCluster, mechanism: str, user: str, password: str
) -> None:
    errors: list[KafkaError] = []
    producer = Producer(confluent(cluster.sasl_servers, mechanism, password, user, error_cb=errors.append, log_level=0))

    def is_told() -> bool:
        producer.poll(0.1)
        return any(error.code() == KafkaError._AUTHENTICATION for error in errors)

    wait_until(is_told, "the client is told", TIMEOUT_SECONDS, cluster.log_tails)
    expected = INVALID_PLAIN if mechanism == "PLAIN" else f"{INVALID_SCRAM} {mechanism}"
    assert any(expected in str(error.str()) for error in errors)


@pytest.mark.parametrize("mechanism", EACH)
def test_kafka_python_logs_in(cluster: SaslCluster, mechanism: str) -> None:
    topic = make_topic(cluster, f"kafka-python-{mechanism}")
    options: dict[str, Any] = {
        "bootstrap_servers": cluster.sasl_servers.split(","),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
    }
    producer = kafka.KafkaProducer(**options)
    try:
        offsets = [producer.send(topic, b"x").get(TIMEOUT_SECONDS).offset for _ in range(3)]
    finally:
        producer.close()
    assert len(offsets) == 3
    consumer = kafka.KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=20_000, **options)
    try:
        assert [next(consumer).value for _ in range(3)] == [b"x"] * 3
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", EACH)
def test_aiokafka_logs_in(cluster: SaslCluster, mechanism: str) -> None:
    topic = make_topic(cluster, f"aiokafka-{mechanism}")
    options: dict[str, Any] = {
        "bootstrap_servers": cluster.sasl_servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
    }

    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            async with aiokafka.AIOKafkaProducer(**options) as producer:
                for _ in range(3):
                    await producer.send_and_wait(topic, b"x")
            async with aiokafka.AIOKafkaConsumer(topic, auto_offset_reset="earliest", **options) as consumer:
                assert [(await consumer.getone()).value for _ in range(3)] == [b"x"] * 3

    asyncio.run(main())


# Our own.


def settings(cluster: SaslCluster, mechanism: str, password: str = PASSWORD) -> ClientSettings:
    login = Login(mechanism, USER, password)
    return ClientSettings(bootstrap_servers=tuple(cluster.sasl_servers.split(",")), login=login)


@pytest.mark.parametrize("mechanism", EACH)
def test_our_client_logs_in_and_again(cluster: SaslCluster, mechanism: str) -> None:
    topic = make_topic(cluster, f"own-{mechanism}")

    async def main(host: RealHost) -> None:
        logger = logging.getLogger("tests.sasl")
        async with asyncio.timeout(TIMEOUT_SECONDS), Client(host, settings(cluster, mechanism), logger) as client:
            ends_at = host.loop.time() + 1.6 * SESSION_MS / 1000
            sent = 0
            async with OwnProducer(client, ProducerSettings()) as producer:
                while host.loop.time() < ends_at:
                    await (await producer.send(ProducerRecord(topic, value=b"%d" % sent)))
                    sent += 1
            consumer_settings = ConsumerSettings(group_id=topic, offset_reset=OffsetReset.EARLIEST)
            async with OwnConsumer(client, consumer_settings) as consumer:
                consumer.subscribe([topic])
                read: list[int] = []
                while len(read) < sent:
                    read += [int(record.value or b"") for record in await consumer.poll(1_000)]
            assert sorted(read) == list(range(sent))

    run(main, name="tests")


@pytest.mark.parametrize("mechanism", EACH)
def test_our_client_is_told_at_once_that_its_login_is_refused(cluster: SaslCluster, mechanism: str) -> None:
    async def main(host: RealHost) -> None:
        client = Client(host, settings(cluster, mechanism, "wrong"), logging.getLogger("tests.sasl"))
        began = host.loop.time()
        try:
            with pytest.raises(AuthenticationFailedError, match="Authentication failed"):
                await client.start(TIMEOUT_SECONDS * 1000)
        finally:
            await client.close()
        assert host.loop.time() - began < TIMEOUT_SECONDS / 4

    run(main, name="tests")


def test_our_commands_log_in(cluster: SaslCluster, tmp_path: Path) -> None:
    topic = make_topic(cluster, "commands")

    def command(*arguments: str, password: str = PASSWORD) -> subprocess.CompletedProcess[str]:
        config = tmp_path / "client.properties"
        jaas = in_properties(login_module("SCRAM-SHA-256", username=USER, password=password))
        config.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config={jaas}\n")
        where = ["-b", cluster.sasl_servers, "--command-config", str(config)]
        return subprocess.run(
            [sys.executable, "-m", "barnabas.cli", *arguments, *where],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )

    listed = command("topic", "list", "--json")
    assert listed.returncode == 0, listed.stderr
    assert topic in json.dumps(json.loads(listed.stdout))
    refused = command("topic", "list", password="wrong")
    assert refused.returncode == 1
    assert f"{INVALID_SCRAM} SCRAM-SHA-256" in refused.stderr
    assert refused.stderr.count("\n") == 1


# Changes of credentials.


def test_a_change_of_a_password_counts_at_once_at_every_broker(cluster: SaslCluster) -> None:
    def outcome(password: str, server: str) -> str | None:
        """None when the login is taken, else what the client is told."""

        async def main(host: RealHost) -> str | None:
            login = Login("SCRAM-SHA-512", "carol", password)
            client = Client(host, ClientSettings(bootstrap_servers=(server,), login=login), logging.getLogger("carol"))
            try:
                await client.start(TIMEOUT_SECONDS * 1000)
            except AuthenticationFailedError as error:
                return str(error)
            finally:
                await client.close()
            return None

        return run(main, name="tests")

    servers = cluster.sasl_servers.split(",")
    for password in ("first", "second"):
        set_password(cluster, "carol", password)
        for server in servers:
            wait_until(
                lambda: outcome(password, server) is None,  # noqa: B023
                f"{server} takes the password {password}",
                TIMEOUT_SECONDS,
                cluster.log_tails,
            )
    assert INVALID_SCRAM in (outcome("first", servers[0]) or "")
    set_password(cluster, "carol", None)
    for server in servers:
        wait_until(
            lambda: INVALID_SCRAM in (outcome("second", server) or ""),  # noqa: B023
            f"{server} knows carol no more",
            TIMEOUT_SECONDS,
            cluster.log_tails,
        )


def test_who_loses_her_password_is_out_when_her_session_is_over(cluster: SaslCluster) -> None:
    """As in Kafka: what she may do until then is for ACLs to say."""
    set_password(cluster, "dora", "doras own")
    errors: list[KafkaError] = []
    config = confluent(cluster.sasl_servers, "SCRAM-SHA-512", "doras own", "dora")
    producer = Producer({**config, "error_cb": errors.append})
    assert producer.list_topics(timeout=TIMEOUT_SECONDS).brokers
    set_password(cluster, "dora", None)

    def is_out() -> bool:
        producer.poll(0.1)
        return any(each.code() == KafkaError._AUTHENTICATION and INVALID_SCRAM in each.str() for each in errors)

    wait_until(is_out, "she is told that she is out", TIMEOUT_SECONDS, cluster.log_tails)


def test_no_broker_has_a_secret_in_its_log(cluster: SaslCluster) -> None:
    for broker in cluster.brokers.values():
        text = broker.log_path.read_text("utf-8", "replace")
        assert "Failed authentication" in text
        assert PASSWORD not in text
        assert "brokers' own" not in text
        assert "stored_key" not in text


def test_who_has_logged_in_may_do_what_acls_say(tmp_path: Path) -> None:
    overrides = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:broker;User:ANONYMOUS",  # the listener without a login is the test's own
        "auto.create.topics.enable": "false",
    }

    def outcome(cluster: SaslCluster, mechanism: str, topic: str) -> str | None:
        """None when a record is taken, else the name of the error."""
        producer = Producer(confluent(cluster.sasl_servers, mechanism))
        errors: list[KafkaError | None] = []
        producer.produce(topic, b"x", on_delivery=lambda error, _message: errors.append(error))
        assert producer.flush(TIMEOUT_SECONDS) == 0
        (error,) = errors
        return None if error is None else str(error.name())

    with sasl_cluster(tmp_path, 2, **overrides) as cluster:
        set_password(cluster, USER, PASSWORD)
        allowed, other = make_topic(cluster, "allowed"), make_topic(cluster, "other")
        binding = AclBinding(
            *(ResourceType.TOPIC, allowed, ResourcePatternType.LITERAL),
            *(f"User:{USER}", "*", AclOperation.WRITE, AclPermissionType.ALLOW),
        )
        client = administrator(cluster)
        for future in client.create_acls([binding]).values():
            future.result(TIMEOUT_SECONDS)
        for mechanism in ("PLAIN", "SCRAM-SHA-512"):
            wait_until(
                lambda: outcome(cluster, mechanism, allowed) is None,  # noqa: B023 - called in this turn
                "the ACL counts",
                TIMEOUT_SECONDS,
                cluster.log_tails,
            )
            assert outcome(cluster, mechanism, other) == "TOPIC_AUTHORIZATION_FAILED"
