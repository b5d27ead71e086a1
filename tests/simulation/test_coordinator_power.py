"""The embedded coordinator on a disk that fails: power cut at every change and sync, full disk, I/O errors, kill -9."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass, field

import pytest

from barnabas.coordination.embedded.config import CoordinatorConfig
from barnabas.coordination.embedded.server import CoordinatorFailedError, EmbeddedCoordinator
from barnabas.kernel.host import Host
from barnabas.testing.simulated_disk import FaultRule
from barnabas.testing.simulated_host import Main
from barnabas.testing.simulation import Simulation, simulation_seeds
from tests.support.raw_zookeeper import Operation, create, multi, read, set_data
from tests.unit.coordination.embedded.caller import Caller, CallerDisconnectedError

PORT = 2181
ROUNDS = 12
SEQUENTIAL = 2
RETRY_SECONDS = 0.05


@dataclass(slots=True)
class Acknowledged:
    """What the coordinator has promised."""

    pair: int = 0
    numbered: int = 0
    session_ids: list[int] = field(default_factory=list)
    failures: list[CoordinatorFailedError] = field(default_factory=list)


def coordinator_main(promised: Acknowledged) -> Main:
    async def main(host: Host) -> None:
        config = CoordinatorConfig(
            "/data/coordinator", host="0.0.0.0", port=PORT, snapshot_transactions=10, snapshots_retained=2
        )
        coordinator = EmbeddedCoordinator(host, config)
        await coordinator.start()
        promised.failures.append(await coordinator.failure)

    return main


async def connect(address: str) -> Caller:
    """A session, once the coordinator is there."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return await Caller.open(address, PORT)
        except CallerDisconnectedError:
            wake = loop.create_future()
            loop.call_later(RETRY_SECONDS, wake.set_result, None)
            await wake


def writer(address: str, promised: Acknowledged, rounds: int) -> Main:
    """Writes pairs that must always be equal, and numbered znodes without gaps, several requests on their way."""

    async def main(_host: Host) -> None:
        caller = await connect(address)
        promised.session_ids.append(caller.session_id)
        try:
            for path in ("/pair", "/pair/a", "/pair/b", "/numbered"):
                await caller.call(create(path, b"0"))
            first = promised.pair + 1
            for number in range(first, first + rounds, 2):
                value = [str(number).encode(), str(number + 1).encode()]
                waiting = [
                    caller.send(multi([set_data("/pair/a", value[0]), set_data("/pair/b", value[0])])),
                    caller.send(create("/numbered/n", b"", SEQUENTIAL)),
                    caller.send(multi([set_data("/pair/a", value[1]), set_data("/pair/b", value[1])])),
                    caller.send(multi([set_data("/pair/a", b"never"), set_data("/nowhere", b"")])),
                ]
                for step, future in enumerate(waiting):
                    reply = await future
                    if step == 1:
                        promised.numbered = int(reply.body[-10:]) + 1
                    elif step in {0, 2}:
                        promised.pair = number + step // 2
        except CallerDisconnectedError:
            return

    return main


def checker(address: str, promised: Acknowledged) -> Main:
    async def main(_host: Host) -> tuple[int, int]:
        caller = await connect(address)
        assert caller.session_id not in promised.session_ids, "a session id was given twice"
        first = await caller.call(read(Operation.GET_DATA, "/pair/a"))
        second = await caller.call(read(Operation.GET_DATA, "/pair/b"))
        listed = await caller.call(read(Operation.GET_CHILDREN, "/numbered"))
        names = sorted(listed.body) if listed.error == 0 else []
        assert names == [f"n{number:010d}" for number in range(len(names))], "a numbered znode is missing"
        if first.error or second.error:
            assert promised.pair == 0, f"{first.error} {second.error}"
            return 0, len(names)
        assert first.body[0] == second.body[0], "half of a multi is there"
        return int(first.body[0]), len(names)

    return main


def check(simulation: Simulation, promised: Acknowledged) -> None:
    machine = simulation.machine("coordinator")
    pair, numbered = simulation.run_on(simulation.machine("reader"), checker(machine.address, promised))
    assert pair >= promised.pair, f"pair {promised.pair} was acknowledged, and {pair} is there"
    assert numbered >= promised.numbered, f"{promised.numbered} znodes were acknowledged, and {numbered} are there"
    promised.pair = pair
    promised.numbered = numbered


def run_with_power_cut(seed: int, cut_at: int | None) -> int:
    """Writes, loses power at that disk operation, checks, writes again, is killed, checks; the operations of all."""
    promised = Acknowledged()
    with Simulation(seed) as simulation:
        machine = simulation.machine("coordinator")
        machine.disk.cut_power_at = cut_at
        machine.start(coordinator_main(promised))
        writing = simulation.machine("writer").start(writer(machine.address, promised, ROUNDS))
        simulation.run_until(lambda: writing.ended or not machine.powered)
        operations = machine.disk.operations
        if cut_at is not None:
            assert not machine.powered
            simulation.machine("writer").crash()
            machine.disk.cut_power_at = None
            machine.restart()
        check(simulation, promised)
        simulation.run_on(simulation.machine("writer"), writer(machine.address, promised, ROUNDS))
        machine.crash()
        machine.restart()
        check(simulation, promised)
        machine.power_fail()
        machine.restart()
        check(simulation, promised)
    return operations


@pytest.mark.parametrize("seed", simulation_seeds(2))
def test_loses_nothing_acknowledged_whenever_the_power_fails(seed: int) -> None:
    operations = run_with_power_cut(seed, None)
    assert operations > 2 * ROUNDS
    for cut_at in range(1, operations + 1):
        run_with_power_cut(seed, cut_at)


@pytest.mark.parametrize("seed", simulation_seeds(10, first=100))
def test_same_seed_gives_the_same_run_up_to_the_cut(seed: int) -> None:
    operations = run_with_power_cut(seed, None)
    assert operations == run_with_power_cut(seed, None)
    run_with_power_cut(seed, 1 + seed % operations)


@pytest.mark.parametrize(
    ("operation", "error_number"),
    [("fsync", errno.EIO), ("write", errno.EIO), ("write", errno.ENOSPC)],
)
def test_serves_no_more_when_the_log_cannot_be_written(operation: str, error_number: int) -> None:
    promised = Acknowledged()
    with Simulation(5) as simulation:
        machine = simulation.machine("coordinator")
        process = machine.start(coordinator_main(promised))
        simulation.run_on(simulation.machine("writer"), writer(machine.address, promised, ROUNDS))
        rule = FaultRule(frozenset({operation}), "*/log.*", error_number)
        machine.disk.fault_rules.append(rule)
        before = (promised.pair, promised.numbered)
        simulation.run_on(simulation.machine("writer"), _one_attempt(machine.address))
        simulation.run_until(lambda: process.ended)
        assert (promised.pair, promised.numbered) == before
        assert "cannot be written" in str(promised.failures[0])
        machine.disk.fault_rules.clear()
        machine.start(coordinator_main(promised))
        check(simulation, promised)


def _one_attempt(address: str) -> Main:
    """A session that cannot be made durable is never granted."""

    async def main(_host: Host) -> None:
        with pytest.raises(CallerDisconnectedError):
            await Caller.open(address, PORT)

    return main


def test_a_snapshot_that_cannot_be_written_does_not_end_the_service() -> None:
    promised = Acknowledged()
    with Simulation(9) as simulation:
        machine = simulation.machine("coordinator")
        rule = FaultRule(frozenset({"write"}), "*/snapshot.tmp", errno.ENOSPC)
        machine.disk.fault_rules.append(rule)
        machine.start(coordinator_main(promised))
        simulation.run_on(simulation.machine("writer"), writer(machine.address, promised, 3 * ROUNDS))
        assert promised.pair == 3 * ROUNDS
        assert promised.failures == []
        machine.power_fail()
        machine.restart()
        check(simulation, promised)
