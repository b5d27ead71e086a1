"""`barnabas config`: what topics, brokers and loggers are configured to, where that comes from, and changing it."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from barnabas.cli.config_resources import (
    FORMS,
    HIDDEN,
    Kind,
    Resource,
    ResourceArgument,
    check_names,
    complete_configs,
    complete_settings,
    read_configs,
    settable_configs,
    shown_value,
)
from barnabas.cli.connection import bootstrap_option, json_option, load_loops, run_with_client
from barnabas.cli.output import Column, Mark, Marked, counted, print_json, print_table, say, shown
from barnabas.config.sources import ConfigSource

if TYPE_CHECKING:
    from barnabas.cli.config_changes import Change
    from barnabas.client.admin import ConfigEntry
    from barnabas.client.client import Client

_PATTERN_CHARACTERS = "*?["
_COLUMNS = (Column("Config", "name"), Column("Value", "value"), Column("From", "source"))
_SOURCES = {
    ConfigSource.UNKNOWN: ("unknown", "unknown"),
    ConfigSource.DYNAMIC_TOPIC: ("topic", "topic"),
    ConfigSource.DYNAMIC_BROKER: ("broker", "broker"),
    ConfigSource.DYNAMIC_DEFAULT_BROKER: ("all_brokers", "all brokers"),
    ConfigSource.STATIC_BROKER: ("server_properties", "server.properties"),
    ConfigSource.DEFAULT: ("default", "default"),
    ConfigSource.DYNAMIC_BROKER_LOGGER: ("logger", "logger"),
}
"""Where a value comes from, for programs and for people."""

_resource_argument = click.argument("resource", metavar="RESOURCE", type=ResourceArgument())
_dry_run_option = click.option("--dry-run", is_flag=True, help="Have the brokers check it, and change nothing.")


@click.group(name="config", epilog=f"RESOURCE is {FORMS}.")
def command() -> None:
    """Show and change the configs of topics, of brokers, and the levels of their loggers."""


@command.command(name="get")
@_resource_argument
@click.argument("keys", metavar="[KEY|PATTERN]...", nargs=-1, shell_complete=complete_configs)
@click.option("--all", "is_all", is_flag=True, help="Also what has its default.")
@bootstrap_option
@json_option
def get(resource: Resource, keys: tuple[str, ...], is_all: bool, bootstrap: str, as_json: bool) -> None:
    """Show configs with their values, and where these come from.

    Without a key, shows those that differ from their default; --all shows every one. A pattern is one of the shell's,
    such as 'log.retention*' in quotes. Brokers never tell secret values.
    """

    async def body(client: Client) -> None:
        from barnabas.client.admin import Admin

        async with Admin(client) as admin:
            entries = await read_configs(client, admin, resource)
            known = await settable_configs(client, admin, resource, entries)
        names = _wanted(resource, keys, entries, known, is_all=is_all)
        if as_json:
            print_json(
                {"resource": str(resource), "configs": [document(name, entries.get(name)) for name in names]},
            )
        elif names:
            print_table(_COLUMNS, [_row(name, entries.get(name)) for name in names])
        else:
            say(f"Nothing is set for {resource}; {_where_defaults_are(resource, client)}.")

    run_with_client(bootstrap, body)


@command.command(name="set")
@_resource_argument
@click.argument("pairs", metavar="KEY=VALUE...", nargs=-1, required=True, shell_complete=complete_settings)
@_dry_run_option
@bootstrap_option
@json_option
def set_configs(resource: Resource, pairs: tuple[str, ...], dry_run: bool, bootstrap: str, as_json: bool) -> None:
    """Set configs, all or none of them, and show the values before and after.

    KEY+=ITEM adds an item to a list, KEY-=ITEM takes it away. The level of a logger is one of FATAL, ERROR, WARN,
    INFO, DEBUG and TRACE, and lasts until its broker stops.
    """
    load_loops()
    from barnabas.cli.config_changes import parse_changes

    try:
        changes = parse_changes(pairs)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="KEY=VALUE") from None
    _change(bootstrap, resource, changes, is_dry_run=dry_run, as_json=as_json)


@command.command(name="unset")
@_resource_argument
@click.argument("keys", metavar="KEY...", nargs=-1, required=True, shell_complete=complete_configs)
@_dry_run_option
@bootstrap_option
@json_option
def unset(resource: Resource, keys: tuple[str, ...], dry_run: bool, bootstrap: str, as_json: bool) -> None:
    """Remove what was set for this topic, broker or logger: the next weaker value takes effect again.

    For a topic that is the value of the brokers; for a broker, that of all brokers, of its server.properties, or the
    default.
    """
    load_loops()
    from barnabas.cli.config_changes import parse_changes

    try:
        changes = parse_changes((), dict.fromkeys(keys))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="KEY") from None
    _change(bootstrap, resource, changes, is_dry_run=dry_run, as_json=as_json)


@command.command(name="diff")
@_resource_argument
@click.argument("other", metavar="[RESOURCE]", type=ResourceArgument(), required=False)
@bootstrap_option
@json_option
def diff(resource: Resource, other: Resource | None, bootstrap: str, as_json: bool) -> None:
    """Show the configs in which two topics, or two brokers, or their loggers differ.

    Compares the values that are in effect, wherever they come from; so two brokers differ in broker.id too. With one
    RESOURCE, compares it with its defaults: a topic with one for which nothing is set, a broker with Kafka's defaults.
    Brokers never tell secret values: of these it compares only whether they are set.
    """
    if other is None and resource.kind is Kind.LOGGER:
        raise click.UsageError("loggers have no defaults: name a second broker, such as logger:2")
    if other is not None and other.kind is not resource.kind:
        raise click.UsageError(f"{resource} and {other} have different configs: name two of a kind")

    async def body(client: Client) -> None:
        from barnabas.client.admin import Admin

        async with Admin(client) as admin:
            left = await read_configs(client, admin, resource)
            right = await read_configs(client, admin, other) if other is not None else None
        differences = _against_defaults(resource, left) if right is None else _against(left, right)
        names = str(resource), "default" if other is None else str(other)
        if as_json:
            found = [
                {"name": each.name, "first": each.first, "second": each.second, "is_sensitive": each.is_sensitive}
                for each in differences
            ]
            print_json({"first": names[0], "second": None if other is None else names[1], "configs": found})
        elif differences:
            columns = (Column("Config", "name"), *(Column(shown(name), name) for name in names))
            print_table(columns, [(each.name, *each.shown()) for each in differences])
        else:
            say(f"{names[0]} has its defaults." if other is None else f"{names[0]} and {names[1]} do not differ.")

    run_with_client(bootstrap, body)


@dataclass(frozen=True, slots=True)
class Difference:
    """A config and its two values; None where it is not set, or where it is secret."""

    name: str
    first: str | None
    second: str | None
    is_sensitive: bool = False
    is_set: tuple[bool, bool] = (True, True)
    """The sides on which a secret is set."""

    def shown(self) -> tuple[str | None, str | None]:
        """For people."""
        if self.is_sensitive:
            first, second = (HIDDEN if is_set else None for is_set in self.is_set)
            return first, second
        return self.first, self.second


def document(name: str, entry: ConfigEntry | None) -> dict[str, Any]:
    """A config as `config get --json` has it; None is one that is not set there."""
    return {
        "name": name,
        "value": None if entry is None else entry.value,
        "source": None if entry is None else _source(entry)[0],
        "is_sensitive": entry is not None and entry.is_sensitive,
        "is_read_only": entry is not None and entry.is_read_only,
    }


# Inside.


def _change(bootstrap: str, resource: Resource, changes: Sequence[Change], *, is_dry_run: bool, as_json: bool) -> None:
    async def body(client: Client) -> None:
        from barnabas.cli.config_changes import apply_changes, effect_documents, print_effects
        from barnabas.client.admin import Admin

        async with Admin(client) as admin:
            effects = await apply_changes(client, admin, resource, changes, is_dry_run=is_dry_run)
        if as_json:
            found = effect_documents(effects)
            print_json({"resource": str(resource), "is_dry_run": is_dry_run, "configs": found})
        else:
            print_effects(effects)
            if is_dry_run:
                say("Nothing was changed: that was a dry run.")

    run_with_client(bootstrap, body)


def _wanted(
    resource: Resource,
    keys: Sequence[str],
    entries: Mapping[str, ConfigEntry],
    known: Mapping[str, ConfigEntry],
    *,
    is_all: bool,
) -> list[str]:
    """The names to show. Raises CommandError for one that the resource does not have."""
    if not keys:
        return [name for name, entry in entries.items() if is_all or entry.source != ConfigSource.DEFAULT]
    patterns = [key for key in keys if any(character in key for character in _PATTERN_CHARACTERS)]
    check_names(resource, [key for key in keys if key not in patterns], known)
    found: dict[str, None] = {}
    for key in keys:
        matching = fnmatch.filter(entries, key) if key in patterns else [key]
        if not matching:
            check_names(resource, [key], known)
        found |= dict.fromkeys(matching)
    return list(found)


def _where_defaults_are(resource: Resource, client: Client) -> str:
    """Of all brokers the protocol tells what is set only."""
    if resource.kind is not Kind.ALL_BROKERS:
        return "--all shows the defaults"
    return f"`barnabas config get broker:{min(client.cluster.brokers, default='ID')} --all` shows what is in effect"


def _row(name: str, entry: ConfigEntry | None) -> list[object]:
    if entry is None:
        return [name, None, None]
    source = _source(entry)[1]
    is_default = entry.source == ConfigSource.DEFAULT
    return [name, shown_value(entry, entry.value), Marked(source, Mark.FAINT) if is_default else source]


def _source(entry: ConfigEntry) -> tuple[str, str]:
    try:
        return _SOURCES.get(ConfigSource(entry.source), _SOURCES[ConfigSource.UNKNOWN])
    except ValueError:
        return _SOURCES[ConfigSource.UNKNOWN]


def _against(left: Mapping[str, ConfigEntry], right: Mapping[str, ConfigEntry]) -> list[Difference]:
    found = []
    secrets = 0
    for name in sorted({*left, *right}):
        first, second = left.get(name), right.get(name)
        if any(entry is not None and entry.is_sensitive for entry in (first, second)):
            is_set = _is_set(first), _is_set(second)
            if is_set[0] is not is_set[1]:
                found.append(Difference(name, None, None, is_sensitive=True, is_set=is_set))
            secrets += all(is_set)
            continue
        values = first.value if first else None, second.value if second else None
        if values[0] != values[1]:
            found.append(Difference(name, *values))
    if secrets:
        say(f"{counted(secrets, 'secret')} could not be compared.")
    return found


def _against_defaults(resource: Resource, entries: Mapping[str, ConfigEntry]) -> list[Difference]:
    found = []
    for name, entry in entries.items():
        if entry.is_sensitive:
            if entry.source not in _default_sources(resource):
                found.append(Difference(name, None, None, is_sensitive=True, is_set=(True, False)))
            continue
        default = _default(resource, entry)
        if default != entry.value:
            found.append(Difference(name, entry.value, default))
    return found


def _default_sources(resource: Resource) -> set[int]:
    """Where the defaults of such a resource come from."""
    if resource.kind is Kind.TOPIC:
        return {source for source in ConfigSource if source is not ConfigSource.DYNAMIC_TOPIC}
    return {ConfigSource.DEFAULT}


def _default(resource: Resource, entry: ConfigEntry) -> str | None:
    sources = _default_sources(resource)
    if entry.source in sources:
        return entry.value
    return next((synonym.value for synonym in entry.synonyms if synonym.source in sources), None)


def _is_set(entry: ConfigEntry | None) -> bool:
    return entry is not None and entry.source != ConfigSource.DEFAULT
