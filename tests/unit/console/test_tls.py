"""Pages by TLS: who comes by it is answered, who does not holds nothing up, and cookies stay with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.cli.connection import CommandError
from barnabas.cli.console import _own_tls
from barnabas.console import http
from barnabas.console.http import HttpServer, Request, Response
from barnabas.console.tls import ServerTls
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
        tls = _own_tls(str(certified.certificate), str(certified.key))
        assert tls is not None
        server = HttpServer(
            asyncio.get_running_loop(), hello, logging.getLogger("tests.http"), make_tls=lambda: ServerTls(tls)
        )
        port = await server.start("127.0.0.1", 0)
        try:
            await body(server, port)
            async with asyncio.timeout(60):
                while server.connections:
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
        with contextlib.suppress(ConnectionError):
            assert b"HTTP/1.1" not in await ask(port, None)
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
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * http.CONNECTIONS_MAX)]
        for _, writer in silent[::2]:
            writer.write(b"\x16\x03\x01\x02\x00\x01")
        assert b"200 OK" in await ask(port, trusting())
        assert len(server.connections) <= http.CONNECTIONS_MAX
        for reader, writer in silent:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()

    run(certified, body, loop)


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
            _own_tls(str(certified.certificate), key)
