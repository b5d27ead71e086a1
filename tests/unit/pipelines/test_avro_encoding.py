"""Rows in Avro, byte for byte as the specification has them; Spark reads them back in `tests/spark`."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from typing import Any

import pytest

from barnabas.pipelines.avro_encoding import encode


def encoded(kind: Any, value: object, **more: Any) -> bytes:
    schema = {"type": "record", "name": "R", "fields": [{"name": "c", "type": kind, **more}], "namespace": "n"}
    return encode(json.dumps(schema), {} if value is ... else {"c": value})


FIXED = {"type": "fixed", "name": "F", "size": 2}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        # The specification's own examples.
        ("int", 0, "00"),
        ("int", -1, "01"),
        ("int", 1, "02"),
        ("int", -64, "7f"),
        ("int", 64, "8001"),
        ("string", "foo", "06666f6f"),
        ({"type": "array", "items": "long"}, [3, 27], "04063600"),
        (["null", "string"], None, "00"),
        (["null", "string"], "a", "020261"),
        # And what follows from them.
        ("long", -(2**63), "ffffffffffffffffff01"),
        ("boolean", True, "01"),
        ("float", 1.5, "0000c03f"),
        ("double", 1, "000000000000f03f"),
        ("bytes", b"\xff", "02ff"),
        (FIXED, "ab", "6162"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "02"),
        ({"type": "map", "values": "int"}, {"a": 1}, "0202610200"),
        ({"type": "map", "values": "int"}, {}, "00"),
        ({"type": "int", "logicalType": "date"}, "1970-01-02", "02"),
        ({"type": "int", "logicalType": "date"}, dt.date(1969, 12, 31), "01"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "1970-01-01T00:00:00.001Z", "02"),
        (MICROS, dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC), "80897a"),
        (DECIMAL, "1.28", "040080"),
        (DECIMAL, decimal.Decimal("-1.28"), "04ff80"),
        ({**FIXED, "logicalType": "decimal", "precision": 4}, -1, "ffff"),
        ({"type": "record", "name": "I", "fields": [{"name": "a", "type": ["null", "n.R"]}]}, {}, "00"),
    ],
)
def test_a_value_is_what_the_specification_says(kind: Any, value: object, expected: str) -> None:
    assert encoded(kind, value).hex() == expected


def test_a_field_that_is_missing_is_its_default_or_null() -> None:
    assert encoded("int", ..., default=5).hex() == "0a"
    assert encoded(["null", "int"], ...).hex() == "00"


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("int", 2**31, "c is 2147483648, more than an Avro int holds"),
        ("int", "5", "c is '5', and must be a whole number"),
        ("int", True, "c is True, and must be a whole number"),
        ("int", ..., "c is None, and must be a whole number"),
        ("boolean", 1, "must be true or false"),
        ("string", b"x", "must be text"),
        (FIXED, "abc", "c has 3 bytes, and must have 2"),
        (DECIMAL, "1.234", r"c is 1.234, which DECIMAL\(4, 2\) does not hold"),
        (DECIMAL, "123", r"does not hold"),
        (DECIMAL, float("nan"), r"does not hold"),
        (["null", "int"], "x", "c is 'x', and must be a whole number"),
        ({"type": "array", "items": "int"}, [None], "must be a whole number"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "C", "must be one of A, B"),
        ({"type": "record", "name": "I", "fields": []}, {"x": 1}, 'c has no field "x"'),
        ({"type": "int", "logicalType": "date"}, "soon", "soon"),
    ],
)
def test_what_is_not_of_its_type_is_told(kind: Any, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encoded(kind, value)
