"""The `Files` port on the operating system's files."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct

from barnabas.kernel.host import FileStatus

# struct flock with 64-bit offsets: type, whence, start, length, process id, padding.
_FLOCK = struct.Struct("hhqqi4x")
_LOCK_HELD = frozenset({errno.EACCES, errno.EAGAIN})


def _sync_to_device(descriptor: int) -> None:
    """macOS: plain fsync leaves the bytes in the drive's cache; F_FULLFSYNC empties it."""
    fcntl.fcntl(descriptor, getattr(fcntl, "F_FULLFSYNC"))  # noqa: B009 - the name exists on macOS alone


_sync = _sync_to_device if hasattr(fcntl, "F_FULLFSYNC") else os.fsync


class RealFiles:
    """The `Files` port on the operating system.

    What the hot path calls is the function of `os` itself, so `files.write(...)` costs no frame of Python.
    """

    __slots__ = ()

    close = staticmethod(os.close)
    read = staticmethod(os.read)
    write = staticmethod(os.write)
    writev = staticmethod(os.writev)
    pread = staticmethod(os.pread)
    preadv = staticmethod(os.preadv)
    pwrite = staticmethod(os.pwrite)
    truncate = staticmethod(os.ftruncate)
    fsync = staticmethod(_sync)
    fdatasync = staticmethod(getattr(os, "fdatasync", _sync))
    exists = staticmethod(os.path.exists)
    rename = staticmethod(os.replace)
    unlink = staticmethod(os.unlink)
    remove_directory = staticmethod(os.rmdir)

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        return os.open(path, flags, mode)

    def reserve(self) -> int:
        return os.open(os.devnull, os.O_RDWR)

    def open_as(self, descriptor: int, path: str, flags: int) -> None:
        opened = os.open(path, flags, 0o644)
        try:
            os.dup2(opened, descriptor, inheritable=False)
        finally:
            os.close(opened)

    def size(self, descriptor: int) -> int:
        return os.fstat(descriptor).st_size

    def lock(self, descriptor: int) -> bool:
        """Locks of open file descriptions where there are such.

        They exclude Java's locks (of whole processes, which `flock` would not see) and, unlike those, end with this
        descriptor alone: not when anything else in the process closes another descriptor of the same file.
        """
        command = getattr(fcntl, "F_OFD_SETLK", None)
        try:
            if command is None:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            else:
                fcntl.fcntl(descriptor, command, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        except OSError as error:
            if error.errno in _LOCK_HELD:
                return False
            raise
        return True

    def status(self, path: str) -> FileStatus:
        found = os.stat(path)
        return FileStatus(
            size_bytes=found.st_size,
            modified_ms=found.st_mtime_ns // 1_000_000,
            is_directory=stat.S_ISDIR(found.st_mode),
        )

    def list_directory(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_directories(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def fsync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _sync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def total_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_blocks * found.f_frsize
