"""The few questions to Spark that pyspark has no public way to ask: each one here, each through the Java gateway.

Of a session of Spark Connect, which has none, `connect_questions` asks those that a run there needs, or nobody does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from barnabas.pipelines import connect_questions
from barnabas.pipelines.connect_batches import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_STATEFUL = ("Aggregate", "Deduplicate", "Distinct", "WithState", "Limit")


def refusal_of_output_mode(session: SparkSession, frame: DataFrame, output_mode: str) -> str | None:
    """Why Spark would not run a streaming frame in the output mode `Update`, `Append`, ...; None when it would.

    It is the check that Spark makes when a query starts, without starting it.
    """
    from pyspark.errors import AnalysisException

    if is_connect(session):
        return connect_questions.refusal_of_output_mode(frame, output_mode)
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
    if is_connect(frame.sparkSession):
        return connect_questions.aggregates_a_stream(frame)
    return any(
        "Aggregate" in node.nodeName() and node.isStreaming()
        for node in _nodes(frame._jdf.queryExecution().analyzed())  # noqa: SLF001
    )


def keeps_state(frame: DataFrame) -> bool:
    """Whether a query of the frame keeps state: groups, rows that are known, streams that are joined, or one's own."""
    for node in _nodes(frame._jdf.queryExecution().analyzed()):  # noqa: SLF001
        name = node.nodeName()
        if node.isStreaming() and any(sign in name for sign in _STATEFUL):
            return True
        if name == "Join" and node.left().isStreaming() and node.right().isStreaming():
            return True
    return False


def has_python_state(frame: DataFrame) -> bool:
    """Whether a stateful processor in Python is anywhere in the frame's plan."""
    return any("TransformWithStateInP" in node.nodeName() for node in _nodes(frame._jdf.queryExecution().analyzed()))  # noqa: SLF001


def is_of_session(session: SparkSession, frame: DataFrame) -> bool:
    """Whether a frame was made of frames of this session, and not of another one of the same Spark."""
    return bool(frame._jdf.sparkSession().equals(session._jsparkSession))  # noqa: SLF001


def columns_parquet_refuses(session: SparkSession, frame: DataFrame) -> list[str]:
    """The columns of the frame, with their types, that Spark cannot write to Parquet."""
    if is_connect(session):
        return connect_questions.columns_parquet_refuses(frame)
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
    if is_connect(session):
        return None
    for running in session.streams.active:
        if running.name == query:
            execution = running._jsq.streamingQuery().lastExecution()  # noqa: SLF001
            found = execution.observedMetrics().get(metric)
            return int(found.get().getLong(0)) if found.isDefined() else None
    return None


def default_parallelism(session: SparkSession) -> int:
    """Into how many tasks Spark divides what nobody divides: the cores that it has, at least two."""
    if is_connect(session):
        return connect_questions.default_parallelism(session)
    return int(session.sparkContext.defaultParallelism)


def _nodes(plan: Any) -> Iterator[Any]:
    """Java's nodes of a plan, the root first."""
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index))


def is_delta_table(session: SparkSession, path: str) -> bool:
    """Whether there is a Delta table at a path, which has a scheme. The session has Delta's jars."""
    jvm = session._jvm  # noqa: SLF001
    return bool(jvm.io.delta.tables.DeltaTable.isDeltaTable(session._jsparkSession, path))  # noqa: SLF001


@dataclass(frozen=True, slots=True)
class DeltaSnapshot:
    """What a Delta table says of itself; `transactions` have the last version of each transaction id."""

    table_id: str
    version: int
    properties: Mapping[str, str]
    transactions: Mapping[str, int]


def delta_snapshot(session: SparkSession, path: str) -> DeltaSnapshot:
    """The Delta table at a path, as of now."""
    jvm = session._jvm  # noqa: SLF001
    log_class = jvm.org.apache.spark.sql.delta.DeltaLog
    snapshot = log_class.forTableWithSnapshot(session._jsparkSession, path)._2()  # noqa: SLF001
    metadata = snapshot.metadata()
    properties = {str(name): str(value) for name, value in _pairs(metadata.configuration())}
    transactions = {str(name): int(version) for name, version in _pairs(snapshot.transactions())}
    return DeltaSnapshot(str(metadata.id()), int(snapshot.version()), properties, transactions)


def _pairs(found: Any) -> Iterator[tuple[Any, Any]]:
    """Of a map of Scala's."""
    pairs = found.iterator()
    while pairs.hasNext():
        pair = pairs.next()
        yield pair._1(), pair._2()  # noqa: SLF001  # Scala's names


def why_no_file_system(session: SparkSession, scheme: str) -> str | None:
    """Why Spark has no file system for URLs of a scheme, in words of Java; None where it has one. Asks nobody else."""
    from py4j.protocol import Py4JJavaError

    try:
        settings = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        session._jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, settings)  # noqa: SLF001
    except Py4JJavaError as error:
        return " ".join(str(error.java_exception).split())
    return None


def names_at(session: SparkSession, url: str, count: int) -> list[str]:
    """Up to so many names in a directory of a file system of Hadoop's; none where there is no directory."""
    path = session._jvm.org.apache.hadoop.fs.Path(url)  # noqa: SLF001
    files = path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001
    found: list[str] = []
    if files.exists(path):
        entries = files.listStatusIterator(path)
        while len(found) < count and entries.hasNext():
            found.append(str(entries.next().getPath().getName()))
    return found


def hadoop_version(session: SparkSession) -> str:
    """Of the Hadoop that Spark has."""
    return str(session._jvm.org.apache.hadoop.util.VersionInfo.getVersion())  # noqa: SLF001


def delta_files(session: SparkSession, path: str) -> DataFrame:
    """The files that the Delta table at a path has now, as its log has them: `path`, `partitionValues`, `size`, ..."""
    from pyspark.sql import DataFrame as Frame

    log_class = session._jvm.org.apache.spark.sql.delta.DeltaLog  # noqa: SLF001
    snapshot = log_class.forTableWithSnapshot(session._jsparkSession, path)._2()  # noqa: SLF001
    return Frame(snapshot.allFiles().toDF(), session)


@dataclass(frozen=True, slots=True)
class IcebergHistory:
    """What an Iceberg table says of itself: its id, its properties, and its snapshots, the newest first.

    `is_whole`: all snapshots were there, to the table's beginning or as far as they were asked for.
    """

    table_id: str
    properties: Mapping[str, str]
    summaries: Sequence[Mapping[str, str]]
    is_whole: bool


def iceberg_history(session: SparkSession, name: str, until: str, count: int) -> IcebergHistory:
    """The history of an Iceberg table, as of now, up to so many snapshots that have the property `until`."""
    table = session._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session._jsparkSession, name)  # noqa: SLF001
    table.refresh()
    snapshot = table.currentSnapshot()
    found: list[dict[str, str]] = []
    is_whole = True
    while snapshot is not None:
        found.append(dict(snapshot.summary()))
        count -= until in found[-1]
        parent = snapshot.parentId()
        if count == 0 or parent is None:
            break
        snapshot = table.snapshot(parent)
        is_whole = snapshot is not None
    return IcebergHistory(str(table.uuid().toString()), dict(table.properties()), found, is_whole)


def iceberg_snapshot(session: SparkSession, name: str) -> int | None:
    """The id of the newest snapshot of an Iceberg table; None before the first."""
    table = session._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session._jsparkSession, name)  # noqa: SLF001
    table.refresh()
    snapshot = table.currentSnapshot()
    return None if snapshot is None else int(snapshot.snapshotId())


def has_class(session: SparkSession, name: str) -> bool:
    """Whether Java finds a class, in Spark's own jars or in those that it was given."""
    from py4j.protocol import Py4JJavaError

    try:
        session._jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)  # noqa: SLF001
    except Py4JJavaError:
        return False
    return True


@contextlib.contextmanager
def iceberg_commit_properties(session: SparkSession, properties: Mapping[str, str]) -> Iterator[None]:
    """Has commits of Iceberg in the block, on this thread, have these properties in the summary of their snapshot.

    `CommitMetadata.withCommitProperties` takes a Java function, which py4j would call back on another thread of Java.
    """
    jvm = session._jvm  # noqa: SLF001
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    kind = jvm.java.lang.Class.forName("org.apache.iceberg.spark.CommitMetadata", True, loader)
    field = kind.getDeclaredField("COMMIT_PROPERTIES")
    field.setAccessible(True)
    of_thread = field.get(None)
    given = jvm.java.util.HashMap()
    for name, value in properties.items():
        given.put(name, value)
    of_thread.set(given)
    try:
        yield
    finally:
        of_thread.remove()
