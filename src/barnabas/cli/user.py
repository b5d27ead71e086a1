"""`barnabas user`: who can log in by SCRAM, and with which password."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TextIO

import click

from barnabas.cli.completed_files import complete_files
from barnabas.cli.completed_names import complete_users
from barnabas.cli.connection import CommandError, ExitStatus, bootstrap_option, json_option, run_with_client
from barnabas.cli.output import Column, print_json, print_table, say, shown

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.user_admin import NewCredential, UserCredential

MECHANISMS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16_384
"""As Kafka has them: with fewer a stolen hash is guessed too soon, with more brokers are kept busy."""
PASSWORD_BYTES_MAX: Final = 64 * 1024
_SALT_BYTES: Final = 32
_PASSWORD_VARIABLE: Final = "BARNABAS_USER_PASSWORD"  # noqa: S105 - a name
_NAMES: Final = {number: name for name, number in MECHANISMS.items()}
_COLUMNS: Final = (
    Column("User", "user"),
    Column("Mechanism", "mechanism"),
    Column("Iterations", "iterations", is_number=True),
)
_mechanism_option = click.option(
    "--mechanism",
    "mechanisms",
    type=click.Choice(list(MECHANISMS), case_sensitive=False),
    multiple=True,
    help="By which mechanism.  [default: both]",
)


@click.group(name="user")
def command() -> None:
    """Show, set and delete what users log in with by SCRAM.

    Brokers keep a salted hash, from which nobody gets the password. A user of SASL/PLAIN is in the brokers'
    server.properties, and not here.
    """


@command.command(name="list")
@click.argument("names", metavar="[USER]...", nargs=-1, shell_complete=complete_users)
@bootstrap_option
@json_option
def list_users(names: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Show the users, and by which mechanisms each can log in."""

    async def body(client: Client) -> None:
        from barnabas.client.user_admin import UserAdmin

        async with UserAdmin(client) as admin:
            found = await admin.describe_users(list(dict.fromkeys(names)) or None)
        _show(found, as_json=as_json)
        missing = [name for name in dict.fromkeys(names) if all(each.user != name for each in found)]
        if missing:
            raise _missing(missing)

    run_with_client(bootstrap, body)


@command.command(name="set")
@click.argument("name", metavar="USER", shell_complete=complete_users)
@_mechanism_option
@click.option(
    "--iterations",
    type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX),
    default=ITERATIONS_MIN,
    show_default=True,
    help="How often the password is hashed: more make a stolen hash harder to guess, and each login slower.",
)
@click.option(
    "--password-file",
    metavar="FILE",
    shell_complete=complete_files,
    help="It is the first line of this file; - is standard input.",
)
@click.option(
    "--password",
    metavar="TEXT",
    help=f"The password itself, which others on this machine can see then. Better: {_PASSWORD_VARIABLE}, a file, or "
    "the question that is asked without any of these.",
)
@bootstrap_option
@json_option
def set_user(
    name: str,
    mechanisms: tuple[str, ...],
    iterations: int,
    password_file: str | None,
    password: str | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Set the password of a user, who is made where there is none; it holds from the next login on.

    The password never leaves this machine: brokers are told its salted hash. That is a secret too, so use a connection
    that nobody listens to.
    """
    _check_name(name)
    if password is not None and password_file is not None:
        raise click.UsageError("--password or --password-file, not both")
    given = _password(name, password, password_file)

    async def body(client: Client) -> None:
        from barnabas.client.user_admin import UserAdmin

        credentials = [
            await _credential(client, name, given, mechanism, iterations) for mechanism in _chosen(mechanisms)
        ]
        async with UserAdmin(client) as admin:
            await admin.set_credentials(credentials)
            found = await admin.describe_users([name])
        _show(found, as_json=as_json)

    run_with_client(bootstrap, body)


@command.command(name="delete")
@click.argument("name", metavar="USER", shell_complete=complete_users)
@_mechanism_option
@click.option("--if-exists", is_flag=True, help="Do not fail if there is no such user.")
@bootstrap_option
@json_option
def delete(name: str, mechanisms: tuple[str, ...], if_exists: bool, bootstrap: str, as_json: bool) -> None:
    """Delete what a user logs in with. Who is logged in stays so until the connection ends."""
    _check_name(name)

    async def body(client: Client) -> None:
        from barnabas.client.user_admin import UserAdmin

        async with UserAdmin(client) as admin:
            found = [
                each
                for each in await admin.describe_users([name])
                if not mechanisms or _NAMES.get(each.mechanism) in _upper(mechanisms)
            ]
            if found:
                await admin.delete_credentials([(each.user, each.mechanism) for each in found])
        gone = [_NAMES.get(each.mechanism, "?") for each in found]
        if as_json:
            print_json({"user": name, "deleted": gone})
        elif gone:
            click.echo(f"Deleted user {shown(name)}: {', '.join(gone)}.")
        if not gone and not if_exists:
            raise _missing([name])

    run_with_client(bootstrap, body)


# Inside.


def _upper(mechanisms: Sequence[str]) -> list[str]:
    return [mechanism.upper() for mechanism in mechanisms]


def _chosen(mechanisms: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(_upper(mechanisms))) or list(MECHANISMS)


def _check_name(name: str) -> None:
    if not name:
        raise click.BadParameter("a user needs a name", param_hint="USER")


def _password(user: str, password: str | None, file: str | None) -> str:
    """The password, from where it was given; a person is asked for it, twice.

    Raises click.UsageError and CommandError, which show nothing of it.
    """
    import os

    if password is None and file is not None:
        password = _first_line(file)
    if password is None:
        password = os.environ.get(_PASSWORD_VARIABLE)
    if password is None:
        if not _is_terminal():
            raise click.UsageError(
                f"give the password by --password-file FILE (- is standard input) or {_PASSWORD_VARIABLE}"
            )
        password = _asked(user)
    if not password:
        raise click.UsageError("the password is empty")
    try:
        password.encode()
    except UnicodeEncodeError:
        raise click.UsageError("the password is no UTF-8") from None
    return str(password)


def _asked(user: str) -> str:
    """Raises KeyboardInterrupt, and click.UsageError where the terminal is closed."""
    try:
        asked = click.prompt(f"Password of {shown(user)}", hide_input=True, confirmation_prompt=True, err=True)
    except click.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise click.UsageError("no password was given") from None
    return str(asked)


def _first_line(file: str) -> str:
    from barnabas.cli.connection import exiting

    with exiting():
        if file == "-":
            given = _standard_input()
            if given is None:
                raise CommandError("standard input is closed", ExitStatus.USAGE)
            data = given.buffer.readline(PASSWORD_BYTES_MAX + 1)
        else:
            with open(file, "rb") as opened:
                data = opened.readline(PASSWORD_BYTES_MAX + 1)
        if len(data) > PASSWORD_BYTES_MAX:
            raise CommandError(f"{file}: the first line is longer than {PASSWORD_BYTES_MAX} bytes, and so no password")
        try:
            return data.rstrip(b"\r\n").decode()
        except UnicodeDecodeError:
            raise CommandError(f"the first line of {file} is no UTF-8") from None


def _entropy(client: Client) -> bytes:
    return client.host.entropy(_SALT_BYTES)


def _is_terminal() -> bool:
    given = _standard_input()
    return given is not None and given.isatty()


def _standard_input() -> TextIO | None:
    """None where the command was given none: `<&-`."""
    import sys

    return sys.stdin


async def _credential(client: Client, user: str, password: str, mechanism: str, iterations: int) -> NewCredential:
    from barnabas.client.user_admin import NewCredential
    from barnabas.sasl.scram_mechanisms import ScramMechanism

    salt = _entropy(client)
    salted = ScramMechanism(mechanism).salted_password(password, salt, iterations)
    return NewCredential(user, MECHANISMS[mechanism], iterations, salt, salted)


def _missing(names: Sequence[str]) -> CommandError:
    what = "there is no user" if len(names) == 1 else "there are no users"
    return CommandError(
        f"{what} {', '.join(names)} with what was asked for; `barnabas user list` shows which there are",
        ExitStatus.MISSING,
    )


def _show(found: Sequence[UserCredential], *, as_json: bool) -> None:
    rows = [(each.user, _NAMES.get(each.mechanism, f"mechanism {each.mechanism}"), each.iterations) for each in found]
    if as_json:
        names = [column.name for column in _COLUMNS]
        print_json({"credentials": [dict(zip(names, row, strict=True)) for row in rows]})
    elif rows:
        print_table(_COLUMNS, rows)
    else:
        say("No user has a password for SCRAM.")
