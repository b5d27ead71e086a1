"""Whether Spark can write tables at URLs, and whether something else is there. What only Spark can tell."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from barnabas.pipelines.definition import LakeSink, Pipeline, Sink
from barnabas.pipelines.spark_internals import hadoop_version, names_at, why_no_file_system
from barnabas.pipelines.table_urls import scheme_of, what_to_do

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REASON_CHARACTERS_MAX: Final = 300
_NAMES_MAX: Final = 5


def refuse_unknown_stores(session: SparkSession, pipeline: Pipeline, sinks: Iterable[Sink]) -> None:
    """Raises PipelineError at the line of a sink for whose URL Spark has no file system. No store is asked."""
    for sink in sinks:
        if not isinstance(sink, LakeSink) or not sink.url:
            continue
        scheme = scheme_of(sink.url) or ""
        why = why_no_file_system(session, scheme)
        if why is not None:
            message = f"Spark has no file system for {scheme}:// ({why[:_REASON_CHARACTERS_MAX]})"
            raise pipeline.error(f"{message}: {what_to_do(scheme, hadoop_version(session))}", sink.line)


def refuse_other_files(session: SparkSession, pipeline: Pipeline, sink: LakeSink) -> None:
    """Raises PipelineError where a table is to be made at a URL that has something. What a store says of it is raised
    as it is.
    """
    names = names_at(session, sink.url, _NAMES_MAX) if sink.url else []
    if names:
        kind = sink.target.partition(" ")[0].capitalize()
        message = f"{sink.url} holds files that are no {kind} table ({min(names)})"
        raise pipeline.error(f"{message}: give the table its own URL", sink.line)
