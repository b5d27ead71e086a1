"""JSON schemas of a pipeline's file and of its tests, for editors: made of the tables and bounds that the reading has.

A schema says what may stand where. Whether names fit each other, and what the SQL says, only the reading knows.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from barnabas.pipelines import (
    cases,
    file_parts,
    named_jars,
    reading,
    schema_registry,
    sink_reading,
    source_reading,
    topic_options,
)
from barnabas.pipelines.cluster_access import CLUSTER_KEYS, CONNECTOR_KEYS, SECRET_KEYS
from barnabas.pipelines.definition import (
    AHEAD_MS_DEFAULT,
    MAX_RECORDS_PER_BATCH_DEFAULT,
    PIPELINE_NAME,
    Delivery,
    Framing,
    OnError,
    OtherMessages,
    ReadMode,
    SourceFormat,
    Tombstones,
)
from barnabas.pipelines.durations import format_duration

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]


def pipeline_schema() -> Schema:
    """Of a pipeline's file."""
    trigger = f"{format_duration(reading.TRIGGER_MS_MIN)} to {format_duration(reading.TRIGGER_MS_MAX)}"
    keys = {
        "name": _text("The pipeline's name; its consumer group is barnabas-pipeline-NAME.", PIPELINE_NAME),
        "sources": {
            "description": "Topics, each as a table of this name in SQL.",
            "type": "object",
            "propertyNames": {"pattern": _whole(reading.VIEW_NAME)},
            "minProperties": 1,
            "maxProperties": reading.SOURCES_MAX,
            "additionalProperties": _source(),
        },
        "steps": _list(
            "Queries and functions, each a view for those below it and for sinks.", _step(), reading.STEPS_MAX
        ),
        "sinks": _list("What is written.", _sink(), sink_reading.SINKS_MAX),
        "trigger": _duration(f"Between the starts of two batches of a run without --once: {trigger}."),
        "state": _text("Directory of checkpoints, relative to this file; .barnabas/NAME if left out."),
        "spark": {
            "description": "Settings of Spark's session, such as those of a catalog.",
            "type": "object",
            "propertyNames": {"pattern": "^spark[.]"},
            "maxProperties": reading.SPARK_SETTINGS_MAX,
            "additionalProperties": {"type": ["string", "number", "boolean"]},
        },
        "cluster": {
            "description": "The brokers and how to come in there: keys of Kafka's clients, secrets by ${env:NAME}.",
            "type": "object",
            "properties": {
                **_client_keys(CLUSTER_KEYS),
                "connector": {
                    "description": "How Spark's connector comes in, where that is not as above: all of it.",
                    "type": "object",
                    "properties": _client_keys(CONNECTOR_KEYS),
                    "additionalProperties": False,
                },
            },
            "additionalProperties": False,
        },
        "registry": _block(
            "A schema registry: records with its framing may have any of its schemas.",
            schema_registry.REGISTRY_KEYS,
            {
                "url": _text("http://HOST:PORT or https://HOST:PORT."),
                "username": _text("Who logs in there."),
                "password": _text("Of the user: ${env:NAME} or ${file:PATH}.", _SECRET),
            },
            ("url",),
        ),
        "jars": {
            "description": "Jars for Spark, as drivers of databases: group:artifact:version, or files.",
            "type": ["string", "array"],
            "maxItems": named_jars.JARS_MAX,
            "items": {"type": "string"},
        },
    }
    return {
        "$schema": DIALECT,
        "title": "Barnabas pipeline",
        **_block("Topics as tables, SQL steps, and what is written.", reading.PIPELINE_KEYS, keys, _PIPELINE_REQUIRED),
    }


def cases_schema() -> Schema:
    """Of the file of a pipeline's tests."""
    column = {"description": "Columns of the schema, or _value in their place.", "type": "object"}
    record = {
        **column,
        "properties": {
            key: {"description": text, "type": kind} for key, text, kind in _OF_RECORDS if key in cases.RECORD_KEYS
        },
    }
    batch = {
        "description": "Rows by source.",
        "type": "object",
        "additionalProperties": {"type": "array", "maxItems": cases.ROWS_MAX, "items": record},
    }
    count = {"type": "integer", "minimum": 0}
    letter: Mapping[str, Schema] = {
        name: {"type": "integer" if name in {"partition", "offset"} else ["string", "null"]}
        for name in cases.LETTER_KEYS
    }
    keys = {
        "name": _text("What holds."),
        "given": {**batch, "description": "The first batch, and the rows of tables: by source."},
        "then": _list("Further batches.", batch, cases.BATCHES_MAX - 1),
        "expect": {
            "description": 'Rows by step or source, or by sink: "topic NAME", "parquet DIRECTORY".',
            "type": "object",
            "additionalProperties": {"type": "array", "maxItems": cases.ROWS_MAX, "items": {"type": "object"}},
        },
        "dead_letters": {
            "description": "Records that do not fit their schema; of reason a part is enough.",
            "type": "array",
            "maxItems": cases.ROWS_MAX,
            "items": _block("A letter.", cases.LETTER_KEYS, letter, ()),
        },
        "counts": _block("Rows that are in no result.", cases.COUNTS, dict.fromkeys(cases.COUNTS, count), ()),
        "error": _text("A part of the error that the run is to end by."),
    }
    case = _block("A test.", cases.CASE_KEYS, keys, ("name", "given"))
    case["anyOf"] = [{"required": [key]} for key in ("expect", "dead_letters", "counts", "error")]
    tests = {"tests": _list("Tests, each on its own.", case, cases.CASES_MAX)}
    return {
        "$schema": DIALECT,
        "title": "Tests of a Barnabas pipeline",
        **_block("Rows in and rows expected.", cases.FILE_KEYS, tests, cases.FILE_KEYS),
    }


_KEY_FORMATS: Final = (SourceFormat.AVRO, SourceFormat.PROTOBUF)
_JDBC: Final = re.compile("jdbc:.+")
_SECRET: Final = re.compile(r".*[$][{](env|file):.*")
_PIPELINE_REQUIRED: Final = ("name", "sources", "sinks")
_SCALARS: Final = ("string", "number", "boolean")
_OF_RECORDS: Final = (
    ("_key", "The record's key, as text; of keys with a format its value.", [*_SCALARS, "object", "null"]),
    ("_value", "The record's value as it is, in place of columns; null is a tombstone.", ["string", "null"]),
    ("_partition", "0 if left out.", "integer"),
    ("_offset", "The next of the partition if left out.", "integer"),
    ("_timestamp", "A time such as 2013-01-01T05:00:00Z.", "string"),
)


def _source() -> Schema:
    keys = {
        "topic": _text("The topic.", file_parts.TOPIC_NAME),
        "read": _choice("Every record, or the newest of each key.", ReadMode),
        "format": _choice("How values are written.", SourceFormat),
        "schema": _text("Columns as Spark's DDL: name TYPE, name TYPE."),
        "schema_file": _text("The file of the schema, relative to this one: of Avro, Protobuf, or columns in DDL."),
        "message": _text("Of Protobuf: the full name of the message."),
        "framing": _choice("What stands before a record in Avro or Protobuf.", Framing),
        "subject": _text("Of framed records with a registry: the subject of their schemas; TOPIC-value if left out."),
        "other_messages": _choice("Of framed Protobuf: what becomes of a record of another message.", OtherMessages),
        "key_format": _key_format(is_written=False),
        "delimiter": _text("Of CSV: what stands between two fields; a comma if left out."),
        "tombstones": _choice(
            "What becomes of a record without a value: no row, or one with _deleted true.", Tombstones
        ),
        "require_key": {"description": "Whether a record without a key does not fit.", "type": "boolean"},
        "refresh": _text("Of a table: batch, never, or how old it may be, such as 5m; batch if left out."),
        "starting": _text("Where the first run begins: earliest, latest, or a time such as 2013-01-01T00:00:00Z."),
        "max_records_per_batch": {
            "description": f"Of all partitions together; {MAX_RECORDS_PER_BATCH_DEFAULT} if left out.",
            "type": "integer",
            "minimum": 1,
            "maximum": source_reading.RECORDS_PER_BATCH_LIMIT,
        },
        "allow_data_loss": {
            "description": "Go on where records were deleted before they were read, and count them.",
            "type": "boolean",
        },
        "on_error": _choice("What becomes of a record that does not fit the schema.", OnError),
        "options": _options("Settings of Spark's connector and of Kafka's consumer.", topic_options.SOURCE_OPTIONS),
    }
    source = _block("A topic.", source_reading.SOURCE_KEYS, keys, ("topic",))
    written = {"properties": {"format": {"enum": [SourceFormat.AVRO.value]}}, "required": ["format", "schema_file"]}
    messages = {
        "properties": {"format": {"enum": [SourceFormat.PROTOBUF.value]}},
        "required": ["format", "schema_file", "message"],
    }
    raw = {"properties": {"format": {"enum": [SourceFormat.RAW.value]}}, "required": ["format"]}
    columns = {"required": ["schema_file"], "not": {"required": ["schema"]}}
    return {**source, "anyOf": [{"required": ["schema"]}, columns, written, messages, raw]}


def _key_format(*, is_written: bool) -> Schema:
    keys = {
        "format": {"description": "How keys are written.", "enum": [each.value for each in _KEY_FORMATS]},
        "schema_file": _text("The file of the key's schema, relative to this one."),
        "message": _text("Of Protobuf: the full name of the message."),
        "framing": _choice("What stands before a key.", Framing),
        "subject": _text("Of framed keys with a registry: the subject of their schemas; TOPIC-key if left out."),
        "schema_id": {"description": "With framing: the id of the schema.", "type": "integer", "minimum": 0},
    }
    names = source_reading.KEY_FORMAT_KEYS if is_written else source_reading.KEY_FORMAT_KEYS[:-1]
    about = (
        "How keys of records are written; as JSON if left out." if is_written else "How keys are written, not as text."
    )
    return _block(about, names, keys, ("format", "schema_file"))


def _step() -> Schema:
    watermark = {
        "column": _text("The column of the event time."),
        "delay": _duration("How far behind the newest time a row may be."),
        "ahead": _duration(f"How far beyond now a row may be; {format_duration(AHEAD_MS_DEFAULT)} if left out."),
    }
    keys = {
        "name": _text("The view's name in SQL.", reading.VIEW_NAME),
        "sql": _text("One query of Spark SQL over sources and earlier steps."),
        "python": _text("In place of SQL: FILE.py:FUNCTION, whose parameters are sources and earlier steps."),
        "result": _text("Of a function that returns a dict of DataFrames: which of them is this step."),
        "revision": {
            "description": "The state goes on with a changed function as long as this is the same.",
            "type": ["string", "integer"],
        },
        "watermark": _block("How late rows may be.", reading.WATERMARK_KEYS, watermark, ("column", "delay")),
        "deduplicate": _columns("Columns by which a row is known: only the first is let through within the watermark."),
    }
    step = _block("One query, or a function of Python.", reading.STEP_KEYS, keys, ("name",))
    of_python = {"anyOf": [{"required": [name]} for name in reading.PYTHON_KEYS]}
    kinds = [{"required": ["sql"], "not": of_python}, {"required": ["python"]}]
    return {**step, "oneOf": kinds}


def _sink() -> Schema:
    keys = {
        "topic": _text("The topic that is written.", file_parts.TOPIC_NAME),
        "parquet": _text("The directory of the table, relative to this file."),
        "delta": _text("The directory of the Delta Lake table, relative to this file, or a URL: s3a://bucket/delays."),
        "iceberg": _text("The directory of the Iceberg table, or a URL, or catalog.namespace.table."),
        "format": _choice("How values are written: json, avro or protobuf.", SourceFormat),
        "schema_file": _text("Of Avro and Protobuf: the schema of what is written, relative to this file."),
        "message": _text("Of Protobuf: the full name of the message."),
        "framing": _choice("What stands before a record in Avro or Protobuf.", Framing),
        "subject": _text("Of framed records with a registry: where the schema is registered; TOPIC-value if left out."),
        "schema_id": {"description": "With framing: the id of the schema.", "type": "integer", "minimum": 0},
        "key_format": _key_format(is_written=True),
        "jdbc": _text("The address of a database, jdbc:...; its driver's jar is named under jars.", _JDBC),
        "table": _text("The table of the database, perhaps with its schema.", sink_reading.DATABASE_TABLE),
        "user": _text("Who logs in at the database."),
        "password": _text("Of the user: ${env:NAME} or ${file:PATH}.", _SECRET),
        "driver": _text("The class of the driver, where it does not make itself known."),
        "connections": {
            "description": "How many write to the database side by side; 4 if left out.",
            "type": "integer",
            "minimum": 1,
            "maximum": sink_reading.CONNECTIONS_MAX,
        },
        "console": _number("How many rows of each batch are shown on the terminal.", 1, sink_reading.ROWS_SHOWN_MAX),
        "width": _number(
            f"How many characters of a value are shown; {sink_reading.WIDTH_DEFAULT} if left out.",
            sink_reading.WIDTH_MIN,
            sink_reading.WIDTH_MAX,
        ),
        "from": _text("The step, or source, whose rows are written."),
        "key": _columns("Columns by which the newest row is the result; of a topic the record's key."),
        "delivery": _choice("How often a row may be in the topic.", Delivery),
        "senders": _number(
            "Of a topic that is written exactly once: how many send a large batch side by side; 1 if left out.",
            1,
            sink_reading.SENDERS_MAX,
        ),
        "options": _options("Of a topic: settings of the producer that writes it.", topic_options.SINK_OPTIONS),
        "delete": _text(
            "A BOOLEAN column: rows for which it is true remove the row of their key; of a topic they are tombstones."
        ),
        "newest_by": _columns("Columns by which the newest of several rows of a key in one batch is known."),
        "partition_by": _columns("Columns that the table is divided by when it is made."),
        "compact": _block(
            "Small files become large ones now and then.",
            sink_reading.COMPACT_KEYS,
            {
                "every": {
                    "description": "Behind each batch whose number is one of these.",
                    "type": "integer",
                    "minimum": 1,
                    "maximum": sink_reading.COMPACT_EVERY_MAX,
                },
                "target": _text("How large files are to be; 128MiB if left out."),
            },
            ("every",),
        ),
    }
    sink = _block("One place that rows are written to.", sink_reading.SINK_KEYS, keys, ("from",))
    lake = sink_reading.LAKE_KEYS
    of_topics = (*sink_reading.FORMAT_KEYS, topic_options.KEY, sink_reading.SENDERS)
    of_console = sink_reading.CONSOLE_KEYS
    base = (*sink_reading.JDBC_KEYS, *of_topics, *of_console)
    forbidden = {
        "topic": (*(key for key in lake if key != "delete"), *sink_reading.JDBC_KEYS, *of_console),
        "parquet": ("delivery", *lake, *base),
        "delta": ("delivery", *base),
        "iceberg": ("delivery", *base),
        "jdbc": ("partition_by", "compact", *of_topics, *of_console),
        "console": ("key", "delivery", *lake, *sink_reading.JDBC_KEYS, *of_topics),
    }
    kinds = [
        {
            "required": [kind, *(["table"] if kind == "jdbc" else [])],
            "not": {"anyOf": [{"required": [name]} for name in forbidden[kind]]},
        }
        for kind in sink_reading.SINK_KINDS
    ]
    return {**sink, "oneOf": kinds}


def _client_keys(keys: Iterable[str]) -> dict[str, Schema]:
    """Keys of Kafka's clients; secrets are named."""
    secret = {"type": "string", "pattern": "[$][{](env|file):"}
    return {key: secret if key in SECRET_KEYS else {"type": ["string", "number", "boolean"]} for key in keys}


def _options(about: str, settings: Mapping[str, topic_options.Setting]) -> Schema:
    """The block of options; each may also be named, as a secret is."""
    return {
        "description": about,
        "type": "object",
        "maxProperties": topic_options.OPTIONS_MAX,
        "properties": {name: _option(setting) for name, setting in settings.items()},
        "additionalProperties": False,
    }


def _option(setting: topic_options.Setting) -> Schema:
    named = {"type": "string", "pattern": _SECRET.pattern}
    value: Schema = {"type": ["string", "number", "boolean"]}
    if setting.bounds is not None:
        value = {"type": "integer", "minimum": setting.bounds[0], "maximum": setting.bounds[1]}
    elif setting.words:
        value = {"type": "boolean"} if "true" in setting.words else {"enum": list(setting.words)}
    return {"description": setting.about, "anyOf": [value, named]}


def _columns(about: str) -> Schema:
    """A column, or a list of some."""
    column = _text("A column.")
    several = {"type": "array", "minItems": 1, "maxItems": sink_reading.KEY_COLUMNS_MAX, "items": column}
    return {"description": about, "anyOf": [column, several]}


def _block(about: str, names: Iterable[str], keys: Mapping[str, Schema], required: Iterable[str]) -> Schema:
    """A block of keys; `names` is the table that the reading has. Raises KeyError where `keys` lacks one of them."""
    return {
        "description": about,
        "type": "object",
        "properties": {name: keys[name] for name in names},
        "required": list(required),
        "additionalProperties": False,
    }


def _list(about: str, item: Schema, count_max: int) -> Schema:
    return {"description": about, "type": "array", "minItems": 1, "maxItems": count_max, "items": item}


def _text(about: str, form: re.Pattern[str] | None = None) -> Schema:
    pattern = r"\S" if form is None else _whole(form)
    return {"description": about, "type": "string", "pattern": pattern}


def _number(about: str, lowest: int, highest: int) -> Schema:
    return {"description": about, "type": "integer", "minimum": lowest, "maximum": highest}


def _duration(about: str) -> Schema:
    pattern = r"^\s*[0-9]{1,15}\s*[A-Za-z]+\s*$"
    return {"description": about, "type": "string", "pattern": pattern, "examples": ["5 seconds", "14 days"]}


def _choice(about: str, choices: type[enum.Enum]) -> Schema:
    return {"description": about, "enum": [choice.value for choice in choices]}


def _whole(form: re.Pattern[str]) -> str:
    return f"^(?:{form.pattern})$"
