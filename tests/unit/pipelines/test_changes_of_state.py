"""Changes after which Spark would go on without a word, with the state of something else: each is refused by its text.

What Spark keeps it knows by its place and its type: `avg(b)` takes over what `avg(a)` has left.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from barnabas.pipelines.definition import Pipeline
from barnabas.pipelines.definition_changes import Changes
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.state_definition import changes_since, definition_of

SCHEMA = "id INT, a INT, b INT, s STRUCT<x: INT, y: INT>, time TIMESTAMP"
SOURCES = """\
name: changing
sources:
  flights: {topic: flights, schema: "SCHEMA"}
  planes: {topic: planes, read: table, schema: "SCHEMA"}
  landings: {topic: landings, schema: "id INT, at TIMESTAMP"}
steps:
"""
GROUPS = "SELECT id, {} AS n FROM flights GROUP BY id"
JOINED = (
    'timed, sql: "SELECT id, {} FROM flights", watermark: {{column: time, delay: 1 hour}}',
    'landed, sql: "SELECT id, at FROM landings", watermark: {{column: at, delay: 1 hour}}',
    'last, sql: "SELECT timed.id, timed.a, timed.b FROM timed JOIN landed ON timed.id = landed.id AND at = time"',
)


def pipeline_of(directory: Path, steps: Sequence[str], schema: str = SCHEMA) -> Pipeline:
    """With steps as `name, key: value`, or the SQL of the last one alone, which is written."""
    path = directory / "changing.yaml"
    whole = [step if step.split(",")[0].isidentifier() else f'last, sql: "{step}"' for step in steps]
    lines = "".join(f"  - {{name: {step}}}\n" for step in whole)
    path.write_text(f"{SOURCES.replace('SCHEMA', schema)}{lines}sinks:\n  - {{parquet: out, from: last}}\n")
    return read_pipeline(path)


def changes(
    directory: Path, before: Sequence[str], now: Sequence[str], schemas: tuple[str, str] = (SCHEMA, SCHEMA)
) -> Changes:
    state = definition_of(pipeline_of(directory, before, schemas[0]))
    return changes_since(pipeline_of(directory, now, schemas[1]), state)


@pytest.mark.parametrize(
    "function",
    [
        "mean({})",
        "try_sum({})",
        "try_avg({})",
        "std({})",
        "some({} > 1)",
        "every({} > 1)",
        "any({} > 1)",
        "histogram_numeric({}, 3)",
        "first({}) IGNORE NULLS",
        "percentile_cont(0.5) WITHIN GROUP (ORDER BY {})",
        "sum({}) FILTER (WHERE id > 1)",
        "sum(1) FILTER (WHERE {} > 1)",
        "count_min_sketch({}, 0.5D, 0.5D, 1)",
    ],
)
def test_every_function_over_groups_is_known_for_one(tmp_path: Path, function: str) -> None:
    for query in (GROUPS, "SELECT {} AS n FROM flights"):
        before, now = query.format(function.format("a")), query.format(function.format("b"))
        refused = changes(tmp_path, [before], [now]).refused
        assert refused is not None
        assert refused[0].startswith("step last was changed (without ")


def test_functions_that_other_dialects_take_for_each_other_are_told_apart(tmp_path: Path) -> None:
    both = (GROUPS.format(f"percentile_{kind}(0.5) WITHIN GROUP (ORDER BY a)") for kind in ("cont", "disc"))
    assert changes(tmp_path, [next(both)], [next(both)]).refused is not None


def test_functions_over_windows_and_comparisons_with_queries_put_no_rows_together(tmp_path: Path) -> None:
    for item in ("sum(a) OVER (PARTITION BY id)", "first(a) IGNORE NULLS OVER (PARTITION BY id)", "a = ANY (SELECT 1)"):
        before, now = (f"SELECT {item} AS n, {other} AS x FROM flights" for other in ("a", "b"))
        assert changes(tmp_path, [before], [now]).refused is None


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        (
            ["SELECT a + 1 AS k, count(*) AS n FROM flights GROUP BY k"],
            ["SELECT b + 1 AS k, count(*) AS n FROM flights GROUP BY k"],
            "column k, by which it groups",
        ),
        (
            ["SELECT a, count(*) AS n FROM flights GROUP BY 1"],
            ["SELECT b, count(*) AS n FROM flights GROUP BY 1"],
            "column 1, by which it groups",
        ),
        (
            ["SELECT a, count(*) AS n FROM flights GROUP BY ALL"],
            ["SELECT b, count(*) AS n FROM flights GROUP BY ALL"],
            "column all, by which it groups",
        ),
        (
            ["SELECT id, a + 1 AS q, sum(q) AS n FROM flights GROUP BY id, a"],
            ["SELECT id, a + 2 AS q, sum(q) AS n FROM flights GROUP BY id, a"],
            "column q, by which it groups",
        ),
        (
            ["SELECT id, a + 1 AS q, q * 2 AS r, sum(r) AS n FROM flights GROUP BY id, a"],
            ["SELECT id, a + 2 AS q, q * 2 AS r, sum(r) AS n FROM flights GROUP BY id, a"],
            "column q, by which it groups",
        ),
        (
            ["first, sql: SELECT a FROM flights", "SELECT a + 1 AS k, count(*) AS n FROM first GROUP BY k"],
            ['first, sql: "SELECT a, b AS k FROM flights"', "SELECT a + 1 AS k, count(*) AS n FROM first GROUP BY k"],
            "column k was added, a name that is grouped by",
        ),
        (
            ["first, sql: SELECT a + 1 AS x FROM flights", "SELECT DISTINCT x FROM first"],
            ["first, sql: SELECT a + 2 AS x FROM flights", "SELECT DISTINCT x FROM first"],
            "column x",
        ),
        (
            ['first, sql: "SELECT a, b FROM flights"', "SELECT DISTINCT * FROM first"],
            ['first, sql: "SELECT b, a FROM flights"', "SELECT DISTINCT * FROM first"],
            "other columns, and all of them are taken",
        ),
        (
            ['first, sql: "SELECT a, b FROM flights"', "SELECT collect_list(struct(*)) AS n FROM first"],
            ['first, sql: "SELECT b, a FROM flights"', "SELECT collect_list(struct(*)) AS n FROM first"],
            "other columns, and all of them are taken",
        ),
        (
            [
                'first, sql: "SELECT id + 1 AS id, time FROM flights"',
                "last, sql: SELECT * FROM first, watermark: {column: time, delay: 1 day}, deduplicate: id",
            ],
            [
                'first, sql: "SELECT id + 2 AS id, time FROM flights"',
                "last, sql: SELECT * FROM first, watermark: {column: time, delay: 1 day}, deduplicate: id",
            ],
            "other columns, and all of them are taken",
        ),
        (
            ['sums, sql: "SELECT id, sum(a) AS x, sum(b) AS y FROM flights GROUP BY id"', "SELECT id, x FROM sums"],
            ['sums, sql: "SELECT id, sum(a) AS y, sum(b) AS x FROM flights GROUP BY id"', "SELECT id, x FROM sums"],
            "column x",
        ),
        (
            ["SELECT id, x FROM (SELECT id, sum(a) AS x, sum(b) AS y FROM flights GROUP BY id)"],
            ["SELECT id, y FROM (SELECT id, sum(a) AS x, sum(b) AS y FROM flights GROUP BY id)"],
            "uses other columns: x, y",
        ),
        (
            [f"{GROUPS.format('sum(a)')} HAVING max(b) > 1"],
            [GROUPS.format("sum(a)")],
            "another function in HAVING",
        ),
        (["SELECT a FROM flights"], ["SELECT count(a) AS a FROM flights"], "with COUNT(a)"),
        (["SELECT a FROM flights"], ["SELECT mean(a) AS a FROM flights"], "with MEAN(a)"),
    ],
)
def test_what_would_take_over_the_state_of_something_else_is_refused(
    tmp_path: Path, before: list[str], now: list[str], told: str
) -> None:
    refused = changes(tmp_path, before, now).refused
    assert refused is not None
    assert f"was changed ({told})" in refused[0]


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (
            ['sums, sql: "SELECT id, sum(a) AS x, sum(b) AS y FROM flights GROUP BY id"', "SELECT id, x FROM sums"],
            ['sums, sql: "SELECT id, sum(a) / 2 AS x, sum(b) AS y FROM flights GROUP BY id"', "SELECT id, x FROM sums"],
        ),
        (
            ["SELECT id, n FROM (SELECT id, sum(a) AS n FROM flights GROUP BY id)"],
            ["SELECT id, n / 2 AS n FROM (SELECT id, sum(a) AS n FROM flights GROUP BY id)"],
        ),
        (
            ['first, sql: "SELECT a, b FROM flights"', "SELECT DISTINCT a FROM first"],
            ['first, sql: "SELECT a, b, id FROM flights"', "SELECT DISTINCT a FROM first"],
        ),
        (
            ['first, sql: "SELECT a, b FROM flights"', "SELECT DISTINCT * FROM first"],
            ['first, sql: "SELECT a, b FROM flights WHERE id > 1"', "SELECT DISTINCT * FROM first"],
        ),
        (
            ["SELECT id, sum(a) AS x, sum(b) AS y FROM flights GROUP BY id"],
            ["SELECT id, sum(a) AS y, sum(b) AS x FROM flights GROUP BY id"],
        ),
    ],
)
def test_what_is_made_of_the_same_state_goes_on(tmp_path: Path, before: list[str], now: list[str]) -> None:
    found = changes(tmp_path, before, now)
    assert found.refused is None
    assert found.taken


@pytest.mark.parametrize(
    ("steps", "schema", "told"),
    [
        ([each.format("a, b, time") for each in JOINED], "id INT, b INT, a INT, time TIMESTAMP", "order of columns"),
        (["SELECT DISTINCT * FROM flights"], "id INT, b INT, a INT, time TIMESTAMP", "order of columns"),
        (["SELECT DISTINCT * FROM flights"], "id INT, a INT, c INT, time TIMESTAMP", "columns"),
        (
            ["SELECT DISTINCT planes.* FROM landings JOIN planes ON planes.id = landings.id"],
            "id INT, b INT, a INT, time TIMESTAMP",
            "order of columns",
        ),
        (
            ["SELECT a + 1 AS k, count(*) AS n FROM flights GROUP BY k"],
            f"{SCHEMA}, k INT",
            "column k, a name that is grouped by",
        ),
        ([GROUPS.format("max(s)")], SCHEMA.replace("x: INT, y: INT", "y: INT, x: INT"), "a STRUCT"),
        ([GROUPS.format("sum(a)")], f"{SCHEMA}, k INT", None),
        ([GROUPS.format("sum(a)")], "id INT, b INT, a INT, time TIMESTAMP", None),
        (["SELECT * FROM flights"], "id INT, b INT, a INT, time TIMESTAMP", None),
        ([each.format("a, b, time") for each in JOINED], f"{SCHEMA}, more INT", None),
        ([each.format("*, 1 AS one") for each in JOINED], f"{SCHEMA}, more INT", "columns"),
    ],
)
def test_a_schema_may_change_where_spark_does_not_know_columns_by_their_places(
    tmp_path: Path, steps: list[str], schema: str, told: str | None
) -> None:
    refused = changes(tmp_path, steps, steps, (SCHEMA, schema)).refused
    if told is None:
        assert refused is None
    else:
        assert refused is not None
        assert refused[0].startswith("the schema of source ")
        assert f" was changed ({told}), and Spark keeps columns by their places for last" in refused[0]
