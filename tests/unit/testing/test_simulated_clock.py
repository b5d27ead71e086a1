"""The clocks of a simulated machine."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.kernel.host import Host
from barnabas.testing.profile import ClockProfile, Profile
from barnabas.testing.simulated_clock import SIMULATION_STARTED_MS
from barnabas.testing.simulation import Simulation

EXACT = Profile(clock=ClockProfile(offset_seconds=(0.0, 0.0), drift_ppm=(0.0, 0.0)))


def test_the_wall_clock_follows_virtual_time() -> None:
    with Simulation(1, profile=EXACT) as simulation:
        clock = simulation.machine("a").clock
        assert clock.time_ms() == SIMULATION_STARTED_MS
        simulation.run_for(12.3456)
        assert clock.time_ms() == SIMULATION_STARTED_MS + 12_345


def test_clocks_of_machines_differ_within_the_profile() -> None:
    with Simulation(1) as simulation:
        clocks = [simulation.machine(f"machine-{number}").clock for number in range(20)]
        offsets = [clock.time_ms() - SIMULATION_STARTED_MS for clock in clocks]
        assert len(set(offsets)) > 10
        assert all(-201 <= offset <= 200 for offset in offsets)
        assert len({clock.monotonic() for clock in clocks}) == 20
        assert all(-50 <= clock.drift_ppm <= 50 for clock in clocks)


def test_a_clock_drifts_and_so_do_the_timers_of_its_machine() -> None:
    async def main(host: Host) -> float:
        began = host.loop.time()
        await asyncio.sleep(100)
        return host.loop.time() - began

    with Simulation(1, profile=EXACT) as simulation:
        machine = simulation.machine("a")
        machine.clock.set_drift(100_000)
        assert machine.clock.drift_ppm == pytest.approx(100_000)
        began_ms = machine.clock.time_ms()
        assert simulation.run_on(machine, main, 200) == pytest.approx(100, abs=0.01)
        assert simulation.now == pytest.approx(100 / 1.1, abs=0.01)
        assert machine.clock.time_ms() - began_ms == pytest.approx(100_000, abs=10)


def test_a_wall_clock_steps_without_moving_monotonic_time() -> None:
    with Simulation(1, profile=EXACT) as simulation:
        clock = simulation.machine("a").clock
        simulation.run_for(1)
        before = clock.monotonic()
        clock.step(-3600)
        assert clock.time_ms() == SIMULATION_STARTED_MS + 1_000 - 3_600_000
        clock.set_time_ms(1_234_567)
        assert clock.time_ms() == pytest.approx(1_234_567, abs=1)
        simulation.run_for(1)
        assert clock.time_ms() == pytest.approx(1_235_567, abs=1)
        assert clock.monotonic() == pytest.approx(before + 1)


def test_monotonic_time_begins_again_when_the_machine_boots() -> None:
    with Simulation(1, profile=EXACT) as simulation:
        machine = simulation.machine("a")
        simulation.run_for(5)
        machine.power_fail()
        simulation.run_for(5)
        machine.power_restore()
        assert machine.clock.monotonic() == pytest.approx(1)
        assert machine.clock.time_ms() == SIMULATION_STARTED_MS + 10_000
