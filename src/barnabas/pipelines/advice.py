"""Finds what a pipeline may do and probably does not mean."""

from __future__ import annotations

from barnabas.pipelines.definition import ConsoleSink, Pipeline, ReadMode
from barnabas.pipelines.sql_steps import parse_query


def advice_on(pipeline: Pipeline) -> tuple[str, ...]:
    """One line of `path:line: ...` for each thing that deserves a second look, in the order of the file."""
    found = [*_unused(pipeline), *_unbounded_state(pipeline), *_rows_without_key(pipeline)]
    return tuple(f"{pipeline.path}:{line}: {message}" for line, message in sorted(found))


def views_behind(pipeline: Pipeline, view: str) -> tuple[str, ...]:
    """The view itself and every source and step that it is made of, each once."""
    found: dict[str, None] = {}
    waiting = [view]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = None
        step = pipeline.step(name)
        if step is not None:
            waiting.extend(step.reads)
    return tuple(found)


def _unused(pipeline: Pipeline) -> list[tuple[int, str]]:
    used = {name for sink in pipeline.sinks for name in views_behind(pipeline, sink.from_view)}
    found = [
        (source.line, f'no sink needs the source "{source.name}": it is not read')
        for source in pipeline.sources
        if source.name not in used
    ]
    found += [
        (step.line, f'no sink needs the step "{step.name}": it is not computed')
        for step in pipeline.steps
        if step.name not in used
    ]
    return found


def _aggregates(pipeline: Pipeline, name: str) -> bool:
    step = pipeline.step(name)
    # What a function of Python does is not known.
    return step is not None and step.python is None and parse_query(step.sql).aggregates


def _reads_stream(pipeline: Pipeline, name: str) -> bool:
    sources = (pipeline.source(view) for view in views_behind(pipeline, name))
    return any(source is not None and source.read is ReadMode.STREAM for source in sources)


def _unbounded_state(pipeline: Pipeline) -> list[tuple[int, str]]:
    found = []
    for step in pipeline.steps:
        if not _aggregates(pipeline, step.name) or not _reads_stream(pipeline, step.name):
            continue
        steps_before = (pipeline.step(view) for view in views_behind(pipeline, step.name) if view != step.name)
        if not any(before is not None and before.watermark is not None for before in steps_before):
            message = f'"{step.name}" groups a stream without a watermark in an earlier step: Spark keeps every group'
            found.append((step.line, f"{message} for as long as the pipeline lives"))
    return found


def _rows_without_key(pipeline: Pipeline) -> list[tuple[int, str]]:
    """Groups are rewritten whenever they change, so a reader has to know which rows are of one group."""
    return [
        (sink.line, f'rows of "{sink.from_view}" are written again when they change: name its columns in "key"')
        for sink in pipeline.sinks
        if not sink.key
        and not isinstance(sink, ConsoleSink)
        and any(_aggregates(pipeline, view) for view in views_behind(pipeline, sink.from_view))
    ]
