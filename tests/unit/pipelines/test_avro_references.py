"""Schemas of Avro that name types of others: one that stands on its own is made of them, or refused in bounded time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from barnabas.pipelines.avro_references import with_references
from barnabas.pipelines.avro_schema import AvroSchemaError, read_avro_schema


def record(name: str, *types: Any, **more: Any) -> dict[str, Any]:
    fields = [{"name": f"c{number}", "type": kind} for number, kind in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields, **more}


def test_a_type_is_written_where_it_is_first_named_and_named_from_then_on() -> None:
    place = record("Place", "string", namespace="air.places")
    flight = record("Flight", "air.places.Place", ["null", "air.places.Place"], "int", namespace="air")
    made = with_references(json.dumps(flight), [json.dumps(place)])
    first, second, _ = (field["type"] for field in json.loads(made)["fields"])
    assert (first, second) == (place, ["null", "air.places.Place"])
    _, columns = read_avro_schema(made)
    assert [column.type for column in columns] == ["STRUCT<`c0`: STRING>", "STRUCT<`c0`: STRING>", "INT"]


def test_types_inside_of_others_and_of_no_namespace_are_the_ones_that_were_meant() -> None:
    """`Kind` of no namespace is named in `air`, whose own is another; `Inner` is named before what has it."""
    kind = {"type": "enum", "name": "Kind", "symbols": ["A"]}
    outer = record("Outer", record("Inner", "long"), "Inner", "Kind", namespace="far.away")
    main = record(
        "Main",
        {"type": "array", "items": "far.away.Inner"},
        {"type": "map", "values": "far.away.Outer"},
        "Kind",
        {"type": {"type": "fixed", "name": "Kind", "size": 2}},
        "Kind",
        namespace="air",
    )
    made = json.loads(with_references(json.dumps(main), map(json.dumps, (outer, kind))))
    types = [field["type"] for field in made["fields"]]
    assert types[0]["items"]["namespace"] == "far.away"
    assert [field["type"] for field in types[1]["values"]["fields"]] == [
        "far.away.Inner", "Inner", {**kind, "namespace": ""},
    ]  # fmt: skip
    assert types[2:] == [
        "Kind",
        {"type": {"type": "fixed", "name": "Kind", "namespace": "air", "size": 2}},
        "Kind",
    ]


def test_what_names_itself_or_nobody_defines_ends() -> None:
    one, other = record("One", ["null", "Other"]), record("Other", ["null", "One"])
    made = json.loads(with_references(json.dumps(one), [json.dumps(other)]))
    assert made["fields"][0]["type"][1]["fields"][0]["type"] == ["null", "One"]
    made_of_nothing = with_references(json.dumps(record("R", "Gone")), [])
    with pytest.raises(AvroSchemaError, match='names a type "Gone" that it does not define'):
        read_avro_schema(made_of_nothing)


@pytest.mark.parametrize(
    ("main", "others", "message"),
    [
        ("[" * 50_000, [], "not JSON"),
        ("[" * 500 + "]" * 500, [], "deeper than"),
        ('"X"', ['{"type":"array","items":' * 200 + '"int"' + "}" * 200], "deeper than"),
        (json.dumps(record("n" * 5_000)), [], "name of more than"),
        (json.dumps([record(f"r{number}") for number in range(10_001)]), [], "types that have names"),
        # Each opens the next one.
        ('"r0"', [json.dumps(record(f"r{number}", f"r{number + 1}")) for number in range(500)], "deeper than"),
    ],
    ids=lambda each: each[:20] if isinstance(each, str) else "",
)
def test_what_is_too_much_is_refused(main: str, others: list[str], message: str) -> None:
    with pytest.raises(AvroSchemaError, match=message):
        with_references(main, others)


def test_names_that_stand_for_much_do_not_make_a_schema_long() -> None:
    space = "n" * 4_000
    fields = [{"name": f"c{number}", "type": "T"} for number in range(20_000)]
    main = json.dumps({"type": "record", "name": "Main", "namespace": space, "fields": fields})
    other = json.dumps({"type": "fixed", "name": "T", "namespace": space, "size": 1})
    assert len(with_references(main, [other])) < len(main) + 3 * len(other)


@pytest.mark.parametrize("main", ["7", "null", '{"type": 7}', '{"type": "record", "name": 7, "fields": 3}', "[[]]"])
def test_what_is_no_schema_is_left_to_the_reader(main: str) -> None:
    assert json.loads(with_references(main, [main])) == json.loads(main)
