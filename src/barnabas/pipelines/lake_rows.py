"""What the rows of a batch are for a table of Delta Lake or Iceberg: its columns, and of each key the newest row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.pipelines.definition import (
    OFFSET_COLUMN,
    PARTITION_COLUMN,
    RECORD_COLUMNS,
    TIMESTAMP_COLUMN,
    KeyedSink,
    Pipeline,
    Query,
)
from barnabas.pipelines.spark_schema import JSON_OPTIONS, quoted_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

AS_RECORDS: Final = frozenset({PARTITION_COLUMN, OFFSET_COLUMN, TIMESTAMP_COLUMN})
"""What `newest_by` has to name, in any order, for the last record of a key: offsets of two partitions say nothing."""

ORDER_COLUMN: Final = "_barnabas_order"
"""Where a row's record stands, of rows that come from a source as they are: decides which row of a key is newest."""
TWO_ROWS: Final = "barnabas-two-rows:"
"""Begins the message of the error of several rows of a key of which nothing says which is newest; the key follows."""

_ROW: Final = "_barnabas_row"
_PLACE: Final = "_barnabas_place"


def needs_order(query: Query) -> bool:
    """Whether a sink of the query keeps one row for each key, and does not say by which columns it is the newest."""
    return any(isinstance(sink, KeyedSink) and sink.key and not sink.rows.newest_by for sink in query.sinks)


def with_order(frame: DataFrame) -> DataFrame:
    """The rows of a source with ORDER_COLUMN behind them."""
    from pyspark.sql import functions as F  # noqa: N812

    place = F.struct(PARTITION_COLUMN, OFFSET_COLUMN, TIMESTAMP_COLUMN)
    return frame.withColumn(ORDER_COLUMN, place)


def without_order(frame: DataFrame) -> DataFrame:
    """The rows without ORDER_COLUMN."""
    return frame.drop(ORDER_COLUMN)


def table_columns(frame: DataFrame, sink: KeyedSink) -> list[str]:
    """The columns that the table has of the frame's: not those that say what becomes of a row (`delete`, and of
    `newest_by` the columns of the record).
    """
    left_out = {ORDER_COLUMN, (sink.rows.delete or "").lower()}
    left_out |= {name.lower() for name in sink.rows.newest_by} & set(RECORD_COLUMNS)
    return [name for name in frame.columns if name.lower() not in left_out]


def refuse_missing_columns(pipeline: Pipeline, sink: KeyedSink, frame: DataFrame) -> None:
    """Raises PipelineError where the frame lacks a column that the sink names, or `delete` is no BOOLEAN."""
    view = sink.from_view
    names = {name.lower() for name in frame.columns}
    for key, columns, line in (
        ("delete", (sink.rows.delete,) if sink.rows.delete else (), sink.rows.delete_line),
        ("newest_by", sink.rows.newest_by, sink.rows.newest_line),
        ("partition_by", sink.rows.partition_by, sink.rows.partition_line),
    ):
        for column in columns:
            if column.lower() not in names:
                have = ", ".join(frame.columns)
                raise pipeline.error(f"{view} has no column {column} for {key}; it has {have}", line)
    if sink.rows.delete is not None:
        kind = {name.lower(): kind for name, kind in frame.dtypes}[sink.rows.delete.lower()]
        if kind != "boolean":
            message = f"delete: {sink.rows.delete} is {kind.upper()}, and must be BOOLEAN"
            raise pipeline.error(f"{message}: make it so in a step", sink.rows.delete_line)


def newest_of_keys(frame: DataFrame, sink: KeyedSink) -> DataFrame:
    """Of each key one row, without ORDER_COLUMN: the greatest `newest_by`, or else, and where that is AS_RECORDS, the
    last of its records.

    The query fails at a key with several rows, not all alike, where neither is known.
    """
    from pyspark.sql import functions as F  # noqa: N812

    if {name.lower() for name in sink.rows.newest_by} == AS_RECORDS:
        frame = with_order(frame)
    columns = [quoted_name(name) for name in frame.columns if name != ORDER_COLUMN]
    names = {name.lower(): name for name in frame.columns}
    keys = [quoted_name(names[name.lower()]) for name in sink.key]
    row = F.struct(*columns)
    # Under names of their own: a key may be a column that is told by its row, too.
    by = [F.col(key).alias(f"{_PLACE}_{number}") for number, key in enumerate(keys)]
    if sink.rows.newest_by and ORDER_COLUMN not in frame.columns:
        order = F.struct(*(quoted_name(names[name.lower()]) for name in sink.rows.newest_by))
        found = frame.groupBy(*by).agg(F.max_by(row, order).alias(_ROW))
    elif ORDER_COLUMN in frame.columns:
        found = _last_of_records(frame, by, row)
    else:
        text = F.to_json(row, JSON_OPTIONS)
        are_alike = F.min(text) == F.max(text)
        found = frame.groupBy(*by).agg(
            F.first(row).alias(_ROW), F.when(are_alike, F.lit(True)).otherwise(F.lit(False)).alias(_PLACE)
        )
        keys_of_row = F.to_json(F.struct(*(F.col(f"{_ROW}.{key}") for key in keys)), JSON_OPTIONS)
        refused = F.raise_error(F.concat(F.lit(TWO_ROWS), keys_of_row)).cast("boolean")
        found = found.where(F.when(F.col(_PLACE), F.lit(True)).otherwise(refused))
    return found.select(f"{_ROW}.*")


def _last_of_records(frame: DataFrame, by: list[Column], row: Column) -> DataFrame:
    """Within a partition the record of the highest offset; of a key in several partitions (their number was raised)
    that of the newest timestamp.
    """
    from pyspark.sql import functions as F  # noqa: N812

    partition = F.col(f"{ORDER_COLUMN}.{PARTITION_COLUMN}").alias(_PLACE)
    kept = F.struct(row.alias("row"), F.col(ORDER_COLUMN).alias("order"))
    in_partition = frame.groupBy(*by, partition).agg(
        F.max_by(kept, F.col(f"{ORDER_COLUMN}.{OFFSET_COLUMN}")).alias(_ROW)
    )
    time = F.struct(f"{_ROW}.order.{TIMESTAMP_COLUMN}", f"{_ROW}.order.{PARTITION_COLUMN}")
    keys = [f"{_PLACE}_{number}" for number in range(len(by))]
    return in_partition.groupBy(*keys).agg(F.max_by(F.col(f"{_ROW}.row"), time).alias(_ROW))
