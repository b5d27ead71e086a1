"""Reading and writing single records: every shape of them, and every way in which they can be wrong."""

from __future__ import annotations

import random
import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.record_builder import RecordBatchBuilder, RecordBatchFullError, write_varint
from barnabas.wire.record_errors import InvalidRecordError
from barnabas.wire.record_reader import iterate_entries, iterate_records, read_varint
from barnabas.wire.record_scan import scan_one_record, scan_records
from barnabas.wire.records import Record, TimestampType

INT64_MAX = 2**63 - 1
nullable_bytes = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.binary(max_size=70), nullable_bytes), max_size=3).map(tuple)
# A batch cannot hold both -1 and the greatest: their difference needs a bit more than a varint has.
timestamps = st.integers(-1, INT64_MAX - 1) | st.integers(1_700_000_000_000, 1_700_000_100_000)
drafts = st.lists(
    st.tuples(timestamps, nullable_bytes, nullable_bytes, headers, st.integers(1, 300)), min_size=1, max_size=30
)


@given(st.integers(-(2**31), 2**31 - 1))
def test_varints_return(value: int) -> None:
    encoded = write_varint(value)
    assert read_varint(encoded, 0) == (value, len(encoded))
    assert len(encoded) == next(n for n in range(1, 6) if -(1 << 7 * n - 1) <= value < 1 << 7 * n - 1)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (300, "d804"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
    ],
)
def test_varints_are_those_of_protocol_buffers(value: int, encoded: str) -> None:
    assert write_varint(value).hex() == encoded


def test_varints_have_an_end() -> None:
    for garbage in (b"\x80\x80\x80\x80\x80\x01", b"\xff\xff\xff\xff\x1f"):
        with pytest.raises(InvalidRecordError, match="32 bits"):
            read_varint(garbage, 0)
    with pytest.raises(IndexError):
        read_varint(b"\x80\x80", 0)


@given(drafts=drafts, codec=st.sampled_from(list(CompressionType)), base_offset=st.integers(0, 2**40))
def test_records_return_as_they_were_written(drafts: list[tuple], codec: CompressionType, base_offset: int) -> None:  # type: ignore[type-arg]
    builder = RecordBatchBuilder(base_offset=base_offset, compression=Compression(codec))
    expected = []
    offset = base_offset
    for timestamp_ms, key, value, record_headers, gap in drafts:
        builder.append(timestamp_ms, key, value, record_headers, offset)
        expected.append(Record(offset, timestamp_ms, key, value, record_headers))
        offset += gap
    batch = RecordBatch(memoryview(builder.build()))
    batch.verify()
    assert list(batch.records()) == expected
    entries = list(batch.entries())
    assert [entry[:4] for entry in entries] == [
        (r.offset, r.timestamp_ms, r.key, r.value is not None) for r in expected
    ]
    assert sum(entry.size_bytes for entry in entries) == len(batch.payload())
    assert batch.max_timestamp_ms == max(record.timestamp_ms for record in expected)
    assert batch.last_offset == expected[-1].offset

    scan = scan_records(batch.payload(), len(expected), batch.header.base_timestamp_ms)
    times = [record.timestamp_ms for record in expected if record.timestamp_ms != -1]
    assert (scan.max_timestamp_ms, scan.min_timestamp_ms) == ((max(times), min(times)) if times else (-1, -1))
    assert scan.has_all_keys == all(record.key is not None for record in expected)
    assert scan.has_sequential_offsets == all(gap == 1 for *_, gap in drafts[:-1])
    if times:
        first = next(record for record in expected if record.timestamp_ms == max(times))
        assert scan.offset_delta_of_max_timestamp == first.offset - base_offset


def test_log_append_time_replaces_every_timestamp() -> None:
    builder = RecordBatchBuilder(timestamp_type=TimestampType.LOG_APPEND_TIME, log_append_time_ms=77)
    builder.append(5, b"a", b"b")
    builder.append(6, b"a", None)
    batch = RecordBatch(builder.build())
    assert batch.max_timestamp_ms == builder.max_timestamp_ms == 77
    assert [record.timestamp_ms for record in batch.records()] == [77, 77]
    assert [(entry.timestamp_ms, entry.has_value) for entry in batch.entries()] == [(77, True), (77, False)]


def record_bytes(body: bytes) -> bytes:
    return write_varint(len(body)) + body


@pytest.mark.parametrize(
    ("data", "count", "reason"),
    [
        (b"", 1, "end before"),
        (record_bytes(b"\0\0\0\x01\x01\0"), 2, "end before"),
        (record_bytes(b"\0\0\0\x01\x01\0") + b"\0", 1, "bytes follow"),
        (record_bytes(b"\0\0\0\x01\x01\0") * 2, 1, "bytes follow"),
        (b"\x0e" + b"\0\0\0\x01\x01\0", 1, "ends at|end before"),
        (b"\x0a" + b"\0\0\0\x01\x01\0", 1, "ends at|ends? before"),
        (b"\x01" + b"\0\0\0\x01\x01\0", 1, "ends? (at|before)"),
        (record_bytes(b"\0\0\0\x7e\x01\0"), 1, "ends? (at|before)"),
        (record_bytes(b"\0\0\0\x01" + write_varint(2**31 - 1) + b"\0"), 1, "ends? (at|before)"),
        (record_bytes(b"\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\0\x01\x01\0"), 1, "64 bits"),
    ],
)
def test_malformed_records_are_refused(data: bytes, count: int, reason: str) -> None:
    with pytest.raises(InvalidRecordError, match=reason):
        list(iterate_records(data, count, 0, 0, None))
    with pytest.raises(InvalidRecordError, match=reason):
        list(iterate_entries(data, count, 0, 0, None))
    with pytest.raises(InvalidRecordError, match=reason):
        scan_records(data, count, 0)


@pytest.mark.parametrize(
    ("header_bytes", "reason"),
    [
        (b"\x01", "claims -1 headers"),
        (write_varint(2**31 - 1), "headers where"),
        (b"\x02\x01\x01", "has no key"),
        (b"\x02\x02a\x08b", "end before"),
        (b"\x02\x7ea", "end before"),
        (b"\x04\x02a\x01", "claims 2 headers|end before"),
    ],
)
def test_malformed_headers_are_refused(header_bytes: bytes, reason: str) -> None:
    data = record_bytes(b"\0\0\0\x01\x01" + header_bytes)
    with pytest.raises(InvalidRecordError, match=reason):
        list(iterate_records(data, 1, 0, 0, None))
    with pytest.raises(InvalidRecordError, match=reason):
        scan_records(data, 1, 0)


def test_a_part_may_not_reach_into_the_next_record() -> None:
    data = record_bytes(b"\0\0\0\x01\x04v\0") + record_bytes(b"\0\0\x02\x01\x01\0")
    for read in (iterate_records, iterate_entries):
        with pytest.raises(InvalidRecordError, match=r"ends at|end before"):
            list(read(data, 2, 0, 0, None))
    with pytest.raises(InvalidRecordError, match=r"ends at|end before"):
        scan_records(data, 2, 0)


def number_bytes(value: int, extra_bytes: int) -> bytes:
    """A varint that is `extra_bytes` longer than it needs to be."""
    encoded = bytearray(write_varint(value))
    for _ in range(extra_bytes):
        encoded[-1] |= 0x80
        encoded.append(0)
    return bytes(encoded)


def test_the_scan_agrees_with_reading_whatever_the_bytes() -> None:
    """Sizes around the limits of one and two bytes, numbers that are longer than they need to be, and damage."""
    chance = random.Random(3)
    sizes = (-2, -1, 0, 1, 63, 64, 100, 8_191, 8_192)
    accepted = refused = 0
    for _ in range(3_000):
        count = chance.randrange(1, 5)
        pieces = []
        for index in range(count):
            body = b"\0" + number_bytes(chance.choice((0, 0, 5, -70, 10_000)), chance.randrange(2))
            body += number_bytes(chance.choice((index, index, index, index + 1, -1)), chance.randrange(3))
            for size in chance.choices(sizes, (1, 9, 9, 9, 9, 9, 9, 1, 1), k=2):
                body += number_bytes(size, chance.randrange(2)) + bytes(max(size, 0))
            body += chance.choice((b"\0", b"\0", b"\x02\x02a\x01", b"\x02\x01"))
            pieces.append(number_bytes(len(body), chance.randrange(2)) + body)
        data = bytearray(b"".join(pieces))
        if chance.random() < 0.4:
            data[chance.randrange(min(len(data), 20))] = chance.randrange(256)
        try:
            records = list(iterate_records(bytes(data), count, 7, 50, None))
        except InvalidRecordError as problem:
            refused += 1
            for form in (bytes(data), memoryview(data)):
                with pytest.raises(InvalidRecordError, match=f"^{re.escape(str(problem))}$"):
                    scan_records(form, count, 50)
            continue
        accepted += 1
        times = [record.timestamp_ms for record in records if record.timestamp_ms != -1]
        largest = max(times, default=-1)
        for form in (bytes(data), memoryview(data)):
            assert scan_records(form, count, 50) == (
                largest,
                min(times, default=-1),
                next((record.offset - 7 for record in records if record.timestamp_ms == largest and times), -1),
                [record.offset - 7 for record in records] == list(range(count)),
                all(record.key is not None for record in records),
                False,
            )
    assert min(accepted, refused) > 500


def scan_one(data: bytes | bytearray | memoryview, position: int) -> bool | None:
    """Whether the only record has a key, as `validate_usual` asks."""
    return scan_one_record(data, position, *struct.unpack_from(">HI", data, position))


def test_the_scan_of_one_record_takes_what_is_usual_and_agrees_about_it() -> None:
    chance = random.Random(4)
    sizes = (-2, -1, 0, 1, 62, 63, 64, 100, 8_100, 8_191, 8_192)
    taken = left = 0
    for _ in range(6_000):
        body = b"\0" + write_varint(chance.choice((0, 0, 0, 0, -1, 70))) + number_bytes(0, chance.randrange(8) // 7)
        for size in chance.choices(sizes, (1, 9, 5, 9, 9, 9, 9, 9, 2, 1, 1), k=2):
            body += number_bytes(size, chance.randrange(8) // 7) + bytes(max(size, 0))
        body += chance.choice((b"\0", b"\0", b"\0", b"\x02\x02a\x01"))
        data = bytearray(b"a header" + number_bytes(len(body), chance.randrange(8) // 7) + body)
        damage = chance.random()
        if damage < 0.2:
            data[8 + chance.randrange(min(len(data) - 8, 20))] = chance.randrange(256)
        elif damage < 0.3:
            del data[chance.randrange(9, len(data)) :]
        elif damage < 0.4:
            data += bytes(chance.randrange(1, 3))
        base_timestamp_ms = chance.choice((50, 50, 50, 0, -1, 2**63 - 1))
        if len(data) < 15:
            continue  # no record is as short
        has_key = scan_one(chance.choice((data, memoryview(data))), 8)
        if has_key is None:
            left += 1
        elif base_timestamp_ms >= 0:
            taken += 1
            found = (base_timestamp_ms, base_timestamp_ms, 0, True, has_key, False)
            assert found == scan_records(bytes(data[8:]), 1, base_timestamp_ms)
    assert min(taken, left) > 500


@pytest.mark.parametrize("key", [None, b"", b"k" * 63])
@pytest.mark.parametrize("value_bytes", [None, 0, 63, 64, 100, 8_000])
def test_the_scan_of_one_record_leaves_nothing_usual_to_the_long_way(
    key: bytes | None, value_bytes: int | None
) -> None:
    builder = RecordBatchBuilder()
    builder.append(1_700_000_000_000, key, None if value_bytes is None else bytes(value_bytes))
    assert scan_one(bytearray(builder.build()), 61) is (key is not None)


def test_a_negative_size_of_two_bytes_is_left_to_the_long_way() -> None:
    body = b"\0\0\0\x01" + write_varint(-65) + bytes(64) + b"\0"  # halved as if it were positive, it fits
    data = write_varint(len(body)) + body
    assert scan_one(data, 0) is None
    with pytest.raises(InvalidRecordError):
        scan_records(data, 1, 50)


def test_a_length_of_three_bytes_is_left_to_the_long_way() -> None:
    body = b"\0\0\0\x01" + write_varint(8_300) + bytes(8_300) + b"\0"
    data = write_varint(len(body)) + body
    assert scan_records(data, 1, 50).has_all_keys is False
    assert scan_one(data, 0) is None

    def two_bytes(size: int) -> bytes:
        """What would have to stand there, were two bytes enough."""
        return bytes((size << 1 & 0x7F | 0x80, size << 1 >> 7))

    body = b"\0\0\0\x01" + two_bytes(8_300) + bytes(8_300) + b"\0"
    data = two_bytes(len(body)) + body
    assert scan_one(data, 0) is None
    with pytest.raises(InvalidRecordError):
        scan_records(data, 1, 50)


@pytest.mark.parametrize("size", [16_386, 16_387, 16_389, 32_770, 65_540, 1_000_000])
def test_a_length_that_lies_is_left_to_the_long_way_whatever_the_size(size: int) -> None:
    # The two bytes that come out, where its bits beyond 14 are lost or fall upon others.
    length = ((size - 2 << 1 & 0x7F | 0x80) << 8 | size - 2 << 1 >> 7) & 0xFF7F
    data = bytearray(length.to_bytes(2) + b"\0\0\0\x01")
    left = size - len(data)
    value = (left - 3 << 1 & 0x7F | 0x80, left - 3 << 1 >> 7)
    data += bytes(byte & 0xFF for byte in value) + bytes(left - 2)
    assert len(data) == size
    assert scan_one(data, 0) is None
    with pytest.raises(InvalidRecordError):
        scan_records(data, 1, 50)


@pytest.mark.parametrize(
    "body",
    [
        # The size of a key takes two bytes, and the key ends with what would be the size of a value, were it one.
        write_varint(64) + bytes(63) + b"\x04" + b"\x03\0" + b"\0",
        # Behind a value that is null stand less headers than none.
        b"\x01\x01\x03" + bytes(3) + b"\0",
        # A value of one byte, which together with its size is the size of all that is left, were it two bytes.
        b"\x01\x02\x02" + b"\x03" + bytes(64) + b"\0",
    ],
    ids=["key", "null", "value"],
)
def test_what_looks_like_one_record_is_left_to_the_long_way(body: bytes) -> None:
    data = write_varint(len(body) + 3) + b"\0\0\0" + body
    assert scan_one(data, 0) is None
    with pytest.raises(InvalidRecordError):
        scan_records(data, 1, 50)


def test_timestamps_beyond_64_bits_are_refused() -> None:
    data = record_bytes(b"\0" + write_varint(INT64_MAX) + b"\0\x01\x01\0")
    assert scan_records(data, 1, 0).max_timestamp_ms == INT64_MAX
    with pytest.raises(InvalidRecordError, match="64 bits"):
        scan_records(data, 1, 1)


# the builder


def test_a_full_batch_takes_no_more_and_stays_whole() -> None:
    builder = RecordBatchBuilder(limit_bytes=200)
    builder.append(1, None, bytes(100))
    size = builder.size_bytes
    with pytest.raises(RecordBatchFullError, match="limit is 200"):
        builder.append(2, None, bytes(100))
    assert (builder.size_bytes, builder.record_count, builder.last_offset) == (size, 1, 0)
    assert builder.append(2, None, b"small") == 1
    assert len(builder.build()) == builder.size_bytes <= 200


def test_the_first_record_is_taken_whatever_its_size() -> None:
    builder = RecordBatchBuilder(limit_bytes=10)
    builder.append(1, None, bytes(100))
    assert len(builder.build()) > 100


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((-2, None, None), "timestamp"),
        ((2**63, None, None), "timestamp"),
        ((1, None, None, (), 4), "follow"),
        ((1, None, None, (), 5 + 2**31), "too far"),
    ],
)
def test_what_the_format_cannot_hold_is_our_own_fault(arguments: tuple, reason: str) -> None:  # type: ignore[type-arg]
    builder = RecordBatchBuilder(base_offset=5)
    with pytest.raises(ValueError, match=reason):
        builder.append(*arguments)
    with pytest.raises(ValueError, match="needs a record"):
        builder.build()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"is_transactional": True}, "producer id"),
        ({"producer_id": 1, "base_sequence": 0}, "epoch"),
        ({"producer_id": 1, "producer_epoch": 0}, "sequence"),
        ({"timestamp_type": TimestampType.NO_TIMESTAMP_TYPE}, "timestamp type"),
    ],
)
def test_contradictory_producer_fields_are_refused(fields: dict, reason: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match=reason):
        RecordBatchBuilder(**fields)


def test_header_fields_out_of_range_are_refused() -> None:
    builder = RecordBatchBuilder(producer_id=2**63, producer_epoch=0, base_sequence=0)
    builder.append(1, None, None)
    with pytest.raises(ValueError, match="out of its range"):
        builder.build()


def test_the_range_of_a_compacted_batch_is_kept() -> None:
    builder = RecordBatchBuilder(base_offset=10, delete_horizon_ms=5_000)
    builder.append(7_000, b"k", None, (), 12)
    batch = RecordBatch(builder.build(last_offset=19))
    assert (batch.base_offset, batch.last_offset, batch.header.delete_horizon_ms) == (10, 19, 5_000)
    assert list(batch.records()) == [Record(12, 7_000, b"k", None)]
    with pytest.raises(ValueError, match="does not cover"):
        builder.build(last_offset=11)
