"""`barnabas topic stats`: the options; the work is in `topic_statistics`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from barnabas.cli.completed_names import complete_topics
from barnabas.cli.connection import bootstrap_option, json_option, run_with_client
from barnabas.cli.measuring import measured_option

if TYPE_CHECKING:
    from barnabas.client.client import Client


@click.command(name="stats")
@click.argument("topics", metavar="[TOPIC[:0,2-4]]...", nargs=-1, shell_complete=complete_topics)
@measured_option("How long to measure what is written; 0s not to.")
@click.option(
    "--sample",
    type=click.IntRange(0, 1_000_000),
    default=1_000,
    show_default=True,
    help="Look at the keys of so many of the newest records of each partition.",
)
@bootstrap_option
@json_option
def command(topics: tuple[str, ...], measured_ms: int, sample: int, bootstrap: str, as_json: bool) -> None:
    """Show how large partitions are, what is written to each in a second, and how uneven their keys are.

    Without a TOPIC, of all topics but internal ones. The keys are those of the newest records, up to 16 MiB of a
    partition. What --json prints is what `barnabas reassign plan --from-stats` takes.
    """
    from barnabas.cli.partition_selection import parse_selection

    try:
        selection = parse_selection(topics)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="TOPIC") from None

    async def body(client: Client) -> None:
        from barnabas.cli.topic_statistics import measure, show

        show(await measure(client, selection, measured_ms, sample), as_json=as_json)

    run_with_client(bootstrap, body)
