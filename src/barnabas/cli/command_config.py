"""`--command-config FILE`: how a command logs in, in the properties that Kafka's own commands take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from barnabas.sasl.mechanisms import Login

COMMAND_CONFIG_VARIABLE: Final = "BARNABAS_COMMAND_CONFIG"
_META: Final = "barnabas.cli.command_config"


def _note(context: click.Context, _parameter: click.Parameter, path: str | None) -> str | None:
    if path is not None:
        context.meta[_META] = path
    return path


command_config_option = click.option(
    "--command-config",
    envvar=COMMAND_CONFIG_VARIABLE,
    show_envvar=True,
    metavar="FILE",
    expose_value=False,
    callback=_note,
    help="Properties with security.protocol, sasl.mechanism and sasl.jaas.config, for brokers that want a login.",
)
"""Gives a command no parameter: `login_of_command` finds what was given."""


def login_of_command() -> Login | None:
    """Who the present command logs in as; None where it was not told. Raises ValueError, which shows no secret, and
    OSError where the file cannot be read.
    """
    context = click.get_current_context(silent=True)
    path: str | None = None if context is None else context.meta.get(_META)
    return None if path is None else read_login(path)


def read_login(path: str) -> Login | None:
    """That of a file of properties; None where its `security.protocol` needs none. Other properties are not heeded.

    Raises as `login_of_command` does.
    """
    from pathlib import Path

    from barnabas.config.properties import PropertiesError, parse
    from barnabas.sasl.errors import LoginConfigError
    from barnabas.sasl.mechanisms import Login

    try:
        values = {entry.key: entry.value for entry in parse(Path(path).read_bytes(), path)}
    except PropertiesError as error:
        raise ValueError(str(error)) from None
    protocol = values.get("security.protocol", "PLAINTEXT").upper()
    if protocol == "PLAINTEXT":
        if any(key.startswith("sasl.") for key in values):
            raise ValueError(f"{path} has a login and no security.protocol=SASL_PLAINTEXT")
        return None
    if protocol != "SASL_PLAINTEXT":
        raise ValueError(
            f"{path}: security.protocol must be PLAINTEXT or SASL_PLAINTEXT, not {protocol}; there is no TLS yet"
        )
    missing = [key for key in ("sasl.mechanism", "sasl.jaas.config") if not values.get(key)]
    if missing:
        raise ValueError(f"{path} lacks {' and '.join(missing)}")
    try:
        return Login.of_jaas(values["sasl.mechanism"], values["sasl.jaas.config"])
    except LoginConfigError as error:
        raise ValueError(f"{path}: {error}") from None
