"""The files of one node of a cluster in this process: they can be slow, and are lost to a node that was killed."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from barnabas.kernel.host import READ_CACHED_ONLY, Buffer, FileStatus
from barnabas.kernel.real_files import RealFiles

SECONDS_MAX: Final = 60.0
"""The longest that one call may be made to take."""


def check_slowness(seconds: float) -> None:
    """Raises ValueError for what no disk can be made slower by."""
    if not 0 <= seconds <= SECONDS_MAX:
        raise ValueError(f"a disk can be made slower by 0 to {SECONDS_MAX:g} s for each call, not {seconds:g}")


class NodeFiles:
    """The `Files` port of one node.

    Every open descriptor is known, so that `cut_off` can end the node's access, as the end of its process would:
    nothing that it does afterwards reaches a file. Without `durable`, nothing is synced: what was written survives the
    node's end, as it survives `kill -9`, but not a loss of power.
    """

    def __init__(self, *, durable: bool) -> None:
        self._files = RealFiles()
        self._durable = durable
        self._lock = threading.Lock()
        self._open: set[int] = set()
        self._seconds = 0.0
        self._waiting = threading.Event()
        """Set for the calls that wait when there is something else to wait for."""
        self._is_cut = False

    def slow_down(self, seconds: float) -> None:
        """Has each call that writes, syncs, or reads what may not be cached take so much longer; 0 ends it. Calls that
        wait go on. On any thread.
        """
        check_slowness(seconds)
        self._seconds = seconds
        self._let_go_on()

    def cut_off(self) -> None:
        """No call reaches a file from now on; calls that are under way end."""
        self._is_cut = True
        self._let_go_on()

    def close_all(self) -> None:
        """After `cut_off`, when no thread of the node is in a call any more: closes what the node had open."""
        with self._lock:
            descriptors, self._open = self._open, set()
        for descriptor in descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    @property
    def open_files(self) -> int:
        """How many descriptors are open."""
        return len(self._open)

    def descriptors(self) -> list[int]:
        """Those that are open."""
        return list(self._open)

    # The port.

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        self._check()
        descriptor = self._files.open(path, flags, mode)
        with self._lock:
            self._open.add(descriptor)
        return descriptor

    def reserve(self) -> int:
        self._check()
        descriptor = self._files.reserve()
        with self._lock:
            self._open.add(descriptor)
        return descriptor

    def open_as(self, descriptor: int, path: str, flags: int) -> None:
        self._check()
        self._files.open_as(descriptor, path, flags)

    def close(self, descriptor: int, /) -> None:
        self._check()
        with self._lock:
            self._open.discard(descriptor)
        os.close(descriptor)

    def read(self, descriptor: int, count: int, /) -> bytes:
        self._wait()
        return os.read(descriptor, count)

    def write(self, descriptor: int, data: Buffer, /) -> int:
        self._wait()
        return os.write(descriptor, data)

    def writev(self, descriptor: int, buffers: Sequence[Buffer], /) -> int:
        self._wait()
        return os.writev(descriptor, buffers)

    def pread(self, descriptor: int, count: int, offset: int, /) -> bytes:
        self._wait()
        return os.pread(descriptor, count, offset)

    def preadv(self, descriptor: int, buffers: Sequence[bytearray | memoryview], offset: int, flags: int = 0, /) -> int:
        if flags & READ_CACHED_ONLY:
            self._check()  # what is cached needs no disk
        else:
            self._wait()
        return self._files.preadv(descriptor, buffers, offset, flags)

    def pwrite(self, descriptor: int, data: Buffer, offset: int, /) -> int:
        self._wait()
        return os.pwrite(descriptor, data, offset)

    def truncate(self, descriptor: int, size_bytes: int, /) -> None:
        self._wait()
        os.ftruncate(descriptor, size_bytes)

    def fsync(self, descriptor: int, /) -> None:
        self._sync(self._files.fsync, descriptor)

    def fdatasync(self, descriptor: int, /) -> None:
        self._sync(self._files.fdatasync, descriptor)

    def fsync_directory(self, path: str) -> None:
        self._sync(self._files.fsync_directory, path)

    def size(self, descriptor: int) -> int:
        self._check()
        return self._files.size(descriptor)

    def lock(self, descriptor: int) -> bool:
        self._check()
        return self._files.lock(descriptor)

    def status(self, path: str) -> FileStatus:
        self._check()
        return self._files.status(path)

    def exists(self, path: str) -> bool:
        self._check()
        return os.path.exists(path)

    def list_directory(self, path: str) -> list[str]:
        self._check()
        return self._files.list_directory(path)

    def make_directories(self, path: str) -> None:
        self._check()
        self._files.make_directories(path)

    def rename(self, source: str, target: str, /) -> None:
        self._check()
        os.replace(source, target)

    def unlink(self, path: str, /) -> None:
        self._check()
        os.unlink(path)

    def remove_directory(self, path: str, /) -> None:
        self._check()
        os.rmdir(path)

    def free_bytes(self, path: str) -> int:
        self._check()
        return self._files.free_bytes(path)

    def total_bytes(self, path: str) -> int:
        self._check()
        return self._files.total_bytes(path)

    # Inside.

    def _sync(self, sync: Callable[[Any], None], what: int | str) -> None:
        self._wait()
        if self._durable:
            sync(what)

    def _wait(self) -> None:
        waiting = self._waiting
        if self._seconds:
            waiting.wait(self._seconds)
        self._check()

    def _let_go_on(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, threading.Event()
        waiting.set()

    def _check(self) -> None:
        if self._is_cut:
            raise OSError(errno.EIO, "the node that asks was killed")
