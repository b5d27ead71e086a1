"""Random fault schedules."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from barnabas.kernel.host import Host
from barnabas.testing.faults import GENERAL, FaultKind, FaultSchedule, Nemesis
from barnabas.testing.simulated_host import SimulatedMachine
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


@pytest.mark.parametrize("kind", [kind for kind in FaultKind if kind in GENERAL])
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
        nemesis = strike(simulation, FaultSchedule(dict.fromkeys(GENERAL, 10.0), lasting_seconds_default=(50, 100)), 60)
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


def test_an_outage_takes_all_machines_down_and_each_comes_back_by_itself() -> None:
    with Simulation(3) as simulation:
        schedule = FaultSchedule(
            {FaultKind.OUTAGE: 6.0}, lasting_seconds_default=(1.0, 1.0), restart_spread_seconds=(1.0, 4.0)
        )
        nemesis = strike(simulation, schedule, 0)
        machines = list(simulation.machines.values())
        simulation.run_until(lambda: nemesis.strikes[FaultKind.OUTAGE] == 1, 120)
        assert not any(machine.powered for machine in machines)
        assert [machine.power_failures for machine in machines] == [1, 1, 1]
        back: dict[str, float] = {}

        def all_are_back() -> bool:
            for machine in machines:
                if machine.running:
                    back.setdefault(machine.name, simulation.now)
            return len(back) == len(machines)

        simulation.run_until(all_are_back, 10)
        assert len(set(back.values())) == 3
        nemesis.stop()
        assert nemesis.broken == 0


def test_what_is_not_permitted_does_not_strike() -> None:
    asked: list[tuple[FaultKind, str | None]] = []
    with Simulation(3) as simulation:
        machines = [simulation.machine(name) for name in ("a", "b")]
        for machine in machines:
            machine.start(_idle)

        def permits(kind: FaultKind, machine: SimulatedMachine | None) -> bool:
            asked.append((kind, None if machine is None else machine.name))
            return kind is FaultKind.CRASH and machine is machines[0]

        schedule = FaultSchedule(
            {FaultKind.CRASH: 20.0, FaultKind.CUT: 20.0, FaultKind.OUTAGE: 5.0}, lasting_seconds_default=(0.1, 0.2)
        )
        nemesis = Nemesis(simulation, machines, schedule, permits=permits)
        nemesis.start()
        simulation.run_for(120)
        nemesis.stop()
        assert nemesis.strikes[FaultKind.CRASH] > 5
        assert nemesis.strikes[FaultKind.CUT] == nemesis.strikes[FaultKind.OUTAGE] == 0
        assert {(FaultKind.CUT, None), (FaultKind.OUTAGE, None), (FaultKind.CRASH, "b")} <= set(asked)


def test_a_kind_that_the_scenario_has_to_carry_out_needs_a_striker() -> None:
    with Simulation(3) as simulation:
        machines = [simulation.machine(name) for name in ("a", "b")]
        with pytest.raises(ValueError, match="carry out expiry"):
            Nemesis(simulation, machines, FaultSchedule({FaultKind.EXPIRY: 1.0}))


def test_a_striker_is_called_at_its_rate_and_what_it_gives_mends_in_the_end() -> None:
    log: list[str] = []

    def strike_once() -> Callable[[], None] | None:
        log.append("struck")
        return (lambda: log.append("mended")) if len(log) < 9 else None

    with Simulation(3) as simulation:
        machines = [simulation.machine(name) for name in ("a", "b")]
        schedule = FaultSchedule({FaultKind.EXPIRY: 6.0}, lasting_seconds_default=(1_000, 1_000))
        nemesis = Nemesis(simulation, machines, schedule, strikers={FaultKind.EXPIRY: strike_once})
        nemesis.start()
        simulation.run_for(200)
        nemesis.stop()
    assert nemesis.strikes[FaultKind.EXPIRY] == log.count("mended") == 8
    assert log.count("struck") > 8  # some could break nothing


def test_a_machine_that_a_striker_has_taken_is_left_alone() -> None:
    with Simulation(3) as simulation:
        nemesis = strike(simulation, FaultSchedule({FaultKind.CRASH: 60.0}, lasting_seconds_default=(0.1, 0.1)), 0)
        machine = simulation.machines["a"]
        simulation.run_until(lambda: nemesis.take(FaultKind.CRASH, machine) is machine)
        assert nemesis.is_taken(machine)
        crashed = len(_crashes(simulation))
        simulation.run_for(30)
        assert machine.running
        assert len(_crashes(simulation)) == crashed  # one machine at most is down, and that is this one
        nemesis.give_back(machine)
        simulation.run_for(30)
        assert len(_crashes(simulation)) > crashed


def _crashes(simulation: Simulation) -> list[object]:
    return [event for event in simulation.trace.events() if event.occurrence is Occurrence.PROCESS_CRASHED]
