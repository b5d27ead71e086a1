"""A schema for records in JSON, found in a sample: types that take all that was seen, and nothing only likely."""

from __future__ import annotations

import json
from typing import Any

import pytest

from barnabas.pipelines.schema_inference import infer_changes, infer_schema
from barnabas.pipelines.spark_schema import parse_schema


def inferred(*values: Any) -> str:
    found = infer_schema(json.dumps({"a": value}).encode() for value in values)
    assert found is not None
    assert parse_schema(found.schema)
    return found.schema.removeprefix("a ")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, None], "BIGINT"),
        ([True], "BOOLEAN"),
        ([1, 1.5], "DOUBLE"),
        ([1, True], "STRING"),
        ([2**63], "DECIMAL(38, 0)"),
        ([2**63, 1], "DECIMAL(38, 0)"),
        ([2**63, 1.5], "STRING"),
        ([10**38], "STRING"),
        (["x"], "STRING"),
        ([None], "STRING"),
        (["2013-01-01T05:00:00Z", "2013-01-01 05:00:00.123456+01:00"], "TIMESTAMP"),
        # Without a zone, and without a time of day, it may be anything.
        (["2013-01-01T05:00:00"], "STRING"),
        (["2013-01-01"], "STRING"),
        (["2013-13-01T05:00:00Z"], "STRING"),
        (["2013-01-01T05:00:00Z", "soon"], "STRING"),
        (["2013-01-01T05:00:00-18:00"], "TIMESTAMP"),
        # Java's zones end there.
        (["2013-01-01T05:00:00+18:01"], "STRING"),
        (["2013-01-01T05:00:00Z", 5], "STRING"),
        ([[1, None], [2.5], []], "ARRAY<DOUBLE>"),
        ([[]], "ARRAY<STRING>"),
        ([{"b": 1}, {"c d": [{"e": True}]}], "STRUCT<`b`: BIGINT, `c d`: ARRAY<STRUCT<`e`: BOOLEAN>>>"),
        # An object without fields is none that a table can hold.
        ([{}], "STRING"),
        ([{"b": 1}, {}], "STRING"),
        ([{"b": 1}, [1]], "STRING"),
        ([{"b": 1, "B": 2}], "STRING"),
        ([{"\ud800": 1}], "STRING"),
        ([float("nan")], "DOUBLE"),
    ],
)
def test_the_type_takes_all_that_was_seen(values: list[Any], expected: str) -> None:
    assert inferred(*values) == expected


def test_what_is_deeper_or_wider_than_can_be_read_is_text() -> None:
    deep: Any = 1
    for _ in range(50):
        deep = [deep]
    assert inferred(deep) == "ARRAY<" * 9 + "STRING" + ">" * 9
    found = infer_schema([json.dumps({f"c{number}": 1 for number in range(2_000)}).encode()])
    assert found is not None
    assert len(parse_schema(found.schema)) == 1_000


def test_what_is_left_out_is_told() -> None:
    values = [b"nonsense", b"[" * 100_000, b"\xff", b"5", None, b'{"_key": 1, "a": 1, "A": 2, "_Deleted": 3, "b-c": 1}']
    found = infer_schema(values)
    assert found is not None
    assert (found.schema, found.records) == ("a BIGINT, `b-c` BIGINT", 1)
    assert found.notes[0] == "4 records of the sample are no JSON objects, and are letters"
    assert [note.split('"')[1] for note in found.notes[1:]] == ["_key", "A", "_Deleted"]


@pytest.mark.parametrize("values", [[], [None], [b"5"], [b"{}"], [b'{"_key": 1}']])
def test_nothing_is_found_in_nothing(values: list[bytes | None]) -> None:
    assert infer_schema(values) is None


def test_names_that_no_file_can_have_are_left_out_and_told() -> None:
    found = infer_schema([b'{"a": 1, "\\ud800": 2, "b\\u0000": 3, "": 4}', '{"u": 1}'.encode("utf-16")])
    assert found is not None
    assert (found.schema, found.records) == ("a BIGINT", 1)
    assert [note.split(" is left out")[0] for note in found.notes[1:]] == [
        "the field '\\ud800'",
        "the field 'b\\x00'",
        "the field ''",
    ]
    "\n".join(found.notes).encode()
    changes = infer_changes([b'{"op": "c", "after": {"a": 1, "\\ud800": 2}}'])
    assert changes is not None
    assert changes.columns == (("a", "BIGINT"),)
