"""`barnabas console`: the cluster in a browser."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import logging
import os
import shlex
import stat
import sys
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from barnabas.cli.command_config import COMMAND_CONFIG_VARIABLE, access_of_command
from barnabas.cli.connection import (
    BOOTSTRAP_VARIABLE,
    CommandError,
    ExitStatus,
    bootstrap_option,
    run_on_host,
)
from barnabas.cli.output import announce

if TYPE_CHECKING:
    from barnabas.cli.console_certificate import OwnCertificate
    from barnabas.console.pipelines import ReadFiles
    from barnabas.kernel.real_host import RealHost
    from barnabas.security.login_files import User

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
    help="Listen on an address that others reach without a login: whoever comes sees every record.",
)
@click.option(
    "--login-file",
    type=click.Path(),
    metavar="FILE",
    help="Who may log in: lines NAME:ROLE:HASH, which --new-login makes. Without it there is no login.",
)
@click.option(
    "--tls-certificate",
    type=click.Path(),
    metavar="FILE",
    help="Serve pages by TLS (https) with this certificate, and those between it and its authority, in PEM.",
)
@click.option("--tls-key", type=click.Path(), metavar="FILE", help="Its private key, in PEM.  [default: the same file]")
@click.option(
    "--allow-changes",
    is_flag=True,
    help="Records can be written, moves of partitions cancelled, leaders elected, and configs set from the pages.",
)
@click.option(
    "--pipeline",
    "pipeline_files",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="A pipeline that runs on this machine: the console shows its batches too; may be repeated.",
)
@click.option(
    "--new-login",
    metavar="NAME",
    help="Ask for a password (or read a line of standard input), print the line for --login-file, and end.",
)
@click.option(
    "--role",
    type=click.Choice(["viewer", "operator"]),
    default="operator",
    show_default=True,
    help="Of --new-login: a viewer only looks, an operator changes what --allow-changes lets the console change.",
)
@click.option("--json", "as_json", is_flag=True, help="Print where it is, or why it ended, as a line of JSON.")
@click.option("--stop-with-parent", is_flag=True, hidden=True)
@bootstrap_option
def command(
    port: int,
    address: str,
    names: tuple[str, ...],
    no_login: bool,
    login_file: str | None,
    tls_certificate: str | None,
    tls_key: str | None,
    allow_changes: bool,
    pipeline_files: tuple[Path, ...],
    new_login: str | None,
    role: str,
    as_json: bool,
    stop_with_parent: bool,
    bootstrap: str,
) -> None:
    """Show a cluster in a browser: what is wrong first, brokers, topics, the controller, groups, records.

    It only reads unless --allow-changes is given, and works with Apache Kafka's brokers too. It starts also where no
    broker answers, and says so. Whoever opens it sees what its own login at the brokers may see. Ctrl-C ends it.
    """
    if new_login is not None:
        _print_login(new_login, role)
        return

    async def body(host: RealHost) -> None:
        from barnabas.console.serve import serve

        users = None if login_file is None else _users(login_file)
        if users is None:
            _refuse_address(address, no_login, allow_changes)
        own = _certificate(tls_certificate, tls_key)
        _warn_of_plain_passwords(address, is_plain=users is not None and own is None)
        servers = tuple(server.strip() for server in bootstrap.split(",") if server.strip())
        logger = _logger()
        try:
            access = access_of_command()
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint=f"--command-config or {COMMAND_CONFIG_VARIABLE}") from error

        def is_ready(url: str) -> None:
            announce(json.dumps({"url": url}) if as_json else f"Console of {', '.join(servers)} at {url}")

        try:
            serving = serve(
                host,
                servers,
                address,
                port,
                logger,
                names=names,
                login=access.login,
                tls=access.tls,
                own_tls=None if own is None else own.context,
                users=users,
                may_change=allow_changes,
                on_change=_tell_of_change,
                read_files=_reader_of(pipeline_files),
                on_ready=is_ready,
            )
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
                _announce_error(error)
            raise

    run_on_host(told, interrupted=ExitStatus.DONE)


def _announce_error(error: CommandError | click.ClickException) -> None:
    said = error.format_message() if isinstance(error, click.ClickException) else str(error)
    announce(json.dumps({"error": said}))


def _logger() -> logging.Logger:
    logger = logging.getLogger("barnabas.console")
    logger.setLevel(logging.ERROR)
    return logger


def _reader_of(paths: Sequence[Path]) -> ReadFiles | None:
    if not paths:
        return None
    from barnabas.cli.console_pipelines import reader_of

    return reader_of(paths)


def _refuse_address(address: str, no_login: bool, allow_changes: bool) -> None:
    """Without a login, others may see the cluster where that was asked for in so many words, and never change it."""
    from barnabas.console.access import is_loopback

    if is_loopback(address) or (no_login and not allow_changes):
        return
    if no_login:
        raise CommandError(
            f"others reach {address}, and without a login they would change the cluster: give --login-file, or leave "
            "--allow-changes away",
            ExitStatus.USAGE,
        )
    raise CommandError(
        f"others reach {address}: give --login-file, or use 127.0.0.1 and a tunnel, or a proxy with a login; or say "
        "--no-login, and whoever comes sees the cluster and its records",
        ExitStatus.USAGE,
    )


def _warn_of_plain_passwords(address: str, *, is_plain: bool) -> None:
    from barnabas.console.access import is_loopback

    if not is_plain or is_loopback(address):
        return
    click.echo(
        f"barnabas console: others reach {address}, and passwords go there as they are typed: give --tls-certificate, "
        "or let nobody but a proxy with TLS reach it",
        err=True,
    )


def _certificate(certificate: str | None, key: str | None) -> OwnCertificate | None:
    """How pages are served; None for plainly. Raises CommandError."""
    if certificate is None:
        if key is not None:
            raise click.UsageError("--tls-key goes with --tls-certificate")
        return None
    from barnabas.cli.console_certificate import OwnCertificate

    return OwnCertificate(certificate, key, _tell_of_change)


def _users(path: str) -> Mapping[str, User]:
    """Who may log in. Raises CommandError."""
    from barnabas.security.login_files import LOGIN_FILE_BYTES_MAX, read_users

    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_mode & stat.S_IRWXO:
                raise CommandError(f"others of this machine may read or write {path}: chmod o= {shlex.quote(path)}")
            text = file.read(LOGIN_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from error
    if len(text) > LOGIN_FILE_BYTES_MAX:
        raise CommandError(f"{path} is no file of logins: it has more than {LOGIN_FILE_BYTES_MAX} bytes")
    try:
        return read_users(text.decode())
    except ValueError as error:
        raise CommandError(
            f"{path}: {error}" if not isinstance(error, UnicodeError) else f"{path}: it is no text"
        ) from None


def _print_login(name: str, role: str) -> None:
    from barnabas.security.login_files import PASSWORD_BYTES_MAX, PasswordHash, is_name

    if not is_name(name):
        raise click.BadParameter("1 to 64 letters, digits, dots, dashes, underscores or @", param_hint="--new-login")
    if sys.stdin is None:
        raise click.UsageError("standard input is closed")
    if sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password or len(password.encode("utf-8", "surrogateescape")) > PASSWORD_BYTES_MAX:
        raise click.UsageError(f"a password has 1 to {PASSWORD_BYTES_MAX} bytes")
    click.echo(f"{name}:{role}:{PasswordHash.of(password, os.urandom(16))}")


def _tell_of_change(text: str) -> None:
    """What was changed, by whom, in a line on standard error; or that the certificate was."""
    shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    now = dt.datetime.now(dt.UTC)
    with contextlib.suppress(OSError):
        click.echo(f"barnabas console: {now:%Y-%m-%d %H:%M:%S} UTC: {shown}", err=True)


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
