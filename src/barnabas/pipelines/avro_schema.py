"""An Avro schema, such as a file `flights.avsc`, as columns: what Spark's Avro makes of it, known before Spark starts.

Apache Avro 1.12, "Schema Declaration" and "Logical Types"; Spark's "Apache Avro Data Source Guide" has the types.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from barnabas.pipelines.definition import Column
from barnabas.pipelines.spark_schema import quoted_name

SCHEMA_BYTES_MAX: Final = 1024 * 1024
DEPTH_MAX: Final = 20
COLUMNS_MAX: Final = 1_000
TYPES_MAX: Final = 10_000
NAME_CHARACTERS_MAX: Final = 4_096
"""Of a field, whose name is written out wherever the name of its record stands for it."""

_PRIMITIVES: Final = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "bytes": "BINARY",
    "string": "STRING",
}
_LOGICAL: Final = {
    ("int", "date"): "DATE",
    ("long", "timestamp-millis"): "TIMESTAMP",
    ("long", "timestamp-micros"): "TIMESTAMP",
    ("long", "local-timestamp-millis"): "TIMESTAMP_NTZ",
    ("long", "local-timestamp-micros"): "TIMESTAMP_NTZ",
}
_DECIMAL_DIGITS_MAX: Final = 38
_HALVES: Final = re.compile("[\ud800-\udfff]")
"""JSON can name halves of characters (surrogates), which cannot be sent to Java."""
_RECORDS: Final = ("record", "error")


class AvroSchemaError(ValueError):
    """What is wrong with a schema, in words that follow its file's name."""


def read_avro_schema(text: str) -> tuple[str, tuple[Column, ...]]:
    """The schema as compact JSON, and the columns of the record that it describes. Raises AvroSchemaError."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AvroSchemaError(f"is not JSON ({error})") from error
    if not isinstance(schema, dict) or schema.get("type") not in _RECORDS:
        raise AvroSchemaError('is not the schema of a record: it must be {"type": "record", "fields": [...]}')
    types = _Types()
    types.define(schema, "", schema)
    columns = tuple(Column(name, kind) for name, kind in types.fields(schema, "", 0, ()))
    if len({column.name.lower() for column in columns}) != len(columns):
        raise AvroSchemaError("has two fields whose names differ by case at most, which SQL cannot tell apart")
    if not columns:
        raise AvroSchemaError("has no fields")
    return json.dumps(schema, separators=(",", ":")), columns


def read_avro_type(text: str) -> tuple[str, str, tuple[str, ...]]:
    """A schema of any type, as that of a key may be: compact JSON, the type in Spark's DDL, and of a record the names
    of its fields. Raises AvroSchemaError.
    """
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AvroSchemaError(f"is not JSON ({error})") from error
    if not isinstance(schema, str | dict | list) or not schema:
        raise AvroSchemaError("is no schema")
    kind = _Types().type_of(schema, "", 0, ())
    names: tuple[str, ...] = ()
    if isinstance(schema, dict) and schema.get("type") in _RECORDS:
        names = tuple(field["name"] for field in schema["fields"])
        if len({name.lower() for name in names}) != len(names):
            raise AvroSchemaError("has two fields whose names differ by case at most, which SQL cannot tell apart")
    return json.dumps(schema, separators=(",", ":")), kind, names


def without_defaults(schema: Any) -> Any:
    """The schema (of JSON) without the defaults of its fields. They say nothing of what was written by it, and Java
    refuses those that are not of their field's type, which registries take: null for a string.
    """
    if isinstance(schema, list):
        return [without_defaults(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: without_defaults(schema[name]) for name in ("type", "items", "values") if name in schema}
    if isinstance(schema.get("fields"), list):
        inner["fields"] = [
            {name: value for name, value in without_defaults(field).items() if name != "default"}
            for field in schema["fields"]
        ]
    return {**schema, **inner}


class _Types:
    """Spark's types of Avro's, with the names that were defined on the way."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[Mapping[str, Any], str]] = {}
        self._count = 0

    def define(self, schema: Mapping[str, Any], namespace: str, what: Any) -> str:
        """Takes note of a named type; returns the namespace of what is inside."""
        name = schema.get("name")
        if not isinstance(name, str) or not name:
            raise AvroSchemaError(f"has a type without a name: {json.dumps(what)[:100]}")
        space = schema.get("namespace", namespace)
        full = name if "." in name else f"{space}.{name}".lstrip(".")
        inner = full.rpartition(".")[0]
        self._named[full] = (schema, inner)
        return inner

    def fields(
        self, schema: Mapping[str, Any], namespace: str, depth: int, within: tuple[int, ...]
    ) -> list[tuple[str, str]]:
        """Name and type of each field of a record. `within` are the records around it, which it may not contain."""
        if id(schema) in within:
            raise AvroSchemaError(f'has a record "{schema.get("name")}" that contains itself, which Spark cannot read')
        inner = self.define(schema, namespace, schema)
        found = []
        listed = schema.get("fields")
        if not isinstance(listed, list) or len(listed) > COLUMNS_MAX:
            raise AvroSchemaError(f'has a record "{schema.get("name")}" without a list of up to {COLUMNS_MAX} fields')
        for field in listed:
            if not isinstance(field, dict) or not isinstance(field.get("name"), str) or "type" not in field:
                raise AvroSchemaError(f"has a field without name and type: {json.dumps(field)[:100]}")
            if len(field["name"]) > NAME_CHARACTERS_MAX:
                raise AvroSchemaError(f"has a field's name of more than {NAME_CHARACTERS_MAX} characters")
            if not field["name"].isascii() and _HALVES.search(field["name"]):
                raise AvroSchemaError(f"has a field's name with half a character: {json.dumps(field['name'])[:100]}")
            found.append((field["name"], self.type_of(field["type"], inner, depth + 1, (*within, id(schema)))))
        return found

    def type_of(self, schema: Any, namespace: str, depth: int, within: tuple[int, ...]) -> str:
        """Spark's type, in DDL."""
        if depth > DEPTH_MAX:
            raise AvroSchemaError(f"is deeper than {DEPTH_MAX} levels")
        # Names that stand for records of names make much of little.
        self._count += 1
        if self._count > TYPES_MAX:
            raise AvroSchemaError(f"has more than {TYPES_MAX} types, named ones counted wherever they stand")
        if isinstance(schema, list):
            return self._union(schema, namespace, depth, within)
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return _PRIMITIVES[schema]
            if schema == "null":
                return "VOID"
            full = schema if "." in schema else f"{namespace}.{schema}".lstrip(".")
            named = self._named.get(full) or self._named.get(schema)
            if named is None:
                raise AvroSchemaError(f'names a type "{schema}" that it does not define')
            return self._complex(named[0], named[1], depth, within)
        if isinstance(schema, dict):
            return self._complex(schema, namespace, depth, within)
        raise AvroSchemaError(f"has a type that is none: {json.dumps(schema)[:100]}")

    def _complex(self, schema: Mapping[str, Any], namespace: str, depth: int, within: tuple[int, ...]) -> str:
        kind, logical = schema.get("type"), schema.get("logicalType")
        if isinstance(kind, list | dict):
            return self.type_of(kind, namespace, depth + 1, within)
        if kind in {"bytes", "fixed"} and logical == "decimal":
            if kind == "fixed":
                self.define(schema, namespace, schema)
            return self._decimal(schema)
        if kind in _RECORDS:
            inner = self.fields(schema, namespace, depth, within)
            return f"STRUCT<{', '.join(f'{quoted_name(name)}: {of}' for name, of in inner)}>"
        if kind in {"enum", "fixed"}:
            self.define(schema, namespace, schema)
            return "STRING" if kind == "enum" else "BINARY"
        if kind == "array":
            return f"ARRAY<{self.type_of(schema.get('items'), namespace, depth + 1, within)}>"
        if kind == "map":
            return f"MAP<STRING, {self.type_of(schema.get('values'), namespace, depth + 1, within)}>"
        if not isinstance(kind, str):
            raise AvroSchemaError(f"has a type that is none: {json.dumps(schema)[:100]}")
        if isinstance(logical, str) and (kind, logical) in _LOGICAL:
            return _LOGICAL[kind, logical]
        return self.type_of(kind, namespace, depth + 1, within)

    def _union(self, branches: list[Any], namespace: str, depth: int, within: tuple[int, ...]) -> str:
        kinds = [each for each in branches if each != "null"]
        if len(kinds) == 1:
            return self.type_of(kinds[0], namespace, depth + 1, within)
        if not kinds:
            return "VOID"
        simple = {each if isinstance(each, str) else "" for each in kinds}
        if simple == {"int", "long"}:
            return "BIGINT"
        if simple == {"float", "double"}:
            return "DOUBLE"
        inner = [self.type_of(each, namespace, depth + 1, within) for each in kinds]
        return f"STRUCT<{', '.join(f'`member{number}`: {of}' for number, of in enumerate(inner))}>"

    def _decimal(self, schema: Mapping[str, Any]) -> str:
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision:
            raise AvroSchemaError(f"has a decimal without a precision: {json.dumps(schema)[:100]}")
        if precision > _DECIMAL_DIGITS_MAX:
            raise AvroSchemaError(f"has a decimal of {precision} digits, and Spark has {_DECIMAL_DIGITS_MAX}")
        return f"DECIMAL({precision}, {scale})"
