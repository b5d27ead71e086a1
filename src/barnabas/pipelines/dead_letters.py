"""Records that do not fit their schema, as letters to the topic NAME.dlq: what they were, and why and where they came.

A batch that has such records is read once more, these alone, by the query that has left them out. Where several read
the source, the first that comes to a record writes its letter (`letter_places`): a schema may change while they are
apart, and then they do not leave out the same.

INVARIANT: a record that a query leaves out has a letter in the topic before Spark notes that query's batch as done. It
has one: where there may be one already, the topic is looked through. A letter is doubled where the clocks of those who
write to the topic are more than a minute apart, or the topic has forgotten it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from barnabas.client.admin import Admin, NewTopic
from barnabas.client.client import Client
from barnabas.client.errors import ClientError
from barnabas.kernel.real_host import RealHost, run
from barnabas.pipelines.advice import views_behind
from barnabas.pipelines.batch_decodings import BatchDecodings
from barnabas.pipelines.batch_offsets import BatchRange, batch_range
from barnabas.pipelines.cluster_access import client_settings
from barnabas.pipelines.definition import (
    OnError,
    Pipeline,
    PipelineError,
    PipelineUnreachableError,
    Source,
    SourceFormat,
)
from barnabas.pipelines.letter_places import LetterPlaces, Parts
from barnabas.pipelines.letters import (
    BATCH_HEADER,
    OFFSET_HEADER,
    PARTITION_HEADER,
    PIPELINE_HEADER,
    REASON_HEADER,
    SOURCE_HEADER,
    TIMESTAMP_HEADER,
    TOPIC_HEADER,
)
from barnabas.pipelines.sources import ROW_BYTES_MAX, KafkaOptions, records_of_batch, refused_metric, with_document
from barnabas.pipelines.spark_internals import observed_in_batch
from barnabas.pipelines.state_directory import StateDirectory
from barnabas.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from barnabas.client.cluster import TopicInfo

_HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
_TIMEOUT_MS: Final = 30_000
_CLOCKS_APART_MS: Final = 60_000
_PLACE: Final = "_barnabas_place"
_SCHEMA_CHARACTERS_MAX: Final = 1_000
_LOGGER = logging.getLogger("barnabas.pipelines.dead_letters")
_LOGGER.addHandler(logging.NullHandler())
_FORMS: Final = {
    SourceFormat.JSON: "one JSON object",
    SourceFormat.AVRO: "one Avro record",
    SourceFormat.PROTOBUF: "one message of Protocol Buffers",
    SourceFormat.CSV: "one line of CSV",
    SourceFormat.RAW: "a value",
}


def letter_sources(pipeline: Pipeline) -> Mapping[str, tuple[Source, ...]]:
    """By view: the sources of which its query writes what it leaves out as letters."""
    found: dict[str, tuple[Source, ...]] = {}
    for query in pipeline.queries:
        behind = (pipeline.source(view) for view in views_behind(pipeline, query.from_view))
        mine = (source for source in behind if source is not None and source.on_error is OnError.TOPIC)
        found[query.from_view] = tuple(mine)
    return found


def where_they_go(pipeline: Pipeline) -> str:
    """Where records that do not fit go, in words."""
    if any(letter_sources(pipeline).values()):
        return f"they are left out, and sent to the topic {pipeline.letters_topic}"
    return "they are left out (`on_error: skip`)"


class LetterBook:
    """Where letters of the sources of a run may be, for the queries of all its threads."""

    def __init__(self, pipeline: Pipeline, state: StateDirectory, now: Callable[[], float] = time.time) -> None:
        """Made before the first query of a run begins. `now` is the wall clock, in seconds."""
        self._now = now
        self._locks = {source.name: threading.Lock() for source in pipeline.sources}
        self._places: dict[str, LetterPlaces] = {}
        since_ms = state.begun_since_ms()
        for source in pipeline.sources:
            read: dict[int, tuple[int, int]] = {}
            for query in pipeline.queries:
                for number, end in _begun(state, query.from_view).get(source.topic, {}).items():
                    if end > read.get(number, (0, 0))[1]:
                        read[number] = (0, end)
            self._places[source.name] = LetterPlaces(read, since_ms)

    @property
    def now_ms(self) -> int:
        """The wall clock."""
        return round(self._now() * 1000)

    @contextlib.contextmanager
    def of(self, source: Source) -> Iterator[LetterPlaces]:
        """What is known of a source's letters, for this thread alone while the block lasts."""
        with self._locks[source.name]:
            yield self._places[source.name]


def _begun(state: StateDirectory, view: str) -> Mapping[str, Mapping[int, int]]:
    """Where the last batch ends that a query has begun, by topic; of several readers of a topic the furthest."""
    last = state.batches_done(view).begun
    return {} if last < 0 else state.end_offsets(view, last, furthest=True)


class LetterWriter:
    """Writes the letters of the batches of one query, on the thread that writes the batch."""

    def __init__(
        self,
        pipeline: Pipeline,
        view: str,
        kafka: KafkaOptions,
        state: StateDirectory,
        session: SparkSession,
        book: LetterBook,
    ) -> None:
        self._pipeline = pipeline
        self._view = view
        self._sources = letter_sources(pipeline)[view]
        self._kafka = kafka
        self._state = state
        self._session = session
        self._book = book
        self.decodings = BatchDecodings(pipeline, view, self._sources, state)
        self._has_topic = False

    def write(self, batch_id: int) -> None:
        """Writes the letters of a batch whose rows Spark has just computed, as far as they are not there.

        Without a bad record that costs a question to Spark, no reading. Raises PipelineError, and what Spark raises.
        """
        for source in self._sources:
            refused = observed_in_batch(self._session, self._view, refused_metric(source.name))
            checkpoint = self._state.checkpoint(self._view)
            place = batch_range(checkpoint, batch_id, source.topic, is_widest=True)
            # Of a topic that is read twice the count may be of one reader, and of records that the other has not yet.
            is_counted = refused is not None and not place.is_read_twice
            if not place.ends or (is_counted and refused == 0):
                continue
            with self._book.of(source) as places:
                self._write(source, place, places, f"{self._view}/{batch_id}", is_counted=is_counted)

    def _write(self, source: Source, place: BatchRange, places: LetterPlaces, batch: str, *, is_counted: bool) -> None:
        parts = parts_of(place)
        if not source.registered_parts:
            # What fits is the same for all queries of a run, but where a registry may know more when the next one asks.
            parts = places.rest(parts)
        if not parts:
            return
        records = records_of_batch(self._session, source, _range_of(parts, place), self._kafka, has_headers=True)
        letters = letters_of(records, source, self._pipeline.name, batch)
        if not is_counted and letters.isEmpty():
            return
        has_letters = self._make_topic(source)
        since_ms = places.since_ms(parts)
        places.begin(parts, self._book.now_ms)
        topic = self._pipeline.letters_topic
        if has_letters and since_ms is not None:
            letters = unwritten(letters, letters_since(self._session, topic, since_ms, self._kafka))
        letters.write.format("kafka").options(**self._kafka.writing, topic=topic).save()
        places.done(parts)

    def _make_topic(self, source: Source) -> bool:
        """Whether the topic was there before."""
        was_there = self._has_topic or make_letters_topic(self._pipeline, source, self._kafka.bootstrap_servers)
        self._has_topic = True
        return was_there


def parts_of(place: BatchRange) -> Parts:
    """The same as parts; of a partition that is new with the batch the part begins at 0."""
    ranges = {number: (place.starts.get(number, 0), end) for number, end in place.ends.items()}
    return {number: (start, end) for number, (start, end) in ranges.items() if start < end}


def _range_of(parts: Parts, place: BatchRange) -> BatchRange:
    starts = {number: start for number, (start, _) in parts.items() if start > 0 or number in place.starts}
    return BatchRange(starts, {number: end for number, (_, end) in parts.items()}, place.is_read_twice)


def letters_since(session: SparkSession, topic: str, since_ms: int, kafka: KafkaOptions) -> DataFrame:
    """What the topic of letters has since a time, a minute before that included."""
    options = {
        **kafka.reading,
        "subscribe": topic,
        "startingTimestamp": str(max(since_ms - _CLOCKS_APART_MS, 0)),
        # Of a partition that has none so new nothing is read.
        "startingOffsetsByTimestampStrategy": "latest",
        "includeHeaders": "true",
        "failOnDataLoss": "false",
    }
    return session.read.format("kafka").options(**options).load()


def unwritten(letters: DataFrame, written: DataFrame) -> DataFrame:
    """Those of the letters whose records have none among the records of the topic, `written`, which have `headers`."""
    known = written.select(_place_of_letter().alias(_PLACE))
    return letters.withColumn(_PLACE, _place_of_letter()).join(known, _PLACE, "left_anti").drop(_PLACE)


def _place_of_letter() -> Column:
    """Of which record of which source a letter is, by its headers; the last of a name is the letter's own."""
    from pyspark.sql import functions as F  # noqa: N812

    def told(name: str) -> Column:
        found = F.filter(F.col("headers"), lambda header: header.key == name)
        return F.try_element_at(found, F.lit(-1)).value.cast("string")

    return F.concat_ws("/", *map(told, (SOURCE_HEADER, TOPIC_HEADER, PARTITION_HEADER, OFFSET_HEADER)))


def letters_of(records: DataFrame, source: Source, pipeline: str, batch: str) -> DataFrame:
    """The letters of those of the source's records that do not fit: `key`, `value` and `headers` as they came, the
    headers of the reason behind them. `records` have the columns of Spark's Kafka source, with `headers`.
    """
    from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it

    rows, decoding = with_document(records, source)
    is_binary = source.format in (SourceFormat.AVRO, SourceFormat.PROTOBUF)
    not_text = F.lit("the value is not valid UTF-8")
    not_fitting = F.lit(reason_of(source))
    reason = not_fitting if is_binary else F.when(F.is_valid_utf8(F.col("value")), not_fitting).otherwise(not_text)
    if decoding.key_fits is not None:
        reason = F.when(decoding.key_fits, reason).otherwise(F.lit(reason_of_key(source)))
    if source.requires_key:
        reason = F.when(F.col("key").isNull(), F.lit("the record has no key")).otherwise(reason)
    ours = {
        REASON_HEADER: reason,
        TOPIC_HEADER: F.col("topic"),
        PARTITION_HEADER: F.col("partition"),
        OFFSET_HEADER: F.col("offset"),
        TIMESTAMP_HEADER: F.unix_millis("timestamp"),
        PIPELINE_HEADER: F.lit(pipeline),
        SOURCE_HEADER: F.lit(source.name),
        BATCH_HEADER: F.lit(batch),
    }
    before = F.coalesce(F.col("headers"), F.array().cast(_HEADERS_TYPE))
    headers = F.concat(before, F.array(*(_header(name, value) for name, value in ours.items())))
    return rows.where(~decoding.fits).select("key", "value", headers.alias("headers"))


def reason_of(source: Source) -> str:
    """Why a value of the source is none, in words: each letter has them, so that a long schema is cut short."""
    return f"the value is not {_FORMS[source.format]} of the schema {_shortened(source.schema)}"


def reason_of_key(source: Source) -> str:
    """The same of a key that has a format."""
    assert source.key_format is not None
    form = "Avro" if source.key_format.format is SourceFormat.AVRO else "Protocol Buffers"
    return f"the key is not {form} of the type {_shortened(source.key_format.type)}"


def _shortened(schema: str) -> str:
    return schema if len(schema) <= _SCHEMA_CHARACTERS_MAX else f"{schema[:_SCHEMA_CHARACTERS_MAX]} ..."


def _header(name: str, value: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))


def new_letters_topic(name: str, source: TopicInfo, alive: int) -> NewTopic:
    """The topic of the letters of a source, with as many partitions and replicas as that has; with a replica less for
    each that so many brokers cannot hold, since the pipeline is not to wait for one that is down.
    """
    replicas = max(len(partition.replicas) for partition in source.partitions.values())
    configs = {"cleanup.policy": "delete", "max.message.bytes": str(ROW_BYTES_MAX)}
    return NewTopic(name, len(source.partitions), max(min(replicas, alive), 1), configs)


def make_letters_topic(pipeline: Pipeline, source: Source, bootstrap_servers: str) -> bool:
    """Makes the topic of the letters where there is none; whether there was one. Raises PipelineUnreachableError when
    no answer comes, and PipelineError when it may not be made.
    """
    topic = pipeline.letters_topic
    settings = client_settings(pipeline, bootstrap_servers)

    async def make(host: RealHost) -> bool:
        client = Client(host, settings, _LOGGER)
        try:
            await client.start(_TIMEOUT_MS)
            async with Admin(client) as admin:
                if topic in await admin.list_topics(_TIMEOUT_MS):
                    return True
                described = (await admin.describe_topics([source.topic], _TIMEOUT_MS))[source.topic]
                _, _, alive = await admin.describe_cluster(_TIMEOUT_MS)
                await admin.create_topics([new_letters_topic(topic, described, len(alive))], _TIMEOUT_MS)
                return False
        finally:
            await client.close()

    try:
        return run(make, name="dead-letters")
    except KafkaError as error:
        if error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
            return True
        raise PipelineError(
            f'the topic "{topic}" of dead letters could not be made: {error}; make it, or set `on_error: skip` or '
            f'`on_error: fail` at source "{source.name}"',
            path=pipeline.path,
            line=source.line,
        ) from error
    except (ClientError, OSError) as error:
        message = f'the topic "{topic}" of dead letters could not be looked for: {error}'
        raise PipelineUnreachableError(f"{message}; run it again when the brokers answer") from error
