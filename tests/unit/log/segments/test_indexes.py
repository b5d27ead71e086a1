"""The indexes of a segment, held against plain lists."""

from __future__ import annotations

import bisect
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from barnabas.kernel.real_files import RealFiles
from barnabas.log.segments.index_file import CorruptIndexError
from barnabas.log.segments.indexes import (
    AbortedTransaction,
    OffsetIndex,
    OffsetPosition,
    TimeIndex,
    TimestampOffset,
    TransactionIndex,
)
from barnabas.wire.sentinels import NO_TIMESTAMP

FILES = RealFiles()
BASE = 1000
SIZE = 1 << 20
shared_directory = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
increasing = st.lists(st.integers(0, 500), unique=True).map(sorted)


def offset_index(directory: Path, offsets: list[int], written: int) -> OffsetIndex:
    """An index with an entry for each offset, at ten times its position; the first `written` are in the file."""
    index = OffsetIndex(FILES, str(directory / "i.index"), BASE, SIZE)
    index.create()
    for number, offset in enumerate(offsets):
        if number == written:
            index.write()
        index.append(BASE + offset, offset * 10)
    return index


@given(increasing, st.integers(0, 20), st.integers(0, 600))
@shared_directory
def test_an_offset_is_found_as_in_a_list(tmp_path: Path, offsets: list[int], written: int, target: int) -> None:
    index = offset_index(tmp_path, offsets, written)
    at = bisect.bisect_right(offsets, target)
    expected = OffsetPosition(BASE + offsets[at - 1], offsets[at - 1] * 10) if at else OffsetPosition(BASE, 0)
    assert index.lookup(BASE + target) == expected
    behind = bisect.bisect_left(offsets, target)
    expected_bound = OffsetPosition(BASE + offsets[behind], offsets[behind] * 10) if behind < len(offsets) else None
    assert index.first_from_position(target * 10) == expected_bound
    index.close()


@given(increasing, st.integers(0, 20), st.integers(0, 600))
@shared_directory
def test_truncation_leaves_what_is_before(tmp_path: Path, offsets: list[int], written: int, target: int) -> None:
    index = offset_index(tmp_path, offsets, written)
    index.truncate_to(BASE + target)
    kept = [offset for offset in offsets if offset < target]
    index.append(BASE + 700, 7000)
    index.write()
    index.close()
    again = OffsetIndex(FILES, index.path, BASE, SIZE)
    again.load()
    assert [again.entry(number).offset - BASE for number in range(again.count)] == [*kept, 700]
    assert again.last == OffsetPosition(BASE + 700, 7000)
    again.close()


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 5))), st.integers(0, 20), st.integers(-1, 400))
@shared_directory
def test_a_timestamp_is_found_as_in_a_list(
    tmp_path: Path, steps: list[tuple[int, int]], written: int, target: int
) -> None:
    index = TimeIndex(FILES, str(tmp_path / "i.timeindex"), BASE, SIZE)
    index.create()
    kept: list[TimestampOffset] = []
    offset = BASE
    for number, (timestamp_ms, step) in enumerate(steps):
        if number == written:
            index.write()
        offset += step
        index.append_larger(timestamp_ms, offset)
        if not kept or timestamp_ms > kept[-1].timestamp_ms:
            kept.append(TimestampOffset(timestamp_ms, offset))
    before = [entry for entry in kept if entry.timestamp_ms <= target]
    assert index.lookup(target) == (before[-1] if before else TimestampOffset(NO_TIMESTAMP, BASE))
    index.truncate_to(BASE + target)
    assert [index.entry(number) for number in range(index.count)] == [e for e in kept if e.offset < BASE + target]
    index.close()


def test_the_bytes_are_those_of_kafka(tmp_path: Path) -> None:
    index = offset_index(tmp_path, [5], 0)
    index.write()
    index.close()
    assert (tmp_path / "i.index").read_bytes() == bytes([0, 0, 0, 5, 0, 0, 0, 50])
    times = TimeIndex(FILES, str(tmp_path / "i.timeindex"), BASE, SIZE)
    times.create()
    times.append_larger(9, BASE + 5)
    times.write()
    times.close()
    assert (tmp_path / "i.timeindex").read_bytes() == bytes([0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 5])


def test_full_leaves_room_for_the_last_timestamp(tmp_path: Path) -> None:
    offsets = OffsetIndex(FILES, str(tmp_path / "i.index"), 0, 3 * 8 + 7)
    times = TimeIndex(FILES, str(tmp_path / "i.timeindex"), 0, 3 * 12)
    offsets.create()
    times.create()
    full = []
    for number in range(1, 4):
        offsets.append(number, number)
        times.append_larger(number, number)
        full.append((offsets.is_full, times.is_full))
    assert full == [(False, False), (False, True), (True, True)]
    offsets.close()
    times.close()


@pytest.mark.parametrize("offset", [BASE + 5, BASE - 1, BASE + (1 << 31)])
def test_refuses_an_offset_that_does_not_follow(tmp_path: Path, offset: int) -> None:
    index = offset_index(tmp_path, [5], 0)
    with pytest.raises(ValueError, match="cannot follow"):
        index.append(offset, 1)
    index.close()


@pytest.mark.parametrize("data", [b"\0" * 7, b"\xff" * 8])
def test_notices_a_file_that_cannot_be_right(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "i.index").write_bytes(data)
    index = OffsetIndex(FILES, str(tmp_path / "i.index"), BASE, SIZE)
    with pytest.raises(CorruptIndexError):
        index.load()
    index.close()


TRANSACTIONS = [
    AbortedTransaction(1, BASE, BASE + 9, BASE + 5),
    AbortedTransaction(2, BASE + 5, BASE + 20, BASE + 21),
    AbortedTransaction(1, BASE + 30, BASE + 40, BASE + 41),
]


@pytest.fixture
def transactions(tmp_path: Path) -> TransactionIndex:
    index = TransactionIndex(FILES, str(tmp_path / "i.txnindex"), BASE)
    for entry in TRANSACTIONS:
        index.append(entry)
    index.write()
    index.close()
    index.load()
    return index


def test_collects_what_overlaps(transactions: TransactionIndex) -> None:
    assert transactions.collect(BASE, BASE + 5) == (TRANSACTIONS[:1], True)
    assert transactions.collect(BASE + 10, BASE + 21) == (TRANSACTIONS[1:2], True)
    assert transactions.collect(BASE + 15, BASE + 99) == (TRANSACTIONS[1:], False)
    transactions.close()


def test_transactions_are_truncated_by_marker(transactions: TransactionIndex) -> None:
    transactions.truncate_to(BASE + 20)
    assert list(transactions) == TRANSACTIONS[:1]
    transactions.append(TRANSACTIONS[2])
    with pytest.raises(ValueError, match="cannot follow"):
        transactions.append(TRANSACTIONS[2])
    transactions.write()
    transactions.close()
    transactions.load()
    assert list(transactions) == [TRANSACTIONS[0], TRANSACTIONS[2]]
    transactions.clear()
    transactions.close()
    transactions.load()
    assert list(transactions) == []
    transactions.close()


@pytest.mark.parametrize("data", [b"\0" * 33, b"\0\1" + b"\0" * 32, b"\0" * 34])
def test_notices_transactions_that_cannot_be_right(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "i.txnindex").write_bytes(data)
    index = TransactionIndex(FILES, str(tmp_path / "i.txnindex"), BASE)
    with pytest.raises(CorruptIndexError):
        index.load()
    index.close()


def test_there_is_no_file_without_transactions(tmp_path: Path) -> None:
    index = TransactionIndex(FILES, str(tmp_path / "i.txnindex"), BASE)
    index.load()
    index.truncate_to(BASE)
    index.clear()
    assert not index.is_open
    assert list(tmp_path.iterdir()) == []


def test_transactions_reach_the_file_when_they_are_written_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "i.txnindex"
    index = TransactionIndex(FILES, str(path), BASE)
    index.append(TRANSACTIONS[0])
    index.append(TRANSACTIONS[1])
    assert not path.exists()
    assert index.collect(BASE, BASE + 99) == (TRANSACTIONS[:2], False)
    index.truncate_to(BASE + 20)  # what is not written yet
    assert not path.exists()
    index.write()
    index.append(TRANSACTIONS[1])
    index.write()
    index.append(TRANSACTIONS[2])
    index.truncate_to(BASE + 20)  # what is, and what is not
    assert list(read_back(index)) == TRANSACTIONS[:1]
    index.append(TRANSACTIONS[2])
    index.write()
    index.write()
    assert list(read_back(index)) == [TRANSACTIONS[0], TRANSACTIONS[2]]
    index.clear()
    index.append(TRANSACTIONS[1])
    index.write()
    assert list(read_back(index)) == TRANSACTIONS[1:2]
    index.close()


def read_back(index: TransactionIndex) -> TransactionIndex:
    """What is in its file."""
    read = TransactionIndex(FILES, index.path, BASE)
    read.load()
    read.close()
    return read
