"""The sources of a pipeline's file: topics, the formats of their records, and where to begin."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from barnabas.pipelines.avro_schema import SCHEMA_BYTES_MAX, AvroSchemaError, read_avro_schema, read_avro_type
from barnabas.pipelines.definition import (
    DELETED_COLUMN,
    MAX_RECORDS_PER_BATCH_DEFAULT,
    RECORD_COLUMNS,
    Column,
    Framing,
    KeyFormat,
    OnError,
    OtherMessages,
    PipelineError,
    ReadMode,
    Source,
    SourceFormat,
    Starting,
    StartingPosition,
    Tombstones,
    TopicSink,
)
from barnabas.pipelines.durations import parse_duration_ms
from barnabas.pipelines.file_parts import choice_of, directory_of, topic_of
from barnabas.pipelines.protobuf_messages import DESCRIPTOR_BYTES_MAX, ProtobufSchemaError, columns_of_message
from barnabas.pipelines.spark_schema import SchemaError, parse_schema, quoted_name
from barnabas.pipelines.topic_options import source_options
from barnabas.pipelines.writer_schemas import RegisteredSchema, WriterSchemas
from barnabas.pipelines.yaml_positions import Section, Text, nearest

_SCHEMA_ID_MAX: Final = 2**31 - 1
RECORDS_PER_BATCH_LIMIT: Final = 1_000_000_000
SOURCE_KEYS: Final = (
    "topic",
    "read",
    "format",
    "schema",
    "schema_file",
    "message",
    "framing",
    "subject",
    "other_messages",
    "key_format",
    "delimiter",
    "tombstones",
    "require_key",
    "refresh",
    "starting",
    "max_records_per_batch",
    "allow_data_loss",
    "on_error",
    "options",
)

REFRESH_MS_MIN: Final = 1_000
REFRESH_MS_MAX: Final = 24 * 3_600_000
_REFRESH: Final[dict[str, int | None]] = {"batch": 0, "never": None}
KEY_FORMAT_KEYS: Final = ("format", "schema_file", "message", "framing", "subject", "schema_id")
"""The last one of topics that are written."""

_NOT_OF_TABLES: Final = {
    "starting": "a table is read whole when a run starts",
    "max_records_per_batch": "a table is read whole when a run starts",
    "require_key": "a record of a table has a key in any case",
}
_FILES: Final = {
    SourceFormat.AVRO: "the .avsc file that the records were written with",
    SourceFormat.PROTOBUF: "the descriptor set (protoc --descriptor_set_out) that the records were written with",
}
_COLUMNS_FILE: Final = "a list of columns, as `barnabas pipeline infer TOPIC FILE` writes it"
_NOT_IN_CSV: Final = frozenset({"ARRAY", "MAP", "STRUCT", "BINARY", "VARIANT"})


def source_of(section: Section, name: str, line: int, path: Path, *, has_registry: bool = False) -> Source:
    """The source of a section. Raises PipelineError for the first thing in it that is wrong."""
    topic = topic_of(section)
    framing = choice_of(section, "framing", Framing) if "framing" in section else Framing.NONE
    form = choice_of(section, "format", SourceFormat) if "format" in section else SourceFormat.JSON
    _refuse_other_formats(section, form)
    read_file, columns, schema_line = _schema(section, form, path)
    read = choice_of(section, "read", ReadMode) if "read" in section else ReadMode.STREAM
    if read is ReadMode.TABLE:
        for key, why in _NOT_OF_TABLES.items():
            if key in section:
                message = f"{key} is for streams: {why}; take this line out"
                raise section.error(message, section.keys[key])
    records_max = MAX_RECORDS_PER_BATCH_DEFAULT
    if "max_records_per_batch" in section:
        records_max = section.integer("max_records_per_batch", 1, RECORDS_PER_BATCH_LIMIT)
    is_asked = has_registry and framing is Framing.CONFLUENT
    return Source(
        name=name,
        topic=topic.value,
        schema=", ".join(f"{quoted_name(column.name)} {column.type}" for column in columns),
        columns=columns,
        line=line,
        topic_line=topic.line,
        schema_line=schema_line,
        read=read,
        format=form,
        starting=_starting(section) if "starting" in section else Starting(),
        max_records_per_batch=records_max,
        allow_data_loss="allow_data_loss" in section and section.flag("allow_data_loss"),
        on_error=_on_error(section, read),
        tombstones=_tombstones(section, read, columns),
        requires_key="require_key" in section and section.flag("require_key"),
        refresh_ms=_refresh_ms(section, read) if "refresh" in section else 0,
        framing=framing,
        subject=_subject(section, topic.value, is_asked=is_asked),
        writers=WriterSchemas() if is_asked else None,
        avro_schema=read_file.decode() if form is SourceFormat.AVRO else "",
        descriptors=read_file if form is SourceFormat.PROTOBUF else b"",
        message=section.text("message").value if form is SourceFormat.PROTOBUF else "",
        delimiter=_delimiter(section) if "delimiter" in section else ",",
        drops_others=_drops_others(section, framing),
        key_format=key_format_of(section, path, topic.value, has_registry=has_registry, is_written=False),
        options=source_options(section),
    )


def _drops_others(section: Section, framing: Framing) -> bool:
    chosen = OtherMessages.REFUSE
    if "other_messages" in section:
        chosen = choice_of(section, "other_messages", OtherMessages)
        if framing is Framing.NONE:
            message = "other_messages is for `framing: confluent`, which says what message a record is: remove it"
            raise section.error(message, section.keys["other_messages"])
    return chosen is OtherMessages.DROP


def key_format_of(
    section: Section, path: Path, topic: str, *, has_registry: bool, is_written: bool
) -> KeyFormat | None:
    """The block `key_format` of a source, or of a topic that is written: how keys are. Raises PipelineError."""
    if "key_format" not in section:
        return None
    inner = section.section("key_format", KEY_FORMAT_KEYS if is_written else KEY_FORMAT_KEYS[:-1])
    form = choice_of(inner, "format", SourceFormat)
    if form not in (SourceFormat.AVRO, SourceFormat.PROTOBUF):
        message = f"a key has the format avro or protobuf, not {form.value}: without `key_format` a key is text"
        if is_written:
            message = f"a key has the format avro or protobuf, not {form.value}: without `key_format` a key is JSON"
        raise inner.error(message, inner.keys["format"])
    _refuse_other_formats(inner, form)
    framing = choice_of(inner, "framing", Framing) if "framing" in inner else Framing.NONE
    schema_id = _schema_id(inner, framing)
    asks = framing is Framing.CONFLUENT and has_registry and schema_id < 0
    if is_written and framing is Framing.CONFLUENT and schema_id < 0 and not has_registry:
        raise _without_id(inner)
    content, kind, names = _key_schema(inner, form, path)
    return KeyFormat(
        form,
        kind,
        inner.line,
        framing,
        content.decode() if form is SourceFormat.AVRO else "",
        content if form is SourceFormat.PROTOBUF else b"",
        inner.text("message").value if form is SourceFormat.PROTOBUF else "",
        names,
        _subject(inner, topic, is_asked=asks, of="key"),
        WriterSchemas() if asks and not is_written else None,
        schema_id,
        RegisteredSchema() if asks and is_written else None,
    )


def _key_schema(section: Section, form: SourceFormat, path: Path) -> tuple[bytes, str, tuple[str, ...]]:
    """The schema of a file, the type of a key in DDL, and the names of its fields, where it has some."""
    file, written = _content_of_file(section, form, path)
    line = section.text("schema_file").line
    try:
        if form is SourceFormat.AVRO:
            schema, kind, names = read_avro_type(written.decode("utf-8"))
            return schema.encode(), kind, names
        columns = columns_of_message(written, section.text("message").value)
    except UnicodeDecodeError as error:
        raise section.error(f"schema_file {file} cannot be read: {error}", line) from None
    except (AvroSchemaError, ProtobufSchemaError) as error:
        raise section.error(f"schema_file {file} {error}", line) from None
    inner = ", ".join(f"{quoted_name(column.name)}: {column.type}" for column in columns)
    return written, f"STRUCT<{inner}>", tuple(column.name for column in columns)


def _schema_id(section: Section, framing: Framing) -> int:
    for key in ("schema_id", "subject"):
        if key in section and framing is Framing.NONE:
            raise section.error(f"{key} is for `framing: confluent`: remove it", section.keys[key])
    return section.integer("schema_id", 0, _SCHEMA_ID_MAX) if "schema_id" in section else -1


def _without_id(section: Section) -> PipelineError:
    message = "schema_id, the id that stands before each record, is missing; or name a `registry`, in which the schema"
    return section.error(f"{message} is registered", section.keys["framing"])


def _subject(section: Section, topic: str, *, is_asked: bool, of: str = "value") -> str:
    if "subject" in section and not is_asked:
        message = "subject is for `framing: confluent` and a `registry`, which is asked for it: remove it"
        raise section.error(message, section.keys["subject"])
    return section.text("subject").value if "subject" in section else f"{topic}-{of}" if is_asked else ""


def _refuse_other_formats(section: Section, form: SourceFormat) -> None:
    """Keys that say nothing of this format."""
    for key, of in (
        ("framing", (SourceFormat.AVRO, SourceFormat.PROTOBUF)),
        ("schema_file", (SourceFormat.JSON, SourceFormat.AVRO, SourceFormat.PROTOBUF, SourceFormat.CSV)),
        ("message", (SourceFormat.PROTOBUF,)),
        ("other_messages", (SourceFormat.PROTOBUF,)),
        ("delimiter", (SourceFormat.CSV,)),
    ):
        if key in section and form not in of:
            named = " and ".join(f"`format: {each.value}`" for each in of)
            raise section.error(f"{key} is for {named}: remove it", section.keys[key])


def _schema(section: Section, form: SourceFormat, path: Path) -> tuple[bytes, tuple[Column, ...], int]:
    """The schema of a file, where there is one; the columns, and the line that they come from."""
    if form in (SourceFormat.AVRO, SourceFormat.PROTOBUF):
        if "schema" in section:
            title = "Avro" if form is SourceFormat.AVRO else "Protocol Buffers"
            message = f"records in {title} have the schema that they were written with: name its file in `schema_file`"
            raise section.error(f"{message}, and remove `schema`", section.keys["schema"])
        return _schema_of_file(section, form, path)
    if form is SourceFormat.RAW and "schema" not in section:
        return b"", (Column("value", "BINARY"),), section.line
    schema = section.text("schema_file" if "schema_file" in section else "schema")
    if "schema_file" in section:
        if "schema" in section:
            raise section.error("schema and schema_file say the same: remove one of them", section.keys["schema"])
        _, columns, _ = _schema_of_file(section, form, path)
    else:
        columns = _schema_columns(section, schema)
    for column in columns:
        kind = re.split(r"[(<]", column.type)[0]
        if form is SourceFormat.RAW and (len(columns) > 1 or kind not in {"STRING", "BINARY"}):
            message = "schema: a value as it is makes one column, a STRING or a BINARY"
            raise section.error(f"{message}, such as `value STRING`", schema.line)
        if form is SourceFormat.CSV and kind in _NOT_IN_CSV:
            message = f'schema: a field of CSV is no {kind}: make the column "{column.name}" a STRING'
            raise section.error(f"{message}, and take it apart in a step", schema.line)
    return b"", columns, schema.line


def _content_of_file(section: Section, form: SourceFormat, path: Path) -> tuple[Path, bytes]:
    """The file of the schema, and what it has."""
    text = section.text("schema_file")
    bytes_max = DESCRIPTOR_BYTES_MAX if form is SourceFormat.PROTOBUF else SCHEMA_BYTES_MAX
    file = directory_of(section, path, "schema_file", text)
    try:
        if file.exists() and not file.is_file():
            raise section.error(f"schema_file {file} is no file", text.line)
        with file.open("rb") as content:
            written = content.read(bytes_max + 1)
    except FileNotFoundError:
        message = f"schema_file {file} does not exist: it is {_FILES.get(form, _COLUMNS_FILE)}"
        raise section.error(message, text.line) from None
    except OSError as error:
        raise section.error(f"schema_file {file} cannot be read: {error}", text.line) from error
    if len(written) > bytes_max:
        raise section.error(f"schema_file {file} has more than {bytes_max} bytes", text.line)
    return file, written


def _schema_of_file(section: Section, form: SourceFormat, path: Path) -> tuple[bytes, tuple[Column, ...], int]:
    file, written = _content_of_file(section, form, path)
    line = section.text("schema_file").line
    try:
        if form is SourceFormat.AVRO:
            avro_schema, columns = read_avro_schema(written.decode("utf-8"))
            written = avro_schema.encode()
        elif form is not SourceFormat.PROTOBUF:
            columns = parse_schema(written.decode("utf-8"))
        else:
            columns = columns_of_message(written, section.text("message").value)
    except UnicodeDecodeError as error:
        raise section.error(f"schema_file {file} cannot be read: {error}", line) from error
    except SchemaError as error:
        raise section.error(f"schema_file {file}: {error}", line) from None
    except (AvroSchemaError, ProtobufSchemaError) as error:
        raise section.error(f"schema_file {file} {error}", line) from None
    _refuse_reserved(section, columns, line)
    return written, columns, line


def formatted_sink(section: Section, path: Path, sink: TopicSink, *, has_registry: bool) -> TopicSink:
    """A topic that is written, in the format that its section says. Raises PipelineError."""
    form = choice_of(section, "format", SourceFormat) if "format" in section else SourceFormat.JSON
    _refuse_other_formats(section, form)
    if form in (SourceFormat.CSV, SourceFormat.RAW):
        raise section.error(f"a topic is written as json, avro or protobuf, not {form.value}", section.keys["format"])
    framing = choice_of(section, "framing", Framing) if "framing" in section else Framing.NONE
    schema_id = _schema_id(section, framing)
    if "key_format" in section:
        sink = _with_key_format(section, path, sink, has_registry=has_registry)
    if form is SourceFormat.JSON:
        return sink
    registers = framing is Framing.CONFLUENT and schema_id < 0
    if registers and not has_registry:
        raise _without_id(section)
    content, columns, _ = _schema_of_file(section, form, path)
    return replace(
        sink,
        format=form,
        framing=framing,
        avro_schema=content.decode() if form is SourceFormat.AVRO else "",
        descriptors=content if form is SourceFormat.PROTOBUF else b"",
        message=section.text("message").value if form is SourceFormat.PROTOBUF else "",
        fields=tuple(column.name for column in columns),
        schema_id=schema_id,
        subject=_subject(section, sink.topic, is_asked=registers) if registers else "",
        registered=RegisteredSchema() if registers else None,
    )


def _with_key_format(section: Section, path: Path, sink: TopicSink, *, has_registry: bool) -> TopicSink:
    """Sees that the columns of the key are the fields of its schema; one column may be a key that has none."""
    line = section.keys["key_format"]
    if not sink.key:
        raise section.error(
            "key_format is for topics with a `key`, the columns that it has: add it, or remove this", line
        )
    found = key_format_of(section, path, sink.topic, has_registry=has_registry, is_written=True)
    assert found is not None
    have, known = {name.lower() for name in sink.key}, {name.lower() for name in found.fields}
    if not found.fields and len(have) > 1:
        message = f"the key's schema is one value ({found.type}), and `key` has {len(have)} columns: give it a record"
        raise section.error(message, line)
    if found.fields and (have - known or (found.format is SourceFormat.AVRO and known - have)):
        named = ", ".join(found.fields)
        message = f"the fields of the key's schema are {named}, and the columns of `key` are {', '.join(sink.key)}"
        raise section.error(f"{message}: they must be the same", line)
    return replace(sink, key_format=found)


def _tombstones(section: Section, read: ReadMode, columns: tuple[Column, ...]) -> Tombstones:
    chosen = choice_of(section, "tombstones", Tombstones) if "tombstones" in section else Tombstones.DROP
    if chosen is Tombstones.DROP:
        return chosen
    if read is ReadMode.TABLE:
        message = "tombstones is for streams: in a table a record without a value deletes its key; take this line out"
        raise section.error(message, section.keys["tombstones"])
    if DELETED_COLUMN in (column.name.lower() for column in columns):
        message = f'`tombstones: keep` adds a column "{DELETED_COLUMN}", which the schema has already: rename that'
        raise section.error(message, section.keys["tombstones"])
    return chosen


def _refresh_ms(section: Section, read: ReadMode) -> int | None:
    text = section.text("refresh", also=("int",))
    if read is ReadMode.STREAM:
        message = "refresh is for tables: of a stream each batch has what is new; take this line out"
        raise section.error(message, text.line)
    if text.value in _REFRESH:
        return _REFRESH[text.value]
    try:
        return parse_duration_ms(text.value, REFRESH_MS_MIN, REFRESH_MS_MAX)
    except ValueError as error:
        raise section.error(f"refresh must be batch, never, or a time such as 5m: {error}", text.line) from None


def _delimiter(section: Section) -> str:
    text = section.text("delimiter")
    value = text.value.replace("\\t", "\t")
    if len(value) != 1 or value in '"\r\n':
        raise section.error('delimiter must be one character, such as ";" or "\\t"', text.line)
    return value


def _on_error(section: Section, read: ReadMode) -> OnError:
    chosen = choice_of(section, "on_error", OnError) if "on_error" in section else None
    if read is ReadMode.TABLE and chosen not in (None, OnError.FAIL):
        message = "on_error is for streams: a record that does not fit a table stops the run; take this line out"
        raise section.error(message, section.keys["on_error"])
    return chosen or (OnError.FAIL if read is ReadMode.TABLE else OnError.TOPIC)


def _schema_columns(section: Section, schema: Text) -> tuple[Column, ...]:
    try:
        columns = parse_schema(schema.value)
    except SchemaError as error:
        raise section.error(f"schema: {error}", schema.line_at(error.offset)) from None
    _refuse_reserved(section, columns, schema.line)
    return columns


def _refuse_reserved(section: Section, columns: tuple[Column, ...], line: int) -> None:
    reserved = {name.lower() for name in RECORD_COLUMNS}
    for column in columns:
        if column.name.lower() in reserved:
            message = f'schema: the column "{column.name}" is added from the record itself: remove it'
            raise section.error(message, line)


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
