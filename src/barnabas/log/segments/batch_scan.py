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
from barnabas.wire.records import Batch, walk_batches
from barnabas.wire.sentinels import NO_EPOCH, NO_TIMESTAMP

_PREFIX_BYTES: Final = struct.calcsize(">qiib")  # offset, size, leader epoch or CRC-32, magic
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
