"""ZooKeeper with a login by SASL (DIGEST-MD5) and with TLS: real ZooKeeper 3.8.4 and Apache Kafka 3.9.1 beside ours,
both ways round.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from barnabas.coordination.client import Client
from barnabas.coordination.digest_login import DigestUser
from barnabas.coordination.errors import AuthFailedError, NoAuthError
from barnabas.coordination.layout.access import default_acl
from barnabas.coordination.protocol import CREATOR_ALL_ACL, Acl, Id
from barnabas.coordination.session_settings import ClientSettings
from barnabas.kernel.real_host import RealHost, real_host
from barnabas.kernel.real_key_files import load_chain
from barnabas.tls.contexts import client_context
from barnabas.tls.settings import TlsSettings
from barnabas.tls.stores import read_stores
from tests.support.apache_kafka import SMALL_HEAP_OPTIONS, ApacheKafkaBroker
from tests.support.apache_kafka_jars import class_path
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority, Certified
from tests.support.embedded_coordinator import EmbeddedCoordinator
from tests.support.java import java
from tests.support.ports import free_port
from tests.support.tls_cluster import pem_properties
from tests.support.waiting import wait_until
from tests.support.wire_calls import create_topic, leaders, metadata
from tests.support.zookeeper import FAST_START_OPTIONS, ZooKeeperServer

MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
USER, PASSWORD = "kafka", 'br"oker\\s own'
JAAS = (
    f'Server {{ {MODULE} required user_{USER}="br\\"oker\\\\s own" user_mallory="m"; }};\n'
    f'Client {{ {MODULE} required username="{USER}" password="br\\"oker\\\\s own"; }};\n'
)
SASL_PROVIDER = {"authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}
LOGGER = logging.getLogger("tests")
LONG = pytest.mark.skipif(
    os.environ.get("BARNABAS_LONG_FAILURES") != "1", reason="BARNABAS_LONG_FAILURES=1 does it, as the nightly does"
)


def with_client(settings: ClientSettings, test: Callable[[Client, RealHost], Awaitable[None]]) -> None:
    async def main() -> None:
        async with real_host("test", asyncio.get_running_loop()) as host:
            client = Client(host, settings, logger=LOGGER)
            try:
                await client.connect(20_000)
                await test(client, host)
            finally:
                await client.close()

    asyncio.run(main())


@pytest.fixture(scope="module")
def jaas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("jaas") / "jaas.conf"
    path.write_text(JAAS)
    return path


@pytest.fixture(scope="module")
def zookeeper(oracle_jars: Path, jaas: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    options = (*FAST_START_OPTIONS, f"-Djava.security.auth.login.config={jaas}")
    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"), configuration=SASL_PROVIDER, java_options=options)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def test_our_client_logs_in_at_zookeeper(zookeeper: ZooKeeperServer) -> None:
    async def owner(client: Client, _host: RealHost) -> None:
        await client.create("/mine", b"x", acl=CREATOR_ALL_ACL)
        assert (await client.get_acl("/mine")).acl == (Acl(31, Id("sasl", USER)),)
        assert (await client.get_data("/mine")).data == b"x"

    async def stranger(client: Client, _host: RealHost) -> None:
        with pytest.raises(NoAuthError):
            await client.get_data("/mine")

    with_client(ClientSettings(zookeeper.address, login=DigestUser(USER, PASSWORD)), owner)
    with_client(ClientSettings(zookeeper.address, login=DigestUser("mallory", "m")), stranger)
    with_client(ClientSettings(zookeeper.address), stranger)
    with pytest.raises(AuthFailedError):
        with_client(ClientSettings(zookeeper.address, login=DigestUser(USER, "wrong")), stranger)

    async def tidy(client: Client, _host: RealHost) -> None:
        await client.delete("/mine")

    with_client(ClientSettings(zookeeper.address, login=DigestUser(USER, PASSWORD)), tidy)


class Certificates(NamedTuple):
    """Of a coordination server, and of the brokers."""

    authority: Authority
    server: Certified
    broker: Certified


class Mixed:
    """A broker of ours and Apache Kafka's on one ZooKeeper, whose znodes are the brokers' own."""

    def __init__(self, directory: Path, address: str, jaas: Path | None, overrides: dict[str, object]) -> None:
        self.address = address
        secure = {"zookeeper.set.acl": "true", "zookeeper.session.timeout.ms": 6_000, **overrides}
        self.ports = {1: free_port(), 2: free_port()}
        options = (
            SMALL_HEAP_OPTIONS
            if jaas is None
            else (
                *SMALL_HEAP_OPTIONS,
                f"-Djava.security.auth.login.config={jaas}",
            )
        )
        ours = secure if jaas is None else {**secure, "barnabas.zookeeper.login.config": jaas}
        self.ours = BrokerProcess(directory / "1", 1, address, port=self.ports[1], overrides=ours)
        self.theirs = ApacheKafkaBroker(
            directory / "2", address, 2, port=self.ports[2], overrides=secure, java_options=options
        )

    def start(self) -> None:
        for broker in (self.ours, self.theirs):
            broker.start(wait=False)
        for broker in (self.ours, self.theirs):
            broker.wait_until_ready()
        for port in self.ports.values():
            wait_until(lambda: len(metadata(port).brokers) == 2, "both know both", 90.0)  # noqa: B023

    def stop(self) -> None:
        self.ours.kill()
        self.theirs.kill()


async def acls_of_all(client: Client, path: str = "/") -> dict[str, tuple[Acl, ...]]:
    found = {} if path == "/zookeeper" else {path: (await client.get_acl(path)).acl}
    for name in (await client.get_children(path)).names if path != "/zookeeper" else ():
        found |= await acls_of_all(client, f"{path.rstrip('/')}/{name}")
    return found


def check_ownership(settings: ClientSettings, identity: Id) -> None:
    """Every znode of a cluster is as Kafka's `ZkData.defaultAcls` has it, whichever broker has made it."""

    async def look(client: Client, _host: RealHost) -> None:
        found = await acls_of_all(client)
        del found["/"]
        wrong = {}
        for path, acl in found.items():
            wanted = tuple(
                Acl(entry.permissions, identity if entry.id.scheme == "auth" else entry.id)
                for entry in default_acl(path, secure=True)
            )
            if acl != wanted:
                wrong[path] = acl
        assert wrong == {}
        assert {"/brokers/ids/1", "/brokers/ids/2", "/controller", "/config/topics/both"} <= found.keys()

    with_client(settings, look)


@dataclass(frozen=True)
class Place:
    """A coordination server; `settings` and `overrides` are how clients and brokers come in, as `identity`."""

    address: str
    settings: ClientSettings
    overrides: dict[str, object]
    jaas: Path | None
    identity: Id


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    authority = Authority(tmp_path / "authority")
    return Certificates(authority, authority.sign("/O=ACME/CN=zk"), authority.sign("/O=ACME, Inc./CN=broker"))


def of_zookeeper_with_sasl(request: pytest.FixtureRequest) -> Place:
    server = request.getfixturevalue("zookeeper")
    return of_sasl(server.address, request.getfixturevalue("jaas"))


def of_sasl(address: str, jaas: Path) -> Place:
    settings = ClientSettings(address, login=DigestUser(USER, PASSWORD))
    return Place(address, settings, {}, jaas, Id("sasl", USER))


def of_ours_with_sasl(request: pytest.FixtureRequest) -> Place:
    jaas = request.getfixturevalue("jaas")
    server = EmbeddedCoordinator(request.getfixturevalue("tmp_path") / "ours", options=["--login-file", str(jaas)])
    request.addfinalizer(server.kill)
    server.start()
    return of_sasl(server.address, jaas)


def of_tls(address: str, certificates: Certificates) -> Place:
    store = {
        "keystore.location": certificates.broker.both,
        "keystore.type": "PEM",
        "truststore.location": certificates.authority.certificate.rename(
            certificates.authority.certificate.with_suffix(".pem")
        ),
    }
    overrides = {
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
        **{f"zookeeper.ssl.{name}": value for name, value in store.items()},
    }
    tls = TlsSettings.of(lambda key: overrides.get(f"zookeeper.{key}") or {"ssl.truststore.type": "PEM"}.get(key))
    context = client_context(tls, read_stores(tls, lambda path: Path(path).read_bytes()), load_chain)
    settings = ClientSettings(address, tls=context)
    return Place(address, settings, overrides, None, Id("x509", "CN=broker,O=ACME\\, Inc."))


def of_zookeeper_with_tls(request: pytest.FixtureRequest) -> Place:
    certificates: Certificates = request.getfixturevalue("certificates")
    request.getfixturevalue("oracle_jars")
    port = free_port()
    trusted = certificates.server.both.with_name("trusted.pem")
    trusted.write_bytes(certificates.authority.certificate.read_bytes())
    configuration = {
        "secureClientPort": port,
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": certificates.server.both,
        "ssl.trustStore.location": trusted,
        "authProvider.x509": "org.apache.zookeeper.server.auth.X509AuthenticationProvider",
    }
    server = ZooKeeperServer(request.getfixturevalue("tmp_path") / "theirs", configuration=configuration)
    request.addfinalizer(server.kill)
    server.start()
    return of_tls(f"localhost:{port}", certificates)


def of_ours_with_tls(request: pytest.FixtureRequest) -> Place:
    certificates: Certificates = request.getfixturevalue("certificates")
    directory = request.getfixturevalue("tmp_path")
    config = directory / "tls.properties"
    properties = pem_properties(certificates.server, certificates.authority)
    config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    server = EmbeddedCoordinator(directory / "ours", options=["--tls-config", str(config), "--host", "localhost"])
    request.addfinalizer(server.kill)
    server.start(wait=False)
    wait_until(lambda: "ready on" in server.process.log_tail(), "it is ready", 90.0)
    return of_tls(f"localhost:{server.port}", certificates)


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(of_zookeeper_with_sasl, marks=LONG),
        of_zookeeper_with_tls,
        of_ours_with_sasl,
        pytest.param(of_ours_with_tls, marks=LONG),
    ],
    ids=lambda it: it.__name__,
)
def test_brokers_of_both_kinds_share_znodes_that_are_theirs_alone(
    place: Callable[[pytest.FixtureRequest], Place], request: pytest.FixtureRequest, tmp_path: Path, oracle_jars: Path
) -> None:
    there = place(request)
    pair = Mixed(tmp_path / "brokers", there.address, there.jaas, there.overrides)
    try:
        pair.start()
        for topic in ("both", "later"):
            controller = int(metadata(pair.ports[1]).controller_id)
            create_topic(pair.ports[controller], topic, 2, 2)
            for port in pair.ports.values():
                wait_until(lambda: sorted(leaders(port, topic).values()) == [1, 2], "each leads", 90.0)  # noqa: B023
            if topic == "both":
                before = pair.ours if controller == 1 else pair.theirs
                before.stop()
                before.start()
                wait_until(lambda: len(metadata(pair.ports[1]).brokers) == 2, "both are there", 90.0)
        check_ownership(there.settings, there.identity)
    finally:
        pair.stop()


@pytest.mark.night("20 s and two JVMs, and no commit says that it has found anything")
def test_kafkas_tool_makes_znodes_of_before_the_brokers_own(
    request: pytest.FixtureRequest, jaas: Path, tmp_path: Path, oracle_jars: Path
) -> None:
    there = of_ours_with_sasl(request)
    broker = BrokerProcess(tmp_path / "broker", 1, there.address, port=free_port())
    try:
        broker.start()
        create_topic(broker.port, "old", 1, 1)
    finally:
        broker.stop()

    async def look(client: Client, _host: RealHost) -> None:
        found = await acls_of_all(client)
        opened = {path for path, acl in found.items() if not any(entry.id == there.identity for entry in acl)}
        assert opened == ({"/consumers"} if mode == "secure" else found.keys())
        assert "/config/topics/old" in found

    for mode in ("secure", "unsecure"):
        command: list[str] = [
            str(java().executable),
            f"-Djava.security.auth.login.config={jaas}",
            "-cp",
            str(class_path()),
        ]
        tool = ["kafka.admin.ZkSecurityMigrator", "--zookeeper.acl", mode, "--zookeeper.connect", there.address]
        subprocess.run([*command, *tool], check=True, capture_output=True, timeout=120)
        with_client(there.settings, look)
