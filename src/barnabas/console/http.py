"""HTTP as far as the console needs it: one GET or HEAD per connection, which is then closed; no bodies.

A request is bounded in bytes and time, connections in number. What is not understood gets its status code.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, cast
from urllib.parse import parse_qsl, unquote

REQUEST_BYTES_MAX: Final = 16 * 1024
CONNECTIONS_MAX: Final = 64
REQUEST_SECONDS_MAX: Final = 10.0
"""How long a request may take to come."""
ANSWER_SECONDS_MAX: Final = 60.0
"""How long an answer may take to be made and to be taken."""
_QUERY_FIELDS_MAX: Final = 32
_END_OF_HEAD: Final = b"\r\n\r\n"
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
HTML: Final = "text/html; charset=utf-8"
PLAIN: Final = "text/plain; charset=utf-8"
# Nothing comes from elsewhere, nothing inline runs, nobody frames it, nobody else reads it.
_HEADERS: Final = (
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Cache-Control: no-store\r\n"
    "Connection: close\r\n"
)


class BadRequestError(Exception):
    """A request that is not understood; the message is for who sent it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """A request. `segments` are the parts of the path, decoded: () for `/`; of a query field the last value counts."""

    method: str
    segments: tuple[str, ...]
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """By name in lower case."""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer."""

    status: int
    body: bytes
    content_type: str = HTML


def parse(head: bytes) -> Request:
    """A request from its head, all lines of it. Raises BadRequestError."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequestError(400, "HTTP/1.1 is spoken here")
    method, target, _ = words
    if method not in {"GET", "HEAD"}:
        raise BadRequestError(405, "the console only reads: GET it")
    if not target.startswith("/"):
        raise BadRequestError(400, "the target of the request must be a path")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        if not line:
            continue
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or not name or name != name.strip() or (name == "host" and name in headers):
            raise BadRequestError(400, "a header is malformed")
        headers[name] = value.strip()
    path, _, query = target.partition("#")[0].partition("?")
    try:
        fields = parse_qsl(query, keep_blank_values=True, max_num_fields=_QUERY_FIELDS_MAX)
        segments = tuple(unquote(part, errors="strict") for part in path.split("/") if part)
    except ValueError:
        raise BadRequestError(400, "the address is malformed") from None
    return Request(method, segments, dict(fields), headers)


class HttpServer:
    """Listens, and has `answer` make the answers."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        answer: Callable[[Request], Awaitable[Response]],
        logger: logging.Logger,
    ) -> None:
        self.loop = loop
        self.answer = answer
        self.logger = logger
        self.connections: dict[_Connection, None] = {}
        self._server: asyncio.AbstractServer | None = None

    async def start(self, address: str, port: int) -> int:
        """Listens, and returns the port. Raises OSError."""
        self._server = await self.loop.create_server(lambda: _Connection(self), address, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stops listening, and cuts off what is under way."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.abort()


class _Connection(asyncio.Protocol):
    """Serves one request."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._head = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._answering: asyncio.Task[None] | None = None
        self._is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if len(self._server.connections) >= CONNECTIONS_MAX:
            self._transport.abort()
            return
        self._server.connections[self] = None
        self._timer = self._server.loop.call_later(REQUEST_SECONDS_MAX, self.abort)

    def connection_lost(self, _error: Exception | None) -> None:
        self._server.connections.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        if self._answering is not None:
            self._answering.cancel()

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        self._head += data
        end = self._head.find(_END_OF_HEAD)
        if end < 0 and len(self._head) <= REQUEST_BYTES_MAX:
            return
        self._is_over = True
        if not 0 <= end <= REQUEST_BYTES_MAX:
            self._send(_plain(431, "the request is too long"))
            return
        try:
            request = parse(bytes(self._head[:end]))
        except BadRequestError as error:
            self._send(_plain(error.status, str(error)))
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._server.loop.call_later(ANSWER_SECONDS_MAX, self.abort)
        self._answering = self._server.loop.create_task(self._answer(request))

    def abort(self) -> None:
        """Cuts it off."""
        if self._transport is not None:
            self._transport.abort()

    async def _answer(self, request: Request) -> None:
        try:
            response = await self._server.answer(request)
        except Exception:
            self._server.logger.exception("The page %s failed", "/".join(request.segments))
            response = _plain(500, "this page failed; what the console printed has the cause")
        self._send(response, has_body=request.method != "HEAD")

    def _send(self, response: Response, *, has_body: bool = True) -> None:
        if self._transport is None:
            return
        head = (
            f"HTTP/1.1 {response.status} {_REASONS[response.status]}\r\nContent-Type: {response.content_type}\r\n"
            f"Content-Length: {len(response.body)}\r\n{_HEADERS}\r\n"
        )
        self._transport.write(head.encode("latin-1") + (response.body if has_body else b""))
        self._transport.close()


def _plain(status: int, message: str) -> Response:
    return Response(status, f"{message}\n".encode(), PLAIN)
