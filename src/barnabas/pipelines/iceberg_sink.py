"""Iceberg: a commit names the batch in the summary of its snapshot."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from barnabas.pipelines.definition import GROUP_PREFIX, IcebergSink
from barnabas.pipelines.lake_marks import TableMarks
from barnabas.pipelines.spark_internals import iceberg_commit_properties, iceberg_summaries
from barnabas.pipelines.spark_schema import quoted_name
from barnabas.pipelines.state_directory import spark_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EXTENSIONS: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_CATALOG: Final = "org.apache.iceberg.spark.SparkCatalog"


def iceberg_settings(sink: IcebergSink) -> dict[str, str]:
    """What a session needs for a table: for one that is a directory a catalog whose tables are where that is. A catalog
    of the user's is in the pipeline's own settings.
    """
    found = {"spark.sql.extensions": _EXTENSIONS}
    if sink.directory is None:
        return found
    name = f"spark.sql.catalog.{_catalog_of(sink.directory)}"
    warehouse = spark_path(sink.directory.parent)
    return {**found, name: _CATALOG, f"{name}.type": "hadoop", f"{name}.warehouse": warehouse}


def _catalog_of(directory: Path) -> str:
    return f"barnabas_{hashlib.sha256(str(directory.parent).encode()).hexdigest()[:8]}"


WRITER: Final = "barnabas.writer"
BATCH: Final = "barnabas.batch"
TOLD: Final = "barnabas.told"


class IcebergTable:
    """A table in a directory, or of a catalog."""

    title = "Iceberg"
    provider = "iceberg"
    log_directory = "metadata"

    def __init__(self, sink: IcebergSink) -> None:
        if sink.directory is not None:
            self.name = f"{_catalog_of(sink.directory)}.{quoted_name(sink.directory.name)}"
        else:
            self.name = ".".join(quoted_name(part) for part in sink.table.split("."))

    def refused_names(self, names: Sequence[str]) -> list[str]:  # noqa: ARG002
        """Iceberg takes every name."""
        return []

    def exists(self, session: SparkSession) -> bool:
        """Whether the catalog has it."""
        return bool(session.catalog.tableExists(self.name))

    def marks(self, session: SparkSession) -> TableMarks:
        """What the newest snapshot says that a pipeline has made; compactions and the like say nothing."""
        table_id, summaries, is_whole = iceberg_summaries(session, self.name, WRITER)
        for summary in summaries:
            writer = summary.get(WRITER, "")
            if writer.startswith(GROUP_PREFIX) and summary.get(BATCH, "").isdecimal():
                return TableMarks(table_id, {writer: int(summary[BATCH])}, is_whole=True)
        return TableMarks(table_id, {}, is_whole)

    def append(self, rows: DataFrame, writer: str, batch_id: int, told: str) -> None:
        """Adds rows in one commit."""
        adding = rows.writeTo(self.name)
        for name, value in _summary(writer, batch_id, told).items():
            adding = adding.option(f"snapshot-property.{name}", value)
        adding.append()

    def merging(self, session: SparkSession, writer: str, batch_id: int, told: str) -> AbstractContextManager[None]:
        """MERGE has no options: Iceberg has properties of the commits of a thread."""
        return iceberg_commit_properties(session, _summary(writer, batch_id, told))


def _summary(writer: str, batch_id: int, told: str) -> dict[str, str]:
    return {WRITER: writer, BATCH: str(batch_id), TOLD: told}
