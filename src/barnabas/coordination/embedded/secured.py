"""TLS of the embedded coordinator's port; who shows a certificate is `x509:` and its subject, as in ZooKeeper."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from barnabas.coordination.embedded.connection import Connection
from barnabas.coordination.embedded.logins import X509
from barnabas.coordination.protocol import Id
from barnabas.coordination.secured import TlsOfCoordination
from barnabas.kernel.timers import Timers
from barnabas.link.handshakes import Handshakes
from barnabas.link.tls_end import TlsEnd
from barnabas.tls.distinguished_names import subject_name

if TYPE_CHECKING:
    import ssl

    from barnabas.kernel.host import Host


def tls_of_server(host: Host, context: ssl.SSLContext, logger: logging.Logger) -> TlsOfCoordination:
    """For the connections of one server."""
    timers = Timers(host.loop)
    end = TlsEnd(context, Handshakes(host.loop, timers, host.offload), is_server=True, when_secured=_secured)
    return TlsOfCoordination(host.loop, timers, end, logger)


def _secured(clear: Any, certificate: bytes | None) -> None:
    """Before any byte of the client is handled. Raises NoPrincipalError."""
    connection = clear.plain
    if certificate is not None and isinstance(connection, Connection):
        connection.prove(Id(X509, subject_name(certificate)))
