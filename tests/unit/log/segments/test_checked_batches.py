"""Checking a log file batch by batch, held against reading each batch whole and checking it then."""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from barnabas.kernel.host import READ_CACHED_ONLY
from barnabas.kernel.real_files import RealFiles
from barnabas.log.segments import checked_batches as module
from barnabas.log.segments.batch_scan import scan_batches
from barnabas.log.segments.checked_batches import CheckedBatch, checked_batches, read_batch
from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.legacy_records import write_messages
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.record_errors import CorruptRecordError, RecordsError
from barnabas.wire.records import Record
from tests.support.examples import examples
from tests.unit.log.log_batches import batch

SIZES = st.one_of(st.integers(0, 40), st.integers(200, 400))
KINDS = st.sampled_from(["batch", "batch", "batch", "messages", "wrapper"])
BUFFERS = st.sampled_from([61, 62, 100, 128, 300, 1 << 17])


class ShortReads(RealFiles):
    """Reads at most so many bytes at once."""

    __slots__ = ("bytes_max",)

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max

    def preadv(  # type: ignore[override]
        self, descriptor: int, buffers: Sequence[bytearray | memoryview], offset: int, flags: int = 0, /
    ) -> int:
        assert flags != READ_CACHED_ONLY
        return os.preadv(descriptor, [memoryview(buffers[0])[: self.bytes_max]], offset)


def written(shape: list[tuple[str, int]]) -> bytes:
    """A log of such batches and old messages, with values of such sizes."""
    log = b""
    offset = 0
    for number, (kind, size) in enumerate(shape):
        value = bytes([number % 256]) * size
        if kind == "batch":
            one = batch(offset, [number, number + 1], value)
            log += one.data
            offset = one.last_offset + 1
        else:
            codec = Compression(CompressionType.GZIP if kind == "wrapper" else CompressionType.NONE)
            log += write_messages(number % 2, [Record(offset + each, number, b"k", value) for each in (0, 1)], codec)
            offset += 2
    return log


def read_whole(files: RealFiles, descriptor: int, end: int) -> Iterator[CheckedBatch]:
    """What is to be found: each batch read whole, and then checked."""
    for position, one in scan_batches(files, descriptor, 0, end):
        one.verify()
        header = one.header if isinstance(one, RecordBatch) else None
        yield CheckedBatch(position, one.size_bytes, one.last_offset, one.max_timestamp_ms, header)


def found(batches: Iterator[CheckedBatch]) -> list[CheckedBatch]:
    """Those before the end or the first damage: which of both it is makes no difference to a recovery."""
    kept = []
    try:
        for one in batches:
            kept.append(one)  # noqa: PERF402 - what came before an error is kept
    except RecordsError:
        pass
    return kept


@given(
    st.lists(st.tuples(KINDS, SIZES), max_size=8),
    st.lists(
        st.one_of(
            st.tuples(st.just("byte"), st.integers(0, 5_000), st.integers(0, 255)),
            st.tuples(st.just("cut"), st.integers(0, 5_000), st.just(0)),
            st.tuples(st.just("zeros"), st.integers(0, 5_000), st.integers(1, 200)),
            st.tuples(st.just("size"), st.integers(0, 7), st.sampled_from([-1, 0, 13, 14, 22, 48, 49, 300, 1 << 30])),
            st.tuples(st.just("stray"), st.integers(0, 7), st.integers(0, 255)),
            st.tuples(st.just("magic"), st.integers(0, 7), st.sampled_from([0, 1, 2, 3, 127, 255])),
        ),
        max_size=2,
    ),
    BUFFERS,
    st.sampled_from([1 << 20, 50, 7]),
    st.booleans(),
)
@example([("batch", 300)] * 3, [], 61, 7, False)
@example([("messages", 5), ("batch", 5), ("wrapper", 5), ("batch", 5)], [], 61, 50, False)
@example([("batch", 300)], [("byte", 359, 0)], 128, 1 << 20, False)
@example([("batch", 5)] * 3, [("stray", 1, 0)], 1 << 17, 1 << 20, False)
@example([("messages", 0)], [("cut", 40, 0)], 1 << 17, 1 << 20, False)
@settings(deadline=None, max_examples=examples(100))
def test_finds_what_reading_each_batch_whole_finds(
    shape: list[tuple[str, int]],
    damages: list[tuple[str, int, int]],
    buffer_bytes: int,
    read_bytes_max: int,
    is_shorter: bool,
) -> None:
    """Invariant: the same batches are found whole, with the same fields, up to the same place, whatever is damaged and
    however the file is cut into reads."""
    log = bytearray(written(shape))
    starts = [0]
    while len(log) - starts[-1] >= 17:
        starts.append(starts[-1] + 12 + struct.unpack_from(">i", log, starts[-1] + 8)[0])
    for damage, at, value in damages:
        start = starts[min(at, len(starts) - 1)]
        if damage == "byte" and log:
            log[at % len(log)] = value
        elif damage == "cut":
            del log[at:]
        elif damage == "zeros":
            log[at : at + value] = bytes(len(log[at : at + value]))
        elif damage == "stray":
            log.insert(min(start, len(log)), value)
        elif damage == "size" and start + 12 <= len(log):
            struct.pack_into(">i", log, start + 8, value)
        elif damage == "magic" and start + 17 <= len(log):
            log[start + 16] = value
    with tempfile.TemporaryDirectory() as directory, mock.patch.object(module, "_BUFFER_BYTES", buffer_bytes):
        path = Path(directory, "log")
        path.write_bytes(log)
        end = len(log) + (40 if is_shorter else 0)  # the file has lost some since its size was asked for
        descriptor = os.open(path, os.O_RDONLY)
        try:
            expected = found(read_whole(RealFiles(), descriptor, end))
            assert found(checked_batches(ShortReads(read_bytes_max), descriptor, end)) == expected
            for one in expected:
                if one.header is not None:
                    assert read_batch(RealFiles(), descriptor, one).header == one.header
        finally:
            os.close(descriptor)


def test_a_batch_that_is_smaller_than_its_header_is_damaged(tmp_path: Path) -> None:
    """The checksum of no bytes is 0, which is what a torn write may have left there."""
    (tmp_path / "log").write_bytes(struct.pack(">qiib", 0, 1, 0, 2) + bytes(100))
    descriptor = os.open(tmp_path / "log", os.O_RDONLY)
    try:
        with pytest.raises(CorruptRecordError, match="13 bytes, fewer than its header"):
            next(checked_batches(RealFiles(), descriptor, 117))
    finally:
        os.close(descriptor)


def test_memory_does_not_grow_with_the_batches(tmp_path: Path) -> None:
    """A size that lies makes nobody read all of it at once."""
    log = batch(0, [1], bytes(3_000_000)).data + batch(1, [1], b"next").data
    (tmp_path / "log").write_bytes(log)
    largest = 0

    class Measured(RealFiles):
        def preadv(  # type: ignore[override]
            self, descriptor: int, buffers: Sequence[bytearray | memoryview], offset: int, flags: int = 0, /
        ) -> int:
            nonlocal largest
            largest = max(largest, len(buffers[0]))
            return os.preadv(descriptor, buffers, offset)

        def pread(self, descriptor: int, count: int, offset: int, /) -> bytes:
            pytest.fail("a batch is read whole")

    descriptor = os.open(tmp_path / "log", os.O_RDONLY)
    try:
        assert [one.last_offset for one in checked_batches(Measured(), descriptor, len(log))] == [0, 1]
    finally:
        os.close(descriptor)
    assert 0 < largest <= 1 << 20
