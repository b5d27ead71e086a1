"""`barnabas consume`: records of topics become lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from barnabas.cli.completed_names import complete_groups, complete_topics
from barnabas.cli.connection import ExitStatus, bootstrap_option, json_option, load_loops, run_with_client
from barnabas.cli.record_options import PositiveNumber, isolation_option
from barnabas.cli.record_templates import TEMPLATE_HELP, parse_template

if TYPE_CHECKING:
    from barnabas.cli.starts import Start
    from barnabas.client.client import Client

_FORMAT_NAMES = ("value", "line", "raw", "hex", "json")


def _complete_formats(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in _FORMAT_NAMES if name.startswith(incomplete)]


@click.command(name="consume")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics)
@bootstrap_option
@click.option(
    "--group", metavar="NAME", shell_complete=complete_groups, help="Read as a member of this consumer group."
)
@click.option(
    "--from",
    "start",
    metavar="WHERE",
    help="Where to begin: earliest, latest, an offset, -10 (ten before the end of each partition), 2h (ago), or a time "
    "such as 2026-11-21T09:00:00Z (UTC where it does not say). In a group, only partitions without a committed offset "
    "begin there. [default: latest; with --until-end, earliest]",
)
@click.option(
    "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Read this partition only; repeatable."
)
@click.option("--max", "records_max", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
@click.option("--until-end", is_flag=True, help="Stop at the present ends of the partitions.")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=PositiveNumber(),
    metavar="SECONDS",
    help="Stop when no record has come for this long.",
)
@click.option(
    "-f",
    "--format",
    "line_format",
    metavar="value|line|raw|hex|json|TEMPLATE",
    default="value",
    show_default=True,
    shell_complete=_complete_formats,
    help="What to print: the value; key, tab and value; the value byte for byte, whatever it is; key, tab and value in "
    "hexadecimal digits; all that a record has; or a template such as '%t %p %o %k %s': "
    f"{TEMPLATE_HELP}.",
)
@isolation_option("uncommitted", "Whether records of transactions that are open or were aborted are read.")
@json_option
def command(
    topics: tuple[str, ...],
    bootstrap: str,
    group: str | None,
    start: str | None,
    partitions: tuple[int, ...],
    records_max: int | None,
    until_end: bool,
    timeout_seconds: float | None,
    line_format: str,
    isolation: str,
    as_json: bool,
) -> None:
    """Read records of topics and print one line for each, until Ctrl-C.

    Records of one partition come in order. Without a group, reads all partitions; in a group, reads those that the
    group gives to this member, and commits what it has printed. --json is --format json: one object per line, with key,
    value and headers in base64 where they are not UTF-8.
    """
    load_loops()

    from barnabas.cli.record_consuming import Plan, consume

    if group == "":
        raise click.BadParameter("a group needs a name", param_hint="--group")
    try:
        place = None if start is None else _parsed(start)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--from") from None
    try:
        if line_format not in _FORMAT_NAMES:
            parse_template(line_format)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--format") from None
    plan = Plan(
        topics=tuple(dict.fromkeys(topics)),
        group=group,
        start=place,
        partitions=tuple(dict.fromkeys(partitions)),
        records_max=records_max,
        until_end=until_end,
        timeout_seconds=timeout_seconds,
        line_format="json" if as_json else line_format,
        reads_committed=isolation == "committed",
    )

    async def body(client: Client) -> None:
        await consume(client, plan)

    run_with_client(bootstrap, body, topics=plan.topics, interrupted=ExitStatus.DONE)


def _parsed(start: str) -> Start:
    """The place that `--from` names. Raises ValueError."""
    from barnabas.cli.starts import parse_start

    return parse_start(start)
