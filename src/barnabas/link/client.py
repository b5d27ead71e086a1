"""Our end of a connection to a broker: requests out, responses matched in order.

Kafka answers in the order of the requests, so what waits is a queue; the correlation id is checked, not looked up.
"""

from __future__ import annotations

import asyncio
import functools
import operator
import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from barnabas.kernel.facts import fact
from barnabas.kernel.lazy_timer import ROUNDING_SECONDS, LazyTimer
from barnabas.kernel.spoken import spoken_ms
from barnabas.link.connection import Connection, LinkContext
from barnabas.link.errors import (
    AuthenticationFailedError,
    ConnectionLostError,
    InFlightLimitError,
    RequestTimeoutError,
)
from barnabas.wire import codec
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import ApiVersionsRequest, ApiVersionsResponse
from barnabas.wire.primitives import Buffer, ProtocolError

if TYPE_CHECKING:
    from barnabas.kernel.steps import Steps
    from barnabas.link.tls_end import TlsEnd

_expiry = operator.attrgetter("expires_at")
_correlation_id_at = struct.Struct(">i").unpack_from
_error_code_at = struct.Struct(">h").unpack_from
_CORRELATION_ID_MAX: Final = 2**31 - 1
_API_VERSIONS_KEY: Final = 18
_API_VERSIONS_VERSION: Final = 3
LARGE_RESPONSE_BYTES: Final = 128 * 1024
"""What is larger is decoded in turns of the loop: one of 100,000 partitions would hold it for a third of a second."""

Result = TypeVar("Result")
Encode = Callable[[int], list[Buffer]]
"""Returns the request's frame for a correlation id."""
Decode = Callable[[Buffer, int, int], Result]
"""Returns the caller's result for the response's bytes (buffer, start at its header, end)."""
OnResponse = Callable[[Any], object]
OnFailure = Callable[[Exception], object]


class _InFlight:
    """A request that waits for its response."""

    __slots__ = ("correlation_id", "decode", "expires_at", "on_failure", "on_response", "timeout_ms")

    def __init__(
        self,
        correlation_id: int,
        decode: Decode[Any],
        on_response: OnResponse,
        on_failure: OnFailure,
        timeout_ms: float,
        expires_at: float,
    ) -> None:
        self.correlation_id = correlation_id
        self.decode = decode
        self.on_response = on_response
        self.on_failure = on_failure
        self.timeout_ms = timeout_ms
        self.expires_at = expires_at


@fact
class Pieces:
    """A response of many bytes that is not decoded yet."""

    steps: Steps[Any]


class ClientConnection(Connection):
    """A connection to a broker. Made by `connect`."""

    __slots__ = (
        "_client_id",
        "_expires_at",
        "_in_flight",
        "_in_flight_max",
        "_next_correlation_id",
        "_timer",
        "api_versions",
        "closed",
    )

    def __init__(self, context: LinkContext, client_id: str | None, in_flight_max: int) -> None:
        super().__init__(context)
        self._client_id = client_id
        self._in_flight: deque[_InFlight] = deque()
        self._in_flight_max = in_flight_max
        self._next_correlation_id = 0
        # One for all that are in flight; it comes when the first of them expires, or before.
        self._timer = LazyTimer(context.timers, self._expire)
        self._expires_at = 0.0
        self.api_versions: dict[int, tuple[int, int]] = {}
        """The broker's lowest and highest version by API key; empty if it was not asked."""
        self.closed: asyncio.Future[None] = context.loop.create_future()
        """Done when the connection is over."""

    @property
    def in_flight(self) -> int:
        """The number of requests that wait for their responses."""
        return len(self._in_flight)

    def request(self, message: Any, version: int, timeout_ms: float) -> asyncio.Future[Any]:
        """Sends a request and returns a future of the response, which is a copy: its records stay valid.

        The future raises ConnectionLostError, RequestTimeoutError or ProtocolError. Raises InFlightLimitError,
        EncodeError for a message that cannot be written, ValueError for an unknown version. Cancelling the future does
        not take the request back.
        """
        encode = encoding(message, version, self._client_id)
        return self._request(encode, decoding_copy(type(message).SCHEMA.api_key, version), timeout_ms)

    def start(
        self, encode: Encode, decode: Decode[Any], timeout_ms: float, on_response: OnResponse, on_failure: OnFailure
    ) -> None:
        """Sends a request; later calls `on_response(decode(buffer, start, end))`, or `on_failure(error)`, once.

        Views that `decode` makes of the buffer are valid until `on_response` returns. On time-out the connection is
        closed, since the responses behind cannot be told from the late one. Raises InFlightLimitError, and
        ConnectionLostError if the connection is not open.
        """
        if not self.is_open:
            raise ConnectionLostError(f"the connection with {self.peer} is closed")
        if len(self._in_flight) >= self._in_flight_max:
            raise InFlightLimitError(
                f"{self._in_flight_max} requests to {self.peer} wait for their responses; wait for one of them"
            )
        correlation_id = self._next_correlation_id
        buffers = encode(correlation_id)
        self._next_correlation_id = 0 if correlation_id == _CORRELATION_ID_MAX else correlation_id + 1
        expires_at = self._context.loop.time() + timeout_ms / 1_000
        if not self._in_flight or expires_at < self._expires_at:
            self._expires_at = expires_at
            self._timer.set(expires_at)
        self._in_flight.append(_InFlight(correlation_id, decode, on_response, on_failure, timeout_ms, expires_at))
        self.active_step = self._idle.step
        self.send(buffers)

    def post(self, message: Any, version: int) -> None:
        """Sends a request that has no answer (Produce with acks=0). Nothing happens unless the connection is open."""
        correlation_id = self._next_correlation_id
        self._next_correlation_id = 0 if correlation_id == _CORRELATION_ID_MAX else correlation_id + 1
        self.active_step = self._idle.step
        self.send(encoding(message, version, self._client_id)(correlation_id))

    async def learn_api_versions(self, software_name: str, software_version: str, timeout_ms: float) -> None:
        """Asks the broker which versions it speaks, and fills `api_versions`.

        A broker that does not know our version of the question says so in version 0; it is asked again in that one.
        Raises as `request` does, and ProtocolError if the broker refuses.
        """
        question = ApiVersionsRequest(client_software_name=software_name, client_software_version=software_version)
        version = _API_VERSIONS_VERSION
        while True:
            encode = encoding(question, version, self._client_id)
            answer = await self._request(encode, functools.partial(_decode_api_versions, version), timeout_ms)
            if answer.error_code == ErrorCode.UNSUPPORTED_VERSION and version:
                version = 0
                continue
            if answer.error_code:
                raise ProtocolError(f"{self.peer} answers ApiVersions with error {answer.error_code}")
            self.api_versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
            return

    def _request(self, encode: Encode, decode: Decode[Any], timeout_ms: float) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._context.loop.create_future()

        def deliver(response: Any) -> None:
            if not future.done():
                future.set_result(response)

        def fail(error: Exception) -> None:
            if not future.done():
                future.set_exception(error)

        self.start(encode, decode, timeout_ms, deliver, fail)
        return future

    # The connection's calls.

    def _take(self, buffer: bytearray | memoryview, start: int, end: int) -> bool:
        if end - start < 4:
            raise ProtocolError(f"a response of {end - start} bytes, too short for a correlation id")
        correlation_id = _correlation_id_at(buffer, start)[0]
        if not self._in_flight or self._in_flight[0].correlation_id != correlation_id:
            raise ProtocolError(f"a response to request {correlation_id}, which is not the one that is due")
        # Out of the queue only once it is decoded: a response that cannot be read fails its request, with the others.
        waiting = self._in_flight[0]
        response = waiting.decode(buffer, start, end)
        self._in_flight.popleft()
        if not self._in_flight:
            self._timer.clear()
        waiting.on_response(response)
        return not self._stopped

    def _lost(self, _error: Exception | None) -> None:
        self._timer.close()
        reason = f": {_error}" if _error else ""
        if not isinstance(_error, AuthenticationFailedError):
            _error = ConnectionLostError(f"the connection with {self.peer} ended{reason}")
        self._fail_all(_error)
        if not self.closed.done():
            self.closed.set_result(None)

    @property
    def _busy(self) -> bool:
        return bool(self._in_flight)

    def _expire(self) -> None:
        """Expires a request that was not answered in time."""
        first = min(self._in_flight, key=_expiry, default=None)
        if first is None:
            return
        if first.expires_at <= self._context.loop.time() + ROUNDING_SECONDS:
            self._time_out(first, first.timeout_ms)
        else:
            self._expires_at = first.expires_at
            self._timer.set(first.expires_at)

    def _time_out(self, waiting: _InFlight, timeout_ms: float) -> None:
        self._in_flight.remove(waiting)
        self.fail(f"no response within {spoken_ms(timeout_ms)}")
        self._report(waiting, RequestTimeoutError(f"{self.peer} did not answer within {spoken_ms(timeout_ms)}"))

    def _fail_all(self, error: Exception) -> None:
        while self._in_flight:
            waiting = self._in_flight.popleft()
            self._report(waiting, error)

    def _report(self, waiting: _InFlight, error: Exception) -> None:
        try:
            waiting.on_failure(error)
        except Exception:  # the other requests must hear of it too
            self._context.logger.exception("Reporting the failure of a request to %s failed", self.peer)


async def connect(
    context: LinkContext,
    address: str,
    port: int,
    *,
    client_id: str | None = None,
    in_flight_max: int = 5,
    timeout_ms: float = 30_000,
    is_control: bool = False,
    tls: TlsEnd | None = None,
) -> ClientConnection:
    """Connects to a broker, and sends nothing. Raises OSError, and TimeoutError after `timeout_ms`.

    With `tls` the connection is secured first; AuthenticationFailedError says that one end does not accept the other.
    """
    connection = ClientConnection(context, client_id, in_flight_max)
    making = asyncio.ensure_future(_make(context, connection, address, port, tls))
    timer = context.timers.call_after(timeout_ms, making.cancel)
    try:
        await making
    except asyncio.CancelledError:
        # It may have been made in the very turn in which nobody wanted it any more.
        connection.abort()
        if not timer.active:
            raise TimeoutError(f"no connection with {address}:{port} within {spoken_ms(timeout_ms)}") from None
        raise
    finally:
        timer.cancel()
    connection.is_control = is_control
    return connection


async def _make(
    context: LinkContext, connection: ClientConnection, address: str, port: int, tls: TlsEnd | None
) -> None:
    if tls is None:
        await context.loop.create_connection(lambda: connection, address, port)
        return
    # With OpenSSL behind it, which a client without TLS need not load.
    from barnabas.link.tls import TlsConnection

    secured = TlsConnection(context, connection, tls, address)
    await context.loop.create_connection(lambda: secured, address, port)
    await asyncio.shield(secured.secured)


def encoding(message: Any, version: int, client_id: str | None) -> Encode:
    """What writes a request of that version once its correlation id is known. ValueError for an unknown version."""
    return functools.partial(_encode, codec.request_encoder(type(message).SCHEMA.api_key, version, client_id), message)


def decoding_copy(api_key: int, version: int) -> Decode[Any]:
    """What reads a response out of a copy of its bytes: records in it stay valid."""
    return functools.partial(_decode_copy, codec.response_decoder(api_key, version))


def decoding_small(api_key: int, version: int) -> Decode[Any]:
    """Like `decoding_copy`, except that of a response of many bytes it makes the steps that decode it: a `Pieces`."""
    return functools.partial(_decode_small, api_key, version)


def decoding_view(api_key: int, version: int) -> Decode[Any]:
    """What reads a response in place: records in it are valid until `on_response` returns."""
    return functools.partial(_decode_view, codec.response_decoder(api_key, version))


def _encode(encode: Callable[[int, Any], list[Buffer]], message: Any, correlation_id: int) -> list[Buffer]:
    return encode(correlation_id, message)


def _decode_copy(decode: Callable[[Buffer, int, int], tuple[Any, int]], buffer: Buffer, start: int, end: int) -> Any:
    copy = bytes(buffer[start:end])
    return decode(copy, 0, len(copy))[0]


def _decode_small(api_key: int, version: int, buffer: Buffer, start: int, end: int) -> Any:
    if end - start <= LARGE_RESPONSE_BYTES:
        return _decode_copy(codec.response_decoder(api_key, version), buffer, start, end)
    return Pieces(codec.response_in_steps(api_key, version, bytes(buffer[start:end])))


def _decode_view(decode: Callable[[Buffer, int, int], tuple[Any, int]], buffer: Buffer, start: int, end: int) -> Any:
    return decode(buffer, start, end)[0]


def _decode_api_versions(version: int, buffer: Buffer, start: int, end: int) -> ApiVersionsResponse:
    """An answer of that version, or of version 0 if that begins with UNSUPPORTED_VERSION."""
    if end - start >= 6 and _error_code_at(buffer, start + 4)[0] == ErrorCode.UNSUPPORTED_VERSION:
        version = 0
    answer: ApiVersionsResponse = _decode_copy(codec.response_decoder(_API_VERSIONS_KEY, version), buffer, start, end)
    return answer
