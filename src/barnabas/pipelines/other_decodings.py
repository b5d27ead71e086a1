"""Records that are no JSON: Avro, Protocol Buffers, a line of CSV, values as they are. As strict as JSON's decoding."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from barnabas.pipelines.definition import KEY_COLUMN, Source, SourceFormat
from barnabas.pipelines.record_decoding import (
    DATE_FORM,
    LOCAL_TIME_FORM,
    ZONED_TIME_FORM,
    Decoding,
    json_decoding,
)
from barnabas.pipelines.registered_decodings import read_part

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

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
    if source.format in (SourceFormat.AVRO, SourceFormat.PROTOBUF):
        return _registered_decoding(source, schema, document)
    if source.format is SourceFormat.CSV:
        return _csv_decoding(source, schema, document)
    if source.format is SourceFormat.RAW:
        return _raw_decoding(schema)
    return json_decoding(schema, document, raw)


def key_decoding(source: Source, document: str) -> Decoding | None:
    """How keys become the column of the key, which is what `columns` has; None where they are text."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StructType

    if source.key_format is None:
        return None
    kind = StructType.fromDDL(f"`{KEY_COLUMN}` {source.key_format.type}").fields[0].dataType
    part = read_part(source.key_format, f"{source.name}.key", F.col("key"), kind, document)
    fits = F.col("key").isNull() | part.fits
    return Decoding((part.made,), fits, {KEY_COLUMN: F.when(F.col("key").isNotNull(), part.value.cast(kind))})


def _registered_decoding(source: Source, schema: StructType, document: str) -> Decoding:
    """Of a value in Avro or Protocol Buffers."""
    from pyspark.sql import functions as F  # noqa: N812

    part = read_part(source, source.name, F.col("value"), schema, document)
    columns = {field.name: part.value.getField(field.name).cast(field.dataType) for field in schema.fields}
    return Decoding((part.made,), part.fits, columns, part.drops)


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
