"""Clients log in before anything else, where their listener asks for it (SASL).

A connection's requests come here until its client is known; then they go to the dispatcher, and here again when the
session is over or the client logs in anew (KIP-368). A login that fails is answered and ended after
`connection.failed.authentication.delay.ms`, so that passwords cannot be tried fast, and counted. What may come when is
`security.login`'s to say; messages are Kafka's, except that another request amid a login is answered only if it is
ApiVersions or SaslHandshake: no others are decoded for who has not shown who they are.
"""

from __future__ import annotations

import asyncio
import logging
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from barnabas.kernel.metrics import MetricName, MetricsRegistry
from barnabas.kernel.timers import Timer, Timers
from barnabas.network.request_costs import BYTES_PER_SECOND
from barnabas.security.login import ListenerLogins, Login, LoginRefusedError, UnsupportedMechanismError
from barnabas.wire import codec, headers
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    ApiVersionsResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from barnabas.wire.primitives import Buffer, ProtocolError

if TYPE_CHECKING:
    from barnabas.api.context import RequestContext
    from barnabas.network.connection import Handle, ServerConnection, Slot
    from barnabas.wire.classes import Message

HANDSHAKE_VERSIONS: Final = (0, 1)
AUTHENTICATE_VERSIONS: Final = (0, 2)
_HEADERS_SINCE: Final = 1
"""From this version of SaslHandshake on, the mechanism's messages are SaslAuthenticate requests."""
_REQUEST_BYTES_MAX: Final = 4096
"""Of ApiVersions and SaslHandshake, which have a few names."""
_BETWEEN_LOGINS_SECONDS: Final = 1.0
_FRAME_SIZE: Final = struct.Struct(">i")
_error_code_at = struct.Struct(">h").unpack_from
_ERROR_CODE_POSITION: Final = headers.SIZE_BYTES + 4
_COUNTS: Final = {
    "successful": "successful-authentication-total",
    "failed": "failed-authentication-total",
    "successful_again": "successful-reauthentication-total",
    "failed_again": "failed-reauthentication-total",
    "expired": "expired-connections-killed-count",
}
Answer = Callable[[], object]
"""Gives the response that a failed login has."""


@dataclass(slots=True)
class LoginCounts:
    """What has become of the logins of one listener."""

    successful: int = 0
    failed: int = 0
    successful_again: int = 0
    failed_again: int = 0
    expired: int = 0


class Authentication:
    """The logins of a broker's clients."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        timers: Timers,
        listeners: Mapping[str, ListenerLogins],
        *,
        time_ms: Callable[[], int],
        elapsed: Callable[[], float],
        failure_delay_ms: int,
        logger: logging.Logger,
        metrics: MetricsRegistry,
    ) -> None:
        """`listeners` are those that ask for a login, by name; `time_ms` is the time since 1970, `elapsed` a
        fine clock in seconds.
        """
        self.loop = loop
        self.timers = timers
        self.time_ms = time_ms
        self.elapsed = elapsed
        self.failure_delay_ms = failure_delay_ms
        self.logger = logger
        self._listeners = listeners
        self.counts = {name: LoginCounts() for name in listeners}
        for listener, counts in self.counts.items():
            for attribute, name in _COUNTS.items():
                metric = MetricName("kafka.server", "socket-server-metrics", name, (("listener", listener),))
                metrics.gauge(metric, partial(getattr, counts, attribute))

    def opened(self, connection: ServerConnection, handle: Handle) -> None:
        """A client has connected; `handle` is to handle its requests once it is known."""
        logins = self._listeners.get(connection.listener.name)
        if logins is not None:
            connection.limit_frames(logins.request_bytes_max)
            connection.login = ClientLogin(self, logins, self.counts[connection.listener.name], handle)
            connection.divert(connection.login.handle)


class ClientLogin:
    """That of one connection."""

    __slots__ = (
        "_authentication",
        "_begun_at",
        "_counts",
        "_handle",
        "_has_headers",
        "_login",
        "_mechanisms",
        "_timer",
    )

    def __init__(
        self, authentication: Authentication, logins: ListenerLogins, counts: LoginCounts, handle: Handle
    ) -> None:
        self._authentication = authentication
        self._login = Login(logins)
        self._mechanisms = list(logins.exchanges)
        self._counts = counts
        self._handle = handle
        self._has_headers = False
        self._begun_at = -math.inf
        self._timer: Timer | None = None

    def closed(self) -> None:
        """The connection is over."""
        if self._timer is not None:
            self._timer.cancel()

    def handle(
        self, connection: ServerConnection, buffer: bytearray | memoryview, start: int, end: int
    ) -> list[Buffer] | None:
        """A frame before the client is known."""
        # To check a token takes up to some milliseconds, and a failure is logged: as long as it takes, it counts.
        elapsed = self._authentication.elapsed
        began_at = elapsed()
        response = self._handle_frame(connection, buffer, start, end)
        connection.spend(int((elapsed() - began_at) * BYTES_PER_SECOND))
        return response

    def _handle_frame(
        self, connection: ServerConnection, buffer: bytearray | memoryview, start: int, end: int
    ) -> list[Buffer] | None:
        login = self._login
        try:
            if login.expects_token and not self._has_headers:
                return self._take_raw(connection, bytes(buffer[start:end]))
            api_key, version, correlation_id, _, position = headers.read_request_header(buffer, start, end)
            if login.expects_token:
                return self._expect_authenticate(connection, api_key, version, correlation_id, buffer, position, end)
            if api_key not in (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE) or end - start > _REQUEST_BYTES_MAX:
                raise ProtocolError(f"a request of API {ApiKey(api_key).api_name} before the login")
            if api_key == ApiKey.API_VERSIONS:
                return self._tell_versions(connection, buffer, start, end)
            request = _decode(SaslHandshakeRequest, HANDSHAKE_VERSIONS, version, buffer, position, end)
            try:
                response = self._choose(request.mechanism, version)
            except UnsupportedMechanismError as error:
                self._fail(connection, error, self._unsupported, version, correlation_id)
                return None
            return _encode(ApiKey.SASL_HANDSHAKE, version, correlation_id, response)
        except ProtocolError as error:
            login.refuse()
            self._fail(connection, error)
            return None

    def begin_again(self, context: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse | None:
        """The answer to a SaslHandshake of a client that is known; None: it comes later, and the connection ends."""
        now, connection = self._authentication.loop.time(), context.connection
        if now - self._begun_at < _BETWEEN_LOGINS_SECONDS:
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        self._begun_at = now
        try:
            response = self._choose(request.mechanism, context.api_version)
        except UnsupportedMechanismError as error:
            responder = context.park()
            self._end_later(connection, error, lambda: responder.respond(self._unsupported()))
            return None
        connection.divert(self.handle)
        return response

    # Inside.

    def _tell_versions(
        self, connection: ServerConnection, buffer: bytearray | memoryview, start: int, end: int
    ) -> list[Buffer] | None:
        if not self._login.may_ask_versions:
            raise ProtocolError("ApiVersions for a second time before the login")
        response = self._handle(connection, buffer, start, end)
        if response is not None and _error_code_at(response[0], _ERROR_CODE_POSITION)[0] == ErrorCode.NONE:
            self._login.versions_told()
        return response

    def _choose(self, mechanism: str, version: int) -> SaslHandshakeResponse:
        """Raises UnsupportedMechanismError."""
        self._login.choose(mechanism)
        self._has_headers = version >= _HEADERS_SINCE
        return SaslHandshakeResponse(mechanisms=self._mechanisms)

    def _unsupported(self) -> SaslHandshakeResponse:
        return SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=self._mechanisms)

    def _take_raw(self, connection: ServerConnection, token: bytes) -> list[Buffer] | None:
        """A message of the mechanism without a header, as clients of brokers before 1.0 send it."""
        try:
            answer = self._take(connection, token)
        except LoginRefusedError as error:
            self._fail(connection, error)
            return None
        return [_FRAME_SIZE.pack(len(answer)) + answer]

    def _expect_authenticate(
        self,
        connection: ServerConnection,
        api_key: int,
        version: int,
        correlation_id: int,
        buffer: bytearray | memoryview,
        position: int,
        end: int,
    ) -> list[Buffer] | None:
        if api_key != ApiKey.SASL_AUTHENTICATE:
            self._login.refuse()
            error = LoginRefusedError(f"a request of API {ApiKey(api_key).api_name} amid the login")
            if api_key == ApiKey.SASL_HANDSHAKE:
                illegal: Message = SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
            elif api_key == ApiKey.API_VERSIONS:
                illegal, version = ApiVersionsResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE), 0
            else:
                self._fail(connection, error)
                return None
            self._fail(connection, error, lambda: illegal, version, correlation_id, api_key)
            return None
        request = _decode(SaslAuthenticateRequest, AUTHENTICATE_VERSIONS, version, buffer, position, end)
        try:
            answer = self._take(connection, bytes(request.auth_bytes))
        except LoginRefusedError as refusal:
            self._refused(connection, refusal, version, correlation_id)
            return None
        response = SaslAuthenticateResponse(auth_bytes=answer)
        if not self._login.expects_token:
            response.session_lifetime_ms = self._login.lifetime_ms(self._authentication.time_ms()) or 0
        return _encode(ApiKey.SASL_AUTHENTICATE, version, correlation_id, response)

    def _refused(
        self, connection: ServerConnection, error: LoginRefusedError, version: int, correlation_id: int
    ) -> None:
        told = error.told
        if told is None:
            self._fail(connection, error)
            return
        response = SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=told)
        self._fail(connection, error, lambda: response, version, correlation_id, ApiKey.SASL_AUTHENTICATE)

    def _take(self, connection: ServerConnection, token: bytes) -> bytes:
        """The mechanism's answer; if that was its last, the client is let in. Raises LoginRefusedError."""
        login = self._login
        is_again = connection.is_authenticated
        answer = login.take(token)
        if not login.expects_token:
            self._let_in(connection, is_again=is_again)
        return answer

    def _let_in(self, connection: ServerConnection, *, is_again: bool) -> None:
        login, counts = self._login, self._counts
        if login.principal is None:
            raise RuntimeError("a login that is complete and has no principal")
        if is_again:
            counts.successful_again += 1
        else:
            counts.successful += 1
            connection.principal = login.principal
            connection.is_authenticated = True
            connection.limit_frames(None)
        connection.is_by_token = login.is_by_delegation_token
        connection.divert(self._handle)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lifetime_ms = login.lifetime_ms(self._authentication.time_ms())
        if lifetime_ms == 0:
            self._expire(connection)
        elif lifetime_ms is not None:
            self._timer = self._authentication.timers.call_after(lifetime_ms, self._expire, connection)

    def _expire(self, connection: ServerConnection) -> None:
        """The session is over: the next request is to be a new login."""
        if connection.is_open and not self._login.expects_token:
            connection.divert(self._handle_expired)

    def _handle_expired(
        self, connection: ServerConnection, buffer: bytearray | memoryview, start: int, end: int
    ) -> list[Buffer] | None:
        api_key = headers.read_request_header(buffer, start, end)[0]
        if api_key == ApiKey.SASL_HANDSHAKE:
            return self._handle(connection, buffer, start, end)
        self._counts.expired += 1
        self._authentication.logger.info(
            "Closed the connection with %s: its session is over, and it has not logged in again", connection.peer
        )
        connection.abort()
        return None

    # Failures.

    def _fail(
        self,
        connection: ServerConnection,
        error: Exception,
        response: Callable[[], Message] | None = None,
        version: int = 0,
        correlation_id: int = 0,
        api_key: int = ApiKey.SASL_HANDSHAKE,
    ) -> None:
        """Takes the place of the response, gives it later, and ends the connection."""
        slot: Slot = connection.park()
        frame = None if response is None else _encode(api_key, version, correlation_id, response())
        self._end_later(connection, error, lambda: slot.complete(frame))

    def _end_later(self, connection: ServerConnection, error: Exception, answer: Answer) -> None:
        authentication = self._authentication
        if connection.is_authenticated:
            self._counts.failed_again += 1
        else:
            self._counts.failed += 1
        what = "re-authentication" if connection.is_authenticated else "authentication"
        authentication.logger.info("Failed %s with %s (%s)", what, connection.peer, error)
        self.closed()
        connection.hold()
        if authentication.failure_delay_ms:
            self._timer = authentication.timers.call_after(
                authentication.failure_delay_ms, self._end, connection, answer
            )
        else:
            self._end(connection, answer)

    def _end(self, connection: ServerConnection, answer: Answer) -> None:
        if connection.is_open:
            answer()
            connection.close()


def _decode(
    message: Any, versions: tuple[int, int], version: int, buffer: bytearray | memoryview, position: int, end: int
) -> Any:
    """Raises ProtocolError, also for a version that there is not."""
    key = message.SCHEMA.api_key
    if not versions[0] <= version <= versions[1]:
        raise ProtocolError(f"{ApiKey(key).api_name} in version {version}, which is not answered here")
    return codec.request_decoder(key, version)(buffer, position, end)[0]


def _encode(api_key: int, version: int, correlation_id: int, response: Message) -> list[Buffer]:
    return codec.response_encoder(api_key, version)(correlation_id, response)
