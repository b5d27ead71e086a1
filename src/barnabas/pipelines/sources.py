"""Topics as Spark's frames: records decoded by the source's schema, with where they stand beside it.

A record that does not fit the schema stops the run and is named, or is left out and counted, as the source's `on_error`
says; it never becomes a row of nulls, and never vanishes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from barnabas.pipelines.batch_offsets import BatchRange
from barnabas.pipelines.definition import (
    DELETED_COLUMN,
    KEY_COLUMN,
    OFFSET_COLUMN,
    PARTITION_COLUMN,
    TIMESTAMP_COLUMN,
    TOPIC_COLUMN,
    OnError,
    ReadMode,
    Source,
    StartingPosition,
    Tombstones,
    TopicSink,
)
from barnabas.pipelines.other_decodings import decoding_of, key_decoding

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BAD_RECORD = "barnabas-bad-record:"
"""Begins the message of the error of a record that cannot be read; a JSON object follows, see `_refusal`."""

BAD_KEY = "key not of its schema"
"""Its fault, where the key is at fault."""

RECORD_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
}
"""The columns of Spark's Kafka source that are used here, with their types in DDL."""

ROW_BYTES_MAX = 32 * 1024 * 1024
"""The largest record that is written, key and value; a broker takes no request that is larger than 100 MiB."""

BUFFER_BYTES = 2 * ROW_BYTES_MAX
"""What waits to be sent, in each task that writes."""

ANSWER_MS_MAX = 6_000
FETCH_WAIT_MS = 50
"""What clients of a run have where nothing else is said (`topic_options`)."""

_EARLIEST = -2
_VALUE_CHARACTERS_MAX = 200
_REFUSED_METRIC = "barnabas_refused_"
_DECODED = "_barnabas_decoded"
_DECODED_KEY = "_barnabas_decoded_key"
_FITS = "_barnabas_fits"
_RAW = "_barnabas_raw"
_NEWEST = "_barnabas_newest"


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """How Spark reads from the brokers and writes to them, so that a broker's end does not end a run."""

    bootstrap_servers: str
    access: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """How Spark comes in there (`cluster_access`)."""

    @property
    def connection(self) -> dict[str, str]:
        """Options of every source and sink."""
        return {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            # A broker that hangs, or is gone without a word, costs so much and not half a minute.
            "kafka.request.timeout.ms": str(ANSWER_MS_MAX),
            "kafka.reconnect.backoff.max.ms": "1000",
            **dict(self.access),
        }

    @property
    def writing(self) -> dict[str, str]:
        """Options of every sink. How large a record may be is the topic's to say; a producer's own bound is 1 MiB."""
        return {
            **self.connection,
            "kafka.max.request.size": str(ROW_BYTES_MAX),
            "kafka.buffer.memory": str(BUFFER_BYTES),
        }

    @property
    def reading(self) -> dict[str, str]:
        """Options of every source. What a transaction has taken back is not read."""
        return {
            **self.connection,
            # Java's admin client waits that long for a leader that has died; only then Spark asks again.
            "kafka.default.api.timeout.ms": str(ANSWER_MS_MAX),
            # A reader to a partition's end would wait for the fetch that is ahead of its ListOffsets.
            "kafka.fetch.max.wait.ms": str(FETCH_WAIT_MS),
            "kafka.isolation.level": "read_committed",
            "fetchOffset.numRetries": "8",
            "fetchOffset.retryIntervalMs": "500",
        }

    def reading_of(self, source: Source) -> dict[str, str]:
        """Options of a source: those that its file has (`topic_options`) count before the others."""
        own = {option.name: option.value for option in source.options}
        found = {**self.reading, **own}
        request, api = "kafka.request.timeout.ms", "kafka.default.api.timeout.ms"
        if api not in own and int(found[request]) > int(found[api]):
            found[api] = found[request]  # Java's admin client refuses to be made otherwise
        return found

    def writing_to(self, sink: TopicSink) -> dict[str, str]:
        """The same of a topic that Spark's sink writes."""
        return {**self.writing, **{option.name: option.value for option in sink.options}, "topic": sink.topic}


def stream_frame(
    session: SparkSession, source: Source, kafka: KafkaOptions, starts: Mapping[int, int] | None = None
) -> DataFrame:
    """The records of a topic as they come; a first run begins at `starts`, offsets by partition, where there are some.
    Reads nothing yet, and asks no broker.
    """
    options = {
        **kafka.reading_of(source),
        "subscribe": source.topic,
        "maxOffsetsPerTrigger": str(source.max_records_per_batch),
        "failOnDataLoss": "false" if source.allow_data_loss else "true",
    }
    if starts:
        options["startingOffsets"] = json.dumps({source.topic: {str(each): at for each, at in starts.items()}})
    elif source.starting.position is StartingPosition.TIMESTAMP:
        options["startingTimestamp"] = str(source.starting.timestamp_ms)
        # A partition without a record that new is read from its end.
        options["startingOffsetsByTimestampStrategy"] = "latest"
    else:
        options["startingOffsets"] = source.starting.position.value
    return decoded(session.readStream.format("kafka").options(**options).load(), source)


def range_frame(
    session: SparkSession, source: Source, kafka: KafkaOptions, starts: Mapping[int, int], ends: Mapping[int, int]
) -> DataFrame:
    """The records of a part of a topic, offsets by partition: what is there of it. Each start has an end."""
    options = {
        **kafka.reading_of(source),
        "assign": json.dumps({source.topic: sorted(ends)}),
        "startingOffsets": json.dumps({source.topic: {str(number): at for number, at in starts.items()}}),
        "endingOffsets": json.dumps({source.topic: {str(number): at for number, at in ends.items()}}),
        "failOnDataLoss": "false",  # compaction and retention take away old records while it is read
    }
    return session.read.format("kafka").options(**options).load().select(*RECORD_TYPES)


def records_of_batch(
    session: SparkSession, source: Source, place: BatchRange, kafka: KafkaOptions, *, has_headers: bool = False
) -> DataFrame:
    """The records of a topic that a batch has, read once more."""
    partitions = sorted(place.ends)
    starts = {str(number): place.starts.get(number, _EARLIEST) for number in partitions}
    ends = {str(number): place.ends[number] for number in partitions}
    options = {
        **kafka.reading_of(source),
        "assign": json.dumps({source.topic: partitions}),
        "startingOffsets": json.dumps({source.topic: starts}),
        "endingOffsets": json.dumps({source.topic: ends}),
        "includeHeaders": "true" if has_headers else "false",
        "failOnDataLoss": "false" if source.allow_data_loss else "true",
    }
    return session.read.format("kafka").options(**options).load()


def newest_rows(records: DataFrame, source: Source) -> DataFrame:
    """The newest record of each key of a topic's records, without the keys whose newest record is a tombstone.

    Within a partition the newest is that of the highest offset, as compaction has it; of a key in several partitions
    (their number was raised) it is that of the newest timestamp. A record without a key is refused.
    """
    return decoded(newest_records(records), source)


def newest_records(records: DataFrame) -> DataFrame:
    """The newest record of each key, also where it is a tombstone."""
    from pyspark.sql import functions as F  # noqa: N812

    records = records.select(*RECORD_TYPES)
    keyed = _checked(records, F.col("key").isNotNull(), "no key")
    newest = F.struct(*RECORD_TYPES)
    in_partition = keyed.groupBy("key", "partition").agg(F.max_by(newest, "offset").alias(_NEWEST))
    by_time = F.struct(f"{_NEWEST}.timestamp", "partition")
    of_all = in_partition.groupBy("key").agg(F.max_by(F.col(_NEWEST), by_time).alias(_NEWEST))
    return of_all.select(f"{_NEWEST}.*")


def empty_frame(session: SparkSession, source: Source) -> DataFrame:
    """A frame as that of the source, names, types and all, without a topic behind it: for checking."""
    from pyspark.sql import functions as F  # noqa: N812

    columns = [F.lit(None).cast(kind).alias(name) for name, kind in RECORD_TYPES.items()]
    if source.read is ReadMode.TABLE:
        return decoded(session.range(0).select(*columns), source)
    return decoded(session.readStream.format("rate").load().select(*columns), source)


def decoded(records: DataFrame, source: Source, key_as: str | None = None) -> DataFrame:
    """Records as rows: the columns of the schema, then RECORD_COLUMNS; those without a value are no rows, unless they
    are kept, with DELETED_COLUMN before RECORD_COLUMNS. Behind them the key's bytes may have a column of this name.

    Raises pyspark's ParseException for a schema that Spark does not take.
    """
    from pyspark.sql import functions as F  # noqa: N812

    rows, decoding = with_document(records, source)
    deleted = [F.col("value").isNull().alias(DELETED_COLUMN)] if source.tombstones is Tombstones.KEEP else []
    if source.on_error is OnError.FAIL:
        if decoding.key_fits is not None:
            rows = _checked(rows, decoding.key_fits, BAD_KEY)
        fitting = _checked(rows, decoding.fits, "not of the schema")
    else:
        fitting = _counted(rows, decoding.fits, refused_metric(source.name))
    return fitting.select(
        *(column.alias(name) for name, column in decoding.columns.items()),
        *deleted,
        decoding.key.alias(KEY_COLUMN),
        F.col("topic").alias(TOPIC_COLUMN),
        F.col("partition").alias(PARTITION_COLUMN),
        F.col("offset").alias(OFFSET_COLUMN),
        F.col("timestamp").alias(TIMESTAMP_COLUMN),
        *([] if key_as is None else [F.col("key").alias(key_as)]),
    )


@dataclass(frozen=True, slots=True)
class RecordDecoding:
    """How records of a source become rows: whether one fits, which is never NULL, the columns of its value, its key;
    of a key that is no text also whether that fits.
    """

    fits: Column
    columns: Mapping[str, Column]
    key: Column
    key_fits: Column | None = None


def with_document(records: DataFrame, source: Source) -> tuple[DataFrame, RecordDecoding]:
    """The records that are rows, with what the decoding needs beside them, and the decoding by the source's schema.

    Raises pyspark's ParseException for a schema that Spark does not take.
    """
    from pyspark.sql import functions as F  # noqa: N812

    decoding = decoding_of(source, _DECODED, _RAW)
    of_key = key_decoding(source, _DECODED_KEY)
    has_value, fits, prepared = F.col("value").isNotNull(), decoding.fits, decoding.prepared
    key, key_fits = _text_of_key(), None
    if source.tombstones is Tombstones.KEEP:
        fits = ~has_value | fits
    if source.requires_key:
        fits &= F.col("key").isNotNull()
    if of_key is not None:
        key, key_fits, prepared = of_key.columns[KEY_COLUMN], of_key.fits, (*prepared, *of_key.prepared)
        fits &= key_fits
    if source.tombstones is not Tombstones.KEEP:
        records = records.where(has_value)
    records = records.select("*", *prepared)
    if decoding.drops is not None:
        records = records.where(~decoding.drops)
    return records, RecordDecoding(fits, decoding.columns, key, key_fits)


def refused_metric(source: str) -> str:
    """The name of the metric by which Spark tells how many records of a source did not fit."""
    return _REFUSED_METRIC + source


def refused_records(observed: Mapping[str, Any]) -> int:
    """How many records of a batch did not fit, of all its sources: from `observedMetrics` of Spark's progress."""
    return sum(int(each["records"]) for name, each in observed.items() if name.startswith(_REFUSED_METRIC))


def _counted(records: DataFrame, fits: Column, metric: str) -> DataFrame:
    """The same records without those that do not fit, which Spark counts on the way.

    It moves no condition of the user's SQL in front of a place where it counts, so that none is left out uncounted.
    """
    from pyspark.sql import functions as F  # noqa: N812

    told = records.withColumn(_FITS, fits)
    return told.observe(metric, F.count_if(~F.col(_FITS)).alias("records")).where(F.col(_FITS))


def _checked(records: DataFrame, fits: Column, fault: str) -> DataFrame:
    """The same records; the query fails at the first that does not fit.

    The number of the task's partition has no part in the decision. It makes the condition one that Spark takes for
    indeterminate, and so leaves where it is: otherwise a condition of the user's SQL, or one that Spark infers from a
    join, would be moved in front of it, and would drop the nulls of a bad record before anyone looked at it.
    """
    from pyspark.sql import functions as F  # noqa: N812

    refused = F.raise_error(_refusal(fault)).cast("boolean")
    return records.where(F.when(fits & (F.spark_partition_id() >= 0), F.lit(True)).otherwise(refused))


def _text_of_key() -> Column:
    """The key as text; of bytes that are no text, which readers of Parquet could not decode, X'...' in hexadecimal."""
    from pyspark.sql import functions as F  # noqa: N812

    key = F.col("key")
    in_hexadecimal = F.concat(F.lit("X'"), F.hex(key), F.lit("'"))
    return F.when(key.isNull() | F.is_valid_utf8(key), key.cast("string")).otherwise(in_hexadecimal)


def _refusal(fault: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    place = F.struct(
        F.lit(fault).alias("fault"),
        "topic",
        "partition",
        "offset",
        F.substring(F.make_valid_utf8(F.col("value").cast("string")), 1, _VALUE_CHARACTERS_MAX).alias("value"),
    )
    return F.concat(F.lit(BAD_RECORD), F.to_json(place))
