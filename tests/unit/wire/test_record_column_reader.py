"""`barnabas.wire.record_column_reader`: columns are what the general reader gives, and refuses, record by record."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from barnabas.wire.record_batch import BATCH_HEADER_BYTES, RecordBatch
from barnabas.wire.record_builder import RecordBatchBuilder, empty_batch
from barnabas.wire.record_column_reader import ColumnReader, RecordsReader
from barnabas.wire.record_errors import InvalidRecordError
from barnabas.wire.record_reader import iterate_records
from barnabas.wire.records import Header

Triple = tuple[int, bytes | None, bytes | None]
RecordOf = Callable[[Random, int], tuple[int, bytes | None, bytes | None, tuple[Header, ...], int]]
"""(random, number) -> timestamp, key, value, headers and how many offsets are left out."""


def same(random: Random, _number: int) -> tuple[int, bytes | None, bytes | None, tuple[Header, ...], int]:
    return 0, None, random.randbytes(55), (), 0


def same_with_keys(random: Random, _number: int) -> tuple[int, bytes | None, bytes | None, tuple[Header, ...], int]:
    return random.randrange(63), random.randbytes(70), random.randbytes(5), (), 0


def null_values(random: Random, _number: int) -> tuple[int, bytes | None, bytes | None, tuple[Header, ...], int]:
    return 0, random.randbytes(3), None, (), 0


def empty(_random: Random, _number: int) -> tuple[int, bytes | None, bytes | None, tuple[Header, ...], int]:
    return 0, b"", b"", (), 0


def varied(random: Random, number: int) -> tuple[int, bytes | None, bytes | None, tuple[Header, ...], int]:
    return number * random.randrange(3), None, random.randbytes(random.randrange(150)), (), 0


def changing(random: Random, number: int) -> tuple[int, bytes | None, bytes | None, tuple[Header, ...], int]:
    return 0, None if number % 90 < 60 else b"k", random.randbytes(8 + number // 100), (), 0


def rarely_unusual(random: Random, number: int) -> tuple[int, bytes | None, bytes | None, tuple[Header, ...], int]:
    headers: tuple[Header, ...] = ((b"h", b"v"),) if random.random() < 0.003 else ()
    time_ms = random.choice((0, 100, 1 << 30)) if random.random() < 0.01 else number
    size = 20_000 if random.random() < 0.003 else random.randrange(40)
    value = None if random.random() < 0.1 else random.randbytes(size)
    key = random.randbytes(random.randrange(9_000)) if random.random() < 0.01 else None
    return time_ms, key, value, headers, random.random() < 0.0005


KINDS: list[RecordOf] = [same, same_with_keys, null_values, empty, varied, changing, rarely_unusual]


def batch_of(kind: RecordOf, count: int, seed: int = 1) -> bytes:
    random = Random(seed)
    builder = RecordBatchBuilder(base_offset=1_000)
    for number in range(count):
        time_ms, key, value, headers, gap = kind(random, number)
        builder.append(10_000 + time_ms, key, value, headers, builder.last_offset + 1 + gap)
    return bytes(builder.build())


def expected(payload: bytes, count: int) -> tuple[list[Triple], str]:
    """What the general reader gives until it is at the end, or says something else."""
    found: list[Triple] = []
    try:
        for record in iterate_records(payload, count, 1_000, 0, None):
            found.append((record.offset, record.key, record.value))
    except InvalidRecordError as error:
        return found, str(error)
    return found, ""


def by_columns(payload: bytes, count: int, wanted: Callable[[], int]) -> tuple[list[Triple], str]:
    reader = ColumnReader(payload, count, 1_000)
    found: list[Triple] = []
    try:
        while True:
            most = wanted()
            column = reader.read(most)
            if column is None:
                return found, ""
            assert 1 <= len(column.values) <= most
            keys = [None] * len(column.values) if column.keys is None else column.keys
            found += zip(column.offsets, keys, column.values, strict=True)
    except InvalidRecordError as error:
        with pytest.raises(InvalidRecordError):
            reader.read(1)
        return found, str(error)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("count", [1, 16, 17, 18, 64, 65, 1_000])
def test_whole_batches_in_portions_of_any_size(kind: RecordOf, count: int) -> None:
    payload = batch_of(kind, count)[BATCH_HEADER_BYTES:]
    random = Random(count)
    for wanted in (lambda: 1, lambda: 50, lambda: 5_000, lambda: random.randrange(1, 200)):
        assert by_columns(payload, count, wanted) == expected(payload, count)
    assert len(expected(payload, count)[0]) == count


@pytest.mark.parametrize("kind", [same, varied, same_with_keys], ids=lambda kind: kind.__name__)
def test_offsets_of_three_bytes(kind: RecordOf) -> None:
    payload = batch_of(kind, 9_000)[BATCH_HEADER_BYTES:]
    assert by_columns(payload, 9_000, lambda: 4_000) == expected(payload, 9_000)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_damaged_is_refused_at_the_same_record_for_the_same_reason(seed: int) -> None:
    random = Random(seed)
    for _ in range(12):
        kind = random.choice(KINDS)
        count = random.choice((3, 30, 200))
        payload = bytearray(batch_of(kind, count, seed)[BATCH_HEADER_BYTES:])
        claimed = count
        match random.randrange(6):
            case 0:
                del payload[random.randrange(len(payload)) :]
            case 1:
                payload += random.randbytes(3)
            case 2:
                claimed += random.choice((-1, 1))
            case 3:
                at = random.randrange(len(payload))
                payload[at:at] = random.choice((b"\x80", b"\xff\xff\xff\xff\xff\xff", b"\0"))
            case _:
                for _ in range(random.randrange(1, 4)):
                    payload[random.randrange(len(payload))] = random.choice((0, 1, 2, 0x7F, 0x80, 0xFF, 3))
        data = bytes(payload)
        assert by_columns(data, claimed, lambda: random.randrange(1, 90)) == expected(data, claimed)


def test_a_varint_that_is_longer_than_it_need_be_is_read() -> None:
    body = b"\0" + b"\x80\x00" + b"\x80\x00" + b"\x81\x00" + b"\x86\x80\x00" + b"abc" + b"\0"
    payload = bytes((len(body) << 1 | 0x80, 0)) + body
    assert by_columns(payload, 1, lambda: 1) == expected(payload, 1) == ([(1_000, None, b"abc")], "")


def test_batches_of_the_broker_and_of_old_formats_are_read_alike() -> None:
    data = batch_of(varied, 100)
    batch = RecordBatch(data)
    reader = RecordsReader(batch.records())
    columns = batch.columns()
    one, other = reader.read(1_000), columns.read(1_000)
    assert one is not None
    assert other is not None
    assert (list(one.offsets), one.keys, list(one.values)) == (list(other.offsets), None, list(other.values))
    assert reader.read(1) is None
    assert columns.read(1) is None
    assert RecordBatch(empty_batch(batch.header)).columns().read(1) is None
