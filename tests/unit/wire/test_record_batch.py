"""The header of batches of magic 2, its patches, and finding batches in a buffer."""

from __future__ import annotations

import struct

import pytest

from barnabas.wire import crc
from barnabas.wire.batch_formats import batch_at, read_records
from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.record_batch import (
    BATCH_HEADER_BYTES,
    RecordBatch,
    assign_offset_and_epoch,
    increment_sequence,
    read_batch_header,
    set_base_offset,
    set_max_timestamp,
    verify_checksum,
)
from barnabas.wire.record_builder import RecordBatchBuilder, empty_batch
from barnabas.wire.record_errors import CorruptRecordError, InvalidRecordError, UnsupportedCompressionTypeError
from barnabas.wire.records import BatchSpan, Record, TimestampType, walk_batches


def batch_of(*values: bytes, **fields: int) -> bytearray:
    builder = RecordBatchBuilder(**fields)  # type: ignore[arg-type]
    for index, value in enumerate(values):
        builder.append(1_000 + index, b"k%d" % index, value)
    return builder.build()


def test_crc32c_is_the_castagnoli_polynomial() -> None:
    assert crc.crc32c(b"123456789") == 0xE3069283
    assert crc.crc32c(b"6789", crc.crc32c(b"12345")) == 0xE3069283
    assert crc.crc32c(memoryview(b"xx123456789y")[2:11]) == 0xE3069283
    with pytest.raises(AttributeError):
        crc.crc64  # noqa: B018


def test_header_is_read_in_place() -> None:
    batch = batch_of(
        b"a", b"b", b"c", base_offset=40, producer_id=7, producer_epoch=3, base_sequence=11, partition_leader_epoch=5
    )
    header = read_batch_header(memoryview(b"before" + batch + b"after"), 6)
    assert (header.base_offset, header.last_offset, header.record_count) == (40, 42, 3)
    assert header.size_bytes == len(batch)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (1_000, 1_002)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (7, 3, 11, 13)
    assert header.partition_leader_epoch == 5
    assert header.compression_type is CompressionType.NONE
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert header.has_producer_id
    assert not header.is_transactional
    assert not header.is_control
    assert header.delete_horizon_ms is None


def test_every_attribute_has_its_bit() -> None:
    plain = read_batch_header(batch_of(b"v"))
    assert plain._replace(attributes=0x08).timestamp_type is TimestampType.LOG_APPEND_TIME
    assert plain._replace(attributes=0x10).is_transactional
    assert plain._replace(attributes=0x20).is_control
    assert plain._replace(attributes=0x40, base_timestamp_ms=77).delete_horizon_ms == 77
    assert plain._replace(attributes=0x04).compression_type is CompressionType.ZSTD
    with pytest.raises(UnsupportedCompressionTypeError):
        _ = plain._replace(attributes=0x05).compression_type


def test_sequences_wrap_to_zero() -> None:
    assert increment_sequence(2**31 - 1, 1) == 0
    assert increment_sequence(2**31 - 2, 5) == 3
    header = read_batch_header(batch_of(b"a", b"b", producer_id=1, producer_epoch=0, base_sequence=2**31 - 1))
    assert header.last_sequence == 0
    assert read_batch_header(batch_of(b"a")).last_sequence == -1


def test_offset_and_epoch_are_patched_outside_of_the_checksum() -> None:
    batch = batch_of(b"a", b"b")
    before = read_batch_header(batch)
    assign_offset_and_epoch(memoryview(batch), 0, 2**40, before.length_bytes, 9)
    after = read_batch_header(batch)
    assert after == before._replace(base_offset=2**40, partition_leader_epoch=9)
    verify_checksum(batch, 0, after)
    set_base_offset(batch, 0, 3)
    assert [record.offset for record in read_records(batch)] == [3, 4]


def test_log_append_time_is_patched_with_the_checksum() -> None:
    batch = batch_of(b"a", b"b", base_offset=4)
    framed = bytearray(b"12345") + batch
    header = read_batch_header(framed, 5)
    set_max_timestamp(memoryview(framed), 5, header, TimestampType.LOG_APPEND_TIME, 99_999)
    patched = RecordBatch(framed, 5)
    patched.verify()
    assert patched.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert [record.timestamp_ms for record in patched.records()] == [99_999, 99_999]
    set_max_timestamp(framed, 5, patched.header, TimestampType.CREATE_TIME, 1_001)
    assert framed[5:] == batch


def test_a_timestamp_that_is_right_already_touches_nothing() -> None:
    batch = batch_of(b"a")
    batch[17:21] = b"\0\0\0\0"
    before = bytes(batch)
    set_max_timestamp(batch, 0, read_batch_header(batch), TimestampType.CREATE_TIME, 1_000)
    assert batch == before


def test_a_wrong_checksum_and_a_short_buffer_are_corrupt() -> None:
    batch = batch_of(b"a")
    for position in (17, 22, 60, len(batch) - 1):
        damaged = bytearray(batch)
        damaged[position] ^= 0x10
        with pytest.raises(CorruptRecordError, match="checksum"):
            RecordBatch(damaged).verify()
    with pytest.raises(CorruptRecordError, match="remain"):
        RecordBatch(batch[:-1])
    with pytest.raises(CorruptRecordError, match="remain"):
        verify_checksum(batch[:-1], 0, read_batch_header(batch))
    with pytest.raises(CorruptRecordError, match="not a record batch"):
        read_batch_header(batch[:60])
    with pytest.raises(CorruptRecordError, match="magic 1"):
        read_batch_header(batch[:16] + b"\x01" + batch[17:])
    with pytest.raises(CorruptRecordError, match="header alone"):
        read_batch_header(batch[:8] + struct.pack(">i", 48) + batch[12:])


def test_checksum_needs_no_copy_and_no_writable_memory() -> None:
    RecordBatch(memoryview(bytes(b"--" + batch_of(b"v")))[2:]).verify()


def test_batches_are_found_by_their_sizes() -> None:
    first, second = batch_of(b"a"), batch_of(b"b", b"c", base_offset=1)
    buffer = first + second
    walk = walk_batches(buffer)
    assert walk.spans == (BatchSpan(0, len(first), 2, 0), BatchSpan(len(first), len(second), 2, 1))
    assert (walk.is_complete, walk.end_position, walk.next_size_bytes) == (True, len(buffer), None)
    assert walk_batches(buffer, len(first)).spans == walk.spans[1:]
    assert walk_batches(buffer, 0, len(first)).spans == walk.spans[:1]
    assert walk_batches(b"").spans == ()


def test_a_partial_batch_at_the_end_is_told_apart() -> None:
    first, second = batch_of(b"a"), batch_of(b"b")
    for cut in range(1, len(second)):
        walk = walk_batches(first + second[:cut])
        assert walk.spans == (BatchSpan(0, len(first), 2, 0),)
        assert (walk.is_complete, walk.remaining_bytes) == (False, cut)
        assert walk.next_size_bytes == (len(second) if cut >= 17 else None)
    assert [record.value for record in read_records(first + second[:-1])] == [b"a"]


@pytest.mark.parametrize(
    ("position", "replacement", "reason"),
    [
        (16, b"\x03", "magic 3"),
        (16, b"\xff", "magic -1"),
        (8, struct.pack(">i", 48), "size 48"),
        (8, struct.pack(">i", -1), "size -1"),
        (8, struct.pack(">i", 2**31 - 1), "are allowed"),
    ],
)
def test_what_cannot_be_a_batch_ends_the_walk(position: int, replacement: bytes, reason: str) -> None:
    first, second = batch_of(b"a"), batch_of(b"b")
    second[position : position + len(replacement)] = replacement
    with pytest.raises(CorruptRecordError, match=reason):
        walk_batches(first + second, batch_bytes_max=1_000_000)


def test_records_of_control_batches_are_not_for_consumers() -> None:
    control = RecordBatchBuilder(base_offset=1, is_control=True, is_transactional=True, producer_id=4, producer_epoch=0)
    control.append(1, b"\0\0\0\1", b"\0\0\0\0\0\0")
    buffer = batch_of(b"a") + control.build() + batch_of(b"c", base_offset=2)
    assert [record.offset for record in read_records(buffer)] == [0, 2]
    assert batch_at(buffer, walk_batches(buffer).spans[1]).is_control


def test_reading_checks_the_checksum_unless_told_not_to() -> None:
    batch = batch_of(b"a")
    batch[-2] ^= 1
    with pytest.raises(CorruptRecordError):
        list(read_records(batch))
    assert len(list(read_records(batch, verify=False))) == 1


@pytest.mark.parametrize("codec", list(CompressionType))
def test_time_is_looked_up_within_a_batch(codec: CompressionType) -> None:
    builder = RecordBatchBuilder(base_offset=10, compression=Compression(codec))
    for timestamp_ms in (500, 300, 700, 700, 200):
        builder.append(timestamp_ms, None, b"v")
    batch = RecordBatch(builder.build())
    assert batch.find_timestamp(0) == (10, 500)
    assert batch.find_timestamp(501) == (12, 700)
    assert batch.find_timestamp(501, from_offset=13) == (13, 700)
    assert batch.find_timestamp(701) is None
    assert batch.find_timestamp(0, from_offset=15) is None
    assert batch.find_max_timestamp() == (12, 700)


def test_a_batch_without_timestamps_has_no_largest_one() -> None:
    builder = RecordBatchBuilder()
    builder.append(-1, None, b"v")
    assert RecordBatch(builder.build()).find_max_timestamp() is None


def test_an_emptied_batch_keeps_its_range_and_producer() -> None:
    header = read_batch_header(
        batch_of(b"a", b"b", base_offset=9, producer_id=3, producer_epoch=1, base_sequence=6, partition_leader_epoch=2)
    )
    batch = RecordBatch(empty_batch(header))
    batch.verify()
    assert batch.size_bytes == BATCH_HEADER_BYTES
    assert list(batch.records()) == []
    assert list(batch.entries()) == []
    kept = batch.header
    assert (kept.base_offset, kept.last_offset, kept.last_sequence, kept.record_count) == (9, 10, 7, 0)
    assert (kept.producer_id, kept.producer_epoch, kept.partition_leader_epoch, kept.max_timestamp_ms) == (
        3,
        1,
        2,
        1_001,
    )


def test_batches_of_all_magics_share_one_face() -> None:
    from barnabas.wire.legacy_records import write_message

    buffer = (
        write_message(0, 5, -1, b"k", b"zero") + write_message(1, 6, 50, b"k", b"one") + batch_of(b"two", base_offset=7)
    )
    batches = [batch_at(buffer, span) for span in walk_batches(buffer).spans]
    assert [batch.magic for batch in batches] == [0, 1, 2]
    assert [(batch.base_offset, batch.last_offset) for batch in batches] == [(5, 5), (6, 6), (7, 7)]
    assert [batch.max_timestamp_ms for batch in batches] == [-1, 50, 1_000]
    assert {batch.producer_id for batch in batches} == {-1}
    assert list(read_records(buffer)) == [
        Record(5, -1, b"k", b"zero"),
        Record(6, 50, b"k", b"one"),
        Record(7, 1_000, b"k0", b"two"),
    ]


def test_a_negative_count_is_refused() -> None:
    batch = batch_of(b"a")
    batch[57:61] = struct.pack(">i", -1)
    with pytest.raises(InvalidRecordError, match="-1 records"):
        list(RecordBatch(batch).records())
