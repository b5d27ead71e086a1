"""Logins by SASL, and TLS, between our client and our coordinator. Real ZooKeeper and Kafka are met in
tests/interop/test_zookeeper_security.py.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from barnabas.coordination.client import Client
from barnabas.coordination.digest_login import DigestClient, DigestUser
from barnabas.coordination.embedded.config import CoordinatorConfig
from barnabas.coordination.embedded.logins import Logins
from barnabas.coordination.embedded.server import EmbeddedCoordinator
from barnabas.coordination.errors import AuthFailedError, InvalidAclError, NoAuthError, OperationTimeoutError
from barnabas.coordination.jute import Reader
from barnabas.coordination.protocol import CREATOR_ALL_ACL, Acl, EventType, Id, WatcherEvent
from barnabas.coordination.session_settings import ClientSettings
from barnabas.coordination.session_state import SessionState
from barnabas.kernel.real_host import real_host
from barnabas.kernel.real_key_files import load_chain
from barnabas.tls.contexts import client_context, server_context
from barnabas.tls.settings import TlsSettings
from barnabas.tls.stores import read_stores
from tests.support.certificates import Certified, client_certificate, shared_authority

LOGGER = logging.getLogger("tests")
PASSWORDS = {"kafka": "secret", "other": "o"}
Connect = Callable[..., Awaitable[Client]]
Test = Callable[[EmbeddedCoordinator, Connect], Awaitable[None]]


def at_coordinator(test: Test, directory: Path, tls: ssl.SSLContext | None = None, **more: object) -> None:
    async def main() -> None:
        async with real_host("test", asyncio.get_running_loop()) as host:
            config = CoordinatorConfig(str(directory), "localhost", port=0, tls=tls, **more)  # type: ignore[arg-type]
            server = EmbeddedCoordinator(host, config, LOGGER)
            await server.start()
            made: list[Client] = []

            async def connect(**settings: object) -> Client:
                address = f"localhost:{server.port}"
                client = Client(host, ClientSettings(address, 10_000, **settings), logger=LOGGER)  # type: ignore[arg-type]
                made.append(client)
                await client.connect(1_500)
                return client

            try:
                await test(server, connect)
            finally:
                for client in made:
                    await client.close()
                await server.stop()

    asyncio.run(main())


def test_who_has_logged_in_is_known_by_name_on_every_connection(tmp_path: Path) -> None:
    async def test(server: EmbeddedCoordinator, connect: Connect) -> None:
        owner = await connect(login=DigestUser("kafka", "secret"))
        await owner.create("/mine", b"x", acl=CREATOR_ALL_ACL)
        assert (await owner.get_acl("/mine")).acl == (Acl(31, Id("sasl", "kafka")),)
        seen: list[WatcherEvent] = []
        await owner.get_data("/mine", seen.append)
        connected: list[SessionState] = []
        owner.add_state_listener(connected.append)
        for connection in list(server._connections):
            connection.abort()
        async with asyncio.timeout(60):
            while connected[-1:] != [SessionState.CONNECTED] or len(connected) < 3:
                await asyncio.sleep(0.01)
        # With the login the watch is there too, and the znode still its own.
        await owner.set_data("/mine", b"y")
        async with asyncio.timeout(60):
            while not seen:
                await asyncio.sleep(0.01)
        assert seen[0].type is EventType.NODE_DATA_CHANGED
        for stranger in (await connect(login=DigestUser("other", "o")), await connect()):
            with pytest.raises(NoAuthError):
                await stranger.get_data("/mine")

    at_coordinator(test, tmp_path, passwords=PASSWORDS)


def test_a_login_that_fails_is_the_end_of_the_session(tmp_path: Path) -> None:
    async def test(server: EmbeddedCoordinator, connect: Connect) -> None:
        for user in (DigestUser("kafka", "wrong"), DigestUser("nobody", "secret")):
            with pytest.raises(AuthFailedError):
                await connect(login=user)
        assert server.engine.statistics.auth_failed == 2

    at_coordinator(test, tmp_path, passwords=PASSWORDS)


def test_where_nobody_can_log_in_a_client_that_wants_to_is_not_let_on(tmp_path: Path) -> None:
    """It would make znodes that belong to nobody."""

    async def test(_server: EmbeddedCoordinator, connect: Connect) -> None:
        with pytest.raises(AuthFailedError):
            await connect(login=DigestUser("kafka", "secret"))
        plain = await connect()
        with pytest.raises(InvalidAclError):
            await plain.create("/x", acl=(Acl(31, Id("sasl", "kafka")),))

    at_coordinator(test, tmp_path)


def test_a_connection_may_log_in_as_another_user_too() -> None:
    """As ZooKeeper's; an empty message begins, also where a login was given up in its middle."""
    login = Logins(PASSWORDS, bytes, has_tls=False).of_connection()
    shown: list[Id | None] = []
    for user in ("kafka", "other"):
        login.answer_sasl(b"")
        challenge = Reader(login.answer_sasl(b"")[1]).buffer()
        message = DigestClient(DigestUser(user, PASSWORDS[user]), bytes).answer(challenge or b"")
        shown.append(login.answer_sasl(message or b"")[2])
    assert shown == [Id("sasl", "kafka"), Id("sasl", "other")]


def contexts(certified: Certified | None) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server that wants certificates, and of a client, which may have none."""
    authority = shared_authority()

    def settings_of(key: Certified | None) -> TlsSettings:
        found = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(authority.certificate)}
        if key is not None:
            found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(key.both)}
        return TlsSettings.of((found | {"ssl.client.auth": "required"}).get)

    def read(path: str) -> bytes:
        return Path(path).read_bytes()

    server, client = settings_of(authority.sign("/CN=localhost")), settings_of(certified)
    return (
        server_context(server, read_stores(server, read), load_chain),
        client_context(client, read_stores(client, read), load_chain),
    )


def test_a_certificate_is_an_identity(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server_end, client_end = contexts(client_certificate())

    async def test(_server: EmbeddedCoordinator, connect: Connect) -> None:
        owner = await connect(tls=client_end)
        await owner.create("/mine", b"x" * 500_000, acl=CREATOR_ALL_ACL)
        (entry,) = (await owner.get_acl("/mine")).acl
        assert entry.id.scheme == "x509"
        assert entry.id.id.startswith("CN=")
        assert len((await owner.get_data("/mine")).data or b"") == 500_000
        for wrong in (None, contexts(None)[1]):
            with pytest.raises(OperationTimeoutError):
                await connect(tls=wrong)

    at_coordinator(test, tmp_path, tls=server_end)
    # Why it is not let in is said, and once, though it has tried many times.
    told = [each.getMessage() for each in caplog.records if "No connection to ZooKeeper" in each.getMessage()]
    assert sum("the other end requires a certificate of us" in line for line in told) == 1
    assert len(told) < 10
