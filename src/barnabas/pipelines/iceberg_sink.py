"""Iceberg: a commit names the batch in the summary of its snapshot."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from barnabas.pipelines.compaction import (
    COMMITTED_TARGETS,
    Compacted,
    CompactionFailedError,
    TableFiles,
    files_of,
    small_bytes_of,
)
from barnabas.pipelines.definition import GROUP_PREFIX, IcebergSink
from barnabas.pipelines.lake_marks import RUN, WRITER, TableMarks
from barnabas.pipelines.spark_internals import iceberg_commit_properties, iceberg_history, iceberg_snapshot
from barnabas.pipelines.spark_schema import quoted_name
from barnabas.pipelines.state_directory import spark_path
from barnabas.pipelines.table_urls import name_of, parent_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EXTENSIONS: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_CATALOG: Final = "org.apache.iceberg.spark.SparkCatalog"


def iceberg_settings(sink: IcebergSink) -> dict[str, str]:
    """What a session needs for a table: for one in a directory, or at a URL, a catalog whose tables are where that is.
    A catalog of the user's is in the pipeline's own settings.
    """
    found = {"spark.sql.extensions": _EXTENSIONS}
    warehouse, _ = _place_of(sink)
    if not warehouse:
        return found
    name = f"spark.sql.catalog.{_catalog_of(warehouse)}"
    return {**found, name: _CATALOG, f"{name}.type": "hadoop", f"{name}.warehouse": warehouse}


def _place_of(sink: IcebergSink) -> tuple[str, str]:
    """Where the table is, as Spark takes it, and its name there; empty for one of a catalog."""
    if sink.directory is not None:
        return spark_path(sink.directory.parent), sink.directory.name
    return (parent_of(sink.url), name_of(sink.url)) if sink.url else ("", "")


def _catalog_of(warehouse: str) -> str:
    return f"barnabas_{hashlib.sha256(warehouse.encode()).hexdigest()[:8]}"


_COMMITS_MAX: Final = 100
BATCH: Final = "barnabas.batch"
TOLD: Final = "barnabas.told"


class IcebergTable:
    """A table in a directory, at a URL, or of a catalog."""

    title = "Iceberg"
    provider = "iceberg"
    log_directory = "metadata"

    def __init__(self, sink: IcebergSink) -> None:
        self._has_lock = sink.directory is not None
        warehouse, name = _place_of(sink)
        if warehouse:
            self.name = f"{_catalog_of(warehouse)}.{quoted_name(name)}"
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
        history = iceberg_history(session, self.name, WRITER, 2)
        ours = [
            (summary[WRITER], int(summary[BATCH]))
            for summary in history.summaries
            if summary.get(WRITER, "").startswith(GROUP_PREFIX) and summary.get(BATCH, "").isdecimal()
        ]
        return TableMarks(
            history.table_id,
            dict(ours[:1]),
            bool(ours) or history.is_whole,
            owner=history.properties.get(WRITER, ""),
            run=history.properties.get(RUN, ""),
            is_doubled=len(ours) > 1 and ours[0] == ours[1],
        )

    def take(self, session: SparkSession, writer: str, run: str) -> None:
        """Properties of the table: whose it is, which outlasts its snapshots; and of a table that is no directory, and
        so has no lock, which run has it.
        """
        before = iceberg_history(session, self.name, WRITER, 1).properties
        wanted = {WRITER: writer, **({RUN: run} if not self._has_lock or RUN in before else {})}
        if any(before.get(name) != value for name, value in wanted.items()):
            pairs = ", ".join(f"'{name}' = '{value}'" for name, value in wanted.items())
            session.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ({pairs})")

    def told(self, session: SparkSession, writer: str, batch_id: int) -> str:
        """By the newest snapshot of the writer."""
        for summary in iceberg_history(session, self.name, WRITER, 1).summaries:
            if (summary.get(WRITER), summary.get(BATCH)) == (writer, str(batch_id)):
                return summary.get(TOLD, "")
        return ""

    def append(self, rows: DataFrame, writer: str, batch_id: int, told: str) -> None:
        """Adds rows in one commit."""
        adding = rows.writeTo(self.name)
        for name, value in _summary(writer, batch_id, told).items():
            adding = adding.option(f"snapshot-property.{name}", value)
        adding.append()

    def replace(self, rows: DataFrame, partition_by: Sequence[str], writer: str, batch_id: int, told: str) -> None:
        """Has the rows be all that the table has, with their columns, in one commit; what was before is a snapshot."""
        from pyspark.sql import functions as F  # noqa: N812

        writing = rows.writeTo(self.name).using("iceberg")
        if partition_by:
            writing = writing.partitionedBy(*(F.col(quoted_name(name)) for name in partition_by))
        for name, value in _summary(writer, batch_id, told).items():
            writing = writing.option(f"snapshot-property.{name}", value)
        writing.createOrReplace()

    def version(self, session: SparkSession) -> str:
        """The newest snapshot, as people name it; empty before the first."""
        snapshot = iceberg_snapshot(session, self.name)
        return "" if snapshot is None else f"snapshot {snapshot}"

    def merging(self, session: SparkSession, writer: str, batch_id: int, told: str) -> AbstractContextManager[None]:
        """MERGE has no options: Iceberg has properties of the commits of a thread."""
        return iceberg_commit_properties(session, _summary(writer, batch_id, told))

    def files(self, session: SparkSession, target_bytes: int) -> TableFiles:
        """By the table of its files, which has those of deletions too."""
        files = session.table(f"{self.name}.files").where("content = 0")
        columns = (name for name in ("spec_id", "partition") if name in files.columns)
        rows = files.select("file_size_in_bytes", *columns).toLocalIterator()
        return files_of(((tuple(row[1:]), row[0]) for row in rows), target_bytes)

    def compact(self, session: SparkSession, target_bytes: int) -> Compacted:
        """By its procedure, in commits of some files each, whose snapshots replace files by others."""
        catalog, _, table = self.name.partition(".")
        options = {
            "target-file-size-bytes": target_bytes,
            "min-file-size-bytes": small_bytes_of(target_bytes),
            "max-file-size-bytes": target_bytes * 9 // 5,
            "min-input-files": 2,
            "max-file-group-size-bytes": COMMITTED_TARGETS * target_bytes,
            "partial-progress.enabled": "true",
            "partial-progress.max-commits": _COMMITS_MAX,
        }
        given = ", ".join(f"'{name}', '{value}'" for name, value in options.items())
        named = table.replace("\\", "\\\\").replace("'", "\\'")
        done = session.sql(
            f"CALL {catalog}.system.rewrite_data_files(table => '{named}', options => map({given}))"
        ).collect()[0]
        if done["failed_data_files_count"]:
            raise CompactionFailedError(f"{done['failed_data_files_count']} files were changed by others meanwhile")
        return Compacted(int(done["rewritten_data_files_count"]), int(done["added_data_files_count"]))


def _summary(writer: str, batch_id: int, told: str) -> dict[str, str]:
    return {WRITER: writer, BATCH: str(batch_id), TOLD: told}
