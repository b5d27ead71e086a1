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
    """The value of each row's record: text of JSON, or bytes; NULL for a row that deletes, which need not fit the
    schema.
    """
    from pyspark.sql import functions as F  # noqa: N812

    if sink.delete is None:
        return _encoded(sink, frame.columns)
    stays = ~F.coalesce(F.col(quoted_name(sink.delete)), F.lit(False))
    return _encoded(sink, _columns_of_values(frame, sink), stays)


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


def _columns_of_values(frame: DataFrame, sink: TopicSink) -> list[str]:
    """All but the one by which a row deletes."""
    deletes = (sink.delete or "").lower()
    return [name for name in frame.columns if name.lower() != deletes]


def _encoded(part: TopicSink | KeyFormat, columns: Sequence[str], stays: Column | None = None) -> Column:
    """These columns of a row; NULL where it does not stay."""
    from pyspark.sql import functions as F  # noqa: N812

    row = F.struct(*(F.col(quoted_name(name)) for name in columns))
    if part.format is not SourceFormat.AVRO:
        text = F.to_json(row, JSON_OPTIONS)
        # Not around the function: Spark computes those in Python for all rows, and what deletes may be no message.
        text = text if stays is None else F.when(stays, text)
        return text if part.format is SourceFormat.JSON else F.udf(_message_writer(part), "binary")(text)
    from pyspark.sql.avro.functions import to_avro

    names = {name.lower(): name for name in columns}
    fields = [field["name"] for field in json.loads(part.avro_schema)["fields"]]
    row = F.struct(*(F.col(quoted_name(names[name.lower()])).alias(name) for name in fields if name.lower() in names))
    content = _framed(part, to_avro(row, part.avro_schema))
    return content if stays is None else F.when(stays, content)


def missing_and_strange(frame: DataFrame, sink: TopicSink) -> tuple[list[str], list[str]]:
    """The fields of the schema that the frame lacks, and its columns that the schema does not have; by name."""
    if sink.format is SourceFormat.JSON:
        return [], []
    columns = _columns_of_values(frame, sink)
    have = {name.lower() for name in columns}
    known = {name.lower() for name in sink.fields}
    missing = [] if sink.format is SourceFormat.PROTOBUF else [each for each in sink.fields if each.lower() not in have]
    return missing, [name for name in columns if name.lower() not in known]


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

    def write(text: str | None) -> bytes | None:
        if text is None:
            return None
        content = encode_message(descriptors, message, json.loads(text))
        return content if schema_id is None else framed(descriptors, message, content, schema_id)

    return write
