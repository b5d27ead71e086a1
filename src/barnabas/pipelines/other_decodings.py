"""Records that are no JSON: Avro, Protocol Buffers, a line of CSV, values as they are. As strict as JSON's decoding."""

from __future__ import annotations

import functools
import json
import operator
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from barnabas.pipelines.avro_schema import without_defaults
from barnabas.pipelines.definition import Framing, Source, SourceFormat
from barnabas.pipelines.protobuf_decoding import protobuf_decoding
from barnabas.pipelines.record_decoding import (
    DATE_FORM,
    LOCAL_TIME_FORM,
    ZONED_TIME_FORM,
    Decoding,
    json_decoding,
)
from barnabas.pipelines.writer_schemas import UNKNOWN_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

_MARK_BYTES: Final = 16
_CONFLUENT_HEADER_BYTES: Final = 5
"""A zero, and the id of the schema in four bytes."""

_WHOLE_NUMBER: Final = r"^[-+]?[0-9]+$"
_NUMBER: Final = r"^[-+]?(?:[0-9]+(?:[.][0-9]*)?|[.][0-9]+)(?:[eE][-+]?[0-9]{1,4})?$"
_DECIMAL: Final = r"^[-+]?[0-9]+(?:[.]([0-9]+))?$"
_NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")
_LINE_END: Final = r"\r?\n$"
_LINE_BREAK: Final = r"[\r\n]"


def decoding_of(source: Source, document: str, raw: str) -> Decoding:
    """How records of a source become its columns; `document` and `raw` are names for what is kept beside a record.

    Raises pyspark's ParseException for a schema that Spark does not take.
    """
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(source.schema)
    if source.format is SourceFormat.AVRO:
        return _avro_decoding(source, schema, document)
    if source.format is SourceFormat.PROTOBUF:
        return protobuf_decoding(source, schema, document)
    if source.format is SourceFormat.CSV:
        return _csv_decoding(source, schema, document)
    if source.format is SourceFormat.RAW:
        return _raw_decoding(schema)
    return json_decoding(schema, document, raw)


def _avro_decoding(source: Source, schema: StructType, document: str) -> Decoding:
    """Spark's `from_avro` reads one value and does not look behind it. So the value is read as the first field of a
    record whose second one is a mark that nobody can guess: bytes that are missing or left over are in its place.
    """
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.avro.functions import from_avro

    secret = secrets.token_bytes(_MARK_BYTES)
    name = f"barnabas_{secret.hex()}"
    mark = {"type": "fixed", "name": f"{name}_mark", "size": _MARK_BYTES}
    fields = [{"name": "value", "type": json.loads(source.avro_schema)}, {"name": "mark", "type": mark}]
    wrapped = json.dumps({"type": "record", "name": name, "fields": fields})
    whole = F.col("value")
    value = F.col("value")
    conditions: list[Column] = []
    if source.framing is Framing.CONFLUENT:
        header = F.lit(_CONFLUENT_HEADER_BYTES)
        conditions = [F.length(value) >= header, F.substring(value, 1, 1) == F.lit(b"\0")]
        value = F.substring(value, _CONFLUENT_HEADER_BYTES + 1, 2**31 - 1)
    value = F.concat(value, F.lit(secret))
    made = from_avro(value, wrapped, {"mode": "PERMISSIVE"})
    if source.writers is not None and source.writers.was_asked:
        # What has no header, and what the registry does not know, is nothing; what is not known yet ends the query.
        schema_id = F.conv(F.hex(F.substring(whole, 2, 4)), 16, 10).cast("bigint")
        chosen = F.when(~conditions[0] | ~conditions[1], F.lit(None))
        for number, writer in source.writers.by_id.items():
            if writer is None:
                chosen = chosen.when(schema_id == number, F.lit(None))
                continue
            of_value = {**fields[0], "type": without_defaults(json.loads(writer))}
            written = json.dumps({"type": "record", "name": name, "fields": [of_value, fields[1]]})
            read = from_avro(value, written, {"mode": "PERMISSIVE", "avroSchema": wrapped})
            chosen = chosen.when(schema_id == number, read)
        unknown = F.concat(F.lit(f"{UNKNOWN_SCHEMA}{source.name}:"), schema_id.cast("string"))
        made = chosen.otherwise(F.raise_error(unknown))
    made = made.alias(document)
    conditions.append(F.col(f"{document}.mark") == F.lit(secret))
    inner = F.col(f"{document}.value")
    columns = {field.name: inner.getField(field.name).cast(field.dataType) for field in schema.fields}
    return Decoding((made,), F.coalesce(functools.reduce(operator.and_, conditions), F.lit(False)), columns)


def _csv_decoding(source: Source, schema: StructType, document: str) -> Decoding:
    """One line: fields as text, and each of them then by its type, with the forms that JSON's have."""
    from pyspark.sql import functions as F  # noqa: N812

    text = F.regexp_replace(F.col("value").cast("string"), _LINE_END, "")
    fields = ", ".join(f"c{number} STRING" for number in range(len(schema.fields)))
    options = {
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": "broken",
        "sep": source.delimiter,
        "escape": '"',
        "quote": '"',
    }
    made = F.from_csv(text, f"{fields}, broken STRING", options).alias(document)
    conditions = [
        F.is_valid_utf8(F.col("value")),
        F.length(text) > 0,
        ~text.rlike(_LINE_BREAK),
        F.col(f"{document}.broken").isNull(),
    ]
    columns: dict[str, Column] = {}
    for number, field in enumerate(schema.fields):
        written = F.col(f"{document}.c{number}")
        columns[field.name] = written.try_cast(field.dataType)
        conditions.append(written.isNull() | _text_fits(written, field.dataType))
    return Decoding((made,), F.coalesce(functools.reduce(operator.and_, conditions), F.lit(False)), columns)


def _text_fits(text: Column, kind: DataType) -> Column:
    """Whether text is a value of the type, and exactly that."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types as T  # noqa: N812

    is_read = text.try_cast(kind).isNotNull()
    if isinstance(kind, T.StringType):
        return F.lit(True)
    if isinstance(kind, T.BooleanType):
        return F.lower(text).isin("true", "false")
    if isinstance(kind, T.DoubleType | T.FloatType):
        number = text.try_cast(kind).cast("double")
        is_finite = F.abs(number) < F.lit(float("inf"))
        return text.isin(*_NOT_FINITE) | (text.rlike(_NUMBER) & is_read & is_finite)
    if isinstance(kind, T.DecimalType):
        behind = F.regexp_replace(F.regexp_extract(text, _DECIMAL, 1), "0+$", "")
        return text.rlike(_DECIMAL) & is_read & (F.length(behind) <= kind.scale)
    forms: Mapping[type[DataType], str] = {
        T.DateType: DATE_FORM,
        T.TimestampType: ZONED_TIME_FORM,
        T.TimestampNTZType: LOCAL_TIME_FORM,
    }
    return text.rlike(forms.get(type(kind), _WHOLE_NUMBER)) & is_read


def _raw_decoding(schema: StructType) -> Decoding:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StringType

    (field,) = schema.fields
    value = F.col("value")
    is_text = isinstance(field.dataType, StringType)
    return Decoding(
        (),
        F.coalesce(F.is_valid_utf8(value), F.lit(False)) if is_text else value.isNotNull(),
        {field.name: value.cast("string") if is_text else value},
    )
