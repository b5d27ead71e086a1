"""`--command-config FILE`: how a command comes in, in the properties that Kafka's own commands take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from barnabas.cli.profiles import is_on_command_line, profile_of_command

if TYPE_CHECKING:
    import ssl

    from barnabas.sasl.mechanisms import Login

COMMAND_CONFIG_VARIABLE: Final = "BARNABAS_COMMAND_CONFIG"
_META: Final = "barnabas.cli.command_config"
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LISTS: Final = ("ssl.enabled.protocols", "ssl.cipher.suites")
_DEFAULTS: Final = {"ssl.endpoint.identification.algorithm": "https"}


class Access(NamedTuple):
    """How a command comes in: who logs in, and how connections are secured; None where it was not told."""

    login: Login | None = None
    tls: ssl.SSLContext | None = None


def _note(context: click.Context, parameter: click.Parameter, path: str | None) -> str | None:
    if path is not None:
        context.meta[_META] = path, is_on_command_line(context, parameter.name)
    return path


command_config_option = click.option(
    "--command-config",
    envvar=COMMAND_CONFIG_VARIABLE,
    show_envvar=True,
    metavar="FILE",
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
    return Access() if path is None else read_access(path)


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
    protocol = values.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise ValueError(f"{path}: security.protocol must be one of {', '.join(_PROTOCOLS)}, not {protocol}")
    uses_sasl, uses_tls = protocol.startswith("SASL_"), protocol.endswith("SSL")
    # What is there and not used is a protocol that somebody forgot: a password would go unencrypted.
    if not uses_sasl and any(key.startswith("sasl.") for key in values):
        wanted = "SASL_SSL" if uses_tls else "SASL_PLAINTEXT"
        raise ValueError(f"{path} has a login and no security.protocol={wanted}")
    if not uses_tls and any(key.startswith(("ssl.keystore.", "ssl.truststore.")) for key in values):
        wanted = "SASL_SSL" if uses_sasl else "SSL"
        raise ValueError(f"{path} has ssl.keystore or ssl.truststore and no security.protocol={wanted}")
    return Access(
        _login(path, values) if uses_sasl else None,
        _context(path, values) if uses_tls else None,
    )


def _login(path: str, values: Mapping[str, str]) -> Login:
    from barnabas.sasl.errors import LoginConfigError
    from barnabas.sasl.mechanisms import Login

    missing = [key for key in ("sasl.mechanism", "sasl.jaas.config") if not values.get(key)]
    if missing:
        raise ValueError(f"{path} lacks {' and '.join(missing)}")
    try:
        return Login.of_jaas(values["sasl.mechanism"], values["sasl.jaas.config"])
    except LoginConfigError as error:
        raise ValueError(f"{path}: {error}") from None


def _context(path: str, values: Mapping[str, str]) -> ssl.SSLContext:
    from pathlib import Path

    from barnabas.kernel.real_key_files import load_chain
    from barnabas.tls.contexts import client_context
    from barnabas.tls.errors import TlsConfigError
    from barnabas.tls.settings import TlsSettings
    from barnabas.tls.stores import read_stores

    def value_of(key: str) -> Any:
        value = values.get(key, _DEFAULTS.get(key))
        if key in _LISTS and value is not None:
            return [part.strip() for part in value.split(",") if part.strip()]
        return value

    try:
        settings = TlsSettings.of(value_of)
        stores = read_stores(settings, lambda file: Path(file).read_bytes())
        return client_context(settings, stores, load_chain)
    except TlsConfigError as error:
        raise ValueError(f"{path}: {error}") from None
