"""What our first reading of a step's SQL refuses, held against Spark's own parser and its own examples."""

from __future__ import annotations

import re
from typing import Any

import pytest

from barnabas.pipelines.sql_steps import SqlError, parse_query

pytestmark = pytest.mark.timeout(900)

EXAMPLES_MIN = 900
AGGREGATES_MIN = 60
NOT_UNDERSTOOD = re.compile(r"\bX '|>>>")
"""What sqlglot cannot read though Spark can, and docs/pipelines.md says so: it has other spellings."""


def is_query_to_spark(spark: Any, sql: str) -> bool:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        spark._jsparkSession.sessionState().sqlParser().parsePlan(sql)
    except (PySparkException, Py4JJavaError):
        return False
    return True


def examples(spark: Any) -> list[str]:
    """The queries in the descriptions of Spark's functions."""
    functions = spark._jvm.org.apache.spark.sql.api.python.PythonSQLUtils.listBuiltinFunctionInfos()
    return [query for function in functions for query in examples_of(function)]


def examples_of(function: Any) -> list[str]:
    return re.findall(r"> ((?:SELECT|WITH|FROM)[^;]*);", str(function.getExamples() or ""))


def test_every_example_of_a_function_that_spark_can_read_is_read(spark: Any) -> None:
    found = [query for query in examples(spark) if is_query_to_spark(spark, query)]
    assert len(found) > EXAMPLES_MIN
    refused = []
    for query in found:
        try:
            parse_query(query)
        except SqlError as error:
            refused.append(f"{query}: {error}")
    assert [line for line in refused if not NOT_UNDERSTOOD.search(line)] == []


def test_every_function_over_groups_that_spark_has_is_known_for_one(spark: Any) -> None:
    """Else a change of it would go on with what Spark has kept for another."""
    functions = spark._jvm.org.apache.spark.sql.api.python.PythonSQLUtils.listBuiltinFunctionInfos()
    found = {function.getName(): examples_of(function) for function in functions if function.getGroup() == "agg_funcs"}
    assert len(found) > AGGREGATES_MIN
    queries = [query for each in found.values() for query in each if not NOT_UNDERSTOOD.search(query)]
    assert [query for query in queries if not parse_query(query).aggregates] == []


@pytest.mark.parametrize("sql", ["SELECT 8 >> 1 AS a", "SELECT shiftrightunsigned(8, 1) AS a", "SELECT X'1F' AS a"])
def test_there_are_other_spellings(spark: Any, sql: str) -> None:
    assert is_query_to_spark(spark, sql)
    assert parse_query(sql).columns == ("a",)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a FRM x y",
        "SELECT f(a FROM x",
        "SELECT a FROM x WHERE a =",
        "SELECT 'a FROM x",
        "SELECT 1; SELECT 2",
        "SELECT count(*) AS n FROM x GROUP BY a AS b",
    ],
)
def test_what_is_refused_is_refused_by_spark_too(spark: Any, sql: str) -> None:
    assert not is_query_to_spark(spark, sql)
    with pytest.raises(SqlError):
        parse_query(sql)
