"""The simulator: a whole cluster of production code, unchanged, in one process, in virtual time, from one seed.

    with Simulation(seed=7) as simulation:
        server = simulation.machine("server")
        server.start(serve)                                   # async def serve(host: Host) -> None
        client = simulation.machine("client")
        assert simulation.run_on(client, talk) == "answer"    # async def talk(host: Host) -> str
        server.power_fail()
        server.restart()
        simulation.run_until(lambda: ready, limit_seconds=30)

One seed, one run, bit for bit: nothing depends on real time, on addresses, on hash seeds or on the operating system's
randomness, as long as the code under test reaches the world through its `Host` only and never walks a set of objects
where order matters (tasks are the exception: they hash by number).

What ends a run with `SimulationFailedError`: an exception that nobody handled on any loop, a `main` that raised, a
buffer changed too early, nothing left to happen while the condition does not hold (deadlock), or the time limit. The
error tells the seed, the last events, the tasks that wait and one command which repeats it.

The model, part by part: `simulated_loop` (ticks), `simulated_network` and `simulated_connection`, `simulated_clock`,
`simulated_disk` (what a power failure spares), `simulated_files`, `simulated_offload`, `simulated_spawn`,
`simulated_host` (how processes end), `faults` (random fault schedules); `profile` has all figures.
"""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from barnabas.testing.killed_code import has_failed_unseen
from barnabas.testing.profile import Profile
from barnabas.testing.simulated_host import Main, SimulatedMachine
from barnabas.testing.simulated_loop import UnhandledError
from barnabas.testing.simulated_network import SimulatedNetwork
from barnabas.testing.trace import EventTrace, Occurrence
from barnabas.testing.world import OutOfActionsError, TimeIsUpError, World

SEED_VARIABLE = "BARNABAS_SIMULATION_SEED"
SEED_COUNT_VARIABLE = "BARNABAS_SIMULATION_SEEDS"
LIMIT_SECONDS = 60.0
EVENTS_SHOWN = 25


def simulation_seeds(count: int, *, first: int = 1) -> list[int]:
    """Seeds for a parametrised test: `count` of them, or as many as the environment variable BARNABAS_SIMULATION_SEEDS
    says when that is more, or only the one in BARNABAS_SIMULATION_SEED.
    """
    given = os.environ.get(SEED_VARIABLE)
    if given:
        return [int(given)]
    wanted = max(count, int(os.environ.get(SEED_COUNT_VARIABLE) or 0))
    return list(range(first, first + wanted))


class SimulationFailedError(AssertionError):
    """A run went wrong; the message has everything needed to repeat it. `__cause__` is what happened first, where that
    was an exception.
    """


class SimulationDeadlockError(SimulationFailedError):
    """Nothing is left to happen, and what the run waits for has not happened."""


class SimulationLimitError(SimulationFailedError):
    """What the run waits for did not happen within the virtual time given."""


class Simulation:
    """One simulated world. Use it in a `with` block: leaving it ends all processes and raises what failed and was not
    raised yet.
    """

    def __init__(self, seed: int, *, profile: Profile | None = None) -> None:
        self.seed = seed
        self.profile = profile or Profile()
        self.world = World(seed)
        self.network = SimulatedNetwork(self.world, self.profile.network)
        self.machines: dict[str, SimulatedMachine] = {}
        self._failed = False
        self._collect_again = False

    # Building and driving.

    @property
    def now(self) -> float:
        """Virtual seconds since the beginning."""
        return self.world.now

    @property
    def trace(self) -> EventTrace:
        """Everything that happened."""
        return self.world.trace

    def machine(self, name: str, *, profile: Profile | None = None) -> SimulatedMachine:
        """The machine of that name, made when there is none yet; `profile` is for a machine unlike the others."""
        found = self.machines.get(name)
        if found is None:
            found = self.machines[name] = SimulatedMachine(self.world, self.network, name, profile or self.profile)
        return found

    def at(self, when: float, action: Callable[[], object]) -> None:
        """Calls `action()` at a virtual time, outside all processes: for faults and observations."""
        self.world.schedule(max(when, self.world.now), lambda _: action())

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Calls `action()` that much later, outside all processes."""
        self.at(self.world.now + seconds, action)

    def note(self, text: str, number: int = 0) -> None:
        """Writes something of the scenario's own into the trace; texts should be few, numbers may be many."""
        self.world.trace.add(self.world.now, Occurrence.NOTE, self.world.trace.label(text), number)

    def run_until(self, condition: Callable[[], bool], limit_seconds: float = LIMIT_SECONDS) -> None:
        """Runs until `condition()`, looked at after everything that happens; raises SimulationFailedError when it does
        not come true within the limit.
        """
        try:
            self.world.run(condition, self.world.now + limit_seconds)
        except OutOfActionsError:
            self._raise(
                SimulationDeadlockError, "deadlock: nothing is left to happen, and what the run waits for has not come"
            )
        except TimeIsUpError:
            self._raise(SimulationLimitError, f"what the run waits for did not come within {limit_seconds:g} s")
        self.check()

    def run_for(self, seconds: float) -> None:
        """Lets that much virtual time pass."""
        deadline = self.world.now + seconds
        try:
            self.world.run(None, deadline)
        except (OutOfActionsError, TimeIsUpError):
            self.world.now = deadline
        self.check()

    def run_on(self, machine: SimulatedMachine, main: Main, limit_seconds: float = LIMIT_SECONDS) -> Any:
        """Runs `main(host)` as a process of the machine until it ends; returns its result, raises its exception."""
        process = machine.start(main, name="run_on" if machine.running else None)
        self.run_until(lambda: process.ended, limit_seconds)
        return process.result()

    # Failing and ending.

    def check(self) -> None:
        """Raises SimulationFailedError when anything has failed."""
        if self.world.failures:
            self._raise(SimulationFailedError, str(self.world.failures[0]))

    def _look_for_failed_tasks(self) -> None:
        """What a task has raised is told when it is collected, which may be never where its object names the task."""
        running = [
            (process.name, task)
            for machine in self.machines.values()
            for process in machine.processes
            for task in process.loop.failed_tasks()
        ]
        left, self.world.left_failed = self.world.left_failed, []
        for name, task in [*left, *running]:
            if has_failed_unseen(task):
                error = task.exception()
                details = "".join(traceback.format_exception(error)) if error is not None else ""
                failure = UnhandledError(f"on {name}: {task.get_name()} raised, and nobody has awaited it\n{details}")
                failure.__cause__ = error
                self.world.fail(failure)

    def _raise(self, kind: type[SimulationFailedError], what: str) -> None:
        self._failed = True
        cause = self.world.failures[0] if self.world.failures else None
        raise kind(self._describe(what)) from cause

    def _describe(self, what: str) -> str:
        lines = [
            f"at {self.world.now:.6f} s of virtual time, seed {self.seed}: {what}",
            f"reproduce: {self.reproduction()}",
        ]
        waiting = [
            line
            for machine in self.machines.values()
            for process in machine.processes
            for line in process.loop.describe_pending()
        ]
        if waiting:
            lines += ["tasks that wait:", *(f"  {line}" for line in waiting)]
        lines += ["last events:", *(f"  {event}" for event in self.trace.events(EVENTS_SHOWN))]
        return "\n".join(lines)

    def reproduction(self) -> str:
        """A command that repeats this run."""
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        node = test.partition("[")[0]
        return (
            f"{SEED_VARIABLE}={self.seed} python -m pytest {node!r}"
            if node
            else f"the same program with Simulation(seed={self.seed})"
        )

    def close(self) -> None:
        """Ends every process; nothing runs any more."""
        for machine in self.machines.values():
            machine.crash()

    def __enter__(self) -> Self:
        # Between its many short runs, too: whatever they have left lying would be looked through after each.
        self._collect_again = gc.isenabled()
        gc.disable()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and not self._failed:
                self._look_for_failed_tasks()
            self.close()
            if kind is None and not self._failed:
                self.check()
        finally:
            if self._collect_again:
                gc.enable()
