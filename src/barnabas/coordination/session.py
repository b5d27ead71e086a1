"""One session of a client: finds a server, keeps the session alive, takes it to another server, and says when it is
over.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from barnabas.coordination.connection import Batch, Connection
from barnabas.coordination.connection_string import Endpoint, parse_connection_string
from barnabas.coordination.digest_login import DigestClient, DigestLoginError
from barnabas.coordination.errors import (
    AuthFailedError,
    ClientClosedError,
    CoordinationError,
    ErrorCode,
    NotSentError,
    OperationTimeoutError,
    RequestTooLargeError,
    SessionExpiredError,
)
from barnabas.coordination.jute import Reader, pack_buffer
from barnabas.coordination.operations import Operation, WatchableRead, without_chroot
from barnabas.coordination.protocol import (
    XID_AUTH,
    XID_PING,
    XID_SASL,
    XID_SET_WATCHES,
    AuthPacket,
    ConnectRequest,
    ConnectResponse,
    EventType,
    KeeperState,
    OpCode,
    WatcherEvent,
)
from barnabas.coordination.session_settings import ClientSettings, SessionTicket
from barnabas.coordination.session_state import SESSION, SessionEvent, SessionState
from barnabas.coordination.watches import Watches
from barnabas.kernel.host import Host

if TYPE_CHECKING:
    from barnabas.coordination.secured import TlsOfCoordination

StateListener = Callable[[SessionState], None]
_REQUEST_HEADER_BYTES = 8


@dataclass(slots=True, eq=False)
class _Turn:
    """A claim that waits for room. `given` is True when that is set aside, False when the caller must look again."""

    given: asyncio.Future[bool]
    give_up_at: float
    weight: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Credential:
    scheme: str
    auth: bytes
    # None for accepted, or why not; done once.
    answered: asyncio.Future[CoordinationError | None]


class Session:
    """The session and its operations; `Client` adds a method for each kind of operation."""

    def __init__(
        self,
        host: Host,
        settings: ClientSettings,
        *,
        logger: logging.Logger | None = None,
        on_answered: Callable[[int, float], None] = lambda _count, _latency_ms: None,
    ) -> None:
        """`on_answered` is told how many operations were answered, and how many milliseconds after they were sent."""
        self.answered = on_answered
        connection_string = parse_connection_string(settings.connect)
        self._host = host
        self._loop = host.loop
        self._settings = settings
        self._logger = logger or logging.getLogger("barnabas.coordination.client")
        self._endpoints = list(connection_string.endpoints)
        host.random.shuffle(self._endpoints)
        self._chroot = connection_string.chroot
        self._state = SessionState.CONNECTING
        self._ticket = settings.ticket
        self._timeout_seconds = settings.session_timeout_ms / 1000
        self._last_zxid = 0
        self._connection: Connection | None = None
        self._watches = Watches()
        self._credentials: list[_Credential] = []
        self._credentials_sent: deque[_Credential] = deque()
        self._login: DigestClient | None = None
        """Of the present connection, until it is over."""
        self._taken_in: asyncio.Future[None] = self._loop.create_future()
        """Done when the present connection has logged in, or is lost."""
        self._tls: TlsOfCoordination | None = None
        if settings.tls is not None:
            # With OpenSSL behind it, which a client without TLS need not load.
            from barnabas.coordination.secured import tls_of_client

            self._tls = tls_of_client(host, settings.tls, self._logger)
        self._listeners: list[StateListener] = []
        self._waiting: deque[_Turn] = deque()
        self._reserved = self._reserved_bytes = 0  # for those who were given a turn and have not yet used it
        self._waiting_timer: asyncio.TimerHandle | None = None
        self._keep_alive_timer: asyncio.TimerHandle | None = None
        self._runner: asyncio.Task[None] | None = None
        self._closing = False
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._session_over: asyncio.Future[SessionState] = self._loop.create_future()
        for scheme, auth in settings.credentials:
            self._credentials.append(_Credential(scheme, auth, self._loop.create_future()))

    # The session as its user sees it.

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def ticket(self) -> SessionTicket:
        """Id and password of the session; id 0 before the first connection."""
        return self._ticket

    @property
    def session_timeout_ms(self) -> int:
        """The value agreed with the server."""
        return round(self._timeout_seconds * 1000)

    @property
    def last_zxid(self) -> int:
        """The last transaction that this session has seen."""
        return self._last_zxid if self._connection is None else self._connection.last_zxid

    async def session_over(self) -> SessionState:
        """Waits until the session is over and returns its final state; at once when it is over already, so it
        cannot be missed.
        """
        return await asyncio.shield(self._session_over)

    def add_state_listener(self, listener: StateListener) -> None:
        """Has `listener` called with the state as it is, now, and with every later one, on the loop."""
        self._listeners.append(listener)
        listener(self._state)

    def remove_state_listener(self, listener: StateListener) -> None:
        self._listeners.remove(listener)

    async def connect(self, timeout_ms: int | None = None) -> None:
        """Starts the client, which then looks for a server until it is closed, and waits for the first one to take
        it in.

        Raises `OperationTimeoutError` when none did within `timeout_ms`; the client goes on looking, and may be
        waited for again or closed.
        """
        if self._runner is None:
            self._runner = self._loop.create_task(self._run())
        settled: asyncio.Future[None] = self._loop.create_future()

        def note(state: SessionState) -> None:
            if (state is SessionState.CONNECTED or state.is_final) and not settled.done():
                settled.set_result(None)

        self.add_state_listener(note)
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await settled
        except TimeoutError:
            servers = ",".join(map(str, self._endpoints))
            raise OperationTimeoutError(
                None, f"no server of {servers} accepted the client within {timeout_ms} ms"
            ) from None
        finally:
            self.remove_state_listener(note)
        if self._state.is_final:
            raise self._final_error(None)

    async def close(self) -> None:
        """Ends the session, and with it its ephemeral znodes, after the operations under way; without a connection
        it is left to expire.

        Waits for the server a third of the session's time-out at most. Never raises; later calls wait for the first.
        Cancelled, it closes at once.
        """
        if self._closing:
            await asyncio.shield(self._closed)
            return
        self._closing = True
        self._wake_waiting()
        connection = self._connection
        try:
            if connection is not None and self._state is SessionState.CONNECTED:
                batch = Batch(self._loop.create_future(), 1)
                connection.send(_CloseSession(), b"", batch, 0)
                done: list[asyncio.Future[Any]] = [batch.future, connection.ended]
                await asyncio.wait(done, timeout=self._timeout_seconds / 3, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._shut()
            raise
        self._shut()
        if self._runner is not None and not self._runner.done():
            await asyncio.wait([self._runner])

    async def add_credential(self, scheme: str, auth: bytes) -> None:
        """Adds an identity to the session, `("digest", b"user:password")`; it is told again to every server that
        takes the session over.

        Raises `AuthFailedError` when the server refuses it; the session is over then.
        """
        if self._state.is_final or self._closing:
            raise self._final_error(None)
        for credential in self._credentials:
            if (credential.scheme, credential.auth) == (scheme, auth):
                break
        else:
            credential = _Credential(scheme, auth, self._loop.create_future())
            self._credentials.append(credential)
            if self._connection is not None and self._state is SessionState.CONNECTED:
                self._send_credential(self._connection, credential)
        error = await asyncio.shield(credential.answered)
        if error is not None:
            raise error

    # Operations.

    async def submit(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        """Sends the operations in a pipeline, over one connection, and returns their outcomes in order: answers,
        and errors as values.

        Nothing is raised for a single operation: not `KeeperError`, not `RequestTooLargeError`. When room runs out
        on the way the rest waits for it, so any number may be given. When the connection is lost on the way the
        rest is not sent (`NotSentError`). Cancelled, it forgets the answers of what was sent.
        """
        batch = Batch(self._loop.create_future(), len(operations))
        if not operations:
            return batch.outcomes
        first_connection: Connection | None = None
        for index, operation in enumerate(operations):
            try:
                body = self._body(operation)
                connection = await self._room(operation.weight, len(body), first_connection)
                first_connection = connection
            except (NotSentError, *_FINAL_ERRORS) as error:
                # One reason for all that is left; each error names its own path.
                for rest in range(index, len(operations)):
                    batch.deliver(rest, self._not_sent(error, operations[rest].path))
                break
            except CoordinationError as error:
                batch.deliver(index, error)
                continue
            connection.send(operation, body, batch, index)
        return await batch.future

    def _not_sent(self, error: CoordinationError, path: str) -> CoordinationError:
        return NotSentError(path) if isinstance(error, NotSentError) else self._final_error(path)

    def _body(self, operation: Operation[Any]) -> bytes:
        body = operation.body(self._chroot)
        size_bytes = len(body) + _REQUEST_HEADER_BYTES
        if size_bytes > self._settings.request_bytes_max:
            raise RequestTooLargeError(operation.path, size_bytes, self._settings.request_bytes_max)
        return body

    async def _room(self, weight: int, size_bytes: int, only: Connection | None) -> Connection:
        """Waits for a connection, `only` this one if it is given, that may take so much.

        Raises `NotSentError` when `only` is lost, or after a session's time-out without any; and when the session is
        over.
        """
        # A call that has begun goes on while there is room; one that begins queues up behind those who wait.
        in_turn = only is not None
        while True:
            connection = self._connection
            if self._closing or self._state.is_final:
                raise self._final_error(None)
            if only is not None and connection is not only:
                raise NotSentError(None)
            if (
                connection is not None
                and self._state is SessionState.CONNECTED
                and (in_turn or not self._waiting)
                and self._fits(connection, weight, size_bytes)
            ):
                return connection
            in_turn = await self._turn(weight, size_bytes)

    async def _turn(self, weight: int, size_bytes: int) -> bool:
        """Waits in the queue; whether the room that was asked for is there, if no connection was lost since."""
        turn = _Turn(self._loop.create_future(), self._loop.time() + self._timeout_seconds, weight, size_bytes)
        self._waiting.append(turn)
        self._arm_waiting_timer()
        try:
            in_turn = await turn.given
        except asyncio.CancelledError:
            # A turn that was given must not be lost for those who wait, nor one that held them up.
            if not turn.given.cancelled() and turn.given.exception() is None and turn.given.result():
                self._release(turn)
            self._give_turns()
            raise
        if in_turn:
            self._release(turn)
        return in_turn

    def _release(self, turn: _Turn) -> None:
        self._reserved -= turn.weight
        self._reserved_bytes -= turn.size_bytes

    def _fits(self, connection: Connection, weight: int, size_bytes: int) -> bool:
        # With nothing under way anything fits: the bound on requests holds for single ones.
        in_flight = connection.in_flight + self._reserved
        return not in_flight or (
            in_flight + weight <= self._settings.in_flight_max
            and connection.in_flight_bytes + self._reserved_bytes + size_bytes <= self._settings.in_flight_bytes_max
        )

    def _give_turns(self) -> None:
        """Wakes those who wait, in order, as long as there is room for the next: large ones are not overtaken."""
        connection = self._connection
        if connection is None or self._state is not SessionState.CONNECTED:
            return
        while self._waiting:
            turn = self._waiting[0]
            if not turn.given.done():
                if not self._fits(connection, turn.weight, turn.size_bytes):
                    return
                self._reserved += turn.weight
                self._reserved_bytes += turn.size_bytes
                turn.given.set_result(True)
            self._waiting.popleft()

    def _wake_waiting(self) -> None:
        """Wakes all who wait, so that they see that the connection is lost or the session over."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.given.done():
                turn.given.set_result(False)

    def _arm_waiting_timer(self) -> None:
        if self._waiting_timer is None and self._waiting and self._state is not SessionState.CONNECTED:
            self._waiting_timer = self._loop.call_at(self._waiting[0].give_up_at, self._give_up_waiting)

    def _give_up_waiting(self) -> None:
        self._waiting_timer = None
        if self._state is SessionState.CONNECTED:
            return
        while self._waiting and (self._waiting[0].given.done() or self._waiting[0].give_up_at <= self._loop.time()):
            turn = self._waiting.popleft()
            if not turn.given.done():
                turn.given.set_exception(NotSentError(None))
        self._arm_waiting_timer()

    def _final_error(self, path: str | None) -> CoordinationError:
        if self._state is SessionState.EXPIRED:
            return SessionExpiredError(path)
        if self._state is SessionState.AUTH_FAILED:
            return AuthFailedError(path)
        return ClientClosedError("the client is closed" if path is None else f"{path}: the client is closed")

    # What a connection says (`ConnectionOwner`).

    def established(self, response: ConnectResponse) -> None:
        connection = self._connection
        if connection is None:
            raise RuntimeError("a hand-shake without a connection")
        if response.timeout_ms <= 0:
            self._advance(SessionEvent.DECLARED_EXPIRED)
            connection.end("the session has expired")
            return
        self._ticket = SessionTicket(response.session_id, response.password)
        self._timeout_seconds = response.timeout_ms / 1000
        self._keep_alive(connection)
        if self._settings.login is None:
            self._take_in(connection)
        else:
            self._login = DigestClient(self._settings.login, self._host.entropy)
            connection.send_control(XID_SASL, OpCode.SASL, pack_buffer(b""))

    def login_answered(self, code: int, token: bytes | None) -> None:
        connection, login = self._connection, self._login
        if connection is None or login is None:
            return
        try:
            if code or token is None:
                raise DigestLoginError("the server refuses the login" if code else "the server has no logins")
            message = login.answer(token)
        except DigestLoginError as error:
            self._logger.error("login at ZooKeeper as %s: %s", self._settings.login, error)  # noqa: TRY400 - no trace helps
            self._advance(SessionEvent.CREDENTIALS_REFUSED)
            connection.end("the login has failed")
            return
        if message is not None:
            connection.send_control(XID_SASL, OpCode.SASL, pack_buffer(message))
        else:
            self._login = None
            self._take_in(connection)

    def _take_in(self, connection: Connection) -> None:
        """The session is taken in, and has logged in."""
        self._credentials_sent.clear()
        for credential in self._credentials:
            self._send_credential(connection, credential)
        for body in self._watches.set_watches(connection.last_zxid, self._chroot):
            connection.send_control(XID_SET_WATCHES, OpCode.SET_WATCHES, body)
        self._advance(SessionEvent.ESTABLISHED)
        if not self._taken_in.done():
            self._taken_in.set_result(None)
        self._give_turns()

    def read_watched(self, read: WatchableRead[Any], code: int) -> None:
        self._watches.add(read, code)

    def notified(self, event: WatcherEvent) -> None:
        if event.type is EventType.NONE:
            return
        seen = WatcherEvent(event.type, event.state, without_chroot(self._chroot, event.path))
        self._call_watchers(self._watches.fire(seen), seen)

    def credentials_answered(self, code: int) -> None:
        credential = self._credentials_sent.popleft() if self._credentials_sent else None
        if code == ErrorCode.OK:
            if credential is not None and not credential.answered.done():
                credential.answered.set_result(None)
            return
        self._advance(SessionEvent.CREDENTIALS_REFUSED)
        if self._connection is not None:
            self._connection.end("the server refused the credentials")

    def progressed(self) -> None:
        if self._waiting:
            self._give_turns()

    def lost(self, reason: str) -> None:
        connection = self._connection
        self._connection = self._login = None
        if not self._taken_in.done():
            self._taken_in.set_result(None)
        if self._keep_alive_timer is not None:
            self._keep_alive_timer.cancel()
            self._keep_alive_timer = None
        if connection is not None:
            self._last_zxid = connection.last_zxid
        if self._tls is not None and not self._closing:
            self._tls.ended(reason, was_well=self._state is SessionState.CONNECTED)
        if self._state is SessionState.CONNECTED and not self._closing:
            self._logger.info("session 0x%x: %s", self._ticket.id, reason)
            self._advance(SessionEvent.CONNECTION_LOST)
            self._wake_waiting()

    # Inside.

    def _advance(self, event: SessionEvent) -> None:
        self._state = SESSION.advance(f"0x{self._ticket.id:x}", self._state, event)
        if self._state.is_final:
            self._end_session()
        for listener in tuple(self._listeners):
            try:
                listener(self._state)
            except Exception:
                # A listener's fault must not keep the session from going on, or others from hearing.
                self._logger.exception("a state listener failed at %s", self._state)

    def _end_session(self) -> None:
        if not self._session_over.done():
            self._session_over.set_result(self._state)
        for credential in self._credentials:
            if not credential.answered.done():
                credential.answered.set_result(self._final_error(None))
        self._wake_waiting()
        event = WatcherEvent(EventType.NONE, _KEEPER_STATES[self._state], "")
        self._call_watchers(self._watches.drain(), event)

    def _call_watchers(self, watchers: list[Callable[[WatcherEvent], None]], event: WatcherEvent) -> None:
        # By the loop, so that they run in order with those who await the answers that came before and after.
        for watcher in watchers:
            self._loop.call_soon(watcher, event)

    def _send_credential(self, connection: Connection, credential: _Credential) -> None:
        self._credentials_sent.append(credential)
        connection.send_control(XID_AUTH, OpCode.AUTH, AuthPacket(credential.scheme, credential.auth).pack())

    def _keep_alive(self, connection: Connection) -> None:
        """Pings when nothing was sent for a third of the time-out, and gives the connection up when nothing was
        heard for two.
        """
        if connection is not self._connection:
            return
        third = self._timeout_seconds / 3
        now = self._loop.time()
        if now >= connection.heard_at + 2 * third:
            connection.end(f"nothing was heard from the server for {2 * third:.3f} s")
            return
        if now >= connection.sent_at + third:
            connection.send_control(XID_PING, OpCode.PING, b"")
            next_ping_at = now + third
        else:
            next_ping_at = connection.sent_at + third
        self._keep_alive_timer = self._loop.call_at(
            min(next_ping_at, connection.heard_at + 2 * third), self._keep_alive, connection
        )

    async def _run(self) -> None:
        """Goes from server to server until the session is over."""
        failures = 0
        while True:
            for endpoint in self._endpoints:
                connection = await self._attach(endpoint)
                if connection is not None:
                    failures = 0
                    await connection.ended
                if self._state.is_final or self._closing:
                    return
            await self._back_off(failures)
            failures += 1

    async def _attach(self, endpoint: Endpoint) -> Connection | None:
        """One try with one server; the connection, once the server has taken the session in."""
        request = ConnectRequest(
            self._last_zxid, self._settings.session_timeout_ms, self._ticket.id, self._ticket.password
        )
        connection = Connection(
            self, self._loop, request, chroot=self._chroot, reply_bytes_max=self._settings.reply_bytes_max
        )
        self._connection = connection
        self._taken_in = self._loop.create_future()
        limit_ms = self._settings.connect_timeout_ms or self._settings.session_timeout_ms / 3 / len(self._endpoints)
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self._open(connection, endpoint)
                await asyncio.shield(self._taken_in)
        except TimeoutError:
            connection.end(f"{endpoint} did not answer within {limit_ms:.0f} ms")
        except (OSError, ValueError) as error:
            # ValueError: a name that no look-up takes, such as one with a label of more than 63 characters.
            connection.end(f"{endpoint} cannot be reached: {error}")
        except asyncio.CancelledError:
            connection.end("the client stops")
            raise
        return connection if self._state is SessionState.CONNECTED else None

    async def _open(self, connection: Connection, endpoint: Endpoint) -> None:
        tls = self._tls
        if tls is None:
            await self._loop.create_connection(lambda: connection, endpoint.host, endpoint.port)
            return
        secured = tls.secured(connection, endpoint.host)
        await self._loop.create_connection(lambda: secured, endpoint.host, endpoint.port)
        await asyncio.shield(secured.secured)

    async def _back_off(self, failures: int) -> None:
        limit_ms = min(self._settings.backoff_ms_min * 2 ** min(failures, 16), self._settings.backoff_ms_max)
        pause: asyncio.Future[None] = self._loop.create_future()
        seconds = limit_ms * self._host.random.uniform(0.5, 1.0) / 1000

        def end() -> None:
            if not pause.done():  # it may be due in the turn in which this is cancelled
                pause.set_result(None)

        handle = self._loop.call_later(seconds, end)
        try:
            await pause
        finally:
            handle.cancel()

    def _shut(self) -> None:
        """The session is over for its user: ends the search for servers and the connection."""
        if not self._state.is_final:
            self._advance(SessionEvent.CLOSED)
        if not self._closed.done():
            self._closed.set_result(None)
        if self._connection is not None:
            self._connection.end("the client is closed")
        if self._runner is not None:
            self._runner.cancel()


_FINAL_ERRORS = (SessionExpiredError, AuthFailedError, ClientClosedError)
_KEEPER_STATES = {
    SessionState.EXPIRED: KeeperState.EXPIRED,
    SessionState.AUTH_FAILED: KeeperState.AUTH_FAILED,
    SessionState.CLOSED: KeeperState.CLOSED,
}


class _CloseSession(Operation[None]):
    """Ends the session."""

    op_code = OpCode.CLOSE_SESSION
    path = "/"

    def read(self, _reader: Reader, _chroot: str, /) -> None:
        return None
