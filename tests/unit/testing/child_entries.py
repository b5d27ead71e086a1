"""What the tests of simulated child processes start."""

from __future__ import annotations

import os

from barnabas.kernel.host import Files


def write_ten(files: Files, argument: bytes) -> None:
    """Writes the argument ten times, synced each time."""
    descriptor = files.open("/child", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    for _ in range(10):
        files.write(descriptor, argument)
        files.fsync(descriptor)


def fail(files: Files, argument: bytes) -> None:
    """Raises."""
    raise ValueError(argument)


def give(files: Files, argument: bytes) -> int:
    """Returns the argument as its exit status."""
    return int(argument)


def write_and_sync(files: Files, argument: bytes) -> None:
    """Writes ten bytes into /child at once, and syncs them."""
    descriptor = files.open("/child", os.O_RDWR | os.O_CREAT)
    files.write(descriptor, argument * 10)
    files.fsync(descriptor)
