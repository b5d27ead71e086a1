"""One request by HTTP is bounded in time and bytes, whatever the other end does."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from barnabas.kernel.real_http import HttpError, HttpRequest, request_http
from tests.support.certificates import broker_certificate, shared_authority
from tests.support.identity_provider import identity_provider

Serve = Callable[[socket.socket], None]
NOT_FOR_EVER_SECONDS = 60.0
"""The time-outs of these tests are 0.3 s; on a busy machine more than that may pass before anybody looks."""


@contextlib.contextmanager
def serving(serve: Serve) -> Iterator[str]:
    """The address of a server that does this with its one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def work() -> None:
            with contextlib.suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65536)
                    serve(connection)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/keys?x=1"
        listening.close()
        thread.join(5)


def silent(connection: socket.socket) -> None:
    connection.recv(1)


def drips_headers(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        connection.sendall(b"y")
        time.sleep(0.02)


def drips_body(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(b"y")
        time.sleep(0.02)


def endless(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(b"y" * 65536)


def cut(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")


def garbage(connection: socket.socket) -> None:
    connection.sendall(b"\x15\x03\x01\x00\x02\x02\x16\r\n\r\n")


@pytest.mark.parametrize("serve", [silent, drips_headers, drips_body, endless, cut, garbage])
def test_what_is_no_answer_is_an_error_soon(serve: Serve) -> None:
    with serving(serve) as address:
        began = time.monotonic()
        with pytest.raises(HttpError):
            request_http(HttpRequest(address, total_seconds=0.3, bytes_max=100_000))
        assert time.monotonic() - began < NOT_FOR_EVER_SECONDS


def drips_handshake(connection: socket.socket) -> None:
    connection.sendall(b"\x16\x03\x03\x40\x00")
    while True:
        connection.sendall(b"y")
        time.sleep(0.02)


@pytest.mark.parametrize("serve", [silent, drips_handshake, garbage])
def test_a_handshake_of_tls_that_does_not_end_is_an_error_soon(serve: Serve) -> None:
    with serving(serve) as address:
        began = time.monotonic()
        with pytest.raises(HttpError, match=r"no answer from 127\.0\.0\.1"):
            request_http(HttpRequest(address.replace("http:", "https:"), total_seconds=0.3))
        assert time.monotonic() - began < NOT_FOR_EVER_SECONDS


def test_an_answer_by_tls_comes_whole_from_whom_the_authority_knows() -> None:
    certified, authority = broker_certificate(), str(shared_authority().certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certified.certificate, certified.key)

    def secured(listening: socket.socket) -> None:
        for _ in range(2):
            with contextlib.suppress(OSError), context.wrap_socket(listening.accept()[0], server_side=True) as secure:
                secure.recv(65536)
                secure.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=secured, args=(listening,), daemon=True)
        thread.start()
        address = f"https://localhost:{listening.getsockname()[1]}/"
        known = ssl.create_default_context(cafile=authority)
        assert request_http(HttpRequest(address, tls=known)).body == b"{}"
        with pytest.raises(HttpError, match="certificate verify failed"):
            request_http(HttpRequest(address))
        thread.join(5)


def test_an_address_of_ipv6_needs_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def found(host: str, port: int, *_: object) -> list[object]:
        asked.append((host, port))
        return []

    monkeypatch.setattr(socket, "getaddrinfo", found)
    for scheme in ("http", "https"):
        with pytest.raises(HttpError, match="no answer from ::1"):
            request_http(HttpRequest(f"{scheme}://[::1]/keys"))
    assert asked == [("::1", 80), ("::1", 443)]


def test_addresses_that_are_silent_are_tried_until_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = listening.getsockname()
        for _ in range(4):  # whoever comes then has to wait
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        found = iter([(socket.AF_INET, socket.SOCK_STREAM, 0, "", address)] * 50)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
        with pytest.raises(HttpError, match="timed out"):
            request_http(HttpRequest("http://many/", connect_seconds=0.1, total_seconds=0.3))
        assert len(list(found)) >= 40, "there is time for three, and one is looked at when there is none left"


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/", "https://127.0.0.1:1", "http://no.such.host.invalid/"])
def test_nobody_there_is_an_error(address: str) -> None:
    with pytest.raises(HttpError, match="no answer from"):
        request_http(HttpRequest(address))


def test_a_redirect_is_an_answer_and_not_followed() -> None:
    def redirects(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")

    with serving(redirects) as address:
        assert request_http(HttpRequest(address)).status == 302


def test_an_answer_comes_whole_and_shows_no_secret() -> None:
    with identity_provider() as provider:
        answer = request_http(HttpRequest(provider.keys_address))
        assert (answer.status, provider.asked) == (200, ["/keys"])
        assert answer.body.startswith(b'{"keys"')
        assert "keys" not in repr(answer)
        request = HttpRequest(provider.token_address, b"secret", {"Authorization": "secret"})
        assert "secret" not in repr(request)
