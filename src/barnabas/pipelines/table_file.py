"""The pipeline that keeps a table in step with a topic, as a file: written once, and then a pipeline like any other."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from barnabas.pipelines.debezium_envelopes import Envelope
from barnabas.pipelines.definition import (
    DELETED_COLUMN,
    KEY_COLUMN,
    OFFSET_COLUMN,
    PARTITION_COLUMN,
    TIMESTAMP_COLUMN,
    Column,
    Framing,
    LakeSink,
    Pipeline,
    PipelineError,
    Sink,
    Source,
    SourceFormat,
    TableSink,
    Tombstones,
)
from barnabas.pipelines.spark_schema import SchemaError, parse_schema, quoted_name
from barnabas.pipelines.table_urls import modules_for, scheme_of

SUFFIX: Final = ".table.yaml"
VIEW: Final = "records"
CHANGES: Final = "changes"
_PLACE: Final = (PARTITION_COLUMN, OFFSET_COLUMN, TIMESTAMP_COLUMN)
_AS_THEY_ARE: Final = frozenset({"require_key", "key_format"})
"""Keys whose values are YAML already."""
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
    is_of_changes: bool = False
    """The records are Debezium's envelopes."""
    registry: str = ""
    """The address of a schema registry."""

    @property
    def is_by_record_key(self) -> bool:
        """Whether a row is known by its record's key: then a record without a value deletes it."""
        return [name.lower() for name in self.key] == [KEY_COLUMN]


_COMPACT_EVERY: Final = 100


def path_of_table(topic: str) -> Path:
    """Where the pipeline of a topic's table is written, unless somebody says otherwise."""
    return Path(f"{topic}{SUFFIX}")


def flow_text(values: Sequence[tuple[str, str]]) -> str:
    """A block of keys in one line of YAML."""
    return "{" + ", ".join(f"{key}: {_quoted(value)}" for key, value in values) + "}"


def table_text(plan: TablePlan, schema: tuple[str, str]) -> str:
    """The file; `schema` is the key of the source that says what its columns are, and its value."""
    name = re.sub(r"[^a-zA-Z0-9._-]", "-", plan.topic)[:_NAME_CHARACTERS_MAX] + "-table"
    source = [("topic", plan.topic), *plan.more, schema]
    if plan.is_by_record_key:
        source += [("tombstones", "keep"), ("require_key", "true")]
    sink = [(plan.kind, plan.table), ("from", VIEW)]
    lines = [
        "# Keeps a table in step with a topic. Written by `barnabas pipeline table`; a pipeline like any other.",
        f"name: {_quoted(name)}",
        *_jars(plan.table),
        *([f"registry: {{url: {json.dumps(plan.registry)}}}"] if plan.registry else []),
        "sources:",
        f"  {VIEW}:",
        *(f"    {key}: {value if key in _AS_THEY_ARE else _quoted(value)}" for key, value in source),
        "sinks:",
        *(f"  {'-' if number == 0 else ' '} {key}: {_quoted(value)}" for number, (key, value) in enumerate(sink)),
    ]
    for key, columns in (("key", plan.key), ("partition_by", plan.partition_by)):
        if columns:
            lines.append(f"    {key}: [{', '.join(map(_quoted, columns))}]")
    if plan.is_by_record_key:
        lines.append("    delete: _deleted")
    if plan.kind != "parquet":
        lines.append(f"    compact: {{every: {_COMPACT_EVERY}}}")
    return "\n".join(lines) + "\n"


def _jars(table: str) -> list[str]:
    """What Spark lacks for the file system of a URL, where that is known."""
    modules = modules_for(scheme_of(table) or "")
    return [f"jars: [{', '.join(modules)}]"] if modules else []


def _elsewhere(sink: Sink) -> str:
    """Where a table is that is in no directory."""
    return getattr(sink, "url", "") or str(getattr(sink, "table", ""))


_NO_OP: Final = (
    "a record is no envelope of Debezium in the form of this file: it has no op. Has schemas.enable of the converter "
    "been changed, or a transform been added? Make another table from there on"
)


_NO_KEY: Final = (
    "a record of a row that was deleted has its key neither in before nor as the key of the record: which row "
    "goes cannot be told (0, or an empty text, in before alone may stand for a column that the database did not log). "
    "Have the database log whole rows (PostgreSQL: REPLICA IDENTITY FULL), or make the table again with the columns of "
    "the key of the records as --key"
)
_NUMBERS: Final = frozenset({"TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL"})


def changes_text(
    plan: TablePlan,
    columns: Sequence[tuple[str, str]],
    key_fields: Sequence[str] | None = None,
    *,
    is_wrapped: bool,
) -> str:
    """The file for a topic of Debezium's envelopes in JSON, of rows with these columns, name and type; `key_fields` as
    `envelopes_text` has them.
    """
    row = ", ".join(f"{quoted_name(name)}: {kind}" for name, kind in columns)
    envelope = [("before", f"STRUCT<{row}>"), ("after", f"STRUCT<{row}>"), ("op", "STRING")]
    inner = ", ".join(f"{name}: {kind}" for name, kind in envelope)
    schema = f"payload STRUCT<{inner}>" if is_wrapped else ", ".join(f"{name} {kind}" for name, kind in envelope)
    names = frozenset(name.lower() for name, _ in columns)
    at = "payload." if is_wrapped else ""
    return envelopes_text(plan, Envelope(tuple(columns), names), ("schema", schema), key_fields, at=at)


def envelopes_text(
    plan: TablePlan,
    envelope: Envelope,
    schema: tuple[str, str],
    key_fields: Sequence[str] | None = None,
    *,
    at: str = "",
) -> str:
    """The file for a topic of Debezium's envelopes, which stand at `at` of a record. `schema` is the line of the source
    that says what they are; `key_fields` are those of keys that have a format, none where such a key is one value, and
    None where keys are text, which is JSON if anything.

    Events that are none of a row (`m`) are left out. A truncation, a record without `op`, as of envelopes in another
    form, and all else that no row can be made of end the run: nobody would hear of the changes that were left out.
    """
    keys, types = {name.lower() for name in plan.key}, dict(envelope.columns)
    of_text = (
        [] if key_fields is not None else _key_of_record([each for each in envelope.columns if each[0].lower() in keys])
    )

    def of_record(name: str) -> list[str]:
        """Where the record's key has a column of the row's key."""
        if key_fields is None:
            return [f"{each}.{quoted_name(name)}" for each in of_text]
        if not key_fields:
            return [KEY_COLUMN] if len(keys) == 1 else []
        return [f"{KEY_COLUMN}.{quoted_name(each)}" for each in key_fields if each.lower() == name.lower()]

    def selected(name: str) -> str:
        column = quoted_name(name)
        if name.lower() not in keys:
            return f"{at}after.{column} AS {column}"
        before = [_logged(f"{at}before.{column}", types[name])] if name.lower() in envelope.before else []
        last = f"if({at}op = 'd', raise_error('{_NO_KEY}'), NULL)"
        # A field of the record's key is that column for sure; a key that is one value may be of another.
        found = [*before, *of_record(name)] if key_fields == () else [*of_record(name), *before]
        return f"coalesce({', '.join([f'{at}after.{column}', *found, last])}) AS {column}"

    columns = [*(selected(name) for name, _ in envelope.columns), f"{at}op = 'd' AS {DELETED_COLUMN}", *_PLACE]
    sql = ["SELECT", *(f"  {each}," for each in columns[:-1]), f"  {columns[-1]}", f"FROM {VIEW}"]
    in_before = [name for name, _ in envelope.columns if name.lower() in keys & envelope.before]
    sql += _wanted_changes(at, [quoted_name(name) for name in in_before])
    text = table_text(replace(plan, key=()), schema).replace(f"    from: {VIEW}\n", f"    from: {CHANGES}\n")
    before, sinks, behind = text.partition("sinks:\n")
    steps = ["steps:", f"  - name: {CHANGES}", "    sql: |", *(f"      {line}" for line in sql)]
    key = ", ".join(map(_quoted, plan.key))
    how = f"    key: [{key}]\n    delete: {DELETED_COLUMN}\n    newest_by: [{', '.join(_PLACE)}]\n"
    return before + "\n".join(steps) + "\n" + sinks + behind + how


def _logged(column: str, kind: str) -> str:
    """A column of `before`, where the database has logged it: Debezium writes 0, or an empty text, for one that it has
    not, and that cannot be null.
    """
    nothing = "''" if kind == "STRING" else "0" if kind.partition("(")[0] in _NUMBERS else None
    return column if nothing is None else f"nullif({column}, {nothing})"


_TRUNCATED: Final = (
    "the database has truncated the table (op t), and its rows are here still. Make the table again, with another "
    "state and directory; or, to go on with the rows that are here, write FALSE in place of this raise_error in the "
    "step"
)
_NO_ROW: Final = (
    "a change that puts a row (op c, r or u) has no after: what the row is cannot be told. Have the connector write "
    "whole rows, then make the table again"
)
_MOVED: Final = (
    "an update (op u) has another key before than after, so that its former row would stay here. By the key of the "
    "records Debezium makes a removal and a new row of it: make the table again with that as --key"
)
_OTHER_OP: Final = (
    "a change has an op that this file does not know: see what it does to rows, and add a line for it to the step. op "
)


def _wanted_changes(at: str, keys: Sequence[str]) -> list[str]:
    """The condition of the step: which changes make rows, by lines of which each may be changed by hand. `keys` are the
    columns of the row's key that `before` has. A text that is not there is empty in Protocol Buffers.
    """
    moved = " OR ".join(f"{at}before.{key} <> {at}after.{key}" for key in keys)
    return [
        "WHERE CASE",
        f"  WHEN {at}op = 'd' THEN TRUE",
        f"  WHEN {at}op IN ('c', 'r', 'u') AND {at}after IS NULL THEN raise_error('{_NO_ROW}')",
        *([f"  WHEN {at}op = 'u' AND ({moved}) THEN raise_error('{_MOVED}')"] if keys else []),
        f"  WHEN {at}op IN ('c', 'r', 'u') THEN TRUE",
        f"  WHEN {at}op = 'm' THEN FALSE",
        f"  WHEN {at}op = 't' THEN raise_error('{_TRUNCATED}')",
        f"  WHEN nullif({at}op, '') IS NULL THEN raise_error('{_NO_OP}')",
        f"  ELSE raise_error(concat('{_OTHER_OP}', {at}op))",
        "END",
    ]


def _key_of_record(columns: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """What the record's key has of these columns, in both forms that a converter gives it: for a `d` whose `before` is
    not there, or lacks them.
    """
    inner = ", ".join(f"{quoted_name(name)}: {kind}" for name, kind in columns)
    plain = ", ".join(f"{quoted_name(name)} {kind}" for name, kind in columns)
    schemas = {"": plain, ".payload": f"payload STRUCT<{inner}>"}
    return tuple(f"from_json({KEY_COLUMN}, {_in_sql(schema)}){at}" for at, schema in schemas.items())


def _in_sql(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def refuse_other_plan(plan: TablePlan, pipeline: Pipeline, schema: str | None = None) -> None:
    """Raises PipelineError where the file that is there does something else than what is wanted now; `schema` is the
    one that was given, if any was.
    """
    source, sink = pipeline.sources[0], pipeline.sinks[0]
    form = dict(plan.more)
    wanted_form = (
        form.get("format", SourceFormat.JSON.value),
        form.get("framing", Framing.NONE.value),
        form.get("message", ""),
        "key_format" in form,
    )
    partition_by = sink.rows.partition_by if isinstance(sink, LakeSink) else ()
    wanted_rows = (tuple(plan.key), plan.is_by_record_key, tuple(plan.partition_by), plan.is_of_changes)
    rows = (sink.key, _is_keeping(source), partition_by, sink.from_view == CHANGES)
    is_same = (plan.kind, plan.topic, wanted_rows, wanted_form) == (
        sink.target.partition(" ")[0],
        source.topic,
        rows,
        (source.format.value, source.framing.value, source.message, source.key_format is not None),
    )
    is_same = is_same and plan.registry in ("", pipeline.registry.url)
    is_one = len(pipeline.sources) == len(pipeline.sinks) == 1 and isinstance(sink, TableSink)
    directory = getattr(sink, "directory", None)
    beside = (pipeline.path.resolve().parent / plan.table).resolve()
    is_there = directory == beside if directory is not None else _elsewhere(sink) == plan.table.rstrip("/")
    if not (is_one and is_same and is_there):
        raise PipelineError(
            f"{pipeline.path} is there already, and keeps another table or in another way ({sink.target}, key "
            f"{', '.join(sink.key) or 'none'}, partition_by {', '.join(partition_by) or 'none'}, format "
            f"{source.format.value}): run it by `barnabas pipeline run`, give another file by --file, or remove it"
        )
    if schema is not None and _columns(schema) != source.columns:
        raise PipelineError(
            f"{pipeline.path} is there already, with another schema ({source.schema}): change it there, and leave "
            "--schema out"
        )


def _columns(schema: str) -> tuple[Column, ...]:
    try:
        return parse_schema(schema)
    except SchemaError as error:
        raise PipelineError(f"--schema: {error}") from None


def _is_keeping(source: Source) -> bool:
    return source.tombstones is Tombstones.KEEP


def _quoted(value: str) -> str:
    """A text that YAML reads as it is: JSON is YAML."""
    is_plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", value) and value.lower() not in _WORDS_OF_YAML
    return value if is_plain else json.dumps(value, ensure_ascii=False)
