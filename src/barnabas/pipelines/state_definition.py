"""What a pipeline's state was made from, and whether the pipeline of today is still that.

SQL is kept as it was written, and compared by its syntax tree: what is inside quotes counts to the last space, layout
and comments count for nothing. Of a function in Python digests of syntax trees are kept, one for each definition.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from barnabas.pipelines.definition import (
    ConsoleSink,
    Framing,
    KeyedSink,
    KeyFormat,
    Pipeline,
    Sink,
    Source,
    SourceFormat,
    Step,
    Tombstones,
    TopicSink,
)
from barnabas.pipelines.definition_changes import Changes, changes_of

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
        "sinks": {sink.target: _sink(sink) for sink in pipeline.sinks if not _is_beside_others(pipeline, sink)},
    }


def views_shown_before(before: Mapping[str, Any], pipeline: Pipeline) -> frozenset[str]:
    """The views that were written to the console only, and are not any more, or are named otherwise: what was shown is
    gone, and a query of that name begins anew.
    """
    now = definition_of(pipeline)["sinks"]
    shown = {target: sink["from"] for target, sink in before.get("sinks", {}).items() if target.startswith("console ")}
    return frozenset(view for target, view in shown.items() if target not in now)


def _is_beside_others(pipeline: Pipeline, sink: Sink) -> bool:
    """Whether it only shows what other sinks have too: it may come and go."""
    others = (each for each in pipeline.sinks if each.from_view == sink.from_view and not isinstance(each, ConsoleSink))
    return isinstance(sink, ConsoleSink) and any(others)


def changes_since(
    pipeline: Pipeline,
    before: Mapping[str, Any],
    names: Mapping[str, str] | None = None,
    stateful: Collection[str] | None = None,
) -> Changes:
    """What differs to the definition of before. A schema that differs is none: `changed_schemas` tells of it.

    `stateful` are the views for which Spark has kept state, by the names that the state has for them; None where that
    is not known.
    """
    return changes_of(pipeline, definition_of(pipeline), before, names, stateful)


def changed_schemas(pipeline: Pipeline, before: Mapping[str, Any]) -> tuple[str, ...]:
    """A warning for each source whose schema differs; to be asked where `changes_since` refuses nothing."""
    return tuple(
        f"the schema of source {source.name} was changed; what was computed before was read by the old one"
        for source in pipeline.sources
        if before["sources"].get(source.name, {}).get("schema", source.schema) != source.schema
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
    if source.drops_others:
        content["other_messages"] = "drop"
    if source.key_format is not None:
        content["key_format"] = " ".join([*_key_format(source.key_format), source.key_format.type])
    return content


def _sink(sink: Sink) -> dict[str, Any]:
    content: dict[str, Any] = {"from": sink.from_view, "key": list(sink.key)}
    if isinstance(sink, TopicSink) and sink.format is not SourceFormat.JSON:
        content |= {"format": sink.format.value, "framing": sink.framing.value, "message": sink.message}
    if isinstance(sink, TopicSink) and sink.key_format is not None:
        content["key_format"] = _key_format(sink.key_format)
    delete = sink.rows.delete if isinstance(sink, KeyedSink) else getattr(sink, "delete", None)
    if delete is not None:
        content["delete"] = delete
    return content


def _key_format(key: KeyFormat) -> list[str]:
    return [key.format.value, key.framing.value, key.message]


def _step(step: Step) -> dict[str, Any]:
    late = None if step.watermark is None else {"column": step.watermark.column, "delay_ms": step.watermark.delay_ms}
    content: dict[str, Any] = {_SQL: step.sql, "watermark": late}
    if step.python is not None:
        code = step.python
        content = {
            "python": code.function,
            "result": code.result,
            "revision": code.revision,
            "reads": list(step.reads),
            "code": dict(code.parts),
            "watermark": late,
        }
    return {**content, "deduplicate": list(step.deduplicate)} if step.deduplicate else content
