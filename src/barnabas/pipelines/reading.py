"""Makes a Pipeline of its YAML file, and refuses the file where anything in it cannot be right.

This is all that can be known without a cluster, without the machine and without Spark. The first fault found is told.
"""

from __future__ import annotations

import datetime as dt
import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from barnabas.pipelines.definition import (
    AHEAD_MS_DEFAULT,
    MAX_RECORDS_PER_BATCH_DEFAULT,
    PIPELINE_NAME,
    RECORD_COLUMNS,
    Column,
    Delivery,
    OnError,
    ParquetSink,
    Pipeline,
    ReadMode,
    Sink,
    Source,
    SourceFormat,
    Starting,
    StartingPosition,
    Step,
    TopicSink,
    Watermark,
)
from barnabas.pipelines.durations import parse_duration_ms
from barnabas.pipelines.spark_schema import SchemaError, parse_schema, quoted_name
from barnabas.pipelines.sql_steps import SqlError, StepQuery, parse_query, refuse_joins_of_topics
from barnabas.pipelines.yaml_positions import Section, Text, nearest, read_document

SOURCES_MAX: Final = 50
STEPS_MAX: Final = 100
SINKS_MAX: Final = 20
KEY_COLUMNS_MAX: Final = 50
RECORDS_PER_BATCH_LIMIT: Final = 1_000_000_000
TRIGGER_MS_MIN: Final = 100
TRIGGER_MS_MAX: Final = 24 * 3_600_000
DELAY_MS_MAX: Final = 3_650 * 24 * 3_600_000
INTERNAL_TOPICS: Final = ("__consumer_offsets", "__transaction_state")
STATE_ROOT: Final = ".barnabas"

PIPELINE_KEYS: Final = ("name", "sources", "steps", "sinks", "trigger", "state")
SOURCE_KEYS: Final = (
    "topic",
    "read",
    "format",
    "schema",
    "starting",
    "max_records_per_batch",
    "allow_data_loss",
    "on_error",
)
STEP_KEYS: Final = ("name", "sql", "watermark")
WATERMARK_KEYS: Final = ("column", "delay", "ahead")
SINK_KEYS: Final = ("topic", "parquet", "from", "key", "delivery")

VIEW_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,99}")
TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
Choice = TypeVar("Choice", bound=enum.Enum)

_SCHEME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")


@dataclass(frozen=True, slots=True)
class _View:
    """What later parts of the file may know of a source or a step; `columns` as StepQuery has them."""

    name: str
    columns: tuple[str, ...] | None
    is_stream: bool


def read_pipeline(path: Path) -> Pipeline:
    """The pipeline of a file.

    Raises PipelineMissingError where there is no such file, PipelineError for the first thing in it that is wrong.
    """
    document = read_document(path, PIPELINE_KEYS)
    name = document.text("name")
    if not PIPELINE_NAME.fullmatch(name.value):
        message = f'name "{name.value}" must be 1 to 100 letters, digits, ".", "_" and "-": it names a consumer group'
        raise document.error(message, name.line)
    views: dict[str, _View] = {}
    sources = _sources(document, views)
    steps = _steps(document, views) if "steps" in document else ()
    state = document.text("state") if "state" in document else None
    state_directory = _directory(document, path, "state", state) if state else _beside(path) / STATE_ROOT / name.value
    pipeline = Pipeline(
        name=name.value,
        path=path,
        state_directory=state_directory,
        sources=sources,
        steps=steps,
        sinks=_sinks(document, path, views),
        trigger_ms=_duration(document, "trigger", TRIGGER_MS_MIN, TRIGGER_MS_MAX) if "trigger" in document else None,
        line=name.line,
        state_line=name.line if state is None else state.line,
    )
    _refuse_sinks_in_the_way(pipeline)
    return pipeline


def _sources(document: Section, views: dict[str, _View]) -> tuple[Source, ...]:
    block = document.section("sources", None)
    if not 1 <= len(block.keys) <= SOURCES_MAX:
        raise block.error(f"there must be 1 to {SOURCES_MAX} sources, not {len(block.keys)}")
    sources = []
    for name, line in block.keys.items():
        source = _source(block.section(name, SOURCE_KEYS), name, line)
        _add_view(
            block,
            views,
            _View(name, (*(column.name for column in source.columns), *RECORD_COLUMNS), source.read is ReadMode.STREAM),
            line,
        )
        sources.append(source)
    return tuple(sources)


def _source(section: Section, name: str, line: int) -> Source:
    topic = _topic(section)
    schema = section.text("schema")
    columns = _schema_columns(section, schema)
    read = _choice(section, "read", ReadMode) if "read" in section else ReadMode.STREAM
    if read is ReadMode.TABLE:
        for key in ("starting", "max_records_per_batch"):
            if key in section:
                message = f"{key} is for streams: a table is read whole when a run starts; take this line out"
                raise section.error(message, section.keys[key])
    records_max = MAX_RECORDS_PER_BATCH_DEFAULT
    if "max_records_per_batch" in section:
        records_max = section.integer("max_records_per_batch", 1, RECORDS_PER_BATCH_LIMIT)
    return Source(
        name=name,
        topic=topic.value,
        schema=", ".join(f"{quoted_name(column.name)} {column.type}" for column in columns),
        columns=columns,
        line=line,
        topic_line=topic.line,
        schema_line=schema.line,
        read=read,
        format=_choice(section, "format", SourceFormat) if "format" in section else SourceFormat.JSON,
        starting=_starting(section) if "starting" in section else Starting(),
        max_records_per_batch=records_max,
        allow_data_loss="allow_data_loss" in section and section.flag("allow_data_loss"),
        on_error=_on_error(section, read),
    )


def _on_error(section: Section, read: ReadMode) -> OnError:
    chosen = _choice(section, "on_error", OnError) if "on_error" in section else None
    if read is ReadMode.TABLE and chosen not in (None, OnError.FAIL):
        message = "on_error is for streams: a record that does not fit a table stops the run; take this line out"
        raise section.error(message, section.keys["on_error"])
    return chosen or (OnError.FAIL if read is ReadMode.TABLE else OnError.TOPIC)


def _schema_columns(section: Section, schema: Text) -> tuple[Column, ...]:
    try:
        columns = parse_schema(schema.value)
    except SchemaError as error:
        raise section.error(f"schema: {error}", schema.line_at(error.offset)) from None
    reserved = {name.lower() for name in RECORD_COLUMNS}
    for column in columns:
        if column.name.lower() in reserved:
            message = f'schema: the column "{column.name}" is added from the record itself: remove it'
            raise section.error(message, schema.line)
    return columns


def _starting(section: Section) -> Starting:
    text = section.text("starting", also=("timestamp",))
    if text.value in {StartingPosition.EARLIEST.value, StartingPosition.LATEST.value}:
        return Starting(StartingPosition(text.value))
    try:
        moment = dt.datetime.fromisoformat(text.value.strip())
    except ValueError:
        hint = nearest(text.value, ["earliest", "latest"])
        message = f'starting "{text.value}" must be earliest, latest or a time such as 2013-01-01T00:00:00Z{hint}'
        raise section.error(message, text.line) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    timestamp_ms = (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)
    if timestamp_ms < 0:
        raise section.error(f'starting "{text.value}" is before 1970: use earliest', text.line)
    return Starting(StartingPosition.TIMESTAMP, timestamp_ms)


def _steps(document: Section, views: dict[str, _View]) -> tuple[Step, ...]:
    sections = document.sections("steps", STEP_KEYS, STEPS_MAX)
    names = [section.text("name") for section in sections]
    later = {name.value.lower(): name.line for name in names}
    sources = tuple(view.name for view in views.values())
    return tuple(_step(section, name, views, later, sources) for section, name in zip(sections, names, strict=True))


def _step(
    section: Section, name: Text, views: dict[str, _View], later: Mapping[str, int], sources: tuple[str, ...]
) -> Step:
    sql = section.text("sql")
    try:
        query = parse_query(sql.value)
        refuse_joins_of_topics(sql.value, sources)
    except SqlError as error:
        raise section.error(f"{name.value}: {error}", sql.line_at(error.offset)) from None
    reads = tuple(_view_read(section, name, sql, read.name, read.offset, views, later) for read in query.reads)
    is_stream = any(view.is_stream for view in reads)
    watermark = _watermark(section, name, query, is_stream) if "watermark" in section else None
    _add_view(section, views, _View(name.value, query.columns, is_stream), name.line)
    return Step(
        name=name.value,
        sql=sql.value,
        line=name.line,
        sql_line_starts=sql.line_starts,
        watermark=watermark,
        reads=tuple(view.name for view in reads),
    )


def _view_read(
    section: Section, step: Text, sql: Text, name: str, offset: int, views: dict[str, _View], later: Mapping[str, int]
) -> _View:
    view = views.get(name.lower())
    if view is not None:
        return view
    line = sql.line_at(offset)
    if name.lower() == step.value.lower():
        raise section.error(f"{step.value} reads itself: a step reads sources and earlier steps", line)
    if name.lower() in later:
        message = f'{step.value} reads "{name}", a step further down (line {later[name.lower()]}): move that one up'
        raise section.error(f"{message}, or break the circle if it needs {step.value}", line)
    known = [view.name for view in views.values()]
    hint = nearest(name, known) or f"; there are: {', '.join(known)}"
    raise section.error(f'{step.value} reads "{name}", which is neither a source nor an earlier step{hint}', line)


def _watermark(section: Section, step: Text, query: StepQuery, is_stream: bool) -> Watermark:
    watermark = section.section("watermark", WATERMARK_KEYS)
    column = watermark.text("column")
    if not is_stream:
        message = f"{step.value} reads no stream, so no row of it is late: remove the watermark"
        raise section.error(message, section.keys["watermark"])
    _refuse_unknown_column(watermark, column, "column", query.columns, step.value)
    delay_ms = _duration(watermark, "delay", 0, DELAY_MS_MAX)
    ahead_ms = _duration(watermark, "ahead", 0, DELAY_MS_MAX) if "ahead" in watermark else AHEAD_MS_DEFAULT
    return Watermark(column.value, delay_ms, column.line, ahead_ms)


def _sinks(document: Section, path: Path, views: Mapping[str, _View]) -> tuple[Sink, ...]:
    return tuple(_sink(section, path, views) for section in document.sections("sinks", SINK_KEYS, SINKS_MAX))


def _sink(section: Section, path: Path, views: Mapping[str, _View]) -> Sink:
    if ("topic" in section) == ("parquet" in section):
        raise section.error('a sink has either "topic" or "parquet": make two sinks to write both')
    from_view = section.text("from")
    view = views.get(from_view.value.lower())
    if view is None:
        known = [view.name for view in views.values()]
        hint = nearest(from_view.value, known) or f"; there are: {', '.join(known)}"
        raise section.error(f'from "{from_view.value}" is neither a step nor a source{hint}', from_view.line)
    if not view.is_stream:
        message = f'"{view.name}" reads tables only: a sink needs a source with `read: stream` somewhere behind it'
        raise section.error(message, from_view.line)
    key = section.texts("key", KEY_COLUMNS_MAX) if "key" in section else ()
    for number, column in enumerate(key):
        if column.value.lower() in (earlier.value.lower() for earlier in key[:number]):
            raise section.error(f'key has "{column.value}" twice', column.line)
        _refuse_unknown_column(section, column, "key", view.columns, view.name)
    names = tuple(column.value for column in key)
    key_line = section.keys.get("key", section.line)
    if "topic" in section:
        topic = _topic(section)
        if topic.value in INTERNAL_TOPICS:
            message = f'"{topic.value}" is an internal topic: write to another'
            raise section.error(message, topic.line)
        delivery = _choice(section, "delivery", Delivery) if "delivery" in section else Delivery.EXACTLY_ONCE
        return TopicSink(topic.value, view.name, topic.line, from_view.line, names, key_line, delivery)
    if "delivery" in section:
        message = "delivery is for topics: a Parquet table has each batch once in any case; remove it"
        raise section.error(message, section.keys["delivery"])
    text = section.text("parquet")
    directory = _directory(section, path, "parquet", text)
    return ParquetSink(directory, view.name, text.line, from_view.line, names, key_line)


def _refuse_sinks_in_the_way(pipeline: Pipeline) -> None:
    """Two sinks of one target, one directory inside another, and a topic that is read and written."""
    sources = {source.topic: source for source in pipeline.sources}
    letters = next((source for source in pipeline.sources if source.on_error is OnError.TOPIC), None)
    if letters is not None and pipeline.letters_topic in sources:
        message = (
            f'"{pipeline.letters_topic}" is where the dead letters of this pipeline go, which it would read itself'
        )
        line = sources[pipeline.letters_topic].topic_line
        raise pipeline.error(f"{message}: give it another name, or set `on_error: skip` at each source", line)
    topics: dict[str, int] = {} if letters is None else {pipeline.letters_topic: letters.line}
    directories: dict[Path, tuple[str, int]] = {
        pipeline.state_directory: ("the state directory", pipeline.state_line),
    }
    for sink in pipeline.sinks:
        if isinstance(sink, TopicSink):
            if sink.topic in sources:
                source = sources[sink.topic]
                message = f'the topic "{sink.topic}" is read as source "{source.name}" (line {source.topic_line})'
                raise pipeline.error(f"{message}: the pipeline would read what it writes; write to another", sink.line)
            if sink.topic in topics:
                message = f'the topic "{sink.topic}" is already written in line {topics[sink.topic]}: write to another'
                raise pipeline.error(message, sink.line)
            topics[sink.topic] = sink.line
            continue
        for directory, (what, line) in directories.items():
            if directory.is_relative_to(sink.directory) or sink.directory.is_relative_to(directory):
                message = f"{sink.directory} and {what} (line {line}, {directory}) overlap: keep them apart"
                raise pipeline.error(message, sink.line)
        directories[sink.directory] = ("the Parquet table", sink.line)


def _add_view(section: Section, views: dict[str, _View], view: _View, line: int) -> None:
    if not VIEW_NAME.fullmatch(view.name):
        message = f'"{view.name}" cannot be a name in SQL: use up to 100 letters, digits and "_", no digit first'
        raise section.error(message, line)
    if view.name.lower() in views:
        taken = views[view.name.lower()].name
        message = f'the name "{view.name}" is taken by "{taken}", and SQL ignores case: use another'
        raise section.error(message, line)
    views[view.name.lower()] = view


def _refuse_unknown_column(
    section: Section, column: Text, key: str, columns: tuple[str, ...] | None, view: str
) -> None:
    """Where a view's columns are known; where not, Spark will see."""
    if columns is None or column.value.lower() in (name.lower() for name in columns):
        return
    hint = nearest(column.value, columns) or f"; it has: {', '.join(columns)}"
    raise section.error(f'{key} "{column.value}" is not a column of {view}{hint}', column.line)


def _topic(section: Section) -> Text:
    topic = section.text("topic")
    if not TOPIC_NAME.fullmatch(topic.value) or topic.value in {".", ".."}:
        message = f'"{topic.value}" cannot be a topic: its name is 1 to 249 letters, digits, ".", "_" and "-"'
        raise section.error(message, topic.line)
    return topic


def _choice(section: Section, key: str, choices: type[Choice]) -> Choice:
    text = section.text(key)
    known = {str(choice.value): choice for choice in choices}
    if text.value not in known:
        hint = nearest(text.value, known) or f"; there is: {', '.join(known)}"
        raise section.error(f'{key} "{text.value}" is not known{hint}', text.line)
    return known[text.value]


def _duration(section: Section, key: str, minimum_ms: int, maximum_ms: int) -> int:
    text = section.text(key, also=("int",))
    try:
        return parse_duration_ms(text.value, minimum_ms, maximum_ms)
    except ValueError as error:
        raise section.error(f"{key} {error}", text.line) from None


def _directory(section: Section, path: Path, key: str, text: Text) -> Path:
    value = text.value.strip()
    if _SCHEME.match(value):
        message = f'{key} "{value}" must be a directory of this machine: other storage is not supported yet'
        raise section.error(message, text.line)
    if "\0" in value or len(value) > 4_096:
        raise section.error(f"{key} is not a usable path", text.line)
    return (_beside(path) / value).resolve()


def _beside(path: Path) -> Path:
    """The directory of the pipeline's file, which relative paths start from."""
    return path.resolve().parent
