"""Work off the loop, in a simulation."""

from __future__ import annotations

import asyncio
import os

import pytest

from barnabas.kernel.host import Host, OffloadFullError, OffloadKind
from barnabas.testing.profile import DiskProfile, OffloadProfile, Profile
from barnabas.testing.simulated_files import SimulatedFiles
from barnabas.testing.simulated_host import SimulatedMachine
from barnabas.testing.simulation import Simulation

STEADY = Profile(disk=DiskProfile(short_write_probability=0.0, short_read_probability=0.0))
CREATE = os.O_RDWR | os.O_CREAT
SEEDS = range(1, 61)


def content(machine: SimulatedMachine, path: str) -> bytes | None:
    files = SimulatedFiles(machine.disk, "files", lambda _: None)
    if not files.exists(path):
        return None
    return files.pread(files.open(path, os.O_RDONLY), 1 << 20, 0)


def test_gives_results_and_errors_later_on_the_loop() -> None:
    async def main(host: Host) -> None:
        began = host.loop.time()
        future = host.offload(OffloadKind.CPU, divmod, 17, 5)
        assert not future.done()
        assert await future == (3, 2)
        assert host.loop.time() > began
        with pytest.raises(ZeroDivisionError):
            await host.offload(OffloadKind.CPU, divmod, 17, 0)

    with Simulation(1) as simulation:
        simulation.run_on(simulation.machine("a"), main)


def test_work_of_one_order_runs_one_at_a_time_first_in_first_out() -> None:
    async def main(host: Host) -> None:
        ordered: list[tuple[str, int]] = []
        free: list[int] = []
        waits = []
        for number in range(30):
            for order in ("a", "b"):
                waits.append(host.offload(OffloadKind.SYNC, ordered.append, (order, number), order=order))
            waits.append(host.offload(OffloadKind.DISK, free.append, number))
        await asyncio.gather(*waits)
        for order in ("a", "b"):
            assert [number for name, number in ordered if name == order] == list(range(30))
        assert sorted(free) == list(range(30))
        assert free != sorted(free)
        assert ordered != sorted(ordered, key=lambda one: one[1])

    with Simulation(1) as simulation:
        simulation.run_on(simulation.machine("a"), main)


def test_a_full_queue_refuses_and_each_kind_has_its_own() -> None:
    async def main(host: Host) -> None:
        futures = [host.offload(OffloadKind.SYNC, int) for _ in range(7)]
        with pytest.raises(OffloadFullError, match="7 pieces of sync work are unfinished"):
            host.offload(OffloadKind.SYNC, int)
        futures.append(host.offload(OffloadKind.DISK, int))
        assert await asyncio.gather(*futures) == [0] * 8
        await host.offload(OffloadKind.SYNC, int)

    small = Profile(offload=OffloadProfile(workers=2, unfinished_max=7))
    with Simulation(1, profile=small) as simulation:
        simulation.run_on(simulation.machine("a"), main)


def test_a_slow_disk_makes_syncs_late() -> None:
    async def main(host: Host) -> float:
        descriptor = host.files.open("/f", CREATE)
        began = host.loop.time()
        await host.offload(OffloadKind.SYNC, host.files.fdatasync, descriptor)
        return host.loop.time() - began

    with Simulation(1) as simulation:
        machine = simulation.machine("a")
        assert simulation.run_on(machine, main) < 0.01
        machine.disk.slowness = 1_000
        assert simulation.run_on(machine, main) > 0.19


def test_a_sync_covers_only_what_was_written_when_it_began() -> None:
    def run(seed: int) -> bytes | None:
        async def main(host: Host) -> None:
            descriptor = host.files.open("/f", CREATE)
            host.files.fsync_directory("/")
            machine.disk.slowness = 1_000
            host.files.write(descriptor, b"before")
            future = host.offload(OffloadKind.SYNC, host.files.fsync, descriptor)
            await asyncio.sleep(0.05)
            assert not future.done()
            host.files.write(descriptor, b" during")
            await future
            machine.power_fail()

        with Simulation(seed, profile=STEADY) as simulation:
            machine = simulation.machine("a")
            machine.start(main)
            simulation.run_until(lambda: not machine.powered)
            return content(machine, "/f")

    found = [run(seed) for seed in SEEDS]
    assert all(one is not None and one.startswith(b"before") for one in found)
    assert b"before" in found
    assert b"before during" in found


def test_a_sync_under_way_when_power_fails_has_happened_or_not_and_so_has_what_follows_it() -> None:
    def replace(host: Host) -> None:
        files = host.files
        descriptor = files.open("/f.tmp", CREATE)
        files.write(descriptor, b"new")
        files.fsync(descriptor)
        files.rename("/f.tmp", "/f")
        files.fsync_directory("/")

    def run(seed: int) -> bytes | None:
        async def main(host: Host) -> None:
            descriptor = host.files.open("/f", CREATE)
            host.files.write(descriptor, b"old")
            host.files.fsync(descriptor)
            host.files.fsync_directory("/")
            machine.disk.slowness = 1_000
            future = host.offload(OffloadKind.DISK, replace, host)
            await asyncio.sleep(0.1)
            assert not future.done()
            assert content(machine, "/f") == b"new"
            machine.power_fail()

        with Simulation(seed, profile=STEADY) as simulation:
            machine = simulation.machine("a")
            machine.start(main)
            simulation.run_until(lambda: not machine.powered)
            return content(machine, "/f")

    # Never empty or torn: the rename cannot be there without the data that was synced before it.
    assert {run(seed) for seed in SEEDS} == {b"old", b"new"}


def test_unfinished_work_of_a_dead_process_has_happened_partly_or_not() -> None:
    def write_three(host: Host) -> None:
        descriptor = host.files.open("/f", CREATE)
        for _ in range(3):
            host.files.write(descriptor, b"x")

    async def main(host: Host) -> None:
        host.offload(OffloadKind.DISK, write_three, host)
        started.append(True)
        await host.loop.create_future()

    found = set()
    started: list[bool] = []
    for seed in SEEDS:
        started.clear()
        with Simulation(seed, profile=STEADY) as simulation:
            machine = simulation.machine("a")
            machine.start(main)
            simulation.run_until(lambda: bool(started))
            machine.crash()
            found.add(content(machine, "/f"))
    assert {None, b"", b"x", b"xx", b"xxx"} == found


def test_unfinished_work_of_one_order_happens_as_a_prefix() -> None:
    async def main(host: Host) -> None:
        descriptor = host.files.open("/f", CREATE)
        for number in range(6):
            host.offload(OffloadKind.DISK, host.files.write, descriptor, b"%d" % number, order="/f")
        started.append(True)
        await host.loop.create_future()

    found = set()
    started: list[bool] = []
    for seed in SEEDS:
        started.clear()
        with Simulation(seed, profile=STEADY) as simulation:
            machine = simulation.machine("a")
            machine.start(main)
            simulation.run_until(lambda: bool(started))
            machine.crash()
            found.add(content(machine, "/f"))
    assert len(found) > 3
    assert all(one is not None and b"012345".startswith(one) for one in found)


def test_nothing_is_begun_or_told_while_the_process_is_paused() -> None:
    ran: list[float] = []

    async def main(host: Host) -> None:
        future = host.offload(OffloadKind.DISK, lambda: ran.append(simulation.now))
        started.append(True)
        await future
        ran.append(simulation.now)

    started: list[bool] = []
    with Simulation(1) as simulation:
        machine = simulation.machine("a")
        process = machine.start(main)
        simulation.run_until(lambda: bool(started))
        machine.pause()
        simulation.run_for(5)
        assert ran == []
        machine.resume()
        simulation.run_until(lambda: process.ended)
    assert len(ran) == 2
    assert min(ran) >= 5


def test_cancelling_keeps_work_that_has_not_begun_from_running() -> None:
    async def main(host: Host) -> None:
        done: list[int] = []
        future = host.offload(OffloadKind.DISK, done.append, 1, order="a")
        following = host.offload(OffloadKind.DISK, done.append, 2, order="a")
        future.cancel()
        await following
        assert done == [2]
        running = host.offload(OffloadKind.DISK, done.append, 3)
        while done == [2]:
            await asyncio.sleep(0)
        running.cancel()
        await host.offload(OffloadKind.DISK, done.append, 4)
        assert done == [2, 3, 4]

    with Simulation(1) as simulation:
        simulation.run_on(simulation.machine("a"), main)


def test_a_stop_iteration_reaches_the_caller() -> None:
    async def main(host: Host) -> None:
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            await host.offload(OffloadKind.CPU, next, iter(()))

    with Simulation(1) as simulation:
        simulation.run_on(simulation.machine("a"), main)


@pytest.mark.parametrize("pause_seconds", [0.0, 0.05])
def test_what_follows_a_sync_in_its_order_has_not_happened_where_the_sync_has_not(pause_seconds: float) -> None:
    def sync_new_file(host: Host, descriptor: int) -> None:
        host.files.write(descriptor, b"all of it")
        host.files.fsync(descriptor)

    def run(seed: int) -> bytes | None:
        async def main(host: Host) -> None:
            descriptor = host.files.open("/new", CREATE)
            host.files.fsync_directory("/")
            machine.disk.slowness = 1_000
            host.offload(OffloadKind.SYNC, sync_new_file, host, descriptor, order="/new")
            host.offload(OffloadKind.SYNC, host.files.rename, "/new", "/final", order="/new")
            await asyncio.sleep(pause_seconds)
            machine.power_fail()

        with Simulation(seed, profile=STEADY) as simulation:
            machine = simulation.machine("a")
            machine.start(main)
            simulation.run_until(lambda: not machine.powered)
            return content(machine, "/final")

    assert {run(seed) for seed in SEEDS} <= {None, b"all of it"}
