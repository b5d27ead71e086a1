"""`barnabas log`: looks into the files of a log directory, ours or Apache Kafka's, and never changes one."""

from __future__ import annotations

import sys

import click

from barnabas.cli.connection import ExitStatus, exiting, json_option


@click.group(name="log")
def command() -> None:
    """Inspect the files of a log directory."""


@command.command(name="dump")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path())
@click.option("--records", is_flag=True, help="Show the records of each batch too.")
@click.option("--verify", is_flag=True, help="Check each index against the log beside it.")
@click.option(
    "--storage-options", metavar="JSON", default="{}", help="What fsspec is given for a URL, as the brokers give it."
)
@json_option
def dump(paths: tuple[str, ...], records: bool, verify: bool, storage_options: str, as_json: bool) -> None:
    """Show what files of a log directory hold: segments, indexes, snapshots, checkpoints, or whole directories.

    Shows a partition directory file by file; of a log directory (log.dirs), its own files and which partitions it has.
    Changes and locks nothing, so a broker may be running. Where a log is torn or corrupt, says from which byte on, and
    exits with 1. PATH may be a URL of remote storage too, of an object, a partition's directory, or of all.
    """
    from barnabas.cli.log_dump import LogDumper
    from barnabas.cli.log_files import files_at
    from barnabas.cli.log_report import LogReport

    with exiting():
        report = LogReport(as_json=as_json)
        for path in paths:
            files, place = files_at(path, storage_options)
            LogDumper(files, report, shows_records=records, verifies=verify).dump(place)
    sys.exit(ExitStatus.FAILED if report.is_damaged else ExitStatus.DONE)
