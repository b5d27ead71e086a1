"""A topic as a table, read whole by one batch query: what tables that are read on must be equal to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.pipelines.sources import newest_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from barnabas.pipelines.definition import Source
    from barnabas.pipelines.sources import KafkaOptions


def table_frame(session: SparkSession, source: Source, kafka: KafkaOptions) -> DataFrame:
    """The rows of the topic as it is now."""
    options = {**kafka.reading, "subscribe": source.topic, "startingOffsets": "earliest", "endingOffsets": "latest"}
    return newest_rows(session.read.format("kafka").options(**options).load(), source)
