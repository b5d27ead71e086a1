"""Makes a Pipeline of its YAML file, and refuses the file where anything in it cannot be right.

This is all that can be known without a cluster, without the machine and without Spark. The first fault found is told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from barnabas.pipelines.cluster_access import cluster_of
from barnabas.pipelines.definition import (
    AHEAD_MS_DEFAULT,
    PIPELINE_NAME,
    RECORD_COLUMNS,
    Cluster,
    Pipeline,
    PipelineError,
    ReadMode,
    Registry,
    Source,
    Step,
    Watermark,
)
from barnabas.pipelines.durations import parse_duration_ms
from barnabas.pipelines.file_parts import View, beside, directory_of, refuse_unknown_column
from barnabas.pipelines.file_secrets import stands_open
from barnabas.pipelines.named_jars import jars_named
from barnabas.pipelines.python_files import is_python, python_code, python_document
from barnabas.pipelines.schema_registry import registry_of
from barnabas.pipelines.sink_reading import refuse_sinks_in_the_way, sinks_of
from barnabas.pipelines.source_reading import SOURCE_KEYS, source_of
from barnabas.pipelines.sql_steps import SqlError, parse_query, refuse_joins_of_topics
from barnabas.pipelines.topic_options import refuse_different_options
from barnabas.pipelines.yaml_positions import Section, Text, nearest, read_document

SOURCES_MAX: Final = 50
STEPS_MAX: Final = 100
TRIGGER_MS_MIN: Final = 100
TRIGGER_MS_MAX: Final = 24 * 3_600_000
DELAY_MS_MAX: Final = 3_650 * 24 * 3_600_000
STATE_ROOT: Final = ".barnabas"

PIPELINE_KEYS: Final = ("name", "sources", "steps", "sinks", "trigger", "state", "spark", "jars", "cluster", "registry")
STEP_KEYS: Final = ("name", "sql", "python", "result", "revision", "watermark", "deduplicate")
PYTHON_KEYS: Final = ("result", "revision")
"""Of a step, what is for functions of Python."""
DEDUPLICATE_COLUMNS_MAX: Final = 50
WATERMARK_KEYS: Final = ("column", "delay", "ahead")

SPARK_SETTINGS_MAX: Final = 100
SPARK_SETTINGS_TAKEN: Final = (
    "spark.app.name",
    "spark.driver.",
    "spark.executor.",
    "spark.jars",
    "spark.master",
    "spark.sql.caseSensitive",
    "spark.sql.catalog.barnabas",
    "spark.sql.catalog.spark_catalog",
    "spark.sql.catalogImplementation",
    "spark.sql.extensions",
    "spark.sql.parquet.outputTimestampType",
    "spark.sql.session.timeZone",
    "spark.sql.streaming.",
    "spark.submit.",
    "spark.ui.",
)
"""How settings begin that a pipeline's file cannot have: what a run is made of, or what is without effect by then."""

STATE_OF_PYTHON: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}
"""A setting of Spark without which it has no stateful processors in Python. A state that is there keeps its own."""

VIEW_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,99}")


def read_pipeline(path: Path) -> Pipeline:
    """The pipeline of a file.

    Raises PipelineMissingError where there is no such file, PipelineError for the first thing in it that is wrong.
    """
    document = python_document(path, PIPELINE_KEYS) if is_python(path) else read_document(path, PIPELINE_KEYS)
    name = document.text("name")
    if not PIPELINE_NAME.fullmatch(name.value):
        message = f'name "{name.value}" must be 1 to 100 letters, digits, ".", "_" and "-": it names a consumer group'
        raise document.error(message, name.line)
    views: dict[str, View] = {}
    sources = _sources(document, path, views)
    steps = _steps(document, views) if "steps" in document else ()
    state = document.text("state") if "state" in document else None
    state_directory = directory_of(document, path, "state", state) if state else beside(path) / STATE_ROOT / name.value
    spark = _spark(document) if "spark" in document else {}
    settings = {**spark, **(STATE_OF_PYTHON if any(step.python is not None for step in steps) else {})}
    pipeline = Pipeline(
        name=name.value,
        path=path,
        state_directory=state_directory,
        sources=sources,
        steps=steps,
        sinks=sinks_of(document, path, views, spark),
        trigger_ms=_duration(document, "trigger", TRIGGER_MS_MIN, TRIGGER_MS_MAX) if "trigger" in document else None,
        line=name.line,
        state_line=name.line if state is None else state.line,
        spark=tuple(settings.items()),
        registry=registry_of(document) if "registry" in document else Registry(),
        cluster=cluster_of(document) if "cluster" in document else Cluster(),
        jars=jars_named(document, path) if "jars" in document else (),
    )
    refuse_sinks_in_the_way(pipeline)
    refuse_different_options(pipeline)
    return pipeline


def _spark(document: Section) -> dict[str, str]:
    """Settings of Spark's session, as text."""
    section = document.section("spark", None)
    found: dict[str, str] = {}
    for name, line in section.keys.items():
        if not name.startswith("spark.") or len(section.keys) > SPARK_SETTINGS_MAX:
            message = (
                f'"{name}" is no setting of Spark: its name begins with "spark.", and there are {SPARK_SETTINGS_MAX}'
            )
            raise section.error(f"{message} at most", line)
        if name.startswith(SPARK_SETTINGS_TAKEN):
            raise section.error(f"{name} is the pipeline's own to set: remove it", line)
        value = section.value(name)
        if not isinstance(value, str | int | float | bool):
            raise section.error(f"{name} must be text, a number, true or false", line)
        if isinstance(value, bool):
            found[name] = str(value).lower()
        else:
            # As it is written: a password of digits may begin with a zero.
            found[name] = value if isinstance(value, str) else section.text(name, also=("int", "float")).value
            if stands_open(name, found[name]):
                message = f"{name} is a secret, and this file is read by many: write ${{env:NAME}} or ${{file:PATH}}"
                raise section.error(message, line)
    return found


def _sources(document: Section, path: Path, views: dict[str, View]) -> tuple[Source, ...]:
    block = document.section("sources", None)
    if not 1 <= len(block.keys) <= SOURCES_MAX:
        raise block.error(f"there must be 1 to {SOURCES_MAX} sources, not {len(block.keys)}")
    sources = []
    for name, line in block.keys.items():
        source = source_of(block.section(name, SOURCE_KEYS), name, line, path, has_registry="registry" in document)
        _add_view(
            block,
            views,
            View(name, (*source.view_columns, *RECORD_COLUMNS), source.read is ReadMode.STREAM),
            line,
        )
        sources.append(source)
    return tuple(sources)


def _steps(document: Section, views: dict[str, View]) -> tuple[Step, ...]:
    sections = document.sections("steps", STEP_KEYS, STEPS_MAX)
    names = [section.text("name") for section in sections]
    later = {name.value.lower(): name.line for name in names}
    sources = tuple(view.name for view in views.values())
    return tuple(_step(section, name, views, later, sources) for section, name in zip(sections, names, strict=True))


def _step(
    section: Section, name: Text, views: dict[str, View], later: Mapping[str, int], sources: tuple[str, ...]
) -> Step:
    if "python" in section:
        if "sql" in section:
            message = f'{name.value} is made by "python", a function, or by "sql", a query: remove one of them'
            raise section.error(message, section.keys["sql"])
        return _python_step(section, name, views, later)
    for key in PYTHON_KEYS:
        if key in section:
            raise section.error(f"{key} is for steps with `python`: remove it", section.keys[key])
    sql = section.text("sql")
    try:
        query = parse_query(sql.value)
        refuse_joins_of_topics(sql.value, sources)
    except SqlError as error:
        raise section.error(f"{name.value}: {error}", sql.line_at(error.offset)) from None
    reads = tuple(
        _view_read(section.error, name, read.name, sql.line_at(read.offset), views, later) for read in query.reads
    )
    return _with_times(
        section,
        query.columns,
        views,
        reads,
        Step(name=name.value, sql=sql.value, line=name.line, sql_line_starts=sql.line_starts),
    )


def _python_step(section: Section, name: Text, views: dict[str, View], later: Mapping[str, int]) -> Step:
    code = python_code(section)

    def refuse(message: str, line: int) -> PipelineError:
        return PipelineError(message, path=code.path, line=line)

    reads = tuple(_view_read(refuse, name, each, code.line, views, later) for each in code.parameters)
    return _with_times(section, None, views, reads, Step(name=name.value, sql="", line=name.line, python=code))


def _with_times(
    section: Section, columns: tuple[str, ...] | None, views: dict[str, View], reads: tuple[View, ...], step: Step
) -> Step:
    """The step with all that its section has besides what makes its rows."""
    is_stream = any(view.is_stream for view in reads)
    watermark = _watermark(section, step.name, columns, is_stream) if "watermark" in section else None
    deduplicate = _deduplicate(section, step.name, columns) if "deduplicate" in section else ()
    _add_view(section, views, View(step.name, columns, is_stream), step.line)
    return replace(
        step,
        watermark=watermark,
        reads=tuple(view.name for view in reads),
        deduplicate=deduplicate,
        deduplicate_line=section.keys.get("deduplicate", section.line),
    )


def _view_read(
    refuse: Callable[[str, int], PipelineError],
    step: Text,
    name: str,
    line: int,
    views: dict[str, View],
    later: Mapping[str, int],
) -> View:
    view = views.get(name.lower())
    if view is not None:
        return view
    if name.lower() == step.value.lower():
        raise refuse(f"{step.value} reads itself: a step reads sources and earlier steps", line)
    if name.lower() in later:
        message = f'{step.value} reads "{name}", a step further down (line {later[name.lower()]}): move that one up'
        raise refuse(f"{message}, or break the circle if it needs {step.value}", line)
    known = [view.name for view in views.values()]
    hint = nearest(name, known) or f"; there are: {', '.join(known)}"
    raise refuse(f'{step.value} reads "{name}", which is neither a source nor an earlier step{hint}', line)


def _watermark(section: Section, step: str, columns: tuple[str, ...] | None, is_stream: bool) -> Watermark:
    watermark = section.section("watermark", WATERMARK_KEYS)
    column = watermark.text("column")
    if not is_stream:
        message = f"{step} reads no stream, so no row of it is late: remove the watermark"
        raise section.error(message, section.keys["watermark"])
    refuse_unknown_column(watermark, column, "column", columns, step)
    delay_ms = _duration(watermark, "delay", 0, DELAY_MS_MAX)
    ahead_ms = _duration(watermark, "ahead", 0, DELAY_MS_MAX) if "ahead" in watermark else AHEAD_MS_DEFAULT
    return Watermark(column.value, delay_ms, column.line, ahead_ms)


def _deduplicate(section: Section, step: str, columns: tuple[str, ...] | None) -> tuple[str, ...]:
    if "watermark" not in section:
        message = f"deduplicate needs the step's watermark: {step} would keep every row's columns for ever"
        raise section.error(f"{message}; add `watermark: {{column: ..., delay: ...}}`", section.keys["deduplicate"])
    named = section.texts("deduplicate", DEDUPLICATE_COLUMNS_MAX)
    for column in named:
        refuse_unknown_column(section, column, "deduplicate", columns, step)
    return tuple(column.value for column in named)


def _add_view(section: Section, views: dict[str, View], view: View, line: int) -> None:
    if not VIEW_NAME.fullmatch(view.name):
        message = f'"{view.name}" cannot be a name in SQL: use up to 100 letters, digits and "_", no digit first'
        raise section.error(message, line)
    if view.name.lower() in views:
        taken = views[view.name.lower()].name
        message = f'the name "{view.name}" is taken by "{taken}", and SQL ignores case: use another'
        raise section.error(message, line)
    views[view.name.lower()] = view


def _duration(section: Section, key: str, minimum_ms: int, maximum_ms: int) -> int:
    text = section.text(key, also=("int",))
    try:
        return parse_duration_ms(text.value, minimum_ms, maximum_ms)
    except ValueError as error:
        raise section.error(f"{key} {error}", text.line) from None
