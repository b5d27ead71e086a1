"""`barnabas topic export`: the options; the work is in `topic_exporting`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from barnabas.cli.completed_names import complete_topics
from barnabas.cli.connection import bootstrap_option, json_option, run_with_client
from barnabas.cli.record_options import compression_option, isolation_option

if TYPE_CHECKING:
    from barnabas.client.client import Client


@click.command(name="export")
@click.argument("topic", metavar="TOPIC[:0,2-4]", shell_complete=complete_topics)
@click.argument("directory", metavar="DIRECTORY", type=click.Path(path_type=Path))
@click.option("--from", "first", metavar="PLACE", default="earliest", show_default=True, help="Where to begin.")
@click.option(
    "--until",
    "last",
    metavar="PLACE",
    default="latest",
    show_default=True,
    help="Where to stop: ahead of this place, as it is when the command begins.",
)
@isolation_option("committed", "Whether records of transactions that are open or were aborted are left out.")
@compression_option
@bootstrap_option
@json_option
def command(
    topic: str,
    directory: Path,
    first: str,
    last: str,
    isolation: str,
    compression: str,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Write records of a topic into files, with offsets, timestamps, headers and keys.

    DIRECTORY is new, or has what the same command has left when it was stopped: then it goes on there. Its files are
    those of a log directory: `barnabas topic import`, `audit` and `log dump` read them.
    """
    from barnabas.cli.partition_selection import parse_selection
    from barnabas.cli.starts import parse_start

    try:
        selection = parse_selection([topic])
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="TOPIC") from None
    try:
        places = parse_start(first), parse_start(last)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--from or --until") from None
    ((name, numbers),) = selection.items()

    async def body(client: Client) -> None:
        from barnabas.cli.topic_exporting import ExportPlan, export

        plan = ExportPlan(
            topic=name,
            numbers=numbers,
            directory=directory,
            first=places[0],
            last=places[1],
            reads_committed=isolation == "committed",
            compression=compression,
        )
        await export(client, plan, as_json=as_json)

    run_with_client(bootstrap, body)
