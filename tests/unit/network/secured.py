"""A listener with TLS that tests steer, and OpenSSL's own client at the other end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from barnabas.kernel.host import Host
from barnabas.kernel.real_host import run
from barnabas.link.handshakes import Handshakes
from barnabas.link.tls_end import TlsEnd
from barnabas.network.config import ListenerConfig, NetworkConfig
from barnabas.quotas.connection_rates import ConnectionRates
from tests.support.certificates import (
    Certified,
    broker_certificate,
    shared_authority,
)
from tests.unit.network.serving import Client, Serving, serving

Body = Callable[["Secure"], Coroutine[Any, Any, None]]
PATIENCE_SECONDS = 50.0


def server_context(certified: Certified | None = None, *, asks: bool = False) -> ssl.SSLContext:
    shown = certified or broker_certificate()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown.certificate, shown.key)
    context.num_tickets = 0
    if asks:
        context.load_verify_locations(shared_authority().certificate)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(certified: Certified | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(shared_authority().certificate)
    if certified is not None:
        context.load_cert_chain(certified.certificate, certified.key)
    return context


class Secure:
    """A listener with TLS that notes what becomes of handshakes."""

    def __init__(self, host: Host, context: ssl.SSLContext) -> None:
        self.host = host
        self.failed = 0
        self.certificates: list[bytes | None] = []
        self.refusal: Exception | None = None
        self.end = TlsEnd(
            context,
            None,  # type: ignore[arg-type]  # made where the timers are
            is_server=True,
            when_secured=self._secured,
            when_failed=self._failed,
        )
        self.serving: Serving = None  # type: ignore[assignment]
        self.clients: list[Client] = []

    @property
    def port(self) -> int:
        return self.serving.ports["TLS"]

    @property
    def handshakes(self) -> Handshakes:
        return self.end.handshakes

    def _secured(self, _connection: object, certificate: bytes | None) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.certificates.append(certificate)

    def _failed(self) -> None:
        self.failed += 1

    async def plain_client(self) -> Client:
        """Which has connected, and does as the test says."""
        client = await Client.connect(self.host, self.port)
        self.clients.append(client)
        return client

    async def client(self, context: ssl.SSLContext | None = None) -> Client:
        reader = asyncio.StreamReader(limit=1 << 22, loop=self.host.loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self.host.loop)
        transport, _ = await self.host.loop.create_connection(
            lambda: protocol, "127.0.0.1", self.port, ssl=context or client_context(), server_hostname="localhost"
        )
        client = Client(reader, asyncio.StreamWriter(transport, protocol, reader, self.host.loop))
        self.clients.append(client)
        return client

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds():
                await asyncio.sleep(0.005)


def scenario(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
    body: Body,
    context: ssl.SSLContext | None = None,
    config: NetworkConfig | None = None,
    rates: ConnectionRates | None = None,
) -> None:
    async def main(host: Host) -> None:
        secure = Secure(host, context or server_context())
        listener = ListenerConfig("TLS", "127.0.0.1", 0, tls=secure.end)
        plain = ListenerConfig("PLAIN", "127.0.0.1", 0)
        async with _served(host, secure, config, listener, plain, rates=rates):
            try:
                async with asyncio.timeout(240):
                    await body(secure)
            finally:
                for client in secure.clients:
                    with contextlib.suppress(OSError):  # TLS's errors among them
                        await client.close()

    run(main, loop_factory=loop_factory)


@contextlib.asynccontextmanager
async def _served(
    host: Host,
    secure: Secure,
    config: NetworkConfig | None,
    *listeners: ListenerConfig,
    rates: ConnectionRates | None = None,
) -> AsyncIterator[None]:
    async with serving(host, config, listeners[:0], rates=rates) as served:
        secure.serving = served
        served.server._logger.setLevel(logging.INFO)
        secure.end.handshakes = Handshakes(host.loop, served.timers, host.offload)
        served.ports = await served.server.listen(listeners)
        yield
