"""How much of files is in the kernel's page cache, and how to bring them there (Linux)."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_CACHESTAT: Final = 451
"""The number of the system call, which is the same on all architectures; Linux has it since 6.5."""
_PIECE_BYTES: Final = 4 * 1024 * 1024


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Pages(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    )


def cached_part(paths: Iterable[Path]) -> float | None:
    """Of the bytes of all these files, from 0 to 1; None where the kernel does not tell."""
    sizes = [(path, path.stat().st_size) for path in paths]
    try:
        cached = sum(min(size, _cached_bytes(path)) for path, size in sizes)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP):
            return None
        raise
    return cached / max(1, sum(size for _, size in sizes))


def read_through(paths: Iterable[Path]) -> None:
    """Reads all of these files once, so that the cache has them if it keeps them."""
    piece = bytearray(_PIECE_BYTES)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(piece):
                pass


def _cached_bytes(path: Path) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    found = _Pages()
    with path.open("rb") as file:
        # A length of 0 is all of the file.
        wanted = _Range(0, 0)
        if library.syscall(_CACHESTAT, file.fileno(), ctypes.byref(wanted), ctypes.byref(found), 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    return int(found.cached) * os.sysconf("SC_PAGE_SIZE")
