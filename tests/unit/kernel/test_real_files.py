"""`barnabas.kernel.real_files`, on a real directory."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.kernel.host import BUFFERS_PER_CALL_MAX, READ_CACHED_ONLY, FileStatus
from barnabas.kernel.real_files import RealFiles

FILES = RealFiles()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "segment.log")


def test_writes_and_reads_at_positions(path: str) -> None:
    descriptor = FILES.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    assert FILES.write(descriptor, memoryview(b"0123")) == 4
    assert FILES.writev(descriptor, [b"45", bytearray(b"67"), memoryview(b"89")]) == 6
    assert FILES.pwrite(descriptor, b"xy", 2) == 2
    assert FILES.size(descriptor) == 10
    assert FILES.pread(descriptor, 100, 8) == b"89"
    first, second = bytearray(3), bytearray(4)
    assert FILES.preadv(descriptor, [first, memoryview(second)], 1) == 7
    assert bytes(first + second) == b"1xy4567"
    FILES.fsync(descriptor)
    FILES.fdatasync(descriptor)
    FILES.truncate(descriptor, 4)
    assert FILES.size(descriptor) == 4
    assert FILES.read(descriptor, 10) == b""  # the position is at 10, past the end
    FILES.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        FILES.write(descriptor, b"x")


@pytest.mark.skipif(not READ_CACHED_ONLY, reason="this system has no RWF_NOWAIT")
def test_reads_what_is_cached_without_waiting(path: str) -> None:
    descriptor = FILES.open(path, os.O_RDWR | os.O_CREAT)
    FILES.write(descriptor, b"just written")
    buffer = bytearray(12)
    try:
        count = FILES.preadv(descriptor, [buffer], 0, READ_CACHED_ONLY)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            pytest.skip("this file system cannot tell what is cached")
        raise
    finally:
        FILES.close(descriptor)
    assert count == 12
    assert buffer == b"just written"


def test_the_calls_of_the_hot_path_are_those_of_the_operating_system() -> None:
    assert FILES.write is os.write
    assert FILES.writev is os.writev
    assert FILES.pread is os.pread
    assert FILES.preadv is os.preadv
    assert FILES.pwrite is os.pwrite


def test_takes_as_many_buffers_as_the_port_says(path: str) -> None:
    descriptor = FILES.open(path, os.O_RDWR | os.O_CREAT)
    assert FILES.writev(descriptor, [b"x"] * BUFFERS_PER_CALL_MAX) == BUFFERS_PER_CALL_MAX
    with pytest.raises(OSError, match="Invalid argument"):
        FILES.writev(descriptor, [b"x"] * (BUFFERS_PER_CALL_MAX + 1))
    FILES.close(descriptor)


def test_children_do_not_inherit_descriptors_and_the_mode_is_private_to_write(path: str) -> None:
    descriptor = FILES.open(path, os.O_RDWR | os.O_CREAT)
    assert not os.get_inheritable(descriptor)
    assert os.fstat(descriptor).st_mode & 0o777 == 0o644 & ~_umask()
    FILES.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_lock_keeps_out_other_descriptors_until_its_own_is_closed(path: str) -> None:
    holder = FILES.open(path, os.O_RDWR | os.O_CREAT)
    other = FILES.open(path, os.O_RDWR)
    assert FILES.lock(holder)
    assert FILES.lock(holder)  # the same holder may ask again
    assert not FILES.lock(other)
    FILES.close(FILES.open(path, os.O_RDWR))  # closing an unrelated descriptor frees nothing
    assert not FILES.lock(other)
    FILES.close(holder)
    assert FILES.lock(other)
    FILES.close(other)


def test_a_lock_keeps_out_the_locks_that_java_takes(path: str) -> None:
    descriptor = FILES.open(path, os.O_RDWR | os.O_CREAT)
    # lockf is fcntl's lock of the whole process, which Java's FileChannel.tryLock takes.
    try_lock = (
        "import fcntl, sys\n"
        "with open(sys.argv[1], 'r+b') as file:\n"
        "    try: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "    except OSError: sys.exit(9)\n"
    )
    attempt = [sys.executable, "-c", try_lock, path]
    assert subprocess.run(attempt, check=False).returncode == 0
    assert FILES.lock(descriptor)
    assert subprocess.run(attempt, check=False).returncode == 9
    FILES.close(descriptor)


def test_a_lock_that_cannot_be_asked_for_raises(path: str) -> None:
    descriptor = FILES.open(path, os.O_RDONLY | os.O_CREAT)
    FILES.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        FILES.lock(descriptor)


def test_status_says_what_is_there(tmp_path: Path, path: str) -> None:
    Path(path).write_bytes(b"12345")
    os.utime(path, ns=(0, 1_700_000_000_042_999_999))
    assert FILES.status(path) == FileStatus(size_bytes=5, modified_ms=1_700_000_000_042, is_directory=False)
    assert FILES.status(str(tmp_path)).is_directory
    with pytest.raises(FileNotFoundError):
        FILES.status(f"{path}.none")


def test_directories_are_made_listed_and_removed(tmp_path: Path) -> None:
    nested = str(tmp_path / "logs" / "orders-0")
    FILES.make_directories(nested)
    FILES.make_directories(nested)
    for name in ("b", "a", "c"):
        FILES.close(FILES.open(f"{nested}/{name}", os.O_WRONLY | os.O_CREAT))
    assert FILES.list_directory(nested) == ["a", "b", "c"]
    FILES.rename(f"{nested}/a", f"{nested}/b")
    FILES.fsync_directory(nested)
    assert FILES.list_directory(nested) == ["b", "c"]
    assert not FILES.exists(f"{nested}/a")
    with pytest.raises(OSError, match="not empty"):
        FILES.remove_directory(nested)
    for name in ("b", "c"):
        FILES.unlink(f"{nested}/{name}")
    FILES.remove_directory(nested)
    assert not FILES.exists(nested)
    with pytest.raises(FileNotFoundError):
        FILES.list_directory(nested)


def test_says_how_much_room_there_is(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    assert 0 < FILES.free_bytes(str(tmp_path)) <= found.f_blocks * found.f_frsize
    assert FILES.total_bytes(str(tmp_path)) == found.f_blocks * found.f_frsize
