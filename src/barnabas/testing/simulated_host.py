"""Machines that fail: what a simulation starts, crashes, pauses and cuts the power of.

A `SimulatedMachine` has a name, an address, clocks and a disk, which outlive its processes. A `SimulatedProcess` runs
one `main`, an `async` function that takes a `Host`, on a loop of its own; a machine may run several (a coordinator and
brokers).

How a process ends:

- *main returns or raises*: remaining tasks are cancelled and awaited, then the process is gone, as `asyncio.run` and
  the operating system do it. What main raised is kept, and fails the simulation unless somebody fetched it with
  `result()` (as `Simulation.run_on` does).
- *terminate* (SIGTERM): main is cancelled, and ends in its own order.
- *crash* (kill -9): first the ports are cut: the network ends its connections, files close (locks end; the page cache
  stays), unfinished work off the loop has happened or not; then the loop is dropped and no code of the process ever
  runs again, except `finally` blocks, which reach nothing.
- *power failure*: every process of the machine at once; connections vanish without a word; the disk loses what was not
  synced (`simulated_disk`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from barnabas.kernel.host import Host
from barnabas.testing.simulated_clock import SimulatedClock
from barnabas.testing.simulated_disk import SimulatedDisk
from barnabas.testing.simulated_files import SimulatedFiles
from barnabas.testing.simulated_loop import ProcessEndedError, SimulatedLoop, UnhandledError
from barnabas.testing.simulated_network import NetworkPort
from barnabas.testing.simulated_offload import SimulatedOffload
from barnabas.testing.simulated_spawn import SimulatedSpawn
from barnabas.testing.trace import Occurrence

if TYPE_CHECKING:
    from barnabas.testing.profile import Profile
    from barnabas.testing.simulated_network import SimulatedNetwork
    from barnabas.testing.world import World

Main = Callable[[Host], Coroutine[Any, Any, Any]]


class SimulatedProcess:
    """One run of a `main` on a machine. `machine.start` makes it."""

    def __init__(self, machine: SimulatedMachine, name: str, main: Main, number: int) -> None:
        world = machine.world
        self.machine = machine
        self.name = name
        self.main = main
        self.ended = False
        self._result: Any = None
        self._error: BaseException | None = None
        self._error_is_fetched = False
        self._asked_to_end = False
        self._task: asyncio.Task[None] | None = None
        self._label = world.trace.label(name)
        purpose = f"{name}/{number}"
        self.loop = SimulatedLoop(world, name, machine.clock, machine.profile.loop)  # type: ignore[abstract]
        self.network = NetworkPort(machine.network, machine.port, self.loop, name)
        self.loop.network = self.network
        self.files = SimulatedFiles(machine.disk, name, self.loop.charge)
        self.offload = SimulatedOffload(world, purpose, self.loop, self.files, machine.disk, machine.profile.offload)
        self.spawn = SimulatedSpawn(world, purpose, self.loop, machine.disk)
        self.host = Host(
            name=machine.name,
            loop=self.loop,
            clock=machine.clock,
            random=world.random(f"host/{purpose}"),
            entropy=world.random(f"entropy/{purpose}").randbytes,
            files=self.files,
            offload=self.offload,
            spawn=self.spawn,
        )
        world.trace.add(world.now, Occurrence.PROCESS_STARTED, self._label, number)
        self.loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._task = self.loop.create_task(self._run(), name="main")
        self._task.add_done_callback(self._main_done)

    async def _run(self) -> None:
        try:
            self._result = await self.main(self.host)
        except (asyncio.CancelledError, SystemExit) as error:
            if not self._asked_to_end:
                self._error = error
        except Exception as error:  # noqa: BLE001 - kept for result(), or fails the simulation
            self._error = error
        others = [task for task in self.loop.pending_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        if others:
            await asyncio.gather(*others, return_exceptions=True)
        await self.loop.shutdown_asyncgens()

    def _main_done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or isinstance(task.exception(), ProcessEndedError):
            return
        if task.exception() is not None and self._error is None:
            self._error = task.exception()
        world = self.machine.world
        world.trace.add(world.now, Occurrence.PROCESS_ENDED, self._label, int(self._error is not None))
        world.left_failed += [(self.name, failed) for failed in self.loop.failed_tasks()]
        self._end(silently=False)
        self.machine.process_ended(self)

    def _end(self, *, silently: bool, was_killed: bool = False) -> None:
        # Everything is cut before anything is let go of: what is let go of may run finalizers.
        self.ended = True
        self.loop.was_killed = was_killed
        self.loop.dropped = True
        self.network.cut = True
        self.files.cut_off()
        self.offload.cut_off()
        self.spawn.cut_off()
        self.network.close_all(silently=silently)
        self.loop.drop()
        self.machine.world.let_go(self.loop)
        self._task = None
        self.offload.abandon(power_failed=silently)
        self.spawn.kill_all(power_failed=silently)
        self.files.release()

    @property
    def running(self) -> bool:
        """True until main has ended or the process has been killed."""
        return not self.ended

    def result(self) -> Any:
        """What main returned; raises what it raised. Only for a process that ended of itself."""
        self._error_is_fetched = True
        if self._error is not None:
            raise self._error
        if not self.ended:
            raise RuntimeError(f"{self.name} is running still")
        return self._result

    def unfetched_error(self) -> BaseException | None:
        """What main raised, while nobody has asked for it."""
        return None if self._error_is_fetched else self._error

    def terminate(self) -> None:
        """Asks the process to end, as SIGTERM does where `asyncio.run` cancels main; it takes its time."""
        if not self.ended and not self._asked_to_end:
            self._asked_to_end = True
            self.loop.call_soon(self._cancel_main)

    def _cancel_main(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def crash(self) -> None:
        """Kills the process as kill -9 does; nothing happens when it has ended."""
        if not self.ended:
            world = self.machine.world
            world.trace.add(world.now, Occurrence.PROCESS_CRASHED, self._label)
            self._end(silently=False, was_killed=True)
            self.machine.process_killed(self)

    def lose_power(self) -> None:
        """The machine's power fails: `SimulatedMachine.power_fail` calls this."""
        if not self.ended:
            self._end(silently=True, was_killed=True)
            self.machine.process_killed(self)

    def pause(self) -> None:
        """Stops the process as SIGSTOP does: its loop and its work off the loop; its machine's kernel goes on
        receiving.
        """
        if not self.ended:
            world = self.machine.world
            world.trace.add(world.now, Occurrence.PROCESS_PAUSED, self._label)
            self.loop.pause()
            self.offload.pause()

    def resume(self) -> None:
        """Goes on, as after SIGCONT."""
        if not self.ended:
            world = self.machine.world
            world.trace.add(world.now, Occurrence.PROCESS_RESUMED, self._label)
            self.offload.resume()
            self.loop.resume()


class SimulatedMachine:
    """A machine: name, address, clocks, disk, processes. `Simulation.machine` makes it."""

    def __init__(self, world: World, network: SimulatedNetwork, name: str, profile: Profile) -> None:
        self.world = world
        self.network = network
        self.name = name
        self.profile = profile
        self.port = network.add_machine(name)
        self.clock = SimulatedClock(world, name, profile.clock)
        self.disk = SimulatedDisk(world, name, profile.disk, self.clock)
        self.disk.cut_power = self.power_fail
        self.processes: list[SimulatedProcess] = []
        self._label = world.trace.label(name)
        self._started = 0
        self._killed: list[SimulatedProcess] = []
        self.power_failures = 0
        """How often the machine has lost its power."""

    @property
    def address(self) -> str:
        """The machine's address in the simulated network."""
        return self.port.address

    @property
    def powered(self) -> bool:
        """False between `power_fail` and the next `start`, `restart` or `power_restore`."""
        return self.port.powered

    @property
    def running(self) -> bool:
        """True while any process runs."""
        return bool(self.processes)

    def start(self, main: Main, *, name: str | None = None) -> SimulatedProcess:
        """Starts a process that runs `main(host)`; switches the power on if it was off. `name` tells processes of one
        machine apart in traces and failures.
        """
        self.power_restore()
        self._started += 1
        process = SimulatedProcess(self, self.name if name is None else f"{self.name}:{name}", main, self._started)
        self.processes.append(process)
        self._killed = [killed for killed in self._killed if killed.name != process.name]
        return process

    def process_killed(self, process: SimulatedProcess) -> None:
        """A process was killed; `restart` will start it again."""
        self.processes.remove(process)
        self._killed.append(process)

    def process_ended(self, process: SimulatedProcess) -> None:
        """A process ended of itself."""
        self.processes.remove(process)
        error = process.unfetched_error()
        if error is not None:
            self.world.schedule(self.world.now, self._report, process)

    def _report(self, process: SimulatedProcess) -> None:
        error = process.unfetched_error()
        if error is not None:
            failure = UnhandledError(f"main of {process.name} raised {error!r}")
            failure.__cause__ = error
            self.world.fail(failure)

    def crash(self) -> None:
        """Kills every process of the machine (kill -9). The page cache lives: files keep all that was written."""
        for process in list(self.processes):
            process.crash()

    def power_fail(self) -> None:
        """Cuts the power: processes are gone, connections vanish, the disk loses by seed what was not synced."""
        if self.port.powered:
            self.world.trace.add(self.world.now, Occurrence.POWER_FAILED, self._label)
            self.power_failures += 1
            self.network.power_changed(self.port, powered=False)
            for process in list(self.processes):
                process.lose_power()
            self.disk.lose_power()

    def power_restore(self) -> None:
        """Switches the power on again; nothing is started."""
        if not self.port.powered:
            self.world.trace.add(self.world.now, Occurrence.POWER_RESTORED, self._label)
            self.clock.restart()
            self.network.power_changed(self.port, powered=True)

    def restart(self) -> list[SimulatedProcess]:
        """Kills what still runs, then starts everything that was killed and not started since, with the same mains."""
        self.crash()
        killed, self._killed = self._killed, []
        return [self.start(process.main, name=process.name.partition(":")[2] or None) for process in killed]

    def pause(self) -> None:
        """Stops every process (SIGSTOP)."""
        for process in self.processes:
            process.pause()

    def resume(self) -> None:
        """Lets every process go on (SIGCONT)."""
        for process in self.processes:
            process.resume()
