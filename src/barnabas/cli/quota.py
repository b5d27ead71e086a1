"""`barnabas quota`: what clients may take in a second, by user, client id and address."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from barnabas.cli.completed_names import complete_users
from barnabas.cli.connection import bootstrap_option, json_option, run_with_client
from barnabas.cli.output import Column, print_json, print_table, say

if TYPE_CHECKING:
    from barnabas.client.admin import ClientQuotas
    from barnabas.client.client import Client

_OF_CLIENTS: Final = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
_OF_ADDRESSES: Final = ("connection_creation_rate",)
_DEFAULT: Final = "<default>"
_COLUMNS: Final = (
    Column("User", "user"),
    Column("Client id", "client_id"),
    Column("Address", "ip"),
    Column("Quota", "quota"),
    Column("Value", "value", is_number=True),
)
_KINDS: Final = {"user": "user", "client-id": "client_id", "ip": "ip"}
"""The types of the protocol, as JSON has them."""
_COMPLETED: Final = {"user": complete_users}
Entity = dict[str, str | None]
_Command = TypeVar("_Command", bound=Callable[..., Any])


def _entity_options(function: _Command) -> _Command:
    """Options that name whose quotas are meant."""
    for kind, what in reversed((("user", "user"), ("client-id", "client id"), ("ip", "address"))):
        name = kind.replace("-", "_")
        function = click.option(
            f"--default-{kind}", f"default_{name}", is_flag=True, help=f"Every {what} without a quota of its own."
        )(function)
        function = click.option(
            f"--{kind}", name, metavar="NAME", shell_complete=_COMPLETED.get(kind), help=f"This {what}."
        )(function)
    return function


@click.group(
    name="quota",
    epilog=f"Quotas of users and client ids, or both together, are {', '.join(_OF_CLIENTS)}; of addresses"
    f" {', '.join(_OF_ADDRESSES)}.",
)
def command() -> None:
    """Show and change what clients may take in a second.

    The most exact quota holds: of user and client id together, of the user, of every user, of the client id. Each
    broker measures for itself, and holds back who takes more.
    """


@command.command(name="list")
@_entity_options
@bootstrap_option
@json_option
def list_quotas(bootstrap: str, as_json: bool, **named: Any) -> None:
    """Show the quotas that are set, or those of one user, client id or address."""
    entity = _entity(named)

    async def body(client: Client) -> None:
        from barnabas.client.admin import Admin

        async with Admin(client) as admin:
            found = await admin.describe_client_quotas(entity)
        _show(found, as_json=as_json)

    run_with_client(bootstrap, body)


@command.command(name="set")
@_entity_options
@click.argument("pairs", metavar="QUOTA=VALUE...", nargs=-1, required=True)
@bootstrap_option
@json_option
def set_quotas(pairs: tuple[str, ...], bootstrap: str, as_json: bool, **named: Any) -> None:
    """Set quotas, such as producer_byte_rate=1000000, and show what is set then.

    Bytes and connections are whole numbers. request_percentage is of one processor's time, controller_mutation_rate in
    partitions made and deleted.
    """
    entity = _one_entity(named)
    changes: dict[str, float | None] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise click.BadParameter(f"{pair!r} has no value: write {pair}=VALUE", param_hint="QUOTA=VALUE")
        changes[_quota(entity, key)] = _value(key, text)
    _change(bootstrap, entity, changes, as_json=as_json)


@command.command(name="unset")
@_entity_options
@click.argument("keys", metavar="QUOTA...", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="All quotas of it.")
@bootstrap_option
@json_option
def unset(keys: tuple[str, ...], is_all: bool, bootstrap: str, as_json: bool, **named: Any) -> None:
    """Remove quotas: the next less exact one holds then, if there is one."""
    entity = _one_entity(named)
    if bool(keys) is is_all:
        raise click.UsageError("name the quotas to be removed, or --all")
    known = _OF_ADDRESSES if "ip" in entity else _OF_CLIENTS
    chosen = known if is_all else [_quota(entity, key) for key in keys]
    _change(bootstrap, entity, dict.fromkeys(chosen), as_json=as_json)


# Inside.


def _entity(named: Mapping[str, Any]) -> Entity:
    """Whom the options name. Raises click.UsageError."""
    entity: Entity = {}
    for kind, name in _KINDS.items():
        if named[name] is not None and named[f"default_{name}"]:
            raise click.UsageError(f"name --{kind} or --default-{kind}, not both")
        if named[name] == "":
            raise click.UsageError(f"--{kind} needs a name")
        if named[name] is not None:
            entity[kind] = named[name]
        elif named[f"default_{name}"]:
            entity[kind] = None
    if "ip" in entity and len(entity) > 1:
        raise click.UsageError("an address has quotas of its own: name it without a user or client id")
    return entity


def _one_entity(named: Mapping[str, Any]) -> Entity:
    entity = _entity(named)
    if not entity:
        raise click.UsageError("name whose quotas: --user, --client-id or both, or --ip, or the --default of them")
    return entity


def _quota(entity: Entity, key: str) -> str:
    known = _OF_ADDRESSES if "ip" in entity else _OF_CLIENTS
    if key not in known:
        whose = "addresses have" if "ip" in entity else "users and client ids have"
        raise click.BadParameter(f"there is no quota {key!r}: {whose} {', '.join(known)}", param_hint="QUOTA")
    return key


def _value(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise click.BadParameter(f"{key} is a number of at least 0, not {text!r}", param_hint="QUOTA=VALUE")
    return value


def _change(bootstrap: str, entity: Entity, changes: Mapping[str, float | None], *, as_json: bool) -> None:
    async def body(client: Client) -> None:
        from barnabas.client.admin import Admin

        async with Admin(client) as admin:
            await admin.alter_client_quotas(entity, changes)
            found = await admin.describe_client_quotas(entity)
        _show([quotas for quotas in found if quotas.entity == entity], as_json=as_json)

    run_with_client(bootstrap, body)


def _show(found: list[ClientQuotas], *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "quotas": [
                    {
                        "entity": {_KINDS.get(kind, kind): name for kind, name in quotas.entity.items()},
                        "values": {
                            key: value if math.isfinite(value) else str(value) for key, value in quotas.values.items()
                        },
                    }
                    for quotas in found
                ]
            }
        )
    elif found:
        print_table(_COLUMNS, [row for quotas in found for row in _rows(quotas)])
    else:
        say("No quota is set.")


def _rows(quotas: ClientQuotas) -> list[list[object]]:
    who: list[object] = [
        (_DEFAULT if quotas.entity[kind] is None else quotas.entity[kind]) if kind in quotas.entity else None
        for kind in _KINDS
    ]
    return [[*who, key, int(value) if value.is_integer() else value] for key, value in quotas.values.items()]
