"""Clients of several kinds, and our own, log in by tokens of an identity provider (OAUTHBEARER), and again when those
are over; brokers do among each other all the while. Java's are in tests/interop/test_oauthbearer.py.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import kafka.net.sasl.oauth
import pytest
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka import KafkaError, Producer

from barnabas.client.client import Client
from barnabas.client.producer import Producer as OwnProducer
from barnabas.client.records import ProducerRecord
from barnabas.client.settings import ClientSettings, ProducerSettings
from barnabas.kernel.real_host import RealHost, run
from barnabas.link.errors import AuthenticationFailedError
from barnabas.sasl.mechanisms import AnyLogin, login_of_client
from tests.support.identity_provider import (
    AUDIENCE,
    ISSUER,
    LOGIN_HANDLER,
    MODULE,
    VALIDATOR_HANDLER,
    IdentityProvider,
    claims,
    client_properties,
    identity_provider,
    rsa_key,
    signed,
)
from tests.support.sasl_cluster import SaslCluster, sasl_cluster
from tests.support.waiting import wait_until
from tests.support.wire_calls import create_topic, leaders

TIMEOUT_SECONDS = 60.0
LIFETIME_SECONDS = 4
PREFIX = "listener.name.login.oauthbearer"


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as found:
        found.secrets["broker"] = "brokers"
        found.lifetime_seconds = LIFETIME_SECONDS
        yield found


@pytest.fixture(scope="module")
def cluster(provider: IdentityProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslCluster]:
    properties = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": provider.keys_address,
        "sasl.oauthbearer.token.endpoint.url": provider.token_address,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.clock.skew.seconds": 0,
        f"{PREFIX}.sasl.server.callback.handler.class": VALIDATOR_HANDLER,
        f"{PREFIX}.sasl.login.callback.handler.class": LOGIN_HANDLER,
        f"{PREFIX}.sasl.jaas.config": f'{MODULE} required clientId="broker" clientSecret="brokers";',
        "connection.failed.authentication.delay.ms": 10,
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:broker;User:alice;User:ANONYMOUS",
    }
    with sasl_cluster(tmp_path_factory.mktemp("oauth"), 2, **properties) as running:
        create_topic(running.brokers[1].port, "t", 2, 2)
        wait_until(lambda: len(leaders(running.brokers[1].port, "t")) == 2, "there is a topic", TIMEOUT_SECONDS)
        yield running


def short_token() -> str:
    return signed(claims(exp=int(time.time()) + LIFETIME_SECONDS))


def test_librdkafka_logs_in_and_again(cluster: SaslCluster) -> None:
    asked: list[str] = []

    def give(config: str) -> tuple[str, float]:
        asked.append(config)
        return short_token(), time.time() + LIFETIME_SECONDS

    producer = Producer(
        {
            "bootstrap.servers": cluster.sasl_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": give,
            "acks": "all",
        }
    )
    errors: list[Any] = []
    ends_at = time.monotonic() + 2.5 * LIFETIME_SECONDS
    while time.monotonic() < ends_at:
        producer.produce("t", b"x", on_delivery=lambda error, _: errors.append(error))
        producer.poll(0.1)
    assert producer.flush(TIMEOUT_SECONDS) == 0
    assert set(errors) == {None}
    assert len(asked) >= 3


def test_librdkafka_hears_that_its_token_is_not_taken(cluster: SaslCluster) -> None:
    errors: list[Any] = []
    forged = signed(claims(), key=rsa_key(1))
    producer = Producer(
        {
            "bootstrap.servers": cluster.sasl_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: (forged, time.time() + 600),
            "error_cb": errors.append,
        }
    )
    wait_until(lambda: producer.poll(0.1) is not None and errors, "it is told", TIMEOUT_SECONDS)
    assert errors[0].code() == KafkaError._AUTHENTICATION
    assert "invalid_token" in errors[0].str()


def test_kafka_python_and_aiokafka_log_in(cluster: SaslCluster) -> None:
    class Given(kafka.net.sasl.oauth.AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return signed(claims())

    class GivenAlso(AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return signed(claims())

    shared = {"bootstrap_servers": cluster.sasl_servers, "security_protocol": "SASL_PLAINTEXT"}
    producer = kafka.KafkaProducer(
        **shared, sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=Given(), api_version=(2, 6)
    )
    assert producer.send("t", b"x").get(TIMEOUT_SECONDS).topic == "t"
    producer.close()

    async def also() -> None:
        sending = aiokafka.AIOKafkaProducer(
            **shared, sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=GivenAlso()
        )
        await sending.start()
        try:
            assert (await sending.send_and_wait("t", b"x")).topic == "t"
        finally:
            await sending.stop()

    asyncio.run(also())


def own_login(provider: IdentityProvider, **options: str) -> AnyLogin:
    properties = client_properties(provider, **options)
    return login_of_client("OAUTHBEARER", properties["sasl.jaas.config"], properties.get)


def test_our_client_logs_in_and_again_and_hears_a_refusal(cluster: SaslCluster, provider: IdentityProvider) -> None:
    async def main(host: RealHost) -> None:
        servers = tuple(cluster.sasl_servers.split(","))
        settings = ClientSettings(bootstrap_servers=servers, login=own_login(provider, extension_traceId="1"))
        logger = logging.getLogger("tests")
        asked = provider.asked.count("/token")
        async with Client(host, settings, logger) as client:
            producer = OwnProducer(client, ProducerSettings())
            ends_at = host.loop.time() + 2.5 * LIFETIME_SECONDS
            while host.loop.time() < ends_at or provider.asked.count("/token") - asked < 3:
                await producer.send(ProducerRecord("t", b"x"))
                await producer.flush()
                await asyncio.sleep(0.1)
            await producer.close()
        assert provider.asked.count("/token") - asked >= 3
        refused = ClientSettings(bootstrap_servers=servers, login=own_login(provider, clientSecret="wrong"))
        with pytest.raises(AuthenticationFailedError, match="it answers 401"):
            async with Client(host, refused, logger):
                pass

    run(main)


def test_a_command_logs_in_by_a_file(cluster: SaslCluster, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(signed(claims()))
    config = tmp_path / "client.properties"
    config.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\nsasl.jaas.config={MODULE} required;\n"
        f"sasl.oauthbearer.token.endpoint.url={token.as_uri()}\n"
    )
    command = [sys.executable, "-m", "barnabas.cli", "topic", "list", "-b", cluster.sasl_servers]
    done = subprocess.run(
        [*command, "--command-config", config], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, "t" in done.stdout.split()) == (0, True), done.stderr
    token.write_text(signed(claims(aud="web")))
    done = subprocess.run(
        [*command, "--command-config", config], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert '{"status":"invalid_token"}' in done.stderr


def test_brokers_replicate_on_when_their_tokens_were_over(cluster: SaslCluster, provider: IdentityProvider) -> None:
    """Each partition has a replica at the other broker, and acks=all needs both."""
    asked = provider.asked.count("/token")
    time_over = time.monotonic() + 2 * LIFETIME_SECONDS
    producer = Producer({"bootstrap.servers": cluster.plain_servers, "acks": "all"})
    errors: list[Any] = []
    while time.monotonic() < time_over:
        for partition in (0, 1):
            producer.produce("t", b"x", partition=partition, on_delivery=lambda error, _: errors.append(error))
        producer.flush(TIMEOUT_SECONDS)
        time.sleep(0.1)
    assert set(errors) == {None}
    assert provider.asked.count("/token") > asked
