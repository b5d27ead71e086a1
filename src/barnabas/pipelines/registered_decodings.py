"""What is read by a schema of its own: values and keys in Avro and Protocol Buffers, perhaps with a registry's framing.

Of Avro Spark itself reads each by the schema that its id names; of Protocol Buffers Python does, by the descriptor set
of the pipeline. As strict as JSON's decoding: bytes that are missing or left over are no value.
"""

from __future__ import annotations

import functools
import json
import operator
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from barnabas.pipelines.avro_schema import without_defaults
from barnabas.pipelines.definition import Framing, KeyFormat, Source, SourceFormat
from barnabas.pipelines.protobuf_decoding import OTHER, KnownPlaces, value_reader
from barnabas.pipelines.writer_schemas import UNKNOWN_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

_MARK_BYTES: Final = 16
_HEADER_BYTES: Final = 5
"""A zero, and the id of the schema in four bytes."""


@dataclass(frozen=True, slots=True)
class ReadPart:
    """What to select for each record, under a name of its own; then whether it fits, which is never NULL, what it is,
    and whether its record is no row, hold.
    """

    made: Column
    fits: Column
    value: Column
    drops: Column | None = None


def read_part(part: Source | KeyFormat, mark: str, content: Column, kind: DataType, document: str) -> ReadPart:
    """How bytes of a record become a value of the type. `mark` names the part for errors, `document` what is kept."""
    if part.format is SourceFormat.AVRO:
        return _avro(part, mark, content, document)
    return _protobuf(part, mark, content, kind, document)


def _avro(part: Source | KeyFormat, mark: str, content: Column, document: str) -> ReadPart:
    """Spark's `from_avro` reads one value and does not look behind it. So it is read as the first field of a record
    whose second one is a mark that nobody can guess: bytes that are missing or left over are in its place.
    """
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.avro.functions import from_avro

    secret = secrets.token_bytes(_MARK_BYTES)
    name = f"barnabas_{secret.hex()}"
    behind = {"name": "mark", "type": {"type": "fixed", "name": f"{name}_mark", "size": _MARK_BYTES}}

    def wrapped(schema: str, *, is_written: bool = False) -> str:
        of_value = json.loads(schema)
        of_value = {"name": "value", "type": without_defaults(of_value) if is_written else of_value}
        return json.dumps({"type": "record", "name": name, "fields": [of_value, behind]})

    value = content
    conditions: list[Column] = []
    if part.framing is Framing.CONFLUENT:
        conditions = [F.length(content) >= F.lit(_HEADER_BYTES), F.substring(content, 1, 1) == F.lit(b"\0")]
        value = F.substring(content, _HEADER_BYTES + 1, 2**31 - 1)
    value = F.concat(value, F.lit(secret))
    ours = wrapped(part.avro_schema)
    made = from_avro(value, ours, {"mode": "PERMISSIVE"})
    if part.writers is not None and part.writers.was_asked:
        schema_id = F.conv(F.hex(F.substring(content, 2, 4)), 16, 10).cast("bigint")
        # Of the type of a record, also where no schema is known yet.
        nothing = from_avro(F.lit(None).cast("binary"), ours, {"mode": "PERMISSIVE"})
        # What has no bytes has no id either: neither NULL, nor a NULL that is asked for it.
        has_id = F.coalesce(conditions[0] & conditions[1], F.lit(False))
        chosen = F.when(~has_id, nothing)
        for number, writer in part.writers.usable.items():
            options = {"mode": "PERMISSIVE", "avroSchema": ours}
            chosen = chosen.when(schema_id == number, from_avro(value, wrapped(writer, is_written=True), options))
        # What is not known yet ends the query, until something was met that the registry does not know (WriterSchemas).
        unknown = F.raise_error(F.concat(F.lit(f"{UNKNOWN_SCHEMA}{mark}:"), schema_id.cast("string")))
        made = chosen.otherwise(nothing if part.writers.is_careful else unknown)
    conditions.append(F.col(f"{document}.mark") == F.lit(secret))
    fits = F.coalesce(functools.reduce(operator.and_, conditions), F.lit(False))
    return ReadPart(made.alias(document), fits, F.col(f"{document}.value"))


def _protobuf(part: Source | KeyFormat, mark: str, content: Column, kind: DataType, document: str) -> ReadPart:
    """Each value is read once: Spark may not repeat what it is told is not determined."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StructType

    assert isinstance(kind, StructType)
    known = None
    if part.writers is not None and part.writers.was_asked:
        by_id = {number: places_in(text) for number, text in part.writers.usable.items()}
        known = KnownPlaces(mark, by_id, part.writers.is_careful)
    drops = isinstance(part, Source) and part.drops_others
    read = value_reader(part.descriptors, part.message, part.framing, known, tells_others=drops)
    wanted = StructType([*kind.fields]).add(OTHER, "boolean") if drops else kind
    made = F.udf(read, wanted).asNondeterministic()(content).alias(document)
    is_other = F.coalesce(F.col(f"{document}.{OTHER}"), F.lit(False)) if drops else None
    return ReadPart(made, F.col(document).isNotNull(), F.col(document), is_other)


def places_in(text: str) -> frozenset[tuple[int, ...]]:
    """The places of a message, as WriterSchemas keeps them."""
    return frozenset(tuple(places) for places in json.loads(text))
