"""The transaction log: what makes a write durable.

A log is a sequence of files `log.<first zxid, 16 hexadecimal digits>`. Layout, big-endian:

    file    magic `BNBSTXN` and a line feed, version (4 bytes), salt (8), first zxid (8), CRC-32 of all these (4)
    batch   magic `BNBb`, CRC-32 (4), length of the records (4), number of records (4), zxid of the first (8), records
    record  length of the body (4), zxid (8), time in ms since 1970 (8), session id (8), op code (4), body

The CRC of a batch starts from the file's random salt and covers everything behind it, so that no data of a client can
pass for a batch. A batch is written and synced as one, and the next is not written before: so whatever is wrong behind
the last good batch was never acknowledged and is cut off (a torn tail), unless a good batch follows it, which shows
that synced bytes have changed since; then the log is refused.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from barnabas.coordination.errors import CoordinationError
from barnabas.kernel.host import Files

FILE_PREFIX = "log."
_FILE_MAGIC = b"BNBSTXN\n"
_FILE_VERSION = 1
_FILE_HEADER = struct.Struct("!8sI8sQ")
_CRC = struct.Struct("!I")
FILE_HEADER_BYTES = _FILE_HEADER.size + _CRC.size
_BATCH_MAGIC = b"BNBb"
_BATCH_HEADER = struct.Struct("!4sIIIQ")
_BATCH_CHECKED = struct.Struct("!IIQ")  # what of the header the CRC covers
_RECORD_HEADER = struct.Struct("!IqqqI")
_OP_MASK = 0xFFFFFFFF


class CorruptDataError(CoordinationError):
    """Bytes that were durable have changed or are missing. The message says which file and what to do."""


class Record(NamedTuple):
    """One transaction of the log."""

    zxid: int
    time_ms: int
    session_id: int
    op_code: int
    body: bytes


def pack_record(zxid: int, time_ms: int, session_id: int, op_code: int, body: bytes) -> bytes:
    return _RECORD_HEADER.pack(len(body), zxid, time_ms, session_id, op_code & _OP_MASK) + body


@dataclass(frozen=True, slots=True)
class LogContents:
    """What a log file holds: its good batches, and where they end. `torn` is whether bytes follow that are none."""

    path: str
    first_zxid: int
    batches: tuple[tuple[int, int, int], ...]  # start and end of the records, and how many
    good_bytes: int
    torn: bool
    data: bytes

    def last_batch(self) -> tuple[int, memoryview]:
        """Where the last good batch, of which there must be one, begins, and its bytes."""
        start, end, _ = self.batches[-1]
        start -= _BATCH_HEADER.size
        return start, memoryview(self.data)[start:end]

    def records(self) -> Iterator[Record]:
        """Every transaction, in order. Raises `CorruptDataError` where a batch is not what it says it is."""
        data = self.data
        for start, end, count in self.batches:
            position = start
            for _ in range(count):
                if position + _RECORD_HEADER.size > end:
                    raise CorruptDataError(f"{self.path}: a batch ends at byte {end}, within its transactions")
                length, zxid, time_ms, session_id, op_code = _RECORD_HEADER.unpack_from(data, position)
                position += _RECORD_HEADER.size
                signed = op_code - (1 << 32) if op_code >> 31 else op_code
                yield Record(zxid, time_ms, session_id, signed, data[position : position + length])
                position += length
            if position != end:
                raise CorruptDataError(f"{self.path}: a batch ends at byte {position} instead of {end}")


def read_log(path: str, data: bytes) -> LogContents | None:
    """Checks the contents of a log file; None when it ends within its header, so that nothing was ever in it.

    Raises `CorruptDataError` when good batches follow bad bytes, or when the file is none of ours.
    """
    salt_and_zxid = _read_file_header(path, data)
    if salt_and_zxid is None:
        return None
    seed, first_zxid = salt_and_zxid
    batches: list[tuple[int, int, int]] = []
    position = FILE_HEADER_BYTES
    while (batch := _read_batch(data, position, seed)) is not None:
        batches.append(batch)
        position = batch[1]
    torn = position < len(data)
    if torn:
        _refuse_good_batch_after(path, data, position, seed)
    return LogContents(path, first_zxid, tuple(batches), position, torn, data)


def _read_file_header(path: str, data: bytes) -> tuple[int, int] | None:
    """Seed of the CRCs, and the first zxid."""
    if len(data) < FILE_HEADER_BYTES:
        return None
    magic, version, salt, first_zxid = _FILE_HEADER.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _FILE_HEADER.size)
    if crc != zlib.crc32(data[: _FILE_HEADER.size]):
        if _BATCH_MAGIC not in data[FILE_HEADER_BYTES:]:
            return None
        raise CorruptDataError(
            f"{path}: the header is damaged although transactions follow it; restore the data directory from a copy"
        )
    if magic != _FILE_MAGIC or version != _FILE_VERSION:
        raise CorruptDataError(
            f"{path}: version {version} of a transaction log, where this program reads version {_FILE_VERSION};"
            " start the version of Barnabas that wrote it"
        )
    return zlib.crc32(salt), first_zxid


def _read_batch(data: bytes, position: int, seed: int) -> tuple[int, int, int] | None:
    """Start and end of the records, and how many, when a good batch begins at the position."""
    start = position + _BATCH_HEADER.size
    if start > len(data):
        return None
    magic, crc, length, count, first_zxid = _BATCH_HEADER.unpack_from(data, position)
    end = start + length
    if magic != _BATCH_MAGIC or end > len(data):
        return None
    if crc != zlib.crc32(memoryview(data)[start:end], zlib.crc32(_BATCH_CHECKED.pack(length, count, first_zxid), seed)):
        return None
    return start, end, count


def _refuse_good_batch_after(path: str, data: bytes, position: int, seed: int) -> None:
    found = data.find(_BATCH_MAGIC, position + 1)
    while found >= 0:
        if _read_batch(data, found, seed) is not None:
            raise CorruptDataError(
                f"{path}: bytes {position} to {found} are damaged, and acknowledged transactions follow them; the disk"
                " or a program changed the file. Restore the data directory from a copy, or, to give up everything"
                f" after this point, cut the file to {position} bytes and remove the log files after it"
            )
        found = data.find(_BATCH_MAGIC, found + 1)


class LogWriter:
    """Appends batches; its methods run off the loop, one at a time.

    A new file begins with the first batch, and with the first after `roll`.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._descriptor: int | None = None
        self._seed = 0
        self.file_bytes = 0

    def append(self, records: list[bytes], first_zxid: int, salt: bytes | None) -> None:
        """Writes one batch and syncs it. With `salt` (8 random bytes) a new file begins.

        Raises `OSError` when the disk refuses; then the batch must count as unwritten, and nothing may follow it.
        """
        if salt is not None or self._descriptor is None:
            if salt is None:
                raise CoordinationError("the first batch of a log needs a salt")
            self._begin_file(first_zxid, salt)
        payload = b"".join(records)
        checked = _BATCH_CHECKED.pack(len(payload), len(records), first_zxid)
        crc = zlib.crc32(payload, zlib.crc32(checked, self._seed))
        self._write(_BATCH_MAGIC + _CRC.pack(crc) + checked + payload)
        self._files.fdatasync(self._open_descriptor())

    def close(self) -> None:
        if self._descriptor is not None:
            self._files.close(self._descriptor)
            self._descriptor = None

    def _open_descriptor(self) -> int:
        if self._descriptor is None:
            raise CoordinationError("the log is closed")
        return self._descriptor

    def _begin_file(self, first_zxid: int, salt: bytes) -> None:
        self.close()
        path = f"{self._directory}/{file_name(first_zxid)}"
        self._descriptor = self._files.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self.file_bytes = 0
        header = _FILE_HEADER.pack(_FILE_MAGIC, _FILE_VERSION, salt, first_zxid)
        self._write(header + _CRC.pack(zlib.crc32(header)))
        self._seed = zlib.crc32(salt)
        self._files.fsync(self._descriptor)
        self._files.fsync_directory(self._directory)

    def _write(self, data: bytes) -> None:
        descriptor = self._open_descriptor()
        view = memoryview(data)
        while view:
            written = self._files.write(descriptor, view)
            view = view[written:]
        self.file_bytes += len(data)


def file_name(first_zxid: int) -> str:
    return f"{FILE_PREFIX}{first_zxid:016x}"


def zxid_of_name(name: str, prefix: str) -> int | None:
    """The zxid in a file's name; None when the name is not of that kind."""
    digits = name.removeprefix(prefix)
    if not name.startswith(prefix) or len(digits) != 16 or any(digit not in "0123456789abcdef" for digit in digits):
        return None
    return int(digits, 16)
