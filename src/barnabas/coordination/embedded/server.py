"""The embedded coordinator as a whole: assembled, started, supervised and stopped."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from barnabas.coordination.embedded import commands
from barnabas.coordination.embedded.commits import Commits
from barnabas.coordination.embedded.connection import Connection
from barnabas.coordination.embedded.engine import Engine
from barnabas.coordination.embedded.logins import Logins
from barnabas.coordination.embedded.snapshot import SnapshotImage
from barnabas.coordination.embedded.statistics import ServerStatistics
from barnabas.coordination.embedded.storage import Storage
from barnabas.coordination.embedded.turn_budget import TurnBudget, Work
from barnabas.coordination.errors import CoordinationError
from barnabas.kernel.host import files_kept
from barnabas.kernel.long_turns import LongTurns

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from barnabas.coordination.embedded.config import CoordinatorConfig
    from barnabas.coordination.secured import TlsOfCoordination
    from barnabas.kernel.host import Host

LISTEN_BACKLOG = 512
CLOSE_SECONDS = 2.0
STOP_SECONDS = 10.0
LOGGER_NAME = "barnabas.coordinator"


class CoordinatorFailedError(CoordinationError):
    """The log cannot be written any more, or a defect was met; the coordinator has stopped serving."""


class EmbeddedCoordinator:
    """A ZooKeeper-compatible server on one host.

    `start` recovers the data directory and listens; `stop` ends in order; `failure` is done with the reason when the
    disk refuses the log, or a write meets a defect: by then every connection is closed, as nothing more can be
    promised.
    """

    def __init__(self, host: Host, config: CoordinatorConfig, logger: logging.Logger | None = None) -> None:
        self.config = config
        self.logger = logger or logging.getLogger(LOGGER_NAME)
        self.loop = host.loop
        self.long_turns = LongTurns(host.loop.time, self.logger)
        """Counts turns that held the loop too long; fed by the runner of the coordinator on a real loop."""
        self.budget = TurnBudget(host.loop)
        self.failure: asyncio.Future[CoordinatorFailedError] = host.loop.create_future()
        self.logins = Logins(config.passwords, host.entropy, has_tls=config.tls is not None)
        self._host = host
        self._tls: TlsOfCoordination | None = None
        self._storage = Storage(host, config.data_directory, self.logger, snapshots_retained=config.snapshots_retained)
        self._listener: asyncio.Server | None = None
        self._port = 0
        self._connections: dict[Connection, None] = {}
        files_max = host.open_files_max
        self._connections_max = min(config.connections_max, files_max - files_kept(files_max))
        self._connections_by_address: dict[str, int] = {}
        self._transports: dict[Connection, None] = {}
        self._all_closed: asyncio.Future[None] | None = None
        self._session_timer: asyncio.TimerHandle | None = None
        self._session_timer_at = 0.0
        self._container_timer: asyncio.TimerHandle | None = None
        self._unsaved_transactions = 0
        self._snapshot: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._port

    async def start(self) -> None:
        """Recovers and begins to listen.

        Raises `DataDirectoryLockedError`, `CorruptDataError` or `OSError`; then nothing is left behind.
        """
        try:
            recovered = await self._storage.recover()
            commits = Commits(
                self.loop,
                self._storage.append,
                durable_zxid=recovered.tree.zxid,
                requests_max=self.config.outstanding_requests_max,
                bytes_max=self.config.outstanding_bytes_max,
                on_durable=self._on_durable,
                on_failure=self._on_failure,
            )
            self._storage.continue_after(recovered.tree.zxid)
            self._unsaved_transactions = recovered.replayed
            self.engine = Engine(
                recovered,
                commits,
                self.config,
                self.budget,
                clock=self._host.clock,
                now=self.loop.time,
                entropy=self._host.entropy,
                statistics=ServerStatistics(self.loop.time()),
                logger=self.logger,
                schemes=self.logins.schemes,
            )
            self._listener = await self.loop.create_server(
                self._protocols(), self.config.host, self.config.port, backlog=LISTEN_BACKLOG
            )
        except BaseException:
            await self._storage.close()
            raise
        self._port = self._listener.sockets[0].getsockname()[1]
        self.session_deadlines_changed()
        self._schedule_containers()
        self.logger.info(
            "serving %d znodes and %d sessions at transaction %#x on %s:%d",
            self.engine.tree.count,
            len(self.engine.sessions),
            self.engine.tree.zxid,
            self.config.host,
            self._port,
        )

    def _protocols(self) -> Callable[[], asyncio.BaseProtocol]:
        """Makes the protocols of connections."""
        context = self.config.tls
        if context is None:
            return lambda: Connection(self)
        # With OpenSSL behind it, which a coordinator without TLS does not load.
        from barnabas.coordination.embedded.secured import tls_of_server

        tls = self._tls = tls_of_server(self._host, context, self.logger)
        return lambda: tls.secured(Connection(self))

    def exchange_tls(self, context: ssl.SSLContext) -> None:
        """Has connections from now on secured by another context, where they are secured."""
        if self._tls is not None:
            self._tls.end.context = context

    async def stop(self) -> None:
        """Stops listening, answers what was received, closes every connection and leaves the data directory."""
        if self._stopping:
            return
        self._stopping = True
        if self._listener is None:
            return
        self._listener.close()
        self._cancel_timers()
        self.budget.finish_alone()
        # Before waiting for the disk, so that no request begins a transaction that nobody waits for.
        for connection in list(self._connections):
            connection.finish()
        # What is left of sessions that are being closed stays in the log, as after a crash.
        self.budget.close()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._leave_directory()
        except TimeoutError:
            self.logger.error(  # noqa: TRY400 - the trace says nothing
                "the disk did not answer for %g s; stopping without it: what was not acknowledged may be lost",
                STOP_SECONDS,
            )
        await self._wait_until_closed()
        for connection in list(self._connections):
            connection.abort()
        await self._wait_until_closed()

    async def _leave_directory(self) -> None:
        await self.engine.commits.when_durable(self.engine.tree.zxid)
        if self._snapshot is not None:
            self._snapshot.cancel()
            await asyncio.wait([self._snapshot])
        await self._storage.close()

    async def _wait_until_closed(self) -> None:
        if self._transports:
            self._all_closed = self.loop.create_future()
            await asyncio.wait([self._all_closed], timeout=CLOSE_SECONDS)

    # What connections need.

    def admit(self, connection: Connection) -> bool:
        address = connection.peer[0]
        count = self._connections_by_address.get(address, 0)
        config = self.config
        too_many = len(self._connections) >= self._connections_max
        too_many_there = 0 < config.connections_per_address_max <= count
        self._connections[connection] = None
        self._transports[connection] = None
        self._connections_by_address[address] = count + 1
        if self._stopping or self.failure.done() or too_many or too_many_there:
            self.logger.warning(
                "refusing a connection of %s: it has %d, all together are %d",
                address,
                count,
                len(self._connections) - 1,
            )
            return False
        return True

    def forget(self, connection: Connection) -> None:
        if connection not in self._connections:
            return
        del self._connections[connection]
        address = connection.peer[0]
        self._connections_by_address[address] -= 1
        if not self._connections_by_address[address]:
            del self._connections_by_address[address]

    def transport_closed(self, connection: Connection) -> None:
        self._transports.pop(connection, None)
        if self._all_closed is not None and not self._transports and not self._all_closed.done():
            self._all_closed.set_result(None)

    def command(self, word: bytes) -> Work[bytes] | None:
        if word not in commands.WORDS:
            return None
        return commands.answer(
            word,
            commands.Inspection(
                self.engine,
                self.config,
                list(self._connections),
                self._port,
                self.loop.time(),
                self._storage.size_bytes,
                self.long_turns,
            ),
        )

    def session_deadlines_changed(self) -> None:
        due_at = self.engine.sessions.next_due()
        if due_at is None or self._stopping:
            return
        if self._session_timer is not None:
            if self._session_timer_at <= due_at:
                return
            self._session_timer.cancel()
        self._session_timer_at = due_at
        self._session_timer = self.loop.call_at(due_at, self._look_at_sockets)

    # Sessions and containers.

    def _look_at_sockets(self) -> None:
        """After a stall of the loop, what clients sent in time lies in the sockets' buffers: two turns of the loop read
        it before anybody is judged silent.
        """
        self.loop.call_soon(self.loop.call_soon, self._expire_sessions)

    def _expire_sessions(self) -> None:
        self._session_timer = None
        if self._stopping or self.failure.done():
            return
        if self.budget.has_work_alone:
            self.budget.wait(self._expire_sessions)
            return
        self.engine.expire_sessions()
        self.session_deadlines_changed()

    def _schedule_containers(self) -> None:
        self._container_timer = self.loop.call_later(
            self.config.container_check_interval_ms / 1000, self._check_containers
        )

    def _check_containers(self) -> None:
        if self.budget.has_work_alone:
            self.budget.wait(self._check_containers)
            return
        if self._stopping or self.failure.done():
            return
        self.engine.delete_unused_containers()
        self._schedule_containers()

    # Durability.

    def _on_durable(self, count: int) -> None:
        self._unsaved_transactions += count
        config = self.config
        due = (
            self._unsaved_transactions >= config.snapshot_transactions
            or self._storage.log_bytes >= config.snapshot_log_bytes
        )
        busy = (
            self._stopping
            or (self._snapshot is not None and not self._snapshot.done())
            # A transaction is half done: the next one that is durable brings the snapshot.
            or self.budget.has_work_alone
        )
        if not due or busy:
            return
        self._unsaved_transactions = 0
        sessions = self.engine.sessions
        image = SnapshotImage(self.engine.tree, sessions.stored(), sessions.highest_id)
        durable = self.engine.commits.when_durable(image.zxid)
        self._storage.continue_after(image.zxid)
        self._snapshot = self.loop.create_task(self._take_snapshot(image, durable), name="coordinator-snapshot")

    async def _take_snapshot(self, image: SnapshotImage, durable: asyncio.Future[bool]) -> None:
        began_at = self.loop.time()
        try:
            size_bytes = await self._storage.write_snapshot(image, durable)
        except OSError as error:
            self.logger.error(  # noqa: TRY400 - the error says it all
                "no snapshot could be written (%s); the log grows until one can", error
            )
            return
        finally:
            image.close()
        self.logger.info(
            "snapshot at transaction %#x: %d bytes in %.2f s", image.zxid, size_bytes, self.loop.time() - began_at
        )

    def _on_failure(self, error: BaseException) -> None:
        """Nothing more can become durable: nothing more may be answered."""
        if isinstance(error, OSError):
            reason = f"the transaction log in {self.config.data_directory} cannot be written ({error})"
            remedy = "free space or repair the disk, then start the coordinator again"
        else:
            reason = f"the coordinator met {error!r}"
            remedy = "please report it, and start the coordinator again"
        failure = CoordinatorFailedError(f"{reason}; {remedy}: it goes on from the last acknowledged transaction")
        self.logger.critical("%s", failure)
        self._cancel_timers()
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._connections):
            connection.abort()
        if not self.failure.done():
            self.failure.set_result(failure)

    def _cancel_timers(self) -> None:
        for timer in (self._session_timer, self._container_timer):
            if timer is not None:
                timer.cancel()
