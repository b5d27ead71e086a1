"""A sparse index of a segment: sorted entries of a fixed size in a file, found by halving, without mmap.

New entries collect in memory and reach the file with `write`, which the segment calls before each fsync and when it
rolls or closes. Nothing is lost by that: after an unclean stop, the indexes of every segment that was not flushed are
built again from the log, as Kafka does. Written entries are read from the file, so an old segment costs no memory.
"""

from __future__ import annotations

import os
import struct
from typing import ClassVar

from barnabas.kernel.host import Files
from barnabas.log.directories.files import read_at, write_all


class CorruptIndexError(Exception):
    """An index that cannot be right; it is built again from its segment."""


class IndexFile:
    """One index file. The subclass has the format and gives entries their meaning.

    `size_bytes_max` is `segment.index.bytes`. The descriptor is opened at the first use and held until `close`.
    """

    ENTRY: ClassVar[struct.Struct]

    def __init__(self, files: Files, path: str, base_offset: int, size_bytes_max: int) -> None:
        self._files = files
        self.path = path
        self.base_offset = base_offset
        self._entries_max = size_bytes_max // self.ENTRY.size
        self._descriptor: int | None = None
        self._is_to_be_made = False
        self._written_count = 0
        self._unwritten = bytearray()

    def use_files(self, files: Files) -> None:
        """Has it go on with these, of which its descriptor is, too."""
        self._files = files

    def create(self) -> None:
        """Begins anew, empty. The file is made, or emptied, when it is first written or synced: a partition without
        records, of which there may be thousands, costs no file for its indexes.
        """
        self.close()
        self._is_to_be_made = True
        self._written_count = 0
        self._unwritten.clear()

    def load(self) -> None:
        """Takes over the file that is there. Raises FileNotFoundError, and CorruptIndexError where it is no index."""
        descriptor = self._open()
        size_bytes = self._files.size(descriptor)
        if size_bytes % self.ENTRY.size:
            raise CorruptIndexError(f"{self.path} has {size_bytes} bytes, no multiple of {self.ENTRY.size}")
        self._written_count = size_bytes // self.ENTRY.size
        self._unwritten.clear()
        self._loaded()

    def _loaded(self) -> None:
        """Called when the number of entries has changed otherwise than by an append: the subclass reads its last."""
        raise NotImplementedError

    @property
    def count(self) -> int:
        """Entries, written or not."""
        return self._written_count + len(self._unwritten) // self.ENTRY.size

    @property
    def size_bytes(self) -> int:
        """Of all entries."""
        return self.count * self.ENTRY.size

    def fields(self, number: int) -> tuple[int, int]:
        """The two stored fields of an entry, counted from 0."""
        size = self.ENTRY.size
        if number >= self._written_count:
            first, second = self.ENTRY.unpack_from(self._unwritten, (number - self._written_count) * size)
        else:
            data = read_at(self._files, self._open(), size, number * size)
            if len(data) < size:
                raise CorruptIndexError(f"{self.path} ends before its entry {number}")
            first, second = self.ENTRY.unpack(data)
        return first, second

    def _append(self, first: int, second: int) -> None:
        self._unwritten += self.ENTRY.pack(first, second)

    def last_not_above(self, key: int, column: int) -> int:
        """The number of the last entry whose field in `column` is at most `key`; -1 where none is."""
        low, high = 0, self.count
        written = self._written_count
        if written < high:
            # The last ones are in memory, and are those that most readers look for.
            unwritten, size, unpack_from = self._unwritten, self.ENTRY.size, self.ENTRY.unpack_from
            if unpack_from(unwritten)[column] > key:
                high = written
            else:
                low = written + 1
                while low < high:
                    middle = (low + high) // 2
                    if unpack_from(unwritten, (middle - written) * size)[column] <= key:
                        low = middle + 1
                    else:
                        high = middle
        while low < high:
            middle = (low + high) // 2
            if self.fields(middle)[column] <= key:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def truncate_to_count(self, count: int) -> None:
        """Keeps the first `count` entries."""
        if count >= self.count:
            return
        if count <= self._written_count:
            self._unwritten.clear()
            if count < self._written_count:
                self._files.truncate(self._open(), count * self.ENTRY.size)
                self._written_count = count
        else:
            del self._unwritten[(count - self._written_count) * self.ENTRY.size :]
        self._loaded()

    def write(self) -> None:
        """Brings new entries to the file, which is there then. A failure leaves them to be written again, at the same
        place.
        """
        if self._is_to_be_made:
            self._open()
        if not self._unwritten:
            return
        size = self.ENTRY.size
        write_all(self._files, self._open(), self._unwritten, self._written_count * size)
        self._written_count += len(self._unwritten) // size
        self._unwritten = bytearray()

    def descriptor(self) -> int:
        """For fsync; stays that of this index."""
        return self._open()

    def close(self) -> None:
        """Lets go of the descriptor; entries that `write` did not bring to the file are kept in memory only."""
        if self._descriptor is not None:
            self._files.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        if self._descriptor is None:
            is_new = self._is_to_be_made
            self._descriptor = self._files.open(self.path, os.O_RDWR | (os.O_CREAT | os.O_TRUNC if is_new else 0))
            self._is_to_be_made = False
        return self._descriptor
