"""What a pipeline's state was made from, and whether the pipeline of today is still that.

SQL is kept as it was written, and compared by its syntax tree: what is inside quotes counts to the last space, layout
and comments count for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from barnabas.pipelines.definition import Framing, KeyedSink, Pipeline, Sink, Source, Step, Tombstones
from barnabas.pipelines.sql_steps import is_same_query

STATE_VERSION: Final = 2
"""What `definition.json` says of its own form, of the bytes of keys, and of how records are decoded. Of version 1,
which wrote no number, keys of topics had milliseconds, and spaces inside quotes were not kept.
"""

_SQL: Final = "sql"


def definition_of(pipeline: Pipeline) -> dict[str, Any]:
    """The parts of a definition that decide what its checkpoints and sinks hold, as JSON.

    How far ahead of now a row may be is none: who allows more goes on with the state that is there.
    """
    return {
        "sources": {source.name: _source(source) for source in pipeline.sources},
        "steps": {step.name: _step(step) for step in pipeline.steps},
        "sinks": {sink.target: _sink(sink) for sink in pipeline.sinks},
    }


def first_change(pipeline: Pipeline, before: Mapping[str, Any]) -> tuple[str, int] | None:
    """The first difference to the definition of before in words, and its line in the file; None when there is none.

    A schema that differs is none: `changed_schemas` tells of it.
    """
    now = definition_of(pipeline)
    lines = {
        "sources": {source.name: source.line for source in pipeline.sources},
        "steps": {step.name: step.line for step in pipeline.steps},
        "sinks": {sink.target: sink.line for sink in pipeline.sinks},
    }
    for part, word in (("sources", "source"), ("steps", "step"), ("sinks", "sink")):
        old, new = before.get(part, {}), now[part]
        for name in new:
            if name not in old:
                return f"{word} {name} was added", lines[part][name]
            keys = {**new[name], **old[name]}
            aspects = [key for key in keys if key != "schema" and not _is_same(key, old[name], new[name])]
            if aspects:
                return f"{word} {name} was changed ({', '.join(aspects)})", lines[part][name]
        for name in old:
            if name not in new:
                return f"{word} {name} was removed", pipeline.line
    return None


def changed_schemas(pipeline: Pipeline, before: Mapping[str, Any]) -> tuple[str, ...]:
    """A warning for each source whose schema differs; to be asked where `first_change` finds nothing."""
    return tuple(
        f"the schema of source {source.name} was changed; what was computed before was read by the old one"
        for source in pipeline.sources
        if before["sources"][source.name]["schema"] != source.schema
    )


def _source(source: Source) -> dict[str, Any]:
    """What is as it always was is left out: states that know nothing of it go on."""
    content = {
        "topic": source.topic,
        "read": source.read.value,
        "format": source.format.value,
        "schema": source.schema,
    }
    if source.tombstones is not Tombstones.DROP:
        content["tombstones"] = source.tombstones.value
    if source.requires_key:
        content["require_key"] = "true"
    if source.framing is not Framing.NONE:
        content["framing"] = source.framing.value
    if source.message:
        content["message"] = source.message
    if source.delimiter != ",":
        content["delimiter"] = source.delimiter
    return content


def _sink(sink: Sink) -> dict[str, Any]:
    content: dict[str, Any] = {"from": sink.from_view, "key": list(sink.key)}
    if isinstance(sink, KeyedSink) and sink.rows.delete is not None:
        content["delete"] = sink.rows.delete
    return content


def _step(step: Step) -> dict[str, Any]:
    late = None if step.watermark is None else {"column": step.watermark.column, "delay_ms": step.watermark.delay_ms}
    return {_SQL: step.sql, "watermark": late}


def _is_same(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    before, now = old.get(key), new.get(key)
    return is_same_query(str(before), str(now)) if key == _SQL else bool(before == now)
