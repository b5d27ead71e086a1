"""Listeners, and every connection that came in by them."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from barnabas.kernel.host import Host, files_kept
from barnabas.kernel.metrics import MetricName, MetricsRegistry
from barnabas.kernel.system_errors import reason
from barnabas.kernel.tick import Tick
from barnabas.kernel.timers import Timers
from barnabas.link.buffers import BufferPool
from barnabas.link.connection import LinkContext
from barnabas.network.admission import Admission
from barnabas.network.config import ListenerConfig, NetworkConfig
from barnabas.network.connection import ServerConnection
from barnabas.network.ports import RequestHandler
from barnabas.network.request_memory import RequestMemory
from barnabas.network.request_queue import RequestQueue
from barnabas.quotas.connection_rates import ConnectionRates
from barnabas.quotas.settings import ClientQuotaSettings

_CHANNEL: Final = "RequestChannel"


class NetworkServer:
    """All listeners of one broker. Everything of it runs on the host's loop."""

    def __init__(
        self,
        host: Host,
        timers: Timers,
        config: NetworkConfig,
        handler: RequestHandler[ServerConnection],
        logger: logging.Logger,
        metrics: MetricsRegistry,
        *,
        tick: Tick,
        pool: BufferPool,
        rates: ConnectionRates | None = None,
    ) -> None:
        """`tick` and `pool` belong to the loop, and are shared with outgoing connections and with the appends that are
        joined. `rates` bounds how many connections come in a second.
        """
        self.handler = handler
        self.queue = RequestQueue(tick, config.queued_requests_max)
        self.memory = RequestMemory(timers, config.queued_request_bytes_max)
        self.requests_received = 0
        self.connections_refused = 0
        self.connections_displaced = 0
        """Clients' that a broker's has taken the place of."""
        self._host = host
        self._timers = timers
        self._config = config
        self._logger = logger
        self._metrics = metrics
        self._context = LinkContext.of(host.loop, timers, config.link, logger, tick=tick, pool=pool)
        self._servers: dict[str, asyncio.AbstractServer] = {}
        self._connections: dict[ServerConnection, None] = {}
        self._counted: dict[ServerConnection, None] = {}
        """Those that were let in, in that order."""
        self._by_listener: dict[str, int] = {}
        self._listener_bounds: dict[str, int] = {}
        """The bounds of listeners that have others now than at the start."""
        self._by_address: dict[str, int] = {}
        self._limited = 0
        self._rates = rates or ConnectionRates(ClientQuotaSettings())
        self._admission = Admission(self._rates, timers, host.loop.time, self._let_in_later, logger)
        self._closing = False
        self._emptied: asyncio.Future[None] | None = None
        self._names: list[MetricName] = []
        self._gauge(MetricName("kafka.network", _CHANNEL, "RequestQueueSize"), lambda: self.queue.queued)
        frames = self.memory.frames
        for name, read in (
            ("MemoryPoolUsed", lambda: frames.held),
            ("MemoryPoolAvailable", lambda: frames.bytes_max - frames.held),
        ):
            self._gauge(MetricName("kafka.network", "SocketServer", name), read)
        self._gauge(MetricName("barnabas.network", "RequestMemory", "RequestsWaiting"), lambda: self.memory.waiting)
        self._gauge(MetricName("kafka.server", "socket-server-metrics", "connection-count"), lambda: self.connections)
        self._gauge(
            MetricName("kafka.server", "socket-server-metrics", "request-total"), lambda: self.requests_received
        )
        self._gauge(
            MetricName("kafka.server", "socket-server-metrics", "broker-connection-accept-rate"),
            lambda: self._rates.measure(None, host.loop.time()),
        )

    @property
    def connections(self) -> int:
        """How many connections there are, of all listeners."""
        return len(self._connections)

    async def listen(self, listeners: Sequence[ListenerConfig]) -> dict[str, int]:
        """Starts to listen; returns the port of each listener by its name.

        Raises OSError, with the listener's name, if one cannot; then none listens.
        """
        ports: dict[str, int] = {}
        try:
            for listener in listeners:
                ports[listener.name] = await self._listen(listener)
        except BaseException:
            self._close_servers()
            raise
        return ports

    def limit_connections(
        self, connections_max: int, connections_per_ip_max: int, of_listeners: Mapping[str, int] | None = None
    ) -> None:
        """Takes other bounds for connections that come from now on; those that there are stay. `of_listeners` has the
        listeners' own, by name.
        """
        self._config = dataclasses.replace(
            self._config, connections_max=connections_max, connections_per_ip_max=connections_per_ip_max
        )
        self._listener_bounds.update(of_listeners or {})

    def forget_fast_paths(self) -> None:
        """Has the next request of each connection looked at anew: its handler may be another now."""
        for connection in self._connections:
            fast_path, connection.fast_path = connection.fast_path, None
            if fast_path is not None and connection.collected:
                fast_path.finish()

    async def close(self, drain_ms: float) -> bool:
        """Stops listening and reading, lets requests on their way be answered for `drain_ms`, then closes all.

        False if connections had to be cut off.
        """
        self._closing = True
        self._close_servers()
        self._admission.close()
        drained = True
        for connection in list(self._connections):
            connection.drain()
        if self._connections:
            drained = await self._wait_until_empty(drain_ms)
            if not drained:
                for connection in list(self._connections):
                    connection.abort()
                # The transports report their ends in the next turns of the loop, whatever the peers do.
                await self._wait_until_empty(drain_ms)
        self.memory.close()
        for name in self._names:
            self._metrics.remove(name)
        self._names.clear()
        return drained

    # The connections' calls.

    def opened(self, connection: ServerConnection) -> bool:
        """Lets a connection in, or closes it because there are too many, or has it wait because too many come."""
        self._connections[connection] = None
        if self._closing:
            connection.abort()
            return False
        no_file_left = self._reason_of_files(connection)
        if no_file_left:
            self.connections_refused += 1
            connection.fail(no_file_left)
            return False
        return (connection.listener.is_control_plane or self._admission.take(connection)) and self._let_in(connection)

    def _let_in_later(self, connection: ServerConnection) -> None:
        """As `opened`, for one that has waited."""
        if connection.is_open and not self._closing and self._let_in(connection):
            connection.announce()
            connection.unmute()

    def _let_in(self, connection: ServerConnection) -> bool:
        """Counts a connection and sets its socket up, or closes it because there are too many."""
        address, listener = connection.address, connection.listener
        self._counted[connection] = None
        self._by_listener[listener.name] = self._by_listener.get(listener.name, 0) + 1
        if not listener.is_control_plane:
            self._limited += 1
            self._by_address[address] = self._by_address.get(address, 0) + 1
            reason = self._reason_to_refuse(address, listener)
            if reason:
                self.connections_refused += 1
                connection.fail(reason)
                return False
            if self._limited > self._config.connections_max:
                self._make_room()
        self._set_up_socket(connection)
        return True

    def _make_room(self) -> None:
        """A broker has come beyond `max.connections`: the quietest client goes, as in Kafka."""
        clients = [
            each
            for each in self._counted
            if each.is_open and not each.listener.is_protected and not each.listener.is_control_plane
        ]
        quietest = min(clients, key=lambda each: each.quietness, default=None)
        if quietest is not None:
            self.connections_displaced += 1
            quietest.fail("a broker needs its place, and it was the quietest; max.connections are there")

    def closed(self, connection: ServerConnection) -> None:
        """Takes a connection off every count."""
        if connection not in self._connections:
            return
        del self._connections[connection]
        self._admission.forget(connection)
        if connection in self._counted:
            del self._counted[connection]
            _decrease(self._by_listener, connection.listener.name)
            if not connection.listener.is_control_plane:
                self._limited -= 1
                _decrease(self._by_address, connection.address)
        if not self._connections and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    # Inside.

    async def _listen(self, listener: ListenerConfig) -> int:
        factory = self._factory(listener)
        try:
            server = await self._host.loop.create_server(
                factory, listener.host, listener.port, backlog=listener.backlog
            )
        except OSError as error:
            place = f"{listener.host or '*'}:{listener.port}"
            raise OSError(
                error.errno, f"listener {listener.name} cannot be bound to {place}: {reason(error)}"
            ) from error
        self._servers[listener.name] = server
        port = int(server.sockets[0].getsockname()[1])
        tags = (("listener", listener.name),)
        self._gauge(
            MetricName("kafka.server", "socket-server-metrics", "connection-count", tags),
            lambda: self._by_listener.get(listener.name, 0),
        )
        self._gauge(
            MetricName("kafka.server", "socket-server-metrics", "connection-accept-rate", tags),
            lambda: self._rates.measure(listener.name, self._host.loop.time()),
        )
        self._logger.info("Listener %s accepts connections on %s:%d", listener.name, listener.host or "*", port)
        return port

    def _factory(self, listener: ListenerConfig) -> Callable[[], asyncio.BaseProtocol]:
        plain = functools.partial(ServerConnection, self._context, self, listener)
        tls = listener.tls
        if tls is None:
            return plain
        # With OpenSSL behind it, which a broker without TLS does not load.
        from barnabas.link.tls import TlsConnection

        return lambda: TlsConnection(self._context, plain(), tls)

    def _reason_of_files(self, connection: ServerConnection) -> str | None:
        """Why a connection is not taken that has one of the last files that this process may open: without any left, a
        log cannot begin a segment, and its directory has failed. Brokers' own have half of those that clients have not.
        """
        open_files_max, endpoint = self._config.open_files_max, connection.socket
        kept = files_kept(open_files_max)
        if connection.listener.is_protected or connection.listener.is_control_plane:
            kept //= 2
        # The system gives the lowest number that is free.
        if endpoint is None or endpoint.fileno() < open_files_max - kept:
            return None
        return f"the last {kept} of {open_files_max} open files (ulimit -n) are not for connections"

    def _reason_to_refuse(self, address: str, listener: ListenerConfig) -> str | None:
        config = self._config
        if self._limited > config.connections_max and not listener.is_protected:
            return f"there are already {config.connections_max} connections, the limit of max.connections"
        bound = self._listener_bounds.get(listener.name, listener.connections_max)
        if self._by_listener[listener.name] > bound:
            return f"listener {listener.name} has {bound} connections already, the limit of its max.connections"
        most = config.connections_per_ip_overrides.get(address, config.connections_per_ip_max)
        if self._by_address[address] > most:
            return f"its address has {most} connections already, the limit of max.connections.per.ip"
        return None

    def _set_up_socket(self, connection: ServerConnection) -> None:
        endpoint = connection.socket
        if endpoint is None:
            return
        try:
            endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._config.send_buffer_bytes >= 0:
                endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._config.send_buffer_bytes)
            if self._config.receive_buffer_bytes >= 0:
                endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._config.receive_buffer_bytes)
        except OSError as error:
            # The peer may have gone already; the loop finds out.
            self._logger.debug("Socket options for %s: %s", connection.peer, error)

    def _close_servers(self) -> None:
        for server in self._servers.values():
            server.close()
        self._servers.clear()

    async def _wait_until_empty(self, timeout_ms: float) -> bool:
        """True once there is no connection left; False after the time-out."""
        emptied = self._emptied = self._host.loop.create_future()
        if not self._connections:
            return True

        def give_up() -> None:
            if not emptied.done():
                emptied.set_result(None)

        timer = self._timers.call_after(timeout_ms, give_up)
        try:
            await emptied
        finally:
            timer.cancel()
        return not self._connections

    def _gauge(self, name: MetricName, read: Callable[[], float]) -> None:
        self._metrics.gauge(name, read)
        self._names.append(name)


def _decrease(counts: dict[str, int], key: str) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
