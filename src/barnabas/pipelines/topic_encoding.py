"""Rows as values and keys of records: JSON, or Avro or Protocol Buffers, perhaps with a registry's framing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from barnabas.pipelines.definition import Framing, KeyFormat, SourceFormat, TopicSink
from barnabas.pipelines.protobuf_decoding import framed
from barnabas.pipelines.protobuf_messages import encode_message
from barnabas.pipelines.spark_schema import JSON_OPTIONS, quoted_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def value_of_row(frame: DataFrame, sink: TopicSink) -> Column:
    """The value of each row's record: text of JSON, or bytes."""
    return _encoded(sink, frame.columns)


def key_of_row(frame: DataFrame, sink: TopicSink) -> Column:
    """The key of each row's record, of a sink that has one: text of JSON, or bytes. A key that is a single value is
    never null: a row that has none ends the query.
    """
    from pyspark.sql import functions as F  # noqa: N812

    names = {name.lower(): name for name in frame.columns}
    columns = [names[column.lower()] for column in sink.key]
    if sink.key_format is None:
        key = F.struct(*(F.col(quoted_name(column)) for column in columns))
        return F.to_json(key, JSON_OPTIONS)
    if sink.key_format.fields:
        return _encoded(sink.key_format, columns)
    from pyspark.sql.avro.functions import to_avro

    alone = F.col(quoted_name(columns[0]))
    content = _framed(sink.key_format, to_avro(alone, sink.key_format.avro_schema))
    message = f"{sink.topic} has a row without {columns[0]}, which is the key of its record"
    return F.coalesce(content, F.raise_error(F.lit(message)).cast("binary"))


def _encoded(part: TopicSink | KeyFormat, columns: Sequence[str]) -> Column:
    """These columns of a row."""
    from pyspark.sql import functions as F  # noqa: N812

    row = F.struct(*(F.col(quoted_name(name)) for name in columns))
    if part.format is SourceFormat.JSON:
        return F.to_json(row, JSON_OPTIONS)
    if part.format is SourceFormat.PROTOBUF:
        return F.udf(_message_writer(part), "binary")(F.to_json(row, JSON_OPTIONS))
    from pyspark.sql.avro.functions import to_avro

    names = {name.lower(): name for name in columns}
    fields = [field["name"] for field in json.loads(part.avro_schema)["fields"]]
    row = F.struct(*(F.col(quoted_name(names[name.lower()])).alias(name) for name in fields if name.lower() in names))
    return _framed(part, to_avro(row, part.avro_schema))


def missing_and_strange(frame: DataFrame, sink: TopicSink) -> tuple[list[str], list[str]]:
    """The fields of the schema that the frame lacks, and its columns that the schema does not have; by name."""
    if sink.format is SourceFormat.JSON:
        return [], []
    have = {name.lower() for name in frame.columns}
    known = {name.lower() for name in sink.fields}
    missing = [] if sink.format is SourceFormat.PROTOBUF else [each for each in sink.fields if each.lower() not in have]
    return missing, [name for name in frame.columns if name.lower() not in known]


def _framed(part: TopicSink | KeyFormat, content: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    if part.framing is Framing.NONE:
        return content
    return F.concat(F.lit(b"\0" + _schema_id(part).to_bytes(4, "big")), content)


def _schema_id(part: TopicSink | KeyFormat) -> int:
    schema_id = part.schema_id if part.registered is None else part.registered.schema_id
    if schema_id < 0:
        raise RuntimeError(f"the schema of {part.subject} was not registered")
    return schema_id


def _message_writer(part: TopicSink | KeyFormat) -> Any:
    descriptors, message = part.descriptors, part.message
    schema_id = _schema_id(part) if part.framing is Framing.CONFLUENT else None

    def write(text: str) -> bytes:
        content = encode_message(descriptors, message, json.loads(text))
        return content if schema_id is None else framed(descriptors, message, content, schema_id)

    return write
