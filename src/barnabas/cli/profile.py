"""`barnabas profile`: names for clusters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import click

from barnabas.cli.completed_files import complete_files
from barnabas.cli.connection import CommandError, ExitStatus, exiting, json_option, with_ports
from barnabas.cli.output import Column, print_json, print_table, say, shown
from barnabas.cli.profiles import (
    FILE_VARIABLE,
    PROFILE_VARIABLE,
    Profile,
    ProfileError,
    check_name,
    complete_profiles,
    profiles_file,
    read_profiles,
    write_profiles,
)

_COLUMNS: Final = (
    Column("Profile", "name"),
    Column("Brokers", "bootstrap_server"),
    Column("Login", "command_config"),
)


@click.group(name="profile", epilog=f"The file is that of {FILE_VARIABLE}, or ~/.config/barnabas/profiles.toml.")
def command() -> None:
    """Keep names for clusters: --profile NAME, or the variable BARNABAS_PROFILE, stands for its brokers and login."""


@command.command(name="list")
@json_option
def list_profiles(as_json: bool) -> None:
    """Show the profiles: name, brokers, and the file of the login."""
    with exiting():
        rows = [(name, each.bootstrap, each.command_config) for name, each in sorted(_read().items())]
        if as_json:
            names = [column.name for column in _COLUMNS]
            print_json({"profiles": [dict(zip(names, row, strict=True)) for row in rows]})
        elif rows:
            print_table(_COLUMNS, rows)
        else:
            say(f"There is no profile in {profiles_file()}; `barnabas profile set NAME` makes one.")


@command.command(name="set")
@click.argument("name", shell_complete=complete_profiles)
@click.option("-b", "--bootstrap-server", "bootstrap", metavar="HOST[:PORT][,...]", required=True, help="Its brokers.")
@click.option(
    "--command-config", metavar="FILE", shell_complete=complete_files, help="How to log in there: a file of properties."
)
def set_profile(name: str, bootstrap: str, command_config: str | None) -> None:
    """Keep a cluster under a name; replaces what it was before. The file is written anew, without its comments."""
    with exiting():
        from pathlib import Path

        from barnabas.cli.command_config import read_access
        from barnabas.client.settings import split_address

        try:
            check_name(name)
            servers = with_ports(bootstrap)
            for server in servers.split(","):
                split_address(server)
        except (ProfileError, ValueError) as error:
            raise CommandError(str(error), ExitStatus.USAGE) from None
        path = None
        if command_config is not None:
            try:
                read_access(command_config)
            except ValueError as error:
                raise CommandError(str(error)) from None
            path = str(Path(command_config).absolute())
        profiles = _read()
        profiles[name] = Profile(servers, path)
        _write(profiles)
        say(f"Kept in {profiles_file()}. Use it by --profile {shown(name)}, or {PROFILE_VARIABLE}={shown(name)}.")


@command.command(name="delete")
@click.argument("name", shell_complete=complete_profiles)
def delete(name: str) -> None:
    """Forget a profile; the file of its login stays."""
    with exiting():
        profiles = _read()
        if name not in profiles:
            raise CommandError(
                f"there is no profile {name}; `barnabas profile list` shows which there are", ExitStatus.MISSING
            )
        del profiles[name]
        _write(profiles)


def _write(profiles: Mapping[str, Profile]) -> None:
    try:
        write_profiles(profiles)
    except ProfileError as error:
        raise CommandError(str(error)) from None


def _read() -> dict[str, Profile]:
    try:
        return read_profiles()
    except ProfileError as error:
        raise CommandError(str(error)) from None
