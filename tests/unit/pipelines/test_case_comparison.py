"""Rows expected beside rows found: what is equal by its type, and how the rest is told."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import random
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pytest

from barnabas.pipelines import case_comparison
from barnabas.pipelines.case_comparison import comparable, differences, jsonable, letter_differences, typed
from barnabas.pipelines.cases import ExpectedRow

D = decimal.Decimal
TIMES = {"type": "array", "elementType": "timestamp", "containsNull": True}
MAP = {"type": "map", "keyType": "string", "valueType": "double", "valueContainsNull": True}
PAIR = {"type": "struct", "fields": [{"name": "a", "type": "integer"}, {"name": "b", "type": "date"}]}


def told(
    expected: Sequence[Mapping[str, Any]],
    found: Sequence[Mapping[str, Any]],
    types: Mapping[str, object] | None = None,
    key: tuple[str, ...] = (),
) -> list[str]:
    rows = [ExpectedRow(row, number) for number, row in enumerate(expected, start=1)]
    return [str(each) for each in differences(rows, found, types or {}, key)]


@pytest.mark.parametrize(
    ("kind", "expected", "found"),
    [
        ("timestamp", "2013-01-01 05:00", "2013-01-01T05:00:00.000000Z"),
        ("timestamp", "2013-01-01T06:00+01:00", dt.datetime(2013, 1, 1, 5, tzinfo=dt.UTC)),
        ("timestamp_ntz", "2013-01-01", "2013-01-01T00:00:00.000000"),
        ("date", "2013-01-01", dt.date(2013, 1, 1)),
        ("decimal(5,2)", 1.5, D("1.50")),
        ("decimal(38,0)", "12345678901234567890123456789012345678", D("12345678901234567890123456789012345678")),
        ("double", 0.3, 0.1 + 0.2),
        ("double", 5, D("5.0")),
        ("double", float("nan"), "NaN"),
        ("double", float("-inf"), "-Infinity"),
        ("double", 0, -0.0),
        ("long", 5, D(5)),
        ("string", "x", "x"),
        ("boolean", True, True),
        ("binary", "AP8=", b"\x00\xff"),
        (TIMES, ["2013-01-01", None], ["2013-01-01T00:00:00.000000Z", None]),
        (MAP, {"b": 1, "a": 2.0}, [("a", 2.0), ("b", 1.0)]),
        (PAIR, {"b": "2013-01-01"}, {"a": None, "b": dt.date(2013, 1, 1)}),
    ],
)
def test_equal_for_the_type_is_equal(kind: object, expected: object, found: object) -> None:
    assert comparable(expected, kind) == comparable(found, kind)


@pytest.mark.parametrize(
    ("kind", "expected", "found"),
    [
        ("string", 5, "5"),
        ("string", "null", None),
        ("string", "true", True),
        ("boolean", "true", True),
        ("boolean", 1, True),
        ("long", True, 1),
        ("double", True, 1.0),
        ("decimal(5,2)", True, D(1)),
        ("decimal(5,2)", 1.51, D("1.50")),
        ("double", 0.30001, 0.3),
        ("double", float("nan"), None),
        ("timestamp", "2013-01-01T05:00:00.000001Z", "2013-01-01T05:00:00.000000Z"),
        ("timestamp", "5 o'clock", "2013-01-01T05:00:00.000000Z"),
        ("long", "many", 5),
        (TIMES, [], ["2013-01-01T00:00:00.000000Z"]),
        (TIMES, "2013-01-01", ["2013-01-01T00:00:00.000000Z"]),
        (MAP, [1, 2], [("a", 2.0)]),
        (MAP, {"a": None}, [("a", 2.0)]),
        (PAIR, {"a": 1, "c": 1}, {"a": 1, "b": None}),
        (PAIR, {}, None),
    ],
)
def test_what_differs_differs(kind: object, expected: object, found: object) -> None:
    assert comparable(expected, kind) != comparable(found, kind)


def test_the_order_is_nothing_and_the_number_of_equal_rows_counts() -> None:
    assert told([{"a": "x"}, {"a": "y"}, {"a": "x"}], [{"a": "x"}, {"a": "x"}, {"a": "y"}]) == []
    assert told([{"a": "x"}, {"a": "x"}], [{"a": "x"}]) == ['missing (line 2): {"a": "x"}']
    assert told([{"a": "x"}], [{"a": "x"}, {"a": "x"}]) == ['unexpected: {"a": "x"}']
    assert told([], [{"a": None}]) == ['unexpected: {"a": null}']


def test_a_row_of_the_same_key_is_told_with_the_columns_that_differ() -> None:
    expected = [{"k": "x", "n": 1, "m": "same"}]
    found = [{"k": "y", "n": 1, "m": "same"}, {"k": "x", "n": 2, "m": "same", "more": None}]
    assert told(expected, found, {"n": "long", "k": "string"}, ("k",)) == [
        'differs (line 1): n is 2, not 1; in {"k": "x", "n": 2, "m": "same", "more": null}',
        'unexpected: {"k": "y", "n": 1, "m": "same"}',
    ]


def test_without_a_key_it_is_the_row_most_like_it_if_any_is() -> None:
    assert told([{"a": 1, "b": 2}], [{"a": 9, "b": 9}, {"a": 1, "b": 3}])[0].startswith("differs (line 1): b is 3")
    assert told([{"a": 1, "b": 2}], [{"a": 9, "b": 9}]) == [
        'missing (line 1): {"a": 1, "b": 2}',
        'unexpected: {"a": 9, "b": 9}',
    ]


def test_rows_that_say_less_leave_the_others_theirs() -> None:
    assert told([{"a": 1}, {"a": 1, "b": 2}], [{"a": 1, "b": 2}, {"a": 1, "b": 3}]) == []
    assert told([{"a": 1}, {"b": 2}, {"a": 1, "b": 2}], [{"a": 1, "b": 2}] * 2) != []


def test_as_many_rows_are_paired_as_can_be() -> None:
    chance = random.Random(7)
    for _ in range(200):
        found = [{name: chance.randrange(2) for name in "abc"} for _ in range(chance.randrange(6))]
        expected: list[Mapping[str, Any]] = [
            {name: chance.randrange(2) for name in "abc" if chance.random() < 0.6} for _ in range(chance.randrange(5))
        ]
        best = max(
            sum(row.items() <= other.items() for row, other in zip(expected, order, strict=True) if other)
            for order in itertools.permutations([*found, *[{}] * len(expected)], len(expected))
        )
        lines = told(expected, found)
        unpaired = sum(line.startswith(("missing", "differs")) for line in lines)
        assert unpaired == len(expected) - best
        assert sum(line.startswith(("unexpected", "differs")) for line in lines) == len(found) - best


def test_of_letters_a_part_of_the_reason_is_enough() -> None:
    letters = [{"reason": "the value is not valid UTF-8", "offset": 3}, {"reason": "no JSON", "offset": 4}]
    assert letter_differences([ExpectedRow({"reason": "UTF-8"}), ExpectedRow({"offset": 4})], letters) == []
    assert [each.kind for each in letter_differences([ExpectedRow({"offset": 5})], letters)] == [
        "missing",
        "unexpected",
        "unexpected",
    ]


def test_values_found_have_the_types_of_python() -> None:
    utc = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
    assert typed("2013-01-01T00:00:00.000000Z", "timestamp") == utc
    assert typed([utc, None], TIMES) == [utc, None]
    assert typed([("a", 1.5)], MAP) == {"a": 1.5}
    assert typed({"a": 1, "b": "2013-01-01"}, PAIR) == {"a": 1, "b": dt.date(2013, 1, 1)}
    assert repr([typed(D("1.50"), "decimal(5,2)"), typed(D(5), "double"), typed(5, "long")]) == (
        "[Decimal('1.50'), 5.0, 5]"
    )
    assert jsonable({"a": D("0.1"), "b": D("0.10000000000000000001"), "c": b"\x00"}) == {
        "a": 0.1,
        "b": "0.10000000000000000001",
        "c": "AA==",
    }


@pytest.mark.parametrize("key", [[], ["k"]])
def test_rows_that_all_differ_are_not_compared_each_with_each(monkeypatch: pytest.MonkeyPatch, key: list[str]) -> None:
    compared: list[int] = []
    most_like = case_comparison._most_like

    def counted(row: Mapping[str, Hashable], others: Mapping[int, Mapping[str, Hashable]]) -> int | None:
        compared.append(len(row) * len(others))
        return most_like(row, others)

    monkeypatch.setattr(case_comparison, "_most_like", counted)
    monkeypatch.setattr(case_comparison, "_PAIRS_MAX", 10_000)
    expected = [ExpectedRow({"k": number, "v": number}, number) for number in range(1_000)]
    found = [{"k": number, "v": number + 1_000} for number in range(1_000)]
    differing = differences(expected, found, {"k": "long", "v": "long"}, key)
    assert sum(compared) <= 10_000
    if key:
        assert [(each.kind, each.line) for each in differing] == [("differs", number) for number in range(1_000)]
    else:
        assert differing[0].kind == "differs"
        assert Counter(each.kind for each in differing)["missing"] > 900


def test_rows_that_name_other_columns_have_their_candidates_from_one_look_at_all() -> None:
    expected = [ExpectedRow({"k": number} if number % 2 else {"v": 0, "k": number}) for number in range(3_000)]
    found = [{"k": number, "v": 0} for number in range(3_000)]
    assert differences(expected, found, {"k": "long", "v": "long"}) == []
