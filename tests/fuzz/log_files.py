"""Target `log-files`: indexes, producer snapshots and checkpoints of log directories."""

from __future__ import annotations

import struct
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from barnabas.kernel.real_files import RealFiles
from barnabas.log.directories.checkpoints import (
    CorruptCheckpointError,
    EpochEntry,
    format_epochs,
    format_offsets,
    parse_epochs,
    parse_offsets,
)
from barnabas.log.producers.producer_snapshot import (
    CorruptSnapshotError,
    ProducerSnapshotEntry,
    format_snapshot,
    parse_snapshot,
)
from barnabas.log.segments.index_file import CorruptIndexError
from barnabas.log.segments.indexes import AbortedTransaction, OffsetIndex, TimeIndex, TransactionIndex
from barnabas.wire.crc import crc32c
from barnabas.wire.topics import TopicPartition

FILES: Final = RealFiles()
BASE_OFFSET: Final = 1_000
_SNAPSHOT_HEAD: Final = struct.Struct(">hI")
_ERRORS: Final = (CorruptCheckpointError, CorruptIndexError, CorruptSnapshotError)


def check_log_files(data: bytes) -> bool:
    """A byte that chooses the kind of file, then the file."""
    if not data:
        return False
    try:
        _CHECKS[data[0] % len(_CHECKS)](data[1:])
    except _ERRORS:
        return False
    return True


def _check_snapshot(data: bytes) -> None:
    entries = parse_snapshot(data)
    if format_snapshot(entries) != data:
        raise AssertionError("a producer snapshot is not the same when it is written again")


def _check_snapshot_put_right(data: bytes) -> None:
    """With the version and the checksum that it needs, which no fuzzer guesses."""
    if len(data) >= _SNAPSHOT_HEAD.size:
        _check_snapshot(_SNAPSHOT_HEAD.pack(1, crc32c(data[_SNAPSHOT_HEAD.size :])) + data[_SNAPSHOT_HEAD.size :])


def _check_offsets(data: bytes) -> None:
    offsets = parse_offsets(data, "a checkpoint")
    if parse_offsets(format_offsets(offsets), "written again") != offsets:
        raise AssertionError("an offset checkpoint is not the same when it is written again")


def _check_epochs(data: bytes) -> None:
    epochs = parse_epochs(data, "a checkpoint")
    if parse_epochs(format_epochs(epochs), "written again") != epochs:
        raise AssertionError("a leader epoch checkpoint is not the same when it is written again")


def _check_offset_index(data: bytes) -> None:
    index = OffsetIndex(FILES, _file(data), BASE_OFFSET, max(8, len(data)))
    try:
        index.load()
        for offset in (0, BASE_OFFSET, BASE_OFFSET + 10, index.last.offset):
            index.lookup(offset)
            index.first_from_position(offset)
        index.truncate_to(index.last.offset)
    finally:
        index.close()


def _check_time_index(data: bytes) -> None:
    index = TimeIndex(FILES, _file(data), BASE_OFFSET, max(12, len(data)))
    try:
        index.load()
        for timestamp_ms in (-1, 0, 10, index.last.timestamp_ms):
            index.lookup(timestamp_ms)
        index.truncate_to(index.last.offset)
    finally:
        index.close()


def _check_transaction_index(data: bytes) -> None:
    index = TransactionIndex(FILES, _file(data), BASE_OFFSET)
    try:
        index.load()
        index.collect(BASE_OFFSET, BASE_OFFSET + 1_000)
        if list(index):
            index.truncate_to(index_end := max(each.last_offset for each in index))
            if any(each.last_offset >= index_end for each in index):
                raise AssertionError(f"transactions were kept that end at {index_end} or later")
    finally:
        index.close()


_CHECKS: Final = (
    _check_snapshot,
    _check_snapshot_put_right,
    _check_offsets,
    _check_epochs,
    _check_offset_index,
    _check_time_index,
    _check_transaction_index,
)


@cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="barnabas-fuzz-")


def _file(data: bytes) -> str:
    path = Path(_directory().name) / "fuzzed.index"
    path.write_bytes(data)
    return str(path)


def log_file_seeds() -> list[bytes]:
    """Two or three of each kind."""
    entry = ProducerSnapshotEntry(1, 0, 5, 1_005, 2, 1_600_000_000_000, -1, -1)
    offsets = {TopicPartition("topic", 0): 12, TopicPartition("another", 3): 1 << 40}
    contents: list[list[bytes]] = [
        [format_snapshot([]), format_snapshot([entry, entry._replace(producer_id=7)])],
        [format_snapshot([entry])],
        [b"", format_offsets({}), format_offsets(offsets)],
        [b"", format_epochs([]), format_epochs([EpochEntry(0, 0), EpochEntry(3, 1_200)])],
        [b"", struct.pack(">iiii", 5, 0, 9, 4_096)],
        [b"", struct.pack(">qiqi", 10, 5, 20, 9)],
        [b"", struct.pack(">hqqqq", 0, *AbortedTransaction(1, 1_000, 1_010, 1_000))],
    ]
    return [bytes([kind]) + data for kind, each in enumerate(contents) for data in each]
