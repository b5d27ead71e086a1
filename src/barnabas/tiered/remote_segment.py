"""Reading a segment in remote storage: its indexes, and whole batches of its log. Everything that reads belongs off the
loop."""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from barnabas.log.segments.batch_scan import FoundTimestamp
from barnabas.log.segments.indexes import AbortedTransaction
from barnabas.tiered.object_names import ObjectKind, object_name
from barnabas.tiered.segment_metadata import RemoteLogSegmentMetadata
from barnabas.tiered.storage import RemoteStore
from barnabas.wire.batch_formats import batch_at
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.record_errors import CorruptRecordError
from barnabas.wire.records import LOG_OVERHEAD_BYTES, MAGIC_V2, Batch, walk_batches
from barnabas.wire.sentinels import NO_EPOCH

_READ_BYTES_MIN: Final = 64 * 1024
_SEARCH_BYTES: Final = 1024 * 1024
_PREFIX: Final = struct.Struct(">qiib")
_LAST_OFFSET_DELTA: Final = struct.Struct(">i")
_LAST_OFFSET_DELTA_AT: Final = 23
_HEADER_BYTES: Final = 27
_OFFSET_ENTRY: Final = struct.Struct(">ii")
_TIME_ENTRY: Final = struct.Struct(">qi")
_TRANSACTION_ENTRY: Final = struct.Struct(">hqqqq")
BATCH_BYTES_MAX: Final = 1 << 30


class SegmentIndexes(NamedTuple):
    """The indexes of one segment, as they are stored."""

    base_offset: int
    offsets: bytes
    times: bytes
    aborted: tuple[AbortedTransaction, ...] | None
    """None where that index was lost: nobody knows which transactions were aborted."""

    @property
    def size_bytes(self) -> int:
        """About what they take in memory."""
        return len(self.offsets) + len(self.times) + 120 * len(self.aborted or ()) + 200

    def position_of(self, offset: int) -> int:
        """Where to begin to look for an offset."""
        entries = _Entries(self.offsets, _OFFSET_ENTRY)
        at = bisect.bisect_right(entries, offset - self.base_offset, key=lambda entry: entry[0])
        return entries[at - 1][1] if at else 0

    def position_of_time(self, timestamp_ms: int) -> int:
        """Where to begin to look for the first record that is not older."""
        entries = _Entries(self.times, _TIME_ENTRY)
        at = bisect.bisect_left(entries, timestamp_ms, key=lambda entry: entry[0])
        return self.position_of(self.base_offset + entries[at - 1][1]) if at else 0

    def end_offset_of(self, position: int) -> int | None:
        """An offset before which everything lies that is before a position; None behind the last entry."""
        entries = _Entries(self.offsets, _OFFSET_ENTRY)
        at = bisect.bisect_left(entries, position, key=lambda entry: entry[1])
        return self.base_offset + entries[at][0] if at < len(entries) else None

    def collect_aborted(
        self, from_offset: int, upper_offset: int, end_offset: int
    ) -> tuple[list[AbortedTransaction], bool]:
        """The transactions that overlap the offsets up to `upper_offset`, of those that end before `end_offset`; and
        whether no later segment can have more. Raises CorruptRecordError where the index is lost."""
        if self.aborted is None:
            raise CorruptRecordError(f"the transaction index of segment {self.base_offset} is lost")
        found = []
        for entry in self.aborted:
            if entry.last_offset >= end_offset:
                break
            if entry.last_offset >= from_offset and entry.first_offset < upper_offset:
                found.append(entry)
            if entry.last_stable_offset >= upper_offset:
                return found, True
        return found, False


class _Entries:
    """Entries of an index, as a sequence to search in."""

    __slots__ = ("_data", "_entry")

    def __init__(self, data: bytes, entry: struct.Struct) -> None:
        self._data = data
        self._entry = entry

    def __len__(self) -> int:
        return len(self._data) // self._entry.size

    def __getitem__(self, number: int) -> tuple[int, int]:
        first, second = self._entry.unpack_from(self._data, number * self._entry.size)
        return first, second


def load_indexes(store: RemoteStore, segment: RemoteLogSegmentMetadata) -> SegmentIndexes:
    """Raises OSError; FileNotFoundError where the segment was deleted meanwhile."""
    return SegmentIndexes(
        segment.start_offset,
        # First of all: a deletion takes it after the others.
        aborted=_load_aborted(store, object_name(segment, ObjectKind.TRANSACTION_INDEX)),
        offsets=store.read_all(object_name(segment, ObjectKind.OFFSET_INDEX)),
        times=store.read_all(object_name(segment, ObjectKind.TIME_INDEX)),
    )


def _load_aborted(store: RemoteStore, name: str) -> tuple[AbortedTransaction, ...] | None:
    try:
        data = store.read_all(name)
    except FileNotFoundError:
        return None
    return parse_aborted(data)


def parse_aborted(data: bytes) -> tuple[AbortedTransaction, ...] | None:
    """The entries of an index of aborted transactions; None where it is none."""
    if len(data) % _TRANSACTION_ENTRY.size:
        return None
    return tuple(AbortedTransaction._make(fields) for _, *fields in _TRANSACTION_ENTRY.iter_unpack(data))


class ReadBatches(NamedTuple):
    """Whole batches, and where they are."""

    data: bytes
    end_position: int
    is_found: bool
    """False where the segment has no record at the offset or behind it."""


def read_batches(
    store: RemoteStore,
    segment: RemoteLogSegmentMetadata,
    indexes: SegmentIndexes,
    offset: int,
    bytes_max: int,
    *,
    has_minimum: bool,
) -> ReadBatches:
    """Batches from the one on that has `offset`, as many as `bytes_max` hold; with `has_minimum` at least that one.

    Raises OSError, and CorruptRecordError where there are no batches.
    """
    name, size_bytes = object_name(segment, ObjectKind.LOG), segment.size_bytes
    position = indexes.position_of(offset)
    _check_position(name, position, size_bytes)
    while size_bytes - position >= _HEADER_BYTES:
        chunk = _read_exactly(store, name, position, min(max(bytes_max, _READ_BYTES_MIN), size_bytes - position))
        at = 0
        for start, batch_bytes, last_offset in _headers(chunk):
            if last_offset >= offset:
                return _from(store, name, size_bytes, position, chunk, start, batch_bytes, bytes_max, has_minimum)
            at = start + batch_bytes
        if not at:
            raise CorruptRecordError(f"{name} has no batch at byte {position}")
        position += at
    return ReadBatches(b"", size_bytes, is_found=False)


def cut_at(read: ReadBatches, end_offset: int) -> ReadBatches:
    """Without the batches that reach `end_offset`: of these the log has others."""
    end = 0
    for at, each_bytes, last_offset in _headers(read.data):
        if last_offset >= end_offset:
            break
        end = at + each_bytes
    is_found = read.is_found and (end > 0 or not read.data)
    return ReadBatches(read.data[:end], read.end_position - len(read.data) + end, is_found)


def _read_exactly(store: RemoteStore, name: str, position: int, size_bytes: int) -> bytes:
    """Raises CorruptRecordError where the object ends too early: what it has lost must not be passed over."""
    data = store.read(name, position, size_bytes)
    if len(data) != size_bytes:
        raise CorruptRecordError(f"{name} has {len(data)} bytes from byte {position} on, and not {size_bytes}")
    return data


def _from(
    store: RemoteStore,
    name: str,
    size_bytes: int,
    position: int,
    chunk: bytes,
    start: int,
    batch_bytes: int,
    bytes_max: int,
    has_minimum: bool,
) -> ReadBatches:
    if batch_bytes > bytes_max and not has_minimum:
        return ReadBatches(b"", position + start, is_found=True)
    wanted = min(max(batch_bytes, bytes_max), size_bytes - position - start)
    data = chunk[start : start + wanted]
    if len(data) < wanted:
        data += _read_exactly(store, name, position + start + len(data), wanted - len(data))
    end = 0
    for at, each_bytes, _ in _headers(data):
        if at + each_bytes > len(data):
            break
        end = at + each_bytes
    if not end:
        raise CorruptRecordError(f"{name} ends within the batch at byte {position + start}")
    return ReadBatches(data[:end], position + start + end, is_found=True)


def find_timestamp(
    store: RemoteStore,
    segment: RemoteLogSegmentMetadata,
    indexes: SegmentIndexes,
    timestamp_ms: int,
    from_offset: int,
    end_offset: int,
) -> FoundTimestamp | None:
    """The first record, from `from_offset` on and before `end_offset`, that is not older. Raises OSError and
    CorruptRecordError."""
    position = max(indexes.position_of_time(timestamp_ms), indexes.position_of(from_offset))
    for batch in scan_segment(store, segment, position):
        if batch.last_offset >= end_offset:
            return None  # a batch is of one leader epoch
        if batch.max_timestamp_ms < timestamp_ms or batch.last_offset < from_offset:
            continue
        for entry in batch.entries():
            if entry.timestamp_ms >= timestamp_ms and entry.offset >= from_offset:
                epoch = batch.header.partition_leader_epoch if isinstance(batch, RecordBatch) else NO_EPOCH
                return FoundTimestamp(entry.offset, entry.timestamp_ms, epoch)
    return None


def scan_segment(store: RemoteStore, segment: RemoteLogSegmentMetadata, position: int) -> Iterator[Batch]:
    """The batches from a position on. Raises OSError and CorruptRecordError."""
    name, size_bytes = object_name(segment, ObjectKind.LOG), segment.size_bytes
    _check_position(name, position, size_bytes)
    wanted = _SEARCH_BYTES
    while size_bytes - position >= _HEADER_BYTES:
        chunk = _read_exactly(store, name, position, min(wanted, size_bytes - position))
        at, needed = 0, 0
        for start, batch_bytes, _ in _headers(chunk):
            if start + batch_bytes > len(chunk):
                needed = batch_bytes
                break
            at = start + batch_bytes
            yield batch_at(chunk, walk_batches(chunk, start, at).spans[0])
        if not at and (not needed or position + needed > size_bytes):
            return
        position += at
        wanted = max(_SEARCH_BYTES, needed)


def _check_position(name: str, position: int, size_bytes: int) -> None:
    """Raises CorruptRecordError: an index has no entry behind the last batch."""
    if position < 0 or (position and size_bytes - position < _HEADER_BYTES):
        raise CorruptRecordError(f"the index of {name} has byte {position}, and it has {size_bytes} bytes")


def _headers(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Start, size and last offset of each batch of which the header is there. Raises CorruptRecordError."""
    at = 0
    while len(data) - at >= _HEADER_BYTES:
        last_offset, size, _, magic = _PREFIX.unpack_from(data, at)
        if not 0 < size <= BATCH_BYTES_MAX:
            raise CorruptRecordError(f"a batch in remote storage has a size of {size}")
        if magic == MAGIC_V2:
            last_offset += _LAST_OFFSET_DELTA.unpack_from(data, at + _LAST_OFFSET_DELTA_AT)[0]
        yield at, size + LOG_OVERHEAD_BYTES, last_offset
        at += size + LOG_OVERHEAD_BYTES
