"""What survives a dead process (everything) and a loss of power (what was synced; the rest by seed)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from barnabas.kernel.host import Host
from barnabas.testing.profile import DiskProfile, Profile
from barnabas.testing.simulated_disk import PAGE_BYTES, SECTOR_BYTES, FaultRule
from barnabas.testing.simulated_files import SimulatedFiles
from barnabas.testing.simulated_host import SimulatedMachine
from barnabas.testing.simulated_loop import ProcessEndedError
from barnabas.testing.simulation import Simulation

STEADY = Profile(disk=DiskProfile(short_write_probability=0.0, short_read_probability=0.0))
SEEDS = range(1, 121)
CREATE = os.O_RDWR | os.O_CREAT


def files_of(machine: SimulatedMachine) -> SimulatedFiles:
    return SimulatedFiles(machine.disk, "files", lambda _: None)


@contextmanager
def a_machine(seed: int = 1) -> Iterator[tuple[Simulation, SimulatedMachine, SimulatedFiles]]:
    with Simulation(seed, profile=STEADY) as simulation:
        machine = simulation.machine("a")
        yield simulation, machine, files_of(machine)


def lose_power(machine: SimulatedMachine) -> SimulatedFiles:
    machine.power_fail()
    machine.power_restore()
    return files_of(machine)


def content(files: SimulatedFiles, path: str) -> bytes | None:
    """What is in the file; None when there is none."""
    if not files.exists(path):
        return None
    descriptor = files.open(path, os.O_RDONLY)
    return files.pread(descriptor, 1 << 30, 0)


def durable_file(files: SimulatedFiles, path: str, data: bytes) -> int:
    descriptor = files.open(path, CREATE)
    files.write(descriptor, data)
    files.fsync(descriptor)
    files.fsync_directory(os.path.dirname(path))
    return descriptor


def outcomes(scenario: Callable[[SimulatedFiles], None], path: str = "/f") -> list[bytes | None]:
    """The content of the path after the scenario and a loss of power, for each seed."""
    found = []
    for seed in SEEDS:
        with a_machine(seed) as (_, machine, files):
            scenario(files)
            found.append(content(lose_power(machine), path))
    return found


def test_a_dead_process_loses_nothing() -> None:
    async def main(host: Host) -> None:
        descriptor = host.files.open("/f", CREATE)
        for _ in range(100):
            host.files.write(descriptor, b"unsynced")
        host.files.rename("/f", "/g")
        await host.loop.create_future()

    for seed in range(1, 20):
        with a_machine(seed) as (simulation, machine, _):
            machine.start(main)
            simulation.run_for(1)
            machine.crash()
            assert content(files_of(machine), "/g") == b"unsynced" * 100
            assert content(files_of(machine), "/f") is None


def test_what_was_synced_with_its_name_survives_every_loss_of_power() -> None:
    def scenario(files: SimulatedFiles) -> None:
        descriptor = durable_file(files, "/f", b"synced")
        files.write(descriptor, b" and not")

    for found in outcomes(scenario):
        assert found is not None
        assert found[:6] == b"synced"


def test_unsynced_appends_survive_wholly_or_partly_or_not() -> None:
    new = bytes(range(1, 251)) * 40

    def scenario(files: SimulatedFiles) -> None:
        files.write(durable_file(files, "/f", b"old"), new)

    tails = [(found or b"")[3:] for found in outcomes(scenario)]
    assert b"" in tails
    assert new in tails
    torn = [tail for tail in tails if tail not in (b"", new)]
    assert len(torn) > 10
    prefixes = [tail for tail in torn if new.startswith(tail)]
    holes = [tail for tail in torn if not new.startswith(tail)]
    assert prefixes
    assert holes
    for tail in torn:
        # Zeros or what was written; nothing else.
        assert all(byte in (0, new[index]) for index, byte in enumerate(tail))


def test_a_file_may_have_grown_without_its_data() -> None:
    def scenario(files: SimulatedFiles) -> None:
        files.write(durable_file(files, "/f", b""), b"x" * 100)

    found = outcomes(scenario)
    assert bytes(100) in found
    assert b"x" * 100 in found
    assert b"" in found


def test_a_torn_overwrite_leaves_each_sector_old_or_new() -> None:
    size = 4 * PAGE_BYTES

    def scenario(files: SimulatedFiles) -> None:
        files.pwrite(durable_file(files, "/f", b"o" * size), b"n" * size, 0)

    found = outcomes(scenario)
    mixed = 0
    for one in found:
        assert one is not None
        assert len(one) == size
        for start in range(0, size, SECTOR_BYTES):
            assert len(set(one[start : start + SECTOR_BYTES])) == 1
        mixed += len(set(one)) > 1
    assert mixed > 10


def test_later_writes_may_survive_where_earlier_ones_do_not() -> None:
    def scenario(files: SimulatedFiles) -> None:
        descriptor = durable_file(files, "/f", b"")
        for letter in b"abc":
            files.write(descriptor, bytes([letter]) * SECTOR_BYTES)

    found = {
        "".join(chr(one[start]) if one[start] else "." for start in range(0, len(one), SECTOR_BYTES))
        for one in outcomes(scenario)
        if one is not None
    }
    assert {"abc", "ab", "a", ""} <= found
    assert {"..c", ".b", "a.c"} & found


def test_half_of_the_failures_keep_the_order_of_changes() -> None:
    def scenario(files: SimulatedFiles) -> None:
        for number in range(6):
            files.open(f"/{number}", CREATE)

    prefixes = 0
    for seed in SEEDS:
        with a_machine(seed) as (_, machine, files):
            scenario(files)
            names = lose_power(machine).list_directory("/")
            prefixes += names == [str(number) for number in range(len(names))]
    assert len(SEEDS) * 0.4 < prefixes < len(SEEDS) * 0.8


def test_a_name_is_durable_only_with_its_directory() -> None:
    def unnamed(files: SimulatedFiles) -> None:
        descriptor = files.open("/f", CREATE)
        files.write(descriptor, b"data")
        files.fsync(descriptor)

    found = outcomes(unnamed)
    assert set(found) == {None, b"data"}

    def in_a_new_directory(files: SimulatedFiles) -> None:
        files.make_directories("/d")
        durable_file(files, "/d/f", b"data")

    assert set(outcomes(in_a_new_directory, "/d/f")) == {None, b"data"}


def test_a_rename_is_atomic_and_durable_with_its_directory() -> None:
    def replace(files: SimulatedFiles) -> None:
        durable_file(files, "/f", b"old")
        descriptor = files.open("/f.tmp", CREATE)
        files.write(descriptor, b"new")
        files.fsync(descriptor)
        files.rename("/f.tmp", "/f")

    assert set(outcomes(replace)) == {b"old", b"new"}

    def replace_and_sync(files: SimulatedFiles) -> None:
        replace(files)
        files.fsync_directory("/")

    assert set(outcomes(replace_and_sync)) == {b"new"}


def test_a_rename_without_a_sync_of_the_data_may_leave_an_empty_file() -> None:
    def careless(files: SimulatedFiles) -> None:
        durable_file(files, "/f", b"old")
        files.write(files.open("/f.tmp", CREATE), b"new")
        files.rename("/f.tmp", "/f")
        files.fsync_directory("/")

    assert {b"", b"new"} <= set(outcomes(careless))
    assert b"old" not in set(outcomes(careless))


def test_removed_files_may_come_back_until_the_directory_is_synced() -> None:
    def remove(files: SimulatedFiles) -> None:
        files.close(durable_file(files, "/f", b"data"))
        files.unlink("/f")

    assert set(outcomes(remove)) == {None, b"data"}

    def remove_and_sync(files: SimulatedFiles) -> None:
        remove(files)
        files.fsync_directory("/")

    assert set(outcomes(remove_and_sync)) == {None}


def test_a_truncation_is_undone_or_done() -> None:
    def truncate(files: SimulatedFiles) -> None:
        files.truncate(durable_file(files, "/f", b"0123456789"), 4)

    assert set(outcomes(truncate)) == {b"0123456789", b"0123"}

    def truncate_and_write(files: SimulatedFiles) -> None:
        descriptor = durable_file(files, "/f", b"0123456789")
        files.truncate(descriptor, 4)
        files.pwrite(descriptor, b"xx", 4)
        files.fsync(descriptor)

    assert set(outcomes(truncate_and_write)) == {b"0123xx"}


def test_old_changes_are_written_back_without_a_sync() -> None:
    for seed in SEEDS:
        with a_machine(seed) as (simulation, machine, files):
            files.write(files.open("/f", CREATE), b"data")
            simulation.run_for(DiskProfile().writeback_seconds + 1)
            assert content(lose_power(machine), "/f") == b"data"


def test_data_of_a_failed_sync_is_not_saved_by_the_next() -> None:
    lost = 0
    for seed in SEEDS:
        with a_machine(seed) as (_, machine, files):
            descriptor = durable_file(files, "/f", b"")
            files.write(descriptor, b"x" * SECTOR_BYTES)
            machine.disk.fault_rules = [FaultRule(frozenset({"fsync"}), times=1)]
            with pytest.raises(OSError, match="Input/output error"):
                files.fsync(descriptor)
            files.write(descriptor, b"y" * SECTOR_BYTES)
            files.fsync(descriptor)
            found = content(lose_power(machine), "/f")
            assert found is not None
            assert found[SECTOR_BYTES:] == b"y" * SECTOR_BYTES
            lost += found[:SECTOR_BYTES] != b"x" * SECTOR_BYTES
    assert lost > 10


def test_space_is_counted_again_after_a_loss_of_power() -> None:
    with a_machine() as (_, machine, files):
        durable_file(files, "/kept", bytes(1000))
        descriptor = files.open("/lost", CREATE)
        files.write(descriptor, bytes(5000))
        after = lose_power(machine)
        kept = sum(len(content(after, f"/{name}") or b"") for name in after.list_directory("/"))
        assert machine.disk.used_bytes == kept


def test_power_can_be_cut_in_the_middle_of_each_operation() -> None:
    async def main(host: Host) -> None:
        files = host.files
        descriptor = files.open("/f", CREATE)
        files.fsync_directory("/")
        for number in range(5):
            files.write(descriptor, bytes([number]) * 10)
            files.fsync(descriptor)
            acknowledged.append(number)
        await host.loop.create_future()

    acknowledged: list[int] = []
    with a_machine() as (simulation, machine, _):
        machine.start(main)
        simulation.run_for(1)
        operations = machine.disk.operations
    assert operations == 12
    reached = set()
    for number in range(1, operations + 1):
        for seed in range(1, 6):
            acknowledged.clear()
            with a_machine(seed) as (simulation, machine, _):
                machine.disk.cut_power_at = number
                machine.start(main)
                simulation.run_until(lambda machine=machine: not machine.powered)  # type: ignore[misc]
                assert not machine.running
                reached.add(len(acknowledged))
                machine.power_restore()
                found = content(files_of(machine), "/f") or b""
                for one in acknowledged:
                    assert found[one * 10 : one * 10 + 10] == bytes([one]) * 10
    assert reached == {0, 1, 2, 3, 4}


def test_the_operation_at_which_power_is_cut_never_returns() -> None:
    with a_machine() as (_, machine, files):
        machine.disk.cut_power_at = machine.disk.operations + 1
        with pytest.raises(ProcessEndedError):
            files.open("/f", CREATE)
        assert not machine.powered


def test_many_short_lived_files_do_not_pile_up() -> None:
    with a_machine() as (simulation, machine, files):
        for number in range(5_000):
            descriptor = files.open(f"/{number}", CREATE)
            files.write(descriptor, b"x")
            files.close(descriptor)
            files.unlink(f"/{number}")
            simulation.run_for(0.1)
        assert len(machine.disk._changed) < 3_000
        assert len(machine.disk._names) < 1_000
        assert machine.disk.used_bytes == 0


def test_a_sync_that_fails_does_not_undo_one_that_had_begun_before() -> None:
    for seed in SEEDS:
        with a_machine(seed) as (_, machine, files):
            durable_file(files, "/f", b"")
            descriptor = files.open("/f", os.O_RDWR)
            files.write(descriptor, b"kept")
            under_way = machine.disk.begin_sync(None)
            machine.disk.sync(machine.disk.root.entries["f"], under_way)  # type: ignore[index]
            machine.disk.fault_rules.append(FaultRule(frozenset({"fsync"}), times=1))
            with pytest.raises(OSError, match="Input/output error"):
                files.fsync(descriptor)
            machine.disk.finish_sync(under_way)
            files.fsync(descriptor)
            assert content(lose_power(machine), "/f") == b"kept"


def test_a_file_that_was_renamed_twice_has_one_name_after_a_loss_of_power() -> None:
    for seed in SEEDS:
        with a_machine(seed) as (_, machine, files):
            files.make_directories("/one")
            files.make_directories("/two")
            files.fsync_directory("/")
            durable_file(files, "/one/a", b"content")
            files.rename("/one/a", "/one/b")
            files.rename("/one/b", "/two/c")
            files.fsync_directory("/two")
            after = lose_power(machine)
            assert content(after, "/two/c") == b"content"
            assert after.list_directory("/one") == []
