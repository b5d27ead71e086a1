"""The three indexes of a segment: offset to position, timestamp to offset, and aborted transactions.

Formats of Apache Kafka 3.9. Offsets in the first two are relative to the base offset of the segment, in 32 bits.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from barnabas.kernel.host import Files
from barnabas.log.directories.files import read_at, write_all
from barnabas.log.segments.index_file import CorruptIndexError, IndexFile
from barnabas.wire.sentinels import NO_TIMESTAMP

RELATIVE_OFFSET_MAX: Final = (1 << 31) - 1


class OffsetPosition(NamedTuple):
    """An offset, and where in the segment's file a batch lies that ends with it or later."""

    offset: int
    position: int


class TimestampOffset(NamedTuple):
    """The largest timestamp up to some place of a segment, and the last offset of the batch that has it."""

    timestamp_ms: int
    offset: int


class AbortedTransaction(NamedTuple):
    """A transaction that was aborted; what a consumer that reads only committed data leaves out."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Of the marker."""
    last_stable_offset: int
    """When the marker was written: where a search may end."""


class OffsetIndex(IndexFile):
    """Entries of 8 bytes: relative offset of the last record of a batch, position of the batch; both increase."""

    ENTRY = struct.Struct(">ii")

    def __init__(self, files: Files, path: str, base_offset: int, size_bytes_max: int) -> None:
        super().__init__(files, path, base_offset, size_bytes_max)
        self.last = OffsetPosition(base_offset, 0)
        """The last entry; base offset and 0 where there is none."""

    def _loaded(self) -> None:
        self.last = self.entry(self.count - 1) if self.count else OffsetPosition(self.base_offset, 0)
        if self.last.offset < self.base_offset or self.last.position < 0:
            raise CorruptIndexError(f"{self.path} ends with {self.last}, before the segment at {self.base_offset}")
        if self.count > 1 and self.last.offset <= self.entry(0).offset:
            # As after a crash of Apache Kafka, which reserves the file in full: zeros follow the entries.
            raise CorruptIndexError(f"{self.path} ends with {self.last}, before its first entry {self.entry(0)}")

    @property
    def is_full(self) -> bool:
        return self.count >= self._entries_max

    def entry(self, number: int) -> OffsetPosition:
        relative, position = self.fields(number)
        return OffsetPosition(self.base_offset + relative, position)

    def append(self, offset: int, position: int) -> None:
        """Raises ValueError for an offset that is not above the last one, or that 32 bits cannot hold."""
        relative = offset - self.base_offset
        if (self.count and offset <= self.last.offset) or not 0 <= relative <= RELATIVE_OFFSET_MAX:
            raise ValueError(f"offset {offset} cannot follow {self.last} in {self.path}")
        self._append(relative, position)
        self.last = OffsetPosition(offset, position)

    def lookup(self, offset: int) -> OffsetPosition:
        """The last entry whose offset is at most `offset`; base offset and position 0 where none is."""
        if self.count and offset >= self.last.offset:
            return self.last
        number = self.last_not_above(offset - self.base_offset, 0)
        return OffsetPosition(self.base_offset, 0) if number < 0 else self.entry(number)

    def first_from_position(self, position: int) -> OffsetPosition | None:
        """The first entry at `position` or behind it: what bounds the offsets before that position."""
        number = self.last_not_above(position - 1, 1) + 1
        return self.entry(number) if number < self.count else None

    def truncate_to(self, offset: int) -> None:
        """Drops the entries from `offset` on."""
        self.truncate_to_count(self.last_not_above(offset - 1 - self.base_offset, 0) + 1)


class TimeIndex(IndexFile):
    """Entries of 12 bytes: timestamp, relative offset; every record after an entry's offset may be younger than it,
    none before is younger.
    """

    ENTRY = struct.Struct(">qi")

    def __init__(self, files: Files, path: str, base_offset: int, size_bytes_max: int) -> None:
        super().__init__(files, path, base_offset, size_bytes_max)
        self.last = TimestampOffset(NO_TIMESTAMP, base_offset)
        """The last entry; NO_TIMESTAMP and the base offset where there is none."""

    def _loaded(self) -> None:
        self.last = self.entry(self.count - 1) if self.count else TimestampOffset(NO_TIMESTAMP, self.base_offset)
        if self.count and (self.last.offset < self.base_offset or self.last.timestamp_ms < self.entry(0).timestamp_ms):
            raise CorruptIndexError(f"{self.path} ends with {self.last}, before its first entry {self.entry(0)}")

    @property
    def is_full(self) -> bool:
        """One entry is kept for the roll."""
        return self.count >= self._entries_max - 1

    def entry(self, number: int) -> TimestampOffset:
        timestamp_ms, relative = self.fields(number)
        return TimestampOffset(timestamp_ms, self.base_offset + relative)

    def append_larger(self, timestamp_ms: int, offset: int) -> None:
        """Adds an entry where the timestamp is larger than the last one's; nothing otherwise."""
        if timestamp_ms <= self.last.timestamp_ms:
            return
        relative = offset - self.base_offset
        if (self.count and offset < self.last.offset) or not 0 <= relative <= RELATIVE_OFFSET_MAX:
            raise ValueError(f"offset {offset} cannot follow {self.last} in {self.path}")
        self._append(timestamp_ms, relative)
        self.last = TimestampOffset(timestamp_ms, offset)

    def lookup(self, timestamp_ms: int) -> TimestampOffset:
        """The last entry that is not younger than `timestamp_ms`; NO_TIMESTAMP and the base offset where none is."""
        number = self.last_not_above(timestamp_ms, 0)
        return TimestampOffset(NO_TIMESTAMP, self.base_offset) if number < 0 else self.entry(number)

    def truncate_to(self, offset: int) -> None:
        """Drops the entries from `offset` on."""
        self.truncate_to_count(self.last_not_above(offset - 1 - self.base_offset, 1) + 1)


class TransactionIndex:
    """The aborted transactions whose markers are in the segment, in the order of the markers.

    Entries are read at load and kept: there are few. As in the other indexes new ones reach the file with `write`, and
    the file comes into being with the first of them.
    """

    _ENTRY: Final = struct.Struct(">hqqqq")
    _VERSION: Final = 0

    def __init__(self, files: Files, path: str, base_offset: int) -> None:
        self._files = files
        self.path = path
        self._base_offset = base_offset
        self._entries: list[AbortedTransaction] = []
        self._written_count = 0
        self._descriptor: int | None = None

    def use_files(self, files: Files) -> None:
        """Has it go on with these, of which its descriptor is, too."""
        self._files = files

    def load(self) -> None:
        """Reads the file where there is one. Raises CorruptIndexError."""
        self._entries = []
        self._written_count = 0
        if not self._files.exists(self.path):
            return
        descriptor = self._open()
        data = read_at(self._files, descriptor, self._files.size(descriptor), 0)
        if len(data) % self._ENTRY.size:
            raise CorruptIndexError(f"{self.path} has {len(data)} bytes, no multiple of {self._ENTRY.size}")
        for version, *fields in self._ENTRY.iter_unpack(data):
            entry = AbortedTransaction._make(fields)
            if version != self._VERSION:
                raise CorruptIndexError(f"{self.path} has an entry of version {version}; only version 0 is known")
            if entry.last_offset < self._base_offset:
                raise CorruptIndexError(f"{self.path} has {entry}, which is before the segment")
            self._entries.append(entry)
        self._written_count = len(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return iter(self._entries)

    def append(self, aborted: AbortedTransaction) -> None:
        """Adds an entry. Raises ValueError where its marker does not follow the last one's."""
        if self._entries and aborted.last_offset <= self._entries[-1].last_offset:
            raise ValueError(f"{aborted} cannot follow {self._entries[-1]} in {self.path}")
        self._entries.append(aborted)

    def write(self) -> None:
        """Brings new entries to the file. A failure leaves them to be written again, at the same place."""
        unwritten = self._entries[self._written_count :]
        if unwritten:
            data = b"".join([self._ENTRY.pack(self._VERSION, *entry) for entry in unwritten])
            write_all(self._files, self._open(), data, self._written_count * self._ENTRY.size)
            self._written_count = len(self._entries)

    def collect(self, from_offset: int, end_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """The transactions that overlap the offsets from `from_offset` up to, not including, `end_offset`.

        The second value says that no later segment can have more.
        """
        found = []
        for entry in self._entries:
            if entry.last_offset >= from_offset and entry.first_offset < end_offset:
                found.append(entry)
            if entry.last_stable_offset >= end_offset:
                return found, True
        return found, False

    def truncate_to(self, offset: int) -> None:
        """Drops the entries whose markers are at `offset` or later."""
        kept = [entry for entry in self._entries if entry.last_offset < offset]
        if len(kept) < self._written_count:
            self._files.truncate(self._open(), len(kept) * self._ENTRY.size)
            self._written_count = len(kept)
        self._entries = kept

    def clear(self) -> None:
        """Drops everything, also what `load` could not read."""
        self._entries = []
        self._written_count = 0
        if self._files.exists(self.path):
            self._files.truncate(self._open(), 0)

    @property
    def is_open(self) -> bool:
        """Whether a descriptor is held: that there is a file that was written or read."""
        return self._descriptor is not None

    def descriptor(self) -> int:
        """For fsync, where `is_open`."""
        return self._open()

    def close(self) -> None:
        if self._descriptor is not None:
            self._files.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        if self._descriptor is None:
            self._descriptor = self._files.open(self.path, os.O_RDWR | os.O_CREAT)
        return self._descriptor
