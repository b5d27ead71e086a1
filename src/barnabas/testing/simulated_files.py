"""The files of one simulated process: descriptors, paths, errors and durations over a `SimulatedDisk`.

Fulfils `kernel.host.Files`. Besides what the disk's model says:

- Short writes and short reads happen by seed (`DiskProfile`), also where the disk fills up in the middle of a write;
  after that ENOSPC. A read with READ_CACHED_ONLY raises BlockingIOError by seed. Errors are injected with `FaultRule`s.
- A descriptor's number is never used again, so using one after `close` raises EBADF instead of reaching another file.
- An advisory lock belongs to the descriptor that took it, as flock's does; it ends with the descriptor or the process.
- Calls take time: on the loop they lengthen the tick, in offloaded work they lengthen that; syncs take longest, times
  the disk's `slowness`.
- After the process has ended every call raises `ProcessEndedError`, except for unfinished offloaded work that by seed
  goes on for a number of calls.
- There is one file system per machine, its root `/` always there. No links, no permissions, no relative paths.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from barnabas.kernel.host import BUFFERS_PER_CALL_MAX, READ_CACHED_ONLY, Buffer, FileStatus
from barnabas.testing.simulated_disk import Edit, Node, SyncUnderWay
from barnabas.testing.simulated_loop import ProcessEndedError
from barnabas.testing.trace import Occurrence

if TYPE_CHECKING:
    from barnabas.testing.profile import Range
    from barnabas.testing.simulated_disk import SimulatedDisk

DESCRIPTOR_FIRST = 1000
_ACCESS = os.O_RDONLY | os.O_WRONLY | os.O_RDWR


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


class _OpenFile:
    __slots__ = ("flags", "node", "path", "position")

    def __init__(self, node: Node, path: str, flags: int) -> None:
        self.node = node
        self.path = path
        self.flags = flags
        self.position = 0


class WorkUnderWay:
    """One piece of offloaded work while it runs: how long its file operations take, and its syncs, which finish only
    with it.
    """

    __slots__ = ("seconds", "syncs")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.syncs: list[SyncUnderWay] = []


class SimulatedFiles:
    """One process's `Files`. `charge(seconds)` is told how long calls on the loop take."""

    def __init__(self, disk: SimulatedDisk, name: str, charge: Callable[[float], None]) -> None:
        self._disk = disk
        self._label = disk.world.trace.label(f"{name} files")
        self._charge = charge
        self._open: dict[int, _OpenFile] = {}
        self._descriptor_next = DESCRIPTOR_FIRST
        self._cut = False
        self._calls_left = 0
        self.work: WorkUnderWay | None = None
        self._slowness = 1.0
        """How slow the call under way is, as a factor."""

    # The process's end.

    def cut_off(self) -> None:
        """The process has ended: calls reach nothing any more."""
        self._cut = True

    def allow_calls(self, count: int) -> None:
        """Lets work that was unfinished when the process ended make this many calls more."""
        self._calls_left = count

    def release(self) -> None:
        """Closes everything, as the kernel does for a dead process."""
        self._calls_left = 0
        for opened in self._open.values():
            self._let_go(opened)
        self._open.clear()

    # Bookkeeping of calls.

    def _begin(self, operation: str, path: str) -> None:
        if self._cut:
            self._calls_left -= 1
            if self._calls_left < 0:
                raise ProcessEndedError
        self._slowness = self._disk.slowness_of(path)
        for rule in self._disk.fault_rules:
            if rule.strikes(operation, path, self._disk.random):
                self._disk.world.trace.add(self._disk.world.now, Occurrence.FILE_FAULT, self._label, rule.error_number)
                raise _error(rule.error_number, path)

    def _took(self, seconds: Range) -> None:
        least, most = seconds
        duration = (least + (most - least) * self._disk.random.random()) * self._slowness
        if self.work is not None:
            self.work.seconds += duration
        else:
            self._charge(duration)

    def _changes(self, occurrence: Occurrence, change: Callable[[], None], seconds: Range) -> None:
        """Makes one counted change or sync; power may fail before it, or after it but before the caller learns it."""
        disk = self._disk
        disk.operations += 1
        if disk.operations != disk.cut_power_at:
            change()
            disk.world.trace.add(disk.world.now, occurrence, self._label, disk.operations)
            self._took(seconds)
            return
        if disk.random.random() < 0.5:
            change()
        disk.cut_power()
        raise ProcessEndedError

    def _after(self) -> SyncUnderWay | None:
        return self.work.syncs[-1] if self.work is not None and self.work.syncs else None

    def _opened(self, descriptor: int, operation: str) -> _OpenFile:
        opened = self._open.get(descriptor)
        self._begin(operation, "" if opened is None else opened.path)
        if opened is None:
            raise OSError(errno.EBADF, f"{os.strerror(errno.EBADF)}: {descriptor}")
        return opened

    # Paths.

    def _find(self, path: str) -> Node | None:
        node = self._disk.root
        for name in _names(path):
            if node.entries is None:
                raise _error(errno.ENOTDIR, path)
            found = node.entries.get(name)
            if found is None:
                return None
            node = found
        return node

    def _existing(self, path: str) -> Node:
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node

    def _place(self, path: str) -> tuple[Node, str]:
        """The directory that holds, or would hold, the path, and the last name of it."""
        names = _names(path)
        if not names:
            raise _error(errno.EBUSY, path)
        directory = self._existing("/" + "/".join(names[:-1]))
        if directory.entries is None:
            raise _error(errno.ENOTDIR, path)
        return directory, names[-1]

    # Descriptors.

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:  # noqa: ARG002 - there are no permissions
        self._begin("open", path)
        node = self._find(path)
        if node is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            node = self._create(path)
        elif flags & os.O_CREAT and flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        elif node.is_directory and flags & _ACCESS != os.O_RDONLY:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if flags & os.O_TRUNC and node.content:
            self._changes(
                Occurrence.FILE_CHANGED,
                lambda: self._disk.truncate(node, 0, self._after()),
                self._disk.profile.change_seconds,
            )
        node.opened += 1
        descriptor = self._descriptor_next
        self._descriptor_next += 1
        self._open[descriptor] = _OpenFile(node, path, flags)
        return descriptor

    def reserve(self) -> int:
        self._begin("reserve", "")
        descriptor = self._descriptor_next
        self._descriptor_next += 1
        node = self._disk.make_node(is_directory=False)
        node.opened += 1
        self._open[descriptor] = _OpenFile(node, "", os.O_RDONLY)
        return descriptor

    def open_as(self, descriptor: int, path: str, flags: int) -> None:
        if descriptor not in self._open:
            raise OSError(errno.EBADF, f"{os.strerror(errno.EBADF)}: {descriptor}")
        opened = self.open(path, flags)
        self._let_go(self._open[descriptor])
        self._open[descriptor] = self._open.pop(opened)

    def _create(self, path: str) -> Node:
        directory, name = self._place(path)
        node = self._disk.make_node(is_directory=False)
        self._rename_entries(directory, Edit(directory, name, None, node))
        return node

    def _rename_entries(self, durable_with: Node, *edits: Edit) -> None:
        self._changes(
            Occurrence.FILE_CHANGED,
            lambda: self._disk.change_names(durable_with, edits, self._after()),
            self._disk.profile.change_seconds,
        )

    def close(self, descriptor: int) -> None:
        opened = self._opened(descriptor, "close")
        del self._open[descriptor]
        self._let_go(opened)

    def _let_go(self, opened: _OpenFile) -> None:
        node = opened.node
        if node.locked_by is opened:
            node.locked_by = None
        node.opened -= 1
        self._disk.release(node)

    # Reading.

    def read(self, descriptor: int, count: int) -> bytes:
        opened = self._opened(descriptor, "read")
        data = self._read(opened, count, opened.position)
        opened.position += len(data)
        return data

    def pread(self, descriptor: int, count: int, offset: int) -> bytes:
        return self._read(self._opened(descriptor, "read"), count, offset)

    def preadv(self, descriptor: int, buffers: Sequence[bytearray | memoryview], offset: int, flags: int = 0) -> int:
        opened = self._opened(descriptor, "read")
        _check_count(buffers, opened.path)
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        wanted = sum(len(view) for view in views)
        if flags & READ_CACHED_ONLY:
            wanted = self._cached(opened, wanted)
        data = self._read(opened, wanted, offset)
        done = 0
        for view in views:
            part = data[done : done + len(view)]
            view[: len(part)] = part
            done += len(part)
        return done

    def _cached(self, opened: _OpenFile, wanted: int) -> int:
        """How many of the bytes are in the page cache, by seed."""
        profile, random = self._disk.profile, self._disk.random
        if not profile.knows_what_is_cached:
            raise _error(errno.EOPNOTSUPP, opened.path)
        if random.random() < profile.uncached_probability:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), opened.path)
        if wanted > 1 and random.random() < profile.uncached_probability:
            return random.randint(1, wanted - 1)
        return wanted

    def _read(self, opened: _OpenFile, count: int, offset: int) -> bytes:
        if opened.node.is_directory:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), opened.path)
        if opened.flags & _ACCESS == os.O_WRONLY:
            raise _error(errno.EBADF, opened.path)
        if count < 0 or offset < 0:
            raise _error(errno.EINVAL, opened.path)
        disk = self._disk
        if count > 1 and disk.random.random() < disk.profile.short_read_probability:
            count = disk.random.randint(1, count)
        self._took(disk.profile.read_seconds if self.work is not None else disk.profile.change_seconds)
        return bytes(memoryview(opened.node.content)[offset : offset + count])

    # Writing.

    def write(self, descriptor: int, data: Buffer) -> int:
        return self.writev(descriptor, (data,))

    def writev(self, descriptor: int, buffers: Sequence[Buffer]) -> int:
        opened = self._opened(descriptor, "write")
        _check_count(buffers, opened.path)
        data = b"".join(buffers)
        if opened.flags & os.O_APPEND and data:
            opened.position = len(opened.node.content)
        count = self._write(opened, data, opened.position)
        opened.position += count
        return count

    def pwrite(self, descriptor: int, data: Buffer, offset: int) -> int:
        opened = self._opened(descriptor, "write")
        if opened.flags & os.O_APPEND:
            offset = len(opened.node.content)
        return self._write(opened, bytes(data), offset)

    def _write(self, opened: _OpenFile, data: bytes, offset: int) -> int:
        disk = self._disk
        if opened.flags & _ACCESS == os.O_RDONLY:
            raise _error(errno.EBADF, opened.path)
        if offset < 0:
            raise _error(errno.EINVAL, opened.path)
        if len(data) > 1 and disk.random.random() < disk.profile.short_write_probability:
            data = data[: disk.random.randint(1, len(data) - 1)]
        room = disk.capacity_bytes - disk.used_bytes + max(0, len(opened.node.content) - offset)
        if len(data) > room:
            data = data[: max(0, room)]
            if not data:
                raise _error(errno.ENOSPC, opened.path)
        if data:
            self._changes(
                Occurrence.FILE_CHANGED,
                lambda: disk.write(opened.node, data, offset, self._after()),
                disk.profile.change_seconds,
            )
        return len(data)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        opened = self._opened(descriptor, "truncate")
        if opened.flags & _ACCESS == os.O_RDONLY or size_bytes < 0:
            raise _error(errno.EINVAL, opened.path)
        disk = self._disk
        if size_bytes - len(opened.node.content) > disk.capacity_bytes - disk.used_bytes:
            raise _error(errno.ENOSPC, opened.path)
        self._changes(
            Occurrence.FILE_CHANGED,
            lambda: disk.truncate(opened.node, size_bytes, self._after()),
            disk.profile.change_seconds,
        )

    def size(self, descriptor: int) -> int:
        return len(self._opened(descriptor, "size").node.content)

    def lock(self, descriptor: int) -> bool:
        opened = self._opened(descriptor, "lock")
        if opened.flags & _ACCESS == os.O_RDONLY:
            raise _error(errno.EBADF, opened.path)
        if opened.node.locked_by is None:
            opened.node.locked_by = opened
        return opened.node.locked_by is opened

    # Durability.

    def fsync(self, descriptor: int) -> None:
        opened = self._open.get(descriptor)
        try:
            opened = self._opened(descriptor, "fsync")
        except OSError:
            if opened is not None:
                self._disk.sync_failed(opened.node)
            raise
        self._sync(opened.node)

    def fdatasync(self, descriptor: int) -> None:
        self.fsync(descriptor)

    def fsync_directory(self, path: str) -> None:
        self._begin("fsync_directory", path)
        node = self._existing(path)
        if not node.is_directory:
            raise _error(errno.ENOTDIR, path)
        self._sync(node)

    def _sync(self, node: Node) -> None:
        disk = self._disk

        def sync() -> None:
            if self.work is None:
                disk.sync(node, None)
            else:
                under_way = disk.begin_sync(self._after())
                disk.sync(node, under_way)
                self.work.syncs.append(under_way)

        self._changes(Occurrence.FILE_SYNCED, sync, disk.profile.sync_seconds)

    # Directories.

    def status(self, path: str) -> FileStatus:
        self._begin("status", path)
        node = self._existing(path)
        return FileStatus(size_bytes=len(node.content), modified_ms=node.modified_ms, is_directory=node.is_directory)

    def exists(self, path: str) -> bool:
        self._begin("exists", path)
        try:
            return self._find(path) is not None
        except NotADirectoryError:
            return False

    def list_directory(self, path: str) -> list[str]:
        self._begin("list_directory", path)
        node = self._existing(path)
        if node.entries is None:
            raise _error(errno.ENOTDIR, path)
        return sorted(node.entries)

    def make_directories(self, path: str) -> None:
        self._begin("make_directories", path)
        directory = self._disk.root
        for name in _names(path):
            if directory.entries is None:
                raise _error(errno.ENOTDIR, path)
            found = directory.entries.get(name)
            if found is None:
                found = self._disk.make_node(is_directory=True)
                self._rename_entries(directory, Edit(directory, name, None, found))
            directory = found
        if not directory.is_directory:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)

    def rename(self, source: str, target: str) -> None:
        self._begin("rename", source)
        source_directory, source_name = self._place(source)
        target_directory, target_name = self._place(target)
        node = self._existing(source)
        replaced = (target_directory.entries or {}).get(target_name)
        if replaced is node:
            return
        if f"{_canonical(target)}/".startswith(f"{_canonical(source)}/"):
            raise _error(errno.EINVAL, target)
        if f"{_canonical(source)}/".startswith(f"{_canonical(target)}/"):
            raise _error(errno.ENOTEMPTY, target)
        if replaced is not None:
            if replaced.is_directory and not node.is_directory:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)
            if node.is_directory and not replaced.is_directory:
                raise _error(errno.ENOTDIR, target)
            if replaced.entries:
                raise _error(errno.ENOTEMPTY, target)
        self._rename_entries(
            target_directory,
            Edit(source_directory, source_name, node, None),
            Edit(target_directory, target_name, replaced, node),
        )

    def unlink(self, path: str) -> None:
        self._begin("unlink", path)
        node = self._existing(path)
        if node.is_directory:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        directory, name = self._place(path)
        self._rename_entries(directory, Edit(directory, name, node, None))

    def remove_directory(self, path: str) -> None:
        self._begin("remove_directory", path)
        node = self._existing(path)
        if node.entries is None:
            raise _error(errno.ENOTDIR, path)
        if node.entries:
            raise _error(errno.ENOTEMPTY, path)
        directory, name = self._place(path)
        self._rename_entries(directory, Edit(directory, name, node, None))

    def free_bytes(self, path: str) -> int:
        self._begin("free_bytes", path)
        self._existing(path)
        return max(0, self._disk.capacity_bytes - self._disk.used_bytes)

    def total_bytes(self, path: str) -> int:
        self._begin("total_bytes", path)
        self._existing(path)
        return self._disk.capacity_bytes


def _check_count(buffers: Sequence[object], path: str) -> None:
    if len(buffers) > BUFFERS_PER_CALL_MAX:
        raise _error(errno.EINVAL, path)


def _names(path: str) -> list[str]:
    if not path.startswith("/"):
        raise ValueError(f"a simulated disk has no current directory: give {path!r} as an absolute path")
    names = [name for name in path.split("/") if name and name != "."]
    if ".." in names:
        raise ValueError(f"a simulated disk does not walk upwards: {path!r}")
    return names


def _canonical(path: str) -> str:
    return "/" + "/".join(_names(path))
