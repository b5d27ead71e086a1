"""`barnabas.wire.record_columns`: batches written by columns are those written record by record, byte by byte."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.record_builder import RecordBatchBuilder, RecordBatchFullError
from barnabas.wire.record_columns import OFFSETS_OF_TWO_BYTES, RecordShape, ValueColumn, append_column
from barnabas.wire.records import Header

NOW_MS = 1_700_000_000_000
HEADERS: tuple[Header, ...] = ((b"source", b"a" * 70), (b"none", None), (b"", b""))


def one_by_one(
    values: list[tuple[int, bytes]], key: bytes | None = None, headers: tuple[Header, ...] = ()
) -> RecordBatchBuilder:
    builder = RecordBatchBuilder()
    for timestamp_ms, value in values:
        builder.append(timestamp_ms, key, value, headers)
    return builder


@pytest.mark.parametrize("key", [None, b"", b"key", b"k" * 100])
@pytest.mark.parametrize("headers", [(), HEADERS])
@pytest.mark.parametrize("sizes", [(0, 0), (55, 55), (0, 200), (60, 68), (8_185, 8_195), (63, 64)])
@pytest.mark.parametrize("count", [1, 2, 65, 150])
def test_values_of_all_sizes_are_written_as_one_by_one(
    key: bytes | None, headers: tuple[Header, ...], sizes: tuple[int, int], count: int
) -> None:
    random = Random(count)
    values = [random.randbytes(random.randint(*sizes)) for _ in range(count)]
    builder = RecordBatchBuilder()
    column = ValueColumn(RecordShape(key, headers), values)
    assert append_column(builder, column, 0, NOW_MS) == count
    others = one_by_one([(NOW_MS, value) for value in values], key, headers)
    assert builder.size_bytes == others.size_bytes
    assert builder.last_offset == others.last_offset
    assert builder.build() == others.build()
    assert builder.size_bytes <= column.size_bytes + 61


@pytest.mark.parametrize("headers", [(), HEADERS])
@pytest.mark.parametrize("sizes", [(0, 0), (8, 8), (0, 90), (8_185, 8_195)])
@pytest.mark.parametrize("count", [1, 64, 65, 130])
def test_records_with_keys_of_their_own_are_written_as_one_by_one(
    headers: tuple[Header, ...], sizes: tuple[int, int], count: int
) -> None:
    random = Random(count)
    keys = [random.randbytes(random.randint(*sizes)) for _ in range(count)]
    values = [random.randbytes(random.choice((0, 55, random.randrange(200)))) for _ in range(count)]
    shape = RecordShape(None, headers)
    builder, others = RecordBatchBuilder(), RecordBatchBuilder()
    for timestamp_ms in (NOW_MS, NOW_MS + 70):
        column = ValueColumn(shape, values, keys)
        before = builder.size_bytes
        assert append_column(builder, column, 0, timestamp_ms) == count
        assert append_column(builder, ValueColumn(shape, values), 0, timestamp_ms) == count
        assert builder.size_bytes - before <= column.size_bytes + ValueColumn(shape, values).size_bytes
        for key, value in zip(keys, values, strict=True):
            others.append(timestamp_ms, key, value, headers)
        for value in values:
            others.append(timestamp_ms, None, value, headers)
    assert builder.build() == others.build()


def test_columns_with_keys_are_cut_where_a_batch_is_full_and_counted_with_their_keys() -> None:
    random = Random(3)
    keys = [random.randbytes(random.randrange(80)) for _ in range(1_000)]
    values = [b"%d" % number for number in range(1_000)]
    column = ValueColumn(RecordShape(), values, keys)
    at, batches = 0, 0
    while at < len(column):
        builder, others = RecordBatchBuilder(limit_bytes=4_000), RecordBatchBuilder()
        taken = append_column(builder, column, at, NOW_MS)
        for key, value in zip(keys[at : at + taken], values[at : at + taken], strict=True):
            others.append(NOW_MS, key, value)
        assert builder.build() == others.build()
        assert column.bytes_of(at, at + taken) >= builder.size_bytes - 61
        at += taken
        batches += 1
    assert 12 < batches < 60
    assert column.largest_bytes >= 80


def test_keys_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="1 keys for 2 values"):
        ValueColumn(RecordShape(), [b"a", b"b"], [b"k"])
    with pytest.raises(ValueError, match="the key b'fixed' for all"):
        ValueColumn(RecordShape(b"fixed"), [b"a"], [b"k"])


def test_offsets_of_one_two_and_three_bytes_and_other_times_are_written_as_one_by_one() -> None:
    shape = RecordShape()
    builder = RecordBatchBuilder()
    written: list[tuple[int, bytes]] = []
    random = Random(5)
    for step in range(40):
        timestamp_ms = NOW_MS + random.choice((0, 1, 63, 64, 9_000, 1 << 40, -3, -(1 << 35)))
        values = [b"x" * (7 if step % 2 else random.randrange(90)) for _ in range(random.randrange(1, 600))]
        assert append_column(builder, ValueColumn(shape, values), 0, timestamp_ms) == len(values)
        written += [(timestamp_ms, value) for value in values]
        written.append((timestamp_ms, b"between"))
        builder.append(timestamp_ms, None, b"between")
    assert len(written) > OFFSETS_OF_TWO_BYTES
    assert builder.max_timestamp_ms == NOW_MS + (1 << 40)
    assert builder.build() == one_by_one(written).build()


@pytest.mark.parametrize("first", [0, 1, 60, 7_000])
@pytest.mark.parametrize("size", [0, 40, 55, 63, 64, 300])
def test_many_values_of_one_size_are_written_as_one_by_one(first: int, size: int) -> None:
    shape = RecordShape(b"key", HEADERS)
    builder = RecordBatchBuilder()
    if first:
        append_column(builder, ValueColumn(shape, [b"ahead"] * first), 0, NOW_MS)
    values = [b"%d" % number * size for number in range(1_100)]
    column = ValueColumn(shape, [value[:size] for value in values])
    append_column(builder, column, 0, NOW_MS)
    assert shape._between[0] == size
    written = [(NOW_MS, b"ahead")] * first + [(NOW_MS, value[:size]) for value in values]
    assert builder.build() == one_by_one(written, b"key", HEADERS).build()


def test_a_full_batch_takes_what_fits_and_the_next_one_goes_on_from_there() -> None:
    shape = RecordShape(b"k")
    random = Random(3)
    values = [random.randbytes(random.randrange(50)) for _ in range(2_000)]
    column = ValueColumn(shape, values)
    at, batches = 0, []
    while at < len(column):
        builder = RecordBatchBuilder(limit_bytes=4_000)
        taken = append_column(builder, column, at, NOW_MS)
        assert builder.size_bytes <= 4_000
        batches.append(builder.build())
        assert batches[-1] == one_by_one([(NOW_MS, value) for value in values[at : at + taken]], b"k").build()
        at += taken
    assert 10 < len(batches) < 60
    full = RecordBatchBuilder(limit_bytes=4_000)
    full.append(NOW_MS, None, b"x" * 3_900)
    assert append_column(full, column, 0, NOW_MS) < 3


def test_small_batches_look_at_no_more_values_than_they_may_take() -> None:
    class Watched(list[int]):
        looked_at = 0

        def __getitem__(self, place: Any) -> Any:
            found = super().__getitem__(place)
            if isinstance(place, slice):
                self.looked_at += len(found)
            return found

    column = ValueColumn(RecordShape(), [b""] * 5_000)
    column.contents = watched = Watched(column.contents)
    begin = 0
    while begin < len(column):
        begin += append_column(RecordBatchBuilder(limit_bytes=1_000), column, begin, 7)
    assert 5_000 <= watched.looked_at < 6_000


def test_a_large_value_travels_alone() -> None:
    column = ValueColumn(RecordShape(), [b"x" * 10_000, b"y"])
    builder = RecordBatchBuilder(limit_bytes=1_000)
    assert append_column(builder, column, 0, NOW_MS) == 1
    assert append_column(builder, column, 1, NOW_MS) == 0
    assert builder.build() == one_by_one([(NOW_MS, b"x" * 10_000)]).build()


def test_columns_are_compressed_like_other_records() -> None:
    values = [b"value %d" % number for number in range(1_000)]
    builder = RecordBatchBuilder(compression=Compression(CompressionType.GZIP))
    append_column(builder, ValueColumn(RecordShape(), values), 0, NOW_MS)
    other = RecordBatchBuilder(compression=Compression(CompressionType.GZIP))
    for value in values:
        other.append(NOW_MS, None, value)
    assert builder.build() == other.build()


def test_records_that_cannot_follow_change_nothing() -> None:
    builder = RecordBatchBuilder(limit_bytes=200)
    builder.append(NOW_MS, None, b"first")
    before = builder.size_bytes
    with pytest.raises(RecordBatchFullError):
        builder.append_written(b"x" * 200, 1, NOW_MS)
    with pytest.raises(ValueError, match="not one"):
        builder.append_written(b"x", 1, -2)
    assert (builder.size_bytes, builder.record_count) == (before, 1)
    builder.append(NOW_MS, None, b"later", offset=5)
    with pytest.raises(ValueError, match="gaps"):
        builder.append_written(b"x", 1, NOW_MS)


def test_the_tables_are_bounded() -> None:
    shape = RecordShape()
    for size in range(20_000):
        shape._after_offset[size]
        shape._table(1, b"\0")[size]
    assert len(shape._after_offset) < 17_000
    assert len(shape._table(1, b"\0")) < 17_000
    for delta in range(1_000):
        shape._table(2, b"%d" % delta)
    assert len(shape._before_offset) <= 64
