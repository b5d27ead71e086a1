"""The host: a broker's or coordinator's only access to the world.

A room reaches time, network, disk, randomness and other processes only through the `Host` it is given, so that the same
room, unchanged, runs on a real machine (`kernel.real_host`) and in the simulator (`testing.simulated_host`).
"""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from barnabas.kernel.facts import fact

if TYPE_CHECKING:
    import asyncio
    import random
    from collections.abc import Callable, Hashable, Sequence

Result = TypeVar("Result")
Buffer = bytes | bytearray | memoryview

READ_CACHED_ONLY: int = getattr(os, "RWF_NOWAIT", 0)
"""The flag of `Files.preadv` that refuses to wait for the disk; 0, a plain read, on a system that has no such flag."""

BUFFERS_PER_CALL_MAX = 1024
"""The most buffers that one `writev` or `preadv` takes (IOV_MAX); the caller cuts longer lists."""


class Clock(Protocol):
    """The wall clock. It may step and drift; durations are measured with `Host.loop.time()`."""

    def time_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""
        ...

    def stopwatch(self) -> float:
        """Seconds that only grow, as fine as the machine tells them: for what is done within one turn of the loop, in
        which the loop's time stands still."""
        ...


class Entropy(Protocol):
    """Unpredictable bytes, for ids and secrets; in the simulator, bytes from the seed."""

    def __call__(self, count: int, /) -> bytes: ...


@fact
class FileStatus:
    """What `Files.status` says of one path."""

    size_bytes: int
    modified_ms: int
    is_directory: bool


class Files(Protocol):
    """Synchronous files by descriptor, with the meaning of the `os` functions of the same name; no mmap.

    Every call raises `OSError` with its errno as the operating system does (ENOENT, ENOSPC, EIO, ...). Short reads and
    short writes happen; the caller handles them. Calls that may wait for the disk (`fsync`, `fdatasync`, large reads)
    belong into `Host.offload`. On a real host the calls with positional arguments only are the functions of `os`
    themselves, so the hot path pays for no frame of Python.
    """

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        """A descriptor that child processes do not inherit."""
        ...

    def reserve(self) -> int:
        """A descriptor of an empty file that is nobody's, which reads as nothing until `open_as` gives it another.
        Waits for no disk."""
        ...

    def open_as(self, descriptor: int, path: str, flags: int) -> None:
        """Opens a file as a descriptor that was reserved, or that is that of another file, which is closed then."""
        ...

    def close(self, descriptor: int, /) -> None: ...
    def read(self, descriptor: int, count: int, /) -> bytes: ...
    def write(self, descriptor: int, data: Buffer, /) -> int: ...
    def writev(self, descriptor: int, buffers: Sequence[Buffer], /) -> int:
        """Takes at most `BUFFERS_PER_CALL_MAX` buffers."""
        ...

    def pread(self, descriptor: int, count: int, offset: int, /) -> bytes: ...
    def preadv(self, descriptor: int, buffers: Sequence[bytearray | memoryview], offset: int, flags: int = 0, /) -> int:
        """Reads into the buffers and returns the count of bytes; 0 at the end of the file.

        `flags` may be `READ_CACHED_ONLY`: then BlockingIOError says that the first byte is not cached, fewer bytes than
        asked for may mean that the rest is not, and an OSError with EOPNOTSUPP that the file system cannot tell; in all
        three cases the caller reads again off the loop.
        """
        ...

    def pwrite(self, descriptor: int, data: Buffer, offset: int, /) -> int: ...
    def truncate(self, descriptor: int, size_bytes: int, /) -> None: ...
    def size(self, descriptor: int) -> int: ...
    def fsync(self, descriptor: int, /) -> None: ...
    def fdatasync(self, descriptor: int, /) -> None: ...
    def lock(self, descriptor: int) -> bool:
        """Takes an exclusive lock that ends with the process or the descriptor, which must be open for writing.

        False when another descriptor, of this process or of another, has it; Java's `FileChannel.tryLock` counts too.
        """
        ...

    def status(self, path: str) -> FileStatus:
        """Raises FileNotFoundError for a missing path."""
        ...

    def exists(self, path: str) -> bool: ...
    def list_directory(self, path: str) -> list[str]:
        """Names in the directory, sorted."""
        ...

    def make_directories(self, path: str) -> None:
        """Creates the directory and its parents; existing ones are no error."""
        ...

    def rename(self, source: str, target: str, /) -> None:
        """Replaces `target` atomically; durable only after `fsync_directory` of the parent."""
        ...

    def unlink(self, path: str, /) -> None: ...
    def remove_directory(self, path: str, /) -> None:
        """Removes one empty directory."""
        ...

    def fsync_directory(self, path: str) -> None:
        """Makes creations, renames and removals in the directory durable."""
        ...

    def free_bytes(self, path: str) -> int:
        """The free bytes of the file system of `path`."""
        ...

    def total_bytes(self, path: str) -> int:
        """The size of the file system of `path`."""
        ...


class OffloadKind(enum.Enum):
    """What a piece of work off the loop mainly waits for; each kind has its own bounded workers."""

    SYNC = "sync"  # fsync and fdatasync
    DISK = "disk"  # reads, deletions, snapshots
    REMOTE = "remote"  # remote storage, which may be far away
    CPU = "cpu"  # compression, large encodings
    WRITE = "write"  # what changes files of a log directory, in order
    PROBE = "probe"  # whether a disk answers at all; nothing else, so that it never waits for what hangs


class Offload(Protocol):
    """Runs a function off the loop."""

    def __call__(
        self,
        kind: OffloadKind,
        function: Callable[..., Result],
        /,
        *arguments: Any,
        order: Hashable | None = None,
        lane: str | None = None,
    ) -> asyncio.Future[Result]:
        """Queues `function(*arguments)` and returns a future of its result, done on the host's loop.

        Work with an equal `order` (a path, as a rule) of one kind runs one at a time, first in first out, in the lane
        that it has. Each lane has workers and a queue of its own, so that what hangs in one lets none wait in another;
        a lane is never given up, so there are as few as there are log directories, whose paths name them. Raises
        `OffloadFullError` at once when the lane's queue of the kind is full: the caller pushes back. Raises
        `HostClosedError` on a host that is closing.

        Nobody may change the arguments until the work has ended. Cancelling the future keeps work that has not begun
        from running, but does not stop what runs: a caller who may be cancelled and owns the arguments shields the
        future.
        """
        ...


class OffloadFullError(RuntimeError):
    """The queue of an offload kind is full, in the lane that was asked for."""


class HostClosedError(RuntimeError):
    """The host is closing and takes no new work."""


class ChildLimitError(RuntimeError):
    """The host already runs its maximum of child processes."""


class ChildProcess(Protocol):
    """A process that this host started."""

    @property
    def process_id(self) -> int: ...
    async def wait(self) -> int:
        """The exit status; negative is minus the signal's number."""
        ...

    def signal(self, number: int) -> None:
        """Sends a signal; does nothing when the process has ended."""
        ...


class Spawn(Protocol):
    """Starts a child process."""

    async def __call__(self, entry: str, argument: bytes, /) -> ChildProcess:
        """Runs `entry`, `"package.module:function"` taking `(files, argument)`, in a process of its own.

        `files` is a `Files` of the same disks. The exit status is what the function returns (an int, or None for 0;
        `PacedWork` of one, for what is not to go as fast as it can),
        and 1 when it raised (the traceback goes to stderr). The child never outlives its parent for long: it gets
        SIGTERM, and seconds later is killed. Raises ValueError for a malformed entry or an oversize argument,
        `ChildLimitError` and `HostClosedError`.
        """
        ...


def files_kept(open_files_max: int) -> int:
    """How many of a process's open files are kept from clients, for what the process itself opens: an
    eighth, but at least 128, where that is no more than a quarter, and at most 1,024.
    """
    return min(max(open_files_max // 8, 128), open_files_max // 4, 1024)


@dataclass(frozen=True, slots=True)
class Host:
    """One machine's worth of world, seen by one broker or coordinator.

    `loop` is any asyncio loop: monotonic time in seconds, timers, `create_server`, `create_connection`, name look-up.
    Its time has a resolution of 1 ms on uvloop: enough for time-outs and for what Kafka measures in milliseconds, too
    coarse for less. `random` is for jitter and spreading, never for secrets.
    """

    name: str
    loop: asyncio.AbstractEventLoop
    clock: Clock
    random: random.Random
    entropy: Entropy
    files: Files
    offload: Offload
    spawn: Spawn
    open_files_max: int = 2**31 - 1
    """How many files the process may have open, connections among them, as far as the system says."""
