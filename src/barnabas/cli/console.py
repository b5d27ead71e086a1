"""`barnabas console`: the cluster in a browser."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

import click

from barnabas.cli.command_config import COMMAND_CONFIG_VARIABLE, login_of_command
from barnabas.cli.connection import (
    BOOTSTRAP_VARIABLE,
    CommandError,
    ExitStatus,
    bootstrap_option,
    run_on_host,
)
from barnabas.cli.output import announce

if TYPE_CHECKING:
    from barnabas.kernel.real_host import RealHost

DEFAULT_HTTP_PORT: Final = 8090


@click.command(name="console", short_help="Show a cluster in a browser.")
@click.option(
    "--port",
    default=DEFAULT_HTTP_PORT,
    show_default=True,
    type=click.IntRange(0, 65_535),
    help="Where to listen; 0 takes a free port.",
)
@click.option("--host", "address", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--allow-name",
    "names",
    multiple=True,
    metavar="NAME",
    help="A further name that browsers know it by, such as that of a proxy in front of it; may be repeated.",
)
@click.option(
    "--no-login",
    is_flag=True,
    help="Listen on an address that others reach, though the console has no login: whoever comes sees every record.",
)
@click.option("--json", "as_json", is_flag=True, help="Print where it is, or why it ended, as a line of JSON.")
@click.option("--stop-with-parent", is_flag=True, hidden=True)
@bootstrap_option
def command(
    port: int,
    address: str,
    names: tuple[str, ...],
    no_login: bool,
    as_json: bool,
    stop_with_parent: bool,
    bootstrap: str,
) -> None:
    """Show a cluster in a browser: what is wrong first, brokers, topics, the controller, groups, records.

    It only reads, and works with Apache Kafka's brokers too. It starts also where no broker answers, and says so.
    Whoever opens it sees what its own login may see. Ctrl-C ends it.
    """

    async def body(host: RealHost) -> None:
        from barnabas.console.access import is_loopback
        from barnabas.console.serve import serve

        if not is_loopback(address) and not no_login:
            raise CommandError(
                f"others reach {address}, and the console has no login: use 127.0.0.1 and a tunnel, or a proxy with a "
                "login; or say --no-login, and whoever comes sees the cluster and its records",
                ExitStatus.USAGE,
            )
        servers = tuple(server.strip() for server in bootstrap.split(",") if server.strip())
        logger = logging.getLogger("barnabas.console")
        logger.setLevel(logging.ERROR)
        try:
            login = login_of_command()
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint=f"--command-config or {COMMAND_CONFIG_VARIABLE}") from error

        def is_ready(url: str) -> None:
            announce(json.dumps({"url": url}) if as_json else f"Console of {', '.join(servers)} at {url}")

        try:
            serving = serve(host, servers, address, port, logger, names=names, login=login, on_ready=is_ready)
            await (_until_parent_ends(host, serving) if stop_with_parent else serving)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint=f"--bootstrap-server or {BOOTSTRAP_VARIABLE}") from error
        except OSError as error:
            if isinstance(error, ConnectionError):
                raise
            reason = error.strerror or str(error)
            raise CommandError(
                f"it cannot listen at {address}:{port}: {reason}; choose another with --port or --host"
            ) from error

    async def told(host: RealHost) -> None:
        try:
            await body(host)
        except (CommandError, click.ClickException) as error:
            if as_json:
                said = error.format_message() if isinstance(error, click.ClickException) else str(error)
                announce(json.dumps({"error": said}))
            raise

    run_on_host(told, interrupted=ExitStatus.DONE)


async def _until_parent_ends(host: RealHost, serving: Coroutine[Any, Any, None]) -> None:
    """Serves until standard input is over, or a signal comes."""
    from barnabas.kernel.real_host import stop_on_signals
    from barnabas.kernel.real_program import stop_at_end_of_input

    stop = stop_on_signals(host.loop)
    stop_at_end_of_input(host.loop, stop)
    running = host.loop.create_task(serving)
    stopped = host.loop.create_task(stop.wait())
    await asyncio.wait([running, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not running.done():
        running.cancel()
        await asyncio.wait([running])
    if not running.cancelled():
        running.result()
