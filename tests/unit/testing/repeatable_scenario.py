"""A scenario with a little of everything, whose whole trace is printed: run under different hash seeds, it must print
the same.

Three machines replicate counters to each other over connections, log them with offloaded syncs, spawn children, while
a nemesis strikes with every kind of fault. Deliberately full of sets and dictionaries of tasks and strings.
"""

from __future__ import annotations

import asyncio
import os
import sys

from barnabas.kernel.host import Host, OffloadFullError, OffloadKind
from barnabas.testing.faults import GENERAL, FaultKind, FaultSchedule, Nemesis
from barnabas.testing.simulation import Simulation

NAMES = ("alpha", "beta", "gamma")
PORT = 7000


class Counter:
    """One machine's process."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.descriptor = host.files.open("/log", os.O_CREAT | os.O_RDWR | os.O_APPEND)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Logs each line durably, then sends it back with a token."""
        try:
            while line := await reader.readline():
                self.host.files.write(self.descriptor, line)
                await self.host.offload(OffloadKind.SYNC, self.host.files.fdatasync, self.descriptor, order="/log")
                writer.write(self.host.entropy(4).hex().encode() + b" " + line)
                await writer.drain()
        except (OSError, OffloadFullError):
            pass
        finally:
            writer.close()

    async def talk(self, peer: str) -> None:
        """Asks a peer for ever, reconnecting."""
        number = 0
        while True:
            try:
                async with asyncio.timeout(5):
                    reader, writer = await asyncio.open_connection(peer, PORT)
                try:
                    while True:
                        writer.write(f"{self.host.name} {number} {self.host.clock.time_ms()}\n".encode())
                        async with asyncio.timeout(3):
                            if not await reader.readline():
                                break
                        number += 1
                        await asyncio.sleep(self.host.random.uniform(0.01, 0.2))
                finally:
                    writer.close()
            except OSError:
                await asyncio.sleep(self.host.random.uniform(0.1, 1.0))

    async def tend(self) -> None:
        """Spawns a child now and then, and waits for sets of short tasks."""
        while True:
            child = await self.host.spawn("tests.unit.testing.child_entries:write_ten", b"child ")
            tasks = {asyncio.create_task(asyncio.sleep(self.host.random.random()), name=name) for name in NAMES}
            done, _ = await asyncio.wait({*tasks, asyncio.create_task(child.wait(), name="child")})
            for task in done:
                self.host.files.write(self.descriptor, task.get_name().encode() + b"\n")


async def main(host: Host) -> None:
    """What every machine runs."""
    counter = Counter(host)
    await asyncio.start_server(counter.answer, host.name, PORT)
    async with asyncio.TaskGroup() as group:
        for peer in NAMES:
            if peer != host.name:
                group.create_task(counter.talk(peer))
        group.create_task(counter.tend())


def run(seed: int) -> Simulation:
    """The scenario, done."""
    with Simulation(seed) as simulation:
        machines = [simulation.machine(name) for name in NAMES]
        for machine in machines:
            machine.start(main)
        nemesis = Nemesis(simulation, machines, FaultSchedule({kind: 4.0 for kind in FaultKind if kind in GENERAL}))
        nemesis.start()
        simulation.run_for(60)
        nemesis.stop()
        simulation.run_for(5)
    return simulation


if __name__ == "__main__":
    finished = run(int(sys.argv[1]))
    for event in finished.trace.events():
        print(event)
    print(finished.trace.digest())
