"""Runs the console: a client, the poller, and the pages, until it is cancelled."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from barnabas.client.client import Client
from barnabas.client.errors import ClientTimeoutError
from barnabas.client.settings import ClientSettings
from barnabas.console.access import Access, Tokens
from barnabas.console.app import App
from barnabas.console.changes import Changes
from barnabas.console.configs import ConfigReader
from barnabas.console.http import HttpServer
from barnabas.console.logins import Logins
from barnabas.console.pipelines import ReadFiles
from barnabas.console.poller import Poller
from barnabas.console.records_read import RecordReader
from barnabas.kernel.host import Host
from barnabas.sasl.mechanisms import AnyLogin
from barnabas.security.login_files import User

if TYPE_CHECKING:
    import asyncio
    import ssl

    from barnabas.link.clear import BeginningPlain

REQUEST_TIMEOUT_MS: Final = 4_000
_FIRST_ANSWER_MS: Final = 2_000
"""How long the first page waits for the cluster; where it does not answer, pages say so."""


async def serve(
    host: Host,
    bootstrap_servers: Iterable[str],
    address: str,
    port: int,
    logger: logging.Logger,
    *,
    names: Iterable[str] = (),
    login: AnyLogin | None = None,
    tls: ssl.SSLContext | None = None,
    own_tls: Callable[[], ssl.SSLContext] | None = None,
    users: Mapping[str, User] | None = None,
    may_change: bool = False,
    on_change: Callable[[str], object] = lambda _: None,
    read_files: ReadFiles | None = None,
    pace: float = 1.0,
    on_ready: Callable[[str], object] = lambda _: None,
) -> None:
    """Serves pages at `address` until it is cancelled; `on_ready` is told where, as a URL. It starts whether or not a
    broker answers.

    `names` are further names that browsers may know it by; `login` is for brokers that want one, and `tls` for
    those that are secured; with `own_tls`, asked for each connection, the pages come by TLS; `users` have to log in to
    the console, None lets in whoever reaches it. Where it `may_change` the cluster, `on_change` is told of each change;
    `read_files` reads the files of pipelines that it shows. With a higher `pace` brokers are asked so many times as
    often. Raises OSError where it cannot listen, AuthenticationFailedError where the login is refused at the start, and
    ValueError for bootstrap servers that are none.
    """
    servers = tuple(bootstrap_servers)
    settings = ClientSettings(
        bootstrap_servers=servers,
        client_id="barnabas-console",
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        api_timeout_ms=REQUEST_TIMEOUT_MS,
        login=login,
        tls=tls,
    )
    client = Client(host, settings, logger)
    poller = Poller(client, pace=pace, read_files=read_files)
    configs = ConfigReader(client, pace=pace)
    changes = Changes(client, on_change) if may_change else None
    app = App(
        poller,
        RecordReader(client),
        Access(address, names),
        Tokens(host.entropy(32)),
        configs,
        ", ".join(servers),
        changes=changes,
        logins=None if users is None else Logins(host, users, is_secure=own_tls is not None),
    )
    server = HttpServer(
        host.loop,
        app.answer,
        logger,
        refuses_forms=not may_change and users is None,
        secured=None if own_tls is None else _secured(host, own_tls, logger),
    )
    try:
        bound = await server.start(address, port)
        with contextlib.suppress(ClientTimeoutError):
            await client.start(_FIRST_ANSWER_MS)
        on_ready(f"http{'' if own_tls is None else 's'}://{_in_url(address)}:{bound}/")
        await poller.run()
    finally:
        await server.stop()
        if changes is not None:
            await changes.close()
        await configs.close()
        await poller.close()
        await client.close()


def _secured(
    host: Host, context: Callable[[], ssl.SSLContext], logger: logging.Logger
) -> Callable[[BeginningPlain], asyncio.BaseProtocol]:
    from barnabas.console.tls import SecuredPages  # and OpenSSL

    return SecuredPages(host, context, logger).secured


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address
