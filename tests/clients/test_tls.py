"""Clients of several kinds, and our own, come in by TLS, with certificates and with passwords; so do brokers among
each other, and the controller, whatever the clients do.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import kafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from tests.clients.drivers.java import reason_to_skip
from tests.support.apache_kafka import CONSOLE_CONSUMER, CONSOLE_PRODUCER, TOPIC_COMMAND, run_tool, tool_run
from tests.support.certificates import Authority, Certified
from tests.support.sasl_cluster import PASSWORD, USER, in_properties, login_module
from tests.support.tls_cluster import STORE_PASSWORD, TlsCluster, pem_properties, tls_cluster
from tests.support.waiting import wait_until
from tests.support.wire_calls import leaders

TIMEOUT_SECONDS = 60.0
AUTHORIZER = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS;User:CN=broker,O=Castle;User:alice",
    "auto.create.topics.enable": "false",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsCluster]:
    with tls_cluster(tmp_path_factory.mktemp("tls"), 2, **AUTHORIZER) as running:
        yield running


def make_topic(cluster: TlsCluster, topic: str) -> str:
    """Led by each broker in part, and replicated by the other: over TLS."""
    client = AdminClient({"bootstrap.servers": cluster.servers("PLAINTEXT")})
    for future in client.create_topics([NewTopic(topic, 2, 2, config={"min.insync.replicas": "2"})]).values():
        future.result(TIMEOUT_SECONDS)
    for broker in cluster.brokers.values():
        wait_until(
            lambda: -1 not in leaders(broker.port, topic).values() and len(leaders(broker.port, topic)) == 2,  # noqa: B023
            "the topic is led",
            TIMEOUT_SECONDS,
            cluster.log_tails,
        )
    return topic


def properties(path: Path, values: dict[str, object]) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return path


def exchange(cluster: TlsCluster, topic: str, client: dict[str, Any]) -> None:
    failures: list[KafkaError] = []
    producer = Producer({**client, "acks": "all"})
    for number in range(200):
        # Large ones too: of several records of TLS, and more than a turn encrypts.
        value = b"%d:" % number + bytes(300_000 if number % 40 == 0 else 10)
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(TIMEOUT_SECONDS) == 0
    assert failures == []
    consumer = Consumer({**client, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        read: list[bytes] = []

        def has_all() -> bool:
            read.extend(message.value() or b"" for message in consumer.consume(200, 1.0))
            return len(read) >= 200

        wait_until(has_all, "all records are read", TIMEOUT_SECONDS, cluster.log_tails)
    finally:
        consumer.close()
    assert sorted(int(value.partition(b":")[0]) for value in read) == list(range(200))


def test_librdkafka_comes_in_by_its_certificate_and_by_a_password(cluster: TlsCluster) -> None:
    exchange(cluster, make_topic(cluster, "librdkafka-certificate"), cluster.confluent())
    topic = make_topic(cluster, "librdkafka-password")
    # The one who logs in may do as little as his name has: the certificate's super user is another way in.
    exchange(cluster, topic, cluster.logging_in())


def told(client: dict[str, Any]) -> str:
    """What librdkafka says of why it is not let in."""
    errors: list[str] = []
    producer = Producer({**client, "error_cb": lambda error: errors.append(str(error)), "log_level": 0})
    wait_until(lambda: producer.poll(0.1) is not None and bool(errors), "the client is told", TIMEOUT_SECONDS)
    return errors[0]


def test_librdkafka_does_not_take_a_broker_that_it_cannot_trust(cluster: TlsCluster) -> None:
    wrong = cluster.confluent() | {"ssl.ca.location": str(cluster.other_authority.certificate)}
    assert "certificate verify failed" in told(wrong)


@pytest.mark.parametrize("kind", ["none", "of another authority", "expired"])
def test_librdkafka_is_refused_without_a_certificate_that_counts(cluster: TlsCluster, kind: str) -> None:
    client = cluster.confluent()
    if kind == "none":
        del client["ssl.certificate.location"], client["ssl.key.location"]
    else:
        client = cluster.confluent(certificate(cluster, kind))
    assert "SSL" in told(client) or "alert" in told(client)


def certificate(cluster: TlsCluster, kind: str) -> Certified:
    if kind == "expired":
        return cluster.authority.sign("/CN=alice", days=0)
    return cluster.other_authority.sign("/CN=alice")


def test_who_comes_in_by_a_certificate_may_do_what_its_name_may(cluster: TlsCluster) -> None:
    bob = cluster.authority.sign("/O=Castle/CN=bob")
    client = AdminClient(cluster.confluent(bob))
    with pytest.raises(KafkaException, match=r"TOPIC_AUTHORIZATION_FAILED|CLUSTER_AUTHORIZATION_FAILED"):
        client.create_topics([NewTopic("of-bob", 1, 1)])["of-bob"].result(TIMEOUT_SECONDS)


def test_kafka_python_comes_in_by_its_certificate(cluster: TlsCluster) -> None:
    topic = make_topic(cluster, "kafka-python")
    options: dict[str, Any] = {
        "bootstrap_servers": cluster.servers("SSL").split(","),
        "security_protocol": "SSL",
        "ssl_cafile": str(cluster.authority.certificate),
        "ssl_certfile": str(cluster.alice.certificate),
        "ssl_keyfile": str(cluster.alice.key),
    }
    producer = kafka.KafkaProducer(**options)
    try:
        for _ in range(3):
            producer.send(topic, b"x").get(TIMEOUT_SECONDS)
    finally:
        producer.close()
    consumer = kafka.KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=20_000, **options)
    try:
        assert [next(consumer).value for _ in range(3)] == [b"x"] * 3
    finally:
        consumer.close()


def test_aiokafka_comes_in_by_its_certificate(cluster: TlsCluster) -> None:
    topic = make_topic(cluster, "aiokafka")
    context = ssl.create_default_context(cafile=str(cluster.authority.certificate))
    context.load_cert_chain(cluster.alice.certificate, cluster.alice.key)
    options: dict[str, Any] = {
        "bootstrap_servers": cluster.servers("SSL"),
        "security_protocol": "SSL",
        "ssl_context": context,
    }

    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            async with aiokafka.AIOKafkaProducer(**options) as producer:
                for _ in range(3):
                    await producer.send_and_wait(topic, b"x")
            async with aiokafka.AIOKafkaConsumer(topic, auto_offset_reset="earliest", **options) as consumer:
                assert [(await consumer.getone()).value for _ in range(3)] == [b"x"] * 3

    asyncio.run(main())


# Java.


def java_properties(cluster: TlsCluster) -> dict[str, object]:
    """With a key store as Java's own are."""
    return {
        "security.protocol": "SSL",
        **pem_properties(None, cluster.authority),
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": cluster.authority.pkcs12(cluster.alice, STORE_PASSWORD),
        "ssl.keystore.password": STORE_PASSWORD,
        "ssl.key.password": STORE_PASSWORD,
    }


@pytest.mark.skipif(reason_to_skip() is not None, reason=str(reason_to_skip()))
@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_javas_tools_come_in_by_their_certificates(cluster: TlsCluster, tmp_path: Path, version: str) -> None:
    values = {**java_properties(cluster), "ssl.enabled.protocols": version, "ssl.protocol": version}
    config = properties(tmp_path / "client.properties", values)
    topic = f"java-{version}"
    at = ("--bootstrap-server", cluster.servers("SSL"))
    making = ("--create", "--topic", topic, "--partitions", "2", "--replication-factor", "2")
    run_tool(TOPIC_COMMAND, [*at, "--command-config", config, *making])
    run_tool(
        CONSOLE_PRODUCER,
        [*at, "--producer.config", config, "--topic", topic, "--producer-property", "acks=all"],
        standard_input="".join(f"{number}\n" for number in range(100)),
    )
    reading = ("--from-beginning", "--max-messages", "100", "--timeout-ms", "30000")
    read = run_tool(CONSOLE_CONSUMER, [*at, "--consumer.config", config, "--topic", topic, *reading])
    assert sorted(map(int, read.split())) == list(range(100))


@pytest.mark.skipif(reason_to_skip() is not None, reason=str(reason_to_skip()))
@pytest.mark.parametrize("kind", ["wrong authority", "wrong host name", "no certificate", "plaintext"])
def test_javas_tools_are_told_why_they_are_not_let_in(cluster: TlsCluster, tmp_path: Path, kind: str) -> None:
    values: dict[str, object] = {"security.protocol": "SSL", **pem_properties(cluster.alice, cluster.authority)}
    servers, says = cluster.servers("SSL"), "SSL handshake failed"
    if kind == "wrong authority":
        values |= pem_properties(None, cluster.other_authority)
    elif kind == "wrong host name":
        # The name is not in the certificate; only the address 127.0.0.1 and localhost are.
        servers = ",".join(f"127.0.0.2:{ports['SSL']}" for ports in cluster.ports.values())
        says = "SSL handshake failed|No subject alternative names matching IP address 127.0.0.2|Timed out"
    elif kind == "no certificate":
        values = {"security.protocol": "SSL", **pem_properties(None, cluster.authority)}
        says = "certificate_required"
    else:
        values, says = {}, "Timed out waiting for a node assignment|OutOfMemoryError|TimeoutException"
    values |= {"default.api.timeout.ms": 6_000, "request.timeout.ms": 3_000}
    config = properties(tmp_path / "client.properties", values)
    done = tool_run(TOPIC_COMMAND, ["--bootstrap-server", servers, "--command-config", config, "--list"])
    assert done.status != 0
    assert re.search(says, done.output + done.errors), done.output + done.errors


# Our own.


def command(
    cluster: TlsCluster, config: Path, *arguments: str, listener: str = "SSL", text: str = ""
) -> subprocess.CompletedProcess[str]:
    where = ["-b", cluster.servers(listener), "--command-config", str(config)]
    return subprocess.run(
        [sys.executable, "-m", "barnabas.cli", *arguments, *where],
        capture_output=True,
        text=True,
        input=text,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def test_our_commands_come_in_and_are_told_why_not(cluster: TlsCluster, tmp_path: Path) -> None:
    topic = make_topic(cluster, "commands")

    def config(certified: Certified | None, authority: Authority, **more: object) -> Path:
        values = {"security.protocol": "SSL", **pem_properties(certified, authority), **more}
        return properties(tmp_path / "client.properties", values)

    good = config(cluster.alice, cluster.authority)
    assert command(cluster, good, "produce", topic, text="1\n2\n").returncode == 0
    read = command(cluster, good, "consume", topic, "--from", "earliest", "--until-end")
    assert sorted(read.stdout.split()) == ["1", "2"], read.stderr
    jaas = in_properties(login_module("PLAIN", username=USER, password=PASSWORD))
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas}
    by_password = command(
        cluster, config(None, cluster.authority, **login), "topic", "list", "--json", listener="LOGIN"
    )
    assert json.loads(by_password.stdout), by_password.stderr
    for shown, authority, says in (
        (None, cluster.authority, "requires a certificate of us"),
        (certificate(cluster, "expired"), cluster.authority, "our certificate has expired"),
        (certificate(cluster, "of another authority"), cluster.authority, "does not trust the issuer of our"),
        (cluster.alice, cluster.other_authority, "the broker's certificate is not accepted"),
    ):
        refused = command(cluster, config(shown, authority), "topic", "list")
        assert refused.returncode != 0
        assert says in refused.stderr, refused.stderr


def test_what_is_no_tls_harms_nobody_and_is_counted(cluster: TlsCluster) -> None:
    topic = make_topic(cluster, "beside-garbage")
    port = cluster.ports[1]["SSL"]
    for sent in (
        b"\0\0\0\x10plain as the day",
        b"GET / HTTP/1.0\r\n\r\n",
        b"\x16\x03\x01\xff\xff" + bytes(70_000),
        b"",
    ):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.settimeout(TIMEOUT_SECONDS)
            if not sent:
                continue
            connection.sendall(sent)
            try:
                while connection.recv(1_000):
                    pass
            except ConnectionResetError:
                pass
    half_open = [socket.create_connection(("127.0.0.1", port)) for _ in range(300)]
    try:
        for connection in half_open:
            connection.sendall(b"\x16\x03\x01\x02\x00\x01")
        exchange(cluster, topic, cluster.confluent())
    finally:
        for connection in half_open:
            connection.close()
    log = cluster.log(1)
    for says in ("what came is not TLS", "what came is HTTP"):
        assert f"SSL handshake failed: {says}" in log
    assert STORE_PASSWORD not in log
    assert PASSWORD not in log


def test_a_broker_that_is_killed_comes_back_among_the_others(cluster: TlsCluster) -> None:
    topic = make_topic(cluster, "killed")
    cluster.brokers[2].kill()
    cluster.brokers[2].start()
    exchange(cluster, topic, cluster.confluent() | {"message.timeout.ms": 60_000})


def test_a_certificate_is_exchanged_while_clients_go_on(cluster: TlsCluster, tmp_path: Path) -> None:
    topic = make_topic(cluster, "exchanged")
    new = cluster.authority.sign("/O=Castle/CN=broker")
    admin = AdminClient(cluster.confluent())
    name = "listener.name.ssl.ssl.keystore.location"
    port = cluster.ports[1]["SSL"]
    producer = Producer(cluster.confluent())
    producer.produce(topic, b"before")
    assert producer.flush(TIMEOUT_SECONDS) == 0

    def alter(place: Path) -> None:
        entry = ConfigEntry(name, str(place), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(TIMEOUT_SECONDS)

    with pytest.raises(KafkaException, match=r"ssl\.allow\.dn\.changes"):
        alter(cluster.alice.both)
    with pytest.raises(KafkaException, match="cannot be read"):
        alter(tmp_path / "nowhere.pem")
    alter(new.both)
    served = new.certificate.read_text()
    wait_until(lambda: shown_by(port) == served, "the new certificate is shown", TIMEOUT_SECONDS, cluster.log_tails)
    producer.produce(topic, b"after")
    assert producer.flush(TIMEOUT_SECONDS) == 0
    exchange(cluster, make_topic(cluster, "exchanged-anew"), cluster.confluent())


def shown_by(port: int) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port)) as plain, context.wrap_socket(plain) as secured:
        return ssl.DER_cert_to_PEM_cert(secured.getpeercert(binary_form=True) or b"")
