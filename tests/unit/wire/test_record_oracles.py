"""Batches of kafka-python and aiokafka are read, and ours are read by them, in every codec and message format."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from barnabas.wire.batch_formats import read_records
from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.legacy_records import write_messages
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.record_validation import AppendRules, validate_records
from barnabas.wire.records import Record, walk_batches

NOW_MS = 1_700_000_000_000
CODECS = list(CompressionType)
OLD_CODECS = CODECS[:4]
RECORDS = [
    Record(0, NOW_MS, b"key", b"value", ((b"name", b"header"), (b"empty", b""))),
    Record(1, NOW_MS + 70_000, None, b"v" * 70_000),
    Record(2, NOW_MS - 5, b"", None),
    *(Record(index, NOW_MS + index, b"k%d" % index, b"small") for index in range(3, 200)),
]
# aiokafka knows nothing of the broken lz4 of magic 0; kafka-python does.
OLD_FORMATS = [(magic, codec) for magic in (0, 1) for codec in OLD_CODECS if (magic, codec) != (0, CompressionType.LZ4)]
CLIENTS = ("kafka", "aiokafka")
OLD_CASES = [("kafka", 0, CompressionType.LZ4), *((client, *form) for client in CLIENTS for form in OLD_FORMATS)]
PRODUCER = {"producer_id": 2**40, "producer_epoch": 12, "base_sequence": 77}


def class_of(client: str, module: str, name: str) -> Any:
    """Of the client's package, which is imported by who asks."""
    return getattr(importlib.import_module(f"{client}.record.{module}"), name)


def text_headers(record: Record) -> list[tuple[str, bytes | None]]:
    return [(key.decode(), value) for key, value in record.headers]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("client", CLIENTS)
def test_their_batches_are_read(client: str, codec: CompressionType) -> None:
    builder_class = class_of(client, "default_records", "DefaultRecordBatchBuilder")
    builder = builder_class(magic=2, compression_type=int(codec), is_transactional=1, batch_size=1_000_000, **PRODUCER)
    for record in RECORDS:
        assert builder.append(record.offset, record.timestamp_ms, record.key, record.value, text_headers(record))
    data = bytes(builder.build())

    batch = RecordBatch(data)
    batch.verify()
    assert list(batch.records()) == RECORDS
    header = batch.header
    assert {name: getattr(header, name) for name in PRODUCER} == PRODUCER
    assert (header.is_transactional, header.compression_type) == (True, codec)
    assert (header.max_timestamp_ms, header.last_offset_delta) == (NOW_MS + 70_000, len(RECORDS) - 1)
    assert validate_records(data, AppendRules(), NOW_MS).converted_count == 0
    if codec is CompressionType.NONE:
        ours = our_batch(codec)
        assert ours[21:] == data[21:]
        assert ours[17:21] == data[17:21]


def our_batch(codec: CompressionType) -> bytes:
    builder = RecordBatchBuilder(compression=Compression(codec), is_transactional=True, **PRODUCER)  # type: ignore[arg-type]
    for record in RECORDS:
        builder.append(record.timestamp_ms, record.key, record.value, record.headers)
    return bytes(builder.build())


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("client", CLIENTS)
def test_they_read_our_batches(client: str, codec: CompressionType) -> None:
    theirs = class_of(client, "memory_records", "MemoryRecords")(our_batch(codec)).next_batch()
    assert theirs.validate_crc()
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == tuple(PRODUCER.values())
    assert theirs.is_transactional
    assert [
        (record.offset, record.timestamp, as_bytes(record.key), as_bytes(record.value), list(record.headers))
        for record in theirs
    ] == [(record.offset, record.timestamp_ms, record.key, record.value, text_headers(record)) for record in RECORDS]


def as_bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def without_headers(magic: int) -> list[Record]:
    return [record._replace(headers=(), timestamp_ms=record.timestamp_ms if magic else -1) for record in RECORDS]


@pytest.mark.parametrize(("client", "magic", "codec"), OLD_CASES)
def test_their_messages_are_read(client: str, magic: int, codec: CompressionType) -> None:
    builder_class = class_of(client, "legacy_records", "LegacyRecordBatchBuilder")
    builder = builder_class(magic=magic, compression_type=int(codec), batch_size=1_000_000)
    for record in RECORDS:
        assert builder.append(record.offset, record.timestamp_ms if magic else None, record.key, record.value)
    data = bytes(builder.build())
    assert {span.magic for span in walk_batches(data).spans} == {magic}
    assert list(read_records(data)) == without_headers(magic)
    if codec is CompressionType.NONE:
        assert write_messages(magic, RECORDS, Compression()) == data


@pytest.mark.parametrize(("client", "magic", "codec"), OLD_CASES)
def test_they_read_our_messages(client: str, magic: int, codec: CompressionType) -> None:
    reader = class_of(client, "memory_records", "MemoryRecords")(write_messages(magic, RECORDS, Compression(codec)))
    found = []
    while (batch := reader.next_batch()) is not None:
        assert batch.validate_crc()
        found += [
            (
                record.offset,
                -1 if record.timestamp is None else record.timestamp,
                as_bytes(record.key),
                as_bytes(record.value),
            )
            for record in batch
        ]
    assert found == [record[:4] for record in without_headers(magic)]
