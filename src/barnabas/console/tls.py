"""TLS of the console's pages: `link.tls`, whose handshakes are done by threads, between HTTP and the transport.

A connection counts, and its time runs, from when it was made, not from the end of its handshake. How many there may be
is HTTP's to say (`link.places`), so all of them may begin their handshakes; those that came last are worked on first,
since who came long ago in a flood may be gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from barnabas.kernel.timers import Timers
from barnabas.link.clear import begin, clear
from barnabas.link.connection import LinkContext
from barnabas.link.handshakes import Handshakes
from barnabas.link.limits import LinkLimits
from barnabas.link.places import COME_MAX
from barnabas.link.tls import TlsConnection
from barnabas.link.tls_end import TlsEnd

if TYPE_CHECKING:
    import asyncio
    import ssl

    from barnabas.kernel.host import Host
    from barnabas.link.clear import BeginningPlain

_RECEIVED_BYTES: Final = 16 * 1024
_TO_PLAIN_HTTP: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 41\r\n"
    b"Connection: close\r\n\r\nthis port speaks TLS: ask by https://...\n"
)


class SecuredPages:
    """Secures the connections of one server."""

    def __init__(self, host: Host, context: Callable[[], ssl.SSLContext], logger: logging.Logger) -> None:
        """`context` is asked for each connection."""
        timers = Timers(host.loop)
        self._link = LinkContext.of(host.loop, timers, LinkLimits(), logger)
        handshakes = Handshakes(host.loop, timers, host.offload, of_one_owner=COME_MAX)
        self._asked = context
        self._end = TlsEnd(context(), handshakes, is_server=True, when_secured=begin, to_plain_http=_TO_PLAIN_HTTP)
        self._received = memoryview(bytearray(_RECEIVED_BYTES))

    @property
    def handshakes(self) -> Handshakes:
        """Those that are under way."""
        return self._end.handshakes

    def secured(self, plain: BeginningPlain) -> asyncio.BaseProtocol:
        """The protocol of a new connection."""
        self._end.context = self._asked()
        return TlsConnection(self._link, clear(plain, self._received), self._end)
