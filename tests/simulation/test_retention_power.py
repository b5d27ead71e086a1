"""Retention and DeleteRecords delete segments while the power fails: a disk that undoes some of the deletions and not
others leaves a gap, and nothing that was synced above the start of the log goes for that."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass, field

import pytest

from barnabas.kernel.host import Host
from barnabas.log.manager.retention import doomed_end_offset
from barnabas.log.partition.log_config import LogConfig
from barnabas.testing.simulated_host import Main
from barnabas.testing.simulation import simulation_seeds
from tests.simulation.power_cuts import run_with_power_cut
from tests.unit.log.log_broker import LogBroker, log_broker, records

DIRECTORY = "/data/logs"
CONFIG = LogConfig(segment_bytes=600, retention_bytes=1_500, retention_ms=-1, file_delete_delay_ms=500)
ALL_OLD = dataclasses.replace(CONFIG, retention_ms=1)
STEPS = 60


@dataclass(slots=True)
class Promised:
    """What was written, by offset; what of it was synced; and what was deleted."""

    values: list[bytes] = field(default_factory=list)
    synced: int = 0
    start: int = 0
    """Below it, records may be gone."""
    retained: int = 0
    """Runs of retention that deleted something."""
    is_done: bool = False


async def write(broker: LogBroker, promised: Promised, choose: random.Random, steps: int) -> None:
    """Appends with rolls; retention, deletions of records, and seldom a checkpoint, as of its interval."""
    log = broker.log()
    for _ in range(steps):
        value = b"%d " % log.log_end_offset * choose.randrange(1, 60)
        promised.values.append(value)
        log.append_as_leader(memoryview(records(value)), 0)
        if choose.random() < 0.5:
            await broker.written(log)
        if choose.random() < 0.3:
            await log.flush()
        promised.synced = log.recovery_point
        log.update_high_watermark(log.log_end_offset)
        if choose.random() < 0.06:
            start = choose.randint(log.log_start_offset, log.high_watermark)
            promised.start = max(promised.start, start)
            log.delete_records_to(start)
        if choose.random() < 0.15:
            log.reconfigure(ALL_OLD if choose.random() < 0.1 else CONFIG)
            # Whatever of this the power lets happen.
            doomed = doomed_end_offset(log, broker.host.clock.time_ms(), lambda segment: 0)
            promised.start = max(promised.start, doomed)
            before = log.segments.first.base_offset
            await broker.manager.delete_old_segments()
            promised.retained += log.segments.first.base_offset > before
            assert log.segments.first.base_offset >= doomed, "nothing is left for the next run"
        assert promised.start >= log.log_start_offset
        promised.synced = log.recovery_point
        if choose.random() < 0.1:
            await broker.manager.checkpoint_log_start_offsets()
        if choose.random() < 0.03:
            await broker.manager.checkpoint_recovery_points()


def writer(promised: Promised, seed: int) -> Main:
    async def main(host: Host) -> None:
        async with log_broker(host, DIRECTORY, config=CONFIG, is_clean=False) as broker:
            await write(broker, promised, random.Random(seed), STEPS)
            promised.is_done = True
            await host.loop.create_future()

    return main


def recovered(promised: Promised, seed: int) -> Main:
    """Loads, checks, and goes on a little, to lose its power again."""

    async def main(host: Host) -> None:
        async with log_broker(host, DIRECTORY, config=CONFIG, is_clean=False) as broker:
            log = broker.log()
            assert log.log_end_offset >= promised.synced, f"{promised.start}-{promised.synced} was synced"
            start = max(promised.start, log.log_start_offset)
            found = {record.offset: record.value for record in await broker.records(log) if record.offset >= start}
            assert found == dict(enumerate(promised.values[start : log.log_end_offset], start=start))
            del promised.values[log.log_end_offset :]
            promised.start = start
            await write(broker, promised, random.Random(seed), 6)

    return main


def cut(seed: int, cut_at: int | None) -> tuple[int, Promised]:
    promised = Promised()
    writing = writer(promised, seed)
    operations = run_with_power_cut(
        seed, cut_at, writing, lambda: promised.is_done, lambda life: recovered(promised, seed + life)
    )
    return operations, promised


@pytest.mark.parametrize("seed", simulation_seeds(6))
def test_what_was_synced_above_the_start_stays_whenever_the_power_fails(seed: int) -> None:
    operations, promised = cut(seed, None)
    assert promised.retained > 2, "retention has deleted nothing: the test does not test"
    for cut_at in random.Random(seed).sample(range(1, operations + 1), 30):
        cut(seed, cut_at)
