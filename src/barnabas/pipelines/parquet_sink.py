"""A Parquet table as a sink: a batch is written beside the table, and takes its place by a rename."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from barnabas.pipelines.definition import ParquetSink, Pipeline
from barnabas.pipelines.parquet_table import BATCH_COLUMN, BATCH_PREFIX, ParquetTable, TableError
from barnabas.pipelines.sink import Offsets, SinkWriter, Written
from barnabas.pipelines.spark_internals import columns_parquet_refuses
from barnabas.pipelines.state_directory import StateDirectory, spark_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def write_hidden(frame: DataFrame, directory: Path, batch_id: int, run: str = "") -> Path:
    """Writes a batch beside the table, under a name that readers of Parquet skip; returns where.

    `run` is in the name: what another run, which was killed, has left under way is not written into the same place.
    """
    being_written = directory / f".{BATCH_PREFIX}{batch_id}{f'.{run}' if run else ''}.being-written"
    frame.write.mode("overwrite").parquet(spark_path(being_written))
    return being_written


class ParquetWriter(SinkWriter):
    """Writes batches into one table. A batch that is done again replaces its own directory."""

    def __init__(self, pipeline: Pipeline, sink: ParquetSink) -> None:
        self._pipeline = pipeline
        self._sink = sink
        self._table = ParquetTable(sink.directory)
        self._being_written: Path | None = None
        self._run = secrets.token_hex(4)

    def check(self, state: StateDirectory, state_id: str | None) -> None:
        """Sees that the table is what batches of this state have made: those of two counts would make a wrong one."""
        with self._told():
            self._table.check(self._pipeline.name, state_id, state.batches_done(self._sink.from_view))

    def check_rows(self, session: SparkSession, frame: DataFrame) -> None:
        """Sees that Parquet can hold the columns, and that they are those of the batches that are there."""
        view, line = self._sink.from_view, self._sink.from_line
        if BATCH_COLUMN in (name.lower() for name in frame.columns):
            message = f"{view} has a column {BATCH_COLUMN}, a name that the Parquet table needs itself: rename it"
            raise self._pipeline.error(message, line)
        refused = columns_parquet_refuses(session, frame)
        if refused:
            message = f"Parquet cannot hold {', '.join(refused)} of {view}: cast it to a type that it can"
            raise self._pipeline.error(message, line)
        try:
            self._table.refuse_other_columns(dict(frame.dtypes))
        except TableError as error:
            raise self._pipeline.error(f"{self._sink.directory} {error}", line) from error

    def prepare(self, state: StateDirectory, state_id: str) -> AbstractContextManager[None]:
        """Makes the directory, removes what a killed run was writing into it, and keeps other runs from it.

        Raises PipelineError as `check` does, when the directory cannot be used, and when another run writes it.
        """
        return self._held(state, state_id)

    def write(self, frame: DataFrame, batch_id: int) -> Written:
        """Writes the batch where no reader sees it."""
        self._table.note_columns(dict(frame.dtypes))
        self._being_written = write_hidden(frame, self._sink.directory, batch_id, self._run)
        return Written(is_computed=True, is_held=True)

    def commit(self, batch_id: int, offsets: Offsets) -> None:
        """Has the batch take its place."""
        if self._being_written is not None:
            self._table.publish(self._being_written, batch_id, offsets)
            self._being_written = None

    @contextlib.contextmanager
    def _held(self, state: StateDirectory, state_id: str) -> Iterator[None]:
        with contextlib.ExitStack() as held:
            done = state.batches_done(self._sink.from_view)
            with self._told():
                self._table.check(self._pipeline.name, state_id, done)
                held.enter_context(self._table.held())
                # Again, since another run may have had it until now.
                self._table.check(self._pipeline.name, state_id, done)
                self._table.take(self._pipeline.name, state_id)
            yield

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Has the block's errors told at the line of the sink."""
        try:
            yield
        except TableError as error:
            raise self._pipeline.error(f"{self._sink.directory} {error}", self._sink.line) from error
        except OSError as error:
            message = f"the Parquet directory {self._sink.directory} cannot be used: {error.strerror or error}"
            raise self._pipeline.error(f"{message}; name another, or correct that", self._sink.line) from error
