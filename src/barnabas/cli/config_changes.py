"""Changing configs: what a user wrote, what comes of it, and waiting until a broker shows it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from barnabas.cli.config_resources import (
    HIDDEN,
    Kind,
    Resource,
    check_names,
    has_config,
    read_configs,
    settable_configs,
    told_configs,
)
from barnabas.cli.connection import CommandError
from barnabas.cli.output import Column, print_table, say
from barnabas.client.admin import ConfigEntry, ConfigOperation
from barnabas.kernel.facts import fact

if TYPE_CHECKING:
    from barnabas.client.admin import Admin
    from barnabas.client.client import Client

SEEN_WITHIN_SECONDS: Final = 15.0
"""How long a broker may take to show what was changed: news of configs reach all brokers within that."""
_PAUSE_MS: Final = 100.0
_CHANGE_COLUMNS: Final = (Column("Config", "name"), Column("Before", "before"), Column("After", "after"))
_DYNAMIC_BROKER_SOURCES: Final = frozenset({2, 3})
"""The protocol's numbers for what was set of one broker, and of all, while they run."""
_OPERATIONS: Final = {"+": ConfigOperation.APPEND, "-": ConfigOperation.SUBTRACT}


@fact
class Change:
    """One config, what is done to it, and with which value."""

    name: str
    operation: ConfigOperation
    value: str | None = None


@fact
class Effect:
    """A value before and after; None where there is none, or where it is secret."""

    name: str
    before: str | None
    after: str | None
    is_sensitive: bool


def parse_changes(pairs: Iterable[str], unset: Iterable[str] = ()) -> list[Change]:
    """`KEY=VALUE`, and `KEY+=ITEM`, `KEY-=ITEM` for lists. Raises ValueError, which says what is wrong."""
    changes: dict[str, Change] = {}
    for change in [*map(_parse_pair, pairs), *(Change(name.strip(), ConfigOperation.DELETE) for name in unset)]:
        if change.name in changes:
            raise ValueError(f"{change.name} is there twice: change it once")
        changes[change.name] = change
    return list(changes.values())


async def apply_changes(
    client: Client, admin: Admin, resource: Resource, changes: Sequence[Change], *, is_dry_run: bool
) -> list[Effect]:
    """Changes configs, or only has the brokers check that they could be, and returns what comes of it.

    Raises CommandError for a name that the resource does not have, and for a config that only a restart changes.
    """
    if resource.kind is Kind.LOGGER:
        # Brokers know the levels in capitals only.
        changes = [replace(change, value=change.value and change.value.strip().upper()) for change in changes]
    before, known = await _read(client, admin, resource, changes)
    for change in changes:
        entry = known.get(change.name)
        # What was set while the broker runs can be: Kafka calls the rates of throttles read-only then (KIP-73).
        if entry is not None and entry.is_read_only and entry.source not in _DYNAMIC_BROKER_SOURCES:
            raise CommandError(
                f"{change.name} of {resource} cannot be changed while a broker runs: change it in server.properties, "
                "and start the broker anew"
            )
    not_set = [
        change.name
        for change in changes
        if change.operation is ConfigOperation.DELETE and not _is_own(resource, before.get(change.name))
    ]
    unseen = [name for name in not_set if resource.kind is Kind.BROKER and _is_secret(name, known.get(name))]
    nothing = [name for name in not_set if name not in unseen]
    if nothing and resource.kind is not Kind.LOGGER:
        say(f"Not set for {resource}, so that nothing changes: {', '.join(nothing)}.")
    if unseen:  # brokers do not list what they cannot decode, and forget it by its name
        say(f"Not set for {resource}, or such that it cannot be decoded and will be lost: {', '.join(unseen)}.")
    wanted = {
        change.name: without_own(resource, known.get(change.name))
        if change.operation is ConfigOperation.DELETE
        else _expected(change, before.get(change.name))
        for change in changes
    }
    triples = [(change.name, change.operation, change.value) for change in changes]
    await admin.alter_configs(resource.type, resource.name, triples, validate_only=is_dry_run)
    after = wanted
    if not is_dry_run:
        deleted = {change.name for change in changes if change.operation is ConfigOperation.DELETE}
        after = await _wait_until_shown(client, admin, resource, wanted, deleted)
    return [_effect(name, before.get(name), known.get(name), after[name]) for name in wanted]


def print_effects(effects: Sequence[Effect]) -> None:
    """What was changed, for people."""
    print_table(
        _CHANGE_COLUMNS,
        [
            (effect.name, HIDDEN, HIDDEN) if effect.is_sensitive else (effect.name, effect.before, effect.after)
            for effect in effects
        ],
    )


def effect_documents(effects: Sequence[Effect]) -> list[dict[str, Any]]:
    """What was changed, for programs."""
    return [
        {
            "name": effect.name,
            "before": effect.before,
            "after": effect.after,
            "is_sensitive": effect.is_sensitive,
        }
        for effect in effects
    ]


# Inside.


async def _read(
    client: Client, admin: Admin, resource: Resource, changes: Sequence[Change]
) -> tuple[dict[str, ConfigEntry], dict[str, ConfigEntry]]:
    """What is set of what is to be changed, and what could be. Brokers are asked for that alone, since all that one has
    are hundreds, and for all where they do not know a name. Raises CommandError for one that they do not have.
    """
    names = [change.name for change in changes]
    # What is taken back has the next weaker value; for the others it does not matter.
    read = read_configs if any(change.operation is ConfigOperation.DELETE for change in changes) else told_configs
    before = await read(client, admin, resource, names)
    known = await settable_configs(client, admin, resource, before, names)
    if not all(has_config(resource, name, known) for name in names):
        before = await read(client, admin, resource)
        known = await settable_configs(client, admin, resource, before)
        check_names(resource, names, known)
    return before, known


def _parse_pair(pair: str) -> Change:
    name, equals, value = pair.partition("=")
    operation = _OPERATIONS.get(name[-1:], ConfigOperation.SET)
    if operation is not ConfigOperation.SET:
        name = name[:-1]
    if not equals or not name.strip():
        raise ValueError(f"{pair!r} must have the form KEY=VALUE, or KEY+=ITEM and KEY-=ITEM for lists")
    if operation is not ConfigOperation.SET:
        # Brokers compare items as they are, spaces included.
        value = ",".join(item.strip() for item in value.split(",") if item.strip())
    return Change(name.strip(), operation, value)


def _expected(change: Change, entry: ConfigEntry | None) -> str | None:
    """The value that a change leads to; not for one that takes back what was set."""
    value = change.value or ""
    items = [item.strip() for item in ((entry.value if entry else None) or "").split(",") if item.strip()]
    match change.operation:
        case ConfigOperation.APPEND:
            return ",".join([*items, *(item for item in value.split(",") if item not in items)])
        case ConfigOperation.SUBTRACT:
            return ",".join(item for item in items if item not in value.split(","))
    return change.value


def without_own(resource: Resource, entry: ConfigEntry | None) -> str | None:
    """The value that a config has where nothing is set for this very resource; None where nobody tells."""
    weaker = (synonym.value for synonym in entry.synonyms if synonym.source > resource.own_source) if entry else ()
    return next(iter(weaker), None)


def _is_own(resource: Resource, entry: ConfigEntry | None) -> bool:
    return entry is not None and entry.source == resource.own_source


def _is_secret(name: str, known: ConfigEntry | None) -> bool:
    """As brokers say; of what none has told yet, as that of one listener, as they will: so is a name nobody knows."""
    if known is not None:
        return known.is_sensitive
    from barnabas.config.describing import is_sensitive
    from barnabas.config.key_table import broker_keys

    return is_sensitive(name, broker_keys())


def _effect(name: str, before: ConfigEntry | None, known: ConfigEntry | None, after: str | None) -> Effect:
    if _is_secret(name, known):
        return Effect(name, None, None, is_sensitive=True)
    return Effect(name, None if before is None else before.value, after, is_sensitive=False)


async def _wait_until_shown(
    client: Client, admin: Admin, resource: Resource, wanted: Mapping[str, str | None], deleted: Collection[str]
) -> dict[str, str | None]:
    """What a broker tells of these configs, as soon as it is what was wanted; brokers learn of changes by and by."""
    loop = client.host.loop
    deadline = loop.time() + SEEN_WITHIN_SECONDS
    while True:
        found = await told_configs(client, admin, resource, list(wanted))
        late = [
            name
            for name, value in wanted.items()
            if not _is_shown(resource, found.get(name), value, is_deleted=name in deleted)
        ]
        if not late:
            return {name: found[name].value if name in found else wanted[name] for name in wanted}
        if loop.time() > deadline:
            say(f"Changed, but the broker does not show it yet: {', '.join(late)}.")
            return dict(wanted)
        await client.timers.sleep(_PAUSE_MS)


def _is_shown(resource: Resource, entry: ConfigEntry | None, value: str | None, *, is_deleted: bool) -> bool:
    if resource.kind is Kind.LOGGER:
        # A broker's levels change at once; which one a logger without its own has, only the broker knows.
        return True
    if entry is None:
        return is_deleted
    if is_deleted and entry.source == resource.own_source:
        return False
    if is_deleted and (value is None or entry.is_sensitive):
        return True
    # A known value is waited for also where it is set no more: Apache Kafka tells of that before it goes by it.
    if entry.is_sensitive:
        return entry.source == resource.own_source
    return entry.value == value or _plain(entry.value) == _plain(value)


def _plain(value: str | None) -> list[str]:
    """The items of a value as they compare: brokers show `true` for TRUE, `5` for +05 and `a,b` for `a, b`."""
    return [_plain_item(item.strip()) for item in (value or "").split(",")]


def _plain_item(item: str) -> str:
    from decimal import Decimal, InvalidOperation

    try:
        return str(Decimal(item).normalize())
    except InvalidOperation:
        return item.lower() if item.lower() in {"true", "false"} else item
