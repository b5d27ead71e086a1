"""What a leader accepts, how it changes it, and which error it gives for the rest."""

from __future__ import annotations

import dataclasses
import random
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.wire.byte_work import run_at_once
from barnabas.wire.compression import compress
from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.control_records import ControlRecordType, EndTransactionMarker, end_transaction_batch
from barnabas.wire.errors import ErrorCode
from barnabas.wire.legacy_records import write_message, write_messages
from barnabas.wire.record_batch import HEADER, RecordBatch, read_batch_header, set_checksum
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.record_errors import (
    CorruptRecordError,
    DecompressedTooLargeError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordsError,
    RecordTooLargeError,
    UnsupportedCompressionTypeError,
)
from barnabas.wire.record_validation import (
    RECORD_ERRORS_MAX,
    SMALLEST_RECORD_BYTES,
    AppendOrigin,
    AppendRules,
    ValidatedBatch,
    assign_offsets,
    check_produce_version,
    validate_in_steps,
    validate_records,
)
from barnabas.wire.records import Record, TimestampType

NOW_MS = 1_700_000_000_000
PLAIN = AppendRules()
CODECS = list(CompressionType)


def batch_of(
    times: Sequence[int] = (NOW_MS, NOW_MS + 5, NOW_MS + 2),
    key: bytes | None = b"k",
    codec: CompressionType = CompressionType.NONE,
    offsets: Iterable[int | None] | None = None,
    **fields: Any,
) -> bytearray:
    builder = RecordBatchBuilder(compression=Compression(codec), **fields)
    for timestamp_ms, offset in zip(times, offsets or [None] * len(times), strict=True):
        builder.append(timestamp_ms, key, b"value" * 10, ((b"h", b"v"),), offset)
    return builder.build()


def with_header(batch: bytearray, **fields: int) -> bytearray:
    """The batch with other header fields and a checksum that fits them."""
    changed = bytearray(HEADER.pack(*read_batch_header(batch)._replace(**fields))) + batch[61:]
    set_checksum(changed)
    return changed


def records_of(batch: bytearray | memoryview) -> list[Record]:
    stored = RecordBatch(batch)
    stored.verify()
    return list(stored.records())


@pytest.mark.parametrize("codec", CODECS)
def test_a_good_batch_is_taken_in_place(codec: CompressionType) -> None:
    batch = batch_of(codec=codec, producer_id=4, producer_epoch=1, base_sequence=9, is_transactional=True)
    buffer = bytearray(b"frame") + batch
    validated = validate_records(memoryview(buffer)[5:], PLAIN, NOW_MS)
    assert (validated.converted_count, validated.record_count, validated.max_timestamp_ms) == (0, 3, NOW_MS + 5)
    assert buffer[5:] == batch
    assert assign_offsets(validated, 1_000, 7, NOW_MS) == 1_002
    stored = RecordBatch(buffer, 5)
    stored.verify()
    assert (stored.base_offset, stored.header.partition_leader_epoch) == (1_000, 7)
    assert stored.header.crc == read_batch_header(batch).crc
    assert [record.offset for record in stored.records()] == [1_000, 1_001, 1_002]
    assert stored.header._replace(base_offset=0, partition_leader_epoch=-1) == read_batch_header(batch)


def test_validation_takes_read_only_memory() -> None:
    assert validate_records(bytes(batch_of()), PLAIN, NOW_MS).record_count == 3


@pytest.mark.parametrize("source", CODECS)
@pytest.mark.parametrize("target", CODECS)
def test_compression_type_of_the_topic_wins(source: CompressionType, target: CompressionType) -> None:
    batch = batch_of(codec=source, producer_id=4, producer_epoch=1, base_sequence=9, is_transactional=True)
    expected = [record._replace(offset=record.offset + 50) for record in records_of(batch)]
    validated = validate_records(batch, AppendRules(compression=Compression(target)), NOW_MS)
    assert validated.converted_count == (0 if source is target else 3)
    last_offset = assign_offsets(validated, 50, 3, NOW_MS)
    stored = RecordBatch(validated.records)
    assert stored.compression_type is target
    assert records_of(validated.records) == expected
    assert last_offset == stored.last_offset == 52
    header = stored.header
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.is_transactional) == (4, 1, 9, True)


def test_log_append_time_replaces_the_producers() -> None:
    rules = AppendRules(timestamp_type=TimestampType.LOG_APPEND_TIME)
    for codec in CODECS:
        validated = validate_records(batch_of(codec=codec), rules, NOW_MS)
        assert validated.converted_count == 0
        assign_offsets(validated, 0, 0, NOW_MS + 77)
        assert {record.timestamp_ms for record in records_of(validated.records)} == {NOW_MS + 77}


def test_timestamps_below_none_count_as_none_in_the_header() -> None:
    batch = batch_of((10, 11), key=None)
    shifted = with_header(batch, base_timestamp_ms=-20)
    for records in (shifted, shifted + b"part of another"):
        validated = validate_records(records, PLAIN, NOW_MS)
        assign_offsets(validated, 0, 0, NOW_MS)
        assert RecordBatch(validated.records).max_timestamp_ms == -1
        assert [record.timestamp_ms for record in records_of(validated.records)] == [-20, -19]


def test_a_wrong_largest_timestamp_is_corrected() -> None:
    validated = validate_records(with_header(batch_of(), max_timestamp_ms=1), PLAIN, NOW_MS)
    assign_offsets(validated, 0, 0, NOW_MS)
    assert RecordBatch(validated.records).max_timestamp_ms == NOW_MS + 5
    records_of(validated.records)


@pytest.mark.parametrize("codec", CODECS)
def test_offsets_that_are_not_sequential_are_renumbered(codec: CompressionType) -> None:
    batch = with_header(batch_of(offsets=(0, 5, 9), codec=codec), last_offset_delta=2)
    validated = validate_records(batch, PLAIN, NOW_MS)
    assert validated.converted_count == 3
    assign_offsets(validated, 100, 0, NOW_MS)
    assert [record.offset for record in records_of(validated.records)] == [100, 101, 102]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"base_offset": 1}, "base offset 1"),
        ({"record_count": 0}, "0 records"),
        ({"record_count": -1}, "-1 records"),
        ({"record_count": 2}, "2 records and last offset delta 2"),
        ({"last_offset_delta": 3}, "last offset delta 3"),
        ({"last_offset_delta": -1}, "last offset delta -1"),
        ({"record_count": 4, "last_offset_delta": 3}, "end before"),
        ({"record_count": 2, "last_offset_delta": 1}, "bytes follow"),
        ({"attributes": 0x20}, "control"),
        ({"attributes": 0x40}, "delete horizon"),
        ({"attributes": 0x10}, "transactional"),
        ({"producer_id": 5, "producer_epoch": 0}, "sequence -1"),
    ],
)
def test_headers_that_break_a_rule_are_invalid(fields: dict[str, int], reason: str) -> None:
    with pytest.raises(InvalidRecordError, match=reason) as caught:
        validate_records(with_header(batch_of(), **fields), PLAIN, NOW_MS)
    assert caught.value.error is ErrorCode.INVALID_RECORD
    assert caught.value.record_errors == ()


def test_corruption_has_its_own_error() -> None:
    batch = batch_of()
    batch[70] ^= 1
    for data in (batch, batch[:16] + b"\x07" + batch[17:], batch[:8] + b"\0\0\0\1" + batch[12:]):
        with pytest.raises(CorruptRecordError) as caught:
            validate_records(data, PLAIN, NOW_MS)
        assert caught.value.error is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", CODECS[1:])
def test_one_record_that_is_only_said_to_be_compressed_is_corrupt(codec: CompressionType) -> None:
    builder = RecordBatchBuilder()
    builder.append(NOW_MS, b"k", b"value")
    with pytest.raises(RecordsError):
        validate_records(with_header(builder.build(), attributes=codec), PLAIN, NOW_MS)


@pytest.mark.parametrize("timestamp_type", TimestampType)
@pytest.mark.parametrize("timestamp_ms", [0, -1, -2, -(2**63) + 1, -(2**63), 2**63 - 1])
def test_one_record_has_the_timestamp_that_it_would_have_among_others(
    timestamp_ms: int, timestamp_type: TimestampType
) -> None:
    rules = AppendRules(timestamp_type=timestamp_type)
    builder = RecordBatchBuilder()
    builder.append(NOW_MS, b"k", b"value")
    batch = with_header(builder.build(), base_timestamp_ms=timestamp_ms, max_timestamp_ms=timestamp_ms)

    def outcome(validate: Callable[[], ValidatedBatch]) -> object:
        try:
            return validate().max_timestamp_ms
        except InvalidRecordError as error:
            return str(error)

    expected = outcome(lambda: run_at_once(validate_in_steps(batch, rules, NOW_MS)))
    assert outcome(lambda: validate_records(batch, rules, NOW_MS)) == expected


def test_sizes_have_their_own_error() -> None:
    batch = batch_of()
    assert validate_records(batch, AppendRules(batch_bytes_max=len(batch)), NOW_MS).record_count == 3
    with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes") as caught:
        validate_records(batch, AppendRules(batch_bytes_max=len(batch) - 1), NOW_MS)
    assert caught.value.error is ErrorCode.MESSAGE_TOO_LARGE


def test_a_batch_that_grows_when_it_is_rebuilt_is_measured_again() -> None:
    batch = batch_of([NOW_MS] * 500, codec=CompressionType.GZIP)
    rules = AppendRules(batch_bytes_max=2 * len(batch), compression=Compression(CompressionType.NONE))
    with pytest.raises(RecordTooLargeError):
        validate_records(batch, rules, NOW_MS)


def test_decompression_is_bounded() -> None:
    batch = batch_of([NOW_MS] * 500, codec=CompressionType.ZSTD)
    with pytest.raises(DecompressedTooLargeError) as caught:
        validate_records(batch, AppendRules(decompressed_bytes_max=10_000), NOW_MS)
    assert caught.value.error is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", [CompressionType.GZIP, CompressionType.ZSTD])
def test_a_batch_has_no_more_records_than_fit_uncompressed(codec: CompressionType) -> None:
    """A few hundred bytes could hold millions of records, and each is looked at on the event loop."""
    count = 1_000
    builder = RecordBatchBuilder(compression=Compression(codec))
    for _ in range(count):
        builder.append(NOW_MS, None, None)
    batch = builder.build()
    enough = count * SMALLEST_RECORD_BYTES
    assert len(batch) < enough
    assert validate_records(batch, AppendRules(batch_bytes_max=enough), NOW_MS).record_count == count
    with pytest.raises(RecordTooLargeError, match="1000 records") as caught:
        validate_records(batch, AppendRules(batch_bytes_max=enough - 1), NOW_MS)
    assert caught.value.error is ErrorCode.MESSAGE_TOO_LARGE


def test_every_uncompressed_batch_that_is_small_enough_has_few_enough_records() -> None:
    builder = RecordBatchBuilder()
    for _ in range(100):
        builder.append(NOW_MS, None, None)
    batch = builder.build()
    assert validate_records(batch, AppendRules(batch_bytes_max=len(batch)), NOW_MS).record_count == 100


@pytest.mark.parametrize("magic", [0, 1])
def test_a_wrapper_message_has_no_more_messages_than_a_batch_has_records(magic: int) -> None:
    records = [Record(offset, NOW_MS, None, b"") for offset in range(1_000)]
    wrapper = write_messages(magic, records, Compression(CompressionType.GZIP))
    enough = 1_000 * SMALLEST_RECORD_BYTES
    assert len(wrapper) < enough
    rules = AppendRules(batch_bytes_max=enough, compression=Compression(CompressionType.GZIP))
    assert validate_records(wrapper, rules, NOW_MS).record_count == 1_000
    with pytest.raises(RecordTooLargeError, match="1000 records"):
        validate_records(wrapper, dataclasses.replace(rules, batch_bytes_max=enough - 1), NOW_MS)


def test_a_codec_of_no_name_is_unsupported() -> None:
    with pytest.raises(UnsupportedCompressionTypeError) as caught:
        validate_records(with_header(batch_of(), attributes=6), PLAIN, NOW_MS)
    assert caught.value.error is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_there_is_one_batch() -> None:
    batch = batch_of()
    with pytest.raises(InvalidRecordError, match="no batch"):
        validate_records(b"", PLAIN, NOW_MS)
    with pytest.raises(InvalidRecordError, match="no batch"):
        validate_records(batch[:-1], PLAIN, NOW_MS)
    with pytest.raises(InvalidRecordError, match="2 batches"):
        validate_records(batch + batch, PLAIN, NOW_MS)
    validated = validate_records(batch + batch[:-1], PLAIN, NOW_MS)
    assert len(validated.records) == len(batch)


def test_compacted_topics_need_keys() -> None:
    rules = AppendRules(is_compacted=True)
    assert validate_records(batch_of(key=b""), rules, NOW_MS).record_count == 3
    with pytest.raises(InvalidRecordError, match="without keys") as caught:
        validate_records(batch_of(key=None), rules, NOW_MS)
    assert [error.batch_index for error in caught.value.record_errors] == [0, 1, 2]
    assert caught.value.error is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", CODECS)
def test_timestamps_are_held_to_the_range(codec: CompressionType) -> None:
    rules = AppendRules(timestamp_before_max_ms=100, timestamp_after_max_ms=10)
    good = batch_of((NOW_MS - 100, -1, NOW_MS + 10), codec=codec)
    assert validate_records(good, rules, NOW_MS).max_timestamp_ms == NOW_MS + 10
    bad = batch_of((NOW_MS - 101, -1, NOW_MS, NOW_MS + 11), codec=codec)
    with pytest.raises(InvalidTimestampError, match="2 records") as caught:
        validate_records(bad, rules, NOW_MS)
    assert [error.batch_index for error in caught.value.record_errors] == [0, 3]
    assert caught.value.error is ErrorCode.INVALID_TIMESTAMP
    below_none = batch_of((100, 99), codec=codec)
    below_none[27:35] = (-1).to_bytes(8, "big", signed=True)  # the base: no client makes -1 and -2 of it
    set_checksum(below_none)
    with pytest.raises(InvalidTimestampError) as caught:
        validate_records(below_none, rules, NOW_MS)
    assert [error.batch_index for error in caught.value.record_errors] == [1]
    append_time = AppendRules(
        timestamp_type=TimestampType.LOG_APPEND_TIME, timestamp_before_max_ms=100, timestamp_after_max_ms=10
    )
    assert validate_records(bad, append_time, NOW_MS).record_count == 4


def test_errors_name_a_bounded_number_of_records() -> None:
    rules = AppendRules(timestamp_before_max_ms=1)
    with pytest.raises(InvalidTimestampError, match="5000 records") as caught:
        validate_records(batch_of([1] * 5_000), rules, NOW_MS)
    assert len(caught.value.record_errors) == RECORD_ERRORS_MAX


def test_only_brokers_set_log_append_time() -> None:
    batch = batch_of(timestamp_type=TimestampType.LOG_APPEND_TIME, log_append_time_ms=NOW_MS)
    with pytest.raises(InvalidTimestampError, match="LogAppendTime"):
        validate_records(batch, AppendRules(timestamp_type=TimestampType.LOG_APPEND_TIME), NOW_MS)
    # As in Kafka, a topic with the producer's time takes the batch's time for that of its records.
    validated = validate_records(batch, PLAIN, NOW_MS)
    assign_offsets(validated, 0, 0, NOW_MS)
    assert RecordBatch(validated.records).timestamp_type is TimestampType.CREATE_TIME


def test_coordinators_write_markers_which_are_never_compressed() -> None:
    marker = EndTransactionMarker(ControlRecordType.COMMIT, 3)
    batch = end_transaction_batch(marker, timestamp_ms=NOW_MS, producer_id=8, producer_epoch=0)
    rules = AppendRules(compression=Compression(CompressionType.GZIP), is_compacted=True)
    validated = validate_records(batch, rules, NOW_MS, AppendOrigin.COORDINATOR)
    assert validated.converted_count == 0
    with pytest.raises(InvalidRecordError, match="control"):
        validate_records(batch, rules, NOW_MS, AppendOrigin.CLIENT)


# older formats


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("source", [codec for codec in CODECS if codec is not CompressionType.ZSTD])
@pytest.mark.parametrize("target", [None, *CODECS])
def test_messages_are_converted_up(magic: int, source: CompressionType, target: CompressionType | None) -> None:
    records = [Record(index, NOW_MS + index, b"k%d" % index, b"v" * 50) for index in range(20)]
    data = write_messages(magic, records, Compression(source))
    rules = AppendRules(compression=None if target is None else Compression(target))
    validated = validate_records(data, rules, NOW_MS)
    assert validated.converted_count == 20
    assert assign_offsets(validated, 500, 2, NOW_MS) == 519
    stored = RecordBatch(validated.records)
    assert stored.compression_type is (source if target is None else target)
    assert (stored.producer_id, stored.header.partition_leader_epoch) == (-1, 2)
    times = {index: NOW_MS + index if magic else -1 for index in range(20)}
    assert records_of(validated.records) == [
        record._replace(offset=500 + index, timestamp_ms=times[index]) for index, record in enumerate(records)
    ]


def test_messages_with_odd_offsets_are_renumbered() -> None:
    data = b"".join(write_message(1, offset, NOW_MS, None, b"v") for offset in (7, 7, 0))
    validated = validate_records(data, PLAIN, NOW_MS)
    assign_offsets(validated, 10, 0, NOW_MS)
    assert [record.offset for record in records_of(validated.records)] == [10, 11, 12]


def test_messages_are_held_to_the_same_rules() -> None:
    message = write_message(1, 0, NOW_MS, None, b"v")
    with pytest.raises(InvalidRecordError, match="without keys"):
        validate_records(message, AppendRules(is_compacted=True), NOW_MS)
    with pytest.raises(InvalidTimestampError):
        validate_records(message, AppendRules(timestamp_before_max_ms=5), NOW_MS + 6)
    with pytest.raises(CorruptRecordError, match="checksum"):
        validate_records(message[:-1] + b"w", PLAIN, NOW_MS)
    with pytest.raises(InvalidRecordError, match="follows"):
        validate_records(message + write_message(0, 0, -1, None, b"v"), PLAIN, NOW_MS)
    wrapper = write_messages(1, [Record(0, NOW_MS, None, b"v")], Compression(CompressionType.GZIP))
    with pytest.raises(InvalidRecordError, match="the only one"):
        validate_records(wrapper + message, PLAIN, NOW_MS)
    own_time = write_message(1, 0, NOW_MS, None, b"v", timestamp_type=TimestampType.LOG_APPEND_TIME)
    with pytest.raises(InvalidTimestampError, match="LogAppendTime"):
        validate_records(own_time, AppendRules(timestamp_type=TimestampType.LOG_APPEND_TIME), NOW_MS)


def test_messages_in_a_wrapper_have_checksums_and_magics_of_their_own() -> None:
    def wrapper(inner: bytes) -> bytes:
        payload = compress(inner, Compression(CompressionType.GZIP))
        return write_message(1, 0, NOW_MS, None, payload, compression_type=CompressionType.GZIP)

    inner = write_message(1, 0, NOW_MS, None, b"v")
    assert validate_records(wrapper(inner), PLAIN, NOW_MS).record_count == 1
    with pytest.raises(CorruptRecordError, match="checksum"):
        validate_records(wrapper(inner[:-1] + b"w"), PLAIN, NOW_MS)
    with pytest.raises(InvalidRecordError, match="wrapper 1") as caught:
        validate_records(wrapper(inner + write_message(0, 1, -1, None, b"v")), PLAIN, NOW_MS)
    assert [error.batch_index for error in caught.value.record_errors] == [1]


# versions of the Produce request


def test_produce_versions_carry_what_they_may() -> None:
    batch, message = batch_of(), write_message(1, 0, NOW_MS, None, b"v")
    check_produce_version(message + message, 2)
    check_produce_version(batch, 3)
    check_produce_version(batch_of(codec=CompressionType.ZSTD), 7)
    for data, version, reason in (
        (b"", 3, "not none"),
        (batch + batch, 9, "not more"),
        (message, 3, "magic 2, not 1"),
    ):
        with pytest.raises(InvalidRecordError, match=reason):
            check_produce_version(data, version)
    with pytest.raises(UnsupportedCompressionTypeError, match="zstd"):
        check_produce_version(batch_of(codec=CompressionType.ZSTD), 6)


# garbage


@given(st.binary(max_size=300))
def test_random_bytes_raise_only_the_protocol_error(data: bytes) -> None:
    for prefix in (b"", bytes(8) + struct.pack(">iib", len(data) + 5, 0, 2)):
        try:
            validate_records(prefix + data, PLAIN, NOW_MS)
        except RecordsError:
            continue


def test_damaged_batches_raise_only_the_protocol_error() -> None:
    """The checksum is made to fit the damage, so that it reaches what lies behind."""
    chance = random.Random(11)
    rules = AppendRules(decompressed_bytes_max=100_000, is_compacted=True, timestamp_before_max_ms=2**60)
    intact = [batch_of([NOW_MS + index for index in range(40)], codec=codec) for codec in CODECS]
    intact += [batch_of(producer_id=2, producer_epoch=1, base_sequence=3, is_transactional=True)]
    targets = [None, Compression(CompressionType.NONE), Compression(CompressionType.LZ4)]
    accepted = 0
    for _ in range(3_000):
        damaged = bytearray(chance.choice(intact))
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(17, len(damaged))] = chance.randrange(256)
        set_checksum(damaged)
        topic = AppendRules(decompressed_bytes_max=rules.decompressed_bytes_max, compression=chance.choice(targets))
        chosen = chance.choice((rules, topic))
        try:
            validated = validate_records(damaged, chosen, NOW_MS)
        except RecordsError as refused:
            with pytest.raises(type(refused), match=f"^{re.escape(str(refused))}$"):
                validate_records(damaged + b"rest", chosen, NOW_MS)
            continue
        accepted += 1
        # With something behind the batch, the long way of checking is gone, with the same result.
        assert validate_records(damaged + b"rest", chosen, NOW_MS)[1:] == validated[1:]
        assign_offsets(validated, 9, 1, NOW_MS)
        assert len(records_of(validated.records)) == validated.record_count
    assert accepted > 100
