"""A log that is cut off below what is compacted, while it is compacted, and while the power may fail at any operation.

An unclean election does that. Nothing may come back that was cut off or replaced, and what is left of a key is its last
record below the cut; or nothing, where the cleaner has removed that for the sake of one that was cut off.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from barnabas.kernel.host import Host
from barnabas.log.manager.log_cleaner import LogCleaner
from barnabas.log.partition.log_config import LogConfig, LogSettings
from barnabas.testing.simulated_host import Main
from barnabas.testing.simulation import Simulation, simulation_seeds
from barnabas.wire.batch_formats import read_records
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.records import Record
from tests.simulation.test_log_cleaner_power import everything
from tests.unit.log.log_broker import LogBroker, log_broker

DIRECTORY = "/data/logs"
CONFIG = LogConfig(
    cleanup_policy=("compact",),
    segment_bytes=900,
    index_interval_bytes=300,
    file_delete_delay_ms=200,
    delete_retention_ms=20,
    min_cleanable_dirty_ratio=0.01,
)
SETTINGS = LogSettings(cleaner_enable=False)
STEPS = 50


@dataclass(slots=True)
class Known:
    """What the log must have."""

    history: dict[int, Record] = field(default_factory=dict)
    synced: int = 0
    batches: set[int] = field(default_factory=set)
    """Where batches began."""
    cuts: int = 0
    cuts_below_compacted: int = 0
    cuts_while_swapped: int = 0
    operations: Callable[[], int] = int
    """How many the disk has done."""
    swap_operations: set[int] = field(default_factory=set)
    """Those between which cleaned segments took the places of others."""
    is_done: bool = False

    def forget(self, found: list[Record], end: int) -> None:
        """From now on what was found is what there was."""
        self.history = {record.offset: record for record in found}
        self.batches = {each for each in self.batches if each < end}


def latest(records: list[Record]) -> dict[bytes | None, Record]:
    return {record.key: record for record in sorted(records, key=lambda each: each.offset)}


def check(found: list[Record], known: Known, end: int) -> None:
    """`end` is where the log ends."""
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets)), "out of order"
    for record in found:
        written = known.history.get(record.offset)
        assert written is not None, f"{record} was never written, or had been cut off"
        assert (written.key, written.value) == (record.key, record.value), f"{record} is not {written}"
    below = latest([record for record in known.history.values() if record.offset < end])
    behind = {record.key for record in known.history.values() if record.offset >= end}
    left = latest(found)
    for key, wanted in below.items():
        is_there = left.get(key)
        if is_there is None:
            assert wanted.value is None or key in behind, f"{wanted} is lost"
        else:
            assert is_there.value == wanted.value, f"{is_there} is not the last of its key, {wanted} is"


async def pause(host: Host, seconds: float) -> None:
    done = host.loop.create_future()
    host.loop.call_later(seconds, done.set_result, None)
    await done


async def settle(broker: LogBroker, known: Known) -> None:
    """After a truncation: what is there from now on is what must be."""
    found, end = await everything(broker), broker.log().log_end_offset
    check(found, known, end)
    known.forget(found, end)


def has_swap(host: Host, directory: str) -> bool:
    return any(name.endswith(".swap") for name in host.files.list_directory(directory))


async def cut(broker: LogBroker, known: Known, choose: random.Random, cleaning: asyncio.Task[bool]) -> None:
    log, host = broker.log(), broker.host
    if choose.random() < 0.7:
        while not cleaning.done() and not has_swap(host, log.directory):
            await pause(host, 0.0002)
    else:
        await pause(host, choose.random() * 0.05)
    known.cuts_while_swapped += has_swap(host, log.directory)
    starts = sorted(each for each in known.batches if each < log.log_end_offset)
    if not starts:
        return
    to = choose.choice(starts[-20:])
    known.cuts += 1
    known.cuts_below_compacted += to < log.first_dirty_offset
    known.synced = min(known.synced, to)
    await log.truncate_to(to)
    await settle(broker, known)
    known.synced = min(known.synced, log.log_end_offset)


async def append(broker: LogBroker, known: Known, choose: random.Random, step: int) -> None:
    log, builder = broker.log(), RecordBatchBuilder()
    for _ in range(choose.randrange(1, 6)):
        key, value = b"%d" % choose.randrange(12), b"%d " % step * choose.randrange(1, 40)
        builder.append(1000 + step, key, None if choose.random() < 0.2 else value)
    first, data = log.log_end_offset, builder.build()
    for number, record in enumerate(read_records(bytes(data))):
        known.history[first + number] = record._replace(offset=first + number)
    known.batches.add(first)
    log.append_as_leader(memoryview(data), 0)
    await broker.written(log)


async def sync(broker: LogBroker, known: Known) -> None:
    log = broker.log()
    await log.flush()
    known.synced = log.recovery_point
    log.update_high_watermark(log.log_end_offset)


async def live(broker: LogBroker, known: Known, choose: random.Random, steps: int) -> None:
    cleaner = LogCleaner(broker.manager, broker.host, logging.getLogger("cleaner"))
    cleaning: asyncio.Task[bool] | None = None
    for step in range(steps):
        await append(broker, known, choose, step)
        if choose.random() < 0.5:
            await sync(broker, known)
        if choose.random() < 0.1:
            broker.manager.reconfigure("flights", replace(CONFIG, segment_bytes=choose.choice((700, 4000))))
        if choose.random() < 0.3 and (cleaning is None or cleaning.done()):
            await broker.manager.checkpoint_recovery_points()
            cleaning = broker.host.loop.create_task(cleaner.clean_filthiest())
            if choose.random() < 0.4:
                await cut(broker, known, choose, cleaning)
                await append(broker, known, choose, step)
                await sync(broker, known)
            elif choose.random() < 0.5:
                await cleaning
            check(await everything(broker), known, broker.log().log_end_offset)
    if cleaning is not None:
        await cleaning


async def watch(broker: LogBroker, known: Known) -> None:
    while True:
        if has_swap(broker.host, broker.log().directory):
            known.swap_operations.update(range(known.operations() - 4, known.operations() + 12))
        await pause(broker.host, 0.0002)


def writer(known: Known, seed: int) -> Main:
    async def main(host: Host) -> None:
        async with log_broker(host, DIRECTORY, config=CONFIG, settings=SETTINGS, is_clean=False) as broker:
            host.loop.create_task(watch(broker, known))
            await live(broker, known, random.Random(seed), STEPS)
            known.is_done = True
            await host.loop.create_future()

    return main


def recovered(known: Known, seed: int) -> Main:
    async def main(host: Host) -> None:
        async with log_broker(host, DIRECTORY, config=CONFIG, settings=SETTINGS, is_clean=False) as broker:
            log = broker.log()
            end = log.log_end_offset
            found = await everything(broker)
            check(found, known, end)
            left = latest(found)
            for key, wanted in latest([each for each in known.history.values() if each.offset < known.synced]).items():
                is_there = left.get(key)
                if is_there is None or is_there.offset < wanted.offset:
                    is_superseded = any(
                        each.key == key and each.offset > wanted.offset for each in known.history.values()
                    )
                    assert wanted.value is None or is_superseded, f"{wanted} was durable and is lost"
            # What is written from now on is not part of the promise.
            known.forget(found, end)
            known.synced = end
            await live(broker, known, random.Random(seed + 1), 12)
            await log.flush()
            known.synced = log.log_end_offset
            known.is_done = True

    return main


def run_with_power_cut(seed: int, cut_at: int | None, again_at: int = 0) -> tuple[int, Known]:
    """The power fails at operation `cut_at`, and while that is recovered after `again_at` more."""
    known = Known()
    with Simulation(seed) as simulation:
        machine = simulation.machine("broker")
        machine.disk.cut_power_at = cut_at
        known.operations = lambda: machine.disk.operations
        machine.start(writer(known, seed))
        simulation.run_until(lambda: known.is_done or not machine.powered)
        operations = machine.disk.operations
        for number in (again_at, 0):
            if machine.powered:
                machine.power_fail()
            machine.disk.cut_power_at = machine.disk.operations + number if number else None
            machine.power_restore()
            known.is_done = False
            machine.start(recovered(known, seed + number))
            simulation.run_until(lambda: known.is_done or not machine.powered)
    return operations, known


@pytest.mark.parametrize("seed", simulation_seeds(3))
def test_nothing_comes_back_and_nothing_is_lost(seed: int) -> None:
    for history in range(seed, seed + 100_000, 10_000):
        operations, known = run_with_power_cut(history, None)
        while_swapped = sorted(known.swap_operations.intersection(range(1, operations + 1)))
        if known.cuts and while_swapped:
            break
    else:
        pytest.fail("nothing was cut off or compacted: the test does not test")
    choose = random.Random(history)
    anywhere = choose.sample(range(1, operations + 1), 12)
    for cut_at in anywhere + choose.sample(while_swapped, min(12, len(while_swapped))):
        run_with_power_cut(history, cut_at, choose.randrange(1, 40))
