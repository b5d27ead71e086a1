"""The broker's session with ZooKeeper, for as long as the broker lives: when one session is over, the next one.

A `Client` is one session. Ephemeral znodes and watches end with it, so whoever has some must hear of it, in this order:
first that the old session is over, and only when that has been dealt with a new one is made, and then that it is there.
Source: how Kafka's ZooKeeperClient starts again after an expiry.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeVar, cast

from barnabas.coordination.client import Client
from barnabas.coordination.connection_string import parse_connection_string
from barnabas.coordination.errors import (
    ConnectionLossError,
    CoordinationError,
    OperationTimeoutError,
    SessionExpiredError,
)
from barnabas.coordination.layout.access import default_acl
from barnabas.coordination.operations import Check, Create, Delete, Multi, Operation, SetData, WrittenData, ZnodeData
from barnabas.coordination.protocol import OPEN_ACL
from barnabas.coordination.session_settings import ClientSettings
from barnabas.coordination.session_state import SessionState
from barnabas.kernel.host import Host
from barnabas.kernel.metrics import Histogram, MetricName, MetricsRegistry

Answer = TypeVar("Answer")

_LOGGED_EVERY_MS: Final = 5_000
_PAUSE_AFTER_REFUSAL_SECONDS: Final = 1.0
_COUNTED: Final = {
    SessionState.CONNECTED: "SyncConnects",
    SessionState.SUSPENDED: "Disconnects",
    SessionState.EXPIRED: "Expires",
    SessionState.AUTH_FAILED: "AuthFailures",
}


class SessionListener(Protocol):
    """An owner of ephemeral znodes or watches, which end with a session and which it makes again."""

    async def before_new_session(self) -> None:
        """The session is over: operations fail with SessionExpiredError. A new one is made when this has returned."""
        ...

    async def after_new_session(self) -> None:
        """There is a new session, connected; nothing of the old one is in it. Must not wait for work that needs the
        session: the end of this one is reported only after this has returned.
        """
        ...


class CoordinationSession:
    """A `coordination.ports.Store` that outlives its sessions. Use: `await connect()`, ..., `await close()`."""

    def __init__(self, host: Host, settings: ClientSettings, logger: logging.Logger) -> None:
        self._host = host
        self._settings = settings
        self._logger = logger
        self.request_latency: Histogram | None = None
        """Milliseconds from sending an operation to its answer, where somebody counts them."""
        self._makes_secure = False
        self._client = self._new_client()
        self._listeners: list[SessionListener] = []
        self._state_listeners: list[Callable[[SessionState], None]] = []
        self._former_id = 0
        self._runner: asyncio.Task[None] | None = None

    def secure(self, settings: ClientSettings, *, makes_secure: bool) -> None:
        """Takes these settings, before `connect`. `makes_secure` is `zookeeper.set.acl`: znodes that are made are the
        brokers' own from then on.
        """
        self._settings, self._makes_secure = settings, makes_secure
        self._client = self._new_client()

    # As one session; `Client` says what each promises.

    @property
    def state(self) -> SessionState:
        return self._client.state

    @property
    def session_id(self) -> int:
        """The id of the present session; 0 before the first."""
        return self._client.ticket.id

    @property
    def session_timeout_ms(self) -> int:
        """The value agreed with the server."""
        return self._client.session_timeout_ms

    def add_state_listener(self, listener: Callable[[SessionState], None]) -> None:
        """Calls `listener` with the present state, and with every later one, of this session and of all that follow."""
        self._state_listeners.append(listener)
        listener(self._client.state)

    def remove_state_listener(self, listener: Callable[[SessionState], None]) -> None:
        self._state_listeners.remove(listener)

    async def session_over(self) -> SessionState:
        """Waits for the end of the present session."""
        return await self._client.session_over()

    async def perform(self, operation: Operation[Answer]) -> Answer:
        return await self._client.perform(self._owned(operation))

    async def submit(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        return await self._client.submit(
            [self._owned(operation) for operation in operations] if self._makes_secure else operations
        )

    async def multi(self, operations: Sequence[Create | Delete | SetData | Check]) -> list[Any]:
        return await self.perform(Multi(tuple(operations)))

    async def get_many(self, paths: Sequence[str]) -> list[ZnodeData | CoordinationError]:
        return await self._client.get_many(paths)

    async def get_written_of_many(self, paths: Sequence[str]) -> list[WrittenData | CoordinationError]:
        return await self._client.get_written_of_many(paths)

    async def get_children_names_of_many(self, paths: Sequence[str]) -> list[list[str] | CoordinationError]:
        return await self._client.get_children_names_of_many(paths)

    # As many sessions.

    def was_ours(self, session_id: int) -> bool:
        """Whether it is this broker's previous session, whose ephemeral znodes are its own."""
        return session_id == self._former_id != 0

    def add_session_listener(self, listener: SessionListener) -> None:
        """Calls `listener` when sessions end and begin, after those that were added before it."""
        self._listeners.append(listener)

    async def connect(self) -> None:
        """Waits until a server has taken the broker in, however long that takes, and logs that it waits.

        Raises AuthFailedError and the like when the servers refuse the broker.
        """
        self._logger.info("Connecting to ZooKeeper at %s", self._settings.connect)
        self._client.add_state_listener(self._state_changed)
        try:
            await self._connect()
        except SessionExpiredError:
            # Cut off, or not running, for a whole time-out right after the first hand-shake.
            await self._replace_client()
        self._runner = self._host.loop.create_task(self._run(), name="zookeeper-session")

    async def connected(self) -> None:
        """Waits until there is a session with a connection; returns at once when there is one."""
        if self.state is SessionState.CONNECTED:
            return
        found: asyncio.Future[None] = self._host.loop.create_future()

        def note(state: SessionState) -> None:
            if state is SessionState.CONNECTED and not found.done():
                found.set_result(None)

        self.add_state_listener(note)
        try:
            await found
        finally:
            self.remove_state_listener(note)

    async def out_of_reach(self) -> None:
        """Returns once no server has been connected for a whole session time-out: this broker's session is over by
        then.
        """
        over: asyncio.Future[None] = self._host.loop.create_future()
        limit: asyncio.TimerHandle | None = None

        def give_up() -> None:
            if not over.done():
                over.set_result(None)

        def note(state: SessionState) -> None:
            nonlocal limit
            if state is SessionState.CONNECTED and limit is not None:
                limit.cancel()
                limit = None
            elif state is not SessionState.CONNECTED and limit is None:
                limit = self._host.loop.call_later(self._settings.session_timeout_ms / 1000, give_up)

        self.add_state_listener(note)
        try:
            await over
        finally:
            self.remove_state_listener(note)
            if limit is not None:
                limit.cancel()

    async def until_connected(self, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Awaits `work()`, again after every loss of the connection; `work` must be safe to repeat, because what a lost
        attempt did may have happened. Ends with the session: raises SessionExpiredError then.
        """
        while True:
            try:
                return await work()
            except ConnectionLossError:
                # The next attempt waits for the connection.
                continue

    async def make_root(self) -> None:
        """Creates the chroot of `zookeeper.connect`, under which everything else is."""
        connection_string = parse_connection_string(self._settings.connect)
        servers = ",".join(map(str, connection_string.endpoints))
        above = Client(self._host, dataclasses.replace(self._settings, connect=servers), logger=self._logger)
        try:
            await above.connect()
            acl = default_acl(connection_string.chroot, secure=self._makes_secure)
            await self.until_connected(lambda: above.ensure_path(connection_string.chroot, acl=acl))
        finally:
            await above.close()

    async def make_no_more(self) -> None:
        """Makes no session after the present one: if it ends before `close`, nothing registers again."""
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)

    async def close(self) -> None:
        """Ends the session, and with it its ephemeral znodes. Bounded; never raises."""
        await self.make_no_more()
        await self._client.close()

    # Inside.

    def _owned(self, operation: Operation[Answer]) -> Operation[Answer]:
        """With the brokers as the owners of what it makes, where that is wanted and nothing else was said."""
        if not self._makes_secure:
            return operation
        changed: Operation[Any] = operation
        if isinstance(operation, Create) and operation.acl is OPEN_ACL:
            changed = dataclasses.replace(operation, acl=default_acl(operation.path, secure=True))
        elif isinstance(operation, Multi):
            changed = Multi(tuple(cast("Any", self._owned(each)) for each in operation.operations))
        return changed

    def _state_changed(self, state: SessionState) -> None:
        for listener in tuple(self._state_listeners):
            try:
                listener(state)
            except Exception:
                self._logger.exception("A listener failed at the session state %s", state.value)

    async def _run(self) -> None:
        """Makes one session after another, until this is closed."""
        while True:
            state = await self._client.session_over()
            self._former_id = self._client.ticket.id
            self._logger.warning("Session 0x%x is over (%s); making a new one", self._former_id, state.value)
            for listener in tuple(self._listeners):
                await self._tell(listener.before_new_session)
            await self._replace_client()
            for listener in tuple(self._listeners):
                await self._tell(listener.after_new_session)

    def _new_client(self) -> Client:
        return Client(self._host, self._settings, logger=self._logger, on_answered=self._answered)

    def _answered(self, count: int, latency_ms: float) -> None:
        if self.request_latency is not None:
            self.request_latency.update_many(int(latency_ms), count)

    async def _replace_client(self) -> None:
        """Makes clients until one has a session."""
        while True:
            refused = self._client.state is SessionState.AUTH_FAILED
            await self._client.close()
            if refused:
                await self._pause(_PAUSE_AFTER_REFUSAL_SECONDS)
            self._client = self._new_client()
            self._client.add_state_listener(self._state_changed)
            try:
                await self._connect()
            except CoordinationError as error:
                self._logger.warning("No new session: %s", error)
            except Exception:
                # A broker without a session, and without anybody who makes one, would look alive for ever.
                self._logger.exception("Making a new session failed")
                await self._pause(_PAUSE_AFTER_REFUSAL_SECONDS)
            else:
                return

    async def _connect(self) -> None:
        while True:
            try:
                await self._client.connect(_LOGGED_EVERY_MS)
            except OperationTimeoutError:
                self._logger.warning(
                    "No ZooKeeper server at %s has answered yet; still trying. Check zookeeper.connect, and that the"
                    " servers are running",
                    self._settings.connect,
                )
            else:
                return

    async def _tell(self, call: Callable[[], Awaitable[None]]) -> None:
        try:
            await call()
        except Exception:
            self._logger.exception("A listener of the session failed")

    async def _pause(self, seconds: float) -> None:
        waited: asyncio.Future[None] = self._host.loop.create_future()

        def end() -> None:
            if not waited.done():  # it may be due in the turn in which this is cancelled
                waited.set_result(None)

        handle = self._host.loop.call_later(seconds, end)
        try:
            await waited
        finally:
            handle.cancel()


def measure_session(session: CoordinationSession, metrics: MetricsRegistry) -> None:
    """Meters of what happens to the session, under the names of Kafka's SessionExpireListener, and how long its
    operations take.
    """
    session.request_latency = metrics.histogram(
        MetricName("kafka.server", "ZooKeeperClientMetrics", "ZooKeeperRequestLatencyMs")
    )
    meters = {
        state: metrics.meter(MetricName("kafka.server", "SessionExpireListener", f"ZooKeeper{name}PerSec"))
        for state, name in _COUNTED.items()
    }

    def count(state: SessionState) -> None:
        meter = meters.get(state)
        if meter is not None:
            meter.count += 1

    session.add_state_listener(count)
