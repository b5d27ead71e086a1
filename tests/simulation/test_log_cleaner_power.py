"""Compaction while the power may fail at any operation of the disk: what the keys have does not change by it."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass, field

import pytest

from barnabas.kernel.host import Host
from barnabas.log.manager.log_cleaner import LogCleaner
from barnabas.log.partition.log_config import LogConfig, LogSettings
from barnabas.log.partition.read_plans import ReadIsolation
from barnabas.testing.simulated_host import Main
from barnabas.testing.simulation import simulation_seeds
from barnabas.wire.batch_formats import batch_at, read_records
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.records import Record, walk_batches
from tests.simulation.power_cuts import run_with_power_cut
from tests.unit.log.log_broker import LogBroker, log_broker

DIRECTORY = "/data/logs"
CONFIG = LogConfig(
    cleanup_policy=("compact",),
    segment_bytes=1500,
    index_interval_bytes=300,
    file_delete_delay_ms=200,
    delete_retention_ms=20,
    min_cleanable_dirty_ratio=0.1,
)
SETTINGS = LogSettings(cleaner_enable=False, cleaner_dedupe_buffer_size=2000)
STEPS = 60


@dataclass(slots=True)
class Promised:
    """What was written, and how much of it must be there."""

    history: list[Record] = field(default_factory=list)
    synced: int = 0
    cleaned: int = 0
    is_done: bool = False


def values(records: list[Record]) -> dict[bytes | None, bytes]:
    found: dict[bytes | None, bytes] = {}
    for record in records:
        found.pop(record.key, None)
        if record.value is not None:
            found[record.key] = record.value
    return found


async def everything(broker: LogBroker) -> list[Record]:
    """What a reader gets who goes on behind each batch, as consumers and followers do."""
    log, at = broker.log(), broker.log().log_start_offset
    found: list[Record] = []
    while (plan := log.read(at, 500, ReadIsolation.LOG_END, has_minimum=True).plan) is not None:
        data = bytes(await broker.manager.reader.read(plan))
        if not plan.is_readable and not data:
            continue
        batches = [batch_at(data, span) for span in walk_batches(data).spans]
        found += [record for batch in batches for record in batch.records() if record.offset >= at]
        at = batches[-1].last_offset + 1
    return found


def cleaner_of(broker: LogBroker) -> LogCleaner:
    return LogCleaner(broker.manager, broker.host, logging.getLogger("cleaner"))


def writer(promised: Promised, seed: int) -> Main:
    async def main(host: Host) -> None:
        choose = random.Random(seed)
        async with log_broker(host, DIRECTORY, config=CONFIG, settings=SETTINGS, is_clean=False) as broker:
            log, cleaner = broker.log(), cleaner_of(broker)
            for step in range(STEPS):
                builder = RecordBatchBuilder()
                for _ in range(choose.randrange(1, 6)):
                    key, value = b"%d" % choose.randrange(12), b"%d" % step * choose.randrange(1, 40)
                    builder.append(1000 + step, key, None if choose.random() < 0.3 else value)
                first = log.log_end_offset
                data = builder.build()
                promised.history += [
                    record._replace(offset=first + number) for number, record in enumerate(read_records(bytes(data)))
                ]
                log.append_as_leader(memoryview(data), 0)
                await broker.written(log)
                if choose.random() < 0.4:
                    await log.flush()
                    promised.synced = log.recovery_point
                    log.update_high_watermark(log.log_end_offset)
                if choose.random() < 0.3:
                    segments = log.segment_count
                    await broker.manager.checkpoint_recovery_points()
                    promised.cleaned += await cleaner.clean_filthiest() and log.segment_count <= segments
                    assert values(await everything(broker)) == values(promised.history)
            promised.is_done = True
            await host.loop.create_future()

    return main


def recovered(promised: Promised) -> Main:
    async def main(host: Host) -> None:
        async with log_broker(host, DIRECTORY, config=CONFIG, settings=SETTINGS, is_clean=False) as broker:
            log = broker.log()
            end = log.log_end_offset
            assert end >= promised.synced
            wanted = values(promised.history[:end])
            assert values(await everything(broker)) == wanted
            assert log.first_dirty_offset <= end
            await log.flush()
            log.update_high_watermark(end)
            for _ in range(3):
                await cleaner_of(broker).clean_filthiest()
                assert values(await everything(broker)) == wanted
            # What is written from now on is not part of the promise.
            del promised.history[end:]
            promised.synced = end

    return main


def cut(seed: int, cut_at: int | None) -> tuple[int, Promised]:
    promised = Promised()
    writing = writer(promised, seed)
    operations = run_with_power_cut(seed, cut_at, writing, lambda: promised.is_done, lambda _: recovered(promised))
    return operations, promised


@pytest.mark.parametrize("seed", simulation_seeds(4))
def test_no_key_loses_or_regains_a_value_whenever_the_power_fails(seed: int) -> None:
    operations, promised = cut(seed, None)
    assert promised.cleaned > 2, "nothing was compacted: the test does not test"
    for cut_at in random.Random(seed).sample(range(1, operations + 1), 30):
        cut(seed, cut_at)
