"""The logs of a simulated broker, read from outside: from its disk, without a word to the broker."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from barnabas.coordinators.group.records import OffsetKey, read_key, read_offset_value
from barnabas.testing.cluster_history import RecordId, StoredBatch, StoredRecord
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.record_errors import RecordsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barnabas.testing.simulated_disk import Node, SimulatedDisk
    from barnabas.wire.records import Record
    from barnabas.wire.topics import TopicPartition

_HEADER: Final = struct.Struct(">qiibIhi")
_HEADER_BYTES: Final = 61
_LOG_OVERHEAD_BYTES: Final = 12
_SEGMENT_SUFFIX: Final = ".log"


class StoredLog:
    """One replica's log on a disk, which may change between two calls.

    `read` goes on where the last call stopped, as long as nothing was truncated there: after that, and for another
    process of the broker, make a new one.
    """

    def __init__(self, disk: SimulatedDisk, directories: Sequence[str], partition: TopicPartition) -> None:
        self._disk = disk
        self._paths = [f"{directory}/{partition.topic}-{partition.partition}" for directory in directories]
        self._segment = -1
        self._position = 0
        self.end_offset = 0
        """Behind the last batch that `read` gave."""

    def read(self, end_offset: int | None = None) -> tuple[StoredBatch, ...]:
        """The batches from there on that were not given yet, up to `end_offset` or to the first damaged one."""
        found: list[StoredBatch] = []
        for base_offset, node in self._segments():
            if base_offset < self._segment:
                continue
            if base_offset > self._segment:
                self._segment, self._position = base_offset, 0
            for batch, size_bytes in _batches(node.content, self._position):
                if end_offset is not None and batch.last_offset >= end_offset:
                    return tuple(found)
                found.append(batch)
                self._position += size_bytes
                self.end_offset = batch.last_offset + 1
        return tuple(found)

    @property
    def first_offset(self) -> int:
        """Where the first segment begins; 0 where there is none."""
        return next((base_offset for base_offset, _ in self._segments()), 0)

    def surviving_end_offset(self, starts_at_most_at: int = 0) -> int:
        """Behind the last batch that is whole, with its checksum, and follows on the one before. What lies before
        `starts_at_most_at` may be gone.
        """
        end_offset = min(self.first_offset, starts_at_most_at)
        for base_offset, node in self._segments():
            if base_offset != end_offset:
                break
            position = 0
            for batch, size_bytes in _batches(node.content, 0):
                if batch.base_offset != end_offset or not _is_whole(node.content, position, size_bytes):
                    return end_offset
                end_offset = batch.last_offset + 1
                position += size_bytes
            if position != len(node.content):
                break
        return end_offset

    def synced_end_offset(self) -> int | None:
        """Where the first batch begins that is not on the disk as a whole: power may fail and take it. None where
        everything is there. That a file's name may be lost is left aside.
        """
        for base_offset, node in self._segments():
            size_bytes = min((change.offset for change in node.changes if not change.durable), default=None)
            if size_bytes is None:
                continue
            end_offset, position = base_offset, 0
            for batch, batch_bytes in _batches(node.content, 0):
                position += batch_bytes
                if position > size_bytes:
                    break
                end_offset = batch.last_offset + 1
            return end_offset
        return None

    def records(self) -> tuple[StoredRecord, ...]:
        """Every record."""
        return tuple(StoredRecord(record.offset, RecordId.of_value(record.value)) for record in self._raw_records())

    def group_offsets(self) -> Iterator[tuple[str, TopicPartition, int]]:
        """Every offset that was written, of the partition as one of `__consumer_offsets`: group, partition, offset."""
        for record in self._raw_records():
            key = read_key(record.key or b"")
            if isinstance(key, OffsetKey) and record.value is not None:
                yield key.group_id, key.partition, read_offset_value(record.value).offset

    def raw_batches(self) -> Iterator[RecordBatch]:
        """Every batch, with what it says of its producer."""
        for _, node in self._segments():
            position = 0
            for _, size_bytes in _batches(node.content, 0):
                yield RecordBatch(bytes(node.content[position : position + size_bytes]))
                position += size_bytes

    def _raw_records(self) -> Iterator[Record]:
        for batch in self.raw_batches():
            if not batch.is_control:
                yield from batch.records()

    def keyed_records(self) -> Iterator[Record]:
        """Every record as it is."""
        return self._raw_records()

    @property
    def exists(self) -> bool:
        """There is a directory of that name."""
        return any(self._disk.find(path) is not None for path in self._paths)

    def _segments(self) -> list[tuple[int, Node]]:
        for path in self._paths:
            directory = self._disk.find(path)
            if directory is not None and directory.entries is not None:
                return sorted(
                    (int(name.removesuffix(_SEGMENT_SUFFIX)), node)
                    for name, node in directory.entries.items()
                    if name.endswith(_SEGMENT_SUFFIX)
                )
        return []


def _batches(content: bytearray, position: int) -> Iterator[tuple[StoredBatch, int]]:
    """The batches from a position on with their sizes, as far as the sizes make sense."""
    end = len(content)
    while position + _HEADER_BYTES <= end:
        base_offset, length, epoch, magic, crc, _, last_offset_delta = _HEADER.unpack_from(content, position)
        size_bytes = _LOG_OVERHEAD_BYTES + length
        if size_bytes < _HEADER_BYTES or position + size_bytes > end or magic != 2:
            return
        yield StoredBatch(base_offset, base_offset + last_offset_delta, epoch, crc), size_bytes
        position += size_bytes


def _is_whole(content: bytearray, position: int, size_bytes: int) -> bool:
    try:
        RecordBatch(bytes(content[position : position + size_bytes])).verify()
    except RecordsError:
        return False
    return True
