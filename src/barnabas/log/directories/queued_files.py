"""The files of one log directory as the loop sees them, where no turn of the loop may wait for their disk.

Whatever changes a file or a name is put into a queue, which one thread works off in order; whatever is asked sees it
done already, by what is remembered of the queue. So whoever uses these files on the loop does as with any others, but
for two things: what was done is *in the files* only when `when_done` or `settle` says so, and until then the end of
this process takes it away, always what came last; and a failure comes later, to `on_failure`, and is the end of the
directory.

Descriptors are real ones all the time: one of a file that is not made yet is reserved, and becomes that file in the
queue. So what has the descriptor of something that is in the files may be read and synced by anybody, on any thread.

A sequence of changes may be laid over what the files have at any moment of working it off, with the same result: each
byte is that of the last change that covers it. That is why nothing need be known of how far the thread is.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from barnabas.kernel.host import Buffer, Files, FileStatus, Host, HostClosedError, OffloadKind
from barnabas.kernel.turns import yield_to_loop
from barnabas.log.directories.file_changes import (
    Change,
    Close,
    MakeDirectories,
    NamedChange,
    OpenAs,
    Overlay,
    Progress,
    Rename,
    Truncate,
    Unlink,
    Write,
    make_changes,
)

FULL_BYTES: Final = 64 * 1024 * 1024
"""What may wait to be written; with more, nothing is to be appended before it is half of that."""
_TO_BE_MADE: Final = ""
_Found = TypeVar("_Found")


class QueuedFiles:
    """Fulfils `kernel.host.Files` for the loop; what syncs or lists is passed on, and belongs off the loop."""

    def __init__(
        self, host: Host, path: str, on_failure: Callable[[OSError], object], on_full: Callable[[bool], object]
    ) -> None:
        """`path` is that of the log directory; `on_full` is told that too much waits, and that it does not any more."""
        self._host = host
        self._files: Files = host.files
        self._path = path
        self._on_failure = on_failure
        self._on_full = on_full
        self._queued: list[Change] = []
        self._under_way: list[Change] = []
        self._named: list[NamedChange] = []
        """Of all that is queued or under way, what changes names."""
        self._progress = Progress()
        self._forgotten = 0
        """Those that were in that list and are done."""
        self._overlays: dict[int, Overlay] = {}
        self._known: dict[str, dict[str, Overlay]] = {}
        """Of files that are open or are to be changed, by directory and name."""
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._settling = 0
        """Those who wait in `settle`, and have not gone on."""
        self._added = self._done = 0
        self._bytes = 0
        self._is_full = self._is_scheduled = False
        self._error: OSError | None = None

    # The queue.

    @property
    def is_idle(self) -> bool:
        """Whether everything is in the files."""
        return self._added == self._done

    @property
    def waiting_bytes(self) -> int:
        """What is to be written."""
        return self._bytes

    def when_done(self) -> asyncio.Future[None]:
        """Done when all that was changed so far is in the files; has the OSError that keeps it from that. For one who
        waits."""
        future: asyncio.Future[None] = self._host.loop.create_future()
        if self._error is not None:
            future.set_exception(self._error)
        elif self._added == self._done:
            future.set_result(None)
        else:
            self._waiting.append((self._added, future))
        return future

    async def settle(self) -> None:
        """Returns when all that was changed so far is in the files. Raises OSError.

        Invariant: whoever has asked first goes on first, so that what they hand over for an order is handed over in it.
        """
        is_idle = self._added == self._done and self._error is None
        if is_idle and not self._settling:
            return
        self._settling += 1
        try:
            if is_idle:  # others have been told, and go on within the next turn
                await yield_to_loop()
            else:
                await self.when_done()
        finally:
            self._settling -= 1

    def give_up(self, error: OSError) -> None:
        """The directory has failed: nothing is changed any more, and descriptors are closed when no thread has them."""
        if self._error is not None:
            return
        self._error = error
        queued, self._queued = self._queued, []
        self._queued = [change for change in queued if type(change) is Close]
        waiting, self._waiting = self._waiting, deque()
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()  # who has ended meanwhile does not ask
        if not self._under_way:
            self._close_descriptors()

    def _add(self, change: Change, size_bytes: int = 0) -> None:
        self._queued.append(change)
        self._added += 1
        self._bytes += size_bytes
        if self._bytes > FULL_BYTES and not self._is_full:
            self._is_full = True
            self._on_full(True)
        if not self._under_way and not self._is_scheduled:
            # All of this turn together.
            self._is_scheduled = True
            self._host.loop.call_soon(self._start)

    def _add_named(self, change: NamedChange) -> None:
        self._named.append(change)
        self._add(change)

    def _check(self) -> None:
        if self._error is not None:
            raise OSError(self._error.errno or errno.EIO, str(self._error), self._path)

    def _start(self) -> None:
        self._is_scheduled = False
        if self._under_way or not self._queued or self._error is not None:
            return
        changes = self._under_way = self._queued
        self._queued = []
        try:
            work = self._host.offload(
                OffloadKind.WRITE, make_changes, self._files, changes, self._progress, order=self._path, lane=self._path
            )
        except HostClosedError:
            self._under_way = []
            return
        work.add_done_callback(self._ended)

    def _ended(self, work: asyncio.Future[tuple[int, OSError | None]]) -> None:
        changes, self._under_way = self._under_way, []
        if work.cancelled():
            return  # the host is closing
        failure = work.exception()
        if failure is None:
            count, error = work.result()
        else:  # nobody knows how far it has come: better a descriptor that stays open than another's that is closed
            count, error = len(changes), OSError(errno.EIO, f"{failure!r}", self._path)
        self._forget(changes)
        if error is not None:
            self._queued += [change for change in changes[count:] if type(change) is Close]
            self.give_up(error)
            self._on_failure(error)
        if self._error is not None:
            self._close_descriptors()
            return
        self._tell_done()
        if self._is_full and self._bytes < FULL_BYTES // 2:
            self._is_full = False
            self._on_full(False)
        self._start()

    def _forget(self, changes: list[Change]) -> None:
        """What they have changed is in the files."""
        self._done += len(changes)
        named = 0
        touched: dict[Overlay, None] = {}
        for change in changes:
            overlay = change.overlay
            if overlay is not None:
                overlay.done += 1
                touched[overlay] = None
                if type(change) is Write:
                    self._bytes -= len(change.data)
            elif isinstance(change, NamedChange):
                named += 1
                if isinstance(change, OpenAs):
                    change.file.opening -= 1
                    touched[change.file] = None
        for overlay in touched:
            if not overlay.opening:
                del overlay.changes[: overlay.done]
                overlay.done = 0
            if not overlay.changes and not overlay.opened and self._overlay_of(overlay.path) is overlay:
                self._forget_path(overlay.path)
        del self._named[:named]
        self._forgotten += named

    def _tell_done(self) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= self._done:
            _, future = waiting.popleft()
            if not future.done():
                future.set_result(None)

    def _close_descriptors(self) -> None:
        queued, self._queued = self._queued, []
        for change in queued:
            if type(change) is Close:
                with contextlib.suppress(OSError):
                    self._files.close(change.descriptor)

    # Names.

    def _look(self, path: str, look: Callable[[str], _Found]) -> _Found | None:
        """What `look` finds where the file is now, by the name that the thread has left it; None for one that is yet to
        be made. Raises FileNotFoundError. To be undone by the caller where `look` has opened something, if this raises.

        Invariant: while one change is being made there is one file only that has, or has had, the name; so it is looked
        for by both, and once more where the thread has gone on meanwhile.
        """
        while True:
            made = self._progress.steps
            first = made // 2 - self._forgotten
            found: _Found | None = None
            before = self._resolve(path, first)
            if before == _TO_BE_MADE:
                return None
            if before is None:  # it goes, whether that is being done or not
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            for place in (before, self._resolve(path, first + made % 2)):
                if place and found is None:
                    with contextlib.suppress(FileNotFoundError):
                        found = look(place)
            if made != self._progress.steps:
                if found is not None:
                    self._undo(found)
                continue
            if found is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            return found

    def _undo(self, found: object) -> None:
        if isinstance(found, int):
            self._files.close(found)

    def _resolve(self, path: str, first: int) -> str | None:
        """What has that name when all is done is found now by the one that is returned, if what changes names is done
        up to, not including, that number; None for nothing."""
        for change in reversed(self._named[first:]):
            if isinstance(change, Rename):
                before = change.before(path)
                if before is not None:
                    path = before
                elif change.takes(path):
                    return None
            elif change.path == path:
                return None if type(change) is Unlink else _TO_BE_MADE
        return path

    def exists(self, path: str) -> bool:
        if not self._named:
            return self._files.exists(path)
        try:
            self._look(path, self._files.status)
        except FileNotFoundError:
            return False
        return True

    def status(self, path: str) -> FileStatus:
        found = self._look(path, self._files.status)
        if found is None:
            return FileStatus(size_bytes=0, modified_ms=self._host.clock.time_ms(), is_directory=False)
        return found

    def rename(self, source: str, target: str, /) -> None:
        self._check()
        if not self.exists(source):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        self._forget_path(target)
        self._move(source, target)
        self._add_named(Rename(source, target))

    def unlink(self, path: str, /) -> None:
        self._check()
        if not self.exists(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._forget_path(path)
        self._add_named(Unlink(path))

    def _move(self, source: str, target: str) -> None:
        """What is known of a file, or of those in a directory, is known by its new name."""
        directory = self._known.pop(source, None)
        if directory is not None:
            self._known[target] = directory
            for name, overlay in directory.items():
                overlay.path = f"{target}/{name}"
        file = self._overlay_of(source)
        if file is not None:
            self._forget_path(source)
            self._remember(target, file)

    def _overlay_of(self, path: str) -> Overlay | None:
        directory, _, name = path.rpartition("/")
        return self._known.get(directory, {}).get(name)

    def _remember(self, path: str, overlay: Overlay) -> None:
        overlay.path = path
        directory, _, name = path.rpartition("/")
        self._known.setdefault(directory, {})[name] = overlay

    def _forget_path(self, path: str) -> None:
        """What has that name goes, or is as it is on the disk; another file may get the name."""
        directory, _, name = path.rpartition("/")
        names = self._known.get(directory)
        if names is not None and names.pop(name, None) is not None and not names:
            del self._known[directory]

    def make_directories(self, path: str) -> None:
        self._check()
        if not self.exists(path):
            self._add_named(MakeDirectories(path))

    # Descriptors.

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        overlay = self._overlay_of(path)
        if not flags & os.O_TRUNC and (not flags & os.O_CREAT or self.exists(path)):
            # Not to be made: with O_CREAT a file that is there may wait for the disk all the same.
            existing = flags & ~os.O_CREAT
            descriptor = self._look(path, lambda place: self._files.open(place, existing, mode))
            if descriptor is not None:
                self._has_opened(path, descriptor, overlay or Overlay(path))
                return descriptor
        self._check()
        descriptor = self._files.reserve()
        file = Overlay(path) if overlay is None or flags & os.O_TRUNC else overlay
        file.opening += 1
        self._has_opened(path, descriptor, file)
        self._add_named(OpenAs(file, descriptor, path, flags))
        return descriptor

    def _has_opened(self, path: str, descriptor: int, overlay: Overlay) -> None:
        overlay.opened += 1
        self._overlays[descriptor] = overlay
        self._remember(path, overlay)

    def reserve(self) -> int:
        return self._files.reserve()

    def open_as(self, descriptor: int, path: str, flags: int) -> None:
        self._check()
        self._overlay(descriptor).opening += 1
        self._add_named(OpenAs(self._overlay(descriptor), descriptor, path, flags))

    def close(self, descriptor: int, /) -> None:
        overlay = self._overlays.pop(descriptor, None)
        if overlay is not None:
            overlay.opened -= 1
            if not overlay.changes and not overlay.opened and self._overlay_of(overlay.path) is overlay:
                self._forget_path(overlay.path)
        if self._error is not None and self._under_way:
            self._queued.append(Close(descriptor))
        elif self._added != self._done and self._error is None:
            self._add(Close(descriptor))
        else:
            self._files.close(descriptor)

    def _overlay(self, descriptor: int) -> Overlay:
        overlay = self._overlays.get(descriptor)
        if overlay is None:
            overlay = self._overlays[descriptor] = Overlay("")
            overlay.opened = 1
        return overlay

    def pwrite(self, descriptor: int, data: Buffer, offset: int, /) -> int:
        self._check()
        if not data:
            return 0
        overlay = self._overlay(descriptor)
        change = Write(overlay, descriptor, offset, bytes(data))
        overlay.changes.append(change)
        self._add(change, len(change.data))
        return len(change.data)

    def truncate(self, descriptor: int, size_bytes: int, /) -> None:
        self._check()
        overlay = self._overlay(descriptor)
        change = Truncate(overlay, descriptor, size_bytes)
        overlay.changes.append(change)
        self._add(change)

    def size(self, descriptor: int) -> int:
        overlay = self._overlays.get(descriptor)
        changes = tuple(overlay.changes) if overlay is not None else ()
        size_bytes = self._files.size(descriptor)
        for change in changes:
            size_bytes = change.size_after(size_bytes)
        return size_bytes

    def pread(self, descriptor: int, count: int, offset: int, /) -> bytes:
        overlay = self._overlays.get(descriptor)
        # Before the file is read: what is done meanwhile may be laid over it once more.
        changes = tuple(overlay.changes) if overlay is not None else ()
        if not changes:
            return self._files.pread(descriptor, count, offset)
        data = bytearray()
        while len(data) < count and (part := self._files.pread(descriptor, count - len(data), offset + len(data))):
            data += part
        for change in changes:
            change.lay_over(data, offset, count)
        return bytes(data)

    def preadv(self, descriptor: int, buffers: Sequence[bytearray | memoryview], offset: int, flags: int = 0, /) -> int:
        overlay = self._overlays.get(descriptor)
        if overlay is None or not overlay.changes:
            return self._files.preadv(descriptor, buffers, offset, flags)
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        data = self.pread(descriptor, sum(map(len, views)), offset)
        done = 0
        for view in views:
            part = data[done : done + len(view)]
            view[: len(part)] = part
            done += len(part)
        return done

    # What is passed on.

    def read(self, descriptor: int, count: int, /) -> bytes:
        return self._files.read(descriptor, count)

    def write(self, descriptor: int, data: Buffer, /) -> int:
        return self._files.write(descriptor, data)

    def writev(self, descriptor: int, buffers: Sequence[Buffer], /) -> int:
        return self._files.writev(descriptor, buffers)

    def fsync(self, descriptor: int, /) -> None:
        self._files.fsync(descriptor)

    def fdatasync(self, descriptor: int, /) -> None:
        self._files.fdatasync(descriptor)

    def fsync_directory(self, path: str) -> None:
        self._files.fsync_directory(path)

    def lock(self, descriptor: int) -> bool:
        return self._files.lock(descriptor)

    def list_directory(self, path: str) -> list[str]:
        return self._files.list_directory(path)

    def remove_directory(self, path: str, /) -> None:
        self._files.remove_directory(path)

    def free_bytes(self, path: str) -> int:
        return self._files.free_bytes(path)

    def total_bytes(self, path: str) -> int:
        return self._files.total_bytes(path)
