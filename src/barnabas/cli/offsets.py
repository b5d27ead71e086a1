"""`barnabas offsets`: where partitions begin and end, and which offset a time has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from barnabas.cli.completed_names import complete_topics
from barnabas.cli.connection import bootstrap_option, json_option, run_with_client
from barnabas.cli.output import Column, print_json, print_table

if TYPE_CHECKING:
    from barnabas.client.client import Client

_COLUMNS = (
    Column("Topic", "topic"),
    Column("Partition", "partition", is_number=True),
    Column("Start", "start_offset", is_number=True),
    Column("End", "end_offset", is_number=True),
    Column("Offsets", "offsets", is_number=True),
)
_AT_COLUMNS = (
    *_COLUMNS,
    Column("At", "offset", is_number=True),
    Column("To the end", "offsets_to_end", is_number=True),
)


@click.command(name="offsets")
@click.argument("topics", metavar="TOPIC[:0,2-4]...", nargs=-1, required=True, shell_complete=complete_topics)
@click.option(
    "--at",
    "place",
    metavar="PLACE",
    help="Also the offset of a place: a time such as 2026-11-21T09:00:00Z, 2h (ago), or -N (N before the end). Of a "
    "time it is the first record that is not older; where all are older, the end.",
)
@bootstrap_option
@json_option
def command(topics: tuple[str, ...], place: str | None, bootstrap: str, as_json: bool) -> None:
    """Show where partitions begin and end, and how many offsets are in between.

    There are as many records, except in compacted topics and those with transactions, where there are fewer.
    """
    from barnabas.cli.partition_selection import parse_selection
    from barnabas.cli.starts import parse_start

    try:
        selection = parse_selection(topics)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="TOPIC") from None
    try:
        start = None if place is None else parse_start(place)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--at") from None

    async def body(client: Client) -> None:
        from barnabas.cli.partition_selection import find_bounds, find_offsets, find_partitions
        from barnabas.client.admin import Admin

        async with Admin(client) as admin:
            partitions, _ = await find_partitions(admin, selection, must_be_led=True)
            bounds = await find_bounds(admin, partitions)
            places = None
            if start is not None:
                places = await find_offsets(admin, bounds, start, client.host.clock.time_ms())
        rows: list[dict[str, Any]] = []
        for partition, each in bounds.items():
            row: dict[str, Any] = {
                "topic": partition.topic,
                "partition": partition.partition,
                "start_offset": each.start,
                "end_offset": each.end,
                "offsets": each.end - each.start,
            }
            if places is not None:
                row |= {"offset": places[partition], "offsets_to_end": each.end - places[partition]}
            rows.append(row)
        if as_json:
            print_json({"partitions": rows})
        else:
            print_table(_COLUMNS if places is None else _AT_COLUMNS, [list(row.values()) for row in rows])

    run_with_client(bootstrap, body, topics=tuple(selection))
