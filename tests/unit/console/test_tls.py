"""Pages by TLS: who comes by it is answered, who does not holds nothing up, and cookies stay with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.cli import console_certificate
from barnabas.cli.connection import CommandError
from barnabas.cli.console_certificate import OwnCertificate, read_context
from barnabas.console import http
from barnabas.console.http import HttpServer, Request, Response
from barnabas.console.tls import SecuredPages
from barnabas.kernel.real_host import real_host
from barnabas.link.places import COME_MAX, Step
from tests.support.certificates import Certified, broker_certificate, other_authority, shared_authority

GET = b"GET /topics HTTP/1.1\r\nHost: localhost\r\n\r\n"


def _loops() -> list[Callable[[], asyncio.AbstractEventLoop]]:
    loops: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.SelectorEventLoop]
    if sys.implementation.name == "cpython" and sys.platform != "win32":
        import uvloop

        loops.append(uvloop.new_event_loop)
    return loops


@pytest.fixture
def certified() -> Certified:
    return broker_certificate()


def run(certified: Certified, body: Any, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def hello(request: Request) -> Response:
        return Response(200, b"x" * 300_000 + "/".join(request.segments).encode())

    async def main() -> None:
        tls, logger = read_context(str(certified.certificate), str(certified.key)), logging.getLogger("tests.http")
        async with real_host("test", asyncio.get_running_loop()) as host:
            pages = SecuredPages(host, lambda: tls, logger)
            server = HttpServer(host.loop, hello, logger, secured=pages.secured)
            port = await server.start("127.0.0.1", 0)
            try:
                await body(server, port)
                async with asyncio.timeout(60):
                    while server.places.held or pages.handshakes.begun or pages.handshakes.waiting:
                        await asyncio.sleep(0.01)
            finally:
                await server.stop()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(main(), 60))


async def ask(port: int, context: ssl.SSLContext | None, sent: bytes = GET) -> bytes:
    name = None if context is None else "localhost"
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
    try:
        writer.write(sent)
        return await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(shared_authority().certificate))


@pytest.mark.parametrize("loop", _loops())
def test_a_page_comes_whole_by_tls(certified: Certified, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def body(_server: HttpServer, port: int) -> None:
        answers = await asyncio.gather(*(ask(port, trusting()) for _ in range(20)))
        assert {answer.partition(b"\r\n")[0] for answer in answers} == {b"HTTP/1.1 200 OK"}
        assert all(answer.endswith(b"x" * 300_000 + b"topics") for answer in answers)

    run(certified, body, loop)


@pytest.mark.parametrize("loop", _loops())
def test_who_does_not_speak_tls_gets_no_page(
    certified: Certified, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def body(_server: HttpServer, port: int) -> None:
        told = await ask(port, None)
        assert told.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert told.endswith(
            b"\r\nContent-Length: 41\r\nConnection: close\r\n\r\nthis port speaks TLS: ask by https://...\n"
        )
        with contextlib.suppress(ConnectionError):
            await ask(port, None, b"\x16\x03\x01\x40\x00" + bytes(range(256)) * 20)
        with pytest.raises(ssl.SSLError):
            await ask(port, ssl.create_default_context(cafile=str(other_authority().certificate)))
        assert b"200 OK" in await ask(port, trusting())

    run(certified, body, loop)


@pytest.mark.parametrize("loop", _loops())
def test_many_who_do_not_end_their_handshake_keep_nobody_out(
    certified: Certified, loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS_MAX", 2.0)

    async def body(server: HttpServer, port: int) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(COME_MAX + 50)]
        hello, begun = a_hello(), b"\x16\x03\x01\x02\x00\x01"
        for number, (_, writer) in enumerate(silent):
            if number % 3:
                writer.write(hello if number % 3 == 1 else begun)
        assert b"200 OK" in await ask(port, trusting())
        assert server.places.count(Step.COME) <= COME_MAX
        for reader, writer in silent:
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()

    run(certified, body, loop)


@pytest.mark.parametrize("loop", _loops())
def test_many_who_shake_hands_and_ask_nothing_keep_nobody_of_their_address_out(
    certified: Certified, loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS_MAX", 20.0)
    monkeypatch.setitem(http.PLACES, Step.BEGUN, 4)

    async def body(server: HttpServer, port: int) -> None:
        trusted = trusting()
        secured = [
            await asyncio.open_connection("127.0.0.1", port, ssl=trusted, server_hostname="localhost")
            for _ in range(12)
        ]
        assert b"200 OK" in await ask(port, trusted)
        while server.places.count(Step.COME):  # the client's end of a handshake is over before the server's
            await asyncio.sleep(0)
        assert server.places.count(Step.BEGUN) == 3
        for _, writer in secured:
            writer.transport.abort()

    run(certified, body, loop)


def a_hello() -> bytes:
    """What a client says first."""
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        trusting().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("loop", _loops())
def test_a_handshake_and_a_request_that_drip_byte_by_byte_are_answered(
    certified: Certified, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def body(_server: HttpServer, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = trusting().wrap_bio(incoming, outgoing, server_hostname="localhost")

        async def drip() -> None:
            for byte in outgoing.read():
                writer.write(bytes([byte]))
                await asyncio.sleep(0)

        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                await drip()
                incoming.write(await reader.read(65_536))
        client.write(GET)
        await drip()
        answer = b""
        while not answer.endswith(b"topics"):
            incoming.write(await reader.read(65_536))
            with contextlib.suppress(ssl.SSLWantReadError):
                while piece := client.read(65_536):
                    answer += piece
        assert answer.startswith(b"HTTP/1.1 200 OK")
        writer.close()

    run(certified, body, loop)


@pytest.mark.parametrize("sent", [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n"])
def test_other_protocols_within_tls_are_no_way_in(certified: Certified, sent: bytes) -> None:
    async def body(_server: HttpServer, port: int) -> None:
        answer = await ask(port, trusting(), sent)
        # A WebSocket is not offered: the request is a plain one.
        assert answer.partition(b" ")[2][:3] == (b"200" if sent.startswith(b"GET") else b"400")

    run(certified, body, asyncio.SelectorEventLoop)


def test_nobody_may_begin_a_connection_anew_or_take_one_up_again(certified: Certified) -> None:
    tls = read_context(str(certified.certificate), str(certified.key))
    assert tls.options & ssl.OP_NO_RENEGOTIATION
    assert (tls.num_tickets, tls.minimum_version) == (0, ssl.TLSVersion.TLSv1_2)


def test_files_that_are_no_certificate_and_key_are_named(certified: Certified, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    other.write_text("no certificate")
    foreign = shared_authority().sign("/CN=another")
    encrypted = tmp_path / "encrypted.pem"
    encrypted.write_text(shared_authority().encrypted_key(certified, "secret"))
    for key, expected in (
        (str(other), "belong together"),
        (str(foreign.key), "key values mismatch"),
        (str(encrypted), "is encrypted"),
        (str(tmp_path / "missing"), "No such file"),
    ):
        with pytest.raises(CommandError, match=expected):
            read_context(str(certified.certificate), key)


def test_a_certificate_is_exchanged_while_the_console_runs(
    certified: Certified, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_certificate, "_LOOKED_EVERY_SECONDS", 0.0)
    certificate, key, told = tmp_path / "certificate.pem", tmp_path / "key.pem", list[str]()
    certificate.write_bytes(certified.certificate.read_bytes())
    key.write_bytes(certified.key.read_bytes())
    own = OwnCertificate(str(certificate), str(key), told.append)
    first = own.context()
    assert own.context() is first
    later = shared_authority().sign("/CN=later")
    certificate.write_bytes(later.certificate.read_bytes())
    assert own.context() is own.context() is first
    key.unlink()
    assert own.context() is first
    key.write_bytes(later.key.read_bytes())
    second = own.context()
    assert second is not first
    assert own.context() is second
    assert [each.partition(":")[0] for each in told] == [
        "the certificate stays as it was",
        "the certificate stays as it was",
        f"the certificate is that of {certificate} as it is now",
    ]
    monkeypatch.setattr(console_certificate, "_LOOKED_EVERY_SECONDS", 1_000.0)
    key.unlink()
    assert own.context() is second
    assert len(told) == 3
