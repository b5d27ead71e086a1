"""How the connections of one listener are secured, or those to one kind of brokers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from barnabas.link.connection import Connection
    from barnabas.link.handshakes import Handshakes


@dataclass(slots=True)
class TlsEnd:
    """How the connections of one listener, or those to one kind of brokers, are secured.

    `context` may be replaced: connections from then on have the new one.
    """

    context: ssl.SSLContext
    handshakes: Handshakes
    is_server: bool = False
    goes_first: bool = False
    """Its handshakes are worked on before others."""
    when_secured: Callable[[Connection, bytes | None], object] | None = None
    """Called with the peer's certificate (DER), if it has shown one, before any byte of it is handled. What it raises,
    a ValueError, ends the connection as a handshake that fails does."""
    when_failed: Callable[[], object] | None = None
    """Called for each handshake that failed, but for peers that just went away."""
    to_plain_http: bytes = b""
    """What a peer is told that speaks HTTP and no TLS, in place of an alert."""
