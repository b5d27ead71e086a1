"""A pipeline's steps as Spark's views, and what Spark says of it before anything runs."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from barnabas.pipelines.definition import (
    RECORD_COLUMNS,
    Pipeline,
    PipelineError,
    Query,
    Sink,
    Source,
    Step,
)
from barnabas.pipelines.event_times import watched_times
from barnabas.pipelines.lake_rows import ORDER_COLUMN, needs_order, with_order
from barnabas.pipelines.python_functions import PythonFrames
from barnabas.pipelines.record_columns import RewrittenSql
from barnabas.pipelines.sinks import writer_of
from barnabas.pipelines.sources import empty_frame
from barnabas.pipelines.spark_internals import aggregates_a_stream, refusal_of_output_mode
from barnabas.pipelines.spark_messages import spark_message
from barnabas.pipelines.spark_schema import quoted_name
from barnabas.pipelines.sql_steps import query_for_spark

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession


_SESSIONS = "session window"


class OutputMode(enum.Enum):
    """Which rows a query gives to its sinks with each batch; the value is Spark's name."""

    UPDATE = "update"
    """The rows that are new or have changed. So a bounded run has its last windows, which Append never lets go."""
    APPEND = "append"
    """The rows that are new: for streams joined with streams and for sessions, which Spark does in this mode alone. A
    session is a row when the watermark has passed its end.
    """


def check_with_spark(pipeline: Pipeline, session: SparkSession) -> None:
    """Has Spark analyse the whole pipeline on frames without rows.

    Names, types, keys, what the sinks can hold and what Spark can do with streams are checked. No broker is asked and
    nothing is written. Raises PipelineError at the line of the file.
    """
    create_views(pipeline, session, lambda source: empty_frame(session, source))
    try:
        check_views(pipeline, session)
    finally:
        for name in [source.name for source in pipeline.sources] + [step.name for step in pipeline.steps]:
            session.catalog.dropTempView(name)


def check_views(pipeline: Pipeline, session: SparkSession) -> Mapping[str, OutputMode]:
    """Looks at the views of `create_views`; returns the output mode of each query, by its view.

    Analyses only, whatever is behind the views. Raises PipelineError at the line of the file.
    """
    for query in pipeline.queries:
        for sink in query.sinks:
            frame = rows_to_write(pipeline, session, query)
            _check_names(pipeline, sink, frame)
            writer_of(pipeline, sink).check_rows(session, frame)
    return {query.from_view: _output_mode(pipeline, session, query) for query in pipeline.queries}


def create_views(pipeline: Pipeline, session: SparkSession, frame_of: Callable[[Source], DataFrame]) -> None:
    """Makes a temporary view of each source and each step. Raises PipelineError at the line of the file."""
    from pyspark.errors import PySparkException

    for source in pipeline.sources:
        try:
            frame_of(source).createOrReplaceTempView(source.name)
        except PySparkException as error:
            raise pipeline.error(f"source {source.name}: {spark_message(error)}", source.schema_line) from error
    functions = PythonFrames(pipeline, session)
    for step in pipeline.steps:
        made = step.python
        frame = _queried(pipeline, session, step) if made is None else functions.frame(step, made)
        if step.watermark is not None:
            try:
                frame = watched_times(frame, step.name, step.watermark)
                frame = frame.withWatermark(step.watermark.column, f"{step.watermark.delay_ms} milliseconds")
                frame.schema  # noqa: B018  # has Spark look at the column's type
            except PySparkException as error:
                message = f"step {step.name}, watermark: {spark_message(error)}"
                raise pipeline.error(message, step.watermark.line) from error
        if step.deduplicate:
            frame = _deduplicated(pipeline, frame, step)
        frame.createOrReplaceTempView(step.name)


def _queried(pipeline: Pipeline, session: SparkSession, step: Step) -> DataFrame:
    from pyspark.errors import PySparkException

    sql = query_for_spark(step.sql, [source.name for source in pipeline.sources])
    try:
        return session.sql(sql.text)
    except PySparkException as error:
        line = _line_of(error, step, sql)
        raise pipeline.error(f"step {step.name}: {spark_message(error)}", line) from error


def _deduplicated(pipeline: Pipeline, frame: DataFrame, step: Step) -> DataFrame:
    names = {name.lower(): name for name in frame.columns}
    for column in step.deduplicate:
        if column.lower() not in names:
            have = ", ".join(frame.columns)
            message = f"{step.name} has no column {column} for deduplicate; it has {have}"
            raise pipeline.error(message, step.deduplicate_line)
    columns = [names[column.lower()] for column in step.deduplicate]
    # Of rows without a watermark, such as samples, all are there at once.
    return frame.dropDuplicatesWithinWatermark(columns) if frame.isStreaming else frame.dropDuplicates(columns)


def rows_to_write(pipeline: Pipeline, session: SparkSession, query: Query) -> DataFrame:
    """What a query gives to its sinks: its view; of a source the columns of its schema, and of RECORD_COLUMNS those
    that a sink has in its key.
    """
    frame = session.table(query.from_view)
    if pipeline.source(query.from_view) is None:
        return frame
    keys = {column.lower() for sink in query.sinks for column in sink.key}
    return frame.drop(*(column for column in RECORD_COLUMNS if column not in keys))


def rows_with_order(pipeline: Pipeline, session: SparkSession, query: Query) -> DataFrame:
    """The same, and behind its columns ORDER_COLUMN (`lake_rows`) where a sink needs it that the view can give."""
    rows = rows_to_write(pipeline, session, query)
    if pipeline.source(query.from_view) is None or not needs_order(query):
        return rows
    columns = [quoted_name(name) for name in rows.columns]
    return with_order(session.table(query.from_view)).select(*columns, ORDER_COLUMN)


def _line_of(error: PySparkException, step: Step, sql: RewrittenSql) -> int:
    """The line of the file that Spark's error is about; the step's own where Spark does not say."""
    for context in error.getQueryContext() or []:
        if context.contextType().name == "SQL":
            return step.line_at(sql.written_offset(context.startIndex()))
    found = re.search(r"\bline (\d+),? pos (\d+)", str(error))
    return step.line_at(sql.written_offset(sql.offset_of(int(found[1]), int(found[2])))) if found else step.line


def _check_names(pipeline: Pipeline, sink: Sink, frame: DataFrame) -> None:
    names = [name.lower() for name in frame.columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise pipeline.error(f"{sink.from_view} has two columns named {twice[0]}: rename one", sink.from_line)
    for column in sink.key:
        if column.lower() not in names:
            have = ", ".join(frame.columns)
            raise pipeline.error(f"{sink.from_view} has no column {column} for the key; it has {have}", sink.key_line)


def _output_mode(pipeline: Pipeline, session: SparkSession, query: Query) -> OutputMode:
    frame = session.table(query.from_view)
    refusal = refusal_of_output_mode(session, frame, "Update")
    if refusal is None:
        return OutputMode.UPDATE
    of_sessions = _SESSIONS in refusal
    if refusal_of_output_mode(session, frame, "Append") is None and (of_sessions or not aggregates_a_stream(frame)):
        return OutputMode.APPEND
    raise pipeline.error(
        f"{query.from_view} cannot run on a stream: {_plain(refusal)}", _blamed(pipeline, session, query)
    )


def _blamed(pipeline: Pipeline, session: SparkSession, query: Query) -> int:
    """The line of the first step that Spark would refuse as it refuses the query."""
    for step in pipeline.steps:
        frame = session.table(step.name)
        if frame.isStreaming and refusal_of_output_mode(session, frame, "Update") is not None:
            return step.line
    return query.sinks[0].from_line


def _plain(refusal: str) -> str:
    return " ".join(re.split(r";\s*\n|\n", refusal, maxsplit=1)[0].split())


def streams_of(pipeline: Pipeline, view: str) -> frozenset[str]:
    """The topics that a view reads as streams, through however many steps."""
    source = pipeline.source(view)
    if source is not None:
        return frozenset({source.topic} if source.read.value == "stream" else ())
    step = pipeline.step(view)
    if step is None:
        raise PipelineError(f"there is no view {view}")
    return frozenset().union(*(streams_of(pipeline, name) for name in step.reads))
