"""What the child process does: reads a log twice, and writes what is kept of it as segments with the ending `.cleaned`.

When it ends with status 0, `RESULT` says what it has written, and all of that is durable.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Final, cast

from barnabas.kernel.host import Buffer, Files
from barnabas.kernel.paced_work import PacedWork
from barnabas.log.cleaner.batch_filter import FilterRules, Kept, LastBatch, filter_batch, filter_legacy_batch
from barnabas.log.cleaner.key_tables import KeyTable, PlainKeyTable
from barnabas.log.cleaner.offset_map import OffsetMap
from barnabas.log.cleaner.plan import SegmentFacts, group_segments
from barnabas.log.cleaner.record_scan import DROPPED, TOMBSTONE, VALUE, scan_keys
from barnabas.log.cleaner.scanned_keys import ScannedKeys
from barnabas.log.cleaner.transactions import CleanedTransactions
from barnabas.log.directories.files import read_at, write_all
from barnabas.log.directories.names import CLEANED_SUFFIX, LOG_SUFFIX, segment_file_name
from barnabas.log.segments.indexes import RELATIVE_OFFSET_MAX, AbortedTransaction
from barnabas.log.segments.named_segment import add_suffix
from barnabas.log.segments.segment import Segment, SegmentConfig, perform_sync
from barnabas.wire.batch_formats import batch_at
from barnabas.wire.legacy_records import LegacyBatch
from barnabas.wire.record_batch import ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL, RecordBatch
from barnabas.wire.record_errors import CorruptRecordError
from barnabas.wire.records import Batch, BatchWalk, walk_batches

ENTRY: Final = "barnabas.log.cleaner.compaction:compact"
RESULT: Final = "compaction.tmp"
"""A name that Apache Kafka does not look at (it ends where `.cleaned` follows no number), and that a start removes."""
CHUNK_BYTES_MIN: Final = 4096
"""A `log.cleaner.io.buffer.size` of next to nothing would cost a read for each batch."""
DISK_FAILED: Final = 64
"""The status is this and the number of the OSError."""
RESULT_BYTES_MAX: Final = 16 * 1024 * 1024
_PLAIN_FIELDS: Final = (
    "directory",
    "first_dirty_offset",
    "end_offset",
    "now_ms",
    "delete_retention_ms",
    "entries_max",
    "slots",
    "chunk_bytes",
    "bytes_per_second",
)
_OF_TRANSACTIONS: Final = ATTRIBUTE_CONTROL | ATTRIBUTE_TRANSACTIONAL
_PREFIX_BYTES: Final = 17  # offset, size, leader epoch or CRC-32, magic: the size of a batch is known
_ENTRIES_PER_LINE: Final = 1000
_VECTOR_SLOTS_MIN: Final = 200_000
"""A log of fewer offsets is done before numpy is loaded."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """One cleaning of one log."""

    directory: str
    segments: tuple[SegmentFacts, ...]
    """All below `end_offset`, in order."""
    first_dirty_offset: int
    end_offset: int
    aborted: tuple[AbortedTransaction, ...]
    producers: dict[int, LastBatch]
    config: SegmentConfig
    now_ms: int
    delete_retention_ms: int
    entries_max: int
    """How many keys the map of keys takes at most."""
    slots: int
    """Of the map of keys, at most."""
    chunk_bytes: int = 256 * 1024
    """What is read at a time."""
    bytes_per_second: float = math.inf
    """What may be read and written, in sum."""

    def encode(self) -> Iterator[bytes]:
        """As the argument of a child process, in pieces that take a millisecond or two."""
        fields = {name: getattr(self, name) for name in _PLAIN_FIELDS}
        yield json.dumps({**fields, "config": asdict(self.config)}).encode()
        yield from _lines("segments", self.segments)
        yield from _lines("aborted", self.aborted)
        yield from _lines("producers", ((number, *last) for number, last in self.producers.items()))

    @classmethod
    def decode(cls, data: bytes) -> Compaction:
        """What `encode` has made."""
        first, *lines = data.splitlines()
        fields = json.loads(first)
        listed: dict[str, list[list[Any]]] = {"segments": [], "aborted": [], "producers": []}
        for line in lines:
            name, entries = json.loads(line)
            listed[name] += entries
        return cls(
            **{
                **fields,
                "config": SegmentConfig(**fields["config"]),
                "segments": tuple(map(SegmentFacts._make, listed["segments"])),
                "aborted": tuple(map(AbortedTransaction._make, listed["aborted"])),
                "producers": {number: LastBatch(*last) for number, *last in listed["producers"]},
            }
        )


def _lines(name: str, entries: Iterable[Sequence[int | None]]) -> Iterator[bytes]:
    remaining = iter(entries)
    while piece := list(islice(remaining, _ENTRIES_PER_LINE)):
        yield b"\n" + json.dumps([name, piece]).encode()


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What was written."""

    end_offset: int
    """Up to where the log is compacted, once the groups have taken their places."""
    groups: list[list[int]]
    """Base offsets of the segments that each new one, with the base offset of the first, replaces."""


def read_result(files: Files, directory: str) -> CompactionResult:
    """What the child has left, which goes. Belongs off the loop. Raises OSError."""
    path = f"{directory}/{RESULT}"
    descriptor = files.open(path, os.O_RDONLY)
    try:
        data = read_at(files, descriptor, RESULT_BYTES_MAX, 0)
    finally:
        files.close(descriptor)
    files.unlink(path)
    return CompactionResult(**json.loads(data))


def remove_cleaned(files: Files, directory: str) -> None:
    """Removes what a cleaning has left that came to nothing. Belongs off the loop. Raises OSError."""
    for name in files.list_directory(directory):
        if name.endswith(CLEANED_SUFFIX) or name == RESULT:
            files.unlink(f"{directory}/{name}")


def compact(files: Files, argument: bytes) -> PacedWork[int]:
    """The entry of the child process; paced by the bytes that it reads and writes. Returns its status, which tells
    an error of the disk from all others. Raises RecordsError for batches that cannot be compacted."""
    try:
        yield from _compact(files, Compaction.decode(argument))
    except OSError as error:
        if not error.errno:
            raise
        return DISK_FAILED + error.errno
    return 0


def _compact(files: Files, work: Compaction) -> PacedWork[None]:
    remove_cleaned(files, work.directory)
    offsets, is_complete = yield from _map_offsets(files, work)
    groups = group_segments(
        (segment for segment in work.segments if segment.base_offset <= offsets.latest_offset),
        size_bytes_max=work.config.segment_bytes,
        index_bytes_max=work.config.index_bytes_max,
        offsets_max=RELATIVE_OFFSET_MAX,
    )
    batch_filter = _Filter(work, offsets)
    for group in groups:
        yield from _write_group(files, work, group, batch_filter)
    result = CompactionResult(
        end_offset=work.end_offset if is_complete else offsets.latest_offset + 1,
        groups=[[segment.base_offset for segment in group] for group in groups],
    )
    descriptor = files.open(f"{work.directory}/{RESULT}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(files, descriptor, json.dumps(asdict(result)).encode(), 0)
    finally:
        files.close(descriptor)


def _map_for(work: Compaction) -> OffsetMap:
    """A short stretch has no more keys than offsets, and needs no more slots than that."""
    offsets = max(work.end_offset - work.first_dirty_offset, 1)
    slots = min(work.slots, offsets)
    return OffsetMap(min(work.entries_max, offsets), slots, key_table(slots))


def key_table(slots: int) -> KeyTable:
    """The one for so many entries: with numpy where it is installed and worth being loaded."""
    if slots >= _VECTOR_SLOTS_MIN:
        try:
            from barnabas.log.cleaner.vector_key_table import VectorKeyTable
        except ImportError:
            pass
        else:
            return VectorKeyTable(slots)
    return PlainKeyTable(slots)


def _map_offsets(files: Files, work: Compaction) -> PacedWork[tuple[OffsetMap, bool]]:
    """Which records are the last of their keys from the first dirty offset on, and whether all of that fitted."""
    offsets = _map_for(work)
    transactions = CleanedTransactions(entry for entry in work.aborted if entry.last_offset >= work.first_dirty_offset)
    for segment in work.segments:
        if segment.end_offset <= work.first_dirty_offset:
            continue
        for chunk_bytes, batches in _chunks(files, work, segment):
            yield chunk_bytes / work.bytes_per_second
            for batch, _ in batches:
                if batch.last_offset < work.first_dirty_offset:
                    continue
                if not isinstance(batch, RecordBatch):
                    keys, states = _legacy_keys(batch)
                elif _is_discardable(batch, transactions) or batch.header.attributes & ATTRIBUTE_CONTROL:
                    keys, states = ScannedKeys(), bytes(batch.header.record_count)
                else:
                    keys, states = _keys(batch)
                if not offsets.put(keys, states, batch.last_offset):
                    offsets.finish()
                    return offsets, False
    is_complete = offsets.finish()
    if is_complete:
        offsets.passed(work.first_dirty_offset)
    return offsets, is_complete


def _is_discardable(batch: RecordBatch, transactions: CleanedTransactions) -> bool:
    return bool(batch.header.attributes & _OF_TRANSACTIONS) and transactions.is_discarded(batch)


def _keys(batch: RecordBatch) -> tuple[ScannedKeys, bytes]:
    count = batch.header.record_count
    return scan_keys(bytes(batch.payload()), count) if count else (ScannedKeys(), b"")


def _legacy_keys(batch: Batch) -> tuple[ScannedKeys, bytes]:
    keys: list[bytes] = []
    states = bytearray()
    for entry in batch.entries():
        if entry.key is None:
            states.append(DROPPED)
        else:
            keys.append(entry.key)
            states.append(VALUE if entry.has_value else TOMBSTONE)
    return ScannedKeys(keys, sum(map(len, keys))), bytes(states)


class _Filter:
    """The second pass: what is kept of each batch, in the order of the log."""

    def __init__(self, work: Compaction, offsets: OffsetMap) -> None:
        self._first_dirty_offset = work.first_dirty_offset
        self._offsets = offsets
        self._rules = FilterRules(work.now_ms, work.delete_retention_ms, work.producers, offsets.latest_offset + 1)
        self._number = 0
        """Of the next record that the map of keys knows."""
        self.transactions = CleanedTransactions(
            entry for entry in work.aborted if entry.last_offset >= work.segments[0].base_offset
        )

    def keep(self, batch: Batch, data: Buffer) -> Kept | None:
        """As `filter_batch`. What the map does not reach stays as it is, but for transactions that were aborted."""
        if not isinstance(batch, RecordBatch):
            legacy = cast("LegacyBatch", batch)
            if batch.last_offset > self._offsets.latest_offset:
                return Kept(data, batch.last_offset, batch.max_timestamp_ms)
            keys, states = _legacy_keys(legacy)
            return filter_legacy_batch(legacy, data, self._last(batch, keys, states, len(states)))
        is_discardable = _is_discardable(batch, self.transactions)
        header = batch.header
        is_plain = not (is_discardable or header.attributes & ATTRIBUTE_CONTROL)
        if header.last_offset > self._offsets.latest_offset:
            if is_plain:
                return Kept(data, header.last_offset, header.max_timestamp_ms)
            states = b""
        elif header.last_offset >= self._first_dirty_offset:
            states = self._last(batch, ScannedKeys(), b"", header.record_count)
        elif is_plain:
            states = self._last(batch, *_keys(batch), header.record_count)
        else:
            states = b""
        return filter_batch(batch, data, states, self._rules, is_discardable=is_discardable)

    def _last(self, batch: Batch, keys: ScannedKeys, states: bytes, record_count: int) -> bytes:
        if batch.last_offset < self._first_dirty_offset:
            return self._offsets.states_without(keys, states)
        number = self._number
        self._number += record_count
        return self._offsets.last_states(number, record_count)


def _write_group(files: Files, work: Compaction, group: list[SegmentFacts], batch_filter: _Filter) -> PacedWork[None]:
    cleaned = Segment(files, work.directory, group[0].base_offset, work.config, created_ms=work.now_ms)
    add_suffix(cleaned, CLEANED_SUFFIX)
    cleaned.create()
    try:
        batch_filter.transactions.kept.clear()
        for segment in group:
            for chunk_bytes, batches in _chunks(files, work, segment):
                written_bytes = cleaned.size_bytes
                for batch, data in batches:
                    kept = batch_filter.keep(batch, data)
                    if kept is not None:
                        cleaned.append(kept.data, kept.last_offset, kept.max_timestamp_ms)
                yield (chunk_bytes + cleaned.size_bytes - written_bytes) / work.bytes_per_second
        cleaned.transaction_index.descriptor()  # there always: it replaces one that may have had entries
        for entry in batch_filter.transactions.kept:
            cleaned.transaction_index.append(entry)
        cleaned.become_inactive()
        perform_sync(files, cleaned.prepare_sync())
    finally:
        cleaned.let_go()


def _chunks(
    files: Files, work: Compaction, segment: SegmentFacts
) -> Iterator[tuple[int, Iterator[tuple[Batch, memoryview]]]]:
    """A segment in pieces of `chunk_bytes`, or of one batch that is larger: how many bytes were read, and each batch,
    verified, with its bytes."""
    descriptor = files.open(f"{work.directory}/{segment_file_name(segment.base_offset, LOG_SUFFIX)}", os.O_RDONLY)
    try:
        position = 0
        wanted_bytes = work.chunk_bytes
        while position < segment.size_bytes:
            chunk = read_at(files, descriptor, min(wanted_bytes, segment.size_bytes - position), position)
            walk = walk_batches(chunk)
            if not walk.spans:
                if walk.next_size_bytes is None and len(chunk) < _PREFIX_BYTES <= segment.size_bytes - position:
                    wanted_bytes = _PREFIX_BYTES
                elif walk.next_size_bytes is None or walk.next_size_bytes > max(
                    len(chunk), segment.size_bytes - position
                ):
                    raise CorruptRecordError(
                        f"segment {segment.base_offset} ends at byte {position} of {segment.size_bytes}"
                    )
                else:
                    wanted_bytes = walk.next_size_bytes
                continue
            yield walk.end_position, _verified(chunk, walk)
            position += walk.end_position
            wanted_bytes = work.chunk_bytes
    finally:
        files.close(descriptor)


def _verified(chunk: bytes, walk: BatchWalk) -> Iterator[tuple[Batch, memoryview]]:
    view = memoryview(chunk)
    for span in walk.spans:
        batch = batch_at(chunk, span)
        batch.verify()
        yield batch, view[span.position : span.position + span.size_bytes]
