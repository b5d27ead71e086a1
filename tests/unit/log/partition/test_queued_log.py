"""A log of a directory with a queue: nothing of it counts before it is in the files, whatever else it waits for."""

from __future__ import annotations

import pytest

from barnabas.kernel.host import Host
from barnabas.log.partition.log_config import LogSettings
from barnabas.testing.simulation import Simulation, simulation_seeds
from tests.unit.log.log_broker import FLIGHTS, log_broker, records

DIRECTORIES = "/data/one", "/data/two"
OFFLOAD = LogSettings(directory_patience_ms=0, directory_writes="offload")
SLOWNESS = 1_000_000.0


@pytest.mark.parametrize("seed", simulation_seeds(40))
def test_a_log_whose_new_name_becomes_durable_has_its_appends_written_too(seed: int) -> None:
    """Of a topic without an id there is nothing else to write, and the name may be durable before the records are."""
    ends: list[int] = []

    async def main(host: Host) -> None:
        async with log_broker(host, *DIRECTORIES, settings=OFFLOAD, is_clean=False) as broker:
            manager, current = broker.manager, broker.log()
            target = next(each for each in manager.directories if each is not current.log_directory)
            manager.create_future_log(current, target)
            await manager.begin_copy(FLIGHTS)
            await manager.prepare_replacement(FLIGHTS)
            log = manager.replace_current(FLIGHTS)
            assert log is not None
            await target.settle()
            await broker.timers.sleep(seed / 10)
            machine.disk.slow_paths[target.path] = SLOWNESS
            log.append_as_leader(records(b"first"), 0)
            manager.write_queue.when_written(log, lambda _: ends.append(log.log_end_offset))
            await broker.written(log)

    with Simulation(seed) as simulation:
        machine = simulation.machine("broker")
        machine.start(main)
        simulation.run_until(lambda: bool(ends), 50_000.0)
    assert ends == [1]
