"""Random fault schedules."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.kernel.host import Host
from barnabas.testing.faults import FaultKind, FaultSchedule, Nemesis
from barnabas.testing.simulation import Simulation
from barnabas.testing.trace import Occurrence


async def _idle(host: Host) -> None:
    await host.loop.create_server(asyncio.Protocol, host.name, 1)
    await host.loop.create_future()


def strike(simulation: Simulation, schedule: FaultSchedule, seconds: float = 600) -> Nemesis:
    machines = [simulation.machine(name) for name in ("a", "b", "c")]
    for machine in machines:
        machine.start(_idle)
    nemesis = Nemesis(simulation, machines, schedule)
    nemesis.start()
    nemesis.start()
    simulation.run_for(seconds)
    return nemesis


OCCURRENCES = {
    FaultKind.CRASH: Occurrence.PROCESS_CRASHED,
    FaultKind.POWER: Occurrence.POWER_FAILED,
    FaultKind.PAUSE: Occurrence.PROCESS_PAUSED,
    FaultKind.PARTITION: Occurrence.LINK_CUT,
    FaultKind.CUT: Occurrence.LINK_CUT,
    FaultKind.CLOCK_STEP: Occurrence.CLOCK_SET,
}


@pytest.mark.parametrize("kind", list(FaultKind))
def test_each_kind_strikes_at_its_rate(kind: FaultKind) -> None:
    with Simulation(3) as simulation:
        nemesis = strike(simulation, FaultSchedule({kind: 6.0}, {kind: (0.1, 0.2)}))
        assert 30 < nemesis.strikes[kind] < 100
        assert sum(nemesis.strikes.values()) == nemesis.strikes[kind]
        if kind in OCCURRENCES:
            happened = [event for event in simulation.trace.events() if event.occurrence is OCCURRENCES[kind]]
            assert len(happened) >= nemesis.strikes[kind] * 0.8


def test_no_more_machines_are_down_than_allowed() -> None:
    worst = {}
    for allowed in (1, 2):
        with Simulation(3) as simulation:
            machines = [simulation.machine(name) for name in ("a", "b", "c")]
            schedule = FaultSchedule(
                {FaultKind.CRASH: 20.0, FaultKind.POWER: 20.0}, lasting_seconds_default=(5, 10), down_at_most=allowed
            )
            nemesis = strike(simulation, schedule, 0)
            down = 0
            for _ in range(300):
                simulation.run_for(1)
                down = max(down, sum(not machine.running for machine in machines))
            worst[allowed] = down
            assert nemesis.strikes[FaultKind.POWER] > 10
    assert worst == {1: 1, 2: 2}


def test_stop_mends_everything() -> None:
    with Simulation(3) as simulation:
        nemesis = strike(
            simulation, FaultSchedule(dict.fromkeys(FaultKind, 10.0), lasting_seconds_default=(50, 100)), 60
        )
        machines = list(simulation.machines.values())
        assert any(not machine.running for machine in machines) or nemesis.strikes[FaultKind.PAUSE]
        nemesis.stop()
        before = dict(nemesis.strikes)
        simulation.run_for(200)
        assert nemesis.strikes == before
        assert all(machine.running and machine.powered and machine.disk.slowness == 1.0 for machine in machines)

        async def reach(host: Host) -> None:
            for machine in machines:
                transport, _ = await host.loop.create_connection(asyncio.Protocol, machine.name, 1)
                transport.close()

        for machine in machines:
            simulation.run_on(machine, reach)


def test_a_slow_disk_is_slow_only_for_a_while() -> None:
    with Simulation(3) as simulation:
        schedule = FaultSchedule({FaultKind.SLOW_DISK: 6.0}, lasting_seconds_default=(1, 2), slowness=(50, 60))
        strike(simulation, schedule, 0)
        seen = set()
        for _ in range(600):
            simulation.run_for(0.1)
            seen |= {machine.disk.slowness for machine in simulation.machines.values()}
    assert 1.0 in seen
    assert max(seen) >= 50


def test_network_faults_need_two_machines() -> None:
    with Simulation(1) as simulation, pytest.raises(ValueError, match="two machines"):
        Nemesis(simulation, [simulation.machine("a")], FaultSchedule({FaultKind.CUT: 1.0}))
