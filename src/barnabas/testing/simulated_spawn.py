"""Child processes of a simulated process: `kernel.host.Spawn`.

The entry, a plain function `(files, argument)`, runs in one piece, in virtual no-time, at a seeded moment between the
child's start and its end, with a `SimulatedFiles` of its own on the machine's disk (own descriptors, own locks). A
signal before that moment kills it in the middle: by seed none, some or all of its file operations have happened. The
exit status is 0, 1 when the entry raised, or minus the signal's number. A child dies with its parent, in the same way.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from barnabas.kernel.host import ChildLimitError
from barnabas.kernel.paced_work import finish
from barnabas.kernel.real_spawn import ARGUMENT_BYTES_MAX, CHILDREN_MAX
from barnabas.testing.simulated_files import SimulatedFiles, WorkUnderWay
from barnabas.testing.simulated_loop import ProcessEndedError
from barnabas.testing.simulated_offload import CALLS_ALLOWED
from barnabas.testing.trace import Occurrence

if TYPE_CHECKING:
    from barnabas.kernel.host import Files
    from barnabas.testing.simulated_disk import SimulatedDisk
    from barnabas.testing.simulated_loop import SimulatedLoop
    from barnabas.testing.world import World

START_SECONDS = (5e-3, 50e-3)
RUN_SECONDS = (1e-3, 100e-3)
KILL_SIGNAL = 9
PROCESS_ID_FIRST = 100

Entry = Callable[["Files", bytes], object]


def load_entry(entry: str) -> Entry:
    """The function that `"package.module:function"` names."""
    module_name, colon, function_name = entry.partition(":")
    if not colon or not function_name:
        raise ValueError(f"an entry is written package.module:function, not {entry!r}")
    function: Entry = getattr(importlib.import_module(module_name), function_name)
    return function


class SimulatedChild:
    """A child process; fulfils `kernel.host.ChildProcess`."""

    def __init__(self, spawn: SimulatedSpawn, process_id: int, entry: Entry, argument: bytes) -> None:
        self._spawn = spawn
        self._process_id = process_id
        self._entry = entry
        self._argument = argument
        self._files = SimulatedFiles(spawn.disk, f"{spawn.loop.name} child", _nothing)
        self._work = WorkUnderWay()
        self._has_run = False
        self._status: int | None = None
        self._waiters: list[asyncio.Future[int]] = []
        spawn.world.schedule(spawn.world.now + spawn.random.uniform(*START_SECONDS), self._run)

    @property
    def process_id(self) -> int:
        return self._process_id

    async def wait(self) -> int:
        if self._status is None:
            waiter: asyncio.Future[int] = self._spawn.loop.create_future()
            self._waiters.append(waiter)
            return await waiter
        return self._status

    def signal(self, number: int) -> None:
        if number and self._status is None and not self._spawn.ended:
            self.die(number)
            self._tell()

    def _run(self, _: object) -> None:
        if self._status is None:
            status = self._call()
            seconds = self._work.seconds + self._spawn.random.uniform(*RUN_SECONDS)
            self._spawn.world.schedule(self._spawn.world.now + seconds, self._exit, status)

    def _call(self) -> int:
        self._has_run = True
        self._files.work = self._work
        try:
            returned = self._entry(self._files, self._argument)
            if isinstance(returned, Generator):
                returned = finish(returned, lambda: 0.0, self._pause)
        except (Exception, ProcessEndedError):  # noqa: BLE001 - a child's traceback goes to its stderr; the parent sees the status
            return 1
        return returned if isinstance(returned, int) else 0

    def _pause(self, seconds: float) -> None:
        self._work.seconds += seconds

    def _exit(self, status: int) -> None:
        if self._status is None:
            self._end(status)
            self._tell()

    def die(self, number: int, *, power_failed: bool = False) -> None:
        """A signal, or the loss of power, ends the child, in the middle of its work if that was not done."""
        self._files.cut_off()
        if not self._has_run:
            self._files.allow_calls(self._spawn.random.choice(CALLS_ALLOWED))
            self._call()
        self._end(-number, power_failed=power_failed)

    def _end(self, status: int, *, power_failed: bool = False) -> None:
        self._status = status
        if not power_failed:
            for under_way in self._work.syncs:
                self._spawn.disk.finish_sync(under_way)
        self._work.syncs.clear()
        self._files.cut_off()
        self._files.release()
        self._spawn.ended_one(self)

    def _tell(self) -> None:
        for waiter in self._waiters:
            self._spawn.loop.call_soon(_finish, waiter, self._status)


def _nothing(_: float) -> None:
    """A child has no loop that its calls could hold up."""


def _finish(waiter: asyncio.Future[Any], status: int) -> None:
    if not waiter.done():
        waiter.set_result(status)


class SimulatedSpawn:
    """One process's `Spawn`."""

    def __init__(self, world: World, purpose: str, loop: SimulatedLoop, disk: SimulatedDisk) -> None:
        self.world = world
        self.random = world.random(f"spawn/{purpose}")
        self.loop = loop
        self.disk = disk
        self.ended = False
        self._label = world.trace.label(f"{loop.name} child")
        self._children: dict[SimulatedChild, None] = {}
        self._made = 0

    async def __call__(self, entry: str, argument: bytes, /) -> SimulatedChild:
        function = load_entry(entry)
        if len(argument) > ARGUMENT_BYTES_MAX:
            raise ValueError(f"a child's argument has at most {ARGUMENT_BYTES_MAX} bytes, not {len(argument)}")
        if len(self._children) >= CHILDREN_MAX:
            raise ChildLimitError(f"{CHILDREN_MAX} child processes run already: wait for one to end")
        if self.ended:
            await self.loop.create_future()
        self._made += 1
        process_id = PROCESS_ID_FIRST + self._made
        self.world.trace.add(self.world.now, Occurrence.CHILD_STARTED, self._label, process_id)
        child = SimulatedChild(self, process_id, function, argument)
        self._children[child] = None
        return child

    def ended_one(self, child: SimulatedChild) -> None:
        """A child is gone."""
        self._children.pop(child, None)
        self.world.trace.add(self.world.now, Occurrence.CHILD_ENDED, self._label, child.process_id)

    def cut_off(self) -> None:
        """The parent has ended: it starts and signals nothing any more."""
        self.ended = True

    def kill_all(self, *, power_failed: bool) -> None:
        """Kills the children, as the end of the parent does; a loss of power leaves their last syncs to the seed."""
        for child in list(self._children):
            child.die(KILL_SIGNAL, power_failed=power_failed)
