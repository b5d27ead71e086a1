"""Runs a test of a pipeline on Spark, without brokers: its records are files, and its sinks are files.

What decides is the pipeline's own: the decoding of records, tables of the newest record per key, steps, watermarks,
output modes, letters, and how rows become records or Parquet. Spark reads a file a batch with its streaming engine. At
a batch that has records of a table the queries end and begin again with the table as it is then, as in a run.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from barnabas.pipelines.cases import BATCHES_MAX, COUNTS, Case, GivenRecord, records_by_source
from barnabas.pipelines.dead_letters import letters_of
from barnabas.pipelines.definition import (
    KeyedSink,
    LakeSink,
    OnError,
    ParquetSink,
    Pipeline,
    PipelineError,
    Query,
    ReadMode,
    Sink,
    Source,
    TableSink,
    TopicSink,
)
from barnabas.pipelines.lake_rows import newest_of_keys, without_order
from barnabas.pipelines.letters import OFFSET_HEADER, PARTITION_HEADER, REASON_HEADER, SOURCE_HEADER, TOPIC_HEADER
from barnabas.pipelines.parquet_sink import write_hidden
from barnabas.pipelines.plan import check_views, create_views, rows_to_write, rows_with_order
from barnabas.pipelines.progress import Totals, counted, is_finished_batch, progress_of
from barnabas.pipelines.query_errors import failure_of
from barnabas.pipelines.session import apply_settings, looking_after_spark
from barnabas.pipelines.sources import RECORD_TYPES, decoded, newest_rows, refused_metric
from barnabas.pipelines.spark_messages import spark_message
from barnabas.pipelines.state_directory import spark_path
from barnabas.pipelines.topic_sink import records_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CASE_SECONDS_MAX: Final = 300.0
"""How long the queries of a test may take together."""
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - in UTC
_FIRST_MS: Final = -62_135_596_800_000
_LAST_MS: Final = 253_402_300_799_999
"""From the year 1 to 9999."""
RECORDS_SCHEMA: Final = ", ".join(f"{name} {kind}" for name, kind in RECORD_TYPES.items())
"""The columns of files of `record_line`s, as DDL."""


@dataclass(frozen=True, slots=True)
class WrittenRow:
    """A row as a sink has it: its columns; of a topic also the record's key and value as text."""

    batch: int
    columns: Mapping[str, object]
    key: str | None = None
    value: str | None = None


@dataclass(frozen=True, slots=True)
class SinkOutput:
    """All that a sink was given, in the order of batches; `types` has each column's type, as in Spark's JSON."""

    sink: Sink
    types: Mapping[str, object]
    rows: tuple[WrittenRow, ...]

    @property
    def result(self) -> tuple[WrittenRow, ...]:
        """What a reader takes for the result: of each key the newest rows, unless that is a deletion; all rows where
        the sink has no key.
        """
        if not self.sink.key:
            return self.rows
        names = {name.lower(): name for name in self.types}
        columns = [names[column.lower()] for column in self.sink.key]
        newest: dict[str, list[WrittenRow]] = {}
        for row in self.rows:
            key = json.dumps([row.columns.get(name) for name in columns], default=str)
            is_deletion = isinstance(self.sink, KeyedSink) and row.columns.get(
                names.get((self.sink.rows.delete or "").lower(), "")
            )
            if is_deletion or (isinstance(self.sink, TopicSink) and row.value is None):
                newest.pop(key, None)
                continue
            kept = newest.get(key, [])
            is_beside = isinstance(self.sink, ParquetSink) and bool(kept) and kept[0].batch == row.batch
            newest[key] = [*kept, row] if is_beside else [row]
        return tuple(row for rows in newest.values() for row in rows)


@dataclass(frozen=True, slots=True)
class CaseOutput:
    """What came of a run: by view its sinks; letters by the names of LETTER_KEYS; counts by those of COUNTS.

    `skipped` are records that did not fit, of sources that leave them out without a letter. With an `error` the run
    ended by it, and the rest is what there was until then.
    """

    sinks: Mapping[str, tuple[SinkOutput, ...]] = field(default_factory=dict)
    letters: tuple[Mapping[str, object], ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    skipped: int = 0
    error: str | None = None


def run_case(
    session: SparkSession, pipeline: Pipeline, case: Case, directory: Path, log_path: Path, views: Sequence[str] = ()
) -> CaseOutput:
    """Runs the whole pipeline over the batches of a test, in a session of its own of the same Spark.

    `directory` is new, and the caller's to remove. `views` are wanted even if no sink writes them. Raises PipelineError
    for a pipeline that Spark refuses, whatever the records, and SparkEndedError; what a record does to a run is in the
    output.
    """
    with looking_after_spark(log_path):
        return _ran(session, _moved(pipeline, directory, views), case, directory, log_path)


def _ran(session: SparkSession, pipeline: Pipeline, case: Case, directory: Path, log_path: Path) -> CaseOutput:
    from pyspark.errors import PySparkException

    own = session.newSession()
    apply_settings(own, pipeline)
    # A test has few rows, and each partition of a shuffle would cost a task and a state store of its own.
    own.conf.set("spark.sql.shuffle.partitions", "1")
    # Counts are those of all batches, and of those without records that Spark adds; its default is to keep 100.
    own.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(3 * BATCHES_MAX))
    run = _CaseRun(own, pipeline, case, directory, log_path)
    try:
        run.prepare()
        return run.output()
    except PySparkException as error:
        raise PipelineError(f"Spark failed: {spark_message(error)}; {log_path} may say more") from error


def _moved(pipeline: Pipeline, directory: Path, views: Sequence[str]) -> Pipeline:
    """The pipeline with its tables and its state below `directory`, and a topic for each view that has no sink."""
    sinks = [_moved_sink(sink, directory / "tables" / str(number)) for number, sink in enumerate(pipeline.sinks)]
    written = {sink.from_view for sink in sinks}
    for view in dict.fromkeys(view for view in views if view not in written):
        definition = pipeline.step(view) or pipeline.source(view)
        line = definition.line if definition is not None else pipeline.line
        sinks.append(TopicSink(topic=view, from_view=view, line=line, from_line=line))
    return replace(pipeline, sinks=tuple(sinks), state_directory=directory / "state")


def _moved_sink(sink: Sink, directory: Path) -> Sink:
    if isinstance(sink, LakeSink):
        return replace(sink, directory=directory, url="")
    return replace(sink, directory=directory) if isinstance(sink, TableSink) else sink


class _CaseRun:
    """One run: the records as files, a query for each view that is written, what they wrote."""

    def __init__(self, session: SparkSession, pipeline: Pipeline, case: Case, directory: Path, log_path: Path) -> None:
        self._session = session
        self._pipeline = pipeline
        self._case = case
        self._directory = directory
        self._log_path = log_path
        self._modes: Mapping[str, Any] = {}
        self._schemas: dict[str, Mapping[str, object]] = {}
        self._parts = parts_of_case(pipeline, case.batches)
        self._first_file_time = int(time.time()) - len(case.batches)
        self._totals = Totals()
        self._refused: dict[str, dict[str, int]] = {}
        """By query and source, how many records did not fit."""

    def prepare(self) -> None:
        """Writes the records of the first part, makes the views, and has Spark check them."""
        self._begin(self._parts[0])
        self._modes = check_views(self._pipeline, self._session)

    def output(self) -> CaseOutput:
        """Runs the queries to their end, side by side, part by part."""
        error: str | None = None
        deadline = time.monotonic() + CASE_SECONDS_MAX
        for number, part in enumerate(self._parts):
            if number:
                self._begin(part)
            # Between two parts there is no pause, in which Spark would add a batch without records.
            adds_batches = str(number == len(self._parts) - 1).lower()
            self._session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", adds_batches)
            error = self._ran(deadline)
            if error is not None:
                break
        totals, refused = self._totals, self._refused_once()
        kept = {each.name: each for each in self._pipeline.sources}
        return CaseOutput(
            sinks={query.from_view: tuple(self._outputs(query)) for query in self._pipeline.queries},
            letters=tuple(
                letter
                for name in refused
                if kept[name].on_error is OnError.TOPIC
                for letter in self._letters(kept[name])
            ),
            counts={name: getattr(totals, name) for name in COUNTS},
            skipped=sum(count for name, count in refused.items() if kept[name].on_error is OnError.SKIP),
            error=error,
        )

    def _begin(self, part: range) -> None:
        """Adds the records of these batches, and makes the views, of tables as they are with them."""
        for source in self._pipeline.sources:
            self._write_records(self._records_directory(source), source, part)
        create_views(self._pipeline, self._session, self._frame_of)

    def _ran(self, deadline: float) -> str | None:
        """Runs the queries over what is there, and adds what they have counted; the first error, for people."""
        handles: dict[str, Any] = {}
        try:
            for query in self._pipeline.queries:
                handles[query.from_view] = self._start(query)
            error = self._awaited(handles, deadline)
            self._count(handles)
        finally:
            for handle in handles.values():
                with contextlib.suppress(Exception):  # what has ended the run says more
                    handle.stop()
        return error

    def _frame_of(self, source: Source) -> DataFrame:
        directory = spark_path(self._records_directory(source))
        if source.read is ReadMode.TABLE:
            return newest_rows(self._session.read.schema(RECORDS_SCHEMA).json(directory), source)
        reader = self._session.readStream.schema(RECORDS_SCHEMA).option("maxFilesPerTrigger", 1)
        return decoded(reader.json(directory), source)

    def _records_directory(self, source: Source) -> Path:
        return self._directory / "records" / source.name

    def _start(self, query: Query) -> Any:
        frame = counted(rows_with_order(self._pipeline, self._session, query))
        self._schemas[query.from_view] = {
            each["name"]: each["type"]
            for each in rows_to_write(self._pipeline, self._session, query).schema.jsonValue()["fields"]
        }

        def write(batch: DataFrame, batch_id: int) -> None:
            kept = batch if len(query.sinks) == 1 else batch.persist()
            try:
                for number, sink in enumerate(query.sinks):
                    write_hidden(_written(kept, sink), self._output_directory(query.from_view, number), batch_id)
            finally:
                if kept is not batch:
                    kept.unpersist()

        return (
            frame.writeStream.queryName(query.from_view)
            .outputMode(self._modes[query.from_view].value)
            .option("checkpointLocation", spark_path(self._directory / "checkpoints" / query.from_view))
            .foreachBatch(write)
            .trigger(availableNow=True)
            .start()
        )

    def _output_directory(self, view: str, number: int) -> Path:
        return self._directory / "output" / view / str(number)

    def _awaited(self, handles: Mapping[str, Any], deadline: float) -> str | None:
        """Waits until all have ended; the first error, for people."""
        from pyspark.errors import StreamingQueryException

        for view, handle in handles.items():
            try:
                if not handle.awaitTermination(max(deadline - time.monotonic(), 0.1)):
                    return f"{view} did not end within {CASE_SECONDS_MAX:.0f} s"
            except StreamingQueryException as error:
                return failure_of(self._pipeline, view, str(error), self._log_path).message
        return None

    def _count(self, handles: Mapping[str, Any]) -> None:
        """Adds the sums of all queries, and how many records of each source did not fit."""
        for view, handle in handles.items():
            mine = self._refused.setdefault(view, {})
            for event in (json.loads(each.json) for each in handle.recentProgress):
                if not is_finished_batch(event):
                    continue
                self._totals = self._totals.plus(progress_of(_without_sources(event), view, Totals()).alone)
                for source in self._pipeline.sources:
                    observed = event.get("observedMetrics", {}).get(refused_metric(source.name), {})
                    mine[source.name] = mine.get(source.name, 0) + int(observed.get("records") or 0)

    def _refused_once(self) -> dict[str, int]:
        """How many records of each source did not fit, where there were some, for one query that read them."""
        found = {
            source.name: max((mine.get(source.name, 0) for mine in self._refused.values()), default=0)
            for source in self._pipeline.sources
        }
        return {name: count for name, count in found.items() if count}

    def _write_records(self, directory: Path, source: Source, part: range) -> None:
        """A file for each batch, also for one without records: so all sources are at the same batch."""
        directory.mkdir(parents=True, exist_ok=True)
        for number in part:
            path = directory / f"batch-{number:06}.json"
            with path.open("w", encoding="utf-8") as file:
                for record in records_by_source(self._case.batches[number]).get(source.name, ()):
                    file.write(json.dumps(record_line(source.topic, record)) + "\n")
            # Spark takes files by their times, the oldest first.
            os.utime(path, (self._first_file_time + number, self._first_file_time + number))

    def _outputs(self, query: Query) -> Iterator[SinkOutput]:
        for number, sink in enumerate(query.sinks):
            written = self._output_directory(query.from_view, number)
            rows = (_row(sink, batch, content) for batch, content in _contents(written))
            yield SinkOutput(sink, self._schemas[query.from_view], tuple(rows))

    def _letters(self, source: Source) -> Iterator[Mapping[str, object]]:
        from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it

        records = self._session.read.schema(RECORDS_SCHEMA).json(spark_path(self._records_directory(source)))
        records = records.withColumn("headers", F.lit(None).cast("array<struct<key:string,value:binary>>"))
        directory = self._directory / "letters" / source.name
        write_hidden(letters_of(records, source, self._pipeline.name, "test"), directory, 0)
        for _, letter in _contents(directory):
            headers = {header["key"]: (header["value"] or b"").decode() for header in letter["headers"]}
            yield {
                "source": headers[SOURCE_HEADER],
                "reason": headers[REASON_HEADER],
                "topic": headers[TOPIC_HEADER],
                "partition": int(headers[PARTITION_HEADER]),
                "offset": int(headers[OFFSET_HEADER]),
                "key": _text(letter["key"]),
                "value": _text(letter["value"]),
            }


def parts_of_case(pipeline: Pipeline, batches: Sequence[Sequence[GivenRecord]]) -> list[range]:
    """The batches of a test, by their numbers, in parts that see the same tables: with one that has records of a table
    another part begins.
    """
    tables = {source.name for source in pipeline.sources if source.read is ReadMode.TABLE}
    changes = (number for number, batch in enumerate(batches) if any(record.source in tables for record in batch))
    starts = [0, *(number for number in changes if number)]
    return [range(first, end) for first, end in zip(starts, [*starts[1:], len(batches)], strict=True)]


def _written(rows: DataFrame, sink: Sink) -> DataFrame:
    """What a sink is given of a batch."""
    if isinstance(sink, TopicSink):
        return records_of(without_order(rows), sink)
    return newest_of_keys(rows, sink) if isinstance(sink, KeyedSink) and sink.key else without_order(rows)


def _without_sources(event: Mapping[str, Any]) -> dict[str, Any]:
    """The progress without the offsets of its sources, which are files here and not topics."""
    return {**event, "sources": []}


def record_line(topic: str, record: GivenRecord) -> dict[str, object]:
    """A record as JSON, whose columns Spark reads as those of its Kafka source."""
    # Whoever writes microseconds means no year 50,000, which neither Python nor Spark's JSON has.
    milliseconds = min(max(record.timestamp_ms, _FIRST_MS), _LAST_MS)
    moment = _EPOCH + dt.timedelta(milliseconds=milliseconds)
    return {
        "key": None if record.key is None else base64.b64encode(record.key).decode(),
        "value": None if record.value is None else base64.b64encode(record.value).decode(),
        "topic": topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": moment.isoformat(timespec="milliseconds") + "Z",
    }


def _contents(directory: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The batch and the content of each row that `write_hidden` has written there, batch by batch."""
    import pyarrow.parquet

    if not directory.is_dir():
        return
    # The name is `.batch_id=N.being-written`.
    batches = sorted((int(each.name.split("=")[1].split(".")[0]), each) for each in directory.iterdir())
    for number, batch in batches:
        for path in sorted(batch.glob("*.parquet")):
            for row in pyarrow.parquet.ParquetFile(path).read().to_pylist():
                yield number, row


def _row(sink: Sink, batch: int, content: dict[str, Any]) -> WrittenRow:
    if not isinstance(sink, TopicSink):
        return WrittenRow(batch, content)
    import decimal

    # Not to lose a digit of a DECIMAL; a DOUBLE is compared by its type.
    value = content["value"]
    columns = json.loads(content["key"] if value is None else value, parse_float=decimal.Decimal)
    return WrittenRow(batch, columns, content.get("key"), value)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace")
