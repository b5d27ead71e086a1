"""`--command-config FILE`: how a command comes in, in the properties that Kafka's own commands take."""

from __future__ import annotations

from typing import Final

import click

from barnabas.cli.completed_files import complete_files
from barnabas.cli.profiles import is_on_command_line, profile_of_command
from barnabas.client.access import Access, access_of

__all__ = ["Access", "access_of_command", "command_config_option", "read_access", "seen_by_command"]

COMMAND_CONFIG_VARIABLE: Final = "BARNABAS_COMMAND_CONFIG"
_META: Final = "barnabas.cli.command_config"
_LOGIN: Final = "barnabas.cli.command_config.login"


def _note(context: click.Context, parameter: click.Parameter, path: str | None) -> str | None:
    if path is not None:
        context.meta[_META] = path, is_on_command_line(context, parameter.name)
    return path


command_config_option = click.option(
    "--command-config",
    envvar=COMMAND_CONFIG_VARIABLE,
    show_envvar=True,
    metavar="FILE",
    shell_complete=complete_files,
    expose_value=False,
    callback=_note,
    help="Properties with security.protocol, ssl.* and sasl.*, for brokers with TLS or a login.",
)
"""Gives a command no parameter: `access_of_command` finds what was given."""


def access_of_command() -> Access:
    """How the present command comes in. Raises ValueError, which shows no secret, and OSError where the file cannot be
    read.
    """
    context = click.get_current_context(silent=True)
    path = None if context is None else _path(context)
    if context is None or path is None:
        return Access()
    access = read_access(path)
    context.meta[_LOGIN] = access.login is not None
    return access


def seen_by_command() -> str:
    """What to say behind "there are none": brokers leave out what a login may not see, and do not say so. Nothing where
    the command does not log in, or has read no file.
    """
    context = click.get_current_context(silent=True)
    return " that this login may see" if context is not None and context.meta.get(_LOGIN) else ""


def _path(context: click.Context) -> str | None:
    """The file that holds for the brokers that are asked: a login is shown to nobody but whom it is for."""
    path: str | None
    path, is_plain = context.meta.get(_META, (None, False))
    profile = profile_of_command(context)
    if profile is None or is_plain:
        return path
    if is_on_command_line(context, "bootstrap") and not is_on_command_line(context, "profile"):
        return path
    return profile.command_config


def read_access(path: str) -> Access:
    """What a file of properties says. Those that are about neither TLS nor a login are not heeded.

    Raises as `access_of_command` does.
    """
    from pathlib import Path

    from barnabas.config.properties import PropertiesError, parse

    try:
        values = {entry.key: entry.value for entry in parse(Path(path).read_bytes(), path)}
    except PropertiesError as error:
        raise ValueError(str(error)) from None
    return access_of(values, path, lambda file: Path(file).read_bytes())
