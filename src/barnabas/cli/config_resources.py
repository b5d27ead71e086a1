"""What has configs, as users write it (`topic:flights`, `broker:1`), and reading the configs of it."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from barnabas.cli.completed_names import complete_brokers, complete_topics, completions, without_help
from barnabas.cli.connection import CommandError, ExitStatus
from barnabas.cli.missing import missing_broker, missing_topics, nearest_hint
from barnabas.cli.output import printable
from barnabas.config.sources import ConfigSource
from barnabas.kernel.facts import fact

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from barnabas.client.admin import Admin, ConfigEntry, ResourceType
    from barnabas.client.client import Client

    _ResourceType = click.ParamType["Resource"]
else:
    # Older releases of click have a type without parameter.
    _ResourceType = click.ParamType

FORMS = "topic:NAME, broker:ID, broker:default (all brokers) or logger:ID (the log levels of a broker)"
HIDDEN = "(secret)"
_BROKER_DIGITS_MAX = 10
_PLUG_IN_PREFIXES = ("listener.name.",)
"""Names that begin so are settable although no broker lists them."""
_UNLISTED = frozenset(
    {
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)
"""Throttles, which brokers list only where they are set."""
_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_COARSER_NAMES = {
    "retention.ms": (
        ("log.retention.ms", 1),
        ("log.retention.minutes", _MINUTE_MS),
        ("log.retention.hours", _HOUR_MS),
    ),
    "segment.ms": (("log.roll.ms", 1), ("log.roll.hours", _HOUR_MS)),
    "segment.jitter.ms": (("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", _HOUR_MS)),
}
"""What brokers call a topic's times, the strongest first, and the unit of each in ms."""


class Kind(enum.Enum):
    """What has configs; the value is how users write it."""

    TOPIC = "topic"
    BROKER = "broker"
    ALL_BROKERS = "broker:default"
    LOGGER = "logger"


_COMPLETED = {Kind.TOPIC: complete_topics, Kind.BROKER: complete_brokers, Kind.LOGGER: complete_brokers}
_OWN_SOURCES = {
    Kind.TOPIC: ConfigSource.DYNAMIC_TOPIC,
    Kind.BROKER: ConfigSource.DYNAMIC_BROKER,
    Kind.ALL_BROKERS: ConfigSource.DYNAMIC_DEFAULT_BROKER,
    Kind.LOGGER: ConfigSource.DYNAMIC_BROKER_LOGGER,
}


@fact
class Resource:
    """One thing with configs; `name` is a topic or the id of a broker, and empty for all brokers."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        return self.kind.value if self.kind is Kind.ALL_BROKERS else f"{self.kind.value}:{self.name}"

    @property
    def own_source(self) -> ConfigSource:
        """Where what is set for this very resource comes from."""
        return _OWN_SOURCES[self.kind]

    @property
    def type(self) -> ResourceType:
        """What the protocol calls it."""
        from barnabas.client.admin import ResourceType

        match self.kind:
            case Kind.TOPIC:
                return ResourceType.TOPIC
            case Kind.LOGGER:
                return ResourceType.BROKER_LOGGER
            case Kind.BROKER | Kind.ALL_BROKERS:
                return ResourceType.BROKER


def parse_resource(text: str) -> Resource:
    """What `topic:NAME` and the like mean. Raises ValueError, which says how it is written."""
    kind, colon, name = text.partition(":")
    if colon and kind == Kind.TOPIC.value and name:
        return Resource(Kind.TOPIC, name)
    if text == Kind.ALL_BROKERS.value:
        return Resource(Kind.ALL_BROKERS, "")
    if kind in (Kind.BROKER.value, Kind.LOGGER.value) and name.isascii() and name.isdigit():
        if len(name.lstrip("0")) > _BROKER_DIGITS_MAX:
            raise ValueError(
                f"{kind}:{name[:_BROKER_DIGITS_MAX]}... is no broker: ids have {_BROKER_DIGITS_MAX} digits at most"
            )
        return Resource(Kind(kind), str(int(name)))
    raise ValueError(f"{text!r} has no configs: write {FORMS}")


class ResourceArgument(_ResourceType):
    """An argument that is a resource."""

    name = "resource"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Resource:
        if isinstance(value, Resource):
            return value
        try:
            return parse_resource(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The kinds, and behind `topic:` the names of topics, behind `broker:` and `logger:` ids of brokers."""
        from click.shell_completion import CompletionItem

        prefixes = {f"{kind.value}:": complete for kind, complete in _COMPLETED.items()}
        forms = [CompletionItem(form) for form in (*prefixes, Kind.ALL_BROKERS.value) if form.startswith(incomplete)]
        for prefix, complete in prefixes.items():
            if incomplete.startswith(prefix):
                found = complete(ctx, param, incomplete.removeprefix(prefix))
                added = [CompletionItem(prefix + item.value, help=item.help) for item in found]
                return [*added, *(form for form in forms if form.value != prefix)]
        return forms


def complete_configs(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For shells: names of the configs of the resource that the line names ahead of them."""
    resource = context.params.get("resource")
    if not isinstance(resource, Resource):
        return []

    async def names(client: Client) -> Iterable[str]:
        from barnabas.client.admin import Admin

        async with Admin(client) as admin:
            return await settable_configs(client, admin, resource, await read_configs(client, admin, resource))

    return completions(context, incomplete, without_help(names))


def complete_settings(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """As `complete_configs`, with the sign behind which the value is."""
    found = [] if "=" in incomplete else complete_configs(context, parameter, incomplete)
    for item in found:
        item.value += "="
    return found


async def told_configs(
    client: Client, admin: Admin, resource: Resource, names: Collection[str] | None = None
) -> dict[str, ConfigEntry]:
    """The configs of a resource as a broker tells them, by name: all, or those of `names` that it has. Raises
    CommandError where there is no such topic or broker.
    """
    from barnabas.wire.errors import ErrorCode, KafkaError

    if resource.kind in (Kind.BROKER, Kind.LOGGER) and int(resource.name) not in client.cluster.brokers:
        raise missing_broker(int(resource.name), client.cluster.brokers)
    try:
        found = await admin.describe_configs(resource.type, resource.name, with_synonyms=True, keys=names)
    except KafkaError as error:
        if error.code in {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION}:
            raise missing_topics([resource.name]) from None
        raise
    return {name: found[name] for name in sorted(found)}


async def read_configs(
    client: Client, admin: Admin, resource: Resource, names: Collection[str] | None = None
) -> dict[str, ConfigEntry]:
    """As `told_configs`, with whatever else could set them."""
    found = await told_configs(client, admin, resource, names)
    return await _with_coarser_defaults(client, admin, found) if resource.kind is Kind.TOPIC else found


async def _with_coarser_defaults(
    client: Client, admin: Admin, entries: Mapping[str, ConfigEntry]
) -> dict[str, ConfigEntry]:
    """The entries, with a broker's values of times that brokers may have in hours or minutes too: brokers do not tell
    these of a topic that has a time of its own.
    """
    from barnabas.client.admin import ConfigSynonym

    changed = dict(entries)
    lacking = [name for name in _COARSER_NAMES if _has_its_own_value_only(entries.get(name))]
    if not lacking:
        return changed
    some_broker = Resource(Kind.BROKER, str(min(client.cluster.brokers)))
    wanted = [broker_name for name in lacking for broker_name, _ in _COARSER_NAMES[name]]
    brokers = await told_configs(client, admin, some_broker, wanted)
    for name in lacking:
        for broker_name, unit_ms in _COARSER_NAMES[name]:
            weaker = brokers.get(broker_name)
            if weaker is not None and weaker.value is not None:
                value = str(int(weaker.value) * unit_ms)
                synonym = ConfigSynonym(broker_name, value, weaker.source)
                changed[name] = replace(entries[name], synonyms=(*entries[name].synonyms, synonym))
                break
    return changed


def _has_its_own_value_only(entry: ConfigEntry | None) -> bool:
    return entry is not None and len(entry.synonyms) == 1 and entry.source == ConfigSource.DYNAMIC_TOPIC


async def settable_configs(
    client: Client,
    admin: Admin,
    resource: Resource,
    entries: Mapping[str, ConfigEntry],
    names: Collection[str] | None = None,
) -> dict[str, ConfigEntry]:
    """What could be set there: the entries, and of all brokers, which list what is set only, those of one of them (of
    `names`, where these are told).
    """
    if resource.kind is not Kind.ALL_BROKERS or not client.cluster.brokers:
        return dict(entries)
    some_broker = Resource(Kind.BROKER, str(min(client.cluster.brokers)))
    return await told_configs(client, admin, some_broker, names)


def check_names(resource: Resource, names: Iterable[str], known: Mapping[str, ConfigEntry]) -> None:
    """Raises CommandError for a name that the resource does not have."""
    for name in names:
        if has_config(resource, name, known):
            continue
        what = "logger" if resource.kind is Kind.LOGGER else "config"
        hint = nearest_hint(name, known) or f"; `barnabas config get {resource} --all` shows which there are"
        raise CommandError(f"{resource} has no {what} {printable(name)}{hint}", ExitStatus.MISSING)


def has_config(resource: Resource, name: str, known: Mapping[str, ConfigEntry]) -> bool:
    """Whether the resource has a config of that name, listed or not."""
    is_of_brokers = resource.kind in (Kind.BROKER, Kind.ALL_BROKERS)
    return name in known or (is_of_brokers and (name in _UNLISTED or name.startswith(_PLUG_IN_PREFIXES)))


def shown_value(entry: ConfigEntry | None, value: str | None) -> str | None:
    """A value for people, who are not shown secrets."""
    return HIDDEN if entry is not None and entry.is_sensitive and value is None else value
