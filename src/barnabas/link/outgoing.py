"""A connection to one broker that is made when it is needed, and made again when it was lost.

    outgoing = Outgoing(context, host.random, "broker-2", 9092, client_id="1")
    response = await outgoing.send(request, version, timeout_ms=30_000)

Who sends in a loop need not pace itself: after a failed attempt or a lost connection the next attempt waits for an
exponential back-off with jitter (KIP-144, KIP-601), and so does the request that asks for it.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from barnabas import __version__
from barnabas.kernel.facts import fact
from barnabas.kernel.spoken import spoken_ms
from barnabas.kernel.turns import in_turns
from barnabas.link.client import (
    ClientConnection,
    Decode,
    Encode,
    OnFailure,
    OnResponse,
    Pieces,
    connect,
    decoding_copy,
    decoding_small,
    decoding_view,
    encoding,
)
from barnabas.link.errors import (
    AuthenticationFailedError,
    ConnectionLostError,
    InFlightLimitError,
    RequestTimeoutError,
    UnsupportedVersionError,
)
from barnabas.link.limits import check_positive
from barnabas.wire import codec
from barnabas.wire.primitives import Buffer, ProtocolError

if TYPE_CHECKING:
    import random

    from barnabas.kernel.steps import RunsSteps
    from barnabas.kernel.timers import Timer
    from barnabas.link.connection import LinkContext
    from barnabas.link.login import LinkLogin
    from barnabas.link.tls_end import TlsEnd

_JITTER: Final = 0.2
_SHARE_OF_LIFETIME: Final = (0.85, 0.95)
_EXPONENT_MAX: Final = 30
_SOFTWARE_NAME: Final = "barnabas"
_NOTHING_KNOWN: Final[Mapping[int, tuple[int, int]]] = {}

Result = TypeVar("Result")


@fact
class OutgoingSettings:
    """Bounds and pauses of an outgoing connection: counts and milliseconds, under names close to Kafka's configs."""

    in_flight_max: int = 5
    """Requests that wait for their responses at a time (`max.in.flight.requests.per.connection`)."""
    waiting_max: int = 1000
    """Requests that wait for the connection, or for a place in flight."""
    reconnect_backoff_ms: float = 50
    """From a failure to the next attempt; doubled by each failure in a row (`reconnect.backoff.ms`)."""
    reconnect_backoff_ms_max: float = 1_000
    """The limit of that (`reconnect.backoff.max.ms`)."""
    connect_timeout_ms: float = 10_000
    """How long one attempt may take; doubled likewise (`socket.connection.setup.timeout.ms`)."""
    connect_timeout_ms_max: float = 30_000
    """The limit of that (`socket.connection.setup.timeout.max.ms`)."""

    def __post_init__(self) -> None:
        check_positive(self)


class _Request:
    """A request from the call of `start` on; without an `encode`, somebody who only waits for the connection."""

    __slots__ = ("decode", "encode", "expires_at", "on_failure", "on_response", "timer")

    def __init__(
        self,
        encode: Encode | None,
        decode: Decode[Any],
        expires_at: float,
        on_response: OnResponse,
        on_failure: OnFailure,
    ) -> None:
        self.encode = encode
        self.decode = decode
        self.expires_at = expires_at
        self.on_response = on_response
        self.on_failure = on_failure
        self.timer: Timer | None = None


class Outgoing:
    """Requests to one broker, in order, over one connection at a time.

    An attempt to connect that fails fails every request that waits for it. A request that gets no answer in time ends
    the connection, since the answers behind it cannot be told apart any more. Nothing is sent twice: who gets a
    `ConnectionLostError` decides whether the request may be repeated.
    """

    def __init__(
        self,
        context: LinkContext,
        random: random.Random,
        address: str,
        port: int,
        *,
        client_id: str | None = None,
        settings: OutgoingSettings | None = None,
        is_control: bool = False,
        learns_versions: bool = False,
        login: LinkLogin | None = None,
        tls: TlsEnd | None = None,
    ) -> None:
        """Does nothing yet. `random` is the host's, for jitter; with `is_control` answers are handled ahead of data;
        with `tls` each connection is secured first; with `learns_versions` it begins with ApiVersions; with `login` it
        goes on with that, and it is repeated before the session that the broker gives is over.
        """
        self.peer = f"{address}:{port}"
        """Address and port, as given."""
        self._context = context
        self._random = random
        self._address = address
        self._port = port
        self._client_id = client_id
        self._settings = settings or OutgoingSettings()
        self._is_control = is_control
        self._learns_versions = learns_versions
        self._login = login
        self._tls = tls
        self._login_timer: Timer | None = None
        self._logging_in: asyncio.Task[None] | None = None
        """The repetition of the login, during which nothing else is sent."""
        self._connection: ClientConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: deque[_Request] = deque()
        self._failures = 0
        self._next_attempt_at = 0.0
        self._closed = False

    @property
    def is_connected(self) -> bool:
        """A request that is sent now leaves at once, if there is a place in flight."""
        return self._connection is not None and self._connection.is_open

    @property
    def in_flight(self) -> int:
        """The number of requests that wait for their responses."""
        return 0 if self._connection is None else self._connection.in_flight

    @property
    def waiting(self) -> int:
        """How many requests wait for the connection, or for a place in flight."""
        return len(self._waiting)

    @property
    def backs_off_ms(self) -> float:
        """How long no attempt is made, because the last one failed or the connection was lost."""
        return max(0.0, self._next_attempt_at - self._context.loop.time()) * 1_000

    @property
    def api_versions(self) -> Mapping[int, tuple[int, int]]:
        """Lowest and highest version by API key, of the present connection; empty when they were not learnt."""
        return _NOTHING_KNOWN if self._connection is None else self._connection.api_versions

    def version_of(self, api_key: int, lowest: int, highest: int) -> int:
        """The highest version of an API within these bounds that the broker speaks, once `ready`.

        Raises UnsupportedVersionError, which names both ranges.
        """
        spoken = self.api_versions.get(api_key)
        if spoken is None or spoken[0] > highest or spoken[1] < lowest:
            says = "does not have it" if spoken is None else f"speaks {spoken[0]} to {spoken[1]}"
            raise UnsupportedVersionError(
                f"API {api_key} is wanted in versions {lowest} to {highest}, and the broker {self.peer} {says}"
            )
        return min(highest, spoken[1])

    async def ready(self, timeout_ms: float) -> None:
        """Returns once connected. Raises ConnectionLostError, RequestTimeoutError and ProtocolError as `send` does."""
        if not self.is_connected:
            await self._await(None, _no_decoding, timeout_ms, _nothing)

    async def send(self, message: Any, version: int, timeout_ms: float) -> Any:
        """Sends a request and returns the response, which is a copy: its records stay valid.

        `timeout_ms` bounds everything: back-off, connecting, waiting for a place in flight, and the answer. Raises
        ConnectionLostError (also when no connection can be made, or after `close`), RequestTimeoutError,
        ProtocolError when the broker's ApiVersions makes no sense, InFlightLimitError when `waiting_max` requests wait
        already, EncodeError for a message that cannot be written and ValueError for an unknown version. Cancelling
        takes the request back if it has not left; otherwise its response is dropped. A response of many bytes is
        decoded in turns of the loop, after the time-out has ended; one that cannot be read leaves the connection open.
        """
        decode = decoding_small(type(message).SCHEMA.api_key, version)
        response = await self._await(encoding(message, version, self._client_id), decode, timeout_ms, _same)
        return await in_turns(response.steps) if isinstance(response, Pieces) else response

    async def send_in_steps(self, message: Any, version: int, timeout_ms: float, steps: RunsSteps) -> Any:
        """Like `send`, for a message of many elements, which is encoded in steps; and not before there is a connection,
        since whoever cannot be reached is asked again and again.
        """
        api_key = type(message).SCHEMA.api_key
        expires_at = self._context.loop.time() + timeout_ms / 1_000
        await self.ready(timeout_ms)
        encoded = codec.request_step_encoder(api_key, version, self._client_id)
        frame = await steps.run(encoded(0, message), is_urgent=self._is_control)
        encode = functools.partial(codec.set_correlation_id, frame)
        left_ms = max(1.0, (expires_at - self._context.loop.time()) * 1_000)
        return await self._await(encode, decoding_copy(api_key, version), left_ms, _same)

    async def exchange(self, message: Any, version: int, timeout_ms: float, handle: Callable[[Any], Result]) -> Result:
        """Like `send`, without a copy: calls `handle(response)` at once when the response comes, and returns its
        result.

        Records of the response are views of the receive buffer, valid until `handle` returns. What `handle` raises is
        raised here, and does not harm the connection. It is not called when the caller was cancelled.
        """
        decode = decoding_view(type(message).SCHEMA.api_key, version)
        return await self._await(encoding(message, version, self._client_id), decode, timeout_ms, handle)

    def start(
        self, message: Any, version: int, timeout_ms: float, on_response: OnResponse, on_failure: OnFailure
    ) -> None:
        """Like `exchange`, by callbacks, of which exactly one is called, once, and maybe before this returns.

        Raises only ConnectionLostError after `close`, InFlightLimitError, and ValueError for an unknown version.
        """
        decode = decoding_view(type(message).SCHEMA.api_key, version)
        self._start(encoding(message, version, self._client_id), decode, timeout_ms, on_response, on_failure)

    def start_encoded(
        self, encode: Encode, decode: Decode[Any], timeout_ms: float, on_response: OnResponse, on_failure: OnFailure
    ) -> None:
        """Like `start`, for a request whose frame and response the caller encodes and decodes itself."""
        self._start(encode, decode, timeout_ms, on_response, on_failure)

    def post(self, message: Any, version: int) -> bool:
        """Sends a request that has no answer (Produce with acks=0); False when there is no connection now."""
        connection = self._connection
        if connection is None or not connection.is_open or self._logging_in is not None:
            return False
        connection.post(message, version)
        return True

    def close(self) -> None:
        """Ends the connection at once: what waits or is in flight fails with ConnectionLostError. A second call is no
        error.
        """
        if self._closed:
            return
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        self._end_login()
        if self._connection is not None:
            self._connection.abort()
        self._fail_waiting(ConnectionLostError(f"the connection to {self.peer} was closed"))

    async def wait_closed(self) -> None:
        """Returns once the connection is completely closed; call `close` before."""
        if self._connecting is not None:
            await asyncio.wait([self._connecting])
        if self._logging_in is not None:
            await asyncio.wait([self._logging_in])
        if self._connection is not None:
            await asyncio.wait([self._connection.closed])

    # Requests.

    async def _await(
        self, encode: Encode | None, decode: Decode[Any], timeout_ms: float, handle: Callable[[Any], Result]
    ) -> Result:
        future: asyncio.Future[Result] = self._context.loop.create_future()

        def deliver(response: Any) -> None:
            if future.done():
                return
            try:
                future.set_result(handle(response))
            except Exception as error:  # noqa: BLE001 - it is the caller's, who gets it
                future.set_exception(error)

        def fail(error: Exception) -> None:
            if not future.done():
                future.set_exception(error)

        request = self._start(encode, decode, timeout_ms, deliver, fail)
        try:
            return await future
        except asyncio.CancelledError:
            self._withdraw(request)
            raise

    def _start(
        self,
        encode: Encode | None,
        decode: Decode[Any],
        timeout_ms: float,
        on_response: OnResponse,
        on_failure: OnFailure,
    ) -> _Request:
        if self._closed:
            raise ConnectionLostError(f"the connection to {self.peer} was closed")
        expires_at = self._context.loop.time() + timeout_ms / 1_000
        request = _Request(encode, decode, expires_at, on_response, on_failure)
        connection = self._connection
        if not self._waiting and self._has_place(connection):
            self._transmit(connection, request, timeout_ms)
            return request
        if len(self._waiting) >= self._settings.waiting_max:
            raise InFlightLimitError(
                f"{self._settings.waiting_max} requests to {self.peer} wait to be sent; wait for one of them"
            )
        request.timer = self._context.timers.call_after(timeout_ms, self._expire, request, timeout_ms)
        self._waiting.append(request)
        if connection is None or not connection.is_open:
            self._need_connection()
        return request

    def _has_place(self, connection: ClientConnection | None) -> bool:
        return (
            connection is not None
            and connection.is_open
            and connection.in_flight < self._settings.in_flight_max
            and self._logging_in is None
        )

    def _transmit(self, connection: ClientConnection | None, request: _Request, timeout_ms: float) -> None:
        """Gives a request to a connection that has a place for it."""
        if connection is None or request.encode is None:
            request.on_response(None)
            return

        def deliver(response: Any) -> None:
            # The place is free already: those who waited for it go first, and before whatever the response leads to.
            if self._waiting:
                self._pump()
            request.on_response(response)

        try:
            connection.start(request.encode, request.decode, timeout_ms, deliver, request.on_failure)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the message is its sender's to hear
            self._report(request, error)

    def _pump(self) -> None:
        """Sends waiting requests, as far as there are places in flight."""
        connection = self._connection
        now = self._context.loop.time()
        while self._waiting and self._has_place(connection):
            request = self._waiting.popleft()
            if request.timer is not None and request.timer.cancel():
                self._transmit(connection, request, max(1.0, (request.expires_at - now) * 1_000))

    def _expire(self, request: _Request, timeout_ms: float) -> None:
        self._waiting.remove(request)
        reason = "it is busy with earlier requests" if self.is_connected else "there was no connection"
        self._report(
            request, RequestTimeoutError(f"nothing was sent to {self.peer} within {spoken_ms(timeout_ms)}: {reason}")
        )

    def _withdraw(self, request: _Request) -> None:
        if request.timer is not None and request.timer.cancel():
            self._waiting.remove(request)

    def _fail_waiting(self, error: Exception) -> None:
        failed, self._waiting = self._waiting, deque()
        for request in failed:
            if request.timer is not None and request.timer.cancel():
                self._report(request, error)

    def _report(self, request: _Request, error: Exception) -> None:
        try:
            request.on_failure(error)
        except Exception:  # the other requests must hear of it too
            self._context.logger.exception("Reporting the failure of a request to %s failed", self.peer)

    # The connection.

    def _need_connection(self) -> None:
        """Requests wait without an open connection: makes sure that one is being opened."""
        if self._connecting is None and not self._closed:
            self._connecting = self._context.loop.create_task(self._connect(), name=f"connecting to {self.peer}")

    async def _connect(self) -> None:
        try:
            lost = self._connection
            if lost is not None:
                await asyncio.wait([lost.closed])
            while (pause_ms := self.backs_off_ms) > 0:
                await self._context.timers.sleep(pause_ms)
            if self._waiting:
                await self._attempt()
        finally:
            self._connecting = None
        if self._waiting and not self.is_connected:
            self._need_connection()  # asked for while the failure of this attempt was told

    async def _attempt(self) -> None:
        settings = self._settings
        timeout_ms = self._grown(settings.connect_timeout_ms, settings.connect_timeout_ms_max, self._failures)
        connection: ClientConnection | None = None
        try:
            connection = await connect(
                self._context,
                self._address,
                self._port,
                client_id=self._client_id,
                in_flight_max=settings.in_flight_max + (self._login is not None),  # one more for a repeated login
                timeout_ms=timeout_ms,
                is_control=self._is_control,
                tls=self._tls,
            )
            if self._learns_versions:
                await connection.learn_api_versions(_SOFTWARE_NAME, __version__, timeout_ms)
            if self._login is not None:
                self._log_in_again_within(await self._login.log_in(connection, timeout_ms))
        except BaseException as error:
            if connection is not None:
                connection.abort()
            if not isinstance(error, Exception):
                raise
            self._failed(error)
            return
        if not connection.is_open:
            self._failed(ConnectionLostError(f"the connection to {self.peer} ended at once"))
            return
        self._failures = 0
        self._connection = connection
        connection.closed.add_done_callback(lambda _: self._lost(connection))
        self._pump()

    def _failed(self, error: Exception) -> None:
        """An attempt has failed: fails the waiting requests."""
        if not isinstance(error, OSError | ProtocolError):
            self._context.logger.error("Connecting to %s failed", self.peer, exc_info=error)
        elif not self._failures:
            self._context.logger.warning("No connection to %s: %s; trying again when it is needed", self.peer, error)
        self._back_off()
        if not isinstance(error, ProtocolError | AuthenticationFailedError):
            error = ConnectionLostError(f"no connection to {self.peer}: {error}")
        self._fail_waiting(error)

    def _lost(self, connection: ClientConnection) -> None:
        """The connection that was open is over."""
        if self._connection is connection:
            self._connection = None
            self._end_login()
            self._back_off()
            if self._waiting:
                self._need_connection()

    def _log_in_again_within(self, lifetime_ms: int) -> None:
        """Logs in again shortly before so much time is over, as Kafka's clients do; 0 is never."""
        if self._login_timer is not None:
            self._login_timer.cancel()
            self._login_timer = None
        if lifetime_ms > 0:
            share = self._random.uniform(*_SHARE_OF_LIFETIME)
            self._login_timer = self._context.timers.call_after(lifetime_ms * share, self._log_in_again)

    def _log_in_again(self) -> None:
        connection, login = self._connection, self._login
        if connection is not None and connection.is_open and login is not None and self._logging_in is None:
            task = self._context.loop.create_task(self._repeat_login(connection, login), name=f"login at {self.peer}")
            self._logging_in = task

    async def _repeat_login(self, connection: ClientConnection, login: LinkLogin) -> None:
        try:
            self._log_in_again_within(await login.log_in(connection, self._settings.connect_timeout_ms_max))
        except Exception as error:  # noqa: BLE001 - whatever it is, the next connection begins with a login
            connection.fail(f"the repeated login has failed: {error}")
        finally:
            self._logging_in = None
        self._pump()

    def _end_login(self) -> None:
        if self._login_timer is not None:
            self._login_timer.cancel()
            self._login_timer = None
        if self._logging_in is not None:
            self._logging_in.cancel()

    def _back_off(self) -> None:
        settings = self._settings
        pause_ms = self._grown(settings.reconnect_backoff_ms, settings.reconnect_backoff_ms_max, self._failures)
        self._failures += 1
        self._next_attempt_at = self._context.loop.time() + pause_ms / 1_000

    def _grown(self, first_ms: float, ms_max: float, failures: int) -> float:
        grown_ms = min(first_ms * 2.0 ** min(failures, _EXPONENT_MAX), ms_max)
        return grown_ms * self._random.uniform(1 - _JITTER, 1 + _JITTER)


def _no_decoding(_buffer: Buffer, _start: int, _end: int) -> None:
    return None


def _nothing(_response: Any) -> None:
    return None


def _same(response: Any) -> Any:
    return response
