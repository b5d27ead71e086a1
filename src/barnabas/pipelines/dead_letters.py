"""Records that do not fit their schema, as letters to the topic NAME.dlq: what they were, and why and where they came.

A batch that has such records is read once more, these alone, by the one query that is to write the letters of their
source. INVARIANT: the letters of a batch are in the topic before Spark notes that the batch is done, so that a crash
may double a letter and loses none. What fits is decided by the record alone, never by a clock: every query that reads
the source leaves out the same records.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from barnabas.client.admin import Admin, NewTopic
from barnabas.client.client import Client
from barnabas.client.errors import ClientError
from barnabas.kernel.real_host import RealHost, run
from barnabas.pipelines.advice import views_behind
from barnabas.pipelines.batch_offsets import batch_range
from barnabas.pipelines.cluster_access import client_settings
from barnabas.pipelines.definition import (
    OnError,
    Pipeline,
    PipelineError,
    PipelineUnreachableError,
    Source,
    SourceFormat,
)
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
    """By view: the sources whose letters its query writes. Of all queries that read a source it is the first."""
    found: dict[str, tuple[Source, ...]] = {}
    owned: set[str] = set()
    for query in pipeline.queries:
        behind = (pipeline.source(view) for view in views_behind(pipeline, query.from_view))
        mine = [source for source in behind if source is not None and source.on_error is OnError.TOPIC]
        found[query.from_view] = tuple(source for source in mine if source.name not in owned)
        owned.update(source.name for source in mine)
    return found


def where_they_go(pipeline: Pipeline) -> str:
    """Where records that do not fit go, in words."""
    if any(letter_sources(pipeline).values()):
        return f"they are left out, and sent to the topic {pipeline.letters_topic}"
    return "they are left out (`on_error: skip`)"


class LetterWriter:
    """Writes the letters of the batches of one query, on the thread that writes the batch."""

    def __init__(
        self,
        pipeline: Pipeline,
        view: str,
        kafka: KafkaOptions,
        state: StateDirectory,
        session: SparkSession,
    ) -> None:
        self._pipeline = pipeline
        self._view = view
        self._sources = letter_sources(pipeline)[view]
        self._kafka = kafka
        self._state = state
        self._session = session
        self._has_topic = False

    def write(self, batch_id: int) -> None:
        """Writes the letters of a batch whose rows Spark has just computed.

        Without a bad record that costs a question to Spark, no reading. Raises PipelineError, and what Spark raises.
        """
        for source in self._sources:
            refused = observed_in_batch(self._session, self._view, refused_metric(source.name))
            place = batch_range(self._state.checkpoint(self._view), batch_id, source.topic)
            # Of a topic that is read twice the count may be of one reader, and of records that the other has not yet.
            is_counted = refused is not None and not place.is_read_twice
            if not place.ends or (is_counted and refused == 0):
                continue
            records = records_of_batch(self._session, source, place, self._kafka, has_headers=True)
            letters = letters_of(records, source, self._pipeline.name, f"{self._view}/{batch_id}")
            if not is_counted and letters.isEmpty():
                continue
            self._make_topic(source)
            topic = self._pipeline.letters_topic
            letters.write.format("kafka").options(**self._kafka.writing, topic=topic).save()

    def _make_topic(self, source: Source) -> None:
        if not self._has_topic:
            make_letters_topic(self._pipeline, source, self._kafka.bootstrap_servers)
            self._has_topic = True


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


def make_letters_topic(pipeline: Pipeline, source: Source, bootstrap_servers: str) -> None:
    """Makes the topic of the letters where there is none. Raises PipelineUnreachableError when no answer comes, and
    PipelineError when it may not be made.
    """
    topic = pipeline.letters_topic
    settings = client_settings(pipeline, bootstrap_servers)

    async def make(host: RealHost) -> None:
        client = Client(host, settings, _LOGGER)
        try:
            await client.start(_TIMEOUT_MS)
            async with Admin(client) as admin:
                if topic in await admin.list_topics(_TIMEOUT_MS):
                    return
                described = (await admin.describe_topics([source.topic], _TIMEOUT_MS))[source.topic]
                _, _, alive = await admin.describe_cluster(_TIMEOUT_MS)
                await admin.create_topics([new_letters_topic(topic, described, len(alive))], _TIMEOUT_MS)
        finally:
            await client.close()

    try:
        run(make, name="dead-letters")
    except KafkaError as error:
        if error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
            return
        raise PipelineError(
            f'the topic "{topic}" of dead letters could not be made: {error}; make it, or set `on_error: skip` or '
            f'`on_error: fail` at source "{source.name}"',
            path=pipeline.path,
            line=source.line,
        ) from error
    except (ClientError, OSError) as error:
        message = f'the topic "{topic}" of dead letters could not be looked for: {error}'
        raise PipelineUnreachableError(f"{message}; run it again when the brokers answer") from error
