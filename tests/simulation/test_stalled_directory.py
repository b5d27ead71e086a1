"""A disk that hangs: no turn of the loop waits for it once it is known, and the other directories go on as ever."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random

import pytest

from barnabas.kernel.host import Host
from barnabas.log.directories.directory_watch import IDLE_PERIOD_MS, PATIENCE_TIMES_MAX, PROBE_FILE
from barnabas.log.partition.appending import AppendError
from barnabas.log.partition.log_config import LogConfig, LogSettings
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.partition.read_plans import ReadIsolation
from barnabas.testing.simulated_disk import FaultRule
from barnabas.testing.simulation import Simulation, simulation_seeds
from barnabas.wire.errors import ErrorCode, KafkaError
from tests.unit.log.log_broker import FLIGHTS, LogBroker, log_broker, records

HANGS, WORKS = "/data/hangs", "/data/works"
SLOWNESS = 100_000.0
"""A sync takes 20 s at the least, and a write on the loop as long as 1 s."""
KNOWN_SECONDS = 2.0
HUNG_SECONDS = 8.0
MENDED_SECONDS = 600.0
TURN_SECONDS_MAX = 0.05
SLOW, SLOW_APPENDS = 1_000.0, 2_000
SLOW_ANSWER_SECONDS_MAX = 4.0
MANY = 20
"""More logs than there are threads for one kind of work."""
USE_SECONDS_MAX = 2.0
SECONDS_PER_IDLE_QUESTION = IDLE_PERIOD_MS / 1000


@pytest.mark.parametrize("seed", simulation_seeds(10))
def test_a_directory_that_hangs_takes_nothing_and_stops_nobody(seed: int) -> None:
    done: list[bool] = []

    async def main(host: Host) -> None:
        async with log_broker(host, HANGS, WORKS, settings=LogSettings(), config=LogConfig(retention_ms=-1)) as broker:
            logs = [broker.log(FLIGHTS._replace(partition=number)) for number in (0, 1)]
            hung, works = sorted(logs, key=lambda log: log.directory)
            assert hung.log_directory.path == HANGS
            for log in (hung, works):
                log.append_as_leader(records(b"before"), 0)
                await broker.written(log)
            machine.disk.slow_paths[HANGS] = SLOWNESS
            await pause(host, KNOWN_SECONDS)
            until = host.loop.time() + HUNG_SECONDS
            while (began := host.loop.time()) < until:
                with pytest.raises(AppendError) as refused:
                    hung.append_as_leader(records(b"refused"), 0)
                assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
                with pytest.raises(KafkaError):
                    hung.append_as_follower(records(b"refused"), 0)
                works.append_as_leader(records(b"meanwhile"), 0)
                await broker.written(works)
                broker.log(FLIGHTS._replace(partition=2 + len(broker.manager.logs)))  # made where it can be
                await broker.manager.delete_old_segments()
                assert host.loop.time() - began < TURN_SECONDS_MAX, "the loop has waited for the disk"
                await pause(host, 0.1)
            assert len(broker.manager.logs) > 10
            assert hung.log_end_offset == 1
            machine.disk.slow_paths.clear()
            while hung.log_directory.is_held:
                await pause(host, 0.1)
            hung.append_as_leader(records(b"after"), 0)
            await broker.written(hung)
            assert [record.value for record in await broker.records(hung)] == [b"before", b"after"]
        done.append(True)

    with Simulation(seed) as simulation:
        machine = simulation.machine("broker")
        machine.start(main)
        simulation.run_until(lambda: bool(done), MENDED_SECONDS)


@pytest.mark.parametrize("seed", simulation_seeds(10))
def test_work_off_the_loop_for_a_directory_that_hangs_keeps_that_of_others_from_nothing(seed: int) -> None:
    """Flushes, searches by time, reads that are not cached: more of each hang than there are threads; a checkpoint."""
    done: list[bool] = []

    async def main(host: Host) -> None:
        async with log_broker(host, HANGS, WORKS, settings=LogSettings(), config=LogConfig(retention_ms=-1)) as broker:
            logs = [broker.log(FLIGHTS._replace(partition=number)) for number in range(2 * MANY)]
            hung = [log for log in logs if log.log_directory.path == HANGS]
            works = [log for log in logs if log.log_directory.path == WORKS]
            assert len(hung) == len(works) == MANY
            for log in logs:
                log.append_as_leader(records(b"before"), 0)
                await broker.written(log)
            machine.disk.slow_paths[HANGS] = SLOWNESS
            began = host.loop.time()
            waiting = [host.loop.create_task(use_disk(broker, log)) for log in hung]
            await asyncio.sleep(0)
            for log in works:
                await use_disk(broker, log)
            await works[0].log_directory.write_high_watermarks({FLIGHTS: 1})
            assert host.loop.time() - began < USE_SECONDS_MAX, "it has waited for the disk that hangs"
            assert not any(task.done() for task in waiting)
            machine.disk.slow_paths.clear()
            await asyncio.gather(*waiting)
            assert all(log.recovery_point == 1 for log in logs)
        done.append(True)

    with Simulation(seed) as simulation:
        machine = simulation.machine("broker")
        machine.start(main)
        simulation.run_until(lambda: bool(done), 10 * MENDED_SECONDS)


@pytest.mark.parametrize("seed", simulation_seeds(3))
def test_a_deletion_in_a_directory_that_hangs_keeps_those_in_others_from_nothing(seed: int) -> None:
    """The controller sends a broker one request at a time: one that is not answered holds up all."""
    done: list[bool] = []

    async def main(host: Host) -> None:
        async with log_broker(host, HANGS, WORKS, settings=LogSettings(), config=LogConfig(retention_ms=-1)) as broker:
            manager = broker.manager
            logs = [broker.log(FLIGHTS._replace(partition=number)) for number in range(6)]
            hung = [log for log in logs if log.log_directory.path == HANGS]
            works = [log for log in logs if log.log_directory.path == WORKS]
            for log in logs:
                log.append_as_leader(records(b"before"), 0)
                await log.flush()
            machine.disk.slow_paths[HANGS] = SLOWNESS
            waits = host.loop.create_task(manager.delete_log(hung[0].partition))
            await asyncio.sleep(0)
            began = host.loop.time()
            for log in works:
                await manager.delete_log(log.partition)
                assert log.partition not in log.log_directory.read_recovery_points()
            assert host.loop.time() - began < USE_SECONDS_MAX, "it has waited for the disk that hangs"
            assert not waits.done()
            machine.disk.slow_paths.clear()
            await waits
            assert hung[0].partition not in hung[0].log_directory.read_recovery_points()
        done.append(True)

    with Simulation(seed) as simulation:
        machine = simulation.machine("broker")
        machine.start(main)
        simulation.run_until(lambda: bool(done), MENDED_SECONDS)


async def use_disk(broker: LogBroker, log: PartitionLog) -> None:
    """What waits for the disk, and what reads from it."""
    plan = log.read(0, 1 << 20, ReadIsolation.LOG_END, has_minimum=True).plan
    assert plan is not None
    await asyncio.gather(log.flush(), log.list_offset(0), broker.manager.reader.read(plan))


def test_a_disk_that_is_slow_under_load_is_not_held_again_and_again() -> None:
    """Its syncs take up to 3 s, which is more than it may take at first. Where it hangs, that is found out yet."""
    found: list[tuple[int, int, float]] = []

    async def main(host: Host) -> None:
        async with log_broker(host, HANGS, settings=LogSettings(), config=LogConfig(retention_ms=-1)) as broker:
            log = broker.log()
            machine.disk.slow_paths[HANGS] = SLOW
            refused = 0
            for _ in range(SLOW_APPENDS):
                try:
                    log.append_as_leader(records(b"value"), 0)
                except AppendError:
                    refused += 1
                await pause(host, 0.05)
            held = sum("has not answered" in line for line in broker.lines)
            await until_held(host, log, is_held=False)
            machine.disk.slow_paths[HANGS] = SLOWNESS
            began = host.loop.time()
            await until_held(host, log, is_held=True)
            found.append((refused, held, host.loop.time() - began))

    with Simulation(1) as simulation:
        machine = simulation.machine("broker")
        machine.start(main)
        simulation.run_until(lambda: bool(found), MENDED_SECONDS)
    ((refused, held, found_after),) = found
    assert 1 <= held <= 2, "until it was known that the disk is slow"
    assert refused <= SLOW_APPENDS // 50
    patience_seconds = LogSettings().directory_patience_ms / 1000
    assert found_after <= PATIENCE_TIMES_MAX * patience_seconds + SLOW_ANSWER_SECONDS_MAX


def test_how_long_a_directory_has_hung_is_not_what_it_takes_for_an_answer() -> None:
    """However long it was, the patience is less than the most there is some seven seconds after its end."""
    found: list[float] = []

    async def main(host: Host) -> None:
        async with log_broker(host, HANGS, settings=LogSettings(), config=LogConfig(retention_ms=-1)) as broker:
            log = broker.log()
            log.append_as_leader(records(b"value"), 0)
            await broker.written(log)
            machine.disk.slow_paths[HANGS] = SLOWNESS
            await until_held(host, log, is_held=True)
            await pause(host, MENDED_SECONDS)
            machine.disk.slow_paths.clear()
            await until_held(host, log, is_held=False)
            for _ in range(140):
                log.append_as_leader(records(b"value"), 0)
                await pause(host, 0.05)
            machine.disk.slow_paths[HANGS] = SLOWNESS
            log.append_as_leader(records(b"value"), 0)
            began = host.loop.time()
            await until_held(host, log, is_held=True)
            found.append(host.loop.time() - began)

    with Simulation(1) as simulation:
        machine = simulation.machine("broker")
        machine.start(main)
        simulation.run_until(lambda: bool(found), 10 * MENDED_SECONDS)
    patience_seconds = LogSettings().directory_patience_ms / 1000
    assert found[0] < 0.7 * PATIENCE_TIMES_MAX * patience_seconds


def test_a_directory_without_appends_is_asked_seldom() -> None:
    """A question costs the disk some blocks of its journal: twenty times more of them in a day are gigabytes."""
    found: list[tuple[int, int]] = []

    async def main(host: Host) -> None:
        async with log_broker(host, WORKS, settings=LogSettings(), config=LogConfig(retention_ms=-1)) as broker:
            log = broker.log()
            before = questions.count
            await pause(host, 100 * SECONDS_PER_IDLE_QUESTION)
            idle = questions.count - before
            for _ in range(200):
                log.append_as_leader(records(b"value"), 0)
                await pause(host, 0.1)
            found.append((idle, questions.count - before - idle))

    questions = Questions(frozenset({"fsync"}), f"{WORKS}/{PROBE_FILE}")
    with Simulation(1) as simulation:
        machine = simulation.machine("broker")
        machine.disk.fault_rules.append(questions)
        machine.start(main)
        simulation.run_until(lambda: bool(found), 2 * 100 * SECONDS_PER_IDLE_QUESTION)
    idle, busy = found[0]
    assert 80 <= idle <= 101
    assert busy >= 30, "one each half second while there are appends"


@dataclass(slots=True)
class Questions(FaultRule):
    """Counts the calls that it could make fail, and makes none of them."""

    count: int = 0

    def strikes(self, operation: str, path: str, random: Random) -> bool:
        if operation in self.operations and path == self.pattern:
            self.count += 1
        return False


async def until_held(host: Host, log: PartitionLog, *, is_held: bool) -> None:
    while log.log_directory.is_held is not is_held:
        await pause(host, 0.1)


async def pause(host: Host, seconds: float) -> None:
    done: asyncio.Future[None] = host.loop.create_future()
    host.loop.call_later(seconds, done.set_result, None)
    await done


@pytest.mark.parametrize("seed", simulation_seeds(5))
def test_retention_of_a_directory_that_hangs_keeps_that_of_others_from_nothing(seed: int) -> None:
    done: list[bool] = []

    async def main(host: Host) -> None:
        config = LogConfig(segment_bytes=300, retention_bytes=500, retention_ms=-1)
        async with log_broker(host, HANGS, WORKS, settings=LogSettings(), config=config) as broker:
            logs = [broker.log(FLIGHTS._replace(partition=number)) for number in (0, 1)]
            for log in logs:
                for _ in range(12):
                    log.append_as_leader(records(bytes(100)), 0)
                await broker.written(log)
                log.update_high_watermark(log.log_end_offset)
            hung, works = sorted(logs, key=lambda log: log.directory)
            machine.disk.slow_paths[HANGS] = SLOWNESS
            began = host.loop.time()
            await broker.manager.delete_old_segments()
            assert host.loop.time() - began < KNOWN_SECONDS
            assert works.log_start_offset > 0 == hung.log_start_offset
            machine.disk.slow_paths.clear()
            while hung.log_directory.is_held:
                await pause(host, 0.1)
            await broker.manager.delete_old_segments()
            assert hung.log_start_offset == works.log_start_offset
        done.append(True)

    with Simulation(seed) as simulation:
        machine = simulation.machine("broker")
        machine.start(main)
        simulation.run_until(lambda: bool(done), MENDED_SECONDS)
