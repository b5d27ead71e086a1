"""Avro's schemas as columns of Spark's types, and what cannot be such, said in words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from barnabas.pipelines.avro_schema import AvroSchemaError, read_avro_schema, without_defaults
from barnabas.pipelines.definition import Column


def record(*types: Any, **more: Any) -> str:
    fields = [{"name": f"c{number}", "type": kind} for number, kind in enumerate(types)]
    return json.dumps({"type": "record", "name": "R", "fields": fields, **more})


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("boolean", "BOOLEAN"),
        (["null", "long"], "BIGINT"),
        (["string"], "STRING"),
        (["int", "null", "long"], "BIGINT"),
        (["float", "double"], "DOUBLE"),
        (["int", "string"], "STRUCT<`member0`: INT, `member1`: STRING>"),
        ({"type": "int", "logicalType": "date"}, "DATE"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "TIMESTAMP"),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, "TIMESTAMP_NTZ"),
        # Spark reads those that it does not know as what is beneath.
        ({"type": "int", "logicalType": "time-millis"}, "INT"),
        ({"type": "string", "logicalType": "uuid"}, "STRING"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}, "DECIMAL(10, 2)"),
        (
            {"type": "fixed", "name": "D", "size": 8, "logicalType": "decimal", "precision": 5},
            "DECIMAL(5, 0)",
        ),
        ({"type": "fixed", "name": "F", "size": 8}, "BINARY"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "STRING"),
        ({"type": "array", "items": ["null", "bytes"]}, "ARRAY<BINARY>"),
        ({"type": "map", "values": {"type": "array", "items": "int"}}, "MAP<STRING, ARRAY<INT>>"),
        (
            {"type": "record", "name": "I", "fields": [{"name": "a b", "type": "int"}]},
            "STRUCT<`a b`: INT>",
        ),
    ],
)
def test_types_are_those_that_spark_reads(kind: Any, expected: str) -> None:
    _, columns = read_avro_schema(record(kind))
    assert columns == (Column("c0", expected),)


def test_names_are_found_in_their_namespace() -> None:
    inner = {"type": "record", "name": "other.I", "fields": [{"name": "a", "type": "E"}]}
    outer = {"type": "enum", "name": "other.E", "symbols": ["A"]}
    _, columns = read_avro_schema(record(outer, inner, "other.I", namespace="here"))
    assert [column.type for column in columns] == ["STRING", "STRUCT<`a`: STRING>", "STRUCT<`a`: STRING>"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('"string"', "is not the schema of a record"),
        ("[1]", "is not the schema of a record"),
        (record(), "has no fields"),
        (record("unknown"), 'names a type "unknown" that it does not define'),
        (record(["null", "R"]), 'has a record "R" that contains itself'),
        (record(7), "has a type that is none: 7"),
        (record({"type": 7}), "has a type that is none"),
        (record({"type": "bytes", "logicalType": "decimal"}), "has a decimal without a precision"),
        (record({"type": "bytes", "logicalType": "decimal", "precision": 39}), "has a decimal of 39 digits"),
        (record({"type": "array"}), "has a type that is none: null"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a"}]}', "has a field without name and type"),
        ('{"type": "record", "name": "R", "fields": {}}', "without a list of up to 1000 fields"),
        ('{"type": "record", "fields": []}', "has a type without a name"),
        (
            '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"A","type":"int"}]}',
            "differ by case at most",
        ),
    ],
)
def test_what_is_wrong_is_said(text: str, message: str) -> None:
    with pytest.raises(AvroSchemaError, match=message):
        read_avro_schema(text)


def test_the_depth_is_bounded() -> None:
    kind: Any = "int"
    for _ in range(30):
        kind = {"type": "array", "items": kind}
    with pytest.raises(AvroSchemaError, match="is deeper than 20 levels"):
        read_avro_schema(record(kind))


def test_names_that_stand_for_much_are_bounded() -> None:
    kinds: list[Any] = [{"type": "record", "name": "R0", "fields": [{"name": "a", "type": "int"}]}]
    for number in range(1, 10):
        inner = [{"name": f"c{field}", "type": f"R{number - 1}"} for field in range(10)]
        kinds.append({"type": "record", "name": f"R{number}", "fields": inner})
    with pytest.raises(AvroSchemaError, match="has more than 10000 types"):
        read_avro_schema(
            json.dumps(
                {
                    "type": "record",
                    "name": "All",
                    "fields": [{"name": f"f{number}", "type": kind} for number, kind in enumerate(kinds)],
                }
            )
        )


def test_a_schema_without_defaults_is_else_the_same() -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "default", "type": "string", "default": None}]}
    fields = [
        {"name": "a", "type": ["null", inner], "default": None, "doc": "of it"},
        {"name": "b", "type": {"type": "array", "items": {"type": "map", "values": inner}}, "default": []},
        {
            "name": "c",
            "type": {"type": "enum", "name": "E", "symbols": ["default"], "default": "default"},
            "default": 1,
        },
    ]
    found = without_defaults({"type": "record", "name": "R", "fields": fields})
    left = {**inner, "fields": [{"name": "default", "type": "string"}]}
    assert found["fields"] == [
        {"name": "a", "type": ["null", left], "doc": "of it"},
        {"name": "b", "type": {"type": "array", "items": {"type": "map", "values": left}}},
        {"name": "c", "type": {"type": "enum", "name": "E", "symbols": ["default"], "default": "default"}},
    ]
    assert without_defaults("string") == "string"


def test_a_long_name_is_not_written_out_wherever_its_record_is_named() -> None:
    def schema(length: int) -> str:
        inner = {"type": "record", "name": "R0", "fields": [{"name": "x" * length, "type": "int"}]}
        fields = [{"name": "a0", "type": inner}, *({"name": f"a{number}", "type": "R0"} for number in range(1, 900))]
        return json.dumps({"type": "record", "name": "R", "fields": fields})

    with pytest.raises(AvroSchemaError, match="a field's name of more than 4096 characters"):
        read_avro_schema(schema(4_097))
    assert len(read_avro_schema(schema(4_096))[1]) == 900
