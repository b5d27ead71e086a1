"""`barnabas pipeline dev`: a Spark that stays, and the rows of each version of a pipeline's file, once it is saved."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from barnabas.cli.connection import CommandError
from barnabas.cli.output import Column, counted, print_table, printable, say
from barnabas.cli.pipeline_cluster import ask_cluster_of, bootstrap_of
from barnabas.cli.required_topics import require_topics
from barnabas.client.consumer import Consumer
from barnabas.client.settings import ConsumerSettings, IsolationLevel, OffsetReset
from barnabas.pipelines.cases import GivenRecord, path_of_tests, read_cases
from barnabas.pipelines.definition import Pipeline, PipelineError, ReadMode, SparkEndedError
from barnabas.pipelines.python_functions import forget_functions, load_functions
from barnabas.pipelines.reading import read_pipeline
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.pipelines.dev_session import DevSession, Look

TABLE_RECORDS_MAX: Final = 10_000
"""How many records of a topic that is read as a table are taken; of a stream it is the user's to say."""
SAMPLE_BYTES_MAX: Final = 64 * 1024 * 1024
SAMPLE_SECONDS_MAX: Final = 30.0
_LOOK_SECONDS: Final = 0.2
_POLL_MS: Final = 250.0


@dataclass(frozen=True, slots=True)
class DevPlan:
    """What the user wants: records of each topic, rows of each view, steps to be shown besides what sinks read.

    `from_tests`: the samples are what the tests beside the pipeline are given, and no broker is asked. `is_once` ends
    after the first look.
    """

    path: Path
    bootstrap: str
    records_max: int
    rows_max: int
    steps: tuple[str, ...] = ()
    from_tests: bool = False
    is_once: bool = False


def develop(plan: DevPlan) -> None:
    """Shows what the pipeline makes of sample records, and again whenever its file has changed, until Ctrl-C.

    Raises PipelineError and CommandError before Spark has started; after that they are told, and the next change is
    waited for (but for `is_once`).
    """
    from barnabas.pipelines.connector import jars_without_brokers
    from barnabas.pipelines.dev_session import DevSession
    from barnabas.pipelines.file_secrets import spark_settings_of_file
    from barnabas.pipelines.java import find_java
    from barnabas.pipelines.jvm import LOG_NAME
    from barnabas.pipelines.session import SparkOptions, spark_session

    pipeline = read_pipeline(plan.path)
    _views(plan, pipeline)
    load_functions(pipeline)
    samples = _samples(plan, pipeline, frozenset())
    with tempfile.TemporaryDirectory(prefix="barnabas-dev-", ignore_cleanup_errors=True) as directory:
        java = find_java()
        jars = jars_without_brokers([pipeline], java, say)
        options = SparkOptions(
            java, jars, Path(directory), pipeline.name, is_short=True, settings=spark_settings_of_file(pipeline)
        )
        say("starting Spark ...")
        with spark_session(options) as spark:
            session = DevSession(spark, Path(directory), Path(directory) / LOG_NAME)
            for topic, records in samples.items():
                session.keep(topic, records)
            if plan.is_once:
                _look(plan, pipeline, session)
                return
            seen: dict[Path, object] = {}
            while True:
                _await_change((plan.path, *_files_of(pipeline)), seen)
                pipeline = _look_again(plan, session) or pipeline


def _files_of(pipeline: Pipeline) -> tuple[Path, ...]:
    """The files of its functions of Python."""
    return tuple(
        dict.fromkeys(file for step in pipeline.steps if step.python is not None for file in step.python.files)
    )


def _await_change(paths: tuple[Path, ...], seen: dict[Path, object]) -> None:
    """Waits until one of the files, the first of which is the pipeline's, is another than `seen`, and notes it there.

    The pipeline's counts when nothing was seen of it yet, others do not.
    """
    while True:
        marks = {path: _mark(path) for path in paths}
        # An editor replaces it just now.
        is_there = marks[paths[0]] is not None
        has_changed = paths[0] not in seen or any(seen.get(path, mark) != mark for path, mark in marks.items())
        if is_there and has_changed:
            seen.clear()
            seen.update(marks)
            return
        seen.update({path: mark for path, mark in marks.items() if path not in seen and path != paths[0]})
        time.sleep(_LOOK_SECONDS)


def _mark(path: Path) -> object:
    """What tells a file from its next version; None where it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def _look_again(plan: DevPlan, session: DevSession) -> Pipeline | None:
    """The pipeline as it is now; None where its file cannot be read."""
    click.echo(f"--- {plan.path}")
    forget_functions()
    pipeline = None
    try:
        pipeline = read_pipeline(plan.path)
        for topic, records in _samples(plan, pipeline, session.topics).items():
            session.keep(topic, records)
        _look(plan, pipeline, session)
    except SparkEndedError:
        raise  # no later version of the file would be shown
    except (PipelineError, CommandError) as error:
        click.echo(printable(str(error)))
    return pipeline


def _look(plan: DevPlan, pipeline: Pipeline, session: DevSession) -> None:
    """Shows the rows, and only then has Spark look at what takes longer: whether it could do that on a stream."""
    _show(plan, pipeline, session.look(pipeline, _views(plan, pipeline), plan.rows_max))
    session.check(pipeline)


def _views(plan: DevPlan, pipeline: Pipeline) -> tuple[str, ...]:
    """The views that sinks read, and the others that the user has named, in the spelling of the file."""
    found = dict.fromkeys(query.from_view for query in pipeline.queries)
    for name in plan.steps:
        defined = pipeline.step(name) or pipeline.source(name)
        if defined is None:
            raise pipeline.error(f'"{name}" (--step) is neither a step nor a source')
        found[defined.name] = None
    return tuple(found)


def _show(plan: DevPlan, pipeline: Pipeline, look: Look) -> None:
    for view in look.views:
        targets = [sink.target for sink in pipeline.sinks if sink.from_view == view.view]
        count = f"the first {plan.rows_max} rows" if view.has_more else counted(len(view.rows), "row")
        click.echo(f"{view.view}{f' ({targets[0].split()[0]})' if targets else ''}: {count}")
        columns = [Column(name, name) for name in view.columns]
        print_table(columns, [[_cell(row.get(name)) for name in view.columns] for row in view.rows])
    for source, refused in look.refused.items():
        click.echo(f"{source}: {counted(refused, 'record')} of the sample do not fit the schema")
    click.echo(f"in {look.seconds:.1f} s")


def _cell(value: object) -> object:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


def _samples(plan: DevPlan, pipeline: Pipeline, known: frozenset[str]) -> dict[str, Sequence[GivenRecord]]:
    """By topic the records of each that has no samples yet. Raises PipelineError, CommandError."""
    wanted = {source.topic: source for source in pipeline.sources if source.topic not in known}
    if plan.from_tests:
        given = [each for case in read_cases(pipeline, path_of_tests(plan.path)) for each in _all(case.batches)]
        return {
            topic: [each for each in given if each.source == source.name][: plan.records_max]
            for topic, source in wanted.items()
        }
    if not wanted:
        return {}

    async def read(client: Client) -> dict[str, Sequence[GivenRecord]]:
        return {
            topic: await sample(client, topic, TABLE_RECORDS_MAX if source.read is ReadMode.TABLE else plan.records_max)
            for topic, source in wanted.items()
        }

    found = ask_cluster_of(pipeline, bootstrap_of(pipeline, plan.bootstrap), read)
    for topic, records in found.items():
        say(f"topic {topic}: {counted(len(records), 'record')} as a sample")
    return found


def _all(batches: Sequence[Sequence[GivenRecord]]) -> list[GivenRecord]:
    return [record for batch in batches for record in batch]


async def sample(client: Client, topic: str, count: int) -> list[GivenRecord]:
    """The newest records of a topic, about as many of each partition, in the order of their partitions and offsets.

    Fewer where there are fewer, where they have more than 64 MiB, or where no more come within 30 s.
    """
    info = (await require_topics(client, (topic,)))[topic]
    partitions = [TopicPartition(topic, number) for number in sorted(info.partitions)]
    each = -(-count // len(partitions))
    settings = ConsumerSettings(offset_reset=OffsetReset.EARLIEST, isolation=IsolationLevel.READ_COMMITTED)
    found: list[GivenRecord] = []
    async with Consumer(client, settings) as consumer:
        starts = await consumer.beginning_offsets(partitions)
        ends = await consumer.end_offsets(partitions)
        left = {partition for partition in partitions if starts[partition] < ends[partition]}
        consumer.assign(sorted(left, key=lambda partition: partition.partition))
        for partition in left:
            consumer.seek(partition, max(starts[partition], ends[partition] - each))
        size, deadline = 0, client.host.loop.time() + SAMPLE_SECONDS_MAX
        while left and size < SAMPLE_BYTES_MAX and client.host.loop.time() < deadline:
            for record in await consumer.poll(_POLL_MS):
                if record.offset >= ends[record.partition]:
                    continue
                size += len(record.key or b"") + len(record.value or b"")
                place = record.partition.partition, record.offset, record.timestamp_ms
                found.append(GivenRecord("", record.key, record.value, *place))
            left = {partition for partition in left if await consumer.position(partition) < ends[partition]}
    return sorted(found, key=lambda record: (record.partition, record.offset))
