"""Record batches byte for byte: what real clients and Apache Kafka 3.9.1 wrote is read, and they read what we write."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.wire.batch_formats import read_records
from barnabas.wire.compression_types import NO_COMPRESSION, Compression, CompressionType
from barnabas.wire.control_records import (
    ControlRecordType,
    EndTransactionMarker,
    end_transaction_batch,
    read_end_transaction_marker,
)
from barnabas.wire.legacy_records import LegacyBatch, write_message, write_messages
from barnabas.wire.record_batch import HEADER, RecordBatch, read_batch_header, set_checksum
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.record_conversion import down_convert, recompress_batch
from barnabas.wire.record_errors import RecordsError
from barnabas.wire.record_validation import AppendRules, assign_offsets, check_produce_version, validate_records
from barnabas.wire.records import Record, TimestampType, walk_batches
from tests.interop.record_requests import fetch, produce
from tests.support.apache_kafka import (
    CONSOLE_PRODUCER,
    DUMP_LOG_SEGMENTS,
    ApacheKafkaBroker,
    apache_kafka_broker,
    run_tool,
)
from tests.support.retention import RETENTION_DOES_NOT_RUN
from tests.support.waiting import wait_until
from tests.support.zookeeper import ZooKeeperServer

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its resources in an old way
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

NOW_MS = 1_700_000_000_000
SEGMENT = "00000000000000000000.log"
CODECS = list(CompressionType)
OLD_CODECS = CODECS[:4]
RECORDS = [
    Record(0, NOW_MS, b"key", b"value", ((b"name", b"header"), (b"null", None))),
    Record(1, NOW_MS + 70_000, None, b"v" * 70_000),
    Record(2, NOW_MS - 5, b"tombstone", None),
    *(Record(index, NOW_MS + index, b"k%d" % index, b"small " * 5) for index in range(3, 150)),
]
PLAIN_RECORDS = [record._replace(headers=()) for record in RECORDS]


def codec_name(codec: CompressionType) -> str:
    return codec.name.lower()


def create_topic(broker: ApacheKafkaBroker, topic: str, **configs: str) -> str:
    """A topic of one partition; `configs` have underscores for points."""
    wanted = NewTopic(topic, 1, 1, config={key.replace("_", "."): value for key, value in configs.items()})
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([wanted])[topic].result(60)
    return topic


def segment_of(broker: ApacheKafkaBroker, topic: str) -> bytes:
    """What the broker has written; the page cache shows it as soon as the producer has its acknowledgement."""
    return (broker.log_directory / f"{topic}-0" / SEGMENT).read_bytes()


def batches_of(segment: bytes) -> list[RecordBatch]:
    walk = walk_batches(segment)
    assert walk.is_complete
    return [RecordBatch(segment, span.position) for span in walk.spans]


def batch_of(records: Sequence[Record], codec: CompressionType = CompressionType.NONE, **fields: Any) -> bytearray:
    builder = RecordBatchBuilder(compression=Compression(codec), **fields)
    for record in records:
        builder.append(record.timestamp_ms, record.key, record.value, record.headers)
    return builder.build()


def with_header(batch: bytearray, **fields: int) -> bytes:
    changed = bytearray(HEADER.pack(*read_batch_header(batch)._replace(**fields))) + batch[61:]
    set_checksum(changed)
    return bytes(changed)


def check_stored(segment: bytes, codec: CompressionType, expected: Sequence[Record]) -> None:
    """Every batch has a checksum that fits, holds the records, and is the same bytes when it is written anew."""
    found: list[Record] = []
    for batch in batches_of(segment):
        batch.verify()
        assert batch.compression_type in (codec, CompressionType.NONE)  # librdkafka leaves small batches as they are
        found += batch.records()
        plain = recompress_batch(batch.view, NO_COMPRESSION)
        if batch.compression_type is CompressionType.NONE:
            assert plain == batch.view
        assert bytes(RecordBatch(plain).payload()) == bytes(batch.payload())
        ours = RecordBatch(recompress_batch(batch.view, Compression(codec)))
        assert bytes(ours.payload()) == bytes(batch.payload())
    assert found == list(expected)


# what clients write


@pytest.mark.parametrize("codec", CODECS, ids=codec_name)
def test_librdkafkas_records_are_read(kafka_broker: ApacheKafkaBroker, codec: CompressionType) -> None:
    topic = create_topic(kafka_broker, f"librdkafka-{codec_name(codec)}")
    errors: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": kafka_broker.address,
            "compression.type": codec_name(codec),
            "linger.ms": 200,
            "enable.idempotence": True,
        }
    )
    for record in RECORDS:
        producer.produce(
            topic,
            record.value,
            record.key,
            0,
            lambda error, _: errors.append(error) if error else None,
            timestamp=record.timestamp_ms,
            headers=[(key.decode(), value) for key, value in record.headers],
        )
    assert producer.flush(60) == 0
    assert errors == []
    segment = segment_of(kafka_broker, topic)
    check_stored(segment, codec, RECORDS)
    assert any(batch.compression_type is codec for batch in batches_of(segment))
    assert all(batch.header.has_producer_id for batch in batches_of(segment))


@pytest.mark.parametrize("codec", CODECS, ids=codec_name)
def test_kafka_pythons_records_are_read(kafka_broker: ApacheKafkaBroker, codec: CompressionType) -> None:
    topic = create_topic(kafka_broker, f"kafka-python-{codec_name(codec)}")
    producer = KafkaProducer(
        bootstrap_servers=kafka_broker.address,
        compression_type=None if codec is CompressionType.NONE else codec_name(codec),
        linger_ms=200,
        batch_size=1_000_000,
    )
    try:
        for record in PLAIN_RECORDS:
            producer.send(topic, record.value, record.key, partition=0, timestamp_ms=record.timestamp_ms)
        producer.flush(60)
    finally:
        producer.close()
    check_stored(segment_of(kafka_broker, topic), codec, PLAIN_RECORDS)


@pytest.mark.parametrize("codec", CODECS, ids=codec_name)
def test_the_java_clients_records_are_read(kafka_broker: ApacheKafkaBroker, codec: CompressionType) -> None:
    topic = create_topic(kafka_broker, f"java-{codec_name(codec)}")
    lines = [f"name:header-{index}\tkey-{index}\t{'value ' * (index % 50)}" for index in range(400)]
    run_tool(
        CONSOLE_PRODUCER,
        [
            *("--bootstrap-server", kafka_broker.address, "--topic", topic, "--compression-codec", codec_name(codec)),
            *("--property", "parse.key=true", "--property", "parse.headers=true"),
        ],
        standard_input="".join(line + "\n" for line in lines),
    )
    segment = segment_of(kafka_broker, topic)
    stored = [record for batch in batches_of(segment) for record in batch.records()]
    assert [(record.offset, record.headers, record.key, record.value) for record in stored] == [
        (index, ((b"name", b"header-%d" % index),), b"key-%d" % index, b"value " * (index % 50)) for index in range(400)
    ]
    check_stored(segment, codec, stored)
    assert {batch.compression_type for batch in batches_of(segment)} == {codec}


def test_apache_kafkas_markers_are_read_and_written_alike(kafka_broker: ApacheKafkaBroker) -> None:
    topic = create_topic(kafka_broker, "transactions")
    producer = Producer({"bootstrap.servers": kafka_broker.address, "transactional.id": "record-bytes"})
    producer.init_transactions(60)
    for finish in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(topic, b"value", b"key", 0)
        producer.flush(60)
        finish(60)
    # The end of a transaction is acknowledged before its markers are written.
    wait_until(lambda: len(batches_of(segment_of(kafka_broker, topic))) == 4, "both markers are in the log")
    batches = batches_of(segment_of(kafka_broker, topic))
    assert [batch.is_control for batch in batches] == [False, True, False, True]
    assert all(batch.is_transactional for batch in batches)
    kinds = []
    for batch in batches[1::2]:
        (record,) = batch.records()
        marker = read_end_transaction_marker(record)
        kinds.append(marker.type)
        header = batch.header
        assert batch.view == end_transaction_batch(
            marker,
            timestamp_ms=record.timestamp_ms,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_offset=header.base_offset,
            partition_leader_epoch=header.partition_leader_epoch,
        )
    assert kinds == [ControlRecordType.COMMIT, ControlRecordType.ABORT]


# what we write


@pytest.mark.parametrize("codec", CODECS, ids=codec_name)
def test_apache_kafka_takes_our_batches_and_consumers_read_them(
    kafka_broker: ApacheKafkaBroker, codec: CompressionType
) -> None:
    topic = create_topic(kafka_broker, f"ours-{codec_name(codec)}")
    batch = batch_of(RECORDS, codec)
    assert produce(kafka_broker.port, topic, batch, version=7).error_code == 0
    ours = validate_records(batch, AppendRules(), NOW_MS)
    assert ours.converted_count == 0
    assign_offsets(ours, 0, 0, NOW_MS)
    assert segment_of(kafka_broker, topic) == bytes(ours.records)

    consumer = KafkaConsumer(bootstrap_servers=kafka_broker.address, consumer_timeout_ms=30_000)
    try:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        found = [next(consumer) for _ in RECORDS]
    finally:
        consumer.close()
    assert [(r.offset, r.timestamp, r.key, r.value) for r in found] == [record[:4] for record in RECORDS]
    assert [list(r.headers) for r in found] == [
        [(key.decode(), value) for key, value in record.headers] for record in RECORDS
    ]


def test_apache_kafkas_dump_tool_reads_our_segments(oracle_jars: Path, tmp_path: Path) -> None:
    expected: list[Record] = []
    data = bytearray()
    for codec in CODECS:
        for stamp in (TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME):
            data += batch_of(
                RECORDS[3:],
                codec,
                base_offset=len(expected),
                timestamp_type=stamp,
                log_append_time_ms=NOW_MS,
                partition_leader_epoch=4,
                producer_id=9,
                producer_epoch=2,
                base_sequence=0,
                is_transactional=True,
            )
            expected += RECORDS[3:]
    marker = EndTransactionMarker(ControlRecordType.COMMIT, 31)
    data += end_transaction_batch(
        marker,
        timestamp_ms=NOW_MS,
        producer_id=9,
        producer_epoch=2,
        base_offset=len(expected),
        partition_leader_epoch=4,
    )
    modern, old = tmp_path / "modern" / SEGMENT, tmp_path / "old" / SEGMENT
    modern.parent.mkdir()
    old.parent.mkdir()
    modern.write_bytes(data)
    old_records = [record._replace(offset=1_000 + index) for index, record in enumerate(PLAIN_RECORDS[3:])]
    old.write_bytes(
        b"".join(write_messages(magic, old_records, Compression(c)) for magic in (0, 1) for c in OLD_CODECS)
    )

    dump = run_tool(DUMP_LOG_SEGMENTS, ["--files", str(modern), "--deep-iteration", "--print-data-log"])
    lines = dump.splitlines()
    heads = [line for line in lines if line.startswith("baseOffset:")]
    assert len(heads) == 2 * len(CODECS) + 1
    assert all("isvalid: true" in line and "partitionLeaderEpoch: 4" in line for line in heads)
    assert [re.search(r"compresscodec: (\w+)", line)[1] for line in heads[:-1:2]] == [codec_name(c) for c in CODECS]  # type: ignore[index]
    bodies = [line for line in lines if line.lstrip("| ").startswith("offset:")]
    assert len(bodies) == len(expected) + 1
    for index, (line, record) in enumerate(zip(bodies, expected, strict=False)):
        assert f"offset: {index} " in line
        assert f"key: {(record.key or b'').decode()} payload: {(record.value or b'').decode()}" in line
    assert "endTxnMarker: COMMIT coordinatorEpoch: 31" in bodies[-1]

    dump = run_tool(DUMP_LOG_SEGMENTS, ["--files", str(old), "--deep-iteration", "--print-data-log"])
    assert "isvalid: false" not in dump
    assert dump.count("isvalid: true") >= 2 * (len(old_records) + 3)
    for record in old_records:
        payload = f"key: {(record.key or b'').decode()} payload: {(record.value or b'').decode()}"
        assert dump.count(f"{payload}\n") == 2 * len(OLD_CODECS)


# conversion, as Apache Kafka does it


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS, ids=codec_name)
def test_old_messages_are_converted_up_as_apache_kafka_does(
    kafka_broker: ApacheKafkaBroker, magic: int, codec: CompressionType
) -> None:
    topic = create_topic(kafka_broker, f"up-{magic}-{codec_name(codec)}")
    data = write_messages(magic, PLAIN_RECORDS, Compression(codec))
    assert produce(kafka_broker.port, topic, data, version=2).error_code == 0
    ours = validate_records(data, AppendRules(), NOW_MS)
    assign_offsets(ours, 0, 0, NOW_MS)
    theirs = segment_of(kafka_broker, topic)
    if codec is CompressionType.NONE:
        assert theirs == bytes(ours.records)
    same = {"crc": 0, "length_bytes": 0}
    assert read_batch_header(theirs)._replace(**same) == ours.header._replace(**same, partition_leader_epoch=0)
    assert list(read_records(theirs)) == list(read_records(ours.records))


@pytest.mark.parametrize("stamp", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("codec", OLD_CODECS, ids=codec_name)
def test_batches_are_converted_down_as_apache_kafka_does(
    kafka_broker: ApacheKafkaBroker, codec: CompressionType, stamp: str
) -> None:
    topic = create_topic(kafka_broker, f"down-{stamp}-{codec_name(codec)}", message_timestamp_type=stamp)
    assert produce(kafka_broker.port, topic, batch_of(RECORDS, codec)).error_code == 0
    stored = segment_of(kafka_broker, topic)
    for version, magic in ((1, 0), (2, 1)):
        for first_offset in (0, 5):
            theirs = fetch(kafka_broker.port, topic, first_offset, version)
            ours = down_convert(stored, magic, first_offset).data
            end_position = walk_batches(theirs).end_position
            if codec is CompressionType.NONE:
                assert theirs[:end_position] == ours
            assert list(read_records(theirs)) == list(read_records(ours))
            mine, other = LegacyBatch(ours), LegacyBatch(theirs)
            assert (
                mine.magic,
                mine.last_offset,
                mine.max_timestamp_ms,
                mine.timestamp_type,
                mine.compression_type,
            ) == (
                (other.magic, other.last_offset, other.max_timestamp_ms, other.timestamp_type, other.compression_type)
            )


# errors, as Apache Kafka gives them

BATCH = batch_of(RECORDS)
REFUSED: list[tuple[str, dict[str, str], bytes]] = [
    ("wrong checksum", {}, bytes(BATCH[:30] + b"x" + BATCH[31:])),
    ("magic 3", {}, bytes(BATCH[:16] + b"\x03" + BATCH[17:])),
    ("base offset", {}, with_header(BATCH, base_offset=5)),
    ("no records", {}, with_header(BATCH, record_count=0)),
    ("fewer records than claimed", {}, with_header(BATCH, record_count=200, last_offset_delta=199)),
    ("more records than claimed", {}, with_header(BATCH, record_count=9, last_offset_delta=8)),
    ("range and count differ", {}, with_header(BATCH, last_offset_delta=8)),
    ("control batch", {}, with_header(BATCH, attributes=0x20)),
    ("no sequence", {}, with_header(BATCH, producer_id=77, producer_epoch=0)),
    ("two batches", {}, bytes(BATCH + BATCH)),
    ("no batch", {}, b""),
    ("magic 1 in a new request", {}, write_message(1, 0, NOW_MS, b"k", b"v")),
    ("zstd in an old request", {}, bytes(batch_of(RECORDS, CompressionType.ZSTD))),
    ("garbage in place of records", {}, bytes(with_header(BATCH[:61] + bytes(range(200)) * 4, length_bytes=849))),
    ("no key", {"cleanup_policy": "compact"}, bytes(BATCH)),
    ("too old", {"message_timestamp_before_max_ms": "1000"}, bytes(BATCH)),
    ("too new", {"message_timestamp_after_max_ms": "1000"}, bytes(batch_of([Record(0, 2**45, b"k", b"v")]))),
    (
        "broker's time",
        {"message_timestamp_type": "LogAppendTime"},
        bytes(batch_of(RECORDS, timestamp_type=TimestampType.LOG_APPEND_TIME, log_append_time_ms=NOW_MS)),
    ),
    ("too large", {"max_message_bytes": "5000"}, bytes(BATCH)),
    (
        "too large after",
        {"max_message_bytes": "5000", "compression_type": "uncompressed"},
        bytes(batch_of(RECORDS, CompressionType.GZIP)),
    ),
]


@pytest.mark.parametrize(("configs", "data"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_what_apache_kafka_refuses_is_refused_with_its_error(
    kafka_broker: ApacheKafkaBroker, request: pytest.FixtureRequest, configs: dict[str, str], data: bytes
) -> None:
    topic = create_topic(kafka_broker, re.sub(r"\W", "-", request.node.callspec.id), **configs)
    theirs = produce(kafka_broker.port, topic, data).error_code
    rules = AppendRules(
        batch_bytes_max=int(configs.get("max_message_bytes", 1_048_588)),
        timestamp_before_max_ms=int(configs.get("message_timestamp_before_max_ms", 2**63 - 1)),
        timestamp_after_max_ms=int(configs.get("message_timestamp_after_max_ms", 2**63 - 1)),
        timestamp_type=TimestampType.LOG_APPEND_TIME
        if "message_timestamp_type" in configs
        else TimestampType.CREATE_TIME,
        is_compacted="cleanup_policy" in configs,
        compression=NO_COMPRESSION if "compression_type" in configs else None,
    )
    with pytest.raises(RecordsError) as caught:
        check_produce_version(data, 3)
        validate_records(data, rules, int(time.time() * 1000))
    assert caught.value.error == theirs


# the log of a broker that still writes the old formats


@pytest.fixture(scope="module")
def old_broker(
    zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheKafkaBroker]:
    versions = {"inter.broker.protocol.version": "2.8", "log.message.format.version": "0.10.2"}
    overrides = versions | RETENTION_DOES_NOT_RUN
    where = f"{zookeeper_server.address}/old-formats"
    with apache_kafka_broker(tmp_path_factory.mktemp("old-kafka"), where, overrides=overrides) as broker:
        yield broker


@pytest.mark.parametrize(("version", "magic"), [("0.9.0", 0), ("0.10.2", 1)])
@pytest.mark.parametrize("codec", OLD_CODECS, ids=codec_name)
def test_logs_in_old_formats_are_read(
    old_broker: ApacheKafkaBroker, codec: CompressionType, version: str, magic: int
) -> None:
    topic = create_topic(
        old_broker,
        f"old-{magic}-{codec_name(codec)}",
        message_format_version=version,
        compression_type=kafka_codec(codec),
    )
    assert produce(old_broker.port, topic, batch_of(PLAIN_RECORDS)).error_code == 0
    segment = segment_of(old_broker, topic)
    spans = walk_batches(segment).spans
    assert {span.magic for span in spans} == {magic}
    expected = [record if magic else record._replace(timestamp_ms=-1) for record in PLAIN_RECORDS]
    assert list(read_records(segment)) == expected
    assert all(LegacyBatch(segment, span.position).compression_type is codec for span in spans)
    ours = write_messages(magic, PLAIN_RECORDS, Compression(codec))
    if codec is CompressionType.NONE:
        assert ours == segment
    assert len(spans) == len(walk_batches(ours).spans)


def kafka_codec(codec: CompressionType) -> str:
    """As `compression.type` of a topic names it."""
    return "uncompressed" if codec is CompressionType.NONE else codec_name(codec)
