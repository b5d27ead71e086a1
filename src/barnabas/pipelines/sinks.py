"""The sinks of a query, and what is done with each batch for all of them: in which order, and what a crash leaves.

A batch that is done again, since its run ended before Spark had noted it, is the same batch for each sink that is
exact: see `sink`, and the file of each kind.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from barnabas.pipelines.bounded_batches import BoundedBatches, RangePassed
from barnabas.pipelines.console_sink import ConsoleWriter
from barnabas.pipelines.dead_letters import LetterWriter
from barnabas.pipelines.definition import (
    ConsoleSink,
    Delivery,
    DeltaSink,
    IcebergSink,
    JdbcSink,
    ParquetSink,
    Pipeline,
    Query,
    RunStopped,
    Sink,
    TopicSink,
)
from barnabas.pipelines.delta_sink import DELTA_SETTINGS, DeltaTable
from barnabas.pipelines.file_secrets import spark_settings_of_file
from barnabas.pipelines.iceberg_sink import IcebergTable, iceberg_settings
from barnabas.pipelines.jdbc_sink import JdbcWriter
from barnabas.pipelines.lake_rows import without_order
from barnabas.pipelines.lake_sink import LakeWriter
from barnabas.pipelines.parquet_sink import ParquetWriter
from barnabas.pipelines.progress import ShownRows
from barnabas.pipelines.sink import SinkWriter, Written
from barnabas.pipelines.sources import KafkaOptions
from barnabas.pipelines.spark_schema import quoted_name
from barnabas.pipelines.state_directory import StateDirectory
from barnabas.pipelines.store_endpoints import refuse_silent_stores
from barnabas.pipelines.topic_outboxes import QueryOutbox
from barnabas.pipelines.topic_sink import OutboxWriter, TopicWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Files have the time of a coarser clock.
_CLOCK_SLACK_NS = 2_000_000_000
_EXTENSIONS = "spark.sql.extensions"


def writer_of(pipeline: Pipeline, sink: Sink, kafka: KafkaOptions | None = None) -> SinkWriter:
    """What writes one sink by itself. `kafka` is needed where a topic is written, and not for checks."""
    if isinstance(sink, ParquetSink):
        return ParquetWriter(pipeline, sink)
    if isinstance(sink, DeltaSink):
        return LakeWriter(pipeline, sink, DeltaTable(sink))
    if isinstance(sink, IcebergSink):
        return LakeWriter(pipeline, sink, IcebergTable(sink))
    if isinstance(sink, JdbcSink):
        return JdbcWriter(pipeline, sink)
    if isinstance(sink, ConsoleSink):
        return ConsoleWriter(sink)
    return TopicWriter(pipeline, sink, kafka)


def settings_of(pipeline: Pipeline) -> dict[str, str]:
    """The settings of Spark that a pipeline's sinks need, and those of its file."""
    found: dict[str, str] = {}
    extensions: dict[str, None] = {}
    for sink in pipeline.sinks:
        needed = dict(DELTA_SETTINGS) if isinstance(sink, DeltaSink) else {}
        if isinstance(sink, IcebergSink):
            needed = iceberg_settings(sink)
        extensions |= dict.fromkeys(filter(None, [needed.pop(_EXTENSIONS, "")]))
        found |= needed
    if extensions:
        found[_EXTENSIONS] = ",".join(extensions)
    return {**found, **dict(spark_settings_of_file(pipeline))}


def writers_of(
    pipeline: Pipeline, query: Query, kafka: KafkaOptions, outbox: QueryOutbox | None = None
) -> tuple[SinkWriter, ...]:
    """What writes a query. `outbox` is needed where a topic is written exactly once: it writes all of these. Whoever
    only looks comes last: what is computed by then is not computed for it.
    """
    alone = [
        sink for sink in query.sinks if not isinstance(sink, TopicSink) or sink.delivery is not Delivery.EXACTLY_ONCE
    ]
    alone.sort(key=lambda sink: isinstance(sink, ConsoleSink))
    first: tuple[SinkWriter, ...] = () if outbox is None else (OutboxWriter(outbox),)
    return (*first, *(writer_of(pipeline, sink, kafka) for sink in alone))


class BatchWriter:
    """Writes each batch of one query to all its sinks: what Spark calls for a query, on a thread of its own.

    Once `stop` is set, beyond the end of `bounded`, and where `admit` raises, it begins no batch. `error` is what the
    last call raised, as it was before Spark wrapped it. `say` is told what becomes of tables behind batches, and given
    what is to be shown of them.
    """

    def __init__(
        self,
        query: Query,
        writers: Sequence[SinkWriter],
        state: StateDirectory,
        stop: threading.Event,
        letters: LetterWriter | None = None,
        bounded: BoundedBatches | None = None,
        admit: Callable[[int], None] = lambda _batch_id: None,
        say: Callable[[str | ShownRows], None] = lambda _line: None,
    ) -> None:
        self._query = query
        self._writers = tuple(writers)
        self._letters = letters
        self.bounded = bounded
        self._admit = admit
        self._say = say
        self._state = state
        self._stop = stop
        self._synced_ns = 0
        self.error: Exception | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Writes one batch; what it cost to compute is spent once, however many sinks there are."""
        try:
            if self._stop.is_set():
                raise RunStopped
            if self.bounded is not None and self.bounded.passes(batch_id):
                raise RangePassed
            self._admit(batch_id)
            if len(self._query.sinks) == 1 and not isinstance(self._query.sinks[0], ConsoleSink):
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
        # No table, and no topic, must have a batch that its checkpoint does not know of after a loss of power.
        if any(writer.commits_at_once for writer in self._writers):
            self._sync_checkpoint()
            if self._letters is not None:
                self._letters.decodings.begin(batch_id)
        rows = without_order(frame) if any(writer.knows_order for writer in self._writers) else frame
        written = [self._write_one(writer, frame if writer.knows_order else rows, batch_id) for writer in self._writers]
        if not any(each.is_computed for each in written):
            # Spark's state and counts are those of a batch that was computed.
            computed(frame).write.format("noop").mode("overwrite").save()
        # Now Spark knows whether the batch had records that do not fit. It notes the batch as done after this call.
        if self._letters is not None:
            self._letters.write(batch_id)
        if any(each.is_held for each in written):
            self._sync_checkpoint()
            offsets = self._state.end_offsets(self._query.from_view, batch_id)
            for writer in self._writers:
                writer.commit(batch_id, offsets)
        for shown in filter(None, [writer.shown() for writer in self._writers]):
            self._say(shown)
        for writer in self._writers:
            if not self._stop.is_set() and (line := writer.tidy(batch_id)):
                self._say(line)

    def _write_one(self, writer: SinkWriter, frame: DataFrame, batch_id: int) -> Written:
        written = writer.write(frame, batch_id)
        if self._letters is not None and writer.commits_at_once:
            self._letters.decodings.written(batch_id, was_there=not written.is_computed)
        return written

    def _sync_checkpoint(self) -> None:
        now_ns = time.time_ns()
        self._state.sync_checkpoint(self._query.from_view, self._synced_ns)
        self._synced_ns = now_ns - _CLOCK_SLACK_NS


def computed(frame: DataFrame) -> DataFrame:
    """The frame as Spark computes it for nobody: it refuses to write intervals, which topics and the console take."""
    if not any("interval" in kind for _, kind in frame.dtypes):
        return frame
    named = ((quoted_name(name), kind) for name, kind in frame.dtypes)
    return frame.selectExpr(
        *(f"CAST({name} AS STRING) AS {name}" if "interval" in kind else name for name, kind in named)
    )


def check_tables(pipeline: Pipeline, state: StateDirectory, state_id: str | None) -> None:
    """Sees that the pipeline's sinks hold what was written from the state of this id, and changes nothing.

    Raises PipelineError when a table holds anything else.
    """
    for sink in pipeline.sinks:
        writer_of(pipeline, sink).check(state, state_id)


@contextlib.contextmanager
def held_tables(pipeline: Pipeline, state: StateDirectory, state_id: str) -> Iterator[None]:
    """Takes the pipeline's tables for as long as the block lasts: they are there, and no other run writes them.

    Raises PipelineError as `check_tables` does, when a table cannot be used, and when another run writes it, and
    PipelineUnreachableError where nobody is at the address of its store.
    """
    refuse_silent_stores(pipeline)
    with contextlib.ExitStack() as held:
        for sink in pipeline.sinks:
            held.enter_context(writer_of(pipeline, sink).prepare(state, state_id))
        yield
