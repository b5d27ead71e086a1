"""One request by HTTP is bounded in time and bytes, whatever the other end does."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from barnabas.kernel.real_http import HttpError, HttpRequest, request_http
from tests.support.identity_provider import identity_provider

Serve = Callable[[socket.socket], None]


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
        assert time.monotonic() - began < 2


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
