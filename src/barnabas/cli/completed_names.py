"""What shells complete of a command's options and arguments: names of the cluster that the line means."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem

    from barnabas.client.client import Client
    from barnabas.kernel.real_host import RealHost

COMPLETION_TIMEOUT_MS: Final = 1_000
"""How long a cluster may take: somebody waits for it in the middle of a line."""
_COMPLETIONS_MAX: Final = 10_000
_USER_PREFIX: Final = "User:"
Helps = dict[str, str | None]
"""What there is, in order, and what shells say beside it."""


def complete_topics(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of topics."""

    async def names(client: Client) -> Iterable[str]:
        from barnabas.client.admin import Admin

        async with Admin(client) as admin:
            return await admin.list_topics(COMPLETION_TIMEOUT_MS)

    return completions(context, incomplete, without_help(names))


def complete_groups(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of groups."""

    async def names(client: Client) -> Iterable[str]:
        from barnabas.client.admin import Admin

        async with Admin(client) as admin:
            return [group.group_id for group in await admin.list_groups(timeout_ms=COMPLETION_TIMEOUT_MS)]

    return completions(context, incomplete, without_help(names))


def complete_transactional_ids(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Transactional ids."""

    async def names(client: Client) -> Iterable[str]:
        from barnabas.client.transaction_admin import TransactionAdmin

        async with TransactionAdmin(client) as admin:
            found = await admin.list_transactions(timeout_ms=COMPLETION_TIMEOUT_MS)
            return [each.transactional_id for each in found]

    return completions(context, incomplete, without_help(names))


def complete_users(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Users that log in by SCRAM."""

    async def names(client: Client) -> Iterable[str]:
        from barnabas.client.user_admin import UserAdmin

        async with UserAdmin(client) as admin:
            return {each.user for each in await admin.describe_users(None, COMPLETION_TIMEOUT_MS)}

    return completions(context, incomplete, without_help(names))


def complete_brokers(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of brokers, with their addresses."""

    async def names(client: Client) -> Helps:
        brokers = client.cluster.brokers
        return {str(node_id): f"{brokers[node_id].host}:{brokers[node_id].port}" for node_id in sorted(brokers)}

    return completions(context, incomplete, names)


def complete_principals(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Users that log in by SCRAM, as ACLs name them."""
    from click.shell_completion import CompletionItem

    if not incomplete.startswith(_USER_PREFIX):
        return [CompletionItem(_USER_PREFIX)] if _USER_PREFIX.startswith(incomplete) else []
    found = complete_users(context, parameter, incomplete.removeprefix(_USER_PREFIX))
    return [CompletionItem(_USER_PREFIX + item.value) for item in found]


def without_help(names: Callable[[Client], Awaitable[Iterable[str]]]) -> Callable[[Client], Awaitable[Helps]]:
    """The names in order, and nothing beside them."""

    async def helps(client: Client) -> Helps:
        return dict.fromkeys(sorted(await names(client)))

    return helps


def completions(
    context: click.Context, incomplete: str, names: Callable[[Client], Awaitable[Helps]]
) -> list[CompletionItem]:
    """What of the names begins so; nothing where the cluster does not answer in time, whatever the reason, or where
    the profile is not there that names it.
    """
    from click.shell_completion import CompletionItem

    from barnabas.cli.connection import (
        BOOTSTRAP_VARIABLE,
        DEFAULT_BOOTSTRAP_SERVER,
        client_of_command,
        on_this_machine,
        with_ports,
    )
    from barnabas.cli.output import printable
    from barnabas.cli.profiles import is_on_command_line, names_no_profile

    if names_no_profile(context) and not is_on_command_line(context, "bootstrap"):
        return []  # which cluster is meant is not known
    bootstrap = context.params.get("bootstrap") or os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP_SERVER

    async def on_host(host: RealHost) -> Helps:
        import asyncio

        async with (
            asyncio.timeout(COMPLETION_TIMEOUT_MS / 1_000),
            client_of_command(host, with_ports(bootstrap)) as client,
        ):
            return await names(client)

    try:
        with context.scope(cleanup=False):  # by which the command's login is found
            found = on_this_machine(on_host)
    except Exception:  # noqa: BLE001 - a shell that completes has no place for errors
        return []
    matching = [
        CompletionItem(name, help=help_line)
        for name, help_line in found.items()
        # What begins so would be an option.
        if name.startswith(incomplete) and printable(name) == name and not name.startswith("-")
    ]
    # A shell types what all have in common: with the last one that is right, also where some are left out.
    return matching if len(matching) <= _COMPLETIONS_MAX else [*matching[: _COMPLETIONS_MAX - 1], matching[-1]]
