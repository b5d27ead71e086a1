"""`barnabas produce`: lines become records of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from barnabas.cli.completed_names import complete_topics
from barnabas.cli.connection import bootstrap_option, json_option, load_loops, run_with_client
from barnabas.cli.record_options import compression_option, rate_option

if TYPE_CHECKING:
    from barnabas.client.client import Client


@click.command(name="produce")
@click.argument("topic", shell_complete=complete_topics)
@bootstrap_option
@click.option("--file", "path", type=click.Path(), metavar="FILE", help="Read this file instead of standard input.")
@click.option(
    "--format",
    "line_format",
    type=click.Choice(["lines", "json"]),
    default="lines",
    show_default=True,
    help="A line is a value, or a JSON object with key, value, headers, partition and timestamp_ms.",
)
@click.option("--key-separator", metavar="TEXT", help="A line is a key, this text, and a value.")
@click.option("--key", metavar="TEXT", help="The key of every record that has none of its own.")
@click.option("--partition", type=click.IntRange(min=0), help="The partition of every record that names none.")
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header of every record; repeatable.")
@click.option(
    "--acks",
    type=click.Choice(["all", "1", "0"]),
    default="all",
    show_default=True,
    help="Who must have a record before it counts as written: all in-sync replicas, the leader, or nobody.",
)
@compression_option
@click.option(
    "--idempotent/--no-idempotent",
    default=None,
    help="Write each record once, also when requests are repeated; the default with --acks all, and only there.",
)
@rate_option("Write")
@json_option
def command(
    topic: str,
    bootstrap: str,
    path: str | None,
    line_format: str,
    key_separator: str | None,
    key: str | None,
    partition: int | None,
    headers: tuple[str, ...],
    acks: str,
    compression: str,
    idempotent: bool | None,
    rate: float | None,
    as_json: bool,
) -> None:
    """Write records to TOPIC, one for each line of standard input, and show which offsets they have.

    Ends at the first record that cannot be written, and tells the number of its line. `--format json` takes what
    `consume --json` prints.
    """
    load_loops()

    from barnabas.cli.record_lines import LineFormat
    from barnabas.cli.record_producing import produce

    if line_format == "json" and key_separator is not None:
        raise click.UsageError("--key-separator needs --format lines: a JSON record has its key in `key`")
    if key_separator == "":
        raise click.BadParameter("it is empty: give the text between key and value", param_hint="--key-separator")
    if key_separator is not None and key is not None:
        raise click.UsageError("--key and --key-separator cannot be given together: a record has one key")
    if idempotent and acks != "all":
        raise click.UsageError(f"--idempotent needs --acks all, not --acks {acks}")
    fixed_headers = []
    for header in headers:
        name, equals, value = header.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{header!r} must have the form NAME=VALUE", param_hint="--header")
        fixed_headers.append((_encoded(name), _encoded(value)))
    lines = LineFormat(
        topic=topic,
        is_json=line_format == "json",
        key_separator=None if key_separator is None else _encoded(key_separator),
        key=None if key is None else _encoded(key),
        partition=partition,
        headers=tuple(fixed_headers),
    )

    async def body(client: Client) -> None:
        await produce(
            client,
            lines,
            path,
            acks=acks,
            compression=compression,
            idempotent=idempotent,
            as_json=as_json,
            rate=rate,
        )

    run_with_client(bootstrap, body, topics=[topic])


def _encoded(text: str) -> bytes:
    """As it was typed: arguments that are not UTF-8 arrive as surrogates."""
    return text.encode("utf-8", "surrogateescape")
