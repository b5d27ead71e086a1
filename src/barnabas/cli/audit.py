"""`barnabas audit`: reads the segment files of brokers, and of remote storage, in place, and says what is wrong."""

from __future__ import annotations

import sys

import click

from barnabas.cli.connection import ExitStatus, exiting, json_option


@click.command(name="audit")
@click.argument("places", metavar="PLACE...", nargs=-1, required=True, type=click.Path())
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this; repeatable.")
@click.option("--no-compare", is_flag=True, help="Look at each replica by itself only.")
@click.option(
    "--processes", type=click.IntRange(1, 256), help="Read so many partitions at once.  [default: as many as cores]"
)
@click.option(
    "--spark",
    "master",
    metavar="MASTER",
    help="Read as a Spark job, such as at spark://HOST:7077: for remote storage that is more than a machine can read.",
)
@click.option(
    "--storage-options", metavar="JSON", default="{}", help="What fsspec is given for a URL, as the brokers give it."
)
@json_option
def command(
    places: tuple[str, ...],
    topics: tuple[str, ...],
    no_compare: bool,
    processes: int | None,
    master: str | None,
    storage_options: str,
    as_json: bool,
) -> None:
    """Read all records where they lie, check them, and compare the replicas of each partition.

    PLACE is a log directory of a broker (log.dirs), a partition's directory, or a URL of remote storage. Checks the
    checksum of each batch, that offsets go on without a gap, and that nothing is missing up to the high watermark; of
    replicas that lie at several places, that they have the same bytes at the same offsets. Changes and locks nothing,
    so brokers may be running. The exit status is 1 where something is wrong.
    """
    from barnabas.cli.audit_places import PLACES_MAX, find_audited
    from barnabas.cli.audit_report import AuditReport
    from barnabas.cli.audit_work import audit_all

    if len(places) > PLACES_MAX:
        raise click.UsageError(f"{PLACES_MAX} places are the most")
    if master is not None and processes is not None:
        raise click.UsageError("--processes are of this machine: leave them or --spark out")
    with exiting():
        found = find_audited(places, topics, storage_options)
        report = AuditReport(found, as_json=as_json)
        if master is None:
            results = audit_all(found.partitions, processes, compares=not no_compare)
        else:
            from barnabas.cli.audit_spark import audit_on_spark

            results = iter(audit_on_spark(found.partitions, master, compares=not no_compare))
        for result in results:
            report.add(result)
        report.end()
    sys.exit(ExitStatus.FAILED if report.faults else ExitStatus.DONE)
