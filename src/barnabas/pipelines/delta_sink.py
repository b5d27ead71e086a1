"""Delta Lake: a commit names the batch by the table's own transaction ids, which Delta itself writes once (`txn`)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from barnabas.pipelines.compaction import (
    COMMITTED_TARGETS,
    Compacted,
    TableFiles,
    files_of,
    settings_for,
    small_bytes_of,
)
from barnabas.pipelines.definition import GROUP_PREFIX, DeltaSink
from barnabas.pipelines.lake_marks import RUN, WRITER, TableMarks
from barnabas.pipelines.spark_internals import delta_files, delta_snapshot, is_delta_table
from barnabas.pipelines.state_directory import spark_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELTA_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Of 50 partitions, which is Delta's default for a cluster, each would cost a task with each commit.
    "spark.databricks.delta.snapshotPartitions": "2",
    # A MERGE reads its rows twice, and would keep them for that; they are kept already (`lake_sink`).
    "spark.databricks.delta.merge.materializeSource": "none",
}
"""What a session needs for Delta tables."""

_COMMITS: Final = f"{'[0-9]' * 20}.json"
_COMMITS_MAX: Final = 1_000
_COMMITS_FIRST: Final = 20
_WRITER: Final = "spark.databricks.delta.write.txnAppId"
_BATCH: Final = "spark.databricks.delta.write.txnVersion"
_TOLD: Final = "spark.databricks.delta.commitInfo.userMetadata"
_OPTIMIZE: Final = "spark.databricks.delta.optimize"
# Delta allows them only with its column mapping, which older readers do not know.
_NOT_IN_NAMES: Final = frozenset(" ,;{}()\n\t=")


class DeltaTable:
    """A table in a directory, or at a URL."""

    title = "Delta"
    provider = "delta"
    log_directory = "_delta_log"

    def __init__(self, sink: DeltaSink) -> None:
        self._directory = sink.directory
        self._path = sink.url if sink.directory is None else spark_path(sink.directory)

    @property
    def name(self) -> str:
        """The table by its path."""
        return f"delta.`{self._path.replace('`', '``')}`"

    def refused_names(self, names: Sequence[str]) -> list[str]:
        """Names with blanks and the like."""
        return [name for name in names if _NOT_IN_NAMES.intersection(name)]

    def exists(self, session: SparkSession) -> bool:
        """Whether there is a log."""
        return is_delta_table(session, self._path)

    def marks(self, session: SparkSession) -> TableMarks:
        """The transaction ids of pipelines; those of others who write the table are theirs. Ids stay for ever: of a
        table that says whose it is, those of who had it before are none.
        """
        found = delta_snapshot(session, self._path)
        owner = found.properties.get(WRITER, "")
        ours = {
            name: version
            for name, version in found.transactions.items()
            if (name == owner if owner else name.startswith(GROUP_PREFIX))
        }
        return TableMarks(found.table_id, ours, owner=owner, run=found.properties.get(RUN, ""))

    def take(self, session: SparkSession, writer: str, run: str) -> None:
        """Properties of a table that has no lock. Delta refuses what another run commits at that moment: its metadata
        are others by then. A directory has a lock, and transaction ids say whose it is, unless it has them already.
        """
        before = delta_snapshot(session, self._path).properties
        wanted = {WRITER: writer, RUN: run}
        self._set(session, {name: wanted[name] for name in wanted if self._directory is None or name in before})

    def told(self, session: SparkSession, writer: str, batch_id: int) -> str:
        """The metadata of the commit, by the newest commits of the log, each of which is a file."""
        if self._directory is None:
            return self._told_by_history(session, writer, batch_id)
        log = self._directory / self.log_directory
        for path in sorted(log.glob(_COMMITS), reverse=True)[:_COMMITS_MAX]:
            told = _told_in(path)
            if told.get("writer") == writer and told.get("batch") == batch_id:
                return json.dumps(told)
        return ""

    def append(self, rows: DataFrame, writer: str, batch_id: int, told: str) -> None:
        """Adds rows in one commit."""
        options = {"txnAppId": writer, "txnVersion": str(batch_id), "userMetadata": told}
        rows.write.format("delta").mode("append").options(**options).save(self._path)

    def replace(self, rows: DataFrame, partition_by: Sequence[str], writer: str, batch_id: int, told: str) -> None:
        """Has the rows be all that the table has, with their columns, in one commit; what was before is a version.

        Then, and again where it was cut short, the table says whose it is: until it does it is the former writer's.
        """
        options = {"txnAppId": writer, "txnVersion": str(batch_id), "userMetadata": told, "overwriteSchema": "true"}
        writing = rows.write.format("delta").mode("overwrite").options(**options)
        (writing.partitionBy(*partition_by) if partition_by else writing).save(self._path)
        self._set(rows.sparkSession, {WRITER: writer})

    def version(self, session: SparkSession) -> str:
        """The newest version, as people name it."""
        return f"version {delta_snapshot(session, self._path).version}"

    def merging(self, session: SparkSession, writer: str, batch_id: int, told: str) -> AbstractContextManager[None]:
        """MERGE has no options: it reads settings of the session, which is the query's own."""
        return _settings(session, {_WRITER: writer, _BATCH: str(batch_id), _TOLD: told})

    def files(self, session: SparkSession, target_bytes: int) -> TableFiles:
        """By the log."""
        rows = delta_files(session, self._path).select("partitionValues", "size").toLocalIterator()
        return files_of(((tuple(sorted(row[0].items())), row[1]) for row in rows), target_bytes)

    def compact(self, session: SparkSession, target_bytes: int) -> Compacted:
        """By OPTIMIZE, in commits of some files each, which say that they change no rows."""
        settings = {
            f"{_OPTIMIZE}.minFileSize": str(small_bytes_of(target_bytes)),
            f"{_OPTIMIZE}.maxFileSize": str(target_bytes),
            f"{_OPTIMIZE}.batchSize": str(COMMITTED_TARGETS * target_bytes),
            f"{_OPTIMIZE}.maxThreads": str(session.sparkContext.defaultParallelism),
        }
        with settings_for(session, settings):
            metrics = session.sql(f"OPTIMIZE {self.name}").collect()[0]["metrics"]
        return Compacted(int(metrics["numFilesRemoved"]), int(metrics["numFilesAdded"]))

    def _set(self, session: SparkSession, wanted: Mapping[str, str]) -> None:
        """Sets properties that are others."""
        before = delta_snapshot(session, self._path).properties
        if any(before.get(name) != value for name, value in wanted.items()):
            pairs = ", ".join(f"'{name}' = '{value}'" for name, value in wanted.items())
            session.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ({pairs})")

    def _told_by_history(self, session: SparkSession, writer: str, batch_id: int) -> str:
        """Where commits are no files of ours Delta reads them: a few, and more where it is in none of these."""
        for count in (_COMMITS_FIRST, _COMMITS_MAX):
            history = session.sql(f"DESCRIBE HISTORY {self.name} LIMIT {count}")
            for row in history.where("userMetadata IS NOT NULL").select("version", "userMetadata").collect():
                told = _told_of(row["userMetadata"])
                if told.get("writer") == writer and told.get("batch") == batch_id:
                    return json.dumps(told)
        return ""


def _told_in(commit: Path) -> dict[str, Any]:
    """What a pipeline has told with a commit: the file has an action in each line. Empty where it tells nothing."""
    with contextlib.suppress(OSError, ValueError, AttributeError), commit.open(encoding="utf-8") as actions:
        for line in actions:
            if line.startswith('{"commitInfo"'):
                return _told_of(json.loads(line)["commitInfo"].get("userMetadata", "{}"))
    return {}


def _told_of(metadata: str) -> dict[str, Any]:
    """Empty for what others tell."""
    with contextlib.suppress(ValueError):
        told = json.loads(metadata)
        return told if isinstance(told, dict) else {}
    return {}


@contextlib.contextmanager
def _settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            session.conf.unset(name)
