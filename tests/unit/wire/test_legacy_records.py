"""Messages of magic 0 and 1, whole and wrapped."""

from __future__ import annotations

import random
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.wire.batch_formats import read_records
from barnabas.wire.compression import compress
from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.legacy_records import LegacyBatch, write_message, write_messages
from barnabas.wire.record_errors import CorruptRecordError, InvalidRecordError, RecordsError
from barnabas.wire.records import Record, TimestampType, walk_batches

OLD_CODECS = [CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4]
RECORDS = [Record(70, 1_000, b"k", b"first"), Record(71, 3_000, None, b""), Record(75, 2_000, b"", None)]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [CompressionType.NONE, *OLD_CODECS])
def test_messages_return_as_they_were_written(magic: int, codec: CompressionType) -> None:
    data = write_messages(magic, RECORDS, Compression(codec))
    expected = [record if magic else record._replace(timestamp_ms=-1) for record in RECORDS]
    assert list(read_records(data)) == expected
    spans = walk_batches(data).spans
    assert len(spans) == (3 if codec is CompressionType.NONE else 1)
    assert {span.magic for span in spans} == {magic}
    assert spans[-1].offset == 75


def test_a_message_has_the_layout_of_the_protocol() -> None:
    message = write_message(1, 9, 1_234, b"key", b"value", timestamp_type=TimestampType.LOG_APPEND_TIME)
    body = b"\x01\x08" + struct.pack(">qi", 1_234, 3) + b"key" + struct.pack(">i", 5) + b"value"
    assert message == struct.pack(">qiI", 9, len(body) + 4, zlib.crc32(body)) + body
    old = write_message(0, 9, 1_234, None, None, compression_type=CompressionType.GZIP)
    body = b"\x00\x01" + struct.pack(">ii", -1, -1)
    assert old == struct.pack(">qiI", 9, len(body) + 4, zlib.crc32(body)) + body


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_a_wrapper_has_the_last_offset_and_the_largest_timestamp(codec: CompressionType) -> None:
    wrapper = LegacyBatch(write_messages(1, RECORDS, Compression(codec)))
    wrapper.verify()
    assert (wrapper.base_offset, wrapper.last_offset, wrapper.max_timestamp_ms) == (70, 75, 3_000)
    assert [message.last_offset for _, message in wrapper.inner_messages()] == [0, 1, 5]
    absolute = LegacyBatch(write_messages(0, RECORDS, Compression(codec)))
    assert [message.last_offset for _, message in absolute.inner_messages()] == [70, 71, 75]
    assert absolute.timestamp_type is TimestampType.NO_TIMESTAMP_TYPE


def test_the_brokers_time_of_a_wrapper_is_that_of_its_messages() -> None:
    data = write_messages(
        1,
        RECORDS,
        Compression(CompressionType.GZIP),
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        log_append_time_ms=9_999,
    )
    batch = LegacyBatch(data)
    assert batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert [record.timestamp_ms for record in batch.records()] == [9_999] * 3
    patched = wrapped(1, [write_message(1, 0, 5, None, b"v")], 0, timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert [record.timestamp_ms for record in LegacyBatch(patched).records()] == [77]


def wrapped(
    magic: int,
    messages: list[bytes],
    offset: int,
    codec: CompressionType = CompressionType.GZIP,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
) -> bytes:
    payload = compress(b"".join(messages), Compression(codec), broken_lz4_checksum=magic == 0)
    return write_message(magic, offset, 77, None, payload, compression_type=codec, timestamp_type=timestamp_type)


def test_a_wrapper_with_offset_zero_leaves_inner_offsets_as_they_are() -> None:
    inner = [write_message(1, offset, 5, None, b"v") for offset in (0, 1, 2)]
    assert [record.offset for record in LegacyBatch(wrapped(1, inner, 0)).records()] == [0, 1, 2]
    assert [record.offset for record in LegacyBatch(wrapped(1, inner, 12)).records()] == [10, 11, 12]


def test_entries_are_records_without_values() -> None:
    entries = list(LegacyBatch(write_messages(1, RECORDS, Compression(CompressionType.GZIP))).entries())
    assert [(entry.offset, entry.key, entry.has_value) for entry in entries] == [
        (70, b"k", True),
        (71, None, True),
        (75, b"", False),
    ]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (wrapped(1, [], 0), "no message"),
        (wrapped(1, [write_message(1, 5, 1, None, b"v")], 4), "less than 5"),
        (wrapped(1, [write_message(1, 0, 1, None, b"v")[:-1]], 4), "is no message"),
        (wrapped(1, [b"\0" * 40], 4), "is no message"),
        (wrapped(1, [wrapped(1, [write_message(1, 0, 1, None, b"v")], 0)], 4), "compressed message"),
        (write_message(1, 0, 1, None, None, compression_type=CompressionType.GZIP), "no value"),
        (write_message(1, 0, 1, None, b"v", compression_type=CompressionType.ZSTD), "zstd"),
        (write_message(1, 0, 1, None, b"v", compression_type=CompressionType.LZ4), "lz4"),
    ],
)
def test_malformed_wrappers_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidRecordError, match=reason):
        list(LegacyBatch(data).records())


def test_malformed_messages_are_refused() -> None:
    message = write_message(1, 0, 1, b"key", b"value")
    with pytest.raises(CorruptRecordError, match="not a message"):
        LegacyBatch(message[:17])
    with pytest.raises(CorruptRecordError, match="34 to"):
        LegacyBatch(message[:-1])
    with pytest.raises(CorruptRecordError, match="magic 2"):
        LegacyBatch(message[:16] + b"\x02" + message[17:])
    with pytest.raises(CorruptRecordError, match="checksum"):
        LegacyBatch(message[:-1] + b"x").verify()
    for length, reason in ((2, "after its value|claims"), (30, "claims 30"), (-1, "claims|after")):
        with pytest.raises(InvalidRecordError, match=reason):
            LegacyBatch(message[:26] + struct.pack(">i", length) + message[30:]).key_and_value()
    with pytest.raises(ValueError, match="zstd"):
        write_messages(1, RECORDS, Compression(CompressionType.ZSTD))
    with pytest.raises(ValueError, match="magic 0 or 1"):
        write_message(2, 0, 1, None, None)


@given(st.binary(max_size=200))
def test_random_bytes_raise_only_the_protocol_error(data: bytes) -> None:
    try:
        list(LegacyBatch(data).records(10_000))
    except RecordsError:
        return


def test_damaged_sets_raise_only_the_protocol_error() -> None:
    chance = random.Random(3)
    intact = [
        write_messages(magic, RECORDS, Compression(codec))
        for magic in (0, 1)
        for codec in (CompressionType.NONE, *OLD_CODECS)
    ]
    for _ in range(2_000):
        damaged = bytearray(chance.choice(intact))
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            list(read_records(damaged, verify=False, decompressed_bytes_max=100_000))
        except RecordsError:
            continue
