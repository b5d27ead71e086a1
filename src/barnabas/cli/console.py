"""`barnabas console`: the cluster in a browser."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

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
@bootstrap_option
def command(port: int, address: str, names: tuple[str, ...], no_login: bool, bootstrap: str) -> None:
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
        try:
            await serve(
                host,
                servers,
                address,
                port,
                logger,
                names=names,
                login=login,
                on_ready=lambda url: announce(f"Console of {', '.join(servers)} at {url}"),
            )
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint=f"--bootstrap-server or {BOOTSTRAP_VARIABLE}") from error
        except OSError as error:
            if isinstance(error, ConnectionError):
                raise
            reason = error.strerror or str(error)
            raise CommandError(
                f"it cannot listen at {address}:{port}: {reason}; choose another with --port or --host"
            ) from error

    run_on_host(body, interrupted=ExitStatus.DONE)
