"""Which connections wait before the broker takes them, since too many come in a second (KIP-612).

Kafka's acceptor blocks: the connection that is one too many waits, and behind it all others of its listener, which the
system holds. Here they are held by the broker, unread, in the order in which they came; as many as the system would
hold (`socket.listen.backlog.size`), and what comes then is closed. From an address that makes too many, a connection is
held unread and then closed, so that it is not made anew at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import logging

    from barnabas.kernel.timers import Timer, Timers
    from barnabas.network.config import ListenerConfig
    from barnabas.network.connection import ServerConnection
    from barnabas.quotas.connection_rates import ConnectionRates

HELD_MAX: Final = 1024
"""Connections that are held to be closed; more are closed at once."""


class _Line:
    """The connections that wait at one listener."""

    __slots__ = ("first", "others", "timer")

    def __init__(self) -> None:
        self.first: ServerConnection | None = None
        """Whose wait it is; None if there is none, or it has gone meanwhile."""
        self.others: deque[ServerConnection] = deque()
        self.timer: Timer | None = None
        """The end of the wait."""


class Admission:
    """Those of one broker."""

    def __init__(
        self,
        rates: ConnectionRates,
        timers: Timers,
        now: Callable[[], float],
        let_in: Callable[[ServerConnection], object],
        logger: logging.Logger,
    ) -> None:
        """`let_in(connection)` is called for those that have waited; `now` is the loop's clock."""
        self._rates = rates
        self._timers = timers
        self._now = now
        self._let_in = let_in
        self._logger = logger
        self._lines: dict[str, _Line] = {}
        self._held: dict[ServerConnection, Timer] = {}
        """To be closed."""

    @property
    def waiting(self) -> int:
        """How many wait to be let in, or to be closed."""
        lines = sum(len(line.others) + (line.first is not None) for line in self._lines.values())
        return lines + len(self._held)

    def take(self, connection: ServerConnection) -> bool:
        """Whether a new connection may come in at once. Else it is muted, and let in or closed later, or is closed."""
        listener = connection.listener
        line = self._lines.get(listener.name)
        if line is None:
            line = self._lines[listener.name] = _Line()
        if line.timer is None:
            return self._begin(line, connection)
        if len(line.others) >= listener.backlog:
            connection.abort()
            return False
        connection.mute()
        line.others.append(connection)
        return False

    def forget(self, connection: ServerConnection) -> bool:
        """The connection has ended; whether it was not let in yet. Those behind it wait on, as in Kafka."""
        timer = self._held.pop(connection, None)
        if timer is not None:
            timer.cancel()
            return True
        line = self._lines.get(connection.listener.name)
        if line is None:
            return False
        if line.first is connection:
            line.first = None
            return True
        if connection in line.others:
            line.others.remove(connection)
            return True
        return False

    def close(self) -> None:
        """Lets nobody in any more."""
        for timer in [line.timer for line in self._lines.values()] + list(self._held.values()):
            if timer is not None:
                timer.cancel()

    def _begin(self, line: _Line, connection: ServerConnection) -> bool:
        """A connection has its turn: whether it may come in now."""
        listener = connection.listener
        seconds = self._rates.accept(listener.name, self._now(), is_protected=listener.is_protected)
        if seconds > 0:
            self._logger.debug("The connection with %s waits %.3f s, as all behind it", connection.peer, seconds)
            connection.mute()
            line.first = connection
            line.timer = self._timers.call_after(seconds * 1000, self._end, line)
            return False
        return self._is_from_allowed(connection, listener)

    def _end(self, line: _Line) -> None:
        """A wait is over: its connection may come in, and then the others have their turns."""
        first, line.first, line.timer = line.first, None, None
        if first is not None and self._is_from_allowed(first, first.listener):
            self._let_in(first)
        while line.others and line.timer is None:
            connection = line.others.popleft()
            if self._begin(line, connection):
                self._let_in(connection)

    def _is_from_allowed(self, connection: ServerConnection, listener: ListenerConfig) -> bool:
        seconds = self._rates.accept_from(
            connection.address, listener.name, self._now(), is_protected=listener.is_protected
        )
        if not seconds:
            return True
        self._logger.debug("The connection with %s is closed in %.3f s", connection.peer, seconds)
        if len(self._held) >= HELD_MAX:
            connection.abort()
        else:
            connection.mute()
            self._held[connection] = self._timers.call_after(seconds * 1000, connection.abort)
        return False
