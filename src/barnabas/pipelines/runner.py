"""Runs a pipeline on Spark, once or until it is told to stop, and goes on where the run before ended."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from barnabas.pipelines.backfill import refuse_half_replaced
from barnabas.pipelines.cluster_access import open_options, spark_access
from barnabas.pipelines.cluster_identity import read_identity
from barnabas.pipelines.connect_session import (
    connect_session,
    end_left_session,
    is_silence,
    refuse_what_connect_has_not,
)
from barnabas.pipelines.connector import jars_of, refuse_missing_classes
from barnabas.pipelines.definition import Pipeline, PipelineError, RunStopped, SparkEndedError
from barnabas.pipelines.java import find_java
from barnabas.pipelines.jvm import LOG_NAME
from barnabas.pipelines.lost_records import refuse_lost_records
from barnabas.pipelines.offset_ranges import starts_of
from barnabas.pipelines.pipeline_run import PipelineRun, milliseconds_since
from barnabas.pipelines.progress import ProgressSink, RunSummary
from barnabas.pipelines.run_options import RunOptions
from barnabas.pipelines.session import SparkOptions, spark_session
from barnabas.pipelines.shared_files import refuse_unshared_files
from barnabas.pipelines.sinks import held_tables, settings_of
from barnabas.pipelines.sources import KafkaOptions
from barnabas.pipelines.spark_cluster import is_submitted
from barnabas.pipelines.spark_extra import pyspark_version
from barnabas.pipelines.spark_internals import has_class
from barnabas.pipelines.spark_messages import spark_message
from barnabas.pipelines.state_directory import RunEnd, StateDirectory
from barnabas.pipelines.topic_options import resolved_options
from barnabas.pipelines.topic_outboxes import QueryOutbox, opened_outboxes
from barnabas.pipelines.topic_tables import opened_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_pipeline(
    pipeline: Pipeline, options: RunOptions, progress: ProgressSink, stop: threading.Event | None = None
) -> RunSummary:
    """Runs until everything is done (`once`), `stop` is set, or something fails; tells `progress` about it.

    On `stop` the batch under way is finished, for 60 s at most. Killed at any moment, the next run gives the same
    result. Call it on the main thread. Raises PipelineError, and leaves the reason for `status`.
    """
    pipeline = resolved_options(pipeline)
    return _recorded(pipeline, progress, lambda at: _run(pipeline, options, progress, stop or threading.Event(), at))


def run_pipeline_in(
    session: SparkSession,
    pipeline: Pipeline,
    options: RunOptions,
    progress: ProgressSink,
    stop: threading.Event | None = None,
) -> RunSummary:
    """Like `run_pipeline`, in a session that is there and has the connector; `options.jars_directory` is not looked at.

    The session's listeners and temporary views are the run's own: give it a `newSession()` each time.
    """
    pipeline, stop = resolved_options(pipeline), stop or threading.Event()

    def run(state: StateDirectory) -> RunSummary:
        began = time.monotonic()
        known = replace(options, access=open_options(pipeline))
        try:
            with _taken_state(pipeline, options, progress, stop, state) as outboxes:
                return _run_in(session, pipeline, known, progress, stop, state, outboxes, began)
        except RunStopped:
            return _stopped(pipeline, began)

    return _recorded(pipeline, progress, run)


def _recorded(pipeline: Pipeline, progress: ProgressSink, run: Callable[[StateDirectory], RunSummary]) -> RunSummary:
    """Has the run take the state directory, which knows afterwards how it ended."""
    refuse_half_replaced(pipeline)  # before the lock, which makes a directory where there is none for a moment
    state = StateDirectory(pipeline.state_directory)
    with state.locked(pipeline):
        state.begin()
        try:
            summary = run(state)
        except PipelineError as error:
            state.end(RunEnd.FAILED, str(error))
            raise
        except KeyboardInterrupt:
            state.end(RunEnd.STOPPED, "the run was cut short; the next one repeats the batch under way")
            raise
        except BaseException as error:
            state.end(RunEnd.FAILED, f"{type(error).__name__}: {error}")
            raise
        state.end(RunEnd.STOPPED if summary.was_stopped else RunEnd.DONE)
    progress.ended(summary)
    return summary


def _run(
    pipeline: Pipeline, options: RunOptions, progress: ProgressSink, stop: threading.Event, state: StateDirectory
) -> RunSummary:
    began = time.monotonic()
    if options.cluster.is_connect:
        refuse_what_connect_has_not(pipeline, options)
        end_left_session(state.directory, options.cluster, progress.said)
    try:
        with _taken_state(pipeline, options, progress, stop, state) as outboxes, spark_access(pipeline) as access:
            options = replace(options, access=access.options if options.cluster.is_here else open_options(pipeline))
            if options.cluster.is_connect:
                with connect_session(
                    pipeline,
                    options.cluster,
                    state.directory,
                    settings_of(pipeline),
                    tuple(name for name, _ in options.access),
                ) as session:
                    return _run_in(session, pipeline, options, progress, stop, state, outboxes, began)
            java = find_java()
            jars = () if is_submitted() else jars_of(pipeline, java, options.jars_directory, progress.said, stop)
            # Killed with kill -9, this process lets go of the state while Spark's still writes.
            kept_open = () if state.lock_descriptor is None else (state.lock_descriptor,)
            spark = SparkOptions(
                java,
                jars,
                state.log_directory,
                pipeline.name,
                (*kept_open, *access.descriptors),
                notes_classes=options.notes_classes,
                settings=tuple(settings_of(pipeline).items()),
                cluster=options.cluster,
            )
            progress.said(f"starting Spark {pyspark_version()} on Java {java.major_version} ...")
            with spark_session(spark, stop) as session:
                if is_submitted():
                    refuse_missing_classes(pipeline, lambda name: has_class(session, name))
                return _run_in(session, pipeline, options, progress, stop, state, outboxes, began)
    except RunStopped:
        return _stopped(pipeline, began)


def _stopped(pipeline: Pipeline, began: float) -> RunSummary:
    """Of a run that was told to stop before it had Spark."""
    return RunSummary(pipeline.name, True, 0, 0, 0, 0, {}, milliseconds_since(began))


@contextlib.contextmanager
def _taken_state(
    pipeline: Pipeline, options: RunOptions, progress: ProgressSink, stop: threading.Event, state: StateDirectory
) -> Iterator[Mapping[str, QueryOutbox]]:
    """Sees that state and tables are of this pipeline and this cluster, and has them ready for the run, with the
    outboxes of its queries.
    """
    refuse_half_replaced(pipeline)
    identity = read_identity(pipeline, options.bootstrap_servers)
    state_id, warnings = state.take_definition(pipeline, identity)
    refuse_lost_records(pipeline, state, options.bootstrap_servers, starts_of(options.offsets))
    for warning in warnings:
        progress.said(f"warning: {warning}")
    with (
        held_tables(pipeline, state, state_id),
        opened_outboxes(pipeline, state, state_id, identity.topic_ids, options.bootstrap_servers, stop) as outboxes,
    ):
        yield outboxes


def _run_in(
    session: SparkSession,
    pipeline: Pipeline,
    options: RunOptions,
    progress: ProgressSink,
    stop: threading.Event,
    state: StateDirectory,
    outboxes: Mapping[str, QueryOutbox],
    began: float,
) -> RunSummary:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    log_path = state.log_directory / LOG_NAME
    kafka = KafkaOptions(options.bootstrap_servers, options.access)
    run: PipelineRun | None = None
    try:
        if not options.cluster.is_here:
            refuse_unshared_files(session, pipeline)
        with opened_tables(
            pipeline, session, kafka, state, progress.said, stop, refreshes=not options.is_bounded
        ) as tables:
            run = PipelineRun(pipeline, options, progress, stop, state, session, outboxes, tables)
            run.prepare()
            run.work(began)
        if options.finish is not None and not stop.is_set():
            options.finish(session, state)
    except RunStopped:
        pass  # before its first batch
    except PySparkException as error:
        if options.cluster.is_connect and is_silence(error):
            message = f"the Spark Connect server at {options.cluster.master} has ended, or is not reached any more"
            raise SparkEndedError(f"{message} ({spark_message(error)}): run it again when it is there") from error
        raise PipelineError(f"Spark failed: {spark_message(error)}; {log_path} may say more") from error
    except (Py4JError, ConnectionError) as error:
        raise PipelineError(f"Spark's process ended unexpectedly ({error}); {log_path} may say why") from error
    return _stopped(pipeline, began) if run is None else run.summary(began)
