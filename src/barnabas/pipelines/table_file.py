"""The pipeline that keeps a table in step with a topic, as a file: written once, and then a pipeline like any other."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from barnabas.pipelines.definition import KEY_COLUMN, Pipeline, PipelineError, Source, TableSink, Tombstones

SUFFIX: Final = ".table.yaml"
VIEW: Final = "records"
_NAME_CHARACTERS_MAX: Final = 90
_WORDS_OF_YAML: Final = frozenset("null true false yes no on off y n".split())


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What is wanted: a table of the kind `kind` with the records of a topic, one row for each `key` if there is one.

    `schema` is the line of the source that says what its columns are, `more` further lines of it.
    """

    topic: str
    table: str
    kind: str
    key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    more: tuple[tuple[str, str], ...] = ()

    @property
    def is_by_record_key(self) -> bool:
        """Whether a row is known by its record's key: then a record without a value deletes it."""
        return [name.lower() for name in self.key] == [KEY_COLUMN]


def path_of_table(topic: str) -> Path:
    """Where the pipeline of a topic's table is written, unless somebody says otherwise."""
    return Path(f"{topic}{SUFFIX}")


def table_text(plan: TablePlan, schema: tuple[str, str]) -> str:
    """The file; `schema` is the key of the source that says what its columns are, and its value."""
    name = re.sub(r"[^a-zA-Z0-9._-]", "-", plan.topic)[:_NAME_CHARACTERS_MAX] + "-table"
    source = [("topic", plan.topic), *plan.more, schema]
    if plan.is_by_record_key:
        source.append(("tombstones", "keep"))
    sink = [(plan.kind, plan.table), ("from", VIEW)]
    lines = [
        "# Keeps a table in step with a topic. Written by `barnabas pipeline table`; a pipeline like any other.",
        f"name: {_quoted(name)}",
        "sources:",
        f"  {VIEW}:",
        *(f"    {key}: {_quoted(value)}" for key, value in source),
        "sinks:",
        *(f"  {'-' if number == 0 else ' '} {key}: {_quoted(value)}" for number, (key, value) in enumerate(sink)),
    ]
    for key, columns in (("key", plan.key), ("partition_by", plan.partition_by)):
        if columns:
            lines.append(f"    {key}: [{', '.join(map(_quoted, columns))}]")
    if plan.is_by_record_key:
        lines.append("    delete: _deleted")
    return "\n".join(lines) + "\n"


def refuse_other_plan(plan: TablePlan, pipeline: Pipeline) -> None:
    """Raises PipelineError where the file that is there does something else than what is wanted now."""
    source, sink = pipeline.sources[0], pipeline.sinks[0]
    wanted_target = (plan.kind, plan.topic, tuple(plan.key), _is_keeping(source))
    there = (sink.target.partition(" ")[0], source.topic, sink.key, plan.is_by_record_key)
    is_one = len(pipeline.sources) == len(pipeline.sinks) == 1 and isinstance(sink, TableSink)
    directory = getattr(sink, "directory", None)
    beside = (pipeline.path.resolve().parent / plan.table).resolve()
    is_there = directory == beside if directory is not None else getattr(sink, "table", "") == plan.table
    if not is_one or wanted_target != there or not is_there:
        raise PipelineError(
            f"{pipeline.path} is there already, and keeps another table or in another way ({sink.target}, key "
            f"{', '.join(sink.key) or 'none'}): run it by `barnabas pipeline run`, give another file by --file, or "
            "remove it"
        )


def _is_keeping(source: Source) -> bool:
    return source.tombstones is Tombstones.KEEP


def _quoted(value: str) -> str:
    """A text that YAML reads as it is: JSON is YAML."""
    is_plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", value) and value.lower() not in _WORDS_OF_YAML
    return value if is_plain else json.dumps(value, ensure_ascii=False)
