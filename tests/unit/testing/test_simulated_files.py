"""Files of a simulated process: the meaning of the calls, errors and unreliabilities. What a power failure spares:
test_simulated_disk.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator

import pytest

from barnabas.kernel.host import BUFFERS_PER_CALL_MAX, READ_CACHED_ONLY, Files, Host
from barnabas.testing.profile import DiskProfile, Profile
from barnabas.testing.simulated_disk import FaultRule
from barnabas.testing.simulated_files import SimulatedFiles
from barnabas.testing.simulated_host import SimulatedMachine
from barnabas.testing.simulated_loop import ProcessEndedError
from barnabas.testing.simulation import Simulation

STEADY = Profile(disk=DiskProfile(short_write_probability=0.0, short_read_probability=0.0, uncached_probability=0.0))
WRITE = os.O_RDWR | os.O_CREAT


@pytest.fixture
def machine() -> Iterator[SimulatedMachine]:
    with Simulation(1, profile=STEADY) as simulation:
        yield simulation.machine("a")


def files_of(machine: SimulatedMachine, name: str = "files") -> SimulatedFiles:
    return SimulatedFiles(machine.disk, name, lambda _: None)


@pytest.fixture
def files(machine: SimulatedMachine) -> SimulatedFiles:
    return files_of(machine)


def write_file(files: Files, path: str, data: bytes) -> None:
    descriptor = files.open(path, WRITE | os.O_TRUNC)
    files.write(descriptor, data)
    files.close(descriptor)


def read_file(files: Files, path: str) -> bytes:
    descriptor = files.open(path, os.O_RDONLY)
    data = files.read(descriptor, 1 << 30)
    files.close(descriptor)
    return data


def raises(number: int, call: Callable[[], object]) -> None:
    with pytest.raises(OSError) as caught:
        call()
    assert caught.value.errno == number


def test_reads_what_was_written_at_positions_and_offsets(files: SimulatedFiles) -> None:
    descriptor = files.open("/f", WRITE)
    assert files.write(descriptor, b"0123") == 4
    assert files.writev(descriptor, [b"45", bytearray(b"67"), memoryview(b"89")]) == 6
    assert files.pwrite(descriptor, b"xy", 2) == 2
    assert files.pread(descriptor, 4, 1) == b"1xy4"
    assert files.read(descriptor, 10) == b""
    buffers: list[bytearray | memoryview] = [bytearray(3), memoryview(bytearray(4))]
    assert files.preadv(descriptor, buffers, 5) == 5
    assert bytes(buffers[0]) + bytes(buffers[1]) == b"56789\0\0"
    assert files.pwrite(descriptor, b"!", 12) == 1
    assert files.pread(descriptor, 100, 9) == b"9\0\0!"
    files.truncate(descriptor, 3)
    assert files.size(descriptor) == 3
    files.truncate(descriptor, 5)
    assert files.pread(descriptor, 10, 0) == b"01x\0\0"
    files.close(descriptor)


def test_append_writes_at_the_end(files: SimulatedFiles) -> None:
    one = files.open("/f", WRITE | os.O_APPEND)
    two = files.open("/f", WRITE | os.O_APPEND)
    for descriptor, data in ((one, b"a"), (two, b"b"), (one, b"c")):
        files.write(descriptor, data)
    assert read_file(files, "/f") == b"abc"


def test_open_obeys_its_flags(files: SimulatedFiles) -> None:
    raises(errno.ENOENT, lambda: files.open("/f", os.O_RDWR))
    raises(errno.ENOENT, lambda: files.open("/no/f", WRITE))
    write_file(files, "/f", b"old")
    raises(errno.EEXIST, lambda: files.open("/f", WRITE | os.O_EXCL))
    raises(errno.ENOTDIR, lambda: files.open("/f/below", WRITE))
    reader = files.open("/f", os.O_RDONLY)
    raises(errno.EBADF, lambda: files.write(reader, b"x"))
    raises(errno.EINVAL, lambda: files.truncate(reader, 0))
    writer = files.open("/f", os.O_WRONLY | os.O_TRUNC)
    raises(errno.EBADF, lambda: files.read(writer, 1))
    assert files.size(writer) == 0
    files.make_directories("/d")
    raises(errno.EISDIR, lambda: files.open("/d", os.O_RDWR))
    with pytest.raises(ValueError, match="absolute"):
        files.open("relative", WRITE)


def test_a_closed_descriptor_is_never_used_again(files: SimulatedFiles) -> None:
    first = files.open("/f", WRITE)
    files.close(first)
    second = files.open("/g", WRITE)
    assert second != first
    raises(errno.EBADF, lambda: files.write(first, b"x"))
    raises(errno.EBADF, lambda: files.close(first))


def test_directories_are_made_listed_renamed_and_removed(files: SimulatedFiles) -> None:
    files.make_directories("/a/b/c")
    files.make_directories("/a/b/c/")
    write_file(files, "/a/b/z", b"1")
    write_file(files, "/a/b/y", b"22")
    assert files.list_directory("/a/b") == ["c", "y", "z"]
    assert files.status("/a/b").is_directory
    assert files.status("/a/b/y").size_bytes == 2
    assert files.exists("/a/b/y")
    assert not files.exists("/a/x")
    assert not files.exists("/a/b/y/below")
    raises(errno.ENOENT, lambda: files.status("/a/x"))
    raises(errno.ENOENT, lambda: files.list_directory("/x"))
    raises(errno.ENOTEMPTY, lambda: files.remove_directory("/a/b"))
    raises(errno.ENOTDIR, lambda: files.remove_directory("/a/b/y"))
    raises(errno.EISDIR, lambda: files.unlink("/a/b/c"))
    raises(errno.EEXIST, lambda: files.make_directories("/a/b/y"))
    files.remove_directory("/a/b/c")
    files.rename("/a/b", "/a/d")
    assert files.list_directory("/a") == ["d"]
    raises(errno.EINVAL, lambda: files.rename("/a", "/a/d/e"))
    files.unlink("/a/d/y")
    assert files.list_directory("/a/d") == ["z"]


def test_rename_replaces_its_target(files: SimulatedFiles) -> None:
    write_file(files, "/new", b"new")
    write_file(files, "/old", b"old")
    files.rename("/new", "/old")
    assert files.list_directory("/") == ["old"]
    assert read_file(files, "/old") == b"new"
    files.rename("/old", "/old")
    assert read_file(files, "/old") == b"new"
    files.make_directories("/d/e")
    raises(errno.EISDIR, lambda: files.rename("/old", "/d"))
    raises(errno.ENOTDIR, lambda: files.rename("/d", "/old"))
    raises(errno.ENOENT, lambda: files.rename("/none", "/x"))


def test_an_open_file_lives_on_without_its_name(files: SimulatedFiles) -> None:
    descriptor = files.open("/f", WRITE)
    files.write(descriptor, b"still here")
    files.unlink("/f")
    assert not files.exists("/f")
    assert files.pread(descriptor, 100, 0) == b"still here"


def test_modification_times_are_the_machines(machine: SimulatedMachine, files: SimulatedFiles) -> None:
    write_file(files, "/f", b"1")
    machine.clock.step(100)
    assert machine.clock.time_ms() - files.status("/f").modified_ms >= 100_000
    write_file(files, "/f", b"2")
    assert files.status("/f").modified_ms == machine.clock.time_ms()


def test_a_full_disk_takes_what_fits_then_refuses(machine: SimulatedMachine, files: SimulatedFiles) -> None:
    machine.disk.capacity_bytes = 100
    descriptor = files.open("/f", WRITE)
    assert files.free_bytes("/") == files.total_bytes("/") == 100
    assert files.write(descriptor, bytes(80)) == 80
    assert files.write(descriptor, bytes(80)) == 20
    raises(errno.ENOSPC, lambda: files.write(descriptor, b"x"))
    raises(errno.ENOSPC, lambda: files.truncate(descriptor, 101))
    assert files.free_bytes("/") == 0
    assert files.pwrite(descriptor, b"over", 10) == 4
    files.unlink("/f")
    assert files.free_bytes("/") == 0
    files.close(descriptor)
    assert files.free_bytes("/") == 100


def test_locks_are_exclusive_and_end_with_descriptor_or_process(machine: SimulatedMachine) -> None:
    one, two = files_of(machine, "one"), files_of(machine, "two")
    mine = one.open("/lock", WRITE)
    raises(errno.EBADF, lambda: one.lock(one.open("/lock", os.O_RDONLY)))
    theirs = two.open("/lock", WRITE)
    assert one.lock(mine)
    assert one.lock(mine)
    assert not one.lock(one.open("/lock", WRITE))
    assert not two.lock(theirs)
    one.close(mine)
    assert two.lock(theirs)
    two.cut_off()
    two.release()
    assert one.lock(one.open("/lock", WRITE))


def test_injected_errors_strike_by_operation_path_and_number(machine: SimulatedMachine, files: SimulatedFiles) -> None:
    machine.disk.fault_rules = [
        FaultRule(frozenset({"write"}), "/bad/*", times=2),
        FaultRule(frozenset({"open"}), "/denied", error_number=errno.EACCES),
    ]
    files.make_directories("/bad")
    descriptor = files.open("/bad/f", WRITE)
    good = files.open("/good", WRITE)
    assert files.write(good, b"x") == 1
    raises(errno.EIO, lambda: files.write(descriptor, b"x"))
    raises(errno.EIO, lambda: files.pwrite(descriptor, b"x", 0))
    assert files.write(descriptor, b"x") == 1
    raises(errno.EACCES, lambda: files.open("/denied", WRITE))


def test_injected_errors_may_strike_sometimes(machine: SimulatedMachine, files: SimulatedFiles) -> None:
    machine.disk.fault_rules = [FaultRule(frozenset({"fsync"}), probability=0.5)]
    descriptor = files.open("/f", WRITE)
    failed = 0
    for _ in range(100):
        try:
            files.fdatasync(descriptor)
        except OSError:
            failed += 1
    assert 30 < failed < 70


def test_short_reads_and_writes_and_uncached_reads_happen_by_seed() -> None:
    unsteady = DiskProfile(short_write_probability=0.3, short_read_probability=0.3, uncached_probability=0.3)
    with Simulation(1, profile=Profile(disk=unsteady)) as simulation:
        files = files_of(simulation.machine("a"))
        descriptor = files.open("/f", WRITE)
        written = [files.write(descriptor, bytes(100)) for _ in range(100)]
        assert 10 < sum(count < 100 for count in written) < 60
        assert min(written) >= 1
        assert files.size(descriptor) == sum(written)
        read = [len(files.pread(descriptor, 100, 0)) for _ in range(100)]
        assert 10 < sum(count < 100 for count in read) < 60
        uncached = short = 0
        for _ in range(100):
            try:
                short += files.preadv(descriptor, [bytearray(10)], 0, READ_CACHED_ONLY) < 10
            except BlockingIOError:
                uncached += 1
        assert 10 < uncached < 60
        assert 10 < short < 60
        for _ in range(100):
            files.preadv(descriptor, [bytearray(10)], 0)


def test_a_dead_process_reaches_no_file(machine: SimulatedMachine, files: SimulatedFiles) -> None:
    descriptor = files.open("/f", WRITE)
    files.cut_off()
    with pytest.raises(ProcessEndedError):
        files.write(descriptor, b"x")
    with pytest.raises(ProcessEndedError):
        files.exists("/f")
    files.allow_calls(1)
    assert files.write(descriptor, b"x") == 1
    with pytest.raises(ProcessEndedError):
        files.write(descriptor, b"y")
    assert read_file(files_of(machine, "next"), "/f") == b"x"


def test_calls_on_the_loop_hold_the_loop_up() -> None:
    async def main(host: Host) -> None:
        descriptor = host.files.open("/f", WRITE)
        host.files.write(descriptor, b"x")
        host.loop.call_soon(lambda: times.append(host.loop.time()))
        host.files.fsync(descriptor)
        times.append(host.loop.time())

    times: list[float] = []
    with Simulation(1) as simulation:
        machine = simulation.machine("a")
        machine.disk.slowness = 1000
        simulation.run_on(machine, main)
        assert times[1] - times[0] > 1000 * DiskProfile().sync_seconds[0]


def test_a_file_system_may_not_know_what_is_cached() -> None:
    with Simulation(1, profile=Profile(disk=DiskProfile(knows_what_is_cached=False))) as simulation:
        files = files_of(simulation.machine("a"))
        descriptor = files.open("/f", WRITE)
        raises(errno.EOPNOTSUPP, lambda: files.preadv(descriptor, [bytearray(1)], 0, READ_CACHED_ONLY))
        assert files.preadv(descriptor, [bytearray(1)], 0) == 0


def test_a_call_takes_a_bounded_number_of_buffers(files: SimulatedFiles) -> None:
    descriptor = files.open("/f", WRITE)
    assert files.writev(descriptor, [b"x"] * BUFFERS_PER_CALL_MAX) == BUFFERS_PER_CALL_MAX
    raises(errno.EINVAL, lambda: files.writev(descriptor, [b"x"] * (BUFFERS_PER_CALL_MAX + 1)))
    raises(errno.EINVAL, lambda: files.preadv(descriptor, [bytearray(1)] * (BUFFERS_PER_CALL_MAX + 1), 0))
