"""A log directory that is full from some operation of its disk on, amid an append, a roll, an index, a snapshot, a
checkpoint or a truncation: nothing acknowledged is lost, whatever became of starts before there was room."""

from __future__ import annotations

import errno
import random
from collections import Counter
from dataclasses import dataclass

import pytest

from barnabas.kernel.host import Host
from barnabas.log.manager.log_manager import NoLogDirectoryError
from barnabas.testing.simulated_disk import FaultRule
from barnabas.testing.simulated_host import Main
from barnabas.testing.simulation import Simulation, simulation_seeds
from barnabas.wire.errors import KafkaError
from tests.simulation.test_partition_log_power import (
    CONFIG,
    DIRECTORY,
    WRITES,
    Promised,
    recovered,
    settings_of,
    write,
)
from tests.unit.log.log_broker import log_broker

TIMES = 40
MAKING_THE_DIRECTORY = 12
"""A broker that cannot even make its directory has no log in it."""
NEVER = 1 << 60
KINDS = (
    frozenset({"write", "truncate", "rename", "make_directories", "fsync", "fsync_directory"}),
    frozenset({"write"}),
    frozenset({"write", "fsync"}),
    frozenset({"rename"}),
)
"""What needs room: a file system that gives it out late finds at a sync, or a rename, that there is none."""


@dataclass(slots=True)
class Full(FaultRule):
    """There is no room from the operation with that number on."""

    left: int = NEVER

    def strikes(self, operation: str, path: str, random: random.Random) -> bool:
        if operation not in self.operations:
            return False
        self.left -= 1
        return self.left <= 0


def writer(promised: Promised, seed: int, writes: str, happened: Counter[str]) -> Main:
    async def main(host: Host) -> None:
        async with log_broker(host, DIRECTORY, config=CONFIG, settings=settings_of(writes), is_clean=False) as broker:
            try:
                await write(broker, promised, random.Random(seed))
            except KafkaError:
                happened["failed"] += 1
                assert broker.manager.directories[0].is_offline
                promised.is_done = True
                await host.loop.create_future()

    return main


def started(writes: str, happened: Counter[str]) -> Main:
    """The broker comes back before there is room, or while what there is runs out again."""

    async def main(host: Host) -> None:
        try:
            async with log_broker(host, DIRECTORY, config=CONFIG, settings=settings_of(writes), is_clean=False):
                happened["started"] += 1
        except NoLogDirectoryError:
            happened["did not start"] += 1

    return main


def run(seed: int, writes: str, full: Full, starts: list[int], happened: Counter[str]) -> int:
    """Returns how many operations of these kinds there were. `starts` are further lives, by the room that each has."""
    promised = Promised()
    with Simulation(seed) as simulation:
        machine = simulation.machine("broker")
        machine.disk.fault_rules.append(full)
        machine.start(writer(promised, seed, writes, happened))
        simulation.run_until(lambda: promised.is_done)
        operations = NEVER - full.left
        machine.crash()
        for room in starts:
            full.left = room
            simulation.run_on(machine, started(writes, happened))
        machine.disk.fault_rules.clear()
        simulation.run_on(machine, recovered(promised, promised.written, writes))
    return operations


@WRITES
@pytest.mark.parametrize("seed", simulation_seeds(4))
def test_nothing_acknowledged_is_lost_whenever_the_directory_is_full(seed: int, writes: str) -> None:
    happened: Counter[str] = Counter()
    choose = random.Random(seed)
    for kind in KINDS:
        operations = run(seed, writes, Full(kind, "*", errno.ENOSPC), [], happened)
        first = MAKING_THE_DIRECTORY if kind is KINDS[0] else 1
        for _ in range(TIMES // len(KINDS)):
            full = Full(kind, "*", errno.ENOSPC, left=choose.randrange(first, max(first + 1, operations)))
            run(seed, writes, full, [choose.randrange(1, 8) for _ in range(choose.randrange(3))], happened)
    assert happened["failed"] >= TIMES // 4, "hardly anything met a full directory: the test does not test"
    assert happened["did not start"], "no start met a full directory"
