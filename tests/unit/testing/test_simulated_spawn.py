"""Child processes in a simulation."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from barnabas.kernel.host import ChildLimitError, ChildProcess, Host
from barnabas.kernel.real_spawn import ARGUMENT_BYTES_MAX, CHILDREN_MAX
from barnabas.testing.profile import DiskProfile, Profile
from barnabas.testing.simulated_files import SimulatedFiles
from barnabas.testing.simulated_host import SimulatedMachine
from barnabas.testing.simulated_spawn import load_entry
from barnabas.testing.simulation import Simulation

STEADY = Profile(disk=DiskProfile(short_write_probability=0.0, short_read_probability=0.0))
WRITE_TEN = "tests.unit.testing.child_entries:write_ten"


def written(machine: SimulatedMachine) -> bytes:
    files = SimulatedFiles(machine.disk, "files", lambda _: None)
    if not files.exists("/child"):
        return b""
    return files.pread(files.open("/child", os.O_RDONLY), 1 << 20, 0)


def test_a_child_works_on_the_machines_files_and_takes_time() -> None:
    async def main(host: Host) -> float:
        began = host.loop.time()
        child = await host.spawn(WRITE_TEN, b"ab")
        assert child.process_id > 0
        assert await child.wait() == 0
        assert await child.wait() == 0
        child.signal(signal.SIGTERM)
        return host.loop.time() - began

    with Simulation(1, profile=STEADY) as simulation:
        machine = simulation.machine("a")
        assert simulation.run_on(machine, main) > 0.005
        assert written(machine) == b"ab" * 10


def test_a_child_that_raises_exits_with_one() -> None:
    async def main(host: Host) -> int:
        return await (await host.spawn("tests.unit.testing.child_entries:fail", b"")).wait()

    with Simulation(1) as simulation:
        assert simulation.run_on(simulation.machine("a"), main) == 1


def test_the_exit_status_is_what_the_entry_returned() -> None:
    async def main(host: Host) -> int:
        return await (await host.spawn("tests.unit.testing.child_entries:give", b"7")).wait()

    with Simulation(1) as simulation:
        assert simulation.run_on(simulation.machine("a"), main) == 7


def test_children_and_arguments_are_bounded() -> None:
    async def main(host: Host) -> None:
        with pytest.raises(ValueError, match="at most"):
            await host.spawn(WRITE_TEN, bytes(ARGUMENT_BYTES_MAX + 1))
        children = [await host.spawn(WRITE_TEN, b"") for _ in range(CHILDREN_MAX)]
        with pytest.raises(ChildLimitError):
            await host.spawn(WRITE_TEN, b"")
        for child in children:
            assert await child.wait() == 0
        await host.spawn(WRITE_TEN, b"")

    with Simulation(1) as simulation:
        simulation.run_on(simulation.machine("a"), main)


def test_a_child_can_be_killed_in_the_middle_of_its_work() -> None:
    async def main(host: Host) -> int:
        child: ChildProcess = await host.spawn(WRITE_TEN, b"x")
        child.signal(signal.SIGKILL)
        return await child.wait()

    lengths = set()
    for seed in range(1, 60):
        with Simulation(seed, profile=STEADY) as simulation:
            machine = simulation.machine("a")
            assert simulation.run_on(machine, main) == -signal.SIGKILL
            lengths.add(len(written(machine)))
    assert {0, 10} <= lengths
    assert len(lengths) > 3


def test_a_child_dies_with_its_parent() -> None:
    async def main(host: Host) -> None:
        await host.spawn(WRITE_TEN, b"x")
        started.append(True)
        await host.loop.create_future()

    lengths = set()
    started: list[bool] = []
    for seed in range(1, 40):
        started.clear()
        with Simulation(seed, profile=STEADY) as simulation:
            machine = simulation.machine("a")
            machine.start(main)
            simulation.run_until(lambda: bool(started))
            machine.crash()
            at_death = written(machine)
            simulation.run_for(1)
            assert written(machine) == at_death
            lengths.add(len(at_death))
    assert 0 in lengths
    assert len(lengths) > 2


def test_an_entry_names_module_and_function() -> None:
    assert load_entry(WRITE_TEN).__name__ == "write_ten"
    with pytest.raises(ValueError, match=r"package\.module:function"):
        load_entry("os.path.join")


def test_a_sync_of_a_child_that_runs_when_power_fails_has_happened_or_not() -> None:
    async def main(host: Host) -> None:
        machine.disk.slowness = 1_000
        host.files.open("/child", os.O_RDWR | os.O_CREAT)
        host.files.fsync_directory("/")
        await host.spawn("tests.unit.testing.child_entries:write_and_sync", b"x")
        await asyncio.sleep(0.1)
        machine.power_fail()

    lengths = set()
    for seed in range(1, 60):
        with Simulation(seed, profile=STEADY) as simulation:
            machine = simulation.machine("a")
            machine.start(main)
            simulation.run_for(10)
            assert not machine.powered
            lengths.add(len(written(machine)))
    assert {0, 10} <= lengths
