"""What can be changed in a log directory by its queue (`queued_files`), and what it looks like before it is done."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Final

from barnabas.kernel.host import Files
from barnabas.log.directories.files import write_all

_JOINED_BYTES_MAX: Final = 1024 * 1024


class Overlay:
    """What is to be changed in one file, in order."""

    __slots__ = ("changes", "done", "opened", "opening", "path")

    def __init__(self, path: str) -> None:
        self.done = 0
        """Changes that are in the file, and are kept as long as a descriptor is not that of the file yet."""
        self.opening = 0
        """Descriptors that are yet to become its."""
        self.opened = 0
        """Descriptors of it."""
        self.path = path
        """By its last name; an empty one where that is not known."""
        self.changes: list[Write | Truncate] = []


class Change:
    """One of them. `make` is called off the loop, once."""

    __slots__ = ("overlay",)

    def __init__(self, overlay: Overlay | None = None) -> None:
        self.overlay = overlay
        """Of the file the bytes of which it changes."""

    def make(self, files: Files) -> None:
        """Raises OSError."""
        raise NotImplementedError


class Write(Change):
    """Bytes at a position."""

    __slots__ = ("data", "descriptor", "position")

    def __init__(self, overlay: Overlay, descriptor: int, position: int, data: bytes) -> None:
        self.overlay = overlay
        self.descriptor = descriptor
        self.position = position
        self.data = data

    def make(self, files: Files) -> None:
        write_all(files, self.descriptor, self.data, self.position)

    def size_after(self, size_bytes: int) -> int:
        """That of the file, which had `size_bytes`."""
        return max(size_bytes, self.position + len(self.data))

    def lay_over(self, data: bytearray, offset: int, count: int) -> None:
        """Changes what was read of the file from `offset` on, of which no more than `count` bytes are asked for."""
        start, end = self.position - offset, self.position - offset + len(self.data)
        data.extend(bytes(max(0, min(start, count) - len(data))))  # the file grows past what it had
        if start >= count or end <= 0:
            return
        first = max(start, 0)
        data[first : min(end, count)] = memoryview(self.data)[first - start : min(end, count) - start]


class Truncate(Change):
    """A file is cut off."""

    __slots__ = ("descriptor", "size_bytes")

    def __init__(self, overlay: Overlay, descriptor: int, size_bytes: int) -> None:
        self.overlay = overlay
        self.descriptor = descriptor
        self.size_bytes = size_bytes

    def make(self, files: Files) -> None:
        files.truncate(self.descriptor, self.size_bytes)

    def size_after(self, size_bytes: int) -> int:  # noqa: ARG002 - as of Write
        """As of `Write`."""
        return self.size_bytes

    def lay_over(self, data: bytearray, offset: int, count: int) -> None:
        """As of `Write`."""
        kept = max(0, min(self.size_bytes - offset, count))
        del data[kept:]
        data.extend(bytes(kept - len(data)))


class Close(Change):
    """A descriptor goes, when whatever uses it before is done."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.overlay = None
        self.descriptor = descriptor

    def make(self, files: Files) -> None:
        files.close(self.descriptor)


class NamedChange(Change):
    """A change of names, of `path` first of all."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.overlay = None
        self.path = path


class OpenAs(NamedChange):
    """A file is made, or emptied, and has a descriptor that was reserved."""

    __slots__ = ("descriptor", "file", "flags")

    def __init__(self, file: Overlay, descriptor: int, path: str, flags: int) -> None:
        super().__init__(path)
        self.file = file
        self.descriptor = descriptor
        self.flags = flags

    def make(self, files: Files) -> None:
        files.open_as(self.descriptor, self.path, self.flags)


class MakeDirectories(NamedChange):
    """A directory is made."""

    __slots__ = ()

    def make(self, files: Files) -> None:
        files.make_directories(self.path)


class Unlink(NamedChange):
    """A file goes."""

    __slots__ = ()

    def make(self, files: Files) -> None:
        files.unlink(self.path)


class Rename(NamedChange):
    """A file, or a directory with what is in it, gets another name."""

    __slots__ = ("target",)

    def __init__(self, path: str, target: str) -> None:
        super().__init__(path)
        self.target = target

    def make(self, files: Files) -> None:
        files.rename(self.path, self.target)

    def before(self, path: str) -> str | None:
        """What had the name before that is `path` after it; None where that is not of what is renamed."""
        return _moved(path, self.target, self.path)

    def takes(self, path: str) -> bool:
        """Whether what had that name has it no more."""
        return _moved(path, self.path, self.target) is not None


def _moved(path: str, source: str, target: str) -> str | None:
    if path == source:
        return target
    if path.startswith(source) and path[len(source)] == "/":
        return target + path[len(source) :]
    return None


class Progress:
    """How far the thread is with changes of names: two steps for each, so that it is in the middle of one where the
    count is odd. Written by the thread alone."""

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps = 0


def make_changes(files: Files, changes: Sequence[Change], progress: Progress) -> tuple[int, OSError | None]:
    """Off the loop: makes the changes, in order; returns how many, and the error that came in the way of the next,
    whatever it is: the caller closes the descriptors that were to be closed behind it, and none of them twice.

    Writes between two changes of another kind are joined by file, so that as few calls as can be write them.
    """
    done = 0
    while done < len(changes):
        run = done
        while run < len(changes) and type(changes[run]) is Write:
            run += 1
        try:
            if run > done + 1:
                _write_joined(files, changes[done:run])
                done = run
            else:
                change = changes[done]
                if isinstance(change, NamedChange):
                    progress.steps += 1
                    change.make(files)
                    progress.steps += 1
                else:
                    change.make(files)
                done += 1
        except Exception as error:  # noqa: BLE001 - it is told; how far this has come would be lost
            if type(changes[done]) is Close:
                done += 1  # the descriptor has gone all the same
            return done, error if isinstance(error, OSError) else OSError(errno.EIO, repr(error))
    return done, None


def _write_joined(files: Files, writes: Sequence[Change]) -> None:
    by_file: dict[int, list[Write]] = {}
    for write in writes:
        if isinstance(write, Write):
            by_file.setdefault(write.descriptor, []).append(write)
    for descriptor, of_file in by_file.items():
        parts: list[bytes] = []
        position = end = of_file[0].position
        for write in of_file:
            if write.position != end or end - position >= _JOINED_BYTES_MAX:
                write_all(files, descriptor, b"".join(parts), position)
                parts.clear()
                position = end = write.position
            parts.append(write.data)
            end += len(write.data)
        write_all(files, descriptor, parts[0] if len(parts) == 1 else b"".join(parts), position)
