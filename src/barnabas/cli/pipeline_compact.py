"""`barnabas pipeline compact`: which small files tables have, and what becomes of them."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from barnabas.cli.connection import CommandError
from barnabas.cli.output import Column, counted, print_table, say, size

if TYPE_CHECKING:
    from barnabas.pipelines.compaction import Compacted, TableFiles
    from barnabas.pipelines.definition import LakeSink, Pipeline
    from barnabas.pipelines.lake_sink import LakeWriter

_TELL_EVERY_SECONDS: Final = 5.0
_COLUMNS: Final = (
    Column("Table", "table"),
    Column("Files", "files", is_number=True),
    Column("Size", "bytes", is_number=True),
    Column("Small", "small_files", is_number=True),
    Column("Their size", "small_bytes", is_number=True),
    Column("Become", "files_instead", is_number=True),
)


@dataclass(frozen=True, slots=True)
class CompactPlan:
    """What the command was given; `path` is a file or the directory of a table, `target` a size as text."""

    path: Path
    target: str | None
    executes: bool
    jars_directory: Path | None
    as_json: bool


def compact(plan: CompactPlan) -> None:
    """Shows the tables' files, and compacts them where that is asked for. Raises PipelineError and CommandError."""
    from barnabas.pipelines.compaction import parse_size, pipeline_of_table, tables_to_compact
    from barnabas.pipelines.reading import read_pipeline

    try:
        target = None if plan.target is None else parse_size(plan.target)
    except ValueError as error:
        raise CommandError(f"--target {error}") from None
    path = _path_here(plan.path)
    with tempfile.TemporaryDirectory(prefix="barnabas-compact-") as scratch:
        logs = Path(scratch)
        pipeline = pipeline_of_table(path, logs) if path.is_dir() else read_pipeline(path)
        sinks = tables_to_compact(pipeline)
        with contextlib.ExitStack() as held:
            writers = [(_target(sink, target), _writer(pipeline, sink)) for sink in sinks]
            if plan.executes:
                _hold(held, pipeline, sinks, [writer for _, writer in writers])
            with _spark(plan, pipeline, logs) as session:
                _all(plan, session, [each for each in writers if _is_there(session, each[1])])


def _path_here(path: Path) -> Path:
    """The path of this machine. Raises CommandError for a URL."""
    from barnabas.pipelines.table_urls import as_url, file_path

    url = as_url(path)
    if url is None:
        return path
    here = file_path(url.replace("://", ":///", 1))
    if here is None:
        raise CommandError(
            f"{url} is compacted by the file of its pipeline, which has the settings of the store: name that; "
            f"`pipeline table TOPIC {url}` writes one"
        )
    return here


def _hold(
    held: contextlib.ExitStack, pipeline: Pipeline, sinks: Iterable[LakeSink], writers: Iterable[LakeWriter]
) -> None:
    """Keeps runs away for as long as `held` lasts: from a directory by its lock, from a URL by the lock of the state. A
    store may not know which of two commits was first.
    """
    from barnabas.pipelines.state_directory import StateDirectory

    if any(sink.url for sink in sinks):
        held.enter_context(StateDirectory(pipeline.state_directory).locked(pipeline))
    for writer in writers:
        held.enter_context(writer.alone())


def _all(plan: CompactPlan, session: Any, tables: list[tuple[int, LakeWriter]]) -> None:
    found = [(writer, target, writer.files(session, target)) for target, writer in tables]
    rows = [_row(writer.place, files, plan.as_json) for writer, _, files in found]
    print_table(_COLUMNS, rows, plan.as_json)
    if not plan.executes:
        if any(files.small for _, _, files in found):
            say("nothing was changed; --execute compacts them")
        return
    for writer, target, files in found:
        if not files.small:
            continue
        say(f"{writer.place}: {counted(files.small, 'file')} of {size(files.small_bytes)} are compacted ...")
        done = _compacted(session, writer, target)
        say(f"{writer.place}: {counted(done.removed, 'file')} became {done.added:,}; the old ones expire later")


def _compacted(session: Any, writer: LakeWriter, target: int) -> Compacted:
    """While Spark does it, its tasks are told of."""
    from pyspark.errors import PySparkException

    from barnabas.pipelines.compaction import CompactionFailedError
    from barnabas.pipelines.definition import PipelineError
    from barnabas.pipelines.spark_messages import spark_message
    from barnabas.pipelines.table_count import worked_to_the_end

    done: list[Compacted] = []
    told = time.monotonic()

    def work() -> int:
        done.append(writer.compact(session, target))
        return done[0].added

    def tell() -> None:
        nonlocal told
        if time.monotonic() - told > _TELL_EVERY_SECONDS:
            told = time.monotonic()
            tracker = session.sparkContext.statusTracker()
            stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            tasks, done_tasks = (
                sum(getattr(stage, name) for stage in stages if stage) for name in ("numTasks", "numCompletedTasks")
            )
            say(f"  {done_tasks} of {counted(tasks, 'task')} that are under way" if tasks else "  Spark plans ...")

    error = worked_to_the_end(work, tell).error
    if error is not None:
        if not isinstance(error, PySparkException | CompactionFailedError):
            raise error
        reason = spark_message(error) if isinstance(error, PySparkException) else str(error)
        raise PipelineError(
            f"{writer.place} was not compacted to its end: {reason}; no row is lost, and the same command goes on"
        ) from error
    return done[0]


def _row(place: str, files: TableFiles, as_json: bool) -> tuple[object, ...]:
    shown: Callable[[int], object] = (lambda number: number) if as_json else size
    return place, files.files, shown(files.size_bytes), files.small, shown(files.small_bytes), files.instead


def _target(sink: LakeSink, target: int | None) -> int:
    from barnabas.pipelines.compaction import TARGET_BYTES_DEFAULT

    if target is not None:
        return target
    return TARGET_BYTES_DEFAULT if sink.compact is None else sink.compact.target_bytes


def _writer(pipeline: Pipeline, sink: LakeSink) -> LakeWriter:
    from barnabas.pipelines.lake_sink import LakeWriter
    from barnabas.pipelines.sinks import writer_of

    writer = writer_of(pipeline, sink)
    if not isinstance(writer, LakeWriter):
        raise TypeError(f"{sink.target} is no table that can be compacted")
    return writer


def _is_there(session: Any, writer: LakeWriter) -> bool:
    if writer.exists(session):
        return True
    say(f"{writer.place} is not there yet")
    return False


@contextlib.contextmanager
def _spark(plan: CompactPlan, pipeline: Pipeline, logs: Path) -> Iterator[Any]:
    from barnabas.pipelines.connector import jars_of
    from barnabas.pipelines.java import find_java
    from barnabas.pipelines.jvm import LOG_NAME
    from barnabas.pipelines.session import SparkOptions, looking_after_spark, spark_session
    from barnabas.pipelines.sinks import settings_of

    java = find_java()
    jars = jars_of(pipeline, java, plan.jars_directory, say)
    say("Spark looks at the tables ...")
    settings = tuple(settings_of(pipeline).items())
    options = SparkOptions(java, jars, logs, pipeline.name, settings=settings)
    with spark_session(options) as session, looking_after_spark(logs / LOG_NAME):
        yield session
