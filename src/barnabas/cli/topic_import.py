"""`barnabas topic import`: the options; the work is in `topic_importing`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from barnabas.cli.completed_names import complete_topics
from barnabas.cli.connection import bootstrap_option, exiting, json_option, run_with_client
from barnabas.cli.record_options import check_target, compression_option, rate_option, state_option, target_options

if TYPE_CHECKING:
    from barnabas.client.client import Client


@click.command(name="import")
@click.argument("directory", metavar="DIRECTORY", type=click.Path(path_type=Path))
@click.argument("topic", metavar="[TOPIC]", required=False, shell_complete=complete_topics)
@click.option("--partition", "numbers", multiple=True, type=click.IntRange(min=0), help="Only this; repeatable.")
@target_options("TOPIC", "Give TOPIC the configs that the exported one had.")
@click.option("--keep-offsets", is_flag=True, help="Write nothing unless each record gets the offset that it had.")
@click.option(
    "--offset-map", metavar="FILE", type=click.Path(path_type=Path), help="Write where offsets are which into FILE."
)
@compression_option
@state_option
@click.option(
    "--transactional",
    metavar="NAME",
    help="Writes in transactions of this transactional id, and keeps how far it is in a group of this name: who reads "
    "committed records gets each exactly once, whatever is killed.",
)
@rate_option("Write")
@bootstrap_option
@json_option
def command(
    directory: Path,
    topic: str | None,
    numbers: tuple[int, ...],
    mapping: str,
    create: bool,
    replication_factor: int | None,
    copies_configs: bool,
    keep_offsets: bool,
    offset_map: Path | None,
    compression: str,
    state_file: str | None,
    transactional: str | None,
    rate: float | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Write the records of an export to a topic, with timestamps, headers and keys, and offsets where they can be kept.

    TOPIC is the exported one's name if left out. All files are read first, and nothing is written of an export that is
    damaged. With --state or --transactional, an import that was stopped goes on where it was, as `topic copy` does.
    """
    from barnabas.cli.edges import Edge
    from barnabas.cli.export_files import require_export
    from barnabas.cli.topic_copying import Plan

    check_target(
        create=create, replication_factor=replication_factor, state_file=state_file, transactional=transactional
    )
    if keep_offsets and (transactional is not None or mapping == "key"):
        raise click.UsageError("--keep-offsets: markers of transactions take offsets, and keys choose partitions")
    with exiting():
        source = require_export(directory).topic
    plan = Plan(
        source=source,
        numbers=numbers or None,
        target=topic or source,
        first=Edge.EARLIEST,
        last=Edge.LATEST,
        follows=False,
        keeps_partitions=mapping == "keep",
        creates=create,
        replication_factor=replication_factor,
        copies_configs=copies_configs,
        reads_committed=True,
        compression=compression,
        state_file=state_file,
        transactional=transactional,
        rate=rate,
        skips_deleted=False,
    )

    async def body(client: Client) -> None:
        from barnabas.cli.topic_importing import import_topic

        await import_topic(client, directory, plan, keeps_offsets=keep_offsets, offset_map=offset_map, as_json=as_json)

    run_with_client(bootstrap, body)
