"""Small files, read whole and replaced whole."""

from __future__ import annotations

import os

from barnabas.kernel.host import Buffer, Files

_READ_BYTES = 1 << 20


def read_file(files: Files, path: str, bytes_max: int | None = None) -> bytes:
    """The contents of a file. Raises OSError, and ValueError for a file of more than `bytes_max`."""
    descriptor = files.open(path, os.O_RDONLY)
    try:
        parts = []
        size_bytes = 0
        while part := files.read(descriptor, _READ_BYTES):
            parts.append(part)
            size_bytes += len(part)
            if bytes_max is not None and size_bytes > bytes_max:
                raise ValueError(f"{path} has more than {bytes_max} bytes")
        return b"".join(parts)
    finally:
        files.close(descriptor)


def write_all(files: Files, descriptor: int, data: Buffer, position: int) -> None:
    """Writes all of `data` at `position`, in as many writes as it takes."""
    written = files.pwrite(descriptor, data, position)
    if written == len(data):
        return
    view = memoryview(data)[written:]
    position += written
    while view:
        written = files.pwrite(descriptor, view, position)
        view = view[written:]
        position += written


def read_at(files: Files, descriptor: int, size_bytes: int, position: int) -> bytes:
    """Up to `size_bytes` bytes from `position` on: fewer only where the file ends."""
    data = files.pread(descriptor, size_bytes, position)
    if len(data) in (size_bytes, 0):
        return data
    parts = [data]
    while data and (size_bytes := size_bytes - len(data)):
        position += len(data)
        data = files.pread(descriptor, size_bytes, position)
        parts.append(data)
    return b"".join(parts)


def write_new(files: Files, path: str, data: bytes) -> None:
    """Writes a file, in place of one that is there, and fsyncs it; its name is durable after `fsync_directory`."""
    descriptor = files.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(files, descriptor, data, 0)
        files.fsync(descriptor)
    finally:
        files.close(descriptor)


def replace_file(files: Files, path: str, data: bytes) -> None:
    """Replaces a file so that a crash at any moment leaves the old contents or the new, and never a mixture.

    It is written beside (`.tmp`), fsynced, renamed, and the directory fsynced: when this returns, the new contents
    survive a loss of power. Belongs off the loop.
    """
    temporary = f"{path}.tmp"
    write_new(files, temporary, data)
    files.rename(temporary, path)
    files.fsync_directory(os.path.dirname(path) or ".")
