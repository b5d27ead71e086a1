"""HTTP as far as the console needs it: one GET, HEAD, or POST of a form per connection, which is then closed.

A request is bounded in bytes and time, connections in number (`link.places`). What is not understood gets its status
code.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import parse_qsl, unquote, unquote_to_bytes

from barnabas.kernel.steps import StepRunner, Steps
from barnabas.link.places import COME_MAX, Places, Step

if TYPE_CHECKING:
    from barnabas.link.clear import BeginningPlain

REQUEST_BYTES_MAX: Final = 16 * 1024
FORM_BYTES_MAX: Final = 256 * 1024
PLACES: Final = {Step.COME: COME_MAX, Step.BEGUN: 64, Step.ASKED: 64, Step.ANSWERED: 64}
REQUEST_SECONDS_MAX: Final = 10.0
"""How long a request may take to come."""
ANSWER_SECONDS_MAX: Final = 60.0
"""How long an answer may take to be made and to be taken."""
_QUERY_FIELDS_MAX: Final = 32
_FORM_STEP_BYTES: Final = 8 * 1024
"""How much of a form is read in a step: a millisecond or two, where all of it is escapes."""
_ONCE: Final = frozenset({"host", "content-length", "content-type", "origin"})
_END_OF_HEAD: Final = b"\r\n\r\n"
_REASONS: Final = {
    200: "OK",
    303: "See Other",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    411: "Length Required",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_FORM: Final = "application/x-www-form-urlencoded"
HTML: Final = "text/html; charset=utf-8"
PLAIN: Final = "text/plain; charset=utf-8"
# Nothing comes from elsewhere, nothing inline runs, nobody frames it, nobody else reads it.
_HEADERS: Final = (
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    # With no-referrer, browsers would not say in Origin where a form of ours comes from.
    "Referrer-Policy: same-origin\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Cache-Control: no-store\r\n"
    "Connection: close\r\n"
)


READS_ONLY: Final = "this console only reads; --allow-changes lets it change the cluster"


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
    form: Mapping[str, str] = field(default_factory=dict)
    """Of a POST; of a field the last value counts."""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer."""

    status: int
    body: bytes
    content_type: str = HTML
    headers: tuple[tuple[str, str], ...] = ()
    """Further ones."""


def parse(head: bytes) -> Request:
    """A request from its head, all lines of it. Raises BadRequestError."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequestError(400, "HTTP/1.1 is spoken here")
    method, target, _ = words
    if method not in {"GET", "HEAD", "POST"}:
        raise BadRequestError(405, "GET a page, or POST a form of one")
    if not target.startswith("/"):
        raise BadRequestError(400, "the target of the request must be a path")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        if not line:
            continue
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or not name or name != name.strip() or (name in _ONCE and name in headers):
            raise BadRequestError(400, "a header is malformed")
        headers[name] = value.strip()
    path, _, query = target.partition("#")[0].partition("?")
    try:
        fields = parse_qsl(query, keep_blank_values=True, max_num_fields=_QUERY_FIELDS_MAX)
        segments = tuple(unquote(part, errors="strict") for part in path.split("/") if part)
    except ValueError:
        raise BadRequestError(400, "the address is malformed") from None
    return Request(method, segments, dict(fields), headers)


def form_bytes(request: Request) -> int:
    """How long the form of a POST is; 0 for other methods. Raises BadRequestError for what is no form, or too long."""
    if request.method != "POST":
        return 0
    length = request.headers.get("content-length", "")
    if "transfer-encoding" in request.headers or not (length.isascii() and length.isdigit() and len(length) < 10):
        raise BadRequestError(411, "a form needs its Content-Length")
    if int(length) > FORM_BYTES_MAX:
        raise BadRequestError(413, f"a form may have {FORM_BYTES_MAX // 1024} KiB")
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise BadRequestError(415, f"a form is {_FORM}")
    return int(length)


def with_form(request: Request, body: bytes) -> Steps[Request]:
    """The request with what its body says. Raises BadRequestError.

    In steps: a form of escapes alone would hold the loop for some 40 ms.
    """
    if body.count(b"&") >= _QUERY_FIELDS_MAX:
        raise BadRequestError(400, "the form is malformed")
    form: dict[str, str] = {}
    for field_ in body.split(b"&"):
        if not field_:
            continue
        name, _, value = field_.partition(b"=")
        try:
            form[(yield from _unquoted(name))] = yield from _unquoted(value)
        except ValueError:
            raise BadRequestError(400, "the form is malformed") from None
        yield
    return replace(request, form=form)


def _unquoted(quoted: bytes) -> Steps[str]:
    """What a part of a form says, as `urllib.parse.parse_qsl` does. Raises ValueError."""
    if not quoted.isascii():
        raise ValueError("bytes that are not ASCII")
    found, begins_at = bytearray(), 0
    while begins_at < len(quoted):
        ends_at = begins_at + _FORM_STEP_BYTES
        # An escape has three bytes, and is not cut.
        escape = quoted.rfind(b"%", ends_at - 2, ends_at) if ends_at < len(quoted) else -1
        if escape >= 0:
            ends_at = escape
        found += unquote_to_bytes(quoted[begins_at:ends_at].replace(b"+", b" "))
        begins_at = ends_at
        if begins_at < len(quoted):
            yield
    return found.decode()


class HttpServer:
    """Listens, and has `answer` make the answers."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        answer: Callable[[Request], Awaitable[Response]],
        logger: logging.Logger,
        *,
        refuses_forms: bool = True,
        secured: Callable[[BeginningPlain], asyncio.BaseProtocol] | None = None,
    ) -> None:
        """With `secured`, which makes the protocol of each connection, nothing is answered that does not come by TLS.
        It calls `begin` of what it is given when a handshake is over.
        """
        self.loop = loop
        self.answer = answer
        self.refuses_forms = refuses_forms
        """Whether there is none to be taken: then none is read."""
        self.secured = secured
        self.logger = logger
        self.places = Places(PLACES)
        self.steps = StepRunner(loop)
        """Shared by all connections: however many forms come, one step is done in a turn."""
        self._server: asyncio.AbstractServer | None = None

    async def start(self, address: str, port: int) -> int:
        """Listens, and returns the port. Raises OSError."""
        self._server = await self.loop.create_server(self._made, address, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stops listening, and cuts off what is under way."""
        if self._server is not None:
            self._server.close()
        for connection in self.places.held:
            connection.abort()

    def _made(self) -> asyncio.BaseProtocol:
        connection = _Connection(self)
        return connection if self.secured is None else self.secured(connection)


class _Connection(asyncio.Protocol):
    """Serves one request."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._received = bytearray()
        self._request: Request | None = None
        """What was asked, before its form has come."""
        self._form_begins_at = 0
        self._form_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._answering: asyncio.Task[None] | None = None
        self._is_over = False
        self.peer = "?"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]) if isinstance(name, tuple) else "?"
        self._server.places.enter(self)
        self._timer = self._server.loop.call_later(REQUEST_SECONDS_MAX, self.abort)

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self._server.places.leave(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._answering is not None:
            self._answering.cancel()

    def data_received(self, data: bytes) -> None:
        if self._is_over or self._transport is None:
            return
        if self._server.places.step(self) is Step.COME:
            self.begin()
        self._received += data
        try:
            request = self._parsed()
        except BadRequestError as error:
            self._is_over = True
            self._send(_plain(error.status, str(error)))
            return
        if request is None:
            return
        self._is_over = True
        if not self._server.places.go_on(self, Step.ASKED):
            self.abort()
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._server.loop.call_later(ANSWER_SECONDS_MAX, self.abort)
        form = bytes(self._received[self._form_begins_at :][: self._form_bytes]) if request.method == "POST" else None
        self._answering = self._server.loop.create_task(self._answer(request, form))

    def begin(self) -> None:
        """Its handshake is over, or the first bytes of its request have come."""
        if not self._server.places.go_on(self, Step.BEGUN):
            self.abort()

    def abort(self) -> None:
        """Cuts it off."""
        if self._transport is not None:
            self._transport.abort()

    def _parsed(self) -> Request | None:
        """The request, without its form; None before all of it has come. Raises BadRequestError."""
        if self._request is None:
            end = self._received.find(_END_OF_HEAD)
            if end < 0 and len(self._received) <= REQUEST_BYTES_MAX:
                return None
            if not 0 <= end <= REQUEST_BYTES_MAX:
                raise BadRequestError(431, "the request is too long")
            request = parse(bytes(self._received[:end]))
            if request.method == "POST" and self._server.refuses_forms:
                raise BadRequestError(405, READS_ONLY)
            self._form_bytes = form_bytes(request)
            self._form_begins_at = end + len(_END_OF_HEAD)
            self._request = request
        ends_at = self._form_begins_at + self._form_bytes
        return None if len(self._received) < ends_at else self._request

    async def _answer(self, request: Request, form: bytes | None) -> None:
        try:
            if form is not None:
                request = await self._server.steps.run(with_form(request, form))
            response = await self._server.answer(request)
        except BadRequestError as error:
            response = _plain(error.status, str(error))
        except Exception:
            self._server.logger.exception("The page %r failed", "/".join(request.segments))
            response = _plain(500, "this page failed; what the console printed has the cause")
        self._send(response, has_body=request.method != "HEAD")

    def _send(self, response: Response, *, has_body: bool = True) -> None:
        if self._transport is None:
            return
        if not self._server.places.go_on(self, Step.ANSWERED):
            self.abort()
            return
        head = (
            f"HTTP/1.1 {response.status} {_REASONS[response.status]}\r\nContent-Type: {response.content_type}\r\n"
            f"Content-Length: {len(response.body)}\r\n{_HEADERS}"
        )
        head += "".join(f"{name}: {value}\r\n" for name, value in response.headers) + "\r\n"
        self._transport.write(head.encode("latin-1") + (response.body if has_body else b""))
        self._transport.close()


def _plain(status: int, message: str) -> Response:
    return Response(status, f"{message}\n".encode(), PLAIN)
