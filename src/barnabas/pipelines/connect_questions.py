"""Questions to a Spark behind a server of Spark Connect, for which other sessions have Java: by what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NO_AGGREGATION: Final = "no streaming aggregations"
_ROWS: Final = 10_000


def refusal_of_output_mode(frame: DataFrame, output_mode: str) -> str | None:
    """Why Spark would not run a streaming frame in an output mode; None when it would.

    It is asked to, writing nowhere: it looks at the plan before it begins. What it begins is ended at once.
    """
    from pyspark.errors import AnalysisException

    try:
        query = frame.writeStream.outputMode(output_mode.lower()).format("noop").start()
    except AnalysisException as error:
        return str(error)
    query.stop()
    return None


def aggregates_a_stream(frame: DataFrame) -> bool:
    """Whether rows of a stream are aggregated: where none are Spark says so, of the mode that needs it."""
    return _NO_AGGREGATION not in (refusal_of_output_mode(frame, "Complete") or "")


def columns_parquet_refuses(frame: DataFrame) -> list[str]:
    """The columns of the frame, with their types, that Spark cannot write to Parquet."""
    fields = frame.schema.fields
    return [f"{field.name} ({field.dataType.simpleString()})" for field in fields if not fits_parquet(field.dataType)]


def fits_parquet(kind: Any) -> bool:
    """Whether Spark can write a type to Parquet, as its ParquetFileFormat says."""
    from pyspark.sql import types

    if isinstance(kind, types.StructType):
        return all(fits_parquet(field.dataType) for field in kind.fields)
    if isinstance(kind, types.ArrayType):
        return fits_parquet(kind.elementType)
    if isinstance(kind, types.MapType):
        return fits_parquet(kind.keyType) and fits_parquet(kind.valueType)
    return not isinstance(kind, types.NullType | types.CalendarIntervalType)


def default_parallelism(session: SparkSession) -> int:
    """Into how many tasks Spark divides a range of numbers."""
    from pyspark.sql import functions as F  # noqa: N812

    return int(session.range(_ROWS).select(F.spark_partition_id()).distinct().count())
