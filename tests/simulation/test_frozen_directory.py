"""A log directory that is frozen as a whole, the first call that waits being one of the loop's own: no turn waits."""

from __future__ import annotations

import asyncio
import errno
from functools import partial

import pytest

from barnabas.kernel.host import Host
from barnabas.log.partition.appending import AppendError
from barnabas.log.partition.log_config import LogConfig, LogSettings
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.partition.read_plans import ReadIsolation
from barnabas.testing.simulated_disk import FaultRule
from barnabas.testing.simulation import Simulation, simulation_seeds
from barnabas.wire.errors import ErrorCode, KafkaError
from tests.unit.log.log_broker import FLIGHTS, LogBroker, log_broker, records

FROZEN, WORKS = "/data/frozen", "/data/works"
SLOWNESS = 1_000_000.0
"""A write takes 10 s and more, and a sync minutes."""
MENDED_SECONDS = 50_000.0
TURN_SECONDS_MAX = 0.05
CONFIG = LogConfig(segment_bytes=600, retention_ms=-1, file_delete_delay_ms=100)


def pair(broker: LogBroker) -> tuple[PartitionLog, PartitionLog]:
    logs = [broker.log(FLIGHTS._replace(partition=number)) for number in (0, 1)]
    frozen, works = sorted(logs, key=lambda log: log.directory)
    assert frozen.log_directory.path == FROZEN
    return frozen, works


def note(told: list[tuple[int, KafkaError | None]], offset: int, error: KafkaError | None) -> None:
    told.append((offset, error))


async def pause(host: Host, seconds: float) -> None:
    done = host.loop.create_future()
    host.loop.call_later(seconds, done.set_result, None)
    await done


@pytest.mark.parametrize("seed", simulation_seeds(5))
def test_no_turn_waits_for_the_first_write_to_a_frozen_directory(seed: int) -> None:
    """Appends, rolls, truncations, new and deleted logs: what comes before the directory is known to hang."""
    done: list[bool] = []

    async def main(host: Host) -> None:
        async with log_broker(
            host, FROZEN, WORKS, settings=LogSettings(directory_writes="auto"), config=CONFIG
        ) as broker:
            frozen, works = pair(broker)
            more = [broker.log(FLIGHTS._replace(partition=number)) for number in range(2, 6)]
            other, doomed = (log for log in more if log.log_directory is frozen.log_directory)
            for log in (frozen, works, other, doomed):
                for _ in range(3):
                    log.append_as_leader(records(b"before"), 0)
                await broker.written(log)
            machine.disk.slow_paths[FROZEN] = SLOWNESS
            told: list[tuple[int, KafkaError | None]] = []
            truncation = host.loop.create_task(other.truncate_to(1))
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # it reads, which simulated disks let wait, and real ones do not where it is cached
            deletion = host.loop.create_task(broker.manager.delete_log(doomed.partition))
            refusals: list[ErrorCode] = []
            accepted = 0
            until = host.loop.time() + 4
            while (began := host.loop.time()) < until:
                try:
                    offset = frozen.append_as_leader(records(b"value" * 20), 0).first_offset
                except AppendError as error:
                    refusals.append(error.code)
                else:
                    broker.manager.write_queue.when_written(frozen, partial(note, told, offset))
                    accepted += 1
                assert frozen.log_end_offset == 3
                frozen.increase_high_watermark(frozen.append_end_offset)
                assert frozen.high_watermark == 3
                assert frozen.read(3, 1 << 20, ReadIsolation.LOG_END, has_minimum=True).plan is None
                works.append_as_leader(records(b"meanwhile"), 0)
                await broker.written(works)
                assert host.loop.time() - began < TURN_SECONDS_MAX, "the loop has waited for the disk"
                await pause(host, 0.05)
            assert not told
            assert accepted > 5 < len(refusals), "it takes records until it is held"
            assert set(refusals) == {ErrorCode.NOT_ENOUGH_REPLICAS}
            assert frozen.segment_count > 3
            assert not truncation.done()
            assert not deletion.done()
            machine.disk.slow_paths.clear()
            await broker.written(frozen)
            assert told == [(3 + number, None) for number in range(accepted)]
            assert frozen.log_end_offset == frozen.append_end_offset == 3 + accepted
            assert [record.offset for record in await broker.records(frozen)] == list(range(3 + accepted))
            await truncation
            await deletion
            assert other.log_end_offset == 1
            while frozen.log_directory.is_held:
                await pause(host, 0.1)
            for log, offset in ((frozen, 3 + accepted), (other, 1)):
                assert log.append_as_leader(records(b"after"), 0).first_offset == offset
                await broker.written(log)
            assert [record.value for record in await broker.records(other)] == [b"before", b"after"]
        done.append(True)

    with Simulation(seed) as simulation:
        machine = simulation.machine("broker")
        machine.start(main)
        simulation.run_until(lambda: bool(done), MENDED_SECONDS)


@pytest.mark.parametrize("seed", simulation_seeds(5))
@pytest.mark.parametrize("is_frozen", [False, True])
def test_whoever_waits_for_a_write_that_fails_is_told_and_nothing_of_it_counts(seed: int, is_frozen: bool) -> None:
    done: list[bool] = []

    async def main(host: Host) -> None:
        async with log_broker(
            host, FROZEN, WORKS, settings=LogSettings(directory_writes="auto"), config=CONFIG
        ) as broker:
            frozen, works = pair(broker)
            for log in (frozen, works):
                log.append_as_leader(records(b"before"), 0)
                await broker.written(log)
            if is_frozen:
                machine.disk.slow_paths[FROZEN] = SLOWNESS / 1000
            told: list[KafkaError | None] = []
            machine.disk.fault_rules.append(
                FaultRule(frozenset({"write", "open", "truncate"}), f"{FROZEN}/*", errno.EIO, 1.0)
            )
            for _ in range(9):
                frozen.append_as_leader(records(b"fails" * 20), 0)
                broker.manager.write_queue.when_written(frozen, told.append)
                assert frozen.log_end_offset == 1
            while not broker.offline:
                works.append_as_leader(records(b"meanwhile"), 0)
                await broker.written(works)
                await pause(host, 0.01)
            assert [error.code if error else None for error in told] == 9 * [ErrorCode.KAFKA_STORAGE_ERROR]
            assert broker.offline == [FROZEN]
            with pytest.raises(AppendError):
                frozen.append_as_leader(records(b"refused"), 0)
            works.append_as_leader(records(b"after"), 0)
            await broker.written(works)
        done.append(True)

    with Simulation(seed) as simulation:
        machine = simulation.machine("broker")
        machine.start(main)
        simulation.run_until(lambda: bool(done), MENDED_SECONDS)


@pytest.mark.parametrize("seed", simulation_seeds(5))
def test_a_follower_does_not_say_that_it_has_what_is_not_written(seed: int) -> None:
    """Its end, its high watermark and what it gives to others stay behind, and follow when the directory answers."""
    done: list[bool] = []

    async def main(host: Host) -> None:
        async with log_broker(
            host, FROZEN, WORKS, settings=LogSettings(directory_writes="auto"), config=CONFIG
        ) as broker:
            frozen, _ = pair(broker)
            machine.disk.slow_paths[FROZEN] = SLOWNESS
            frozen.append_as_follower(bytes(records(b"fetched")))
            assert frozen.update_high_watermark(1) == 0
            assert frozen.has_unwritten
            assert (frozen.log_end_offset, frozen.append_end_offset) == (0, 1)
            written = host.loop.create_task(frozen.wait_written())
            await pause(host, 0.5)
            assert not written.done()
            machine.disk.slow_paths.clear()
            await written
            assert frozen.log_end_offset == frozen.high_watermark == 1
        done.append(True)

    with Simulation(seed) as simulation:
        machine = simulation.machine("broker")
        machine.start(main)
        simulation.run_until(partial(bool, done), MENDED_SECONDS)
