"""A pipeline looked at while it is written: its own decoding and steps, over sample records, in a Spark that stays.

Steps are computed as over a table of all samples, not batch by batch: a watermark drops nothing here, and a window is
there once. What Spark says of the pipeline as a stream is asked, too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from barnabas.pipelines.case_run import RECORDS_SCHEMA, record_line
from barnabas.pipelines.cases import GivenRecord
from barnabas.pipelines.definition import OnError, Pipeline, PipelineError, Query, ReadMode, Source, TopicSink
from barnabas.pipelines.plan import check_with_spark, create_views, rows_to_write
from barnabas.pipelines.query_errors import failure_of
from barnabas.pipelines.schema_registry import ask_registry
from barnabas.pipelines.session import apply_settings, looking_after_spark
from barnabas.pipelines.sources import decoded, newest_rows, with_document
from barnabas.pipelines.spark_messages import spark_message
from barnabas.pipelines.state_directory import spark_path
from barnabas.pipelines.topic_sink import records_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A plan is run once over few rows: to generate code for it, and compile that, takes longer than to interpret it.
_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@dataclass(frozen=True, slots=True)
class ViewRows:
    """The first rows of a view, as a topic would have them; `has_more` when there are others."""

    view: str
    columns: tuple[str, ...]
    rows: tuple[Mapping[str, object], ...]
    has_more: bool


@dataclass(frozen=True, slots=True)
class Look:
    """What one version of a pipeline makes of the samples; `refused` counts, by source, records that do not fit."""

    views: tuple[ViewRows, ...]
    refused: Mapping[str, int]
    seconds: float


class DevSession:
    """Samples by topic, in files below `directory`, and looks at pipelines in one Spark."""

    def __init__(self, session: SparkSession, directory: Path, log_path: Path) -> None:
        self._session = session
        self._directory = directory
        self._log_path = log_path
        self._topics: dict[str, Path] = {}

    @property
    def topics(self) -> frozenset[str]:
        """The topics that there are samples of."""
        return frozenset(self._topics)

    def keep(self, topic: str, records: Sequence[GivenRecord]) -> None:
        """Takes the samples of a topic, in place of those before."""
        path = self._directory / f"{len(self._topics)}.json" if topic not in self._topics else self._topics[topic]
        with path.open("w", encoding="utf-8") as file:
            for record in records:
                file.write(json.dumps(record_line(topic, record)) + "\n")
        self._topics[topic] = path

    def look(self, pipeline: Pipeline, views: Sequence[str], rows_max: int) -> Look:
        """The rows of the views. Raises PipelineError, at the line of the file, for what Spark refuses, and
        SparkEndedError.
        """
        with looking_after_spark(self._log_path):
            return self._look(pipeline, views, rows_max)

    def check(self, pipeline: Pipeline) -> None:
        """Has Spark look at the pipeline as a stream. Raises PipelineError, at its line, and SparkEndedError."""
        with looking_after_spark(self._log_path):
            own = self._session.newSession()
            apply_settings(own, pipeline)
            check_with_spark(pipeline, own)

    def _look(self, pipeline: Pipeline, views: Sequence[str], rows_max: int) -> Look:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        began = time.monotonic()
        own = self._session.newSession()
        apply_settings(own, pipeline)
        for name, value in _SETTINGS.items():
            own.conf.set(name, value)
        view = pipeline.sources[0].name
        ask_registry(pipeline)
        for source in pipeline.sources:
            for _, part in source.registered_parts:
                assert part.writers is not None
                part.writers.is_careful = True  # what a subject does not have does not fit, and ends nothing here
        try:
            create_views(pipeline, own, lambda source: self._frame(own, source))
            found = []
            for view in views:
                found.append(_rows(pipeline, own, view, rows_max))
            refused = {source.name: self._refused(own, source) for source in pipeline.sources}
        except (PySparkException, Py4JJavaError) as error:
            if isinstance(error, PySparkException) and "barnabas-bad-record" not in str(error):
                raise PipelineError(f"Spark failed: {spark_message(error)}", path=pipeline.path) from error
            failure = failure_of(pipeline, view, str(error), self._log_path)
            raise pipeline.error(failure.message, failure.line) from error
        return Look(tuple(found), {name: count for name, count in refused.items() if count}, time.monotonic() - began)

    def _frame(self, session: SparkSession, source: Source) -> DataFrame:
        records = self._records(session, source)
        return newest_rows(records, source) if source.read is ReadMode.TABLE else decoded(records, source)

    def _records(self, session: SparkSession, source: Source) -> DataFrame:
        path = self._topics.get(source.topic)
        if path is None:
            raise PipelineError(f'there are no samples of the topic "{source.topic}"')
        return session.read.schema(RECORDS_SCHEMA).json(spark_path(path))

    def _refused(self, session: SparkSession, source: Source) -> int:
        if source.on_error is OnError.FAIL:
            return 0
        rows, decoding = with_document(self._records(session, source), source)
        return int(rows.where(~decoding.fits).count())


def _rows(pipeline: Pipeline, session: SparkSession, view: str, rows_max: int) -> ViewRows:
    sinks = tuple(sink for sink in pipeline.sinks if sink.from_view == view)
    frame = rows_to_write(pipeline, session, Query(view, sinks))
    shown = TopicSink(topic=view, from_view=view, line=1, from_line=1)
    values = [row.value for row in records_of(frame.limit(rows_max + 1), shown).collect()]
    rows = tuple(json.loads(value) for value in values[:rows_max])
    return ViewRows(view, tuple(frame.columns), rows, len(values) > rows_max)
