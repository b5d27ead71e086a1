"""`barnabas topic copy`: the options; the work is in `topic_copying`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from barnabas.cli.completed_files import complete_files
from barnabas.cli.completed_names import complete_topics
from barnabas.cli.connection import ExitStatus, bootstrap_option, client_at, json_option, run_with_client, with_ports
from barnabas.cli.record_options import (
    check_target,
    compression_option,
    isolation_option,
    rate_option,
    state_option,
    target_options,
)

if TYPE_CHECKING:
    from barnabas.cli.starts import Start
    from barnabas.client.client import Client


@click.command(name="copy")
@click.argument("source", metavar="SOURCE[:0,2-4]", shell_complete=complete_topics)
@click.argument("target", metavar="TARGET", shell_complete=complete_topics)
@click.option(
    "--to",
    "target_bootstrap",
    metavar="HOST[:PORT][,...]",
    help="Some brokers of the cluster with TARGET.  [default: the same cluster]",
)
@click.option(
    "--to-command-config",
    metavar="FILE",
    shell_complete=complete_files,
    help="How to log in there; as --command-config.",
)
@click.option("--from", "first", metavar="PLACE", default="earliest", show_default=True, help="Where to begin.")
@click.option(
    "--until",
    "last",
    metavar="PLACE",
    default="latest",
    show_default=True,
    help="Where to stop: ahead of this place, as it is when the command begins.",
)
@click.option("--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@target_options("TARGET", "Give TARGET the configs that SOURCE has of its own.")
@isolation_option("committed", "Whether records of transactions that are open or were aborted are left out.")
@compression_option
@state_option
@click.option(
    "--transactional",
    metavar="NAME",
    help="Copies in transactions of this transactional id, and keeps how far it is in a group of this name beside "
    "TARGET: who reads committed records gets each exactly once, whatever is killed.",
)
@click.option(
    "--groups",
    multiple=True,
    metavar="PATTERN",
    help="Have consumer groups of these names (* and ? stand for any) go on at TARGET where they are at SOURCE; "
    "repeatable.",
)
@rate_option("Copy")
@click.option("--skip-deleted", is_flag=True, help="Go on behind records that were deleted before they were copied.")
@bootstrap_option
@json_option
def command(
    source: str,
    target: str,
    target_bootstrap: str | None,
    to_command_config: str | None,
    first: str,
    last: str,
    follow: bool,
    mapping: str,
    create: bool,
    replication_factor: int | None,
    copies_configs: bool,
    isolation: str,
    compression: str,
    state_file: str | None,
    transactional: str | None,
    groups: tuple[str, ...],
    rate: float | None,
    skip_deleted: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Copy records to another topic, or another cluster, with keys, headers and timestamps.

    What is committed up to now is copied, in order within each partition; with --follow also what comes later. With
    --state, a copy that was stopped goes on where it was: after Ctrl-C without a gap and without a record twice; after
    a kill or a failure without a gap, and some of the last records may be there twice. With --transactional it is
    exact in any case.
    """
    topic, numbers = _source(source)
    places = _places(first, last)
    if follow and last != "latest":
        raise click.UsageError("--follow has no end: leave --until out")
    if not target:
        raise click.BadParameter("a topic needs a name", param_hint="TARGET")
    if to_command_config is not None and target_bootstrap is None:
        raise click.UsageError("--to-command-config goes with --to")
    check_target(
        create=create, replication_factor=replication_factor, state_file=state_file, transactional=transactional
    )
    if groups and mapping != "keep":
        raise click.UsageError("--groups needs records to stay in their partitions: leave --partitions out")

    async def body(client: Client) -> None:
        from barnabas.cli.topic_copying import Plan, copy

        plan = Plan(
            source=topic,
            numbers=numbers,
            target=target,
            first=places[0],
            last=places[1],
            follows=follow,
            keeps_partitions=mapping == "keep",
            creates=create,
            replication_factor=replication_factor,
            copies_configs=copies_configs,
            reads_committed=isolation == "committed",
            compression=compression,
            state_file=state_file,
            transactional=transactional,
            rate=rate,
            skips_deleted=skip_deleted,
            groups=groups,
        )
        if target_bootstrap is None:
            await copy(client, client, plan, as_json=as_json)
            return
        async with client_at(client.host, with_ports(target_bootstrap), to_command_config) as other:
            await copy(client, other, plan, as_json=as_json)

    run_with_client(bootstrap, body, interrupted=ExitStatus.DONE if follow else ExitStatus.INTERRUPTED)


def _source(text: str) -> tuple[str, tuple[int, ...] | None]:
    """The topic and which of its partitions, None for all."""
    from barnabas.cli.partition_selection import parse_selection

    try:
        ((topic, numbers),) = parse_selection([text]).items()
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="SOURCE") from None
    return topic, numbers


def _places(first: str, last: str) -> tuple[Start, Start]:
    """Where the copy begins in each partition, and where it ends."""
    from barnabas.cli.starts import parse_start

    try:
        return parse_start(first), parse_start(last)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--from or --until") from None
