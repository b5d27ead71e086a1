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
            "FAILING_DIRECTORY_TRIGGER": str(self._trigger),
        }

    def fail(self) -> None:
        self._trigger.touch()

    def repair(self) -> None:
        self._trigger.unlink()

    def close(self) -> None:
        """It holds nothing."""


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
