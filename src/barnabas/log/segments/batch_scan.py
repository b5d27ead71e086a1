"""Going through the batches of a log file, and finding a record by its time there; off the loop, but for a few KiB."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from barnabas.kernel.host import Files
from barnabas.log.directories.files import read_at
from barnabas.wire.batch_formats import batch_at
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.record_errors import CorruptRecordError
from barnabas.wire.records import LOG_OVERHEAD_BYTES, MAGIC_V2, Batch, walk_batches
from barnabas.wire.sentinels import NO_EPOCH, NO_TIMESTAMP

_PREFIX: Final = struct.Struct(">qiib")  # offset, size, leader epoch or CRC-32, magic
_PREFIX_BYTES: Final = _PREFIX.size
_LAST_OFFSET_DELTA_AT: Final = 23
_LAST_OFFSET_DELTA_END: Final = 27
_INT32: Final = struct.Struct(">i")
_SEARCH_BYTES: Final = 8 * 1024
_SCAN_BYTES: Final = 1024 * 1024


class FoundTimestamp(NamedTuple):
    """A record found by its time."""

    offset: int
    timestamp_ms: int
    leader_epoch: int
    """Of its batch, which may reach below the start of the log; -1 for messages of old formats."""


class TimestampSearch(NamedTuple):
    """Where a record with a timestamp may be: what `search_timestamp` reads."""

    descriptor: int
    position: int
    end_position: int
    timestamp_ms: int
    from_offset: int


def search_timestamp(files: Files, search: TimestampSearch) -> FoundTimestamp | None:
    """The first record, from `from_offset` on, that is not older than the timestamp."""
    descriptor, position, end_position, timestamp_ms, from_offset = search
    for _, batch in scan_batches(files, descriptor, position, end_position):
        if batch.max_timestamp_ms >= timestamp_ms and batch.last_offset >= from_offset:
            for entry in batch.entries():
                if entry.timestamp_ms >= timestamp_ms and entry.offset >= from_offset:
                    return FoundTimestamp(entry.offset, entry.timestamp_ms, _leader_epoch(batch))
    return None


def search_largest_timestamp(files: Files, search: TimestampSearch) -> FoundTimestamp | None:
    """The first record whose timestamp is the largest, which is the timestamp of the search (KIP-734)."""
    descriptor, position, end_position, timestamp_ms, _ = search
    for _, batch in scan_batches(files, descriptor, position, end_position):
        if batch.max_timestamp_ms != timestamp_ms:
            continue
        if isinstance(batch, RecordBatch):
            found = batch.find_max_timestamp()
            if found is not None:
                return FoundTimestamp(*found, _leader_epoch(batch))
        return FoundTimestamp(batch.last_offset, timestamp_ms, _leader_epoch(batch))
    return None


def _leader_epoch(batch: Batch) -> int:
    return batch.header.partition_leader_epoch if isinstance(batch, RecordBatch) else NO_EPOCH


def read_first_timestamp(files: Files, path: str, size_bytes: int) -> int:
    """The largest timestamp of the first batch of a segment; -1 where it has none. Belongs off the loop. Raises
    OSError, also where the file is gone, and CorruptRecordError."""
    descriptor = files.open(path, os.O_RDONLY)
    try:
        first = next(scan_batches(files, descriptor, 0, size_bytes), None)
        return NO_TIMESTAMP if first is None else first[1].max_timestamp_ms
    finally:
        files.close(descriptor)


def find_batch(
    files: Files, descriptor: int, position: int, end: int, offset: int, path: str
) -> tuple[int, int] | None:
    """Where the first batch is that ends with `offset` or later, and its bytes; `position` is where a batch before it
    begins. Reads headers only, whatever size the batches have. Raises CorruptRecordError, which names the `path`."""
    while position < end:
        chunk = read_at(files, descriptor, min(_SEARCH_BYTES, end - position), position)
        at = 0
        while len(chunk) - at >= _PREFIX_BYTES:
            last_offset, size, _, magic = _PREFIX.unpack_from(chunk, at)
            if magic == MAGIC_V2:
                if len(chunk) - at < _LAST_OFFSET_DELTA_END:
                    break
                last_offset += _INT32.unpack_from(chunk, at + _LAST_OFFSET_DELTA_AT)[0]
            if size <= 0:
                raise CorruptRecordError(f"{path} has a batch of size {size} at byte {position + at}")
            if last_offset >= offset:
                return position + at, size + LOG_OVERHEAD_BYTES
            at += size + LOG_OVERHEAD_BYTES
        if at <= 0:
            raise CorruptRecordError(f"{path} has no batch at byte {position}, within its {end}")
        position += at
    return None


def scan_batches(files: Files, descriptor: int, position: int, end: int) -> Iterator[tuple[int, Batch]]:
    """Position and batch, for the batches between two positions; ends silently at one that is not all there.

    Raises CorruptRecordError where the next batch cannot be found. Nothing is verified.
    """
    wanted_bytes = _SCAN_BYTES
    while end - position >= _PREFIX_BYTES:
        chunk = read_at(files, descriptor, min(wanted_bytes, end - position), position)
        chunk_end = len(chunk)
        at = 0
        next_bytes: int | None = None
        while chunk_end - at >= _PREFIX_BYTES:
            next_bytes = _batch_bytes(chunk, at)
            if next_bytes > chunk_end - at:
                break
            span = walk_batches(chunk, at, at + next_bytes).spans[0]
            yield position + at, batch_at(chunk, span)
            at += next_bytes
            next_bytes = None
        if not at and (next_bytes is None or next_bytes > end - position or chunk_end < wanted_bytes):
            return
        position += at
        wanted_bytes = max(_SCAN_BYTES, next_bytes or 0)


def _batch_bytes(chunk: bytes, at: int) -> int:
    """The size of the batch at a place of a chunk, which may hold its beginning only."""
    walk = walk_batches(chunk, at, at + _PREFIX_BYTES)
    if walk.next_size_bytes is None:
        raise RuntimeError("a batch is never as small as its prefix")
    return walk.next_size_bytes
