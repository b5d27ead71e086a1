"""What sqlglot, in Spark's dialect, finds out about a step's query."""

from __future__ import annotations

import pytest

from barnabas.pipelines.sql_steps import SQL_CHARACTERS_MAX, SqlError, parse_query

MEND = "; correct the query here or just before"
WRITE = "; what is to be written belongs under sinks"
SPARK_QUERIES = [
    "SELECT window.start AS s, count(*) AS n FROM x GROUP BY window(time, '1 hour', '5 minutes'), carrier",
    "SELECT window_time(window) AS t FROM x GROUP BY window(time, '1 day', '1 day', '5 hours')",
    "SELECT sum(a) OVER w AS s FROM x WINDOW w AS (PARTITION BY b ORDER BY c)",
    "SELECT session_window.end AS e FROM x GROUP BY session_window(time, '5 minutes'), k",
    "SELECT time + minute * INTERVAL '1' MINUTE AS t, time - INTERVAL 2 HOURS AS u FROM x",
    "SELECT /*+ BROADCAST(x) */ x.* EXCEPT (b) FROM x",
    "SELECT transform(a, e -> e + 1) AS t, aggregate(a, 0, (s, e) -> s + e) AS g FROM x",
    "SELECT from_json(v, 'a INT, b STRING').a AS a, named_struct('a', 1).a AS b FROM x",
    "SELECT count(*) FILTER (WHERE a > 1) AS n, percentile_approx(a, 0.5) AS p FROM x",
    "SELECT a FROM x LATERAL VIEW OUTER explode(list) t AS e",
    "SELECT a FROM x WHERE a RLIKE '^x' AND a <=> b AND c ILIKE 'y%' AND d div 2 = 1",
    "SELECT r'\\d+' AS pattern, 1L AS one, 2.5D AS two, \"text\" AS three FROM x",
    "SELECT CAST(a AS STRUCT<b: INT, c: ARRAY<STRING>>) AS s, a::DOUBLE AS d FROM x",
    "SELECT date, timestamp, key, value, window, start, end, interval FROM x",
    "SELECT a, count(*) AS n FROM x GROUP BY ALL",
    "SELECT a, b, count(*) AS n FROM x GROUP BY GROUPING SETS ((a), (a, b))",
    "SELECT timestampadd(HOUR, 1, t) AS t, extract(HOUR FROM t) AS h, make_timestamp(2013, 1, 2, 3, 4, 5) AS m FROM x",
    "SELECT max_by(a, b) AS a, first(c, true) AS c, any_value(d) AS d FROM x",
    "FROM x SELECT a",
    "FROM x |> WHERE a > 1 |> SELECT a",
    "(SELECT a FROM x) UNION ALL (SELECT a FROM x)",
    "SELECT a FROM x; -- done; really",
]


@pytest.mark.parametrize("sql", SPARK_QUERIES)
def test_takes_what_spark_takes(sql: str) -> None:
    assert [view.name for view in parse_query(sql).reads] == ["x"]


@pytest.mark.parametrize(
    ("sql", "reads"),
    [
        ("SELECT * FROM b JOIN a USING (i) LEFT JOIN c ON c.i = a.i", ["b", "a", "c"]),
        ("SELECT * FROM x AS y JOIN X AS z ON y.i = z.i", ["x"]),
        ("WITH q AS (SELECT * FROM x), r AS (SELECT * FROM q) SELECT * FROM r, y", ["x", "y"]),
        ("WITH x AS (SELECT * FROM x) SELECT * FROM x", ["x"]),
        ("SELECT (SELECT max(a) FROM y) AS m FROM x WHERE b IN (SELECT c FROM z)", ["y", "x", "z"]),
        ("SELECT * FROM x, LATERAL (SELECT * FROM y WHERE y.i = x.i)", ["x", "y"]),
        ("SELECT * FROM `odd name`", ["odd name"]),
        ("SELECT * FROM range(10), VALUES (1) AS v(a)", []),
        ("VALUES (1, 'a') AS t(x, y)", []),
    ],
)
def test_finds_the_views_behind_every_from(sql: str, reads: list[str]) -> None:
    query = parse_query(sql)
    assert [view.name for view in query.reads] == reads
    for view in query.reads:
        assert sql[view.offset :].lstrip("`").startswith(view.name)


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT a, b AS c, x.d, e.f.g, `h i` FROM x", ("a", "c", "d", "g", "h i")),
        ("SELECT a FROM x UNION SELECT b FROM x", ("a",)),
        ("WITH q AS (SELECT 1 AS z) SELECT z FROM q", ("z",)),
        ("SELECT * FROM x", None),
        ("SELECT x.*, b FROM x", None),
        ("SELECT a, count(*) FROM x GROUP BY a", None),
        ("SELECT explode(m) AS (k, v) FROM x", None),
        ("SELECT inline(s) FROM x", None),
        ("FROM x |> EXTEND a + 1 AS b", None),
    ],
)
def test_tells_the_columns_only_where_they_are_plain(sql: str, columns: tuple[str, ...] | None) -> None:
    assert parse_query(sql).columns == columns


@pytest.mark.parametrize(
    ("sql", "aggregates"),
    [
        ("SELECT a FROM x", False),
        ("SELECT sum(a) OVER (PARTITION BY b) AS s FROM x", False),
        ("SELECT sum(a) FILTER (WHERE c) OVER (PARTITION BY b) AS s FROM x", False),
        ("SELECT count(*) AS n FROM x", True),
        ("SELECT count(*) FILTER (WHERE a) AS n FROM x", True),
        ("SELECT a FROM x GROUP BY a", True),
        ("SELECT DISTINCT a FROM x", True),
        ("SELECT b FROM (SELECT max(a) AS b FROM x)", True),
    ],
)
def test_knows_whether_rows_are_put_together(sql: str, aggregates: bool) -> None:
    assert parse_query(sql).aggregates is aggregates


@pytest.mark.parametrize(
    ("sql", "message", "near"),
    [
        ("SELECT a\nFROM x\nWHERE", f'SQL error near "WHERE": something is missing{MEND}', "WHERE"),
        ("SELECT f(a FROM x", f'SQL error near "FROM": ")" is expected{MEND}', "FROM"),
        ("SELECT 'ž', a\nFRM x y z", f'SQL error near "x": the SQL cannot be parsed from here on{MEND}', "x y"),
        ("SELECT a FROM x )", f'SQL error near ")": the SQL cannot be parsed from here on{MEND}', ")"),
        ("SELECT 'one' AS a,\n 'two AS b\nFROM x", "' is not closed: add '", "'two"),
        ("SELECT -- it's\n `a FROM x", "` is not closed: add `", "`a"),
        ('SELECT "a\\" FROM x', '" is not closed: add "', '"a'),
        ("SELECT a /* b\n FROM x", "/* is not closed: add */", "/*"),
        ("SELECT 1;\nSELECT 2", "a second statement begins here: make each query its own step", "SELECT 2"),
        (
            "SELCT a FROM x",
            'the SQL begins with "SELCT", but a step is one query (SELECT); did you mean "SELECT"?',
            "SELCT",
        ),
        ("DROP TABLE x", f'the SQL begins with "DROP", but a step is one query (SELECT){WRITE}', "DROP"),
        (
            "INSERT INTO y SELECT * FROM x",
            f'the SQL begins with "INSERT", but a step is one query (SELECT){WRITE}',
            "INSERT",
        ),
        (
            "CREATE VIEW y AS SELECT 1",
            f'the SQL begins with "CREATE", but a step is one query (SELECT){WRITE}',
            "CREATE",
        ),
        (
            "WITH q AS (SELECT 1) INSERT INTO y SELECT * FROM q",
            f"this is INSERT, but a step is one query{WRITE}",
            "WITH",
        ),
        ("SELECT a INTO y FROM x", f"this is SELECT INTO, but a step is one query{WRITE}", "SELECT"),
        (
            "SELECT *\nFROM x JOIN db.y",
            'the query reads "db.y", but it can read the sources and steps of this file only',
            "y",
        ),
        (
            "SELECT * FROM parquet.`/data`",
            'the query reads "parquet./data", but it can read the sources and steps of this file only',
            "`/data",
        ),
        ("-- nothing", "there is no SQL here: write a query, SELECT ... FROM ...", "--"),
        (";", "there is no SQL here: write a query, SELECT ... FROM ...", ";"),
    ],
)
def test_refuses_what_is_not_one_query_at_the_place_where_it_is_not(sql: str, message: str, near: str) -> None:
    with pytest.raises(SqlError) as caught:
        parse_query(sql)
    assert str(caught.value) == message
    # sqlglot knows the last character of a word, so the place is one within it.
    begin = sql.rindex(near) if near in {"WHERE", ")"} else sql.index(near)
    assert begin <= caught.value.offset <= begin + len(near)


def test_bounds_length_and_depth() -> None:
    with pytest.raises(SqlError, match="the SQL has more than 100000 characters: split it into several steps"):
        parse_query("SELECT 1" + " " * SQL_CHARACTERS_MAX)
    with pytest.raises(SqlError, match=r"nested too deep|makes no sense"):
        parse_query("SELECT " + "(" * 5_000 + "1" + ")" * 5_000)
