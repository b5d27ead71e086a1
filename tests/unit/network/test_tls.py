"""`barnabas.network` and `barnabas.link` with TLS: real sockets, both loops, OpenSSL's own client at the other end."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.link.connection import LinkContext
from barnabas.link.errors import AuthenticationFailedError
from barnabas.link.limits import LinkLimits
from barnabas.link.tls import RECORDS_PER_TURN
from barnabas.link.tls_end import TlsEnd
from barnabas.network.config import NetworkConfig
from tests.support.certificates import (
    client_certificate,
    other_authority,
    shared_authority,
)
from tests.unit.network.secured import Secure, client_context, scenario, server_context
from tests.unit.network.serving import framed


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    if request.param == "asyncio":
        return asyncio.new_event_loop
    return pytest.importorskip("uvloop").new_event_loop  # type: ignore[no-any-return]


def test_requests_are_answered_in_order_small_and_large(loop_factory: Any) -> None:
    async def body(secure: Secure) -> None:
        client = await secure.client()
        requests = [b"x" * size for size in (1, 4096, 16_384, 65_536, 65_537, 1_000_003, 7)]
        client.send(*requests)
        for request in requests:
            assert await client.receive() == request
        await client.close()
        await secure.until(lambda: secure.serving.handler.closed)
        assert secure.certificates == [None]

    scenario(loop_factory, body)


def test_bytes_may_come_one_by_one(loop_factory: Any) -> None:
    async def body(secure: Secure) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        ours = client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
        reader, writer = await asyncio.open_connection("127.0.0.1", secure.port)

        async def drip() -> None:
            for byte in outgoing.read():
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)

        while True:
            try:
                ours.do_handshake()
                break
            except ssl.SSLWantReadError:
                await drip()
                incoming.write(await reader.read(65_536))
        for request in (b"first", b"second"):
            ours.write(framed(request))
        await drip()
        received = b""
        while len(received) < len(framed(b"first") + framed(b"second")):
            try:
                received += ours.read(65_536)
            except ssl.SSLWantReadError:
                incoming.write(await reader.read(65_536))
        assert received == framed(b"first") + framed(b"second")
        writer.close()

    scenario(loop_factory, body)


def test_everything_has_left_before_a_drained_connection_ends_and_says_goodbye(loop_factory: Any) -> None:
    async def body(secure: Secure) -> None:
        client = await secure.client()
        client.send(b"park", b"big")
        await secure.until(lambda: secure.serving.handler.slots)
        await secure.until(lambda: len(secure.serving.handler.handled) == 2)
        secure.serving.handler.opened[0].drain()
        secure.serving.handler.slots[b"park"].complete([framed(b"late")])
        assert await client.receive() == b"late"
        assert len(await client.receive()) == 1 << 20
        assert await client.reader.read() == b""  # an end without TLS's goodbye would raise
        await client.close()

    scenario(loop_factory, body)


def test_a_certificate_is_handed_over_before_any_request(loop_factory: Any) -> None:
    async def body(secure: Secure) -> None:
        client = await secure.client(client_context(client_certificate()))
        client.send(b"a")
        assert await client.receive() == b"a"
        assert secure.certificates == [ssl.PEM_cert_to_DER_cert(client_certificate().certificate.read_text())]
        await client.close()
        secure.refusal = ValueError("nobody knows it")
        refused = await secure.client(client_context(client_certificate()))
        refused.send(b"b")
        assert await refused.ended()
        assert secure.failed == 1
        assert secure.serving.handler.handled == [b"a"]
        assert any("nobody knows it" in line for line in secure.serving.lines.lines)

    scenario(loop_factory, body, server_context(asks=True))


@pytest.mark.parametrize(
    ("shown", "says"),
    [
        (lambda: None, "it has shown no certificate"),
        (
            lambda: other_authority().sign("/CN=alice"),
            "the client's certificate is not accepted: unable to get local issuer",
        ),
        (
            lambda: shared_authority().sign("/CN=alice", days=0),
            "the client's certificate is not accepted: certificate has expired",
        ),
    ],
    ids=["none", "of another authority", "expired"],
)
def test_a_client_that_is_not_accepted_is_counted_and_handled_nothing(loop_factory: Any, shown: Any, says: str) -> None:
    async def body(secure: Secure) -> None:
        client = await secure.client(client_context(shown()))  # which with TLS 1.3 hears of it only afterwards
        client.send(b"a")
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            await client.ended()
        await secure.until(lambda: secure.failed == 1)
        await secure.until(lambda: not secure.serving.server.connections)
        assert any(says in line for line in secure.serving.lines.lines), secure.serving.lines.lines
        assert not secure.serving.handler.handled
        assert secure.handshakes.begun == secure.handshakes.waiting == 0

    scenario(loop_factory, body, server_context(asks=True))


def test_a_connection_counts_before_its_handshake(loop_factory: Any) -> None:
    async def body(secure: Secure) -> None:
        silent = [await secure.plain_client() for _ in range(2)]
        await secure.until(lambda: secure.serving.server.connections == 2)
        one_more = await secure.plain_client()
        assert await one_more.ended()
        assert secure.serving.server.connections_refused == 1
        for client in silent:
            await client.close()

    scenario(loop_factory, body, config=NetworkConfig(connections_per_ip_max=2))


def test_a_context_that_is_replaced_counts_for_connections_from_then_on(loop_factory: Any) -> None:
    async def body(secure: Secure) -> None:
        before = await secure.client()
        secure.end.context = server_context(other_authority().sign())
        with pytest.raises(ssl.SSLCertVerificationError):
            await secure.client()
        before.send(b"a")
        assert await before.receive() == b"a"
        await before.close()

    scenario(loop_factory, body)


def test_our_own_client_says_why_it_is_not_let_in(loop_factory: Any) -> None:
    from barnabas.link.client import connect

    async def body(secure: Secure) -> None:
        context = LinkContext.of(secure.host.loop, secure.serving.timers, LinkLimits(), secure.serving.server._logger)

        async def fails(port: int, client: ssl.SSLContext, says: str, address: str = "localhost") -> None:
            end = TlsEnd(client, secure.handshakes)
            with pytest.raises(AuthenticationFailedError, match=says):
                await connect(context, address, port, tls=end, timeout_ms=60_000)

        foreign = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        await fails(secure.port, foreign, "the broker's certificate is not accepted: unable to get local issuer")
        only_name = shared_authority().sign(names="DNS:castle")
        secure.end.context = server_context(only_name, asks=True)
        await fails(secure.port, client_context(), "certificate is not accepted: Hostname mismatch")
        await fails(secure.port, client_context(), "certificate is not accepted: IP address mismatch", "127.0.0.1")
        secure.end.context = server_context(asks=True)
        connection = await connect(context, "localhost", secure.port, tls=TlsEnd(client_context(), secure.handshakes))
        # With TLS 1.3 a client hears that its certificate is not wanted only after its own handshake.
        with pytest.raises(AuthenticationFailedError, match="requires a certificate of us"):
            await connection.learn_api_versions("test", "1", 60_000)
        known = TlsEnd(client_context(client_certificate()), secure.handshakes)
        connection = await connect(context, "localhost", secure.port, tls=known)
        assert connection.is_open
        connection.close()
        await connection.closed

    scenario(loop_factory, body)


def test_who_is_throttled_is_read_afterwards_where_it_was_left(loop_factory: Any) -> None:
    """Of what has come some is decrypted and not handled, some not decrypted: that is held for as long."""

    async def body(secure: Secure) -> None:
        client = await secure.client()
        client.send(b"first")
        assert await client.receive() == b"first"
        handler = secure.serving.handler
        requests = [b"%05d" % number for number in range(8 * RECORDS_PER_TURN)]

        connection = handler.opened[0]

        times: list[float] = []

        def holds_back_in_the_middle(*arguments: Any) -> Any:
            times.append(secure.host.loop.time())
            if len(times) % 200 == 0:
                connection.throttle(50)
            return handler.handle(*arguments)

        connection.divert(holds_back_in_the_middle)
        handler.handled.clear()
        begun_at = secure.host.loop.time()
        connection.throttle(100)
        for request in requests:
            client.send(request)
        for request in requests:
            assert await client.receive() == request
        assert handler.handled == requests
        assert times[0] - begun_at > 0.08
        assert min(times[held] - times[held - 1] for held in (200, 400)) > 0.04

    scenario(loop_factory, body)
