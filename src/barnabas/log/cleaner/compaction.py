"""What the child process does: reads a log twice, and writes what is kept of it as segments with the ending `.cleaned`.

When it ends with status 0, `RESULT` says what it has written, and all of that is durable.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Final

from barnabas.kernel.host import Buffer, Files
from barnabas.log.cleaner.batch_filter import FilterRules, LastBatch, filter_batch
from barnabas.log.cleaner.offset_map import OffsetMap
from barnabas.log.cleaner.plan import SegmentFacts, group_segments
from barnabas.log.cleaner.transactions import CleanedTransactions
from barnabas.log.directories.files import read_at, write_all
from barnabas.log.directories.names import CLEANED_SUFFIX, LOG_SUFFIX, segment_file_name
from barnabas.log.segments.batch_scan import scan_batches
from barnabas.log.segments.indexes import RELATIVE_OFFSET_MAX, AbortedTransaction
from barnabas.log.segments.named_segment import add_suffix
from barnabas.log.segments.segment import Segment, SegmentConfig, perform_sync
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.record_errors import CorruptRecordError

ENTRY: Final = "barnabas.log.cleaner.compaction:compact"
RESULT: Final = "compaction.tmp"
"""A name that Apache Kafka does not look at (it ends where `.cleaned` follows no number), and that a start removes."""
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
)
_ENTRIES_PER_LINE: Final = 1000


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


def compact(files: Files, argument: bytes) -> int:
    """The entry of the child process; returns its status, which tells an error of the disk from all others. Raises
    RecordsError for batches that cannot be compacted."""
    try:
        _compact(files, Compaction.decode(argument))
    except OSError as error:
        if not error.errno:
            raise
        return DISK_FAILED + error.errno
    return 0


def _compact(files: Files, work: Compaction) -> None:
    remove_cleaned(files, work.directory)
    offsets, is_complete = _map_offsets(files, work)
    rules = FilterRules(work.now_ms, work.delete_retention_ms, work.producers, offsets.latest_offset + 1)
    transactions = CleanedTransactions(
        entry for entry in work.aborted if entry.last_offset >= work.segments[0].base_offset
    )
    groups = group_segments(
        (segment for segment in work.segments if segment.base_offset <= offsets.latest_offset),
        size_bytes_max=work.config.segment_bytes,
        index_bytes_max=work.config.index_bytes_max,
        offsets_max=RELATIVE_OFFSET_MAX,
    )
    for group in groups:
        _write_group(files, work, group, offsets, transactions, rules)
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
    """A short stretch has no more keys than offsets, and needs no more than twice as many slots."""
    offsets = max(work.end_offset - work.first_dirty_offset, 1)
    return OffsetMap(min(work.entries_max, offsets), min(work.slots, 2 * offsets))


def _map_offsets(files: Files, work: Compaction) -> tuple[OffsetMap, bool]:
    """The last offset of each key from the first dirty offset on, and whether all of that fitted."""
    offsets = _map_for(work)
    transactions = CleanedTransactions(entry for entry in work.aborted if entry.last_offset >= work.first_dirty_offset)
    for segment in work.segments:
        if segment.end_offset <= work.first_dirty_offset:
            continue
        for batch, _ in _batches(files, work.directory, segment):
            if batch.last_offset < work.first_dirty_offset:
                continue
            if not transactions.is_discarded(batch) and not batch.is_control:
                for entry in batch.entries():
                    if (
                        entry.key is not None
                        and entry.offset >= work.first_dirty_offset
                        and not offsets.put(bytes(entry.key), entry.offset)
                    ):
                        return offsets, False
            offsets.passed(batch.last_offset)
    offsets.passed(work.first_dirty_offset)
    return offsets, True


def _write_group(
    files: Files,
    work: Compaction,
    group: list[SegmentFacts],
    offsets: OffsetMap,
    transactions: CleanedTransactions,
    rules: FilterRules,
) -> None:
    cleaned = Segment(files, work.directory, group[0].base_offset, work.config, created_ms=work.now_ms)
    add_suffix(cleaned, CLEANED_SUFFIX)
    cleaned.create()
    try:
        transactions.kept.clear()
        for segment in group:
            for batch, data in _batches(files, work.directory, segment):
                kept = filter_batch(batch, data, offsets, transactions, rules)
                if kept is not None:
                    cleaned.append(kept.data, kept.last_offset, kept.max_timestamp_ms)
        cleaned.transaction_index.descriptor()  # there always: it replaces one that may have had entries
        for entry in transactions.kept:
            cleaned.transaction_index.append(entry)
        cleaned.become_inactive()
        perform_sync(files, cleaned.prepare_sync())
    finally:
        cleaned.let_go()


def _batches(files: Files, directory: str, segment: SegmentFacts) -> Iterator[tuple[RecordBatch, Buffer]]:
    """Each batch, verified, and its bytes."""
    descriptor = files.open(f"{directory}/{segment_file_name(segment.base_offset, LOG_SUFFIX)}", os.O_RDONLY)
    try:
        end = 0
        for position, batch in scan_batches(files, descriptor, 0, segment.size_bytes):
            if not isinstance(batch, RecordBatch):
                raise CorruptRecordError(f"messages of magic {batch.magic} are not compacted")
            batch.verify()
            end = position + batch.size_bytes
            yield batch, read_at(files, descriptor, batch.size_bytes, position)
        if end != segment.size_bytes:
            raise CorruptRecordError(f"segment {segment.base_offset} ends at byte {end} of {segment.size_bytes}")
    finally:
        files.close(descriptor)
