"""Topics as sinks: rows as records; at least once by Spark's own sink, exactly once by way of the outbox."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from barnabas.pipelines.definition import Pipeline, SourceFormat, TopicSink
from barnabas.pipelines.sink import Offsets, SinkWriter, Written
from barnabas.pipelines.sources import KafkaOptions
from barnabas.pipelines.spark_messages import spark_message
from barnabas.pipelines.staged_batches import NO_VALUE, SENDER_COLUMN, StagedBatch
from barnabas.pipelines.state_directory import spark_path
from barnabas.pipelines.topic_encoding import key_of_row, missing_and_strange, value_of_row
from barnabas.pipelines.topic_outboxes import QueryOutbox

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_WRITERS = "spark.sql.maxConcurrentOutputFileWriters"


def records_of(frame: DataFrame, sink: TopicSink) -> DataFrame:
    """Rows as records of a topic: `value`, and `key` where the sink has one, both JSON objects of all their columns.

    A TIMESTAMP has six digits of a second and its zone, which is Z; nulls are written. A row that deletes has no value.
    """
    as_json = replace(sink, key_format=None)
    key = [key_of_row(frame, as_json).alias("key")] if sink.key else []
    return frame.select(value_of_row(frame, replace(sink, format=SourceFormat.JSON)).alias("value"), *key)


def encoded_records_of(frame: DataFrame, sink: TopicSink) -> DataFrame:
    """The same, with value and key as the sink's formats have them."""
    if sink.format is SourceFormat.JSON and sink.key_format is None:
        return records_of(frame, sink)
    key = [key_of_row(frame, sink).alias("key")] if sink.key else []
    return frame.select(value_of_row(frame, sink).alias("value"), *key)


def stage_records(frame: DataFrame, sink: TopicSink, directory: Path) -> None:
    """Writes the records of a batch to files: a line with the key, where there is one, and one with the value. JSON has
    no line breaks; what is no JSON is in base64. The line of a record without a value is empty, or NO_VALUE.

    For several senders the files are in directories, one for each; all records of a key are in one of them, in their
    order.
    """
    from pyspark.sql import functions as F  # noqa: N812

    def line(name: str, *, is_text: bool) -> Column:
        content = F.col(name) if is_text else F.translate(F.base64(name), "\r\n", "")
        return F.coalesce(content, F.lit("" if is_text else NO_VALUE.decode()))

    columns = [line("key", is_text=sink.key_format is None)] if sink.key else []
    columns.append(line("value", is_text=sink.format is SourceFormat.JSON))
    line_of_record = F.concat_ws("\n", *columns).alias("value")
    records = encoded_records_of(frame, sink)
    if sink.senders == 1:
        records.select(line_of_record).write.mode("overwrite").text(spark_path(directory))
        return
    place = F.crc32(F.col("key").cast("binary")) if sink.key else F.monotonically_increasing_id()
    sender = F.coalesce(F.pmod(place, F.lit(sink.senders)), F.lit(0)) + 1
    lines = records.select(line_of_record, sender.cast("int").alias(SENDER_COLUMN))
    with _unsorted(frame.sparkSession, sink.senders):
        writer = lines.write.mode("overwrite").option("partitionOverwriteMode", "static")
        writer.partitionBy(SENDER_COLUMN).text(spark_path(directory))


@contextlib.contextmanager
def _unsorted(session: SparkSession, directories: int) -> Iterator[None]:
    """Each task has a file open for each directory meanwhile; by default Spark would sort rows by directory, and says
    nothing of the order of those within one.
    """
    before = session.conf.get(_WRITERS)
    session.conf.set(_WRITERS, str(directories))
    try:
        yield
    finally:
        session.conf.set(_WRITERS, before)


class TopicWriter(SinkWriter):
    """A topic that gets the records of a batch each time that the batch is done."""

    def __init__(self, pipeline: Pipeline, sink: TopicSink, kafka: KafkaOptions | None = None) -> None:
        """`kafka` is needed where it writes."""
        self._pipeline = pipeline
        self._sink = sink
        self._kafka = kafka

    def check_rows(self, session: SparkSession, frame: DataFrame) -> None:  # noqa: ARG002
        """Sees that the rows can be written as JSON, and that `delete` is a BOOLEAN of theirs."""
        from pyspark.errors import PySparkException
        from pyspark.sql import functions as F  # noqa: N812

        missing, strange = missing_and_strange(frame, self._sink)
        if missing or strange:
            is_left_out = bool(missing) and missing[0].lower() == (self._sink.delete or "").lower()
            what = (
                f"lacks {missing[0]}{', which is in no record, since `delete` names it' if is_left_out else ''}"
                if missing
                else f"has {strange[0]}, which the schema of {self._sink.topic} has not"
            )
            have = ", ".join(self._sink.fields)
            message = f"{self._sink.from_view} {what}; the schema's fields are {have}"
            raise self._pipeline.error(message, self._sink.from_line)
        if self._sink.delete is not None:
            kind = {name.lower(): kind for name, kind in frame.dtypes}.get(self._sink.delete.lower())
            if kind != "boolean":
                what = f"{kind.upper()}, and must be BOOLEAN" if kind else f"no column of {self._sink.from_view}"
                message = f"delete: {self._sink.delete} is {what}: make it so in a step"
                raise self._pipeline.error(message, self._sink.delete_line)
        try:
            frame.select(F.to_json(F.struct("*"))).schema  # noqa: B018  # has Spark analyse it
        except PySparkException as error:
            message = f"{self._sink.from_view} cannot be written as JSON: {spark_message(error)}"
            raise self._pipeline.error(message, self._sink.from_line) from error

    def write(self, frame: DataFrame, batch_id: int) -> Written:  # noqa: ARG002
        """Sends the records, as often as the batch is done."""
        if self._kafka is None:
            raise RuntimeError("a topic is written without brokers")
        options = self._kafka.writing_to(self._sink)
        encoded_records_of(frame, self._sink).write.format("kafka").options(**options).save()
        return Written(is_computed=True, is_held=False)


class OutboxWriter(SinkWriter):
    """The topics of a query that get each batch once, all in one transaction. That the outbox was opened is its
    recovery.
    """

    def __init__(self, outbox: QueryOutbox) -> None:
        self._outbox = outbox
        self._staged: StagedBatch | None = None
        self._is_to_publish = False

    def write(self, frame: DataFrame, batch_id: int) -> Written:
        """Has the records written beside the outbox, unless they are staged, or were sent before."""
        self._staged, self._is_to_publish = None, False
        if self._outbox.is_sent(batch_id):
            return Written(is_computed=False, is_held=False)
        self._staged = self._outbox.find(batch_id)
        if self._staged is not None:
            return Written(is_computed=False, is_held=True)
        for number, sink in enumerate(self._outbox.sinks):
            stage_records(frame, sink, self._outbox.being_written(batch_id, number))
        self._is_to_publish = True
        return Written(is_computed=True, is_held=True)

    def commit(self, batch_id: int, offsets: Offsets) -> None:  # noqa: ARG002
        """Stages what was written, and sends it. Not before: from then on it is what it is, also where a schema is
        changed before it is sent, and so it must have its letters by then.
        """
        staged, is_new = self._staged, self._is_to_publish
        self._is_to_publish = False
        if is_new:
            staged = self._staged = self._outbox.publish(batch_id)
        if staged is not None:
            self._outbox.deliver(staged)
