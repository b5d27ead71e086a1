"""What a run through Spark Connect asks by what Spark refuses, beside what Java says in a Spark of its own."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.pipelines import connect_questions
from barnabas.pipelines.spark_internals import (
    aggregates_a_stream,
    columns_parquet_refuses,
    default_parallelism,
    refusal_of_output_mode,
)

QUERIES = {
    "plain": "SELECT * FROM ticks",
    "groups": "SELECT value % 2 AS odd, count(*) AS n FROM ticks GROUP BY value % 2",
    "sessions": "SELECT session_window(timestamp, '1 minute') AS w, count(*) AS n FROM ticks GROUP BY 1",
    "joined": "SELECT a.value FROM ticks a JOIN ticks b ON a.value = b.value AND a.timestamp = b.timestamp",
    "sorted": "SELECT * FROM ticks ORDER BY value",
    "table grouped": "SELECT value FROM ticks JOIN (SELECT id, count(*) FROM range(3) GROUP BY id) ON value = id",
}
TYPES = (
    "INT",
    "DECIMAL(10, 2)",
    "TIMESTAMP_NTZ",
    "BINARY",
    "INTERVAL DAY TO SECOND",
    "INTERVAL YEAR TO MONTH",
    "ARRAY<STRUCT<a: INT>>",
    "MAP<STRING, ARRAY<DATE>>",
    "VARIANT",
)


@pytest.mark.parametrize("name", QUERIES)
def test_output_modes_are_refused_alike(spark: Any, name: str) -> None:
    spark.readStream.format("rate").load().withWatermark("timestamp", "1 minute").createOrReplaceTempView("ticks")
    frame = spark.sql(QUERIES[name])
    for mode in ("Update", "Append"):
        by_java = refusal_of_output_mode(spark, frame, mode)
        by_start = connect_questions.refusal_of_output_mode(frame, mode)
        assert (by_start is None) == (by_java is None), mode
        if by_java is not None and by_start is not None:
            assert ("session window" in by_java) == ("session window" in by_start)
    assert connect_questions.aggregates_a_stream(frame) == aggregates_a_stream(frame)


def test_parquet_takes_the_same_types(spark: Any) -> None:
    columns = [f"CAST(NULL AS {kind}) AS c{number}" for number, kind in enumerate(TYPES)]
    frame = spark.sql(f"SELECT {', '.join(columns)}, NULL AS nothing, make_interval(1) AS a_year, array(NULL) AS nulls")
    found = columns_parquet_refuses(spark, frame)
    assert [each.split()[0] for each in found] == ["nothing", "a_year", "nulls"]
    assert connect_questions.columns_parquet_refuses(frame) == found


def test_as_many_tasks(spark: Any) -> None:
    assert connect_questions.default_parallelism(spark) == default_parallelism(spark)
