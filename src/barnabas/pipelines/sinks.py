"""What is done with the rows of a batch: a directory of a Parquet table, and records of a topic.

A batch that is done again, since its run ended before Spark had noted it, replaces its own directory and writes its
records once more, under the same keys.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from barnabas.pipelines.definition import ParquetSink, Pipeline, Query, RunStopped, TopicSink
from barnabas.pipelines.plan import BATCH_COLUMN
from barnabas.pipelines.sources import KafkaOptions
from barnabas.pipelines.state_directory import StateDirectory, spark_path, write_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MARKER = "_barnabas.json"
"""Says, in a Parquet table's directory, which state of a pipeline it belongs to. Readers of Parquet skip its name."""

_BATCH_PREFIX = f"{BATCH_COLUMN}="
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

    def __init__(self, query: Query, kafka: KafkaOptions, stop: threading.Event) -> None:
        self._query = query
        self._kafka = kafka
        self._stop = stop
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
        for sink in self._query.sinks:
            if isinstance(sink, ParquetSink):
                publish(write_hidden(frame, sink.directory, batch_id), sink.directory, batch_id)
            else:
                self._write_topic(frame, sink)

    def _write_topic(self, frame: DataFrame, sink: TopicSink) -> None:
        records = records_of(frame, sink)
        records.write.format("kafka").options(**self._kafka.connection, topic=sink.topic).save()


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


def write_hidden(frame: DataFrame, directory: Path, batch_id: int) -> Path:
    """Writes a batch beside the table, under a name that readers of Parquet skip; returns where."""
    being_written = directory / f".{_BATCH_PREFIX}{batch_id}.being-written"
    frame.write.mode("overwrite").parquet(spark_path(being_written))
    return being_written


def publish(being_written: Path, directory: Path, batch_id: int) -> None:
    """Has what was written take its place in the table by one rename, so that no reader sees a part of a batch.

    A batch without rows gets no place.
    """
    target = directory / f"{_BATCH_PREFIX}{batch_id}"
    replaced = directory / f".{_BATCH_PREFIX}{batch_id}.replaced"
    if target.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        target.rename(replaced)
    if _has_rows(being_written):
        being_written.rename(target)
    else:
        shutil.rmtree(being_written)
    shutil.rmtree(replaced, ignore_errors=True)


def _has_rows(batch: Path) -> bool:
    from pyarrow import parquet

    return any(parquet.read_metadata(part).num_rows > 0 for part in batch.glob("*.parquet"))


def check_tables(pipeline: Pipeline, state: StateDirectory, state_id: str | None) -> None:
    """Sees that the pipeline's Parquet tables hold what was written from the state of this id, and changes nothing.

    Raises PipelineError when a directory holds anything else: batches of two counts in a table would make a wrong one.
    """
    for sink in pipeline.sinks:
        if isinstance(sink, ParquetSink):
            _check_table(pipeline, sink, state, state_id)


def prepare_tables(pipeline: Pipeline, state: StateDirectory, state_id: str) -> None:
    """Makes the directories of the pipeline's Parquet tables, and removes what a killed run was writing into them.

    Raises PipelineError as `check_tables` does, and when a directory cannot be used.
    """
    for sink in pipeline.sinks:
        if isinstance(sink, ParquetSink):
            try:
                _check_table(pipeline, sink, state, state_id)
                _prepare_table(pipeline, sink, state_id)
            except OSError as error:
                message = f"the Parquet directory {sink.directory} cannot be used: {error.strerror or error}"
                raise pipeline.error(f"{message}; name another, or correct that", sink.line) from error


def _check_table(pipeline: Pipeline, sink: ParquetSink, state: StateDirectory, state_id: str | None) -> None:
    names = [entry.name for entry in sink.directory.iterdir()] if sink.directory.exists() else []
    content = sorted(name for name in names if not name.startswith((".", "_")))
    batches = [name.removeprefix(_BATCH_PREFIX) for name in content if name.startswith(_BATCH_PREFIX)]
    owner = _owner(sink.directory / MARKER)
    if content and (owner is None or len(batches) < len(content)):
        foreign = next((name for name in content if not name.startswith(_BATCH_PREFIX)), content[0])
        raise pipeline.error(
            f"{sink.directory} holds files that no pipeline has written ({foreign}): give the table its own directory",
            sink.line,
        )
    has_state = state.has_batches()
    if owner is None and has_state:
        raise pipeline.error(
            f"{sink.directory} lacks batches that {pipeline.state_directory} says were written: restore "
            "it, or remove that too to compute everything again",
            sink.line,
        )
    if owner is not None and content and (owner.get("state_id") != state_id or not has_state):
        whose = f"pipeline {owner.get('pipeline')}" if owner.get("pipeline") != pipeline.name else "an earlier state"
        what = "goes on from another" if has_state else "begins anew"
        raise pipeline.error(
            f"{sink.directory} holds a table written from {whose}, and this run {what}: remove {sink.directory}, "
            "or give the table another directory",
            sink.line,
        )
    newest = max((int(batch) for batch in batches if batch.isdecimal()), default=-1)
    begun = state.last_batch_id(sink.from_view)
    if newest > begun:
        raise pipeline.error(
            f"{sink.directory} has batch {newest}, and {state.directory} knows of none after {begun}, as with an "
            "older copy: restore both from the same time, or remove both to compute everything again",
            sink.line,
        )


def _prepare_table(pipeline: Pipeline, sink: ParquetSink, state_id: str) -> None:
    sink.directory.mkdir(parents=True, exist_ok=True)
    wanted = {"pipeline": pipeline.name, "state_id": state_id}
    if _owner(sink.directory / MARKER) != wanted:
        write_json(sink.directory / MARKER, wanted)
    for entry in sink.directory.iterdir():
        if entry.name.startswith(f".{_BATCH_PREFIX}"):
            shutil.rmtree(entry, ignore_errors=True)


def _owner(marker: Path) -> Mapping[str, object] | None:
    try:
        content = json.loads(marker.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
