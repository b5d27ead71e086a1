"""`barnabas group delete` and `delete-offsets`: groups, and what they have committed, go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from barnabas.cli.connection import (
    CommandError,
    ExitStatus,
    bootstrap_option,
    complete_groups,
    complete_topics,
    json_option,
    report,
    run_with_client,
)
from barnabas.cli.missing import missing_groups
from barnabas.cli.output import Column, print_json, print_table, printable, shown

if TYPE_CHECKING:
    from barnabas.client.client import Client

_COLUMNS = (
    Column("Topic", "topic"),
    Column("Partition", "partition", is_number=True),
    Column("Deleted offset", "offset", is_number=True),
)


@click.command(name="delete")
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_groups)
@click.option("--if-exists", is_flag=True, help="Do not fail if a group does not exist.")
@bootstrap_option
@json_option
def delete(names: tuple[str, ...], if_exists: bool, bootstrap: str, as_json: bool) -> None:
    """Delete groups without members, with all that they have committed.

    A group that is used again later begins anew, where its members' auto.offset.reset says.
    """

    async def body(client: Client) -> None:
        from barnabas.cli.group_states import find_group, has_members, in_use
        from barnabas.client.admin import Admin
        from barnabas.wire.errors import ErrorCode, KafkaError

        gone: list[str] = []
        missing: list[str] = []
        failures: list[Exception] = []
        async with Admin(client) as admin:
            for name in dict.fromkeys(names):
                found = await find_group(admin, name)
                if found is None:
                    missing.append(name)
                    continue
                if has_members(found[0]):
                    failures.append(in_use(found[0], "delete it"))
                    continue
                try:
                    await admin.delete_group(name)
                    gone.append(name)
                except KafkaError as error:
                    if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
                        missing.append(name)
                    else:
                        failures.append(error)
        if as_json:
            print_json({"deleted": gone, "missing": missing})
        else:
            for name in gone:
                click.echo(f"Deleted group {shown(name)}.")
        if missing and not if_exists:
            failures.append(missing_groups(missing))
        for failure in failures[:-1]:
            report(failure)
        if failures:
            raise failures[-1]

    run_with_client(bootstrap, body)


@click.command(name="delete-offsets")
@click.argument("group_id", metavar="GROUP", shell_complete=complete_groups)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    required=True,
    metavar="TOPIC[:0,2-4]",
    shell_complete=complete_topics,
    help="Of this topic, or of some partitions of it; repeatable.",
)
@bootstrap_option
@json_option
def delete_offsets(group_id: str, topics: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Delete what a group has committed for topics that none of its members subscribes to."""
    from barnabas.cli.partition_selection import parse_selection

    try:
        selection = parse_selection(topics)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--topic") from None

    async def body(client: Client) -> None:
        from barnabas.cli.group_states import in_use, require_group
        from barnabas.cli.partition_selection import find_partitions
        from barnabas.client.admin import Admin
        from barnabas.wire.errors import ErrorCode, KafkaError

        async with Admin(client) as admin:
            group, committed = await require_group(admin, group_id)
            partitions, _ = await find_partitions(admin, selection)
            doomed = [partition for partition in partitions if partition in committed]
            if not doomed:
                raise CommandError(
                    f"group {group_id} has committed nothing for {', '.join(map(printable, topics))}; "
                    f"`barnabas group describe {group_id}` shows what it has",
                    ExitStatus.MISSING,
                )
            try:
                await admin.delete_group_offsets(group_id, doomed)
            except KafkaError as error:
                if error.code is not ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC:
                    raise
                raise in_use(group, "delete offsets of topics that they read") from error
        rows = [(each.topic, each.partition, committed[each].offset) for each in doomed]
        if as_json:
            names = ("topic", "partition", "offset")
            print_json({"group_id": group_id, "deleted": [dict(zip(names, row, strict=True)) for row in rows]})
        else:
            print_table(_COLUMNS, rows)

    run_with_client(bootstrap, body)
