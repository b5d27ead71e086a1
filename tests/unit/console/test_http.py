"""Requests that are understood, and those that are not; bounds of the server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Coroutine
from typing import Any
from urllib.parse import parse_qsl

import pytest

from barnabas.console import http
from barnabas.console.http import BadRequestError, HttpServer, Request, Response, parse
from barnabas.link.places import COME_MAX, Step


def test_a_request() -> None:
    request = parse(b"GET /topics/a%2Fb%3C/0?q=x+y&q=%C3%A9&empty= HTTP/1.1\r\nHost: localhost:1\r\nX-A:  b \r\n")
    assert request == Request(
        "GET", ("topics", "a/b<", "0"), {"q": "é", "empty": ""}, {"host": "localhost:1", "x-a": "b"}
    )


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"", 400),
        (b"GET /", 400),
        (b"GET / HTTP/2", 400),
        (b"GET  / HTTP/1.1", 400),
        (b"OPTIONS / HTTP/1.1", 405),
        (b"DELETE /topics/flights HTTP/1.1", 405),
        (b"GET http://localhost/ HTTP/1.1", 400),
        (b"GET * HTTP/1.1", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example", 400),
        (b"GET / HTTP/1.1\r\nHost : localhost", 400),
        (b"GET / HTTP/1.1\r\n folded: yes", 400),
        (b"GET / HTTP/1.1\r\nnothing", 400),
        (b"GET /%ff HTTP/1.1", 400),
        (b"GET /?" + b"a=1&" * 40 + b" HTTP/1.1", 400),
    ],
)
def test_what_is_not_understood(head: bytes, status: int) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse(head)
    assert caught.value.status == status


def _with_server(body: Any, answer: Any = None) -> None:
    async def hello(request: Request) -> Response:
        return Response(200, "/".join(request.segments).encode())

    async def run() -> None:
        server = HttpServer(asyncio.get_running_loop(), answer or hello, logging.getLogger("tests.http"))
        port = await server.start("127.0.0.1", 0)
        try:
            await body(server, port)
        finally:
            await server.stop()

    coroutine: Coroutine[Any, Any, None] = run()
    asyncio.run(coroutine)


async def _exchange(port: int, *pieces: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        await _close(writer)


async def _is_cut_off(port: int, sent: bytes) -> bool:
    try:
        return await _exchange(port, sent) == b""
    except ConnectionError:
        return True


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def test_one_request_in_pieces_and_the_headers_of_the_answer() -> None:
    async def body(_server: HttpServer, port: int) -> None:
        answer = await _exchange(port, b"GET /a", b"/b HTTP/1.1\r\nHost: x", b"\r\n\r\nGET /second HTTP/1.1\r\n\r\n")
        head, _, text = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert text == b"a/b"
        assert b"Content-Security-Policy: default-src 'none'" in head
        assert b"frame-ancestors 'none'" in head
        assert b"X-Content-Type-Options: nosniff" in head
        assert b"unsafe" not in head

    _with_server(body)


def test_head_has_the_length_and_no_body() -> None:
    async def body(_server: HttpServer, port: int) -> None:
        answer = await _exchange(port, b"HEAD /abc HTTP/1.1\r\n\r\n")
        assert b"Content-Length: 3\r\n" in answer
        assert answer.endswith(b"\r\n\r\n")

    _with_server(body)


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nA: " + b"b" * 20_000, b"x" * 17_000])
def test_a_request_that_is_too_long(sent: bytes) -> None:
    async def body(_server: HttpServer, port: int) -> None:
        assert (await _exchange(port, sent)).startswith(b"HTTP/1.1 431 ")

    _with_server(body)


def test_a_page_that_fails_is_logged_and_answered(caplog: pytest.LogCaptureFixture) -> None:
    async def fails(_request: Request) -> Response:
        raise RuntimeError("a secret")

    async def body(_server: HttpServer, port: int) -> None:
        answer = await _exchange(port, b"GET / HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 500 ")
        assert b"secret" not in answer

    _with_server(body, fails)
    assert "a secret" in caplog.text


def test_a_request_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS_MAX", 0.05)

    async def body(server: HttpServer, port: int) -> None:
        assert await _is_cut_off(port, b"GET / HTTP/1.1\r\n")
        while server.places.held:
            await asyncio.sleep(0)

    _with_server(body)


def test_who_asks_beyond_the_bound_is_refused_where_answers_are_made_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(http.PLACES, Step.ASKED, 1)

    async def body(server: HttpServer, port: int) -> None:
        _, first = await asyncio.open_connection("127.0.0.1", port)
        first.write(b"GET /slow HTTP/1.1\r\n\r\n")
        while not server.places.count(Step.ASKED):
            await asyncio.sleep(0)
        assert await _is_cut_off(port, b"GET / HTTP/1.1\r\n\r\n")
        await _close(first)
        while server.places.held:
            await asyncio.sleep(0)
        assert b"200 OK" in await _exchange(port, b"GET / HTTP/1.1\r\n\r\n")

    async def answer(request: Request) -> Response:
        if request.segments == ("slow",):
            await asyncio.sleep(60)
        return Response(200, b"")

    _with_server(body, answer)


def test_who_asks_finds_room_among_those_who_only_hold_connections() -> None:
    async def body(server: HttpServer, port: int) -> None:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(COME_MAX)]
        while server.places.count(Step.COME) < COME_MAX:
            await asyncio.sleep(0)
        assert b"200 OK" in await _exchange(port, b"GET / HTTP/1.1\r\n\r\n")
        while len(server.places.held) >= COME_MAX:
            await asyncio.sleep(0)
        assert len(server.places.held) == COME_MAX - 1
        with contextlib.suppress(ConnectionError):
            assert await idle[0][0].read() == b""  # who has been awaited longest had to go
        idle[-1][1].write(b"GET / HTTP/1.1\r\n\r\n")
        assert b"200 OK" in await idle[-1][0].read()
        for _, writer in idle:
            await _close(writer)

    _with_server(body)


def test_who_does_not_take_answers_keeps_no_other_of_his_address_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(http.PLACES, Step.ANSWERED, 4)

    async def body(server: HttpServer, port: int) -> None:
        unread = []
        for number in range(8):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
            writer.write(b"GET /large HTTP/1.1\r\n\r\n")
            unread.append((reader, writer))
            while server.places.count(Step.ANSWERED) < min(number + 1, 4) or server.places.count(Step.ASKED):
                await asyncio.sleep(0)
        assert (await _exchange(port, b"GET /small HTTP/1.1\r\n\r\n")).endswith(b"small")
        for _, writer in unread:
            writer.transport.abort()

    async def answer(request: Request) -> Response:
        return Response(200, b"small" if request.segments == ("small",) else bytes(32 << 20))

    _with_server(body, answer)


FORM = b"Content-Type: application/x-www-form-urlencoded\r\n"


def test_a_form_in_pieces_and_nothing_behind_it() -> None:
    async def fields(request: Request) -> Response:
        return Response(200, repr(dict(request.form)).encode())

    async def body(server: HttpServer, port: int) -> None:
        server.refuses_forms = False
        head = b"POST /a HTTP/1.1\r\n" + FORM + b"Content-Length: 18\r\n\r\n"
        answer = await _exchange(port, head, b"a=%C3%A9", b"&b=1+2&b=3", b"&c=4GET / HTTP/1.1\r\n\r\n")
        assert answer.endswith("{'a': 'é', 'b': '3'}".encode())
        assert (await _exchange(port, head.replace(b"18", b"0"))).endswith(b"{}")

    _with_server(body, fields)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (FORM, 411),
        (FORM + b"Content-Length: -1\r\n", 411),
        (FORM + b"Content-Length: 1\r\nContent-Length: 2\r\n", 400),
        (FORM + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n", 411),
        (FORM + b"Content-Length: 262145\r\n", 413),
        (b"Content-Type: text/plain\r\nContent-Length: 2\r\n", 415),
        (b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 2\r\n", 415),
        (b"Content-Length: 2\r\n", 415),
        (FORM + b"Content-Length: 5\r\n\r\na=%ff", 400),
        (FORM + b"Content-Length: 4\r\n\r\na=\xc3\xa9", 400),
        (FORM + b"Content-Length: 160\r\n\r\n" + b"a=1&" * 40, 400),
    ],
)
def test_forms_that_are_not_taken(head: bytes, status: int) -> None:
    async def body(server: HttpServer, port: int) -> None:
        server.refuses_forms = False
        answer = await _exchange(port, b"POST / HTTP/1.1\r\n" + head + (b"" if b"\r\n\r\n" in head else b"\r\n"))
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())

    _with_server(body)


def _form_of(body: bytes) -> tuple[dict[str, str], int]:
    """What a form says, and in how many steps that is found out."""
    steps = http.with_form(parse(b"POST / HTTP/1.1"), body)
    taken = 0
    while True:
        taken += 1
        try:
            next(steps)
        except StopIteration as stop:
            return dict(stop.value.form), taken


def test_a_form_is_read_as_python_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is cut into steps, among it what looks like an escape and is none."""
    monkeypatch.setattr(http, "_FORM_STEP_BYTES", 5)
    draw = random.Random(1)
    pieces = [b"%C3%A9", b"%41", b"%", b"%%", b"%4", b"+", b"a", b"=", b"&", b"%zz", b"%E2%82%AC", b"%0a", b";"]
    for _ in range(3_000):
        body = b"".join(draw.choices(pieces, k=draw.randrange(16)))
        try:
            expected = dict(parse_qsl(body.decode(), keep_blank_values=True, errors="strict"))
        except ValueError:
            with pytest.raises(BadRequestError):
                _form_of(body)
        else:
            assert _form_of(body)[0] == expected, body


def test_a_large_form_is_read_in_steps() -> None:
    size = http.FORM_BYTES_MAX // 3
    form, taken = _form_of(b"a=" + b"%41" * size)
    assert form == {"a": "A" * size}
    assert taken > http.FORM_BYTES_MAX // http._FORM_STEP_BYTES


def test_where_there_is_no_form_none_is_read() -> None:
    async def body(_server: HttpServer, port: int) -> None:
        answer = await _exchange(port, b"POST / HTTP/1.1\r\n" + FORM + b"Content-Length: 200000\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 405 ")

    _with_server(body)
