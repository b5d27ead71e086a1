"""A segment on a disk that loses power at every change and sync, and in a process that is killed."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from barnabas.kernel.host import Host, OffloadKind
from barnabas.log.directories.files import read_at
from barnabas.log.segments.segment import SMALL_APPEND_BYTES, Segment, SegmentConfig, perform_sync
from barnabas.testing.simulated_host import Main
from barnabas.testing.simulation import Simulation, simulation_seeds
from tests.unit.log.log_batches import Appended, batch

DIRECTORY = "/data/flights-0"
CONFIG = SegmentConfig(index_interval_bytes=300)
APPENDS = 14


@dataclass(slots=True)
class Promised:
    """What the writer knows."""

    batches: list[Appended] = field(default_factory=list)
    written: int = 0
    """Batches that are in the page cache: what an acknowledgement stands for."""
    synced: int = 0
    """Batches below the recovery point."""


def made_batch(number: int) -> Appended:
    """Every third is large, so that it is written at once."""
    return batch(number, [number], b"x" * (SMALL_APPEND_BYTES + number if number % 3 == 2 else 20))


def open_segment(host: Host) -> Segment:
    return Segment(host.files, DIRECTORY, 0, CONFIG, created_ms=host.clock.time_ms())


def writer(promised: Promised) -> Main:
    async def main(host: Host) -> None:
        host.files.make_directories(DIRECTORY)
        for parent in ("/data", "/"):
            host.files.fsync_directory(parent)
        segment = open_segment(host)
        segment.create()
        for number in range(APPENDS):
            one = made_batch(number)
            promised.batches.append(one)
            segment.append(one.data, one.last_offset, one.max_timestamp_ms)
            if number % 2:
                segment.write_pending()
                promised.written = number + 1
            if number % 5 == 4:
                work = segment.prepare_sync()
                promised.written = number + 1
                await host.offload(OffloadKind.SYNC, perform_sync, host.files, work)
                promised.synced = number + 1
        segment.write_pending()
        promised.written = APPENDS
        await host.loop.create_future()

    return main


def recovered(promised: Promised, least: int) -> Main:
    """Invariant: what recovery leaves is a prefix of what was appended, every checksum right, and at least `least`."""

    async def main(host: Host) -> int:
        if not host.files.exists(f"{DIRECTORY}/00000000000000000000.log"):
            assert least == 0
            return 0
        segment = open_segment(host)
        cut_bytes = segment.recover()
        count = segment.next_offset
        assert count >= least, f"{least} batches were promised, and {count} are there"
        for expected, found in zip(promised.batches, segment.batches(), strict=False):
            found.verify()
            assert found.base_offset == expected.base_offset
        assert segment.size_bytes == sum(len(one.data) for one in promised.batches[:count])
        for number in range(count):
            plan = segment.plan_read(number, 1)
            assert plan is not None
            data = promised.batches[number].data
            assert read_at(host.files, plan.descriptor, len(data), plan.position) == data
        one = made_batch(count)
        segment.append(one.data, one.last_offset, one.max_timestamp_ms)
        segment.close()
        again = open_segment(host)
        again.load()
        assert again.next_offset == count + 1
        again.close()
        return cut_bytes

    return main


def run_with_power_cut(seed: int, cut_at: int | None) -> tuple[int, int]:
    """Disk operations, and bytes that recovery has cut off."""
    promised = Promised()
    with Simulation(seed) as simulation:
        machine = simulation.machine("broker")
        machine.disk.cut_power_at = cut_at
        machine.start(writer(promised))
        simulation.run_until(lambda: promised.written == APPENDS or not machine.powered)
        operations = machine.disk.operations
        if machine.powered:
            machine.power_fail()
        machine.disk.cut_power_at = None
        machine.power_restore()
        return operations, simulation.run_on(machine, recovered(promised, promised.synced))


@pytest.mark.parametrize("seed", simulation_seeds(20))
def test_keeps_everything_synced_whenever_the_power_fails(seed: int) -> None:
    operations, _ = run_with_power_cut(seed, None)
    assert operations > APPENDS
    cut_bytes = [run_with_power_cut(seed, cut_at)[1] for cut_at in range(1, operations + 1)]
    assert any(cut_bytes), "no cut has torn anything: the test does not test"


@pytest.mark.parametrize("seed", simulation_seeds(10))
def test_a_killed_process_loses_nothing_written(seed: int) -> None:
    promised = Promised()
    with Simulation(seed) as simulation:
        machine = simulation.machine("broker")
        machine.start(writer(promised))
        simulation.run_until(lambda: promised.written >= 1 + seed % APPENDS)
        machine.crash()
        simulation.run_on(machine, recovered(promised, promised.written))
