"""A segment, held against the list of batches that it was given."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.kernel.real_files import RealFiles
from barnabas.log.segments.batch_scan import FoundTimestamp, search_timestamp
from barnabas.log.segments.index_file import CorruptIndexError
from barnabas.log.segments.segment import SMALL_APPEND_BYTES, Segment, SegmentConfig, perform_sync
from barnabas.wire.batch_formats import read_records
from barnabas.wire.record_errors import CorruptRecordError
from tests.support.examples import examples
from tests.unit.log.log_batches import Appended, TroubledFiles, batch

BASE = 500
CONFIG = SegmentConfig(index_interval_bytes=200)
timestamps = st.lists(st.integers(0, 60), min_size=1, max_size=4)
shapes = st.lists(st.tuples(timestamps, st.booleans(), st.booleans()), max_size=12)


def make(directory: Path | str, files: RealFiles | None = None, config: SegmentConfig = CONFIG) -> Segment:
    return Segment(files or RealFiles(), str(directory), BASE, config, created_ms=0)


def add(segment: Segment, appended: Appended) -> None:
    segment.append(appended.data, appended.last_offset, appended.max_timestamp_ms)


def fill(segment: Segment, shape: list[tuple[list[int], bool, bool]]) -> list[Appended]:
    """Appends small and large batches, with a write here and there."""
    batches = []
    offset = BASE
    for record_times, is_large, is_written in shape:
        one = batch(offset, record_times, b"x" * (SMALL_APPEND_BYTES if is_large else 5))
        add(segment, one)
        batches.append(one)
        offset = one.last_offset + 1
        if is_written:
            segment.write_pending()
    return batches


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp())
    yield path
    shutil.rmtree(path)


def contents(segment: Segment) -> bytes:
    segment.write_pending()
    return Path(segment.path).read_bytes()


def check_reads(segment: Segment, batches: list[Appended]) -> None:
    """Every offset and every timestamp leads to the right batch and record."""
    assert contents(segment) == b"".join(one.data for one in batches)
    assert segment.next_offset == (batches[-1].last_offset + 1 if batches else BASE)
    position = 0
    for one in batches:
        for offset in range(one.base_offset, one.last_offset + 1):
            plan = segment.plan_read(offset, 1 << 30)
            assert plan is not None
            assert plan[1:4] == (position, segment.size_bytes - position, False)
        position += len(one.data)
    assert segment.plan_read(segment.next_offset, 1) is None
    records = [record for one in batches for record in read_records(one.data)]
    assert segment.max_timestamp.timestamp_ms == max((one.max_timestamp_ms for one in batches), default=-1)
    for wanted in range(0, 62, 3):
        for from_offset in (BASE, BASE + 3):
            fitting = [each for each in records if each.timestamp_ms >= wanted and each.offset >= from_offset]
            expected = FoundTimestamp(fitting[0].offset, fitting[0].timestamp_ms, 0) if fitting else None
            search = segment.plan_timestamp_search(wanted, from_offset)
            assert (None if search is None else search_timestamp(RealFiles(), search)) == expected


@given(shapes)
@settings(deadline=None, max_examples=examples(40))
def test_everything_appended_is_found(shape: list[tuple[list[int], bool, bool]]) -> None:
    with tempfile.TemporaryDirectory() as path:
        segment = make(path)
        segment.create()
        batches = fill(segment, shape)
        check_reads(segment, batches)
        segment.close()
        again = make(path)
        again.load()
        check_reads(again, batches)
        again.close()


@given(shapes, st.data())
@settings(deadline=None, max_examples=examples(40))
def test_truncation_leaves_the_batches_before(shape: list[tuple[list[int], bool, bool]], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as path:
        segment = make(path)
        segment.create()
        batches = fill(segment, shape)
        to = data.draw(st.integers(BASE, segment.next_offset + 1))
        kept = [one for one in batches if one.last_offset < to]
        assert segment.truncate_to(to) == sum(len(one.data) for one in batches[len(kept) :])
        more = batch(segment.next_offset, [30, 61])
        add(segment, more)
        check_reads(segment, [*kept, more])
        segment.close()


@given(shapes, st.data())
@settings(deadline=None, max_examples=examples(40))
def test_recovery_keeps_what_is_before_the_damage(
    shape: list[tuple[list[int], bool, bool]], data: st.DataObject
) -> None:
    """Invariant: recovery leaves exactly the whole batches before the first damaged byte, whatever the indexes say."""
    with tempfile.TemporaryDirectory() as path:
        segment = make(path)
        segment.create()
        batches = fill(segment, shape)
        segment.close()
        log = bytearray(Path(segment.path).read_bytes())
        at = data.draw(st.integers(0, len(log)))
        if data.draw(st.booleans()) and at < len(log):
            # The leader epoch and the base offset are outside of the checksum; a torn write is not that exact.
            log[at:] = b"\0" * (len(log) - at)
        else:
            del log[at:]
        whole = []
        end = 0
        for one in batches:
            end += len(one.data)
            if bytes(log[end - len(one.data) : end]) != one.data:
                break
            whole.append(one)
        Path(segment.path).write_bytes(log)
        Path(segment.offset_index.path).write_bytes(b"\xff" * 9)
        Path(segment.time_index.path).unlink()
        again = make(path)
        seen: list[int] = []
        cut_bytes = again.recover(lambda one, _: seen.append(one.last_offset))
        assert cut_bytes == len(log) - sum(len(one.data) for one in whole)
        assert seen == [one.last_offset for one in whole]
        check_reads(again, whole)
        again.close()


@pytest.mark.parametrize("is_large", [False, True])
def test_a_failed_write_leaves_whole_batches_and_can_be_repeated(directory: Path, is_large: bool) -> None:
    files = TroubledFiles()
    segment = make(directory, files)
    segment.create()
    batches = fill(segment, [([1], False, True), ([2], False, False)])
    next_one = batch(segment.next_offset, [3], b"x" * (SMALL_APPEND_BYTES if is_large else 5))
    files.write_bytes_max = 7
    calls = iter([False, False, True])
    files.fails = lambda: next(calls)
    if is_large:
        with pytest.raises(OSError, match="no space"):
            add(segment, next_one)
        assert segment.next_offset == next_one.base_offset
    else:
        add(segment, next_one)
        with pytest.raises(OSError, match="no space"):
            segment.write_pending()
    assert Path(segment.path).read_bytes() == batches[0].data
    files.fails = lambda: False
    if is_large:
        add(segment, next_one)
    check_reads(segment, [*batches, next_one])
    segment.close()


def test_an_append_that_is_written_at_once_takes_those_along_that_wait(directory: Path) -> None:
    segment = make(directory)
    segment.create()
    first, second = batch(BASE, [1]), batch(BASE + 1, [2])
    add(segment, first)
    assert len(segment.pending) == len(first.data)
    data = bytearray(second.data)
    segment.append(data, second.last_offset, second.max_timestamp_ms, writes_at_once=True)
    data[:] = bytes(len(data))
    assert len(segment.pending) == 0
    assert Path(segment.path).read_bytes() == first.data + second.data
    check_reads(segment, [first, second])
    segment.close()


def test_small_appends_wait_for_one_write(directory: Path) -> None:
    segment = make(directory)
    segment.create()
    data = bytearray(batch(BASE, [1]).data)
    segment.append(data, BASE, 1)
    data[:] = bytes(len(data))  # the buffer belongs to the connection again
    assert len(segment.pending) == len(data)
    assert Path(segment.path).stat().st_size == 0
    assert contents(segment) == batch(BASE, [1]).data
    segment.close()


def test_a_read_is_bounded_and_makes_progress(directory: Path) -> None:
    segment = make(directory)
    segment.create()
    first, second = batch(BASE, [1]), batch(BASE + 1, [2])
    add(segment, first)
    add(segment, second)
    size = len(first.data)
    plans = [
        segment.plan_read(BASE, 10),
        segment.plan_read(BASE, 10, has_minimum=True),
        segment.plan_read(BASE, 1000, size),
        segment.plan_read(BASE + 1, 1000, size),
    ]
    assert [plan[1:4] for plan in plans if plan] == [(0, 10, True), (0, size, False), (0, size, False), (size, 0, True)]
    segment.close()


def test_rolls_when_full_old_or_out_of_offsets(directory: Path) -> None:
    config = SegmentConfig(segment_bytes=1000, segment_ms=100, index_interval_bytes=0, index_bytes_max=24)
    segment = Segment(RealFiles(), str(directory), BASE, config, created_ms=0, jitter_ms=10)
    segment.create()
    assert not segment.should_roll(1000, BASE, 500, 500)
    assert segment.should_roll(1001, BASE, 500, 500)
    assert segment.should_roll(1, BASE + (1 << 31), 0, 0)
    add(segment, batch(BASE, [1000]))
    assert not segment.should_roll(1, BASE + 1, 1090, 9999)
    assert segment.should_roll(1, BASE + 1, 1091, 0)
    add(segment, batch(BASE + 1, [1001]))
    assert segment.should_roll(1, BASE + 2, 1001, 0)
    segment.close()


@pytest.mark.parametrize("offset", [BASE, BASE + (1 << 31)])
def test_refuses_an_offset_that_does_not_follow(directory: Path, offset: int) -> None:
    segment = make(directory)
    segment.create()
    add(segment, batch(BASE, [1]))
    with pytest.raises(ValueError, match="cannot be appended"):
        segment.append(b"x", offset, 1)
    segment.close()


def test_an_index_that_points_behind_the_log_is_corrupt(directory: Path) -> None:
    segment = make(directory)
    segment.create()
    fill(segment, [([1], True, False)] * 3)
    segment.close()
    Path(segment.path).write_bytes(b"")
    again = make(directory)
    with pytest.raises(CorruptIndexError, match="ends behind"):
        again.load()
    assert again.recover() == 0
    check_reads(again, [])
    again.close()


@pytest.mark.parametrize("size", [-12, 0, -(1 << 31)])
def test_a_search_ends_at_a_damaged_size(directory: Path, size: int) -> None:
    segment = make(directory)
    segment.create()
    batches = fill(segment, [([1], False, False), ([2], False, True)])
    segment.become_inactive()  # what is in memory of the last batches goes
    with Path(segment.path).open("r+b") as log:
        log.seek(8)
        log.write(size.to_bytes(4, "big", signed=True))
    with pytest.raises(CorruptRecordError, match=f"size {size} at byte 0"):
        segment.plan_read(batches[1].base_offset, 1)
    segment.close()


def test_holds_descriptors_of_what_was_used_and_lets_go_of_them(directory: Path) -> None:
    segment = make(directory)
    assert open_files_below(directory) == 0
    segment.create()
    assert open_files_below(directory) == 1
    perform_sync(RealFiles(), segment.prepare_sync())
    assert open_files_below(directory) == 3
    segment.close()
    assert open_files_below(directory) == 0


def open_files_below(directory: Path) -> int:
    """Of this process."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it was that of the listing
            found += os.readlink(f"/proc/self/fd/{name}").startswith(f"{directory}/")
    return found
