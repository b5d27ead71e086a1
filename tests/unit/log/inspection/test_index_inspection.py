"""Looking at the indexes of a segment, and holding them against its batches."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.kernel.real_files import RealFiles
from barnabas.log.inspection.batch_inspection import BatchFacts, Damage, DamageKind, inspect_batches
from barnabas.log.inspection.index_inspection import (
    Mismatch,
    Reserved,
    inspect_offset_index,
    inspect_time_index,
    inspect_transaction_index,
    verify_offset_index,
    verify_time_index,
    verify_transaction_index,
)
from barnabas.log.segments.indexes import AbortedTransaction, OffsetPosition, TimestampOffset
from barnabas.log.segments.segment import Segment, SegmentConfig
from barnabas.wire.control_records import ControlRecordType
from barnabas.wire.record_batch import RecordBatch
from tests.unit.log.log_batches import batch

BASE = 7_000
NOW_MS = 1_700_000_000_000
FILES = RealFiles()


def inspect(path: Path, kind: str) -> list[Any]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if kind == "offset":
            return list(inspect_offset_index(FILES, descriptor, BASE))
        if kind == "time":
            return list(inspect_time_index(FILES, descriptor, BASE))
        return list(inspect_transaction_index(FILES, descriptor))
    finally:
        os.close(descriptor)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "index"


@pytest.fixture
def segment_directory(tmp_path: Path) -> Path:
    """A segment of forty batches of three records with an entry for each batch but the first; the last ten batches
    were appended two at a time, as a follower does.
    """
    segment = Segment(FILES, str(tmp_path), BASE, SegmentConfig(index_interval_bytes=1), created_ms=0)
    segment.create()
    for number in range(30):
        one = batch(segment.next_offset, [NOW_MS + number * 10 + each for each in range(3)])
        segment.append(one.data, one.last_offset, one.max_timestamp_ms)
    for number in range(30, 40, 2):
        both = [
            batch(segment.next_offset + 3 * place, [NOW_MS + (number + place) * 10 + each for each in range(3)])
            for place in range(2)
        ]
        places = [(len(one.data), one.last_offset, one.max_timestamp_ms) for one in both]
        segment.append_batches(b"".join(one.data for one in both), places)
    segment.close()
    return tmp_path


def batches_of(directory: Path) -> Iterator[BatchFacts]:
    descriptor = os.open(directory / f"{BASE:020d}.log", os.O_RDONLY)
    try:
        for found in inspect_batches(FILES, descriptor, checks_crcs=False):
            assert isinstance(found, BatchFacts)
            yield found
    finally:
        os.close(descriptor)


def test_the_indexes_of_a_segment_fit_it(segment_directory: Path) -> None:
    offsets = inspect(segment_directory / f"{BASE:020d}.index", "offset")
    times = inspect(segment_directory / f"{BASE:020d}.timeindex", "time")
    assert len(offsets) > 30
    assert len(times) > 30
    assert list(verify_offset_index(offsets, batches_of(segment_directory))) == []
    assert list(verify_time_index(times, batches_of(segment_directory))) == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ((0, 5), "no batch begins at byte"),
        ((1, 0), "up to the next entry end with offset"),
        ((-2, 0), "has offsets"),
        ((1_000, 0), "up to the next entry end with offset"),
    ],
)
def test_an_entry_of_an_offset_index_that_leads_astray_is_found(
    segment_directory: Path, change: tuple[int, int], what: str
) -> None:
    entries = inspect(segment_directory / f"{BASE:020d}.index", "offset")
    wrong = OffsetPosition(entries[7].offset + change[0], entries[7].position + change[1])
    entries[7] = wrong
    (mismatch,) = verify_offset_index(entries, batches_of(segment_directory))
    assert (mismatch.number, mismatch.entry) == (7, wrong)
    assert what in mismatch.detail


def test_entries_behind_the_end_of_the_log_are_found(segment_directory: Path) -> None:
    last = list(batches_of(segment_directory))[-1]
    behind = [OffsetPosition(last.last_offset + 3 * more, last.end_position + more) for more in (1, 2)]
    found = list(verify_offset_index(behind, batches_of(segment_directory)))
    assert [(each.number, each.entry) for each in found] == [(0, behind[0]), (1, behind[1])]
    late = [TimestampOffset(NOW_MS * 2 + more, last.last_offset + more) for more in (1, 2)]
    assert [each.number for each in verify_time_index(late, batches_of(segment_directory))] == [0, 1]


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        (TimestampOffset(NOW_MS + 1, BASE + 2), "has timestamps up to"),
        (TimestampOffset(NOW_MS + 2, BASE - 1), "no batch has offset"),
    ],
)
def test_an_entry_of_a_time_index_that_leads_astray_is_found(
    segment_directory: Path, entry: TimestampOffset, what: str
) -> None:
    (mismatch,) = verify_time_index([entry], batches_of(segment_directory))
    assert what in mismatch.detail


def test_a_time_that_an_earlier_batch_exceeds_is_found(tmp_path: Path) -> None:
    early, late = batch(BASE, [NOW_MS + 50]), batch(BASE + 1, [NOW_MS])
    (tmp_path / f"{BASE:020d}.log").write_bytes(early.data + late.data)
    assert list(verify_time_index([TimestampOffset(NOW_MS + 50, BASE)], batches_of(tmp_path))) == []
    (mismatch,) = verify_time_index([TimestampOffset(NOW_MS, BASE + 1)], batches_of(tmp_path))
    assert "comes before it" in mismatch.detail


def test_zeros_behind_the_entries_are_reserved(path: Path) -> None:
    entries = struct.pack(">iiii", 2, 100, 5, 200)
    path.write_bytes(entries + bytes(80_000))
    assert inspect(path, "offset") == [
        OffsetPosition(BASE + 2, 100),
        OffsetPosition(BASE + 5, 200),
        Reserved(16, 80_000),
    ]
    path.write_bytes(bytes(80_000))
    assert inspect(path, "offset") == [Reserved(0, 80_000)]
    assert inspect(path, "time") == [Reserved(0, 80_000)]


def test_a_single_entry_for_the_first_record_in_1970_is_one(path: Path) -> None:
    path.write_bytes(bytes(12))
    assert inspect(path, "time") == [TimestampOffset(0, BASE)]


def test_an_entry_that_is_not_all_there_is_torn(path: Path) -> None:
    path.write_bytes(struct.pack(">qi", NOW_MS, 3) + b"\1\2\3")
    entry, damage = inspect(path, "time")
    assert entry == TimestampOffset(NOW_MS, BASE + 3)
    assert isinstance(damage, Damage)
    assert (damage.kind, damage.position) == (DamageKind.TORN, 12)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("offset", struct.pack(">iiii", 5, 100, 5, 200)),
        ("offset", struct.pack(">iiii", 5, 100, 6, 100)),
        ("offset", struct.pack(">ii", -1, 0)),
        ("time", struct.pack(">qiqi", NOW_MS, 5, NOW_MS, 6)),
        ("time", struct.pack(">qiqi", NOW_MS, 5, NOW_MS + 1, 4)),
        ("transaction", struct.pack(">hqqqqhqqqq", 0, 1, 5, 9, 5, 0, 1, 6, 9, 5)),
        ("transaction", struct.pack(">hqqqq", 0, 1, 9, 5, 5)),
        ("transaction", struct.pack(">hqqqq", 1, 1, 5, 9, 5)),
    ],
)
def test_entries_out_of_order_are_corrupt(path: Path, kind: str, data: bytes) -> None:
    path.write_bytes(data)
    *_, damage = inspect(path, kind)
    assert isinstance(damage, Damage)
    assert damage.kind is DamageKind.CORRUPT


def _transaction_log(directory: Path) -> None:
    from barnabas.wire.control_records import EndTransactionMarker, end_transaction_batch
    from barnabas.wire.record_builder import RecordBatchBuilder

    data = bytearray()
    offset = BASE
    for producer_id, kind in ((11, ControlRecordType.ABORT), (12, ControlRecordType.COMMIT)):
        builder = RecordBatchBuilder(
            base_offset=offset, producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True
        )
        builder.append(NOW_MS, b"k", b"v")
        data += builder.build()
        data += end_transaction_batch(
            EndTransactionMarker(kind, 1), timestamp_ms=NOW_MS, producer_id=producer_id, producer_epoch=0,
            base_offset=offset + 1,
        )  # fmt: skip
        offset += 2
    (directory / f"{BASE:020d}.log").write_bytes(data)


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        (AbortedTransaction(11, BASE, BASE + 1, BASE), None),
        (AbortedTransaction(11, BASE, BASE, BASE), "no transaction ends at offset"),
        (AbortedTransaction(12, BASE, BASE + 1, BASE), "is that of producer 11"),
        (AbortedTransaction(12, BASE + 2, BASE + 3, BASE + 2), "was not aborted"),
        (AbortedTransaction(12, BASE + 2, BASE + 9, BASE + 2), "behind the last batch"),
    ],
)
def test_a_transaction_index_is_held_against_the_markers(
    tmp_path: Path, entry: AbortedTransaction, what: str | None
) -> None:
    _transaction_log(tmp_path)
    data = (tmp_path / f"{BASE:020d}.log").read_bytes()

    def read_marker(facts: BatchFacts) -> ControlRecordType:
        from barnabas.wire.control_records import read_control_record_type

        return read_control_record_type(next(RecordBatch(data, facts.position).records()).key)

    found: list[Mismatch] = list(verify_transaction_index([entry], batches_of(tmp_path), read_marker))
    assert [what in each.detail for each in found if what] == ([] if what is None else [True])
