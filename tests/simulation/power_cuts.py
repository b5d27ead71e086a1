"""One broker whose power is cut at some operation of its disk, and which then comes back to be looked at, twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from barnabas.testing.simulated_host import Main
from barnabas.testing.simulation import Simulation

LIVES: Final = 2


def run_with_power_cut(
    seed: int, cut_at: int | None, writer: Main, is_done: Callable[[], bool], recovered: Callable[[int], Main]
) -> int:
    """Runs `writer` until `is_done`, or until the power fails at the operation `cut_at`; then what `recovered` makes
    for each life after that (0, 1), before which the power is lost. Returns how many operations of the disk the writer
    has had.
    """
    with Simulation(seed) as simulation:
        machine = simulation.machine("broker")
        machine.disk.cut_power_at = cut_at
        machine.start(writer)
        simulation.run_until(lambda: is_done() or not machine.powered)
        operations = machine.disk.operations
        for life in range(LIVES):
            if machine.powered:
                machine.power_fail()
            machine.disk.cut_power_at = None
            machine.power_restore()
            simulation.run_on(machine, recovered(life))
    return operations
