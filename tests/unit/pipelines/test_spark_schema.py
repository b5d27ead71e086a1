"""Spark's DDL, read well enough to find its faults before Spark does."""

from __future__ import annotations

import pytest

from barnabas.pipelines.definition import Column
from barnabas.pipelines.spark_schema import COLUMNS_MAX, DEPTH_MAX, SchemaError, parse_schema, quoted_name


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("a STRING", [("a", "STRING")]),
        ("a string,\n  b Double COMMENT 'late'", [("a", "STRING"), ("b", "DOUBLE")]),
        ("`dep delay` INT, `odd``name` LONG", [("dep delay", "INT"), ("odd`name", "LONG")]),
        (
            "a DECIMAL, b DECIMAL(10), c NUMERIC(10, 2)",
            [("a", "DECIMAL"), ("b", "DECIMAL(10, 0)"), ("c", "NUMERIC(10, 2)")],
        ),
        ("a ARRAY<INT>, b MAP<STRING, ARRAY<DATE>>", [("a", "ARRAY<INT>"), ("b", "MAP<STRING, ARRAY<DATE>>")]),
        ("a STRUCT<x: INT, `y z` STRUCT<q:DATE>>", [("a", "STRUCT<`x`: INT, `y z`: STRUCT<`q`: DATE>>")]),
        ("a STRUCT<>", [("a", "STRUCT<>")]),
        (
            "date DATE, timestamp TIMESTAMP_NTZ, struct STRING",
            [("date", "DATE"), ("timestamp", "TIMESTAMP_NTZ"), ("struct", "STRING")],
        ),
    ],
)
def test_reads_names_and_types(text: str, columns: list[tuple[str, str]]) -> None:
    assert parse_schema(text) == tuple(Column(name, kind) for name, kind in columns)


@pytest.mark.parametrize(
    ("text", "message", "offset"),
    [
        ("", 'a schema has at least one column, such as "carrier STRING"', 0),
        ("a", 'the column "a" has no type: write "a STRING", for instance', 0),
        ("a,b INT", 'the column "a" has no type: write "a STRING", for instance', 1),
        ("a INT,", "a column name is expected here, not the end", 5),
        ("a INT, , b INT", 'a column name is expected here, not ","', 7),
        ("a INT b INT", '"," is expected between two columns, not "b"', 6),
        ("a: INT", 'the column "a" has no type: write "a STRING", for instance', 1),
        ("a STRNG", '"STRNG" is not a type; did you mean "STRING"?', 2),
        ("a text", '"text" is not a type; Spark calls it "STRING"', 2),
        ("a varchar(3)", '"varchar" is not a type; Spark calls it "STRING"', 2),
        ("a INT, A STRING", 'the column "A" is there twice (names must differ by more than case)', 7),
        ("a STRUCT<b: INT, B: INT>", 'the column "B" is there twice (names must differ by more than case)', 17),
        ("a ARRAY", '"<" is expected after ARRAY, as in ARRAY<INT>, not the end', 6),
        ("a ARRAY<INT", '">" is expected after the type of an array\'s elements, not the end', 10),
        ("a MAP<INT>", '"," is expected between a map\'s types of key and value, not ">"', 9),
        ("a STRUCT<b INT", '"," is expected between two columns, not the end', 13),
        ("a DECIMAL(99)", "a decimal has up to 38 digits, as in DECIMAL(10, 2)", 10),
        ("a DECIMAL(2, 3)", "a decimal of 2 digits has no 3 of them behind the point", 13),
        ("a DECIMAL(2", '")" is expected after a decimal\'s digits, as in DECIMAL(10, 2), not the end', 10),
        (
            "a INT NOT NULL",
            "NOT NULL is not enforced when JSON is read: remove it, and leave rows out with WHERE in a step",
            6,
        ),
        ("a INT COMMENT b", "a COMMENT's text must be in quotes", 14),
        (
            "a-b INT",
            '"-" does not belong in a schema: write "name TYPE, name TYPE", odd names in backticks',
            1,
        ),
    ],
)
def test_says_what_is_wrong_and_where(text: str, message: str, offset: int) -> None:
    with pytest.raises(SchemaError) as caught:
        parse_schema(text)
    assert (str(caught.value), caught.value.offset) == (message, offset)


def test_lists_the_types_where_none_is_near() -> None:
    with pytest.raises(SchemaError, match='"ZZZ" is not a type; there are: ARRAY, BIGINT, BINARY, BOOLEAN, BYTE, DATE'):
        parse_schema("a ZZZ")


def test_bounds_columns_and_depth() -> None:
    assert len(parse_schema(", ".join(f"c{number} INT" for number in range(COLUMNS_MAX)))) == COLUMNS_MAX
    with pytest.raises(SchemaError, match="there are more than 1000 columns"):
        parse_schema(", ".join(f"c{number} INT" for number in range(COLUMNS_MAX + 1)))
    with pytest.raises(SchemaError, match="deeper than 20 levels"):
        parse_schema("a " + "ARRAY<" * DEPTH_MAX + "INT" + ">" * DEPTH_MAX)
    parse_schema("a " + "ARRAY<" * (DEPTH_MAX - 1) + "INT" + ">" * (DEPTH_MAX - 1))


def test_quotes_any_name() -> None:
    assert quoted_name("odd`name") == "`odd``name`"
