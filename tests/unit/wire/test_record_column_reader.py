"""`barnabas.wire.record_column_reader`: columns are what the general reader gives, and refuses, record by record."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from barnabas.wire import record_column_reader, record_split
from barnabas.wire.record_batch import BATCH_HEADER_BYTES, RecordBatch
from barnabas.wire.record_builder import RecordBatchBuilder, empty_batch
from barnabas.wire.record_column_reader import ColumnReader, RecordsReader
from barnabas.wire.record_errors import InvalidRecordError
from barnabas.wire.record_reader import iterate_records
from barnabas.wire.record_split import split_values
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


def text(random: Random, number: int) -> tuple[int, bytes | None, bytes | None, tuple[Header, ...], int]:
    """As lines of a file: values alone, without zeros."""
    return number // 40, None, b"%020d" % number + b"x" * random.randrange(120), (), 0


def like_heads(random: Random, number: int) -> tuple[int, bytes | None, bytes | None, tuple[Header, ...], int]:
    """Values that look like the ends of records and the beginnings of others."""
    size = random.randrange(4)
    looks = b"\0" + bytes((2 * size + 14, 0, 0, number << 1 & 0x7F | 0x80, number >> 6, 1, 2 * size)) + b"v" * size
    return 0, None, b"a" * random.randrange(30) + (looks if random.random() < 0.02 else b"") + b"b", (), 0


def large_among_small(random: Random, number: int) -> tuple[int, bytes | None, bytes | None, tuple[Header, ...], int]:
    return 0, None, bytes(400_000) if number == 700 else b"x" * random.randrange(40), (), 0


KINDS: list[RecordOf] = [
    same,
    same_with_keys,
    null_values,
    empty,
    varied,
    changing,
    rarely_unusual,
    text,
    like_heads,
    large_among_small,
]


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


def constantly(wanted: int) -> Callable[[], int]:
    return lambda: wanted


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("count", [1, 16, 17, 18, 64, 65, 1_000])
def test_whole_batches_in_portions_of_any_size(kind: RecordOf, count: int) -> None:
    payload = batch_of(kind, count)[BATCH_HEADER_BYTES:]
    random = Random(count)
    for wanted in (lambda: 1, lambda: 50, lambda: 5_000, lambda: random.randrange(1, 200)):
        assert by_columns(payload, count, wanted) == expected(payload, count)
    assert len(expected(payload, count)[0]) == count


@pytest.mark.parametrize("kind", [text, like_heads, varied], ids=lambda kind: kind.__name__)
def test_many_values_are_split_and_none_is_cut(kind: RecordOf, monkeypatch: pytest.MonkeyPatch) -> None:
    split: list[int] = []

    def counted(*arguments: Any) -> tuple[int, list[bytes]]:
        position, values = split_values(*arguments)
        split.append(len(values))
        return position, values

    monkeypatch.setattr(record_column_reader, "split_values", counted)
    payload = batch_of(kind, 9_000)[BATCH_HEADER_BYTES:]
    for wanted in (9_000, 1_000, 300):
        assert by_columns(payload, 9_000, constantly(wanted)) == expected(payload, 9_000)
    if kind is text:
        assert sum(split) > 3 * 7_000


def test_what_is_searched_in_one_go_is_bounded_however_large_a_value_among_them_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[int] = []
    head_of = record_split._head

    class Head:
        def __init__(self, time_bytes: int) -> None:
            self.split_at = head_of(time_bytes).split

        def split(self, data: bytes, count: int) -> list[Any]:
            searched.append(len(data))
            return self.split_at(data, count)

    monkeypatch.setattr(record_split, "_head", Head)
    payload = batch_of(large_among_small, 1_000)[BATCH_HEADER_BYTES:]
    assert by_columns(payload, 1_000, constantly(1_000)) == expected(payload, 1_000)
    assert searched
    assert max(searched) <= record_split.WINDOW_BYTES + 1


@pytest.mark.parametrize("seed", range(30))
def test_many_values_of_which_one_byte_is_damaged_are_refused_where_others_refuse_them(seed: int) -> None:
    random = Random(seed)
    for kind in (text, like_heads):
        payload = bytearray(batch_of(kind, 900, seed)[BATCH_HEADER_BYTES:])
        damaged = bytes(payload)
        match random.randrange(3):
            case 0:
                payload[random.randrange(len(payload))] ^= 1 << random.randrange(8)
                damaged = bytes(payload)
            case 1:
                damaged = bytes(payload[: random.randrange(len(payload))])
            case 2:
                at = random.randrange(len(payload))
                damaged = bytes(payload[:at] + random.randbytes(random.randrange(1, 9)) + payload[at:])
        for wanted in (900, 400):
            assert by_columns(damaged, 900, constantly(wanted)) == expected(damaged, 900)


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
