"""Disks that really fail under a broker process: system calls that return EIO, a file system that the kernel has made
read-only after an error, and one without room.

Each has a directory for a log directory, which works until `fail`, and again from `repair` on. Those that need a mount
raise `NotPermittedError` where the machine does not permit it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

_SHIM_SOURCE = Path(__file__).with_name("failing_disk.c")
_COMMAND_SECONDS = 60.0
_IMAGE_BYTES = 64 * 1024 * 1024
_HUNG_BYTES = 512 * 1024 * 1024
_ROOM_BYTES = 32 * 1024 * 1024
_CHUNK = bytes(64 * 1024)


class NotPermittedError(Exception):
    """This machine does not permit what the disk needs; the message says what."""


class FailingDisk(Protocol):
    """Made with a directory to be in, which does not exist yet; `close` gives back what it holds of the machine."""

    @property
    def directory(self) -> Path:
        """For a log directory, or several below it."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """What the process that uses the directory must have in its environment."""
        ...

    def fail(self) -> None: ...
    def repair(self) -> None:
        """Nobody uses the directory meanwhile."""
        ...

    def close(self) -> None: ...


class BrokenDisk:
    """Every system call on the directory and below returns EIO: a library that goes before libc in the process."""

    _CONTROL = "FAILING_DIRECTORY_TRIGGER"

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None or not os.path.isdir("/proc/self/fd"):
            raise NotPermittedError("there is no C compiler, or no /proc, for a library that lets system calls fail")
        self.directory = directory
        directory.mkdir(parents=True)
        library = directory.with_name(directory.name + ".so")
        _run(compiler, "-shared", "-fPIC", "-O1", "-o", library, _SHIM_SOURCE)
        self._trigger = directory.with_name(directory.name + ".fails")
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAILING_DIRECTORY": str(directory),
            self._CONTROL: str(self._trigger),
        }

    def fail(self) -> None:
        self._trigger.touch()

    def repair(self) -> None:
        self._trigger.unlink()

    def close(self) -> None:
        """It holds nothing."""


class StalledDisk(BrokenDisk):
    """System calls on the directory and below do not return before `repair`, which is called while the process runs.

    All of them at once: a real disk that hangs stops fsync first, and what goes to the page cache only seconds later.
    """

    _CONTROL = "FAILING_DIRECTORY_STALL"


class ReadOnlyDisk:
    """ext4 in a file, which the kernel makes read-only as it does after an error of the device (errors=remount-ro)."""

    environment: Mapping[str, str] = {}

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._image = directory.with_name(directory.name + ".ext4")
        directory.mkdir(parents=True)
        if shutil.which("mkfs.ext4") is None:
            raise NotPermittedError("there is no mkfs.ext4")
        with self._image.open("wb") as image:
            image.truncate(_IMAGE_BYTES)
        _run("mkfs.ext4", "-q", "-F", self._image)
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", "loop,errors=remount-ro", self._image, self.directory)

    def fail(self) -> None:
        _run("mount", "-o", "remount,abort", self.directory)

    def repair(self) -> None:
        _run("umount", self.directory)
        # 1: errors were found and corrected, as after an abort they are.
        _run("fsck.ext4", "-p", self._image, statuses=(0, 1))
        self._mount()

    def close(self) -> None:
        _run("umount", "--lazy", self.directory)


class HungDisk:
    """ext4 on a device that takes no write any more, as one that hangs: a file on another ext4, which is frozen.

    fsync waits at once, what goes to the page cache from the next commit of the journal on; `repair` ends it while the
    process runs.
    """

    environment: Mapping[str, str] = {}

    def __init__(self, directory: Path) -> None:
        if shutil.which("mkfs.ext4") is None or shutil.which("fsfreeze") is None:
            raise NotPermittedError("there is no mkfs.ext4, or no fsfreeze")
        self._below = directory.with_name(directory.name + "-below")
        self._mounts: list[Path] = []
        self._is_frozen = False
        try:
            self._mount(directory.with_name(directory.name + ".ext4"), 2 * _HUNG_BYTES, self._below)
            self._mount(self._below / "device.ext4", _HUNG_BYTES, directory)
        except NotPermittedError:
            self.close()
            raise
        self.directory = directory / "logs"
        self.directory.mkdir()

    def _mount(self, image: Path, size_bytes: int, directory: Path) -> None:
        with image.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size_bytes)
        _run("mkfs.ext4", "-q", "-F", image)
        directory.mkdir(parents=True)
        _run("mount", "-o", "loop", image, directory)
        self._mounts.append(directory)

    def fail(self) -> None:
        _run("fsfreeze", "--freeze", self._below)
        self._is_frozen = True

    def repair(self) -> None:
        if self._is_frozen:
            _run("fsfreeze", "--unfreeze", self._below)
            self._is_frozen = False

    def close(self) -> None:
        self.repair()
        while self._mounts:
            _run("umount", "--lazy", self._mounts.pop())


class FullDisk:
    """A small file system in memory that somebody else fills."""

    environment: Mapping[str, str] = {}

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={_ROOM_BYTES}", "tmpfs", directory)

    @property
    def _filling(self) -> Path:
        return self.directory / "somebody-elses-file"

    def fail(self) -> None:
        with self._filling.open("ab", buffering=0) as file:
            for chunk in (_CHUNK, b"x"):
                try:
                    while file.write(chunk) == len(chunk):
                        pass
                except OSError:
                    continue

    def repair(self) -> None:
        self._filling.unlink()

    def close(self) -> None:
        _run("umount", "--lazy", self.directory)


def _run(*command: str | Path, statuses: tuple[int, ...] = (0,)) -> None:
    try:
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
        )
    except OSError as error:
        raise NotPermittedError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode not in statuses:
        raise NotPermittedError(f"{' '.join(map(str, command))} failed: {done.stderr.strip() or done.returncode}")
