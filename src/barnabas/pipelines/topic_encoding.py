"""Rows as the values of records: JSON, Avro, or Protocol Buffers, the latter two perhaps with a registry's framing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from barnabas.pipelines.definition import Framing, SourceFormat, TopicSink
from barnabas.pipelines.protobuf_decoding import framed
from barnabas.pipelines.protobuf_messages import encode_message
from barnabas.pipelines.spark_schema import JSON_OPTIONS, quoted_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def value_of_row(frame: DataFrame, sink: TopicSink) -> Column:
    """The value of each row's record: text of JSON, or bytes."""
    from pyspark.sql import functions as F  # noqa: N812

    if sink.format is SourceFormat.JSON:
        return F.to_json(F.struct("*"), JSON_OPTIONS)
    if sink.format is SourceFormat.PROTOBUF:
        return F.udf(_message_writer(sink), "binary")(F.to_json(F.struct("*"), JSON_OPTIONS))
    from pyspark.sql.avro.functions import to_avro

    names = {name.lower(): name for name in frame.columns}
    fields = [field["name"] for field in json.loads(sink.avro_schema)["fields"]]
    row = F.struct(*(F.col(quoted_name(names[name.lower()])).alias(name) for name in fields if name.lower() in names))
    value = to_avro(row, sink.avro_schema)
    return F.concat(F.lit(_header(sink)), value) if sink.framing is Framing.CONFLUENT else value


def missing_and_strange(frame: DataFrame, sink: TopicSink) -> tuple[list[str], list[str]]:
    """The fields of the schema that the frame lacks, and its columns that the schema does not have; by name."""
    if sink.format is SourceFormat.JSON:
        return [], []
    have = {name.lower() for name in frame.columns}
    known = {name.lower() for name in sink.fields}
    missing = [] if sink.format is SourceFormat.PROTOBUF else [each for each in sink.fields if each.lower() not in have]
    return missing, [name for name in frame.columns if name.lower() not in known]


def _header(sink: TopicSink) -> bytes:
    schema_id = sink.schema_id if sink.registered is None else sink.registered.schema_id
    if schema_id < 0:
        raise RuntimeError(f"the schema of {sink.topic} was not registered")
    return b"\0" + schema_id.to_bytes(4, "big")


def _message_writer(sink: TopicSink) -> Any:
    descriptors, message, is_framed = sink.descriptors, sink.message, sink.framing is Framing.CONFLUENT
    header = _header(sink) if is_framed else b""

    def write(text: str) -> bytes:
        content = encode_message(descriptors, message, json.loads(text))
        return header + framed(descriptors, message, content)[len(header) :] if is_framed else content

    return write
