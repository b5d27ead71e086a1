"""`barnabas log-dirs`: where brokers keep their logs, and how much room is left there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from barnabas.cli.completed_names import complete_brokers, complete_topics
from barnabas.cli.connection import bootstrap_option, json_option, run_with_client
from barnabas.cli.output import Column, Mark, Marked, print_json, print_table, say, size

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.log_directories import LogDirectory, ReplicaLog
    from barnabas.wire.topics import TopicPartition

_LOG_COLUMNS: Final = (
    Column("Topic", "topic"),
    Column("Partition", "partition", is_number=True),
    Column("Broker", "broker", is_number=True),
    Column("Log directory", "path"),
    Column("Size", "size_bytes", is_number=True),
    Column("Lag", "offset_lag", is_number=True),
    Column("Future", "is_future"),
)
_TIMEOUT_MS: Final = 10_000
"""How long one broker is asked, which may have very many logs."""
Directories = Mapping[int, "Sequence[LogDirectory] | None"]
"""Of each broker; None where it has told nothing."""


@click.group(name="log-dirs")
def command() -> None:
    """Show where brokers keep their logs, and how much room is left there."""


@command.command(name="describe")
@click.argument("topics", metavar="[TOPIC[:0,2-4]]...", nargs=-1, shell_complete=complete_topics)
@click.option(
    "--broker",
    "node_ids",
    multiple=True,
    type=int,
    metavar="ID",
    shell_complete=complete_brokers,
    help="Only of this broker; repeatable.",
)
@bootstrap_option
@json_option
def describe(topics: tuple[str, ...], node_ids: tuple[int, ...], bootstrap: str, as_json: bool) -> None:
    """Show the log directories of brokers, and the logs in them.

    Of each directory how much is in it and how much is free, of each log its size and by how many offsets it is behind.
    A log that is future is a copy on its way into that directory; it takes the place of the other when it has all of
    it. With topics only their logs are listed; the directories are shown with all that they have.
    """
    from barnabas.cli.partition_selection import parse_selection

    try:
        selection = parse_selection(topics)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="TOPIC") from None

    async def body(client: Client) -> None:
        from barnabas.cli.missing import missing_broker
        from barnabas.cli.partition_selection import find_partitions
        from barnabas.client.admin import Admin
        from barnabas.client.log_directories import log_directories_of

        alive = client.cluster.brokers
        for node_id in node_ids:
            if node_id not in alive:
                raise missing_broker(node_id, alive)
        async with Admin(client) as admin:
            wanted = None
            if selection:
                partitions, _ = await find_partitions(admin, selection)
                wanted = frozenset(partitions)
            found = await log_directories_of(admin, node_ids or alive, _TIMEOUT_MS)
        if as_json:
            print_json(document(found, wanted))
        else:
            _print(found, wanted)
        for node_id in (each for each, directories in found.items() if directories is None):
            say(f"Broker {node_id} does not tell its log directories; `barnabas cluster describe` shows who answers.")

    run_with_client(bootstrap, body)


def document(found: Directories, wanted: frozenset[TopicPartition] | None) -> dict[str, Any]:
    """The directories as `log-dirs describe --json` has them, with the logs of `wanted` only where that is given."""
    return {
        "brokers": [
            {
                "id": node_id,
                "log_directories": None
                if directories is None
                else [
                    {
                        "path": directory.path,
                        "error": directory.error,
                        "size_bytes": directory.size_bytes,
                        "usable_bytes": directory.usable_bytes,
                        "total_bytes": directory.total_bytes,
                        "replicas": [
                            {
                                "topic": log.partition.topic,
                                "partition": log.partition.partition,
                                "size_bytes": log.size_bytes,
                                "offset_lag": log.offset_lag,
                                "is_future": log.is_future,
                            }
                            for log in _chosen(directory, wanted)
                        ],
                    }
                    for directory in directories
                ],
            }
            for node_id, directories in found.items()
        ]
    }


# Inside.


def _chosen(directory: LogDirectory, wanted: frozenset[TopicPartition] | None) -> list[ReplicaLog]:
    logs = (log for log in directory.logs if wanted is None or log.partition in wanted)
    return sorted(logs, key=lambda log: (log.partition, log.is_future))


def _print(found: Directories, wanted: frozenset[TopicPartition] | None) -> None:
    from barnabas.cli.log_directories import DIRECTORY_COLUMNS, directory_row

    places = [(node_id, directory) for node_id, directories in found.items() for directory in directories or ()]
    if not places:
        return
    print_table(DIRECTORY_COLUMNS, [directory_row(node_id, directory) for node_id, directory in places])
    logs = [(log, node_id, directory.path) for node_id, directory in places for log in _chosen(directory, wanted)]
    if not logs:
        return
    click.echo()
    logs.sort(key=lambda each: (each[0].partition, each[1], each[0].is_future))
    print_table(_LOG_COLUMNS, [_log_row(log, node_id, path) for log, node_id, path in logs])


def _log_row(log: ReplicaLog, node_id: int, path: str) -> list[object]:
    return [
        log.partition.topic,
        log.partition.partition,
        node_id,
        path,
        size(log.size_bytes),
        log.offset_lag,
        Marked("yes", Mark.WARNING) if log.is_future else "no",
    ]
