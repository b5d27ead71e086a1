"""Debezium's envelopes in Avro and Protocol Buffers: what their schema says of the rows of the database.

An envelope is a record of `before` and `after`, the row as it was and as it is, `op`, what was done, and `source`,
where in the database's log (Debezium, "Change event values"). Those in JSON have no schema that could be asked; their
rows are found in a sample (`schema_inference`).
"""

from __future__ import annotations

from dataclasses import dataclass

from barnabas.pipelines.avro_schema import AvroSchemaError, read_avro_schema, read_avro_type
from barnabas.pipelines.protobuf_messages import ProtobufSchemaError, columns_of_message
from barnabas.pipelines.spark_schema import SchemaError, fields_of_struct


class EnvelopeError(ValueError):
    """What is wrong with a schema, in words that follow its file's name."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """Name and type of the columns of the rows, and the names of those that are in `before` too."""

    columns: tuple[tuple[str, str], ...]
    before: frozenset[str]


def envelope_of(schema: bytes, message: str | None) -> Envelope:
    """The rows of envelopes with this schema: of Avro, or with a `message` a descriptor set. Raises EnvelopeError."""
    try:
        if message is None:
            _, columns = read_avro_schema(schema.decode("utf-8"))
        else:
            columns = columns_of_message(schema, message)
        types = {column.name: column.type for column in columns}
        before, after = (fields_of_struct(types.get(name, "")) for name in ("before", "after"))
    except UnicodeDecodeError as error:
        raise EnvelopeError(f"cannot be read: {error}") from None
    except SchemaError as error:
        raise EnvelopeError(f"has a row with a column that a table cannot have: {error}") from None
    except (AvroSchemaError, ProtobufSchemaError) as error:
        raise EnvelopeError(str(error)) from None
    lacks = [name for name, is_there in (("after", after), ("op", types.get("op") == "STRING")) if not is_there]
    if lacks:
        wanted = "a record" if lacks[0] == "after" else "a text"
        raise EnvelopeError(
            f"is no envelope of Debezium: it has no {lacks[0]} that is {wanted} (it has {', '.join(types)}). A "
            "transform that takes the row out of it makes plain records, for a table without --debezium"
        )
    return Envelope(
        tuple((column.name, column.type) for column in after), frozenset(column.name.lower() for column in before)
    )


def key_fields_of(schema: bytes, message: str | None) -> tuple[str, ...]:
    """The fields of keys with this schema; none where a key is a single value. Raises EnvelopeError."""
    try:
        if message is None:
            return read_avro_type(schema.decode("utf-8"))[2]
        return tuple(column.name for column in columns_of_message(schema, message))
    except UnicodeDecodeError as error:
        raise EnvelopeError(f"cannot be read: {error}") from None
    except (AvroSchemaError, ProtobufSchemaError) as error:
        raise EnvelopeError(str(error)) from None
