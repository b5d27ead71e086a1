"""Machines and processes: starting, ending, crashing, losing power."""

from __future__ import annotations

import asyncio
import gc
import os

import pytest

from barnabas.kernel.host import Host, OffloadKind
from barnabas.testing.simulation import Simulation, SimulationFailedError


def test_a_host_has_all_its_ports_and_they_come_from_the_seed() -> None:
    async def main(host: Host) -> tuple[str, float, bytes, int]:
        assert host.loop is asyncio.get_running_loop()
        return host.name, host.random.random(), host.entropy(8), host.clock.time_ms()

    def run(seed: int) -> tuple[str, float, bytes, int]:
        with Simulation(seed) as simulation:
            result: tuple[str, float, bytes, int] = simulation.run_on(simulation.machine("a"), main)
            return result

    assert run(1) == run(1)
    assert run(1)[0] == "a"
    assert len(run(1)[2]) == 8
    for index in (1, 2, 3):
        assert run(1)[index] != run(2)[index]


def test_randomness_differs_between_machines_and_between_boots() -> None:
    async def main(host: Host) -> bytes:
        return host.entropy(16)

    with Simulation(1) as simulation:
        drawn = [simulation.run_on(simulation.machine(name), main) for name in ("a", "b", "a")]
    assert len(set(drawn)) == 3


def test_files_outlive_the_process_and_memory_does_not() -> None:
    async def main(host: Host) -> int:
        boots = len(host.files.list_directory("/"))
        host.files.close(host.files.open(f"/{boots}", os.O_CREAT | os.O_WRONLY))
        return boots

    with Simulation(1) as simulation:
        machine = simulation.machine("a")
        assert [simulation.run_on(machine, main) for _ in range(3)] == [0, 1, 2]


def test_when_main_returns_its_tasks_are_cancelled_and_ports_close() -> None:
    ended: list[str] = []

    async def background() -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            await asyncio.sleep(0.001)
            ended.append("background")

    async def main(host: Host) -> str:
        await host.loop.create_server(asyncio.Protocol, host.name, 1)
        task = asyncio.create_task(background())
        await asyncio.sleep(0.1)
        assert not task.done()
        return "result"

    with Simulation(1) as simulation:
        machine = simulation.machine("a")
        process = machine.start(main)
        with pytest.raises(RuntimeError, match="running still"):
            process.result()
        simulation.run_for(1)
        assert not machine.running
        assert process.ended
        assert process.result() == "result"
        assert ended == ["background"]
        assert not machine.port.listeners


def test_a_crash_cuts_everything_off_at_once() -> None:
    acts: list[str] = []

    async def main(host: Host) -> None:
        descriptor = host.files.open("/f", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        reader, writer = await asyncio.open_connection("b", 1)
        try:
            acts.append("connected")
            await reader.read()
        finally:
            # The last words of a dead process: none of them may reach the world.
            writer.write(b"late")
            writer.close()
            host.offload(OffloadKind.DISK, host.files.write, descriptor, b"late")
            acts.append("about to write")
            host.files.write(descriptor, b"late")
            acts.append("wrote")

    async def listen(host: Host) -> None:
        async def collect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            received.append(await reader.read())
            writer.close()

        server = await asyncio.start_server(collect, "b", 1)
        await server.serve_forever()

    received: list[bytes] = []
    with Simulation(1) as simulation:
        simulation.machine("b").start(listen)
        simulation.run_for(0.1)
        machine = simulation.machine("a")
        process = machine.start(main)
        simulation.run_until(lambda: acts == ["connected"])
        simulation.run_for(0.1)
        process.crash()
        process.crash()
        assert not machine.running
        simulation.run_for(5)
        gc.collect()
        machine.start(_nothing)
        assert acts == ["connected", "about to write"]
        assert received == [b""]
        assert simulation.run_on(machine, _size_of_f) == 0


async def _nothing(host: Host) -> None:
    pass


async def _size_of_f(host: Host) -> int:
    return host.files.status("/f").size_bytes


def test_a_process_can_crash_itself() -> None:
    acts: list[str] = []

    async def main(host: Host) -> None:
        acts.append("before")
        simulation.machine("a").crash()
        await asyncio.sleep(0)
        acts.append("after")

    with Simulation(1) as simulation:
        simulation.machine("a").start(main)
        simulation.run_for(1)
        gc.collect()
    assert acts == ["before"]


def test_restart_starts_what_was_killed_with_the_power_on() -> None:
    boots: list[str] = []

    async def first(host: Host) -> None:
        boots.append("first")
        await host.loop.create_future()

    async def second(host: Host) -> None:
        boots.append("second")
        await host.loop.create_future()

    with Simulation(1) as simulation:
        machine = simulation.machine("a")
        machine.start(first, name="one")
        machine.start(second, name="two")
        simulation.run_for(0.1)
        assert sorted(boots) == ["first", "second"]
        boots.clear()
        machine.power_fail()
        assert not machine.powered
        assert not machine.running
        simulation.run_for(1)
        restarted = machine.restart()
        assert [process.name for process in restarted] == ["a:one", "a:two"]
        simulation.run_for(0.1)
        assert sorted(boots) == ["first", "second"]
        boots.clear()
        machine.processes[1].crash()
        assert [process.name for process in machine.processes] == ["a:one"]
        machine.restart()
        simulation.run_for(0.1)
        assert sorted(boots) == ["first", "second"]


def test_two_processes_of_a_machine_share_its_disk_and_locks() -> None:
    async def holder(host: Host) -> None:
        assert host.files.lock(host.files.open("/lock", os.O_CREAT | os.O_RDWR))
        await host.loop.create_future()

    async def contender(host: Host) -> bool:
        return host.files.lock(host.files.open("/lock", os.O_CREAT | os.O_RDWR))

    with Simulation(1) as simulation:
        machine = simulation.machine("a")
        process = machine.start(holder)
        simulation.run_for(0.1)
        assert not simulation.run_on(machine, contender)
        process.crash()
        assert simulation.run_on(machine, contender)


def test_a_system_exit_ends_the_process_not_the_simulation() -> None:
    async def main(host: Host) -> None:
        raise SystemExit(3)

    with Simulation(1) as simulation:
        process = simulation.machine("a").start(main)
        with pytest.raises(SimulationFailedError, match=r"SystemExit\(3\)"):
            simulation.run_for(1)
        with pytest.raises(SystemExit):
            process.result()


def test_what_happens_to_a_process_is_in_the_trace() -> None:
    async def main(host: Host) -> None:
        await host.loop.create_future()

    with Simulation(1) as simulation:
        machine = simulation.machine("a")
        machine.start(main)
        simulation.run_for(1)
        machine.pause()
        machine.resume()
        machine.power_fail()
        machine.restart()
        machine.crash()
        names = [event.occurrence.name for event in simulation.trace.events()]
    wanted = ["PROCESS_STARTED", "PROCESS_PAUSED", "PROCESS_RESUMED", "POWER_FAILED", "POWER_RESTORED"]
    wanted += ["PROCESS_STARTED", "PROCESS_CRASHED"]
    assert [name for name in names if name in wanted] == wanted
