"""`GET /metrics` for Prometheus, `/livez` and `/readyz` for health checks, in HTTP/1.0's simplest form, on the
broker's own loop.

One answer per connection, which is then closed. A request is bounded in bytes and time, and connections in number
(`link.places`). A scrape reads plain integers, in steps where there are very many; whoever comes meanwhile is given the
same one. Whoever is answered at `/livez` knows that the loop turns; `/readyz` says whether clients can be served, with
503 and what is missing if not. Whatever else is asked for gets its status code. Where there are logins
(`metrics_access`) the metrics are for those who have one; health is for all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from barnabas.kernel.host import Host, HostClosedError, OffloadFullError, OffloadKind
from barnabas.kernel.metrics import MetricsRegistry
from barnabas.kernel.metrics_prometheus import CONTENT_TYPE, scrape_in_steps
from barnabas.kernel.steps import StepRunner
from barnabas.link.places import COME_MAX, Places, Step

if TYPE_CHECKING:
    from barnabas.server.metrics_access import MetricsAccess

REQUEST_BYTES_MAX: Final = 16 * 1024
PLACES: Final = {Step.COME: COME_MAX, Step.BEGUN: 64, Step.ASKED: 128, Step.ANSWERED: 32}
"""Those that have asked wait for the same scrape, or for a login; each that has an answer may hold one of its own."""
ANSWER_SECONDS_MAX: Final = 10.0
PATH: Final = b"/metrics"
LIVE_PATH: Final = b"/livez"
READY_PATH: Final = b"/readyz"
_END_OF_HEAD: Final = (b"\r\n\r\n", b"\n\n")
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Error",
    503: "Service Unavailable",
}


_CHALLENGE: Final = 'WWW-Authenticate: Basic realm="metrics", charset="UTF-8"\r\n'


class MetricsEndpoint:
    """Serves one registry."""

    def __init__(
        self,
        host: Host,
        metrics: MetricsRegistry,
        steps: StepRunner,
        logger: logging.Logger,
        process: Callable[[], bytes] | None = None,
        *,
        not_ready: Callable[[], str] = lambda: "",
    ) -> None:
        """`process` gives more samples, of the whole process, and is called in a thread. `not_ready` says what is
        missing until clients can be served, or nothing.
        """
        self._host = host
        self._metrics = metrics
        self._steps = steps
        self._logger = logger
        self._process = process
        self._not_ready = not_ready
        self._server: asyncio.AbstractServer | None = None
        self._scrape: asyncio.Task[bytes] | None = None
        """The one that is being made."""
        self._access: MetricsAccess | None = None
        self.places = Places(PLACES)

    async def start(self, address: str, port: int, access: MetricsAccess | None = None) -> int:
        """Listens, and returns the port; `access` says who may read the metrics, and how that is secured, None that
        all may. Raises OSError.
        """
        self._access = access

        def connection() -> asyncio.BaseProtocol:
            made = _Connection(self, self._host.loop)
            return made if access is None else access.secured(made)

        self._server = await self._host.loop.create_server(connection, address, port)
        bound = int(self._server.sockets[0].getsockname()[1])
        scheme = "http" if access is None or not access.uses_tls else "https"
        self._logger.info("Metrics at %s://%s:%d%s", scheme, address, bound, PATH.decode())
        return bound

    async def refusal(self, request: bytes, peer: str) -> tuple[int, bytes] | None:
        """Status and text for who may not read the metrics, after a while; None for who may."""
        return None if self._access is None else await self._access.refusal(request, peer)

    async def stop(self) -> None:
        """Stops listening, and cuts off what is under way."""
        if self._server is not None:
            self._server.close()
        for connection in self.places.held:
            connection.abort()
        if self._access is not None:
            self._access.stop()
        if self._scrape is not None:
            self._scrape.cancel()

    def short_answer(self, request: bytes) -> tuple[int, bytes] | None:
        """Status and text for a request that does not ask for the metrics, of which only the first line counts."""
        words = request.split(b"\n", 1)[0].split()
        if len(words) != 3 or not words[2].startswith(b"HTTP/"):
            return 400, b"HTTP is spoken here\n"
        if words[0] not in {b"GET", b"HEAD"}:
            return 405, b"GET it\n"
        path = words[1].split(b"?", 1)[0]
        if path == PATH:
            return None
        if path == LIVE_PATH:
            return 200, b"alive\n"
        if path == READY_PATH:
            missing = self._not_ready()
            return (503, f"not ready: {missing}\n".encode()) if missing else (200, b"ready\n")
        return 404, b"Metrics are at /metrics, health at /livez and /readyz\n"

    async def scrape(self) -> bytes:
        """The text of a scrape that is being made, or of a new one. Raises what a reading raised."""
        if self._scrape is None:
            self._scrape = self._host.loop.create_task(self._read_all())
            self._scrape.add_done_callback(self._scraped)
        # Whoever has gone does not end it for others.
        return await asyncio.shield(self._scrape)

    # Inside.

    async def _read_all(self) -> bytes:
        return await self._process_text() + await self._steps.run(scrape_in_steps(self._metrics))

    async def _process_text(self) -> bytes:
        if self._process is None:
            return b""
        try:
            return await self._host.offload(OffloadKind.CPU, self._process)
        except (OffloadFullError, HostClosedError):
            return b""

    def _scraped(self, scrape: asyncio.Task[bytes]) -> None:
        self._scrape = None
        if not scrape.cancelled() and (error := scrape.exception()) is not None:
            self._logger.error("A scrape failed", exc_info=error)


class _Connection(asyncio.Protocol):
    """Serves one request."""

    def __init__(self, endpoint: MetricsEndpoint, loop: asyncio.AbstractEventLoop) -> None:
        self._endpoint = endpoint
        self._loop = loop
        self._request = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._answering: asyncio.Task[None] | None = None
        self._answered = False
        self.peer = "?"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]) if isinstance(name, tuple) else "?"
        self._endpoint.places.enter(self)
        self._timer = self._loop.call_later(ANSWER_SECONDS_MAX, self.abort)

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self._endpoint.places.leave(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._answering is not None:
            self._answering.cancel()

    def data_received(self, data: bytes) -> None:
        if self._answered or self._transport is None:
            return
        if self._endpoint.places.step(self) is Step.COME:
            self.begin()
        self._request += data
        if any(end in self._request for end in _END_OF_HEAD):
            self._answered = True
            request = bytes(self._request)
            is_head = request.startswith(b"HEAD")
            answer = self._endpoint.short_answer(request)
            if answer is not None:
                self._answer(answer[0], b"" if is_head else answer[1])
            elif not self._endpoint.places.go_on(self, Step.ASKED):
                self.abort()
            else:
                self._answering = self._loop.create_task(self._answer_scrape(request, is_head=is_head))
        elif len(self._request) > REQUEST_BYTES_MAX:
            self._answered = True
            self._answer(400, b"The request is too long\n")

    def begin(self) -> None:
        """Its handshake is over, or the first bytes of its request have come."""
        if not self._endpoint.places.go_on(self, Step.BEGUN):
            self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _answer_scrape(self, request: bytes, *, is_head: bool) -> None:
        refusal = await self._endpoint.refusal(request, self.peer)
        if refusal is not None:
            self._answer(refusal[0], b"" if is_head else refusal[1])
            return
        if self._timer is not None:  # a login may have waited
            self._timer.cancel()
            self._timer = self._loop.call_later(ANSWER_SECONDS_MAX, self.abort)
        try:
            body = await self._endpoint.scrape()
        except Exception:  # noqa: BLE001 - the endpoint has logged it
            self._answer(500, b"The scrape failed; the broker's log has the cause\n")
        else:
            self._answer(200, b"" if is_head else body, CONTENT_TYPE)

    def _answer(self, status: int, body: bytes, content_type: str = "text/plain") -> None:
        if self._transport is None:
            return
        if not self._endpoint.places.go_on(self, Step.ANSWERED):
            self.abort()
            return
        head = (
            f"HTTP/1.0 {status} {_REASONS[status]}\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n{_CHALLENGE if status == 401 else ''}\r\n"
        )
        self._transport.write(head.encode("ascii"))
        self._transport.write(body)
        self._transport.close()
