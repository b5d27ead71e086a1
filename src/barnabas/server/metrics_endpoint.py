"""`GET /metrics` for Prometheus, in HTTP/1.0's simplest form, on the broker's own loop.

One answer per connection, which is then closed. A request is bounded in bytes and time, and connections in number; a
scrape reads plain integers and takes milliseconds. Whatever else is asked for gets its status code.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, cast

from barnabas.kernel.host import Host
from barnabas.kernel.metrics import MetricsRegistry

REQUEST_BYTES_MAX: Final = 16 * 1024
CONNECTIONS_MAX: Final = 32
ANSWER_SECONDS_MAX: Final = 10.0
PATH: Final = b"/metrics"
_END_OF_HEAD: Final = (b"\r\n\r\n", b"\n\n")
_REASONS: Final = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 500: "Internal Error"}


class MetricsEndpoint:
    """Serves one registry."""

    def __init__(self, host: Host, metrics: MetricsRegistry, logger: logging.Logger) -> None:
        self._host = host
        self._metrics = metrics
        self._logger = logger
        self._server: asyncio.AbstractServer | None = None
        self.connections: dict[_Connection, None] = {}

    async def start(self, address: str, port: int) -> int:
        """Listens, and returns the port. Raises OSError."""
        self._server = await self._host.loop.create_server(lambda: _Connection(self, self._host.loop), address, port)
        bound = int(self._server.sockets[0].getsockname()[1])
        self._logger.info("Metrics at http://%s:%d%s", address, bound, PATH.decode())
        return bound

    async def stop(self) -> None:
        """Stops listening, and cuts off what is under way."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.abort()

    def answer(self, request: bytes) -> tuple[int, str, bytes]:
        """Status, content type and body for a request, of which only the first line counts."""
        words = request.split(b"\n", 1)[0].split()
        if len(words) != 3 or not words[2].startswith(b"HTTP/"):
            return 400, "text/plain", b"HTTP is spoken here\n"
        if words[0] not in {b"GET", b"HEAD"}:
            return 405, "text/plain", b"GET it\n"
        if words[1].split(b"?", 1)[0] != PATH:
            return 404, "text/plain", b"Metrics are at /metrics\n"
        # Loaded with the first scrape: a broker that nobody watches does not pay for it.
        from barnabas.kernel.metrics_prometheus import CONTENT_TYPE, scrape

        try:
            body = scrape(self._metrics)
        except Exception:
            self._logger.exception("A scrape failed")
            return 500, "text/plain", b"The scrape failed; the broker's log has the cause\n"
        return 200, CONTENT_TYPE, b"" if words[0] == b"HEAD" else body


class _Connection(asyncio.Protocol):
    """Serves one request."""

    def __init__(self, endpoint: MetricsEndpoint, loop: asyncio.AbstractEventLoop) -> None:
        self._endpoint = endpoint
        self._loop = loop
        self._request = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if len(self._endpoint.connections) >= CONNECTIONS_MAX:
            self._transport.abort()
            return
        self._endpoint.connections[self] = None
        self._timer = self._loop.call_later(ANSWER_SECONDS_MAX, self.abort)

    def connection_lost(self, _error: Exception | None) -> None:
        self._endpoint.connections.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._answered or self._transport is None:
            return
        self._request += data
        if any(end in self._request for end in _END_OF_HEAD):
            self._answer(*self._endpoint.answer(bytes(self._request)))
        elif len(self._request) > REQUEST_BYTES_MAX:
            self._answer(400, "text/plain", b"The request is too long\n")

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self._answered = True
        if self._transport is None:
            return
        head = (
            f"HTTP/1.0 {status} {_REASONS[status]}\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode("ascii") + body)
        self._transport.close()
