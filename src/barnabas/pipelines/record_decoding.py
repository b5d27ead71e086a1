"""How a record's value becomes the columns of a source's schema: Spark's `from_json`, and what it lets pass refused.

Left to itself Spark takes the first JSON value and drops what is behind it, rounds a DECIMAL, makes infinity of 1e400,
gives "12:30" today's date, and writes U+FFFD for bytes that are no text. See docs/decisions/0027-pipeline-records.md.
"""

from __future__ import annotations

import functools
import operator
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

DATE_FORM: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
"""How a DATE is written."""

TIME_FORM: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.][0-9]{1,9})?)?"
LOCAL_TIME_FORM: Final = TIME_FORM + ")?$"
"""How a TIMESTAMP_NTZ is written: a date, or a date and a time of day. Digits behind the sixth are cut off."""
ZONED_TIME_FORM: Final = TIME_FORM + r"(?:Z|[-+][0-9]{2}(?::?[0-9]{2})?)?)?$"
"""How a TIMESTAMP is written as text: as a TIMESTAMP_NTZ, perhaps with its distance from UTC."""

SECONDS_MIN: Final = -62_135_596_800
SECONDS_MAX: Final = 253_402_300_799
"""The seconds since 1970 that a TIMESTAMP may be written as: years 1 to 9999. Milliseconds are beyond from 1978 on."""

DECIMAL_FORM: Final = r"^-?([0-9]+)(?:[.]([0-9]+))?(?:[eE]([-+]?[0-9]{1,4}))?$"
"""A number, in three groups: what is before the point, what is behind it, and the exponent."""

INEXACT_NUMBER: Final = r"[:,\[\s]-?(?:(?:[0-9][.]?){16,}[eE]|(?:[0-9][.]?){39}|[0-9.]+[eE][-+]?0*[1-9][0-9]{2})"
"""A number that Spark tells as a double only, by its exponent or length, and which a double may not hold exactly."""

QUOTED: Final = r'"(?:[^"\\]++|\\.)*+"'
"""A name or a text, whose digits are no number. The quantifiers give nothing back, so that no length is too long."""

# How `from_json` reads. Single quotes are no JSON.
_OPTIONS: Final = {"mode": "PERMISSIVE", "allowSingleQuotes": "false"}


@dataclass(frozen=True, slots=True)
class Decoding:
    """What to select for each record, under names of its own; then `fits`, and the columns of the schema, hold."""

    prepared: tuple[Column, ...]
    fits: Column
    columns: Mapping[str, Column]
    drops: Column | None = None
    """Whether a record is no row; it is looked at before all else."""


def json_decoding(schema: StructType, document: str, raw: str) -> Decoding:
    """Decodes the binary column `value` of records; `document` and `raw` are the names that its parts are to have.

    Spark reads one JSON value and does not look behind it. So the value is put into an object, before a last field that
    nobody can guess the name of, which must be found; what then still could be behind the value are more fields, and
    these make no array of one. A record fits when it is one JSON object of valid UTF-8 and each field is what its type
    says, exactly. `fits` is never NULL.
    """
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import BooleanType, StringType, StructType

    secret = secrets.token_hex(8)
    whole, end, unreadable = f"v{secret}", f"e{secret}", f"u{secret}"
    value = F.col("value").cast("string")
    text = F.concat(F.lit(f'{{"{whole}":'), value, F.lit(f',"{end}":true}}'))
    wanted = StructType().add(whole, schema).add(end, BooleanType()).add(unreadable, StringType())
    options = {**_OPTIONS, "columnNameOfCorruptRecord": unreadable}
    conditions = [
        F.is_valid_utf8(F.col("value")),
        F.col(f"{document}.{unreadable}").isNull(),
        F.col(f"{document}.{end}").isNotNull(),
        F.col(f"{document}.{whole}").isNotNull(),
        F.json_array_length(F.concat(F.lit("["), value, F.lit("]"))) == 1,
    ]
    made = F.col(f"{document}.{whole}")
    kept = F.lit(None).cast("string")
    watched = _watched(schema, _ALWAYS)
    if watched is not None:
        kept = F.from_json(text, StructType().add(whole, watched), _OPTIONS)
        conditions.append(_fits(made, F.col(f"{raw}.{whole}"), schema, _ALWAYS))
        if "decimal" in leaf_types(schema):
            conditions.append(_has_exact_decimals(value, made, F.col(f"{raw}.{whole}"), schema))
    rare = _watched(schema, _NOT_FINITE)
    if rare is not None:
        # Read again only where something is not finite: to know whether it was written as text, such as "NaN".
        again = F.from_json(text, StructType().add(whole, rare), _OPTIONS).getField(whole)
        is_finite = _fits(made, made, schema, _NOT_FINITE, _is_finite)
        conditions.append(F.when(is_finite, F.lit(True)).otherwise(_fits(made, again, schema, _NOT_FINITE)))
    fits = functools.reduce(operator.and_, conditions)
    return Decoding(
        (F.from_json(text, wanted, options).alias(document), kept.alias(raw)),
        F.coalesce(fits, F.lit(False)),
        {name: F.col(f"{document}.{whole}.{_quoted(name)}") for name in schema.fieldNames()},
    )


def leaf_types(kind: DataType) -> frozenset[str]:
    """The names of all types in a type that hold no others."""
    from pyspark.sql import types as T  # noqa: N812

    if isinstance(kind, T.StructType):
        return frozenset().union(*(leaf_types(field.dataType) for field in kind.fields))
    if isinstance(kind, T.ArrayType):
        return leaf_types(kind.elementType)
    return leaf_types(kind.valueType) if isinstance(kind, T.MapType) else frozenset({kind.typeName()})


# What is read beside the value, by the type's name: text, or a VARIANT, which knows what was text and what a number.
_ALWAYS: Final = {"decimal": "variant", "date": "string", "timestamp": "string", "timestamp_ntz": "string"}
_NOT_FINITE: Final = {"float": "variant", "double": "variant"}
_DECIMALS: Final = {"decimal": "variant"}


def _watched(kind: DataType, delicate: Mapping[str, str]) -> DataType | None:
    """The same type with others in the `delicate` places; None where there is no such place."""
    from pyspark.sql import types as T  # noqa: N812

    if isinstance(kind, T.StructType):
        fields = [(field.name, _watched(field.dataType, delicate)) for field in kind.fields]
        kept = [T.StructField(name, inner) for name, inner in fields if inner is not None]
        return T.StructType(kept) if kept else None
    if isinstance(kind, T.ArrayType):
        inner = _watched(kind.elementType, delicate)
        return None if inner is None else T.ArrayType(inner)
    if isinstance(kind, T.MapType):
        inner = _watched(kind.valueType, delicate)
        return None if inner is None else T.MapType(kind.keyType, inner)
    name = delicate.get(kind.typeName())
    return {None: None, "variant": T.VariantType(), "string": T.StringType()}[name]


def _fits(
    value: Column,
    raw: Column,
    kind: DataType,
    delicate: Mapping[str, str],
    leaf_fits: Callable[[Column, Column, DataType], Column] | None = None,
) -> Column:
    """Whether what Spark has made of a field is what was written; of a type for which `_watched` gives one."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types as T  # noqa: N812

    def inner(made: Column, written: Column, kind: DataType) -> Column:
        return _fits(made, written, kind, delicate, leaf_fits)

    if isinstance(kind, T.StructType):
        fields = [field for field in kind.fields if _watched(field.dataType, delicate) is not None]
        each = [inner(value.getField(field.name), raw.getField(field.name), field.dataType) for field in fields]
        fits = functools.reduce(operator.and_, each)
    elif isinstance(kind, T.ArrayType | T.MapType):
        element = kind.elementType if isinstance(kind, T.ArrayType) else kind.valueType
        values, raws = (value, raw) if isinstance(kind, T.ArrayType) else (F.map_values(value), F.map_values(raw))
        pairs = F.zip_with(values, raws, lambda made, written: inner(made, written, element))
        fits = F.forall(pairs, lambda fit: fit)
    else:
        fits = (leaf_fits or _leaf_fits)(value, raw, kind)
    return value.isNull() | F.coalesce(fits, F.lit(False))


def _is_finite(value: Column, _raw: Column, _kind: DataType) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    number = value.cast("double")
    return ~F.isnan(number) & (F.abs(number) != F.lit(float("inf")))


def _leaf_fits(value: Column, raw: Column, kind: DataType) -> Column:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types as T  # noqa: N812

    if isinstance(kind, T.FloatType | T.DoubleType):
        return _is_finite(value, raw, kind) | (F.schema_of_variant(raw) == "STRING")
    if isinstance(kind, T.DateType):
        return raw.rlike(DATE_FORM)
    if isinstance(kind, T.TimestampNTZType):
        return raw.rlike(LOCAL_TIME_FORM)
    if isinstance(kind, T.TimestampType):
        # Of a number Spark makes so many seconds; of the same digits as text it makes a year, or nothing.
        seconds = raw.try_cast("bigint")
        is_number = seconds.between(SECONDS_MIN, SECONDS_MAX) & (F.timestamp_seconds(seconds) == value)
        return F.when(raw.rlike(ZONED_TIME_FORM), F.lit(True)).otherwise(is_number)
    return _is_exact_decimal(value, raw, kind)


def _has_exact_decimals(document: Column, value: Column, raw: Column, schema: StructType) -> Column:
    """Whether no DECIMAL was told as a double that may not hold what was written. What was written of one field nobody
    tells; so it is asked whether the document has such a number at all, outside of texts, and that only where a DECIMAL
    was told as a double. Numbers of other fields may be as long as they like.
    """
    from pyspark.sql import functions as F  # noqa: N812

    def is_told(_value: Column, raw: Column, _kind: DataType) -> Column:
        return F.schema_of_variant(raw) != "DOUBLE"

    has_none = ~document.rlike(INEXACT_NUMBER)
    has_none_outside_texts = ~F.regexp_replace(document, QUOTED, '""').rlike(INEXACT_NUMBER)
    return has_none | _fits(value, raw, schema, _DECIMALS, is_told) | has_none_outside_texts


def _is_exact_decimal(value: Column, raw: Column, kind: DataType) -> Column:
    """Whether the digits behind the point, in whatever way the number was written, are not more than the type has."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types as T  # noqa: N812

    assert isinstance(kind, T.DecimalType)
    text = F.try_variant_get(raw, "$", "string")
    behind = F.regexp_extract(text, DECIMAL_FORM, 2)
    digits = F.concat(F.regexp_extract(text, DECIMAL_FORM, 1), behind)
    exponent = F.coalesce(F.nullif(F.regexp_extract(text, DECIMAL_FORM, 3), F.lit("")).cast("int"), F.lit(0))
    telling = F.length(F.regexp_replace(digits, "0+$", ""))
    places = F.when(telling == 0, 0).otherwise(F.length(behind) - (F.length(digits) - telling) - exponent)
    is_exact = text.rlike(DECIMAL_FORM) & (places <= kind.scale)
    return is_exact & ((F.schema_of_variant(raw) != "DOUBLE") | (text.try_cast(kind) == value))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
