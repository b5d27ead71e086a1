"""Somebody at a simulated cluster who asks a broker of his choice, once, logged in or not."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from barnabas.client.client import Client
from barnabas.client.errors import ClientError
from barnabas.client.settings import ClientSettings
from barnabas.link.errors import AuthenticationFailedError
from barnabas.link.outgoing import OutgoingSettings
from barnabas.sasl.mechanisms import Login

if TYPE_CHECKING:
    import ssl

    from barnabas.kernel.host import Host
    from barnabas.sasl.mechanisms import AnyLogin

_REQUEST_MS: Final = 4_000


class AskingUser:
    """Close its `client` at the end."""

    def __init__(self, host: Host, login: AnyLogin | None, port: int, tls: ssl.SSLContext | None = None) -> None:
        """`port` is that of the listener, of all brokers; `tls` secures the connections."""
        settings = ClientSettings(
            bootstrap_servers=(f"broker1:{port}",),
            request_timeout_ms=_REQUEST_MS,
            login=login,
            tls=tls,
            outgoing=OutgoingSettings(connect_timeout_ms=2_000, connect_timeout_ms_max=4_000),
        )
        self.client = Client(host, settings, logging.getLogger(f"barnabas.simulated.{host.name}"))
        self.name = login.username if isinstance(login, Login) else ""
        self.login = login
        self.has_asked = False
        """A broker has let it ask, and perhaps not answered."""
        self._port = port
        self._lane = self.client.connections.new_lane()

    async def ask(self, broker_id: int, message: Any, version: int) -> Any:
        """The answer of a broker; None where there was none. Raises AuthenticationFailedError."""
        outgoing = self.client.connections.to_address(self._lane, f"broker{broker_id}", self._port)
        try:
            await outgoing.ready(_REQUEST_MS)
            self.has_asked = True
            return await outgoing.send(message, version, _REQUEST_MS)
        except (ClientError, OSError) as error:
            if isinstance(error, AuthenticationFailedError):
                raise
            return None
