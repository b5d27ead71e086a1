"""`barnabas.network` and `barnabas.link` with TLS: real sockets, both loops, OpenSSL's own client at the other end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import struct
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from barnabas.kernel.host import Host, OffloadFullError, OffloadKind
from barnabas.kernel.real_host import run
from barnabas.link import handshakes as handshakes_module
from barnabas.link.connection import LinkContext, Pause
from barnabas.link.errors import AuthenticationFailedError
from barnabas.link.handshakes import Handshakes
from barnabas.link.limits import LinkLimits
from barnabas.link.tls import TlsEnd
from barnabas.network.config import ListenerConfig, NetworkConfig
from barnabas.quotas.connection_rates import ConnectionRates
from barnabas.quotas.settings import ClientQuotaSettings
from tests.support.certificates import (
    Certified,
    broker_certificate,
    client_certificate,
    other_authority,
    rsa,
    shared_authority,
)
from tests.unit.network.serving import Client, Serving, framed, serving

Body = Callable[["Secure"], Coroutine[Any, Any, None]]
PATIENCE_SECONDS = 10.0


def server_context(certified: Certified | None = None, *, asks: bool = False) -> ssl.SSLContext:
    shown = certified or broker_certificate()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown.certificate, shown.key)
    context.num_tickets = 0
    if asks:
        context.load_verify_locations(shared_authority().certificate)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(certified: Certified | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(shared_authority().certificate)
    if certified is not None:
        context.load_cert_chain(certified.certificate, certified.key)
    return context


class Secure:
    """A listener with TLS that notes what becomes of handshakes."""

    def __init__(self, host: Host, context: ssl.SSLContext) -> None:
        self.host = host
        self.failed = 0
        self.certificates: list[bytes | None] = []
        self.refusal: Exception | None = None
        self.end = TlsEnd(
            context,
            None,  # type: ignore[arg-type]  # made where the timers are
            is_server=True,
            when_secured=self._secured,
            when_failed=self._failed,
        )
        self.serving: Serving = None  # type: ignore[assignment]
        self.clients: list[Client] = []

    @property
    def port(self) -> int:
        return self.serving.ports["TLS"]

    @property
    def handshakes(self) -> Handshakes:
        return self.end.handshakes

    def _secured(self, _connection: object, certificate: bytes | None) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.certificates.append(certificate)

    def _failed(self) -> None:
        self.failed += 1

    async def plain_client(self) -> Client:
        """Which has connected, and does as the test says."""
        client = await Client.connect(self.host, self.port)
        self.clients.append(client)
        return client

    async def client(self, context: ssl.SSLContext | None = None) -> Client:
        reader = asyncio.StreamReader(limit=1 << 22, loop=self.host.loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self.host.loop)
        transport, _ = await self.host.loop.create_connection(
            lambda: protocol, "127.0.0.1", self.port, ssl=context or client_context(), server_hostname="localhost"
        )
        client = Client(reader, asyncio.StreamWriter(transport, protocol, reader, self.host.loop))
        self.clients.append(client)
        return client

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds():
                await asyncio.sleep(0.005)


def scenario(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
    body: Body,
    context: ssl.SSLContext | None = None,
    config: NetworkConfig | None = None,
    rates: ConnectionRates | None = None,
) -> None:
    async def main(host: Host) -> None:
        secure = Secure(host, context or server_context())
        listener = ListenerConfig("TLS", "127.0.0.1", 0, tls=secure.end)
        plain = ListenerConfig("PLAIN", "127.0.0.1", 0)
        async with _served(host, secure, config, listener, plain, rates=rates):
            try:
                async with asyncio.timeout(60):
                    await body(secure)
            finally:
                for client in secure.clients:
                    with contextlib.suppress(OSError):  # TLS's errors among them
                        await client.close()

    run(main, loop_factory=loop_factory)


@contextlib.asynccontextmanager
async def _served(
    host: Host,
    secure: Secure,
    config: NetworkConfig | None,
    *listeners: ListenerConfig,
    rates: ConnectionRates | None = None,
) -> AsyncIterator[None]:
    async with serving(host, config, listeners[:0], rates=rates) as served:
        secure.serving = served
        served.server._logger.setLevel(logging.INFO)
        secure.end.handshakes = Handshakes(host.loop, served.timers, host.offload)
        served.ports = await served.server.listen(listeners)
        yield


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


def test_an_answer_that_is_not_read_is_not_encrypted_and_its_client_not_read(loop_factory: Any) -> None:
    async def body(secure: Secure) -> None:
        client = await secure.client()
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.send(*[b"big"] * 64)
        await secure.until(lambda: len(secure.serving.handler.handled) >= 1)
        connection = secure.serving.handler.opened[0]
        transport = connection._transport
        await secure.until(lambda: connection._pauses & Pause.UNREAD_OUTPUT)
        await asyncio.sleep(0.1)
        assert len(secure.serving.handler.handled) < 32
        raw = transport._raw  # type: ignore[union-attr]
        assert raw.get_write_buffer_size() < 512 * 1024
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(64):
            assert len(await client.receive()) == 1 << 20
        await secure.until(lambda: len(secure.serving.handler.handled) == 64)
        await client.close()

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


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (framed(b"\0\x12\0\3\0\0\0\1plain"), "not TLS; is the other end's security.protocol without SSL?"),
        (b"GET / HTTP/1.1\r\n\r\n", "what came is HTTP"),
        (b"\x16\x03\x01\x40\x01" + bytes(20_000), "SSL handshake failed"),
        (b"\x16\x03\x01\x00\x05\x01\xff\xff\xff\xff" + bytes(100), "SSL handshake failed"),
        (bytes(range(256)) * 64, "SSL handshake failed"),
    ],
)
def test_what_is_no_handshake_ends_its_connection_and_is_counted(loop_factory: Any, sent: bytes, says: str) -> None:
    async def body(secure: Secure) -> None:
        good = await secure.client()
        bad = await secure.plain_client()
        bad.writer.write(sent)
        assert await bad.ended()
        await secure.until(lambda: secure.failed == 1)
        assert any(says in line for line in secure.serving.lines.lines), secure.serving.lines.lines
        good.send(b"a")
        assert await good.receive() == b"a"
        await good.close()

    scenario(loop_factory, body)


def test_who_only_looks_whether_the_port_is_open_is_not_a_failed_handshake(loop_factory: Any) -> None:
    async def body(secure: Secure) -> None:
        looker = await secure.plain_client()
        await looker.close()
        halfway = await secure.plain_client()
        halfway.writer.write(b"\x16\x03\x01")
        await secure.until(lambda: secure.handshakes.begun == 1)
        await halfway.close()
        await secure.until(lambda: not secure.serving.server.connections)
        assert secure.failed == secure.handshakes.begun == 0

    scenario(loop_factory, body)


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


def test_handshakes_that_are_not_finished_in_time_end(loop_factory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from barnabas.link import tls

    monkeypatch.setattr(tls, "HANDSHAKE_MS", 200)

    async def body(secure: Secure) -> None:
        silent = await secure.plain_client()
        slow = await secure.plain_client()
        slow.writer.write(b"\x16\x03\x01")
        good = await secure.client()
        assert await silent.ended()
        assert await slow.ended()
        assert secure.failed == 1  # who has said nothing has failed at nothing
        await asyncio.sleep(0.3)
        good.send(b"a")
        assert await good.receive() == b"a"
        await good.close()

    scenario(loop_factory, body)


def test_places_are_few_and_the_quiet_make_room(loop_factory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes_module, "BEGUN_PER_ADDRESS_MAX", 2)
    monkeypatch.setattr(handshakes_module, "QUIET_SECONDS", 0.3)
    monkeypatch.setattr(handshakes_module, "_LOOK_MS", 50)

    async def body(secure: Secure) -> None:
        quiet = [await secure.plain_client() for _ in range(4)]
        for client in quiet:
            client.writer.write(b"\x16\x03\x01\x02\x00")
        await secure.until(lambda: secure.handshakes.begun == 2 and secure.handshakes.waiting == 2)
        good = await secure.client()  # once all four were sent away, two by two
        good.send(b"a")
        assert await good.receive() == b"a"
        assert secure.failed >= 3
        assert any("while others wait for its place" in line for line in secure.serving.lines.lines)
        await good.close()
        for client in quiet:
            await client.close()
        await secure.until(lambda: not secure.serving.server.connections)
        assert secure.handshakes.begun == secure.handshakes.waiting == 0

    scenario(loop_factory, body)


_SHAKES = """
import socket, ssl, sys, threading
context = ssl.create_default_context(cafile=sys.argv[2])
def shake():
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as secured:
            secured.sendall(b"\\0\\0\\0\\1a")
            answers.append(secured.recv(100))
answers = []
threads = [threading.Thread(target=shake) for _ in range(60)]
for thread in threads: thread.start()
for thread in threads: thread.join()
sys.exit(answers != [b"\\0\\0\\0\\1a"] * 60)
"""


def test_many_handshakes_at_once_leave_the_loop_free(loop_factory: Any) -> None:
    """A signature with such a key takes 5 ms and more, so that 60 of them would take 300 ms."""
    large = shared_authority().sign(kind=rsa(4096))

    async def body(secure: Secure) -> None:
        longest, is_done = 0.0, False

        async def watch() -> None:
            nonlocal longest
            while not is_done:
                before = time.thread_time()  # other processes take the machine's time, but not this thread's
                await asyncio.sleep(0)
                longest = max(longest, time.thread_time() - before)

        watching = asyncio.create_task(watch())
        arguments = (str(secure.port), str(shared_authority().certificate))
        shakes = await asyncio.create_subprocess_exec(sys.executable, "-c", _SHAKES, *arguments)
        assert await shakes.wait() == 0
        is_done = True
        await watching
        assert len(secure.certificates) == 60
        assert longest < 0.03, f"the loop was held for {longest * 1000:.0f} ms"

    scenario(loop_factory, body, server_context(large))


def test_a_full_line_of_other_work_only_delays_a_handshake(loop_factory: Any) -> None:
    async def body(secure: Secure) -> None:
        offload, refused = secure.host.offload, 0

        def full(kind: OffloadKind, function: Any, *arguments: Any, **options: Any) -> Any:
            nonlocal refused
            refused += 1
            if refused % 3:
                raise OffloadFullError("full")
            return offload(kind, function, *arguments, **options)

        secure.handshakes._offload = full
        client = await secure.client()
        client.send(b"a")
        assert await client.receive() == b"a"
        assert refused > 3
        await client.close()

    scenario(loop_factory, body)


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
                await connect(context, address, port, tls=end, timeout_ms=5_000)

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
            await connection.learn_api_versions("test", "1", 5_000)
        known = TlsEnd(client_context(client_certificate()), secure.handshakes)
        connection = await connect(context, "localhost", secure.port, tls=known)
        assert connection.is_open
        connection.close()
        await connection.closed

    scenario(loop_factory, body)


def test_a_connection_that_ends_amid_its_own_handshake_leaves_nothing(loop_factory: Any) -> None:
    async def body(secure: Secure) -> None:
        for _ in range(30):
            client = await secure.plain_client()
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            ours = client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
            with contextlib.suppress(ssl.SSLWantReadError):
                ours.do_handshake()
            client.writer.write(outgoing.read())
            await asyncio.sleep(0)
            await client.close()
        await secure.until(lambda: not secure.serving.server.connections)
        await secure.until(lambda: secure.handshakes.begun == secure.handshakes.waiting == 0)
        good = await secure.client()
        good.send(struct.pack(">i", 1))
        assert await good.receive() == struct.pack(">i", 1)
        await good.close()

    scenario(loop_factory, body)


def test_who_waits_to_be_let_in_has_no_handshake_yet(loop_factory: Any) -> None:
    """Too many connections in a second wait (KIP-612): the dear part of TLS would be done for them otherwise."""
    rates = ConnectionRates(ClientQuotaSettings(window_count=11, window_seconds=1))
    rates.limit_listener("TLS", 1)

    async def body(secure: Secure) -> None:
        admission = secure.serving.server._admission
        while not admission.waiting:
            await secure.plain_client()
            await asyncio.sleep(0)
        coming = asyncio.ensure_future(secure.client())
        await secure.until(lambda: admission.waiting == 2 or coming.done())
        assert not coming.done()
        assert secure.handshakes.begun == 0
        client = await coming
        assert secure.handshakes.begun == 1
        client.send(b"in")
        assert await client.receive() == b"in"

    scenario(loop_factory, body, rates=rates)
