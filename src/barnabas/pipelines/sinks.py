"""What is done with the rows of a batch: a directory of a Parquet table, and records of a topic.

A batch that is done again, since its run ended before Spark had noted it, replaces its own directory. Its records are
in a topic already or come there, as the first time: by the outbox, which has them from then. A topic that is written
at least once gets them again, under the same keys.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from barnabas.pipelines.dead_letters import LetterWriter
from barnabas.pipelines.definition import Delivery, ParquetSink, Pipeline, Query, RunStopped, TopicSink
from barnabas.pipelines.parquet_table import BATCH_PREFIX, ParquetTable, TableError
from barnabas.pipelines.sources import KafkaOptions
from barnabas.pipelines.staged_batches import StagedBatch
from barnabas.pipelines.state_directory import StateDirectory, spark_path
from barnabas.pipelines.topic_outboxes import QueryOutbox

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Files have the time of a coarser clock.
_CLOCK_SLACK_NS = 2_000_000_000
# The bytes of keys are a contract: compaction, and whoever reads, compare them. Left to itself Spark cuts times to
# milliseconds, so that two groups would share one key.
_JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


class BatchWriter:
    """Writes each batch of one query to all its sinks: what Spark calls for a query, on a thread of its own.

    Once `stop` is set it begins no batch. `error` is what the last call raised, as it was before Spark wrapped it.
    """

    def __init__(
        self,
        query: Query,
        kafka: KafkaOptions,
        state: StateDirectory,
        stop: threading.Event,
        letters: LetterWriter | None = None,
        outbox: QueryOutbox | None = None,
    ) -> None:
        """`outbox` is needed where a topic is written exactly once."""
        self._query = query
        self._outbox = outbox
        self._letters = letters
        self._kafka = kafka
        self._state = state
        self._stop = stop
        self._synced_ns = 0
        self.error: Exception | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Writes one batch; what it cost to compute is spent once, however many sinks there are."""
        try:
            if self._stop.is_set():
                raise RunStopped
            if len(self._query.sinks) == 1:
                self._write(frame, batch_id)
            else:
                kept = frame.persist()
                try:
                    self._write(kept, batch_id)
                finally:
                    kept.unpersist()
        except Exception as error:
            self.error = error
            raise

    def _write(self, frame: DataFrame, batch_id: int) -> None:
        staged = self._staged(frame, batch_id)
        written: list[tuple[ParquetTable, Path]] = []
        for sink in self._query.sinks:
            if isinstance(sink, ParquetSink):
                table = ParquetTable(sink.directory)
                table.note_columns(dict(frame.dtypes))
                written.append((table, write_hidden(frame, sink.directory, batch_id)))
            elif sink.delivery is Delivery.AT_LEAST_ONCE:
                self._write_topic(frame, sink)
        # Now Spark knows whether the batch had records that do not fit. It notes the batch as done after this call.
        if self._letters is not None:
            self._letters.write(batch_id)
        if written or staged is not None:
            # No table, and no topic, must have a batch that its checkpoint does not know of after a loss of power.
            self._sync_checkpoint()
        if staged is not None and self._outbox is not None:
            self._outbox.deliver(staged)
        if written:
            offsets = self._state.end_offsets(self._query.from_view, batch_id)
            for table, being_written in written:
                table.publish(being_written, batch_id, offsets)

    def _staged(self, frame: DataFrame, batch_id: int) -> StagedBatch | None:
        """The batch as it is to be sent; None where nothing is, or it was sent before."""
        if self._outbox is None:
            return None
        is_sent = self._outbox.is_sent(batch_id)
        staged = None if is_sent else self._outbox.find(batch_id)
        if is_sent or staged is not None:
            if len(self._outbox.sinks) == len(self._query.sinks):
                # Spark's state and counts are those of a batch that was computed.
                frame.write.format("noop").mode("overwrite").save()
            return staged
        for number, sink in enumerate(self._outbox.sinks):
            stage_records(frame, sink, self._outbox.being_written(batch_id, number))
        return self._outbox.publish(batch_id)

    def _sync_checkpoint(self) -> None:
        now_ns = time.time_ns()
        self._state.sync_checkpoint(self._query.from_view, self._synced_ns)
        self._synced_ns = now_ns - _CLOCK_SLACK_NS

    def _write_topic(self, frame: DataFrame, sink: TopicSink) -> None:
        records = records_of(frame, sink)
        records.write.format("kafka").options(**self._kafka.writing, topic=sink.topic).save()


def records_of(frame: DataFrame, sink: TopicSink) -> DataFrame:
    """Rows as records of a topic: `value`, and `key` where the sink has one, both JSON objects of all their columns.

    A TIMESTAMP has six digits of a second and its zone, which is Z; nulls are written.
    """
    from pyspark.sql import functions as F  # noqa: N812

    columns = [F.to_json(F.struct("*"), _JSON_OPTIONS).alias("value")]
    if sink.key:
        names = {name.lower(): name for name in frame.columns}
        key = F.struct(*(F.col(f"`{names[column.lower()]}`") for column in sink.key))
        columns.append(F.to_json(key, _JSON_OPTIONS).alias("key"))
    return frame.select(*columns)


def stage_records(frame: DataFrame, sink: TopicSink, directory: Path) -> None:
    """Writes the records of a batch to files: a line with the key, where there is one, and one with the value. JSON has
    no line breaks.
    """
    from pyspark.sql import functions as F  # noqa: N812

    columns = [F.col("key"), F.col("value")] if sink.key else [F.col("value")]
    lines = records_of(frame, sink).select(F.concat_ws("\n", *columns))
    lines.write.mode("overwrite").text(spark_path(directory))


def write_hidden(frame: DataFrame, directory: Path, batch_id: int) -> Path:
    """Writes a batch beside the table, under a name that readers of Parquet skip; returns where."""
    being_written = directory / f".{BATCH_PREFIX}{batch_id}.being-written"
    frame.write.mode("overwrite").parquet(spark_path(being_written))
    return being_written


def check_tables(pipeline: Pipeline, state: StateDirectory, state_id: str | None) -> None:
    """Sees that the pipeline's Parquet tables hold what was written from the state of this id, and changes nothing.

    Raises PipelineError when a directory holds anything else: batches of two counts in a table would make a wrong one.
    """
    for sink in _tables(pipeline):
        with _told(pipeline, sink):
            ParquetTable(sink.directory).check(pipeline.name, state_id, state.batches_done(sink.from_view))


@contextlib.contextmanager
def held_tables(pipeline: Pipeline, state: StateDirectory, state_id: str) -> Iterator[None]:
    """Makes the directories of the pipeline's Parquet tables, removes what a killed run was writing into them, and
    keeps other runs from them for as long as the block lasts.

    Raises PipelineError as `check_tables` does, when a directory cannot be used, and when another run writes it.
    """
    with contextlib.ExitStack() as held:
        for sink in _tables(pipeline):
            table, done = ParquetTable(sink.directory), state.batches_done(sink.from_view)
            with _told(pipeline, sink):
                table.check(pipeline.name, state_id, done)
                held.enter_context(table.held())
                # Again, since another run may have had it until now.
                table.check(pipeline.name, state_id, done)
                table.take(pipeline.name, state_id)
        yield


def _tables(pipeline: Pipeline) -> Iterator[ParquetSink]:
    return (sink for sink in pipeline.sinks if isinstance(sink, ParquetSink))


@contextlib.contextmanager
def _told(pipeline: Pipeline, sink: ParquetSink) -> Iterator[None]:
    """Has the block's errors told at the line of the sink."""
    try:
        yield
    except TableError as error:
        raise pipeline.error(f"{sink.directory} {error}", sink.line) from error
    except OSError as error:
        message = f"the Parquet directory {sink.directory} cannot be used: {error.strerror or error}"
        raise pipeline.error(f"{message}; name another, or correct that", sink.line) from error
