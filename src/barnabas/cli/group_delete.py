"""`barnabas group delete` and `delete-offsets`: groups, and what they have committed, go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from barnabas.cli.completed_names import complete_groups, complete_topics
from barnabas.cli.connection import CommandError, ExitStatus, bootstrap_option, json_option, report, run_with_client
from barnabas.cli.missing import missing_groups
from barnabas.cli.output import Column, counted, print_json, print_table, printable, say, shown

if TYPE_CHECKING:
    from barnabas.client.client import Client

_dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would go, and delete nothing.")
_GROUP_COLUMNS = (
    Column("Group", "group_id"),
    Column("Topic", "topic"),
    Column("Partition", "partition", is_number=True),
    Column("Offset", "offset", is_number=True),
)
_COLUMNS = (
    Column("Topic", "topic"),
    Column("Partition", "partition", is_number=True),
    Column("Deleted offset", "offset", is_number=True),
)


@click.command(name="delete")
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_groups)
@click.option("--if-exists", is_flag=True, help="Do not fail if a group does not exist.")
@_dry_run_option
@bootstrap_option
@json_option
def delete(names: tuple[str, ...], if_exists: bool, dry_run: bool, bootstrap: str, as_json: bool) -> None:
    """Delete groups without members, with all that they have committed.

    A group that is used again later begins anew, where its members' auto.offset.reset says. --dry-run shows which
    offsets would go.
    """
    if "" in names:
        raise click.BadParameter("a group needs a name", param_hint="GROUP")

    async def body(client: Client) -> None:
        from barnabas.cli.group_states import find_group, has_members, in_use
        from barnabas.client.admin import Admin
        from barnabas.wire.errors import ErrorCode, KafkaError

        gone: list[str] = []
        offsets: list[tuple[str, str, int, int]] = []
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
                    if not dry_run:
                        await admin.delete_group(name)
                except KafkaError as error:
                    if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
                        missing.append(name)
                    else:
                        failures.append(error)
                    continue
                gone.append(name)
                offsets += [(name, each.topic, each.partition, had.offset) for each, had in sorted(found[1].items())]
        if as_json:
            rows = [dict(zip((column.name for column in _GROUP_COLUMNS), row, strict=True)) for row in offsets]
            print_json({"is_dry_run": dry_run, "deleted": gone, "missing": missing, "offsets": rows})
        elif dry_run and offsets:
            print_table(_GROUP_COLUMNS, offsets)
        elif not dry_run:
            for name in gone:
                count = sum(row[0] == name for row in offsets)
                click.echo(f"Deleted group {shown(name)}, with {counted(count, 'offset')}.")
        if dry_run:
            say(f"Nothing was deleted: that was a dry run. {counted(len(gone), 'group')} could be.")
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
@_dry_run_option
@bootstrap_option
@json_option
def delete_offsets(group_id: str, topics: tuple[str, ...], dry_run: bool, bootstrap: str, as_json: bool) -> None:
    """Delete what a group has committed for topics that none of its members subscribes to."""
    from barnabas.cli.partition_selection import parse_selection

    try:
        selection = parse_selection(topics)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--topic") from None

    async def body(client: Client) -> None:
        from barnabas.cli.group_states import has_members, in_use, require_group
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
                if not dry_run:
                    await admin.delete_group_offsets(group_id, doomed)
            except KafkaError as error:
                if error.code is not ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC:
                    raise
                raise in_use(group, "delete offsets of topics that they read") from error
        rows = [(each.topic, each.partition, committed[each].offset) for each in doomed]
        if as_json:
            names = ("topic", "partition", "offset")
            found = [dict(zip(names, row, strict=True)) for row in rows]
            print_json({"group_id": group_id, "is_dry_run": dry_run, "deleted": found})
        else:
            print_table(_COLUMNS, rows)
        if dry_run:
            say("Nothing was deleted: that was a dry run.")
            if has_members(group):
                say("The group has members: brokers refuse it for topics that these subscribe to.")

    run_with_client(bootstrap, body)
