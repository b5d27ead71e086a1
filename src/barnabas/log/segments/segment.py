"""One segment of a partition's log: a file of batches, and its indexes.

Small appends join in a buffer that the owner writes once per turn of the loop (`write_pending`), before it acknowledges
them; larger ones are written at once. Every read sees what was appended, since it writes the buffer first. When a write
fails, the file is cut back to whole batches: an append that raised has changed nothing, and a buffer that could not be
written is kept, unacknowledged, for the owner to try again or to give up the directory.

Reads of batches are not made here: `plan_read` says which bytes of which descriptor they are.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from barnabas.kernel.host import Buffer, Files
from barnabas.log.directories.files import write_all
from barnabas.log.directories.names import (
    DELETED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_file_name,
)
from barnabas.log.segments.batch_scan import TimestampSearch, find_batch, scan_batches
from barnabas.log.segments.checked_batches import CheckedBatch, checked_batches
from barnabas.log.segments.index_file import CorruptIndexError
from barnabas.log.segments.indexes import RELATIVE_OFFSET_MAX, OffsetIndex, TimeIndex, TimestampOffset, TransactionIndex
from barnabas.wire.record_errors import RecordsError
from barnabas.wire.records import Batch
from barnabas.wire.sentinels import NO_TIMESTAMP

SMALL_APPEND_BYTES: Final = 16 * 1024
PENDING_BYTES_MAX: Final = 1024 * 1024
_NOTED_TOGETHER: Final = 1024
RECENT_BATCHES_MAX: Final = 128
"""So many of the last batches, and at most twice as many, are found without reading: followers and most consumers ask
for those."""


@dataclass(frozen=True, slots=True)
class SegmentConfig:
    """The topic's configuration, as far as it concerns a segment; Kafka's names and defaults."""

    segment_bytes: int = 1 << 30
    """`segment.bytes`."""
    segment_ms: int = 604_800_000
    """`segment.ms`."""
    index_interval_bytes: int = 4096
    """`index.interval.bytes`."""
    index_bytes_max: int = 10 * 1024 * 1024
    """`segment.index.bytes`."""


class ReadPlan(NamedTuple):
    """Bytes to send: `length_bytes` from `position` of `descriptor`, which stays open until the segment is closed.

    Whoever reads in a later turn of the loop pins the segment until then.
    """

    descriptor: int
    position: int
    length_bytes: int
    is_first_batch_incomplete: bool
    """The first batch is larger than what was asked for, so no whole batch is there."""
    segment: Segment
    cut_count: int
    """That of the segment, when this was planned."""

    @property
    def is_readable(self) -> bool:
        """Whether the descriptor is still that of the segment, and batches are where they were: to be asked in a later
        turn by whoever has pinned nothing, for the number of a closed one may be that of another file."""
        return self.segment.has_open(self.descriptor) and not self.is_cut

    @property
    def is_cut(self) -> bool:
        """Whether the segment was truncated since: in place of its batches there may be others, of other sizes."""
        return self.segment.cut_count != self.cut_count


class SyncWork(NamedTuple):
    """What `perform_sync` makes durable, off the loop."""

    descriptors: tuple[int, ...]
    directory: str
    """Whose entries, the names of the segment's files, become durable too."""


BatchPlace = tuple[int, int, int]
"""Of a batch among those that are appended together: size in bytes, last offset, largest timestamp in ms."""


class _Place(NamedTuple):
    position: int
    size_bytes: int


def perform_sync(files: Files, work: SyncWork) -> None:
    """Off the loop: when it returns, everything survives a loss of power that was in the segment at `prepare_sync`."""
    for descriptor in work.descriptors:
        files.fsync(descriptor)
    files.fsync_directory(work.directory)


class Segment:
    """The batches from `base_offset` on, up to the next segment."""

    def __init__(
        self,
        files: Files,
        directory: str,
        base_offset: int,
        config: SegmentConfig,
        *,
        created_ms: int,
        jitter_ms: int = 0,
    ) -> None:
        """Opens nothing: `create` or `load` does. `jitter_ms` makes segments roll so much earlier by time."""
        self._files = files
        self.directory = directory
        self.base_offset = base_offset
        self.config = config
        self._created_ms = created_ms
        self.jitter_ms = jitter_ms
        self.path = f"{directory}/{segment_file_name(base_offset, LOG_SUFFIX)}"
        index_bytes_max = config.index_bytes_max
        offset_index_path = f"{directory}/{segment_file_name(base_offset, OFFSET_INDEX_SUFFIX)}"
        self.offset_index = OffsetIndex(files, offset_index_path, base_offset, index_bytes_max)
        time_index_path = f"{directory}/{segment_file_name(base_offset, TIME_INDEX_SUFFIX)}"
        self.time_index = TimeIndex(files, time_index_path, base_offset, index_bytes_max)
        transaction_index_path = f"{directory}/{segment_file_name(base_offset, TRANSACTION_INDEX_SUFFIX)}"
        self.transaction_index = TransactionIndex(files, transaction_index_path, base_offset)
        self.size_bytes = 0
        """With what is pending."""
        self.next_offset = base_offset
        self.max_timestamp = TimestampOffset(NO_TIMESTAMP, base_offset)
        """The largest timestamp, and the last offset of the first batch that has it."""
        self._descriptor: int | None = None
        self._written_bytes = 0
        self.pending = bytearray()
        """What the next `write_pending` writes; for others to read."""
        self._bytes_since_index_entry = 0
        self._first_timestamp_ms: int | None = None
        self._are_indexes_full = False
        self._pins = self.cut_count = 0
        self._is_let_go = False
        # Last offsets and positions of the last batches, without a gap up to the end; arrays, since every log has them.
        self._recent_last_offsets = array("q")
        self._recent_positions = array("q")

    # Beginning and ending.

    def use_files(self, files: Files) -> None:
        """Has it go on with these, of which its descriptors are, too."""
        self._files = files
        for index in (self.offset_index, self.time_index, self.transaction_index):
            index.use_files(files)

    def create(self) -> None:
        """Makes the files, empty. They are durable after a sync."""
        self._descriptor = self._files.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self.offset_index.create()
        self.time_index.create()
        self.transaction_index.clear()

    def load(self) -> None:
        """Takes over files that are whole: those of a clean stop, or of a segment that was synced and is not the last.

        Raises FileNotFoundError (no index), CorruptIndexError and RecordsError: then `recover` is due.
        """
        self._open()
        self.offset_index.load()
        self.time_index.load()
        self.transaction_index.load()
        self.next_offset = self.base_offset
        self.max_timestamp = self.time_index.last
        position = self.offset_index.last.position
        if position and position >= self._written_bytes:
            raise CorruptIndexError(f"{self.offset_index.path} ends behind the {self._written_bytes} bytes of its log")
        self._take_over(position)

    def recover(self, replay: Callable[[CheckedBatch, int], None] | None = None, end_offset: int | None = None) -> int:
        """Checks every batch, cuts the file off at the first that is damaged or reaches `end_offset`, and builds the
        indexes again.

        `replay` is called with each batch, in order, and with the descriptor that it can be read from; the entries of
        the transaction index are its to add, and a RecordsError of it ends the segment before that batch. Returns the
        count of bytes cut off. Belongs off the loop.
        """
        limit = self.base_offset + RELATIVE_OFFSET_MAX + 1
        if end_offset is not None:
            limit = min(limit, end_offset)
        self._open()
        self.offset_index.create()
        self.time_index.create()
        self.transaction_index.clear()
        file_bytes = self._written_bytes
        self.size_bytes = self._bytes_since_index_entry = 0
        self.next_offset = self.base_offset
        self.max_timestamp = TimestampOffset(NO_TIMESTAMP, self.base_offset)
        self._first_timestamp_ms = None
        self._forget_recent()
        descriptor = self._open()
        next_offset = self.next_offset
        places: list[BatchPlace] = []  # that are whole and not yet noted
        try:
            for checked in checked_batches(self._files, descriptor, file_bytes):
                _, size_bytes, last_offset, max_timestamp_ms, _ = checked
                if not next_offset <= last_offset < limit:
                    break
                if replay is not None:
                    replay(checked, descriptor)
                next_offset = last_offset + 1
                places.append((size_bytes, last_offset, max_timestamp_ms))
                if len(places) >= _NOTED_TOGETHER:
                    self._note_all(places)
                    places.clear()
        except RecordsError:
            pass  # what follows is damaged: a write that a crash has torn
        if places:
            self._note_all(places)
        self._cut(self.size_bytes)
        self._written_bytes = self.size_bytes
        self.time_index.append_larger(*self.max_timestamp)
        self._write_indexes()
        return file_bytes - self.size_bytes

    def become_inactive(self) -> None:
        """Completes the segment: the next one takes over the appends."""
        self.write_pending()
        self._forget_recent()
        self.time_index.append_larger(*self.max_timestamp)
        self._write_indexes()

    def close(self) -> None:
        """Completes the files and lets go of the descriptors. A clean stop syncs before."""
        if self._descriptor is None:
            return
        try:
            self.become_inactive()
        finally:
            self.let_go()

    def rest(self) -> None:
        """Closes the descriptors of a segment that was loaded; they are opened again when they are needed."""
        self.offset_index.close()
        self.time_index.close()
        self.transaction_index.close()
        if self._descriptor is not None and not self.pending:
            self._files.close(self._descriptor)
            self._descriptor = None

    def has_open(self, descriptor: int) -> bool:
        """Whether that is the descriptor of its file of batches."""
        return self._descriptor == descriptor

    def pin(self) -> None:
        """Keeps the descriptors open, for work off the loop that uses them, until `unpin`."""
        self._pins += 1

    def unpin(self) -> None:
        """Ends what `pin` began; the descriptors of a segment that was let go meanwhile are closed now."""
        self._pins -= 1
        if not self._pins and self._is_let_go:
            self.let_go()

    def let_go(self) -> None:
        """Closes the descriptors and writes nothing: for a segment that is deleted, or whose disk fails.

        While the segment is pinned they stay open: the number of a closed one would soon be that of another file.
        """
        if self._pins:
            self._is_let_go = True
            return
        if self._descriptor is not None:
            self._files.close(self._descriptor)
            self._descriptor = None
        self.offset_index.close()
        self.time_index.close()
        self.transaction_index.close()

    def move(self, directory: str) -> None:
        """Takes note that the directory has got another name. The descriptors stay as they are."""
        self.directory = directory
        self.path = f"{directory}/{os.path.basename(self.path)}"
        self.offset_index.path = f"{directory}/{os.path.basename(self.offset_index.path)}"
        self.time_index.path = f"{directory}/{os.path.basename(self.time_index.path)}"
        self.transaction_index.path = f"{directory}/{os.path.basename(self.transaction_index.path)}"

    def mark_deleted(self) -> list[str]:
        """Renames the files with `.deleted`, so that no load takes them for data; returns their paths, to be unlinked.

        The descriptors stay usable. The names are durable after the directory's fsync.
        """
        paths = []
        for path in (self.path, self.offset_index.path, self.time_index.path, self.transaction_index.path):
            try:
                self._files.rename(path, path + DELETED_SUFFIX)
            except FileNotFoundError:
                continue
            paths.append(path + DELETED_SUFFIX)
        return paths

    # Appending.

    def should_roll(self, append_bytes: int, last_offset: int, max_timestamp_ms: int, now_ms: int) -> bool:
        """Whether the append belongs into a new segment: this one is full, old, or cannot index its offset."""
        config = self.config
        size_bytes = self.size_bytes
        if (
            size_bytes > config.segment_bytes - append_bytes
            or last_offset - self.base_offset > RELATIVE_OFFSET_MAX
            or self._are_indexes_full
        ):
            return True
        if not size_bytes:
            return False
        # How long the segment is in use: by the records' own time where they have one.
        first_timestamp_ms = self._first_timestamp_ms
        if first_timestamp_ms is None:
            first_timestamp_ms = self.read_age()
        age_ms = max_timestamp_ms - first_timestamp_ms if first_timestamp_ms >= 0 else now_ms - self._created_ms
        return age_ms > config.segment_ms - self.jitter_ms

    def is_rolled_within(self, first_timestamp_ms: int, max_timestamp_ms: int) -> bool:
        """Whether one of several batches, the first of this segment with that timestamp, may belong into the next, as
        the segment is as old as its first batch says."""
        return first_timestamp_ms < 0 or max_timestamp_ms - first_timestamp_ms > self.config.segment_ms - self.jitter_ms

    def append(self, records: Buffer, last_offset: int, max_timestamp_ms: int, *, writes_at_once: bool = False) -> None:
        """Adds one whole batch, which ends with `last_offset`; `records` may change when this returns. With
        `writes_at_once` it does not join others, however small it is.

        Raises OSError, and then nothing has changed; ValueError for an offset that is not behind the last, or that the
        indexes cannot hold.
        """
        if not self.next_offset <= last_offset <= self.base_offset + RELATIVE_OFFSET_MAX:
            raise self._wrong_offset(last_offset)
        self._add(records, writes_at_once=writes_at_once)
        self._note(self.size_bytes, len(records), last_offset, max_timestamp_ms)

    def append_batches(self, records: Buffer, places: Sequence[BatchPlace], *, writes_at_once: bool = False) -> None:
        """Adds several whole batches with one write, as a follower gets them, or a leader from many producers;
        otherwise as `append`.

        `places` are all batches in `records`, in order.
        """
        next_offset = self.next_offset
        offset_max = self.base_offset + RELATIVE_OFFSET_MAX
        for _, last_offset, _ in places:
            if not next_offset <= last_offset <= offset_max:
                raise self._wrong_offset(last_offset)
            next_offset = last_offset + 1
        self._add(records, writes_at_once=writes_at_once)
        self._note_all(places)

    def _wrong_offset(self, last_offset: int) -> ValueError:
        return ValueError(
            f"offset {last_offset} cannot be appended to {self.path}, which goes on at {self.next_offset}"
        )

    def _add(self, records: Buffer, *, writes_at_once: bool = False) -> None:
        append_bytes = len(records)
        if append_bytes < SMALL_APPEND_BYTES and not writes_at_once:
            if len(self.pending) >= PENDING_BYTES_MAX:
                self.write_pending()
            self.pending += records
        else:
            if self.pending:
                self.write_pending()
            self._write(records)

    def write_pending(self) -> None:
        """Brings the small appends to the file. Raises OSError, and then they are pending still."""
        if self.pending:
            self._write(self.pending)
            self.pending = bytearray()

    def prepare_sync(self) -> SyncWork:
        """Brings everything to the files, and says what must be synced. The segment stays open until that is done."""
        self.write_pending()
        self._write_indexes()
        descriptors = [self._open(), self.offset_index.descriptor(), self.time_index.descriptor()]
        if self.transaction_index.is_open:
            descriptors.append(self.transaction_index.descriptor())
        return SyncWork(tuple(descriptors), self.directory)

    def data_descriptor(self) -> int:
        """Brings everything to the file of the batches, and gives its descriptor. For the active segment its sync is
        enough, since a recovery builds the indexes of that one anew.
        """
        self.write_pending()
        return self._open()

    # Reading.

    def plan_read(
        self, offset: int, bytes_max: int, end_position: int | None = None, *, has_minimum: bool = False
    ) -> ReadPlan | None:
        """Where the batches from the one with `offset` on lie, at most `bytes_max` bytes and none behind `end_position`
        (the whole segment where that is None).

        `has_minimum` lets the first batch be larger than `bytes_max`, so that a reader gets on. None where the segment
        ends before `offset`. Searching reads from the file on the loop: a few KiB that an index entry points to.
        """
        found = self._locate(offset)
        if found is None:
            return None
        end_position = self.size_bytes if end_position is None else min(end_position, self.size_bytes)
        first_bytes = found.size_bytes
        length_bytes = max(bytes_max, first_bytes) if has_minimum else bytes_max
        available = max(0, min(end_position - found.position, length_bytes))
        return ReadPlan(self._open(), found.position, available, available < first_bytes, self, self.cut_count)

    def position_of(self, offset: int) -> int:
        """Where the batch with `offset`, or the next after it, begins; the size of the segment where there is none."""
        found = self._locate(offset)
        return self.size_bytes if found is None else found.position

    def plan_timestamp_search(self, timestamp_ms: int, from_offset: int) -> TimestampSearch | None:
        """Where to search for the first record from `from_offset` on that is not older than `timestamp_ms`.

        None where this segment has none that is as young; a search may still find none from `from_offset` on.
        """
        if self.max_timestamp.timestamp_ms < timestamp_ms:
            return None
        self.write_pending()
        start = max(self.time_index.lookup(timestamp_ms - 1).offset, from_offset)
        position = self.offset_index.lookup(start).position
        return TimestampSearch(self._open(), position, self.size_bytes, timestamp_ms, from_offset)

    def batches(self, position: int = 0) -> Iterator[Batch]:
        """The batches from a batch's position on. Belongs off the loop."""
        self.write_pending()
        for _, batch in scan_batches(self._files, self._open(), position, self.size_bytes):
            yield batch

    # Truncating.

    def truncate_to(self, offset: int) -> int:
        """Drops the batches from the one with `offset` on, whole; returns the count of bytes."""
        position = self.position_of(offset)
        cut_bytes = self.size_bytes - position
        if not cut_bytes:
            return 0
        self.cut_count += 1
        self._cut(position)
        self._written_bytes = position
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.transaction_index.truncate_to(offset)
        if not position:
            self._first_timestamp_ms = None
        self.next_offset = self.base_offset
        self.max_timestamp = self.time_index.last
        # What the time index does not know of the records that are left lies behind its last entry.
        start = min(self.offset_index.last, self.offset_index.lookup(self.time_index.last.offset))
        self._take_over(start.position)
        return cut_bytes

    # Inside.

    def _write_indexes(self) -> None:
        self.offset_index.write()
        self.time_index.write()
        self.transaction_index.write()

    def _open(self) -> int:
        if self._descriptor is None:
            self._descriptor = self._files.open(self.path, os.O_RDWR)
            self._written_bytes = self._files.size(self._descriptor)
            self.size_bytes = self._written_bytes + len(self.pending)
        return self._descriptor

    def _write(self, data: Buffer) -> None:
        descriptor = self._descriptor
        if descriptor is None:
            descriptor = self._open()
        position = self._written_bytes
        try:
            write_all(self._files, descriptor, data, position)
        except OSError:
            self._cut(position)
            raise
        self._written_bytes = position + len(data)

    def _cut(self, position: int) -> None:
        descriptor = self._open()
        if self._files.size(descriptor) > position:
            self._files.truncate(descriptor, position)

    def _note(self, position: int, append_bytes: int, last_offset: int, max_timestamp_ms: int) -> None:
        """Takes a batch into the figures and the indexes."""
        if not position:
            self._first_timestamp_ms = max_timestamp_ms
        self.size_bytes = position + append_bytes
        self.next_offset = last_offset + 1
        if max_timestamp_ms > self.max_timestamp[0]:
            self.max_timestamp = TimestampOffset(max_timestamp_ms, last_offset)
        self._recent_last_offsets.append(last_offset)
        self._recent_positions.append(position)
        if len(self._recent_positions) > 2 * RECENT_BATCHES_MAX:
            del self._recent_last_offsets[:RECENT_BATCHES_MAX]
            del self._recent_positions[:RECENT_BATCHES_MAX]
        if self._bytes_since_index_entry > self.config.index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.append_larger(*self.max_timestamp)
            self._bytes_since_index_entry = 0
            self._are_indexes_full = self.offset_index.is_full or self.time_index.is_full
        self._bytes_since_index_entry += append_bytes

    def _note_all(self, places: Sequence[BatchPlace]) -> None:
        """`_note` for each of several batches, in order."""
        position = self.size_bytes
        if not position:
            _, _, self._first_timestamp_ms = places[0]
        latest_ms, latest_offset = self.max_timestamp
        bytes_since_entry, interval_bytes = self._bytes_since_index_entry, self.config.index_interval_bytes
        last_offset = self.next_offset - 1
        note_offset, note_position = self._recent_last_offsets.append, self._recent_positions.append
        for size_bytes, last_offset, max_timestamp_ms in places:
            note_offset(last_offset)
            note_position(position)
            if max_timestamp_ms > latest_ms:
                latest_ms, latest_offset = max_timestamp_ms, last_offset
            if bytes_since_entry > interval_bytes:
                self.offset_index.append(last_offset, position)
                self.time_index.append_larger(latest_ms, latest_offset)
                bytes_since_entry = 0
            bytes_since_entry += size_bytes
            position += size_bytes
        self.size_bytes = position
        self.next_offset = last_offset + 1
        self.max_timestamp = TimestampOffset(latest_ms, latest_offset)
        self._bytes_since_index_entry = bytes_since_entry
        self._are_indexes_full = self.offset_index.is_full or self.time_index.is_full
        excess = len(self._recent_positions) - RECENT_BATCHES_MAX - 1
        if excess >= RECENT_BATCHES_MAX:
            forgotten = excess - excess % RECENT_BATCHES_MAX
            del self._recent_last_offsets[:forgotten]
            del self._recent_positions[:forgotten]

    def _take_over(self, position: int) -> None:
        """Learns from the batches behind the last index entries what those do not say."""
        self.size_bytes = self._written_bytes
        self._are_indexes_full = self.offset_index.is_full or self.time_index.is_full
        self._forget_recent()
        for _, batch in scan_batches(self._files, self._open(), position, self._written_bytes):
            self.next_offset = batch.last_offset + 1
            if batch.max_timestamp_ms > self.max_timestamp.timestamp_ms:
                self.max_timestamp = TimestampOffset(batch.max_timestamp_ms, batch.last_offset)
        self._bytes_since_index_entry = 0

    def _forget_recent(self) -> None:
        del self._recent_last_offsets[:]
        del self._recent_positions[:]

    def read_age(self) -> int:
        """Reads the timestamp from which on the age counts, and returns it. Belongs off the loop."""
        if self._first_timestamp_ms is None:
            self.write_pending()
            first = next(scan_batches(self._files, self._open(), 0, self.size_bytes), None)
            self._first_timestamp_ms = NO_TIMESTAMP if first is None else first[1].max_timestamp_ms
        return self._first_timestamp_ms

    @property
    def first_timestamp_ms(self) -> int | None:
        """The largest timestamp of the first batch, -1 where it has none; None where it was not read yet."""
        return self._first_timestamp_ms

    def learn_first_timestamp(self, timestamp_ms: int) -> None:
        """Takes over what `read_first_timestamp` has found."""
        if self._first_timestamp_ms is None:
            self._first_timestamp_ms = timestamp_ms

    def _locate(self, offset: int) -> _Place | None:
        """The first batch that ends with `offset` or later. Reads headers only, whatever size the batches have."""
        if offset >= self.next_offset:
            return None
        self.write_pending()
        recent, positions = self._recent_last_offsets, self._recent_positions
        if recent and (offset > recent[0] or not positions[0]):
            number = bisect_left(recent, offset)
            position = positions[number]
            end = positions[number + 1] if number + 1 < len(positions) else self.size_bytes
            return _Place(position, end - position)
        position = self.offset_index.lookup(offset).position
        place = find_batch(self._files, self._open(), position, self.size_bytes, offset, self.path)
        return None if place is None else _Place(*place)
