"""Records for old consumers, and batches with another codec."""

from __future__ import annotations

import random

import pytest

from barnabas.wire.batch_formats import read_records
from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.control_records import ControlRecordType, EndTransactionMarker, end_transaction_batch
from barnabas.wire.legacy_records import LegacyBatch, write_message, write_messages
from barnabas.wire.record_batch import RecordBatch, set_checksum
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.record_conversion import down_convert, rebuild_batch, recompress_batch
from barnabas.wire.record_errors import (
    CorruptRecordError,
    DecompressedTooLargeError,
    InvalidRecordError,
    RecordsError,
    UnsupportedCompressionTypeError,
)
from barnabas.wire.records import Record, TimestampType, walk_batches

OLD_CODECS = [codec for codec in CompressionType if codec is not CompressionType.ZSTD]
EXPECTED = [Record(20 + 3 * index, 5_000 + index, b"k", b"v%d" % index) for index in range(10)]


def modern(codec: CompressionType = CompressionType.NONE, **fields: int) -> bytearray:
    """A batch with gaps between its offsets, as the cleaner leaves them, and with headers."""
    builder = RecordBatchBuilder(base_offset=18, compression=Compression(codec), **fields)  # type: ignore[arg-type]
    for record in EXPECTED:
        builder.append(record.timestamp_ms, record.key, record.value, ((b"dropped", b"header"),), record.offset)
    return builder.build(last_offset=50)


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_magic_1_keeps_offsets_timestamps_and_the_codec(codec: CompressionType) -> None:
    converted = down_convert(modern(codec), 1)
    assert list(read_records(converted.data)) == EXPECTED
    assert converted.converted_count == 10
    assert converted.temporary_bytes > len(converted.data)
    spans = walk_batches(converted.data).spans
    assert len(spans) == (10 if codec is CompressionType.NONE else 1)
    assert LegacyBatch(converted.data).compression_type is codec


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_magic_0_has_no_timestamps(codec: CompressionType) -> None:
    expected = [record._replace(timestamp_ms=-1) for record in EXPECTED]
    assert list(read_records(down_convert(modern(codec), 0).data)) == expected
    from_magic_1 = down_convert(modern(codec), 1).data
    assert list(read_records(down_convert(from_magic_1, 0).data)) == expected


def test_only_uncompressed_batches_lose_what_precedes_the_first_offset() -> None:
    for codec, count in ((CompressionType.NONE, 7), (CompressionType.GZIP, 10)):
        records = list(read_records(down_convert(modern(codec), 1, first_offset=28).data))
        assert records == EXPECTED[-count:]
    assert down_convert(modern(), 1, first_offset=48).data == b""


def test_the_brokers_time_stays_the_brokers() -> None:
    for codec in OLD_CODECS:
        batch = modern(codec, timestamp_type=TimestampType.LOG_APPEND_TIME, log_append_time_ms=777)
        converted = down_convert(batch, 1).data
        assert LegacyBatch(converted).timestamp_type is TimestampType.LOG_APPEND_TIME
        assert {record.timestamp_ms for record in read_records(converted)} == {777}


def test_transactions_lose_their_markers_and_keep_their_records() -> None:
    marker = end_transaction_batch(
        EndTransactionMarker(ControlRecordType.ABORT, 1),
        timestamp_ms=1,
        producer_id=5,
        producer_epoch=0,
        base_offset=51,
    )
    batch = modern(producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    converted = down_convert(batch + marker + modern()[:-1], 1)
    assert list(read_records(converted.data)) == EXPECTED


def test_what_is_old_enough_already_is_copied() -> None:
    old = write_messages(0, EXPECTED, Compression(CompressionType.GZIP))
    middle = write_message(1, 90, 5, b"k", b"v")
    converted = down_convert(old + middle + modern(), 1)
    assert converted.data.startswith(old + middle)
    assert converted.converted_count == 10
    assert down_convert(old + middle, 1).converted_count == 0


def test_zstd_cannot_be_converted_down() -> None:
    with pytest.raises(UnsupportedCompressionTypeError, match="zstd"):
        down_convert(modern(CompressionType.ZSTD), 1)


@pytest.mark.parametrize("magic", [0, 1])
def test_what_comes_before_zstd_is_converted(magic: int) -> None:
    """A consumer has these, and is refused when it comes back for the rest."""
    before = modern(CompressionType.NONE) + modern(CompressionType.GZIP)
    rest = modern(CompressionType.ZSTD) + modern(CompressionType.NONE)
    assert down_convert(before + rest, magic) == down_convert(before, magic)


def test_markers_before_zstd_are_nothing_to_give() -> None:
    builder = RecordBatchBuilder(is_control=True, is_transactional=True, producer_id=1, producer_epoch=0)
    builder.append(0, b"\0\0\0\1", b"\0\0\0\0\0\0")
    with pytest.raises(UnsupportedCompressionTypeError, match="zstd"):
        down_convert(bytes(builder.build()) + modern(CompressionType.ZSTD), 1)
    with pytest.raises(ValueError, match="magic 0 or 1"):
        down_convert(modern(), 2)


def test_down_conversion_is_bounded() -> None:
    with pytest.raises(DecompressedTooLargeError):
        down_convert(modern(CompressionType.GZIP), 1, decompressed_bytes_max=50)


@pytest.mark.parametrize("source", list(CompressionType))
@pytest.mark.parametrize("target", list(CompressionType))
def test_another_codec_changes_nothing_else(source: CompressionType, target: CompressionType) -> None:
    batch = modern(
        source, producer_id=6, producer_epoch=2, base_sequence=4, is_transactional=True, partition_leader_epoch=3
    )
    changed = recompress_batch(memoryview(batch), Compression(target))
    before, after = RecordBatch(batch), RecordBatch(changed)
    after.verify()
    assert list(after.records()) == list(before.records())
    fields = {"attributes": 0, "crc": 0, "length_bytes": 0}
    assert after.header._replace(**fields) == before.header._replace(**fields)
    assert after.compression_type is target
    assert after.is_transactional
    assert bytes(recompress_batch(changed, Compression(CompressionType.NONE))) == bytes(
        recompress_batch(batch, Compression(CompressionType.NONE))
    )


def test_recompression_says_what_is_wrong_with_the_batch() -> None:
    with pytest.raises(CorruptRecordError):
        recompress_batch(b"short", Compression())
    with pytest.raises(DecompressedTooLargeError):
        recompress_batch(modern(CompressionType.GZIP), Compression(), decompressed_bytes_max=50)
    with pytest.raises(InvalidRecordError, match="needs a record"):
        rebuild_batch([], Compression())
    with pytest.raises(InvalidRecordError, match="timestamp -5"):
        rebuild_batch([Record(0, -5, None, None)], Compression())


def test_damaged_batches_raise_only_the_protocol_error() -> None:
    chance = random.Random(2)
    intact = [modern(codec) for codec in CompressionType] + [bytearray(down_convert(modern(), 1).data)]
    converted_count = 0
    for _ in range(1_500):
        damaged = bytearray(chance.choice(intact))
        for _ in range(chance.randrange(1, 3)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        if damaged[16] == 2:
            set_checksum(damaged)
        try:
            converted_count += down_convert(
                damaged, chance.randrange(2), decompressed_bytes_max=100_000
            ).converted_count
            recompress_batch(damaged, Compression(CompressionType.SNAPPY), decompressed_bytes_max=100_000)
        except RecordsError:
            continue
    assert converted_count > 500
