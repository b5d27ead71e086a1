"""The few questions to Spark that pyspark has no public way to ask: each one here, each through the Java gateway."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def refusal_of_output_mode(session: SparkSession, frame: DataFrame, output_mode: str) -> str | None:
    """Why Spark would not run a streaming frame in the output mode `Update`, `Append`, ...; None when it would.

    It is the check that Spark makes when a query starts, without starting it.
    """
    from pyspark.errors import AnalysisException

    jvm = session._jvm  # noqa: SLF001
    mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, output_mode)()
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(plan, mode)
    except AnalysisException as error:
        return str(error)
    return None


def aggregates_a_stream(frame: DataFrame) -> bool:
    """Whether rows of a stream are aggregated anywhere in the frame's plan (and not only those of a table)."""
    return any(
        "Aggregate" in node.nodeName() and node.isStreaming()
        for node in _nodes(frame._jdf.queryExecution().analyzed())  # noqa: SLF001
    )


def columns_parquet_refuses(session: SparkSession, frame: DataFrame) -> list[str]:
    """The columns of the frame, with their types, that Spark cannot write to Parquet."""
    jvm = session._jvm  # noqa: SLF001
    parquet = jvm.org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat()
    fields = frame._jdf.schema().fields()  # noqa: SLF001
    return [
        f"{field.name()} ({field.dataType().simpleString()})"
        for field in fields
        if not parquet.supportDataType(field.dataType())
    ]


def observed_in_batch(session: SparkSession, query: str, metric: str) -> int | None:
    """What a running query has counted, by the name of the query and of its metric, which is one number, in the batch
    that it is writing: complete once its rows are written. None where Spark does not tell.
    """
    for running in session.streams.active:
        if running.name == query:
            execution = running._jsq.streamingQuery().lastExecution()  # noqa: SLF001
            found = execution.observedMetrics().get(metric)
            return int(found.get().getLong(0)) if found.isDefined() else None
    return None


def _nodes(plan: Any) -> Iterator[Any]:
    """Java's nodes of a plan, the root first."""
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index))
