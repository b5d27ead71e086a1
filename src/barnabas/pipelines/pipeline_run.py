"""One run of a pipeline in a session that is there: a query for each view that is written, until all have ended."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from barnabas.pipelines.bounded_batches import BoundedBatches, RangePassed
from barnabas.pipelines.cluster_access import access_of_pipeline
from barnabas.pipelines.cluster_identity import read_identity
from barnabas.pipelines.connect_batches import QueryBatches
from barnabas.pipelines.dead_letters import LetterBook, LetterWriter, letter_sources, where_they_go
from barnabas.pipelines.definition import (
    Pipeline,
    PipelineError,
    PipelineUnreachableError,
    Query,
    ReadMode,
    RunStopped,
    Source,
)
from barnabas.pipelines.group_offsets import GroupOffsets, committing
from barnabas.pipelines.jvm import LOG_NAME
from barnabas.pipelines.lost_records import lost_records, refuse_lost_records
from barnabas.pipelines.new_state import refuse_new_state
from barnabas.pipelines.offset_ranges import starts_of
from barnabas.pipelines.plan import check_views, create_views, rows_to_write, rows_with_order, streams_of
from barnabas.pipelines.progress import (
    ProgressSink,
    RunSummary,
    ShownRows,
    Totals,
    counted,
    is_finished_batch,
    progress_of,
    totals_from_json,
)
from barnabas.pipelines.query_errors import QueryFailure, failure_of
from barnabas.pipelines.query_events import BatchEvent, IdleEvent, QueryEvents, TerminatedEvent
from barnabas.pipelines.run_notes import RunNotes
from barnabas.pipelines.run_options import RunOptions
from barnabas.pipelines.running_query import RunningQuery, offsets_passed
from barnabas.pipelines.schema_learning import SchemaLearner
from barnabas.pipelines.schema_registry import ask_registry, register_schemas
from barnabas.pipelines.sinks import BatchWriter, writers_of
from barnabas.pipelines.sources import KafkaOptions, empty_frame, stream_frame
from barnabas.pipelines.state_directory import StateDirectory, spark_path
from barnabas.pipelines.topic_outboxes import QueryOutbox
from barnabas.pipelines.topic_tables import TableFailedError, TablesMoved, TopicTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STOP_SECONDS_MAX = 60.0
"""How long a batch under way may take to its end after a run was told to stop."""

_RESTARTS_MAX = 5
_RESTART_SECONDS_MAX = 120.0
_RESTART_PAUSE_SECONDS = 1.0
_POLL_SECONDS = 0.2
_LOOK_EVERY_SECONDS = 2.0
_LAST_EVENTS_SECONDS_MAX = 20.0


class PipelineRun:
    """One run: tables, a query for each view that is written, their events in order."""

    def __init__(
        self,
        pipeline: Pipeline,
        options: RunOptions,
        progress: ProgressSink,
        stop: threading.Event,
        state: StateDirectory,
        session: SparkSession,
        outboxes: Mapping[str, QueryOutbox],
        tables: TopicTables,
    ) -> None:
        self._pipeline = pipeline
        self._tables = tables
        self._outboxes = outboxes
        self._options = options
        self._progress = progress
        self._stop = stop
        self._state = state
        self._session = session
        self._state_id = state.check_definition(pipeline)[0] or ""
        self._starts = starts_of(options.offsets)
        self._kafka = KafkaOptions(options.bootstrap_servers, options.access)
        self._schemas = SchemaLearner(pipeline, self._kafka, state, session)
        self._letters = LetterBook(pipeline, state)
        self._queries: dict[str, RunningQuery] = {}
        self._batches = QueryBatches(session)
        self._events = QueryEvents()
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._notes = RunNotes(stop)
        self._warnings: list[str] = []
        self._done, self._look_at = Totals(), 0.0
        self._stop_at: float | None = None

    def prepare(self) -> None:
        """Makes the views and has Spark check them, then reads the tables. Nothing is written.

        Raises RunStopped when it is told to stop meanwhile.
        """
        self._refuse_to_go_on()
        ask_registry(self._pipeline, self._refuse_to_go_on)
        register_schemas(self._pipeline)
        create_views(self._pipeline, self._session, lambda source: empty_frame(self._session, source))
        self._refuse_to_go_on()
        modes = check_views(self._pipeline, self._session)
        refuse_new_state(self._pipeline, self._session, self._state)
        try:
            self._tables.read()
        except TableFailedError as error:
            raise self._error(failure_of(self._pipeline, error.source.name, str(error), self._log_path)) from error
        last = self._state.last_progress()
        for query in self._pipeline.queries:
            view = query.from_view
            self._queries[view] = RunningQuery(
                query,
                modes[view],
                self._batch_writer(query),
                totals_from_json(last.get(view)),
                streams_of(self._pipeline, view),
            )
            self._tables.begin(view, self._state.name_of(view), self._state.batches_done(view))
            self._queries[view].offsets = self._state.finished_offsets(view)

    def _batch_writer(self, query: Query) -> BatchWriter:
        view = query.from_view
        writers = writers_of(self._pipeline, query, self._kafka, self._outboxes.get(view))
        for writer in writers:
            writer.recover(rows_to_write(self._pipeline, self._session, query), self._state, self._state_id)
        ends = self._options.offsets.ends if self._options.offsets is not None else {}
        bounded = BoundedBatches(self._state.checkpoint(view), ends) if ends else None
        admit, letters = partial(self._admit, view), self._letter_writer(view)
        return BatchWriter(query, writers, self._state, self._stop, letters, bounded, admit, self._notes.put)

    def _admit(self, view: str, batch_id: int) -> None:
        self._schemas.look(view, batch_id)
        self._tables.admit(view, batch_id)

    def _letter_writer(self, view: str) -> LetterWriter | None:
        if not letter_sources(self._pipeline)[view]:
            return None
        return LetterWriter(self._pipeline, view, self._kafka, self._state, self._session, self._letters)

    def work(self, began: float) -> None:
        """Starts the queries and stays with them until all have ended. Raises PipelineError when one fails."""
        self._refuse_to_go_on()
        self._session.streams.addListener(self._events.listener())
        self._progress.said(f"ready after {time.monotonic() - began:.1f} s; {self._what_runs()}")
        access = access_of_pipeline(self._pipeline)
        with committing(self._pipeline.group_id, self._options.bootstrap_servers, self._lines.put, access) as group:
            self._commit(group)
            self._refuse_other_topics()
            try:
                for running in self._queries.values():
                    self._start(running)
                while not all(running.is_done for running in self._queries.values()):
                    self._turn(group)
            finally:
                self._notes.close()
                for running in self._queries.values():
                    if not running.is_done and running.handle is not None:
                        with contextlib.suppress(Exception):  # what has ended the run says more
                            running.handle.stop()
                self._batches.close()
        self._tell_lines()

    def summary(self, began: float) -> RunSummary:
        """What was done."""
        lag: dict[str, int] = {}
        for running in self._queries.values():
            for topic, records in running.lag.items():
                lag[topic] = max(records, lag.get(topic, 0))
        return RunSummary(
            pipeline=self._pipeline.name,
            was_stopped=self._stop.is_set(),
            **asdict(self._done),
            lag=lag,
            duration_ms=milliseconds_since(began),
            warnings=tuple(self._warnings),
        )

    def _frame_of(self, view: str, source: Source) -> DataFrame:
        """The frame of a source for the query of a view."""
        self._schemas.makes_view(source, view)
        if source.read is ReadMode.STREAM:
            return stream_frame(self._session, source, self._kafka, self._starts.get(source.topic))
        return self._tables.frame(view, source)

    def _refuse_to_go_on(self) -> None:
        """Raises RunStopped, before the first batch, when the run was told to stop."""
        if self._stop.is_set():
            raise RunStopped

    def _refuse_other_topics(self) -> None:
        """Raises PipelineError when a topic, or the cluster, is not the one that the checkpoints have offsets of."""
        self._state.check_identity(self._pipeline, read_identity(self._pipeline, self._options.bootstrap_servers))

    def _start(self, running: RunningQuery) -> None:
        view = running.query.from_view
        create_views(self._pipeline, self._session, partial(self._frame_of, view))
        writer = (
            counted(rows_with_order(self._pipeline, self._session, running.query))
            .writeStream.queryName(view)
            .outputMode(running.mode.value)
            .option("checkpointLocation", spark_path(self._state.checkpoint(view)))
            .foreachBatch(self._batches.function(view, running.writer))
        )
        if running.is_last_alone:
            writer = writer.trigger(once=True)
        elif self._options.once or running.bounded is not None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self._pipeline.trigger_ms or 0} milliseconds")
        running.writer.error = None
        self._schemas.starts(view)
        running.handle = self._batches.start(writer)

    def _turn(self, group: GroupOffsets) -> None:
        """One look at everything: events, lines to be told, a wish to stop, queries that have ended."""
        self._tell_lines()
        event = self._events.next(_POLL_SECONDS)
        if isinstance(event, BatchEvent):
            self._finished(event, group)
        elif isinstance(event, IdleEvent):
            self._idle(event)
        elif isinstance(event, TerminatedEvent):
            self._ended(event)
        else:
            self._look_for_lost_ends()
        if self._stop.is_set():
            self._stop_queries()

    def _finished(self, event: BatchEvent, group: GroupOffsets) -> None:
        running = self._queries.get(event.query)
        if running is None or not is_finished_batch(event.content):
            return
        progress = progress_of(event.content, event.query, running.totals)
        if progress.batch_id <= running.last_batch_id:
            return
        progress = progress.having_lost(self._lost(event))
        running.last_batch_id = progress.batch_id
        running.totals, self._done = progress.totals, self._done.plus(progress.alone)
        running.offsets, running.lag = progress.offsets, progress.lag
        running.works()
        self._state.add_progress(progress.to_json())
        self._progress.batch(progress)
        if progress.records_refused and not running.has_told_of_refused:
            running.has_told_of_refused = True
            self._warn(
                f"{running.query.from_view} reads records that do not fit their schema: {where_they_go(self._pipeline)}"
            )
        self._commit(group)

    def _lost(self, event: BatchEvent) -> int:
        try:
            lost = lost_records(self._pipeline, self._options.bootstrap_servers, event.content, self._starts)
        except PipelineUnreachableError as error:
            self._warn(f"{event.query} may have lost records that are not counted: {error.message}")
            return 0
        if lost:
            self._warn(f"{event.query} has lost {lost:,} records: they were gone from the topic before they were read")
        return lost

    def _commit(self, group: GroupOffsets) -> None:
        """Commits the offsets of each topic that every query which reads it has passed."""
        passed = offsets_passed(self._pipeline, self._queries.values())
        if passed and self._options.commits_offsets:
            group.finished(passed)

    def _idle(self, event: IdleEvent) -> None:
        running = self._started(event.run_id)
        if running is not None:
            running.works()

    def _started(self, run_id: str) -> RunningQuery | None:
        """The query whose last start has this id."""
        every = self._queries.values()
        return next((each for each in every if each.handle is not None and str(each.handle.runId) == run_id), None)

    def _ended(self, event: TerminatedEvent) -> None:
        running = self._started(event.run_id)
        if running is None or running.is_done:
            return
        if event.error is None or isinstance(running.writer.error, RunStopped | RangePassed):
            self._end_or_cut(running)
            return
        failure = self._failure_unless_mended(running, event.error)
        if failure is None:  # the same batch again, with another plan
            running.is_done = self._stop.is_set()
            if not running.is_done:
                self._start(running)
            return
        is_late = time.monotonic() - running.worked_at > _RESTART_SECONDS_MAX
        if not failure.is_passing or running.restarts >= _RESTARTS_MAX or is_late:
            running.is_done = True
            raise self._error(failure)
        running.restarts += 1
        self._warn(f"{running.query.from_view} goes on from its checkpoint after a failure: {failure.message}")
        if self._stop.wait(_RESTART_PAUSE_SECONDS * running.restarts):
            running.is_done = True
            return
        # A topic that is gone fails like a broker that is; made again, it would be read from offsets of the one before.
        with contextlib.suppress(PipelineUnreachableError):  # Spark finds that too, and its failure counts
            self._refuse_other_topics()
            refuse_lost_records(self._pipeline, self._state, self._options.bootstrap_servers, self._starts)
        self._start(running)

    def _end_or_cut(self, running: RunningQuery) -> None:
        """A query has ended well, or at the end of a range, which may lie within the batch that it was to do next."""
        bounded, passed = running.bounded, isinstance(running.writer.error, RangePassed)
        was_alone, running.is_last_alone = running.is_last_alone, False
        done = self._state.batches_done(running.query.from_view)
        if bounded is None or self._stop.is_set() or not (passed or was_alone):
            running.is_done = True
        elif passed:
            running.is_last_alone = bounded.cut(done.begun)
            running.is_done = not running.is_last_alone
        else:
            running.is_done = bounded.is_last(done.finished)
        if not running.is_done:
            self._start(running)

    def _failure_unless_mended(self, running: RunningQuery, text: str) -> QueryFailure | None:
        """Why a query has failed; None where it needs newer tables, or a schema, and has them now."""
        if not isinstance(running.writer.error, TablesMoved):
            is_mended = self._schemas.has_learned(running.query.from_view, text, running.writer.error)
            return None if is_mended else self._failure(running, text)
        try:
            self._tables.move(running.query.from_view)
        except TableFailedError as error:
            return failure_of(self._pipeline, error.source.name, str(error), self._log_path)
        except PipelineUnreachableError as error:
            return QueryFailure(error.message, error.line, is_passing=True)
        except RunStopped:
            return None
        running.works()
        return None

    def _failure(self, running: RunningQuery, text: str) -> QueryFailure:
        """Why a query has failed: what its writer says itself, or else what Spark's words mean."""
        error = running.writer.error
        if isinstance(error, PipelineError):
            return QueryFailure(error.message, error.line, isinstance(error, PipelineUnreachableError))
        return failure_of(self._pipeline, running.query.from_view, f"{text}\n{error or ''}", self._log_path)

    def _look_for_lost_ends(self) -> None:
        """Asks each query whether it runs, at times, so that no run waits for a process that is gone."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_EVERY_SECONDS
        for running in self._queries.values():
            if running.is_done or running.handle.isActive:
                running.ended_at = None
            elif running.ended_at is None:
                running.ended_at = now
            elif now - running.ended_at > _LAST_EVENTS_SECONDS_MAX:
                error = running.handle.exception()
                self._ended(TerminatedEvent(str(running.handle.runId), None if error is None else str(error)))

    def _stop_queries(self) -> None:
        """Lets batches under way end, for a while; a writer that is told to stop begins no other."""
        if self._stop_at is None:
            self._stop_at = time.monotonic() + STOP_SECONDS_MAX
            self._progress.said("stopping after the batch under way ...")
        for running in self._queries.values():
            if running.is_done or not running.handle.isActive:
                continue
            if time.monotonic() > self._stop_at:
                with contextlib.suppress(Exception):  # Spark's process ends soon, and the query with it
                    running.handle.stop()
                running.is_done = True
            elif not running.handle.status["isTriggerActive"]:
                running.handle.stop()

    def _tell_lines(self) -> None:
        while not self._lines.empty():
            self._warn(self._lines.get())
        for note in self._notes.taken():
            if isinstance(note, ShownRows):
                self._options.show(note)
            else:
                self._progress.said(note)

    def _warn(self, message: str) -> None:
        self._warnings.append(message)
        self._progress.said(f"warning: {message}")

    def _what_runs(self) -> str:
        views = ", ".join(self._queries)
        if self._options.offsets is not None and self._options.offsets.ends:
            return f"{views}: to the end of the range"
        return f"{views}: once" if self._options.once else f"{views}: until stopped"

    @property
    def _log_path(self) -> Path:
        return self._state.log_directory / LOG_NAME

    def _error(self, failure: QueryFailure) -> PipelineError:
        return PipelineError(failure.message, path=self._pipeline.path if failure.line else None, line=failure.line)


def milliseconds_since(began: float) -> int:
    """By the monotonic clock."""
    return round((time.monotonic() - began) * 1000)
