"""`barnabas pipeline`: writes, checks, runs and watches pipelines on Spark.

Files are `pipelines/`'s matter; here is the order of things, what is said meanwhile, and what Ctrl-C does.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from barnabas.cli.connection import (
    CommandError,
    ExitStatus,
    addresses_option,
    bootstrap_option,
    exiting,
    json_option,
    run_with_client,
)
from barnabas.cli.output import counted, printable, say
from barnabas.cli.pipeline_checks import check_by_spark, checked_before_spark, read_before_spark
from barnabas.cli.pipeline_cluster import bootstrap_of
from barnabas.cli.pipeline_metrics import metrics_option, place_of, serving_metrics
from barnabas.cli.pipeline_record_options import RecordOptions, record_options
from barnabas.cli.pipeline_signals import end_with_input, interrupted_by_signals, stopping_on_signals
from barnabas.cli.pipeline_spark_options import ClusterOptions, cluster_options, jars_line, submit_script

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.pipelines.definition import Pipeline
    from barnabas.pipelines.progress import RunSummary

DEFAULT_FILE: Final = "pipeline.yaml"

file_argument = click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
jars_option = click.option(
    "--jars",
    "jars_directory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Take Spark's Kafka connector from this directory, for machines without network.",
)


from_option = click.option(
    "--from",
    "first",
    multiple=True,
    metavar="WHERE",
    help="Where to begin: earliest, latest, a time, or TOPIC:PARTITION=OFFSET, which may be repeated.",
)
to_option = click.option(
    "--to", "last", multiple=True, metavar="WHERE", help="Where to end, as --from; up to it, without it."
)


@click.group(name="pipeline")
def command() -> None:
    """Write, check, run and watch pipelines: topics, SQL or Python, and sinks, in a file, on Spark."""


@command.command(name="init")
@click.argument("path", metavar="[FILE]", type=click.Path(path_type=Path), default=DEFAULT_FILE)
def init(path: Path) -> None:
    """Write a first pipeline, which runs as it is and says how, to FILE (pipeline.yaml)."""
    with _exiting():
        from barnabas.pipelines.example import write_example

        write_example(path)
        say(f"{path} is written; its comments say how to run it")
    sys.exit(ExitStatus.DONE)


@command.command(name="check")
@file_argument
@addresses_option
@jars_option
@click.option(
    "--no-spark", is_flag=True, help="Check the file, the directories and the topics only, without Java and Spark."
)
def check(path: Path, bootstrap: str, jars_directory: Path | None, no_spark: bool) -> None:
    """See whether the pipeline in FILE can run, without running it or writing anything.

    Looks at the file and its SQL, directories, topics, Java and the connector first; then Spark checks names and types.
    """
    with _exiting():
        from barnabas.pipelines.lost_records import refuse_lost_records
        from barnabas.pipelines.state_directory import StateDirectory

        pipeline, bootstrap = read_before_spark(path, bootstrap)
        refuse_lost_records(pipeline, StateDirectory(pipeline.state_directory), bootstrap)
        if not no_spark:
            with interrupted_by_signals():
                check_by_spark(pipeline, jars_directory)
        parts = (
            counted(len(pipeline.sources), "source"),
            counted(len(pipeline.steps), "step"),
            counted(len(pipeline.sinks), "sink"),
        )
        unseen = " as far as can be seen without Spark" if no_spark else ""
        click.echo(f"{path} is right{unseen}: {', '.join(parts)}")
    sys.exit(ExitStatus.DONE)


@command.command(name="test")
@file_argument
@click.option(
    "--tests", type=click.Path(path_type=Path), metavar="PATH", help="Tests, if not in FILE's NAME.test.yaml."
)
@click.option("--only", metavar="TEXT", help="Run the tests that have this in their name.")
@click.option("--junit", type=click.Path(path_type=Path), metavar="PATH", help="Write the outcome as JUnit's XML, too.")
@json_option
def test(path: Path, tests: Path | None, only: str | None, junit: Path | None, as_json: bool) -> None:
    """Run the tests beside the pipeline in FILE: rows in and rows expected, on Spark, without brokers.

    delays.yaml has its tests in delays.test.yaml. All of the pipeline is run but the topics: decoding, steps,
    watermarks, dead letters, and how rows are written. The exit status is 1 when a test fails.
    """
    with _exiting(), interrupted_by_signals():
        from barnabas.cli.pipeline_cases import run_tests

        have_passed = run_tests(path, tests, only, junit, as_json)
    sys.exit(ExitStatus.DONE if have_passed else ExitStatus.FAILED)


@command.command(name="dev")
@file_argument
@click.option("--records", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Newest of each topic.")
@click.option("--rows", type=click.IntRange(1, 1_000), default=20, show_default=True, help="Rows shown of each step.")
@click.option("--step", "steps", multiple=True, metavar="NAME", help="Show this step or source, too; may be repeated.")
@click.option("--from-tests", is_flag=True, help="Take what FILE's tests are given, and ask no broker.")
@click.option("--once", is_flag=True, help="End after the first look.")
@addresses_option
def dev(
    path: Path, records: int, rows: int, steps: tuple[str, ...], from_tests: bool, once: bool, bootstrap: str
) -> None:
    """Show what the pipeline in FILE makes of sample records, and again whenever FILE is saved, until Ctrl-C.

    Spark stays, so that a change is seen in a moment. Steps are computed over all samples at once, as over a table:
    no watermark drops a row. Nothing is written.
    """
    with _exiting(interrupted=ExitStatus.INTERRUPTED if once else ExitStatus.DONE):
        from barnabas.pipelines.spark_extra import require_spark_extra

        require_spark_extra()
        from barnabas.cli.pipeline_dev import DevPlan, develop

        with interrupted_by_signals():
            develop(DevPlan(path, bootstrap, records, rows, steps, from_tests=from_tests, is_once=once))
    sys.exit(ExitStatus.DONE)


@command.command(name="graph")
@file_argument
@click.option(
    "--format",
    "form",
    type=click.Choice(("text", "mermaid", "dot", "svg")),
    default="text",
    show_default=True,
    help="Text for the terminal, Mermaid for Markdown, DOT for Graphviz, or an SVG picture.",
)
def graph(path: Path, form: str) -> None:
    """Draw the pipeline in FILE: its topics, steps and sinks. Only the file is read."""
    with _exiting():
        from barnabas.pipelines.graph import dot_of, graph_of, mermaid_of, svg_of, text_of
        from barnabas.pipelines.reading import read_pipeline
        from barnabas.pipelines.spark_extra import require_spark_extra

        require_spark_extra()
        pipeline = read_pipeline(path)
        if form == "text":
            for line in text_of(pipeline):
                click.echo(printable(line))
        else:
            draw = {"mermaid": mermaid_of, "dot": dot_of, "svg": svg_of}[form]
            click.echo(draw(graph_of(pipeline)), nl=False)
    sys.exit(ExitStatus.DONE)


@command.command(name="schema")
@click.option("--tests", "is_of_tests", is_flag=True, help="The schema of NAME.test.yaml, the tests of a pipeline.")
def schema(is_of_tests: bool) -> None:
    """Print the JSON schema of a pipeline's YAML, by which editors complete keys and underline mistakes."""
    with _exiting():
        from barnabas.pipelines.json_schema import cases_schema, pipeline_schema
        from barnabas.pipelines.spark_extra import require_spark_extra

        require_spark_extra()
        click.echo(json.dumps(cases_schema() if is_of_tests else pipeline_schema(), indent=2))
    sys.exit(ExitStatus.DONE)


@command.command(name="run")
@file_argument
@click.option("--once", is_flag=True, help="Process what is in the topics now, then end.")
@addresses_option
@jars_option
@json_option
@from_option
@to_option
@cluster_options
@metrics_option
@click.option("--stop-with-parent", is_flag=True, hidden=True)
def run(
    path: Path,
    once: bool,
    bootstrap: str,
    jars_directory: Path | None,
    as_json: bool,
    first: tuple[str, ...],
    last: tuple[str, ...],
    metrics: str | None,
    stop_with_parent: bool,
    cluster: ClusterOptions,
) -> None:
    """Run the pipeline in FILE, until Ctrl-C or with --once to the end of what is there.

    A run goes on where the last one ended, in whatever way. Ctrl-C lets it finish the present batch; Ctrl-C twice cuts
    that short, and the next run does the batch again. With --to it ends there; --from is for a first run. --json prints
    a line for each batch.
    """
    if stop_with_parent:
        end_with_input()
    once = once or bool(last)
    with _exiting():
        summary = _run(
            path,
            bootstrap,
            jars_directory,
            once=once,
            as_json=as_json,
            stores=once and not stop_with_parent,
            bounds=(first, last),
            cluster=cluster,
            metrics=metrics,
        )
    sys.exit(_status_of(summary, once))


@command.command(name="backfill")
@file_argument
@from_option
@to_option
@click.option("--restart", is_flag=True, help="Forget what a backfill that has not ended has computed, and begin anew.")
@click.option("--discard-old", is_flag=True, help="Only remove what the last backfill has replaced, for good.")
@addresses_option
@jars_option
@json_option
@cluster_options
@metrics_option
def backfill(
    path: Path,
    first: tuple[str, ...],
    last: tuple[str, ...],
    restart: bool,
    discard_old: bool,
    bootstrap: str,
    jars_directory: Path | None,
    as_json: bool,
    metrics: str | None,
    cluster: ClusterOptions,
) -> None:
    """Compute the pipeline in FILE again, beside its tables, and have the result take their place.

    For a pipeline that was changed in a way that its state cannot go on with, or whose results were wrong. Runs of the
    former one may go on until the end; it must be stopped then. The old tables and the old state are kept beside the
    new ones until --discard-old. What was cut short is gone on with by the same command.
    """
    with _exiting():
        if metrics is not None:
            place_of(metrics)  # before anything else is looked at
        from barnabas.pipelines.spark_extra import require_spark_extra

        require_spark_extra()
        from barnabas.cli.pipeline_backfill import BackfillPlan, run_backfill

        plan = BackfillPlan(
            path,
            bootstrap,
            jars_directory,
            first,
            last,
            as_json,
            checked_before_spark,
            stopping_on_signals,
            cluster.cluster(),
            metrics,
        )
        was_stopped = run_backfill(plan, restarts=restart, discards=discard_old)
    sys.exit(ExitStatus.INTERRUPTED if was_stopped else ExitStatus.DONE)


@command.command(name="table")
@click.argument("topic")
@click.argument("table")
@click.option(
    "--kind",
    type=click.Choice(("delta", "iceberg", "parquet")),
    default="delta",
    show_default=True,
    help="What TABLE is: a directory or a URL, or for Iceberg also catalog.namespace.table.",
)
@click.option(
    "--key",
    multiple=True,
    metavar="COLUMN",
    help="One row for each value of this column; may be repeated. _key is the record's: then tombstones delete.",
)
@click.option(
    "--schema", metavar="DDL", help="Columns, as in a pipeline; found in a sample of the records if left out."
)
@click.option("--schema-file", type=click.Path(path_type=Path), metavar="FILE", help="The schema of records in Avro.")
@click.option("--confluent", is_flag=True, help="Records have a schema registry's framing before them.")
@record_options
@click.option("--csv", "is_csv", is_flag=True, help="Records are lines of CSV; needs --schema.")
@click.option(
    "--debezium",
    "is_of_changes",
    is_flag=True,
    help="Records are Debezium's envelopes, in JSON, or with a schema or registry in Avro or Protobuf; needs --key.",
)
@click.option("--partition-by", multiple=True, metavar="COLUMN", help="Divide a table that is made; may be repeated.")
@click.option(
    "--file", "path", type=click.Path(path_type=Path), metavar="FILE", help="The pipeline's file; TOPIC.table.yaml."
)
@click.option("--once", is_flag=True, help="Process what is in the topic now, then end.")
@addresses_option
@jars_option
@json_option
@cluster_options
@metrics_option
def table(
    topic: str,
    table: str,
    kind: str,
    key: tuple[str, ...],
    schema: str | None,
    schema_file: Path | None,
    confluent: bool,
    records: RecordOptions,
    is_csv: bool,
    is_of_changes: bool,
    partition_by: tuple[str, ...],
    path: Path | None,
    once: bool,
    bootstrap: str,
    jars_directory: Path | None,
    as_json: bool,
    metrics: str | None,
    cluster: ClusterOptions,
) -> None:
    """Keep TABLE in step with TOPIC, until Ctrl-C or with --once to the end of what is there.

    Writes a pipeline into FILE, with the schema that it finds in a sample, unless FILE is there, and runs it: the same
    command goes on where the last one ended. Without --key each record is a row; with it, one row for each key.
    """
    with _exiting():
        from barnabas.pipelines.spark_extra import require_spark_extra

        require_spark_extra()
        from barnabas.cli.pipeline_table import SourceOptions, written_file

        source = SourceOptions(schema, schema_file, confluent, is_csv, is_of_changes, records)
        file = written_file(topic, table, kind, key, partition_by, source, path, bootstrap)
        summary = _run(
            file,
            bootstrap,
            jars_directory,
            once=once,
            as_json=as_json,
            stores=once,
            cluster=cluster,
            metrics=metrics,
        )
    sys.exit(_status_of(summary, once))


@command.command(name="compact")
@click.argument("path", metavar="FILE|TABLE", type=click.Path(path_type=Path))
@click.option("--target", metavar="SIZE", help="How large files are to be; what the file says, or 128MiB.")
@click.option("--execute", is_flag=True, help="Do it; without this it is only shown.")
@jars_option
@json_option
def compact(path: Path, target: str | None, execute: bool, jars_directory: Path | None, as_json: bool) -> None:
    """Put small files together, of the Delta and Iceberg tables that the pipeline in FILE writes, or of a TABLE.

    TABLE is the directory of one; one at a URL is compacted by its FILE. No row changes, and readers are not disturbed:
    old files stay until they expire. A table in a directory, or at a URL, must not be written by a run meanwhile, which
    compacts it itself by `compact` of its sink.
    """
    with _exiting(), interrupted_by_signals():
        from barnabas.pipelines.spark_extra import require_spark_extra

        require_spark_extra()
        from barnabas.cli.pipeline_compact import CompactPlan
        from barnabas.cli.pipeline_compact import compact as compact_tables

        compact_tables(CompactPlan(path, target, execute, jars_directory, as_json))
    sys.exit(ExitStatus.DONE)


@command.command(name="infer")
@click.argument("topic")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@addresses_option
def infer(topic: str, path: Path, bootstrap: str) -> None:
    """Write the schema that is found in the newest records of TOPIC, JSON, into FILE, for `schema_file` of a source.

    A FILE that is there only gets the columns that it lacks: what it has keeps its type, whatever records say now.
    """
    with _exiting():
        from barnabas.pipelines.spark_extra import require_spark_extra

        require_spark_extra()
        from barnabas.cli.pipeline_infer import infer as write_schema

        write_schema(topic, path, bootstrap)
    sys.exit(ExitStatus.DONE)


@command.command(name="jars")
@file_argument
@jars_option
def jars(path: Path, jars_directory: Path | None) -> None:
    """Print the jars that the pipeline in FILE needs, as `spark-submit --jars` takes them."""
    with _exiting():
        click.echo(jars_line(path, jars_directory, say))
    sys.exit(ExitStatus.DONE)


@command.command(name="submit-script")
def submitted() -> None:
    """Print the path of the Python file that spark-submit is to start; its arguments are those of `pipeline`."""
    click.echo(str(submit_script()))


@command.command(name="status")
@file_argument
@addresses_option
@json_option
def status(path: Path, bootstrap: str, as_json: bool) -> None:
    """Show how the pipeline in FILE is doing: whether it runs, what it has done, how far behind it is."""
    with _exiting():
        from barnabas.cli.pipeline_status import show_status
        from barnabas.pipelines.reading import read_pipeline
        from barnabas.pipelines.spark_extra import require_spark_extra

        require_spark_extra()
        pipeline = read_pipeline(path)
        show_status(pipeline, bootstrap_of(pipeline, bootstrap), as_json)
    sys.exit(ExitStatus.DONE)


@command.command(name="replay")
@click.argument("name", metavar="NAME")
@click.option("--dry-run", is_flag=True, help="Say which letters would be sent back, and send none.")
@bootstrap_option
@json_option
def replay(name: str, dry_run: bool, bootstrap: str, as_json: bool) -> None:
    """Send the dead letters of the pipeline NAME (its name, not its file) back to the topics that they came from.

    Each record goes to its topic and partition with the key, the value, the headers and the timestamp that it had. The
    group barnabas-replay-NAME keeps how far that was done: the next replay sends the letters that are new.
    """
    from barnabas.cli.pipeline_replay import replay as send_back

    async def body(client: Client) -> None:
        await send_back(client, name, is_dry=dry_run, as_json=as_json)

    run_with_client(bootstrap, body)


@contextlib.contextmanager
def _exiting(*, interrupted: ExitStatus = ExitStatus.INTERRUPTED) -> Iterator[None]:
    """Like `exiting`, with exit statuses for the errors of pipelines."""
    from barnabas.pipelines.definition import PipelineError, PipelineMissingError, PipelineUnreachableError

    with exiting(interrupted=interrupted):
        try:
            yield
        except PipelineMissingError as error:
            raise CommandError(str(error), ExitStatus.MISSING) from error
        except PipelineUnreachableError as error:
            raise CommandError(str(error), ExitStatus.UNREACHABLE) from error
        except PipelineError as error:
            raise CommandError(str(error)) from error


def _run(
    path: Path,
    bootstrap: str,
    jars_directory: Path | None,
    *,
    once: bool,
    as_json: bool,
    stores: bool,
    bounds: tuple[tuple[str, ...], tuple[str, ...]] = ((), ()),
    cluster: ClusterOptions | None = None,
    metrics: str | None = None,
) -> RunSummary:
    """Checks and runs the pipeline of a file; with `stores` Spark's classes are stored after a run that ends well.
    `bounds` is what --from and --to say, `metrics` what --metrics does.
    """
    if metrics is not None:
        place_of(metrics)  # before anything else is looked at
    import dataclasses

    from barnabas.pipelines.spark_cluster import LOCAL_CLUSTER

    place = LOCAL_CLUSTER if cluster is None else cluster.cluster()
    pipeline, bootstrap = read_before_spark(path, bootstrap)

    from barnabas.cli.pipeline_backfill import range_of_run
    from barnabas.cli.pipeline_progress import open_progress
    from barnabas.pipelines.run_options import RunOptions
    from barnabas.pipelines.runner import run_pipeline

    offsets = range_of_run(pipeline, bootstrap, *bounds) if any(bounds) else None
    options = RunOptions(bootstrap, once, jars_directory, notes_classes=stores, offsets=offsets, cluster=place)
    stop = threading.Event()
    with (
        stopping_on_signals(stop),
        open_progress(as_json, stop.set) as progress,
        serving_metrics(metrics, pipeline, progress) as told,
    ):
        summary = run_pipeline(pipeline, dataclasses.replace(options, show=progress.rows), told, stop)
    if stores and not summary.was_stopped:
        _store_classes(pipeline, jars_directory)
    return summary


def _store_classes(pipeline: Pipeline, jars_directory: Path | None) -> None:
    """Has the next sessions start sooner, where this one has noted its classes."""
    from barnabas.pipelines.class_archive import CLASSES_NAME, archive_of, make_archive
    from barnabas.pipelines.connector import jars_of
    from barnabas.pipelines.java import find_java
    from barnabas.pipelines.state_directory import StateDirectory

    classes = StateDirectory(pipeline.state_directory).log_directory / CLASSES_NAME
    if classes.is_file():
        java = find_java()
        with interrupted_by_signals():
            make_archive(archive_of(java, jars_of(pipeline, java, jars_directory, say)), classes, say)


def _status_of(summary: RunSummary, once: bool) -> ExitStatus:
    """Stopping is how a continuous run ends; a run over what was there has not come to its end then."""
    return ExitStatus.INTERRUPTED if once and summary.was_stopped else ExitStatus.DONE
