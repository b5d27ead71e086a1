"""TLS of connections to ZooKeeper, either end: what is between a connection here and `link.tls`.

That layer has handshakes done by threads, bounded in number, time and bytes, and encrypts what is read (decision 0032).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from barnabas.kernel.timers import Timers
from barnabas.link.clear import Plain, clear
from barnabas.link.connection import LinkContext
from barnabas.link.handshakes import Handshakes
from barnabas.link.limits import LinkLimits
from barnabas.link.tls import TlsConnection
from barnabas.link.tls_end import TlsEnd

if TYPE_CHECKING:
    import ssl

    from barnabas.kernel.host import Host

_BUFFER_BYTES: Final = 64 * 1024
_REASONS_TOLD_MAX: Final = 32


class TlsOfCoordination:
    """One end of all connections with TLS of a client or of a server."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timers: Timers, end: TlsEnd, logger: logging.Logger) -> None:
        self.end = end
        self._context = LinkContext.of(loop, timers, LinkLimits(), logger)
        self._received = memoryview(bytearray(_BUFFER_BYTES))
        """Of all connections: each takes what is in it at once."""
        self._logger = logger
        self._told: set[str] = set()
        """Why a client's connections have ended since the last that went well."""

    def ended(self, reason: str, *, was_well: bool) -> None:
        """A client's connection has; what a person must mend is said once, since it tries for ever: it is mostly a
        certificate, and not that no server runs.
        """
        if was_well:
            self._told.clear()
        elif reason not in self._told and len(self._told) < _REASONS_TOLD_MAX:
            self._told.add(reason)
            self._logger.warning("No connection to ZooKeeper: %s", reason)

    def secured(self, plain: Plain, server_name: str | None = None) -> TlsConnection:
        """The protocol of a new connection, which `plain` sends and receives over. A client gives the name that the
        server's certificate must have.
        """
        return TlsConnection(self._context, clear(plain, self._received), self.end, server_name)


def tls_of_client(host: Host, context: ssl.SSLContext, logger: logging.Logger) -> TlsOfCoordination:
    """For the connections of one client."""
    timers = Timers(host.loop)
    end = TlsEnd(context, Handshakes(host.loop, timers, host.offload), goes_first=True)
    return TlsOfCoordination(host.loop, timers, end, logger)
