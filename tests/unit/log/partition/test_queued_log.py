"""A log of a directory with a queue: nothing of it counts before it is in the files, whatever else it waits for."""

from __future__ import annotations

import functools

import pytest

from barnabas.kernel.host import Host
from barnabas.log.partition.log_config import LogConfig, LogSettings
from barnabas.log.partition.read_plans import ReadIsolation
from barnabas.testing.profile import DiskProfile, Profile
from barnabas.testing.simulation import Simulation, simulation_seeds
from tests.unit.log.log_broker import FLIGHTS, log_broker, records

DIRECTORIES = "/data/one", "/data/two"
OFFLOAD = LogSettings(directory_patience_ms=0, directory_writes="offload")
SLOWNESS = 1_000_000.0
SLOW_SYNCS = Profile(disk=DiskProfile(sync_seconds=(5.0, 9.0)))


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


@pytest.mark.parametrize("seed", simulation_seeds(2))
def test_what_is_written_is_there_while_what_came_before_is_synced(seed: int) -> None:
    """As with writes on the loop: whoever reads it, followers above all, does not wait for the leader's sync."""

    async def main(host: Host) -> None:
        async with log_broker(host, *DIRECTORIES, settings=OFFLOAD, config=LogConfig(flush_messages=1)) as broker:
            log, write_queue = broker.log(), broker.manager.write_queue
            log.append_as_leader(records(b"the directory's own files are there"), 0)
            await broker.written(log)
            acknowledged: list[int] = []
            for number in (2, 3):
                log.append_as_leader(records(b"%d" % number), 0)
                write_queue.when_written(log, functools.partial(lambda number, _: acknowledged.append(number), number))
                await broker.timers.sleep(100)
                assert (log.log_end_offset, acknowledged) == (number, [])
            await broker.written(log)
            assert acknowledged == [2, 3]

    with Simulation(seed, profile=SLOW_SYNCS) as simulation:
        simulation.run_on(simulation.machine("broker"), main, limit_seconds=1_000.0)


def test_what_is_not_written_is_there_for_nobody_and_what_a_leader_says_of_it_counts_later() -> None:
    async def main(host: Host) -> None:
        async with log_broker(host, *DIRECTORIES, settings=OFFLOAD) as broker:
            log = broker.log()
            log.append_as_leader(records(b"first"), 0)
            await broker.written(log)
            log.append_as_leader(records(b"second"), 0)
            assert (log.append_end_offset, log.log_end_offset, log.has_unwritten) == (2, 1, True)
            log.append_as_leader(records(b"third"), 0)
            plan = log.read(0, 1 << 20, ReadIsolation.LOG_END, has_minimum=True).plan
            assert plan is not None
            assert plan.length_bytes == len(records(b"first"))
            assert log.read(1, 1 << 20, ReadIsolation.LOG_END, has_minimum=True).plan is None
            assert log.update_high_watermark(3) == 1
            await broker.written(log)
            assert (log.high_watermark, log.log_end_offset, log.has_unwritten) == (3, 3, False)
            assert [record.value for record in await broker.records(log)] == [b"first", b"second", b"third"]

    with Simulation(1) as simulation:
        simulation.run_on(simulation.machine("broker"), main, limit_seconds=1_000.0)


@pytest.mark.parametrize("said", [2, 3, 100])
def test_what_is_said_of_records_that_are_not_there_does_not_count_for_those_that_come_in_their_place(
    said: int,
) -> None:
    """A leader, or the checkpoint of a log that has lost its end with the power, has a high watermark beyond the end;
    the broker leads then, and commits what its followers have."""

    async def main(host: Host) -> None:
        async with log_broker(host, *DIRECTORIES, settings=OFFLOAD) as broker:
            log = broker.log()
            log.append_as_leader(records(b"written"), 0)
            await broker.written(log)
            log.append_as_leader(records(b"not yet"), 0)
            assert log.update_high_watermark(said) == 1
            for _ in range(3):
                log.append_as_leader(records(b"of the next epoch"), 1)
                await broker.written(log)
                assert log.high_watermark == 2
            assert log.log_end_offset == 5

    with Simulation(1) as simulation:
        simulation.run_on(simulation.machine("broker"), main, limit_seconds=1_000.0)


@pytest.mark.parametrize("seed", simulation_seeds(3))
def test_what_was_truncated_says_nothing_of_what_came_in_its_place(seed: int) -> None:
    """It was in the queue, and is written before what has its offsets now."""

    async def main(host: Host) -> None:
        async with log_broker(host, *DIRECTORIES, settings=OFFLOAD) as broker:
            log = broker.log()
            log.append_as_leader(records(b"kept"), 0)
            await broker.written(log)
            machine.disk.slow_paths[log.log_directory.path] = 1_000.0
            log.append_as_leader(records(b"x" * 9_000), 0)
            await broker.timers.sleep(0.001)
            assert log.has_unwritten
            truncation = host.loop.create_task(log.truncate_to(1))
            await broker.timers.sleep(0.001)
            while not truncation.done():
                assert (log.append_end_offset, log.log_end_offset) == (1, 1)
                await broker.timers.sleep(0.001)
            await truncation
            assert (log.append_end_offset, log.log_end_offset) == (1, 1)
            log.append_as_leader(records(b"instead"), 0)
            while log.log_end_offset == 1:
                await broker.timers.sleep(0.01)
            assert [record.value for record in await broker.records(log)] == [b"kept", b"instead"]

    with Simulation(seed) as simulation:
        machine = simulation.machine("broker")
        simulation.run_on(machine, main, limit_seconds=50_000.0)
